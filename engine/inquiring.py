"""Answers to inquiries: what memory knows first, then the store, then both merged.

Runs on the core thread, save for the work that a `FromStore` hands to a reading thread.
"""

import heapq
from collections.abc import Callable, Mapping
from typing import Any, Final

import msgspec
from msgspec.structs import replace

from parkade import grouped
from parkade.asks import (
    AwaitEnd,
    BookmarkOf,
    GroupEnds,
    GroupsOf,
    Inquiry,
    Look,
    PageOf,
    Rehearse,
    Seen,
    ShardPage,
)
from parkade.limits import FIND_SCAN_MAX, FIND_SLICE
from parkade.reading import Body, DamagedTicket, GroupTickets, Heads, History, Read, StoreReader
from parkade.shard import Shard
from parkade.shard.commands import Loaded, Need
from parkade.shard.history import attempts_of
from parkade.shard.memory import Unread
from parkade.shard.states import PENDING, RUNNING
from parkade.shard.ticket import Ticket
from parkade.shard.view import View

__all__ = ["AGAIN", "FromStore", "NotEnded", "answer"]

_ABOUT_ONE: Final = (Look, AwaitEnd)

AGAIN: Final = object()
"""What was asked about has changed while it was read: to be asked anew."""


class NotEnded(msgspec.Struct, frozen=True):
    """The ticket is still on its way: ask again when it has ended."""

    serial: int


class FromStore(msgspec.Struct, frozen=True):
    """`work` is done by who reads; `finish` makes the answer of what it gives, with memory, or
    says `AGAIN`, or what else is to be read. A read that a completion has overtaken is made again:
    by itself if it `stands_alone`, else with all that was asked."""

    work: Callable[[StoreReader], Any]
    finish: Callable[[Shard, Any], Any]
    stands_alone: bool = False


def answer(core: Shard, asked: Inquiry, loaded: Loaded | None, settled_ms: int) -> Any:
    """The answer, or `Need`, `NotEnded` or `FromStore`."""
    if isinstance(asked, _ABOUT_ONE):
        return _about_one(core, asked, loaded)
    if isinstance(asked, PageOf):
        return _page(asked, [], 0)
    if isinstance(asked, GroupsOf):
        return FromStore(
            lambda reader: reader.group_counts(asked.after, asked.limit),
            lambda core, got: grouped.merged_counts(core, asked, got),
        )
    if isinstance(asked, GroupEnds):
        return _group_ends(core, asked)
    if isinstance(asked, Rehearse):
        verdict = core.decide(asked.command, settled_ms, settled_ms, loaded)
        return verdict.answers if verdict.need is None else verdict.need
    assert isinstance(asked, BookmarkOf)
    return _bookmark(core, asked.serial)


def _about_one(
    core: Shard, asked: Look | AwaitEnd, loaded: Loaded | None
) -> "Seen | Need | NotEnded | FromStore | None":
    ticket = _ticket(core, asked.serial, loaded)
    if ticket is None or isinstance(ticket, Need):
        return ticket
    if isinstance(asked, AwaitEnd):
        if ticket.state in (PENDING, RUNNING):
            return NotEnded(ticket.serial)
        return _with_body(core, ticket)
    if asked.wants_history:
        return _with_history(ticket)
    return _with_body(core, ticket) if asked.wants_body else Seen(replace(ticket))


def _group_ends(core: Shard, asked: GroupEnds) -> FromStore:
    changed, commit = grouped.changed_serials(core), core.completed_commit

    def finish(core: Shard, got: GroupTickets) -> Any:
        # What was passed over may have left memory since.
        is_same = core.completed_commit == commit
        return grouped.merged_ends(core, asked, got) if is_same else AGAIN

    return FromStore(lambda reader: reader.group_ends(asked.groups, changed), finish)


def _ticket(core: Shard, serial: int, loaded: Loaded | None) -> Ticket | Need | None:
    view = View(core.memory, loaded)
    ticket = view.speaks_for(serial)
    return view.verdict().need if isinstance(ticket, Unread) else ticket


def _with_body(core: Shard, ticket: Ticket) -> "Seen | FromStore":
    serial, body = ticket.serial, core.body(ticket.serial)
    seen = replace(ticket)
    if isinstance(body, Unread):
        return FromStore(
            lambda reader: reader.load([serial], has_bodies=True),
            lambda core, read: _seen(core, seen, read),
        )
    return Seen(seen, body)


def _seen(core: Shard, seen: Ticket, read: Read) -> Any:
    """Head and body of one moment: a result must not pass for the payload it took the place of."""
    serial = seen.serial
    if serial in read.damaged:
        raise DamagedTicket(serial)
    parked = read.loaded.tickets[serial]
    ticket, body = core.look(serial), core.body(serial)
    if isinstance(ticket, Unread):
        ticket = None if parked is None else parked.ticket
    if ticket != seen:
        return AGAIN
    if isinstance(body, Unread):
        body = None if parked is None else parked.body
    return Seen(seen, body)


