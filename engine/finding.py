"""Pages of tickets: one part from every shard, merged newest first, with a cursor.

The cursor is the serial to go on below, so a page costs the same wherever it is, and rows that come
or go meanwhile neither repeat nor hide others.
"""

import heapq
from collections.abc import Collection, Sequence
from datetime import datetime
from typing import TYPE_CHECKING, Any, cast, get_args

from parkade.asking import Request
from parkade.asks import PageOf, ShardPage
from parkade.checks import utf8_length
from parkade.durations import at_ms
from parkade.errors import ConfigError, DeadReason
from parkade.index_keys import (
    group_prefix,
    key_prefix,
    state_prefix,
    tag_prefix,
    target_prefix,
    task_prefix,
)
from parkade.limits import FIND_LIMIT_MAX
from parkade.shard.grouping import GROUP_BYTES
from parkade.shard.states import STATES
from parkade.showing import STATE_NUMBERS
from parkade.views import Page, State, TicketInfo

if TYPE_CHECKING:
    from parkade.desk import Desk

__all__ = [
    "ALL_STATES", "NEWEST", "check_limit", "check_names", "check_tag", "cursor_below", "find",
    "indexes_of", "parse_group",
]  # fmt: skip

NEWEST = 1 << 64  # above every serial
SERIAL_LAG_MS_MAX = 86_400_000
ALL_STATES = tuple(STATES)


def find(
    desk: "Desk",
    *,
    call: str,
    state: State | None = None,
    task: str | None = None,
    key: str | None = None,
    target: str | None = None,
    tag: tuple[str, str] | None = None,
    why: str | None = None,
    error_type: str | None = None,
    group: str | None = None,
    since: datetime | None = None,
    until: datetime | None = None,
    due_before: datetime | None = None,
    created_after: datetime | None = None,
    limit: int = 100,
    cursor: str | None = None,
) -> Request[Page[TicketInfo]]:
    """Raises `ConfigError` for an unknown state or reason, a bad limit or cursor, names that are no
    texts and a tag that is not indexed; `NaiveDatetime` for a time without a zone."""
    _check_word(call, "state", state, STATE_NUMBERS)
    _check_word(call, "reason", why, get_args(DeadReason))
    check_names(call, task=task, key=key, target=target, error_type=error_type)
    check_limit(call, limit)
    tag = None if tag is None else check_tag(desk, call, tag)
    parsed = None if group is None else parse_group(call, group)
    number = None if state is None else STATE_NUMBERS[state]
    states = ALL_STATES if number is None else (number,)
    due_from_ms, due_to_ms = _due_span(desk, call, state, due_before)
    created_from_ms = None if created_after is None else _ms_after(call, created_after)
    asked = PageOf(
        indexes=indexes_of(states, task, key, target, tag, parsed),
        before=NEWEST if cursor is None else _parse_cursor(call, cursor),
        limit=limit,
        state=number,
        task=task,
        key=key,
        why=why,
        error_type=error_type,
        due_from_ms=due_from_ms,
        due_to_ms=due_to_ms,
        group=parsed,
        ended_from_ms=_ms_of(call, "since", since),
        ended_to_ms=_ms_of(call, "until", until),
        target=target,
        tag=tag,
        created_from_ms=created_from_ms,
        floor=_floor(created_from_ms),
    )
    return _request(desk, call, asked)


def _request(desk: "Desk", call: str, asked: PageOf) -> Request[Page[TicketInfo]]:
    asks = [(shard, asked) for shard in range(desk.runtime.shard_count)]
    where, _, verb = call.rpartition(".")
    return Request(call, f"{where}.a{verb}", asks, lambda got: _page(desk, asked, got))


def indexes_of(
    states: Sequence[int],
    task: str | None,
    key: str | None,
    target: str | None,
    tag: tuple[str, str] | None,
    group: bytes | None = None,
) -> tuple[tuple[bytes, ...], ...]:
    """Every index that has all tickets asked for, for the shortest to be walked; none: the table
    itself."""
    indexes: list[tuple[bytes, ...]] = []
    if key is not None:
        indexes.append((key_prefix(key),))
    if target is not None:
        indexes.append((target_prefix(target),))
    if tag is not None:
        indexes.append((tag_prefix(*tag),))
    if group is not None:
        indexes.append((group_prefix(group),))
    if task is not None:
        indexes.append(tuple(task_prefix(task, state) for state in states))
    elif len(states) < len(ALL_STATES):
        indexes.append(tuple(state_prefix(state) for state in states))
    return tuple(indexes)


