"""Durations: every spelling of a length means the same, and nothing becomes shorter."""

from datetime import UTC, datetime, timedelta, timezone
from typing import Any

from hypothesis import given
from hypothesis import strategies as st

from parkade.durations import TIME_MS_MAX, at_ms, datetime_of, due_ms, parse_duration_ms
from parkade.errors import ConfigError

WHOLE_MS = st.integers(0, TIME_MS_MAX)
SIZES = {"y": 31_536_000_000, "d": 86_400_000, "h": 3_600_000, "m": 60_000, "s": 1_000, "ms": 1}


def spelt(ms: int) -> str:
    """The text of a length, its units in order."""
    text = ""
    for unit, size in SIZES.items():
        count, ms = divmod(ms, size)
        text += f"{count}{unit}" if count else ""
    return text or "0s"


@given(WHOLE_MS)
def test_text_and_timedelta_mean_the_same_length(ms: int) -> None:
    assert parse_duration_ms(spelt(ms), what="delay") == ms
    assert parse_duration_ms(timedelta(milliseconds=ms), what="delay") == ms


@given(st.integers(0, 10**12))
def test_seconds_as_a_float_are_exact_to_the_millisecond(ms: int) -> None:
    assert parse_duration_ms(ms / 1_000, what="delay") == ms


@given(st.timedeltas(timedelta(0), timedelta(days=10**6)))
def test_a_length_is_never_rounded_down(length: timedelta) -> None:
    ms = parse_duration_ms(length, what="delay")
    assert timedelta(0) <= timedelta(milliseconds=ms) - length < timedelta(milliseconds=1)


@given(
    st.one_of(
        st.text(),
        st.from_regex(r"[0-9]{1,18}(ms|[ywdhms])?( ?[0-9.]{1,4}(ms|[ywdhms]))?", fullmatch=True),
        st.floats(),
        st.integers(),
        st.booleans(),
        st.timedeltas(),
        st.none(),
        st.binary(),
        st.fractions(),
        st.decimals(),
    )
)
def test_anything_at_all_is_a_length_or_a_config_error(value: Any) -> None:
    try:
        ms = parse_duration_ms(value, what="delay")
    except ConfigError as error:
        assert error.code == "PK-210"
    else:
        assert type(ms) is int
        assert 0 <= ms <= TIME_MS_MAX
        assert not isinstance(value, bool)


def zone(minutes: int) -> timezone:
    return timezone(timedelta(minutes=minutes))


ZONES = st.builds(zone, st.integers(-1_439, 1_439))


@given(st.datetimes(datetime(1970, 1, 3), datetime(9999, 12, 29), timezones=ZONES), ZONES)
def test_an_instant_is_the_same_in_every_zone(at: datetime, other: timezone) -> None:
    assert at_ms(at) == at_ms(at.astimezone(other)) == at_ms(at.astimezone(UTC))
    assert timedelta(0) <= datetime_of(at_ms(at)) - at < timedelta(milliseconds=1)


@given(WHOLE_MS, WHOLE_MS)
def test_due_is_never_before_now_nor_past_the_last_year(now_ms: int, delay_ms: int) -> None:
    try:
        due = due_ms(now_ms, timedelta(milliseconds=delay_ms), None)
    except ConfigError:
        assert now_ms + delay_ms > TIME_MS_MAX
    else:
        assert due == now_ms + delay_ms <= TIME_MS_MAX
    assert due_ms(now_ms, None, datetime_of(delay_ms)) == max(now_ms, delay_ms)