def _bookmark(core: Shard, serial: int) -> "bytes | FromStore | None":
    saved = core.bookmark(serial)
    if not isinstance(saved, Unread):
        return saved

    def finish(core: Shard, got: Body) -> Any:
        newer = core.bookmark(serial)
        return got.body if isinstance(newer, Unread) else newer

    return FromStore(lambda reader: reader.bookmark(serial), finish)


def _with_history(ticket: Ticket) -> FromStore:
    serial, seen = ticket.serial, replace(ticket)

    def finish(core: Shard, got: History) -> Seen:
        rows = {row.fence: row for row in got.rows}
        rows |= {row.fence: row for row in core.attempt_rows(serial)}
        return Seen(seen, None, attempts_of(seen, [rows[fence] for fence in sorted(rows)]))

    return FromStore(lambda reader: reader.history(serial), finish)


def _fits(asked: PageOf, ticket: Ticket) -> bool:
    if ticket.serial >= asked.before:
        return False
    if asked.state is not None and ticket.state != asked.state:
        return False
    if asked.task is not None and ticket.task != asked.task:
        return False
    if asked.key is not None and ticket.key != asked.key:
        return False
    if asked.why is not None and ticket.why != asked.why:
        return False
    if asked.error_type is not None and (
        ticket.error is None or ticket.error.type != asked.error_type
    ):
        return False
    if asked.group is not None and ticket.group != asked.group:
        return False
    if asked.ended_from_ms is not None and ticket.finished_ms < asked.ended_from_ms:
        return False
    if asked.ended_to_ms is not None and ticket.finished_ms >= asked.ended_to_ms:
        return False
    if asked.due_from_ms is not None and ticket.due_ms < asked.due_from_ms:
        return False
    if asked.due_to_ms is not None and ticket.due_ms >= asked.due_to_ms:
        return False
    if asked.created_from_ms is not None and ticket.created_ms < asked.created_from_ms:
        return False
    if asked.is_unended and ticket.state not in (PENDING, RUNNING):
        return False
    if asked.target is not None and ticket.target != asked.target:
        return False
    return asked.tag is None or _has_tag(ticket, *asked.tag)


def _has_tag(ticket: Ticket, name: str, value: str) -> bool:
    """Whether it is found by that tag: one it has, and that was opted in at its submit."""
    options = ticket.options
    if options is None or options.tags is None or options.indexed is None:
        return False
    return name in options.indexed and options.tags.get(name) == value


def _page(asked: PageOf, found: list[Ticket], scanned: int) -> FromStore:
    """A slice of the walk that a page is; `found` and `scanned` are of those before it."""

    def work(reader: StoreReader) -> Heads:
        return reader.heads(
            asked.indexes,
            asked.before,
            count=asked.limit,
            walk_max=FIND_SLICE,
            fits=lambda ticket: _fits(asked, ticket),
            floor=asked.floor,
        )

    def finish(core: Shard, heads: Heads) -> FromStore | ShardPage:
        part = _merged(core, asked, heads)
        tickets, walked, last = found + part.tickets, scanned + part.scanned, part.last
        if last is None or len(part.tickets) == asked.limit or walked >= FIND_SCAN_MAX:
            return ShardPage(tickets, walked, last)
        left = asked.limit - len(part.tickets)
        return _page(replace(asked, before=last, limit=left), tickets, walked)

    return FromStore(work, finish, stands_alone=True)


def _merged(core: Shard, asked: PageOf, got: Heads) -> ShardPage:
    """The store's part of a page overridden by what memory has changed since."""
    lowest, before = asked.floor if got.last is None else got.last, asked.before
    core.memory.unpack_between(lowest, before)
    generations: list[Mapping[int, Ticket | None]] = [core.dirty.tickets]
    if core.flight is not None:
        generations.append(core.flight.tickets)
        generations.append(core.flight.unpacked)
    changed: dict[int, Ticket | None] = {}
    for generation in reversed(generations):
        # All that is dirty is looked at, on the core thread: nothing more is done with most of it.
        for serial in [serial for serial in generation if lowest <= serial < before]:
            changed[serial] = generation[serial]
    kept = [ticket for ticket in got.tickets if ticket.serial not in changed]
    mine = [ticket for ticket in changed.values() if ticket is not None and _fits(asked, ticket)]
    newest = heapq.nlargest(asked.limit, kept + mine, key=lambda ticket: ticket.serial)
    is_cut = len(kept) + len(mine) > asked.limit
    last = newest[-1].serial if is_cut else got.last
    return ShardPage([replace(ticket) for ticket in newest], got.walked + len(changed), last)
