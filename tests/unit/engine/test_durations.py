"""Durations and points in time: what is taken, what is refused, and how it rounds."""

from datetime import UTC, date, datetime, timedelta, timezone, tzinfo
from typing import Any
from zoneinfo import ZoneInfo

import pytest

from parkade.durations import (
    TIME_MS_MAX,
    Duration,
    after_ms,
    at_ms,
    datetime_of,
    due_ms,
    duration_text,
    parse_duration_ms,
)
from parkade.errors import ConfigError, NaiveDatetime

NOW = 1_800_000_000_000


@pytest.mark.parametrize(
    ("value", "ms"),
    [
        (0, 0),
        (2, 2_000),
        (0.25, 250),
        (0.07, 70),
        (4.35, 4_350),
        (0.0001, 1),
        (1e-300, 1),
        (timedelta(minutes=1), 60_000),
        (timedelta(microseconds=1), 1),
        ("250ms", 250),
        ("10m", 600_000),
        ("1h30m", 5_400_000),
        ("1h 30m", 5_400_000),
        ("3d", 259_200_000),
        ("2w", 1_209_600_000),
        ("1y", 31_536_000_000),
        ("1.5h", 5_400_000),
        ("0.5ms", 1),
        ("1m250ms", 60_250),
        ("0s", 0),
    ],
)
def test_a_duration_is_seconds_a_timedelta_or_text(value: Duration, ms: int) -> None:
    assert parse_duration_ms(value, what="delay") == ms


@pytest.mark.parametrize(
    ("value", "problem"),
    [
        (float("nan"), "it is not a finite number"),
        (float("inf"), "it is not a finite number"),
        (float("-inf"), "it is not a finite number"),
        (-1, "a duration cannot be negative"),
        (-0.001, "a duration cannot be negative"),
        (-1e300, "a duration cannot be negative"),
        (timedelta(days=-1), "a duration cannot be negative"),
        ("-5m", "a duration cannot be negative"),
        (True, "a value of type bool is no duration"),
        (None, "a value of type NoneType is no duration"),
        ([1], "a value of type list is no duration"),
        (1e300, "dates end with the year 9999"),
        (10**30, "dates end with the year 9999"),
        (timedelta.max, "dates end with the year 9999"),
        ("9999y", "dates end with the year 9999"),
        ("10", 'the unit is missing: 10 as a number is seconds, or write "10s"'),
        ("", "that is not a number with a unit"),
        ("10min", "that is not a number with a unit"),
        ("10M", "that is not a number with a unit"),
        ("30m1h", "longest unit first"),
        ("1h1h", "that is not a number with a unit"),
        ("1e3s", "that is not a number with a unit"),
        ("٣s", "that is not a number with a unit"),
        ("9" * 5_000 + "s", "that is not a number with a unit"),
        ("nan", "that is not a number with a unit"),
    ],
)
def test_what_is_no_duration_is_refused_with_its_reason(value: Any, problem: str) -> None:
    with pytest.raises(ConfigError) as caught:
        parse_duration_ms(value, what="delay")
    assert caught.value.code == "PK-210"
    assert problem in str(caught.value)
    assert str(caught.value).startswith("delay=")
    assert 'text such as "250ms"' in str(caught.value)


def test_the_error_names_the_call_where_it_is_known() -> None:
    with pytest.raises(ConfigError, match=r"^resize\.options\(delay=nan\): it is not a finite"):
        parse_duration_ms(float("nan"), what="resize.options(delay)")


def test_a_time_is_an_instant_whatever_zone_it_is_told_in() -> None:
    berlin = datetime(2027, 1, 1, 9, tzinfo=ZoneInfo("Europe/Berlin"))
    assert at_ms(berlin) == at_ms(datetime(2027, 1, 1, 8, tzinfo=UTC)) == 1_798_790_400_000


def test_the_two_readings_of_a_repeated_hour_are_an_hour_apart() -> None:
    first = datetime(2027, 10, 31, 2, 30, tzinfo=ZoneInfo("Europe/Berlin"))
    second = first.replace(fold=1)
    assert first == second  # to datetime itself they are the same
    assert at_ms(second) - at_ms(first) == 3_600_000


def test_a_time_between_two_milliseconds_never_comes_early() -> None:
    assert at_ms(datetime(1970, 1, 1, 0, 0, 0, 1, tzinfo=UTC)) == 1


class Nowhere(tzinfo):
    """A zone that does not know its offset: as good as none."""

    def utcoffset(self, dt: datetime | None) -> None:
        return None

    def dst(self, dt: datetime | None) -> None:
        return None

    def tzname(self, dt: datetime | None) -> str:
        return "nowhere"


@pytest.mark.parametrize("zone", [None, Nowhere()])
def test_a_time_without_a_zone_is_refused(zone: tzinfo | None) -> None:
    with pytest.raises(NaiveDatetime) as caught:
        at_ms(datetime(2027, 1, 1, 9, tzinfo=zone))
    assert caught.value.code == "PK-203"


@pytest.mark.parametrize("at", ["2027-01-01", date(2027, 1, 1), 1_800_000_000, None])
def test_only_a_datetime_is_a_point_in_time(at: Any) -> None:
    with pytest.raises(ConfigError, match=r"is no point in time.*\[PK-210\]"):
        at_ms(at)


def test_times_before_1970_and_after_9999_are_refused() -> None:
    west = timezone(timedelta(hours=-12))
    with pytest.raises(ConfigError, match="after the year 9999"):
        at_ms(datetime(9999, 12, 31, 23, tzinfo=west))
    with pytest.raises(ConfigError, match="before 1970"):
        at_ms(datetime(1969, 12, 31, tzinfo=UTC))
    assert at_ms(datetime(9999, 12, 31, 23, 59, 59, 999_000, tzinfo=UTC)) == TIME_MS_MAX


def test_due_is_now_or_later_and_the_past_is_now() -> None:
    assert due_ms(NOW, None, None) == NOW
    assert due_ms(NOW, "10m", None) == NOW + 600_000
    assert due_ms(NOW, 0, None) == NOW
    assert due_ms(NOW, None, datetime_of(NOW + 5)) == NOW + 5
    assert due_ms(NOW, None, datetime_of(NOW - 5)) == NOW


def test_a_delay_and_a_time_together_are_refused() -> None:
    with pytest.raises(ConfigError, match="give one of them, not both"):
        due_ms(NOW, "10m", datetime_of(NOW))


def test_a_delay_past_the_last_year_is_refused_however_it_is_made_up() -> None:
    with pytest.raises(ConfigError, match=r"delay of 8000 y from now: dates end with"):
        due_ms(NOW, "8000y", None)
    assert after_ms(TIME_MS_MAX - 1, 1, what="delay") == TIME_MS_MAX
    with pytest.raises(ConfigError):
        after_ms(TIME_MS_MAX, 1, what="delay")


def test_the_last_millisecond_has_a_datetime() -> None:
    assert datetime_of(TIME_MS_MAX).year == 9999
    assert datetime_of(0) == datetime(1970, 1, 1, tzinfo=UTC)


@pytest.mark.parametrize("text", ["0s", "1ms", "250ms", "1h30m", "1d", "1y2w3d4h5m6s7ms"])
def test_a_duration_is_written_so_that_it_reads_back(text: str) -> None:
    assert duration_text(parse_duration_ms(text, what="t")) == text
    assert duration_text(parse_duration_ms("24h", what="t")) == "1d"
