"""Single arguments: what is taken as it is, and how a refusal reads."""

from typing import Any

import pytest

from parkade.checks import check_choice, check_count, check_error_types, check_text
from parkade.errors import ConfigError


@pytest.mark.parametrize("value", [0, -1, True, 1.0, "3", None])
def test_a_count_is_a_whole_number_from_its_least_on(value: Any) -> None:
    with pytest.raises(ConfigError, match=r"^x\(n=.*\): use a whole number from 1 on \[PK-107\]"):
        check_count("x", "n", value)
    assert check_count("x", "n", 0, least=0) == 0


def test_a_choice_is_one_of_its_words_and_the_error_lists_them() -> None:
    assert check_choice("x", "w", "a", ("a", "b", "c")) == "a"
    with pytest.raises(ConfigError, match=r'x\(w=\'d\'\): use "a", "b" or "c"'):
        check_choice("x", "w", "d", ("a", "b", "c"))


@pytest.mark.parametrize(
    ("value", "problem"),
    [
        (3, "a text, not int"),
        (b"k", "a text, not bytes"),
        ("", "a text that is not empty"),
        ("x" * 256, "a text of at most 255 bytes"),
        ("ä" * 128, "a text of at most 255 bytes"),
        ("\ud800", "a lone surrogate"),
        ("\ud800" * 100, "a lone surrogate"),
    ],
)
def test_a_text_must_be_storable_in_an_index(value: Any, problem: str) -> None:
    with pytest.raises(ConfigError, match=problem):
        check_text("x", "key", value)


def test_a_text_of_a_class_of_its_own_becomes_a_plain_one() -> None:
    class Name(str):
        def __str__(self) -> str:
            return "another"

    checked = check_text("x", "key", Name("order-7"))
    assert type(checked) is str
    assert checked == "order-7"
    assert check_text("x", "key", "ä" * 127) == "ä" * 127


def test_error_types_come_as_a_tuple_of_exception_classes() -> None:
    assert check_error_types("x", "on", (OSError, KeyboardInterrupt)) == (
        OSError,
        KeyboardInterrupt,
    )
    with pytest.raises(ConfigError, match=r"use a tuple: \(OSError,\)"):
        check_error_types("x", "on", OSError)
    not_tuples: list[Any] = [[OSError], None, "OSError"]
    for wrong in not_tuples:
        with pytest.raises(ConfigError, match="a tuple of exception classes"):
            check_error_types("x", "on", wrong)
    not_classes: list[Any] = [(int,), (OSError("x"),)]
    for wrong in not_classes:
        with pytest.raises(ConfigError, match="exception classes only"):
            check_error_types("x", "on", wrong)
