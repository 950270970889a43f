"""Shapes of messages: the same for what differs in particulars, bounded, and their own shape."""

import re
import uuid

import pytest
from hypothesis import given
from hypothesis import strategies as st

from parkade.shard.grouping import SHAPE_CHARS_MAX, group_of, shape_of

# What the masks look for, in any order and company.
messages = st.one_of(
    st.text(max_size=300),
    st.text(alphabet="ab1'\"`# -,.0x\n", max_size=80),
    st.lists(
        st.sampled_from(
            ("0x", "deadbeef", "12", "'", '"', "`", "#", ", ", "-", "abcd", "é", "٣", " ", "it's")
        ),
        max_size=60,
    ).map("".join),
)


@given(messages)
def test_a_shape_is_its_own_shape_and_is_bounded(message: str) -> None:
    shape = shape_of(message)
    assert shape_of(shape) == shape
    assert len(shape) <= SHAPE_CHARS_MAX
    assert not re.search(r"\d|\n", shape)


@given(st.integers(0, 10**30), st.floats(0, 1e9).map(str), st.uuids(), st.integers(1, 2**64))
def test_numbers_and_ids_make_no_difference(
    number: int, point: str, name: uuid.UUID, address: int
) -> None:
    point = point.partition("e")[0]
    message = f"row {number}: {point} s at {address:#x} for {name} in {name.hex}"
    assert shape_of(message) in (
        "row #: # s at # for # in #",
        f"row #: # s at # for # in {name.hex}",  # in the one case of 32 letters
    )


@given(st.text(alphabet="abc xyz.", min_size=1, max_size=20), st.sampled_from("'\"`"))
def test_what_is_quoted_makes_no_difference(name: str, quote: str) -> None:
    shape = shape_of(f"no table {quote}{name}{quote} here")
    assert shape == "no table '#' here"


@pytest.mark.parametrize(
    ("message", "shape"),
    [
        ("can't decode byte 0x3f in position 12", "can't decode byte # in position #"),
        ("user's 'a' isn't known", "user's '#' isn't known"),
        ("bad ids [1, 22, 333] and ('a', 'b')", "bad ids [#] and (#)"),
        ("timed out", "timed out"),
        ("ticket 38ha6k3260001yf3zg8r9tvg is gone", "ticket # is gone"),
        ("charge ch_3MmlLrLkdIwHu7ix0snN0B15", "charge ch_#"),
        ("a misunderstanding of sha512crypt", "a misunderstanding of sha#crypt"),
        ("added to the cafe face", "added to the cafe face"),
        ("two\n  lines", "two lines"),
        ("", ""),
    ],
)
def test_what_is_left_can_be_read(message: str, shape: str) -> None:
    assert shape_of(message) == shape


@given(st.text(max_size=20), st.text(max_size=20), messages)
def test_a_group_is_a_task_a_type_and_a_shape(task: str, error_type: str, message: str) -> None:
    group = group_of(task, error_type, message)
    assert group == group_of(task, error_type, shape_of(message))
    assert len(group) == 8
    assert group != group_of(task + "x", error_type, message)
    assert group != group_of(task, error_type + "x", message)
    assert group != group_of(task, error_type, "x" + shape_of(message)[:-1])
    assert group_of("a", "bc", "d") != group_of("ab", "c", "d")