def check_names(call: str, **names: object) -> None:
    """Raises `ConfigError` for a name that is given and no text."""
    for name, text in names.items():
        if text is not None and not _is_text(text):
            raise ConfigError.option(call, name, text, "use a text")


def check_tag(desk: "Desk", call: str, tag: object) -> tuple[str, str]:
    """Name and value of a tag. Raises `ConfigError` also for one that the engine does not index."""
    is_pair = isinstance(tag, tuple | list)
    pair: list[Any] = list(cast(Any, tag)) if is_pair else []
    if len(pair) != 2 or not all(_is_text(one) for one in pair):
        advice = 'use its name and its value, like ("campaign", "may")'
        raise ConfigError.option(call, "tag", tag, advice)
    name, value = cast(tuple[str, str], pair)
    known = desk.runtime.options.index_tags
    if known is not None and name not in known:
        advice = (
            f'the tag "{name}" is not indexed. Name it to the engine, Engine(index_tags=("{name}",)'
            "): tickets that are submitted from then on are found by it"
        )
        raise ConfigError.option(call, "tag", (name, value), advice)
    return name, value


def _due_span(
    desk: "Desk", call: str, state: State | None, due_before: datetime | None
) -> tuple[int | None, int | None]:
    """From when, and before when, tickets are to be due. `scheduled` and `ready` are told apart by
    that alone."""
    due_to_ms = _ms_of(call, "due_before", due_before)
    if state not in ("scheduled", "ready"):
        return None, due_to_ms
    next_ms = desk.runtime.clock.now_ms() + 1
    if state == "scheduled":
        return next_ms, due_to_ms
    return None, next_ms if due_to_ms is None else min(next_ms, due_to_ms)


def _ms_of(call: str, name: str, at: datetime | None) -> int | None:
    return None if at is None else at_ms(at, what=f"{call}({name})")


def _ms_after(call: str, created_after: datetime) -> int:
    return at_ms(created_after, what=f"{call}(created_after)") + 1


def _floor(created_from_ms: int | None) -> int:
    """A serial below which nothing was created from that time on, but for what was submitted while
    the clock was ahead of the serials' lease: a day is left for that."""
    return 0 if created_from_ms is None else max(created_from_ms - SERIAL_LAG_MS_MAX, 0) << 20


def _check_word(call: str, name: str, value: object, words: Collection[str]) -> None:
    if value is not None and not (isinstance(value, str) and value in words):
        raise ConfigError.option(call, name, value, f"use one of {', '.join(words)}")


def _is_text(value: object) -> bool:
    return isinstance(value, str) and utf8_length(value) >= 0


def _parse_cursor(call: str, cursor: str) -> int:
    try:
        before = int(cursor, 16)
    except (TypeError, ValueError):
        before = -1
    if not 0 <= before <= NEWEST:
        raise ConfigError.option(call, "cursor", cursor, "use the .next of a page")
    return before


def cursor_below(desk: "Desk", info: TicketInfo) -> str:
    """The cursor of a page that begins after this ticket."""
    return f"{desk.parse(info.id).serial:x}"


def parse_group(call: str, group: str) -> bytes:
    """The group of a `DeadGroup.key`. Raises `ConfigError`."""
    try:
        parsed = bytes.fromhex(group)
    except (TypeError, ValueError):
        parsed = b""
    if len(parsed) != GROUP_BYTES:
        raise ConfigError.option(call, "group", group, "use the .key of a group")
    return parsed


def check_limit(call: str, limit: object) -> None:
    """Raises `ConfigError`."""
    if not isinstance(limit, int) or isinstance(limit, bool) or not 1 <= limit <= FIND_LIMIT_MAX:
        raise ConfigError.option(call, "limit", limit, f"use 1 to {FIND_LIMIT_MAX}")


def _page(desk: "Desk", asked: PageOf, parts: list[ShardPage]) -> Page[TicketInfo]:
    """Beyond the highest place at which a shard's part stops, the merged order is not known."""
    edge = max((part.last for part in parts if part.last is not None), default=0)
    merged: list[Any] = heapq.nlargest(
        asked.limit + 1,
        (ticket for part in parts for ticket in part.tickets if ticket.serial >= edge),
        key=lambda ticket: ticket.serial,
    )
    items, rest = merged[: asked.limit], merged[asked.limit :]
    after: int | None = None
    if rest or (edge and items and len(items) == asked.limit):
        after = items[-1].serial
    elif edge:
        after = edge
    return Page(
        items=[desk.shown(ticket) for ticket in items],
        next=None if after is None else f"{after:x}",
        scanned=sum(part.scanned for part in parts),
        complete=len(items) == asked.limit or not edge,
    )
