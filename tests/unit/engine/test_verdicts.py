"""What handlers raise on purpose, and exceptions as text whatever they do."""

import copy
from datetime import UTC, datetime
from typing import Any

import pytest

from parkade.errors import ConfigError, NaiveDatetime
from parkade.verdicts import (
    MESSAGE_BYTES_MAX,
    TRACEBACK_BYTES_MAX,
    Ambiguous,
    Cancelled,
    Drop,
    Fail,
    RetryAfter,
    Snooze,
    Unsafe,
    Verdict,
    describe,
)

AT = datetime(2027, 1, 1, tzinfo=UTC)


def test_a_verdict_says_its_reason() -> None:
    assert str(RetryAfter("30s", "rate limited")) == "rate limited"
    assert str(RetryAfter("1.5s")) == "try again after 1.5 s"
    assert str(Snooze("15s", "export still pending")) == "export still pending"
    assert str(Fail("card declined", code="x", order=7)) == "card declined (code='x', order=7)"
    assert str(Drop("user left")) == "user left"
    assert str(Drop()) == ""


def test_waits_are_kept_in_milliseconds() -> None:
    assert RetryAfter(5).after_ms == 5_000
    assert Snooze("15s").after_ms == 15_000
    assert Snooze(until=AT).until_ms == 1_798_761_600_000
    assert Snooze("15s").due_ms(1_000) == 16_000
    assert Snooze(until=AT).due_ms(1_000) == 1_798_761_600_000
    assert Snooze(until=AT).due_ms(1_900_000_000_000) == 1_900_000_000_000


@pytest.mark.parametrize("after", [float("nan"), float("inf"), -1, "soon", True])
def test_a_bad_wait_is_refused_where_it_is_raised(after: Any) -> None:
    with pytest.raises(ConfigError, match=r"RetryAfter\(after="):
        RetryAfter(after)
    with pytest.raises(ConfigError, match=r"Snooze\(after="):
        Snooze(after)


def test_a_snooze_takes_a_wait_or_a_time_and_not_both() -> None:
    with pytest.raises(ConfigError, match="give one of them"):
        Snooze()
    with pytest.raises(ConfigError, match="give one of them"):
        Snooze("15s", until=AT)
    with pytest.raises(NaiveDatetime):
        Snooze(until=datetime(2027, 1, 1))


@pytest.mark.parametrize(
    "verdict",
    [
        RetryAfter("30s", "r"),
        RetryAfter(after=5),
        Snooze("15s", "r"),
        Snooze(until=AT, reason="r"),
        Fail("r", code=1),
        Unsafe("r"),
        Ambiguous("r", order=7),
        Drop("r"),
    ],
    ids=repr,
)
def test_a_verdict_can_be_copied(verdict: Verdict) -> None:
    twin = copy.copy(verdict)
    assert type(twin) is type(verdict)
    assert str(twin) == str(verdict)
    assert twin.__dict__ == verdict.__dict__


def test_a_cancel_passes_through_a_handlers_except_exception() -> None:
    assert not issubclass(Cancelled, Exception)
    assert issubclass(Cancelled, BaseException)
    assert Cancelled("stop").reason == "stop"
    for verdict in (RetryAfter, Snooze, Fail, Unsafe, Ambiguous, Drop):
        assert issubclass(verdict, Verdict)


def raised(error: BaseException) -> BaseException:
    try:
        raise error
    except BaseException as caught:
        return caught


def test_a_described_error_has_a_type_a_message_and_a_traceback() -> None:
    text = describe(raised(ValueError("no such mailbox")))
    assert (text.type, text.message) == ("ValueError", "no such mailbox")
    assert text.traceback.startswith("Traceback (most recent call last):\n")
    assert text.traceback.endswith("ValueError: no such mailbox\n")


def test_a_type_is_named_with_its_module_unless_everybody_knows_it() -> None:
    class Own(Exception): ...

    Own.__module__, Own.__qualname__ = "httpx", "ConnectTimeout"
    assert describe(Own()).type == "httpx.ConnectTimeout"
    assert describe(Ambiguous("r")).type == "Ambiguous"


