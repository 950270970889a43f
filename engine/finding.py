"""Pages of tickets: one part from every shard, merged newest first, with a cursor.

The cursor is the serial to go on below, so a page costs the same wherever it is, and rows that come
or go meanwhile neither repeat nor hide others.
"""

import heapq
from collections.abc import Collection
from datetime import datetime
from typing import TYPE_CHECKING, Any, get_args

from parkade.asking import Request
from parkade.asks import PageOf, ShardPage
from parkade.checks import utf8_length
from parkade.durations import at_ms
from parkade.errors import ConfigError, DeadReason
from parkade.index_keys import group_prefix, key_prefix, state_prefix, task_prefix
from parkade.limits import FIND_LIMIT_MAX
from parkade.shard.grouping import GROUP_BYTES
from parkade.shard.states import PENDING
from parkade.showing import STATE_NUMBERS
from parkade.views import Page, State, TicketInfo

if TYPE_CHECKING:
    from parkade.desk import Desk

__all__ = ["NEWEST", "check_limit", "find", "parse_group"]

NEWEST = 1 << 64  # above every serial


def find(
    desk: "Desk",
    *,
    call: str,
    state: State | None = None,
    task: str | None = None,
    key: str | None = None,
    why: str | None = None,
    error_type: str | None = None,
    group: str | None = None,
    since: datetime | None = None,
    until: datetime | None = None,
    limit: int = 100,
    cursor: str | None = None,
) -> Request[Page[TicketInfo]]:
    """Raises `ConfigError` for an unknown state or reason, a bad limit or cursor, and for names
    that are no texts."""
    _check_word(call, "state", state, STATE_NUMBERS)
    _check_word(call, "reason", why, get_args(DeadReason))
    for name, text in (("task", task), ("key", key), ("error_type", error_type)):
        if text is not None and not _is_text(text):
            raise ConfigError.option(call, name, text, "use a text")
    check_limit(call, limit)
    before = NEWEST if cursor is None else _parse_cursor(call, cursor)
    parsed = None if group is None else parse_group(call, group)
    number = None if state is None else STATE_NUMBERS[state]
    due_from_ms = due_to_ms = None
    if number == PENDING:
        now_ms = desk.runtime.clock.now_ms()
        due_from_ms, due_to_ms = (now_ms + 1, None) if state == "scheduled" else (None, now_ms + 1)
    asked = PageOf(
        prefix=_prefix(number, task, key) if parsed is None else group_prefix(parsed),
        before=before,
        limit=limit,
        state=number,
        task=task,
        key=key,
        why=why,
        error_type=error_type,
        due_from_ms=due_from_ms,
        due_to_ms=due_to_ms,
        group=parsed,
        ended_from_ms=None if since is None else at_ms(since, what=f"{call}(since)"),
        ended_to_ms=None if until is None else at_ms(until, what=f"{call}(until)"),
    )
    asks = [(shard, asked) for shard in range(desk.runtime.shard_count)]
    where, _, verb = call.rpartition(".")
    return Request(call, f"{where}.a{verb}", asks, lambda got: _page(desk, asked, got))


def _prefix(state: int | None, task: str | None, key: str | None) -> bytes | None:
    """The narrowest index that has every ticket asked for; None: the table itself."""
    if key is not None:
        return key_prefix(key)
    if state is not None:
        return state_prefix(state) if task is None else task_prefix(task, state)
    return None


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
