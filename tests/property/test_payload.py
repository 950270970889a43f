"""Payloads: whatever is accepted at submit comes back at run, whatever is not is a PayloadError."""

import dataclasses
from collections.abc import Callable
from datetime import UTC
from typing import Any

import msgspec
from hypothesis import given
from hypothesis import strategies as st

from parkade.errors import PayloadError
from parkade.handlers import Handler
from parkade.payload import PayloadCodec, ResultCodec


class Item(msgspec.Struct):
    name: str
    count: int = 1
    tags: dict[str, float] = msgspec.field(default_factory=dict[str, float])


@dataclasses.dataclass
class Order:
    id: int
    items: list[Item]
    note: str | None = None


def handle(
    n: int, text: str, blob: bytes = b"", ratio: float = 1.0, flag: bool = False, *, order: Order
) -> Any:
    return n, text, blob, ratio, flag, order


CODEC = PayloadCodec("t", Handler(handle, call="@engine.task"))
RESULT = ResultCodec("t", Handler(handle, call="@engine.task"))

INTS = st.integers(-(2**63), 2**64 - 1)
TEXTS = st.text(st.characters(exclude_categories=["Cs"]))
FLOATS = st.floats(allow_nan=False)
ITEMS = st.builds(Item, TEXTS, INTS, st.dictionaries(TEXTS, FLOATS, max_size=3))
ORDERS = st.builds(Order, INTS, st.lists(ITEMS, max_size=3), st.one_of(st.none(), TEXTS))
PLAIN = st.recursive(
    st.one_of(st.none(), st.booleans(), INTS, FLOATS, TEXTS, st.binary()),
    lambda inner: st.one_of(st.lists(inner), st.dictionaries(TEXTS, inner)),
    max_leaves=8,
)
FOREIGN = st.sampled_from([object(), 1j, 2**70, "\ud800", range(3), type, print])
ANYTHING: st.SearchStrategy[Any] = st.recursive(
    st.one_of(PLAIN, FOREIGN, ORDERS, ITEMS, st.datetimes(timezones=st.just(UTC))),
    lambda inner: st.one_of(st.lists(inner, max_size=3), st.dictionaries(TEXTS, inner, max_size=3)),
    max_leaves=6,
)


def called(fn: Callable[..., Any], payload: bytes) -> Any:
    args, kwargs = CODEC.decode(payload)
    return fn(*args, **kwargs)


@given(INTS, TEXTS, st.binary(), FLOATS, st.booleans(), ORDERS, st.integers(0, 4))
def test_what_fits_the_annotations_comes_back_equal(
    n: int, text: str, blob: bytes, ratio: float, flag: bool, order: Order, positional: int
) -> None:
    given_all: dict[str, Any] = {"n": n, "text": text, "blob": blob, "ratio": ratio, "flag": flag}
    args = tuple(given_all.values())[:positional]
    kwargs: dict[str, Any] = dict(list(given_all.items())[positional:], order=order)
    payload, values = CODEC.encode(args, kwargs)
    assert called(handle, payload) == handle(*args, **kwargs)
    assert values == given_all | {"order": order}


@given(
    st.lists(ANYTHING, max_size=6),
    st.dictionaries(st.sampled_from(["n", "text", "blob", "order", "x"]), ANYTHING, max_size=5),
)
def test_any_arguments_at_all_are_stored_readably_or_refused(
    args: list[Any], kwargs: dict[str, Any]
) -> None:
    try:
        payload, values = CODEC.encode(tuple(args), kwargs)
    except PayloadError as error:
        assert error.code == "PK-202"
        assert str(error).startswith("t")
        return
    read_args, read_kwargs = CODEC.decode(payload)
    assert read_args == ()
    assert read_kwargs == values
    assert type(read_kwargs["order"]) is Order


@given(st.dictionaries(st.one_of(TEXTS, st.just("n"), st.just("order")), PLAIN, max_size=6))
def test_any_mapping_from_outside_is_stored_readably_or_refused(mapping: dict[str, Any]) -> None:
    try:
        payload, values = CODEC.encode_mapping(mapping)
    except PayloadError:
        return
    assert CODEC.decode(payload) == ((), values)


@given(st.binary(max_size=200))
def test_any_bytes_at_all_are_arguments_or_refused(payload: bytes) -> None:
    try:
        args, kwargs = CODEC.decode(payload)
    except PayloadError:
        return
    assert args == ()
    assert {"n", "text", "order"} <= kwargs.keys()


@given(INTS, TEXTS, ORDERS, st.data())
def test_a_flipped_byte_is_read_as_other_arguments_or_refused(
    n: int, text: str, order: Order, data: st.DataObject
) -> None:
    payload = bytearray(CODEC.encode((n, text), {"order": order})[0])
    place = data.draw(st.integers(0, len(payload) - 1))
    payload[place] ^= data.draw(st.integers(1, 255))
    try:
        _, kwargs = CODEC.decode(bytes(payload))
    except PayloadError:
        return
    assert type(kwargs["n"]) is int
    assert type(kwargs["order"]) is Order


@given(PLAIN)
def test_an_untyped_result_comes_back_equal(result: Any) -> None:
    assert RESULT.decode(RESULT.encode(result)) == result


@given(ANYTHING)
def test_any_result_at_all_is_stored_or_refused(result: Any) -> None:
    try:
        encoded = RESULT.encode(result)
    except PayloadError:
        return
    RESULT.decode(encoded)
