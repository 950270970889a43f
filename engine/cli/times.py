"""Times and rates as a shell gives them, refused by the name of their option."""

from datetime import datetime

import click

from parkade.durations import parse_duration_ms
from parkade.errors import ConfigError

__all__ = ["Rate", "parse_rate", "parse_span", "parse_time"]

Rate = tuple[int, str]  # so many in a span

DATE_CHARS = len("2027-01-31")


def parse_rate(_: click.Context, __: click.Parameter, value: str | None) -> Rate | None:
    """`50/s`, `50/10s`, `3/1m`."""
    if value is None:
        return None
    count, _slash, span = value.partition("/")
    span = span if span[:1].isdigit() else f"1{span}"
    try:
        if int(count) > 0 and parse_duration_ms(span, what="rate"):
            return int(count), span
    except (ValueError, ConfigError):
        pass
    raise click.BadParameter(f"{value!r} is no rate. Use so many in a span, like 50/s or 3/1m")


def parse_span(_: click.Context, option: click.Parameter, value: str | None) -> str | None:
    """`10m`, as it was given."""
    if value is not None:
        parse_duration_ms(value, what=option.opts[0])
    return value


def parse_time(_: click.Context, option: click.Parameter, value: str | None) -> str | None:
    """`2027-01-31T09:00:00+01:00`, as it was given."""
    if value is None:
        return None
    try:
        at = datetime.fromisoformat(value)
    except ValueError:
        advice = "Use ISO 8601, like 2027-01-31T09:00:00+01:00"
        raise click.BadParameter(f"{value!r} is no point in time. {advice}") from None
    if at.tzinfo is None:
        raise click.BadParameter(
            f"{value!r} has no time zone. Add it, like {value}{_zone(value, at)}"
        )
    return value


def _zone(value: str, at: datetime) -> str:
    """What is missing, with this machine's zone: `+01:00`, or `T00:00+01:00` after a date."""
    try:
        offset = at.astimezone().isoformat()[-6:]
    except (OverflowError, ValueError):  # the first and the last year of the calendar
        offset = "+00:00"
    return f"T00:00{offset}" if len(value) <= DATE_CHARS else offset