def test_the_chain_of_causes_and_the_notes_are_in_the_traceback() -> None:
    try:
        try:
            raise OSError("socket")
        except OSError as cause:
            raise RuntimeError("order") from cause
    except RuntimeError as error:
        error.add_note("order 7")
        text = describe(error)
    assert "OSError: socket" in text.traceback
    assert text.traceback.endswith("RuntimeError: order\norder 7\n")


class StrRaises(Exception):
    def __str__(self) -> str:
        raise RuntimeError("no")


class StrExits(Exception):
    def __str__(self) -> str:
        raise SystemExit


class StrIsNoText(Exception):
    def __str__(self) -> str:
        return 3  # type: ignore[return-value]


class NotesRaise(Exception):
    @property
    def __notes__(self) -> list[str]:  # type: ignore[override]
        raise RuntimeError


class Meta(type):
    @property
    def __module__(cls) -> str:  # type: ignore[override]
        raise RuntimeError


class NamelessType(Exception, metaclass=Meta): ...


class StrangeConstructor(Exception):
    def __init__(self, a: int, *, other: int) -> None:
        super().__init__(f"{a} {other}")


class OwnText(str):
    def encode(self, *args: Any, **kwargs: Any) -> bytes:
        raise RuntimeError


class StrIsOwnText(Exception):
    def __str__(self) -> str:
        return OwnText("fine")


@pytest.mark.parametrize(
    ("error", "message"),
    [
        (StrRaises(), "<its str() raised RuntimeError>"),
        (StrExits(), "<its str() raised SystemExit>"),
        (StrIsNoText(), "<its str() raised TypeError>"),
        (NotesRaise("m"), "m"),
        (NamelessType("m"), "m"),
        (StrangeConstructor(1, other=2), "1 2"),
        (StrIsOwnText(), "fine"),
        (ValueError("\ud800"), "\\ud800"),
        (ValueError("a\0b"), "a\0b"),
        (BaseExceptionGroup("g", [KeyboardInterrupt(), ValueError("v")]), None),
        (RecursionError(), ""),
    ],
    ids=lambda value: type(value).__name__,
)
def test_no_exception_keeps_itself_from_being_described(
    error: BaseException, message: str | None
) -> None:
    text = describe(raised(error))
    assert text.type
    assert text.traceback
    if message is not None:
        assert text.message == message
    for part in (text.type, text.message, text.traceback):
        part.encode()


def test_a_cycle_of_causes_is_described_once() -> None:
    one, other = ValueError("one"), ValueError("other")
    one.__cause__, other.__cause__ = other, one
    assert describe(raised(one)).traceback.count("ValueError: one") == 1


@pytest.mark.parametrize("char", ["x", "ä", "€", "😀", "\ud800"])
@pytest.mark.parametrize("count", [4_095, 4_096, 4_097, 1_000_000])
def test_a_message_and_a_traceback_are_bounded_and_whole_characters(char: str, count: int) -> None:
    text = describe(raised(ValueError(char * count)))
    assert len(text.message.encode()) <= MESSAGE_BYTES_MAX
    assert len(text.traceback.encode()) <= TRACEBACK_BYTES_MAX
    if char == "x" and count <= MESSAGE_BYTES_MAX:
        assert text.message == char * count
    else:
        assert text.message.endswith("…")


def test_a_long_traceback_keeps_its_start_and_its_end() -> None:
    text = describe(raised(ValueError("start " + "x" * 100_000 + " end"))).traceback
    assert text.startswith("Traceback (most recent call last):")
    assert "… the middle is left out …" in text
    assert text.endswith(" end\n")
    assert len(text.encode()) == TRACEBACK_BYTES_MAX


def test_details_that_cannot_be_shown_do_not_hide_the_reason() -> None:
    class Sick:
        def __repr__(self) -> str:
            raise RuntimeError

    assert str(Fail("r", order=Sick())) == "r (order=<its repr() raised RuntimeError>)"
    assert len(str(Fail("r", body="x" * 10_000))) < 250
