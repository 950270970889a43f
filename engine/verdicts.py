"""What a handler raises on purpose, and how any exception is turned into text.

A `Verdict` says what becomes of the ticket; each takes a reason, shown in logs and lists. What a
handler returns is its result and never a verdict.
"""

import traceback
from collections.abc import Mapping
from datetime import datetime
from types import MappingProxyType
from typing import Any

from parkade.durations import Duration, at_ms, parse_duration_ms
from parkade.errors import ConfigError
from parkade.store.record import ErrorText

__all__ = [
    "Ambiguous",
    "Cancelled",
    "Drop",
    "ErrorText",
    "Fail",
    "RetryAfter",
    "Snooze",
    "Unsafe",
    "Verdict",
    "cut_text",
    "describe",
    "reason_text",
]

TYPE_NAME_BYTES_MAX = 256
MESSAGE_BYTES_MAX = 4_096
REASON_BYTES_MAX = 1_024
TRACEBACK_BYTES_MAX = 32_768
_TRACEBACK_HEAD_BYTES = 8_192  # the rest of the room is for the end, where the error is
_DETAIL_CHARS_MAX = 200


class Verdict(Exception):
    """Base of everything that a handler raises on purpose."""

    # Here too, for a subclass whose constructor leaves ours out: its kind must count all the same.
    reason: str = ""

    def __init__(self, reason: str = "") -> None:
        super().__init__(reason)
        self.reason = reason

    def __str__(self) -> str:
        return self.reason


class RetryAfter(Verdict):
    """Try again after `after_ms`, within the policy's cap; it counts as an attempt.

    Raises `ConfigError` for what is no duration.
    """

    after_ms: int | None = None  # None: as long as the policy says

    def __init__(self, after: Duration, reason: str = "") -> None:
        super().__init__(reason)
        self.args = (after, reason)
        self.after_ms = parse_duration_ms(after, what="RetryAfter(after)")

    def __str__(self) -> str:
        if self.reason or self.after_ms is None:
            return self.reason
        return f"try again after {self.after_ms / 1000:g} s"


class Snooze(Verdict):
    """Not yet: come back after `after_ms`, or at `until_ms`. It costs no attempt.

    Raises `ConfigError` unless exactly one of `after` and `until` is given, `NaiveDatetime` for an
    `until` without a zone.
    """

    after_ms: int | None = None
    until_ms: int | None = None

    def __init__(
        self,
        after: Duration | None = None,
        reason: str = "",
        *,
        until: datetime | None = None,
    ) -> None:
        super().__init__(reason)
        self.args = (after, reason)
        if (after is None) == (until is None):
            raise ConfigError(
                f'Snooze({after!r}, until={until!r}): give one of them, like Snooze("15s")'
            )
        if after is not None:
            self.after_ms = parse_duration_ms(after, what="Snooze(after)")
        if until is not None:
            self.until_ms = at_ms(until, what="Snooze(until)")

    def __reduce__(self) -> tuple[Any, ...]:
        # The constructor would refuse `args` alone where `until` was given.
        return _rebuild, (type(self), self.args), self.__dict__

    def due_ms(self, now_ms: int) -> int:
        """When the ticket is due again."""
        if self.until_ms is not None:
            return max(now_ms, self.until_ms)
        return now_ms + (self.after_ms or 0)


class _Final(Verdict):
    """Base of the verdicts that end the ticket as dead, with details for whoever looks."""

    details: Mapping[str, Any] = MappingProxyType({})

    def __init__(self, reason: str, /, **details: Any) -> None:
        super().__init__(reason)
        self.details = details

    def __str__(self) -> str:
        if not self.details:
            return self.reason
        facts = ", ".join(f"{name}={_shown(value)}" for name, value in self.details.items())
        return f"{self.reason} ({facts})"


class Fail(_Final):
    """Give up: trying again cannot help. Dead `failed`; it does not count for the breaker."""


class Unsafe(_Final):
    """It failed, and the failure must not be repeated. Dead `unsafe`; counts for the breaker."""


class Ambiguous(_Final):
    """It may have happened. Dead `ambiguous`: never tried again before a person has looked."""


class Drop(Verdict):
    """The work is no longer wanted: the ticket is cancelled."""


class Cancelled(BaseException):
    """Raised in a handler whose ticket was asked to stop.

    Not an `Exception`, so that a handler's `except Exception` does not swallow it.
    """

    reason: str = ""

    def __init__(self, reason: str = "") -> None:
        super().__init__(reason)
        self.reason = reason


def describe(error: BaseException) -> ErrorText:
    """An exception as text that is valid UTF-8 and bounded: message 4 KiB, traceback 32 KiB.

    Never raises, whatever the exception's own methods do: it stands between a handler's failure
    and the record of it.
    """
    return ErrorText(
        type=cut_text(type_name(type(error)), TYPE_NAME_BYTES_MAX),
        message=cut_text(_message(error), MESSAGE_BYTES_MAX),
        traceback=cut_text(_traceback(error), TRACEBACK_BYTES_MAX, head=_TRACEBACK_HEAD_BYTES),
    )


def reason_text(reason: str) -> str:
    """A reason as it is stored: valid UTF-8 of at most 1 KiB."""
    return cut_text(reason, REASON_BYTES_MAX)


def type_name(cls: type) -> str:
    """`httpx.ConnectTimeout`; built-in types and those of this library go without a module."""
    try:
        module, name = str(cls.__module__), str(cls.__qualname__)
        module, name = str.__str__(module), str.__str__(name)
    except BaseException:
        return "an exception whose type cannot be named"
    if module == "builtins" or module.partition(".")[0] == "parkade":
        return name
    return f"{module}.{name}"


def _message(error: BaseException) -> str:
    try:
        return str(error)
    except BaseException as second:
        return f"<its str() raised {type_name(type(second))}>"


def _traceback(error: BaseException) -> str:
    try:
        return "".join(traceback.format_exception(error))
    except BaseException as second:
        return f"<the traceback cannot be shown: {type_name(type(second))}>"


def cut_text(text: str, bytes_max: int, *, head: int | None = None) -> str:
    """At most `bytes_max` bytes of UTF-8: the first `head`, and the last of the rest."""
    # By way of the class: a text may be of a subclass, with methods of its own.
    text = str.__str__(text)
    if len(text) > 2 * bytes_max:
        text = text[:bytes_max] + text[-bytes_max:]
    encoded = text.encode("utf-8", "backslashreplace")
    if len(encoded) <= bytes_max:
        return encoded.decode()
    if head is None:
        mark = "…".encode()
        return encoded[: bytes_max - len(mark)].decode(errors="ignore") + mark.decode()
    mark = "\n… the middle is left out …\n".encode()
    tail = bytes_max - head - len(mark)
    start, end = encoded[:head].decode(errors="ignore"), encoded[-tail:].decode(errors="ignore")
    return f"{start}{mark.decode()}{end}"


def _shown(value: object) -> str:
    try:
        text = repr(value)
    except Exception as error:
        return f"<its repr() raised {type(error).__name__}>"
    return text if len(text) <= _DETAIL_CHARS_MAX else text[: _DETAIL_CHARS_MAX - 1] + "…"


def _rebuild(cls: type[Snooze], args: tuple[Any, ...]) -> Snooze:
    verdict = cls.__new__(cls, *args)
    verdict.args = args
    return verdict
