"""Lengths and points of time as people give them, turned into whole milliseconds.

A duration is seconds (0.25), a timedelta, or text: "250ms", "10m", "1h30m", "3d", "1y" (365 days).
Points in time are aware datetimes, ordered by their instant alone. Nothing here reads a clock.
"""

import math
import re
from datetime import UTC, datetime, timedelta
from functools import lru_cache
from typing import TypeAlias, cast

from parkade.errors import ConfigError, NaiveDatetime
from parkade.wording import shown, span_text

__all__ = [
    "TIME_MS_MAX",
    "Duration",
    "at_ms",
    "datetime_of",
    "due_ms",
    "duration_text",
    "parse_duration_ms",
    "span_text",
]

Duration: TypeAlias = float | timedelta | str

TIME_MS_MAX = 253_402_300_799_999  # the last millisecond of the year 9999, UTC
_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
_US = timedelta(microseconds=1)

_UNIT_MS = {
    "y": 365 * 86_400_000,
    "w": 7 * 86_400_000,
    "d": 86_400_000,
    "h": 3_600_000,
    "m": 60_000,
    "s": 1_000,
    "ms": 1,
}
# Bounded digits: int() of a text of thousands of them is refused by Python with another error.
_PART = re.compile(r"([0-9]{1,16})(?:\.([0-9]{1,9}))?(ms|[ywdhms]) ?")
_TEXT_CHARS_MAX = 100
_FORMS = 'Use seconds (0.25), a timedelta, or text such as "250ms", "10m", "1h30m", "3d", "1y"'


def parse_duration_ms(value: Duration, *, what: str) -> int:
    """A duration in whole ms, rounded up from the microsecond: what is not zero stays so.

    `what` names the argument in errors: `delay`, or `resize.options(delay)`. Raises `ConfigError`
    (PK-210) for what is no duration: NaN, infinite, negative, a bool, longer than to the year 9999.
    """
    given = cast(object, value)  # what callers without a type checker give
    if isinstance(given, str):
        ms = _text_ms(given)
        if ms is None:
            raise _refusal(what, given, _text_problem(given))
    elif isinstance(given, timedelta):
        ms = _ceil_ms(given // _US)
    elif isinstance(given, bool) or not isinstance(given, int | float):
        raise _refusal(what, given, f"a value of type {type(given).__name__} is no duration")
    elif isinstance(given, int):
        ms = given * 1_000
    elif math.isfinite(given):
        # To the microsecond first: 0.07 * 1000 is a little more than 70.
        ms = _ceil_ms(round(given * 1e6)) if abs(given) < TIME_MS_MAX else _signed_max(given)
        ms = ms or int(given > 0)
    else:
        raise _refusal(what, given, "it is not a finite number")
    if ms < 0:
        raise _refusal(what, value, "a duration cannot be negative")
    if ms > TIME_MS_MAX:
        raise _refusal(what, value, "dates end with the year 9999")
    return ms


def at_ms(at: datetime, *, what: str = "at") -> int:
    """A point in time as ms since the epoch, rounded up: nothing fires early.

    Raises `NaiveDatetime` without a zone, `ConfigError` for what is no datetime, lies before 1970
    or after the year 9999.
    """
    given = cast(object, at)
    if not isinstance(given, datetime):
        raise ConfigError(
            f"{_named(what, given)}: a value of type {type(given).__name__} is no point in time. "
            'Use datetime(..., tzinfo=ZoneInfo("Europe/Berlin"))',
            code="PK-210",
        )
    if at.utcoffset() is None:
        raise NaiveDatetime(at, what=what)
    # The epoch's zone is UTC's own object. Python subtracts two datetimes of one zone by their wall
    # clocks, an hour wrong across a change; of two zones by their instants. UTC is right both ways.
    ms = _ceil_ms((at - _EPOCH) // _US)
    if not 0 <= ms <= TIME_MS_MAX:
        side = "before 1970" if ms < 0 else "after the year 9999"
        raise ConfigError(
            f"{_named(what, at)}: it lies {side} in UTC. Use a date from 1970 to 9999",
            code="PK-210",
        )
    return ms


def due_ms(now_ms: int, delay: Duration | None, at: datetime | None) -> int:
    """When something is due, in ms since the epoch; what lies in the past is due now.

    Raises `ConfigError` when both are given or the sum passes the year 9999, and what
    `parse_duration_ms` and `at_ms` raise.
    """
    if delay is not None and at is not None:
        raise ConfigError(
            f"{_named('delay', delay)} and at={at}: give one of them, not both", code="PK-210"
        )
    if at is not None:
        return max(now_ms, at_ms(at))
    if delay is None:
        return now_ms
    return after_ms(now_ms, parse_duration_ms(delay, what="delay"), what="delay")


def after_ms(now_ms: int, delay_ms: int, *, what: str) -> int:
    """`now_ms + delay_ms`; raises `ConfigError` past the year 9999."""
    due = now_ms + delay_ms
    if due > TIME_MS_MAX:
        raise ConfigError(
            f"{what} of {span_text(delay_ms)} from now: dates end with the year 9999. "
            "Use a shorter one",
            code="PK-210",
        )
    return due


def datetime_of(ms: int) -> datetime:
    """The aware datetime, in UTC, of ms since the epoch; the nearest there is, for what only a
    damaged row can say."""
    return _EPOCH + timedelta(milliseconds=max(0, min(ms, TIME_MS_MAX)))


def duration_text(ms: int) -> str:
    """The text that `parse_duration_ms` reads as so many ms: `1d`, `1h30m`."""
    text = ""
    for unit, size in _UNIT_MS.items():
        count, ms = divmod(ms, size)
        text += f"{count}{unit}" if count else ""
    return text or "0s"


@lru_cache(maxsize=512)
def _text_ms(text: str) -> int | None:
    """The ms of "1h30m"; None when it is not a duration. Units come once each, longest first."""
    if not text or len(text) > _TEXT_CHARS_MAX:
        return None
    place, total_us, last_unit_ms = 0, 0, TIME_MS_MAX
    while place < len(text):
        part = _PART.match(text, place)
        if part is None:
            return None
        whole, fraction, unit = part.groups()
        unit_ms = _UNIT_MS[unit]
        if unit_ms >= last_unit_ms:
            return None
        last_unit_ms = unit_ms
        total_us += int(whole) * unit_ms * 1_000
        if fraction:
            total_us += -(-int(fraction) * unit_ms * 1_000 // 10 ** len(fraction))
        place = part.end()
    return _ceil_ms(total_us)


def _text_problem(text: str) -> str:
    stripped = text.strip()
    if stripped.startswith("-"):
        return "a duration cannot be negative"
    if re.fullmatch(r"[0-9.]+", stripped):
        return f'the unit is missing: {stripped} as a number is seconds, or write "{stripped}s"'
    return "that is not a number with a unit (ms, s, m, h, d, w, y), longest unit first"


def _ceil_ms(us: int) -> int:
    return -(-us // 1_000)


def _signed_max(value: float) -> int:
    """Stands for a float too large to be computed with, on its side of zero."""
    return TIME_MS_MAX + 1 if value > 0 else -1


def _named(what: str, value: object) -> str:
    """`delay=nan`, or `resize.options(delay=nan)` where `what` names the call as well."""
    return f"{what[:-1]}={shown(value)})" if what.endswith(")") else f"{what}={shown(value)}"


def _refusal(what: str, value: object, problem: str) -> ConfigError:
    return ConfigError(f"{_named(what, value)}: {problem}. {_FORMS}", code="PK-210")
