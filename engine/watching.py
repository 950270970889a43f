"""`ticket.watch()`: how one ticket stands, and then what happens to it, until its end.

Only the ticket's own shard is asked, and only its own events are put aside, so that a thousand who
watch cost the core thread no more than one lookup for each event.
"""

from collections.abc import AsyncIterator, Iterator
from typing import TYPE_CHECKING, NamedTuple

from parkade.asks import Watched
from parkade.clock import Clock
from parkade.events import ENDS, Event, Note, event_of
from parkade.feed import Feed
from parkade.mailbox import Empty, Mailbox
from parkade.noting import note_of_ticket

if TYPE_CHECKING:
    from parkade.desk import Desk

__all__ = ["awatch", "watch"]

NOTES_MAX = 1_000  # kept for one who watches and does not look; the latest stay


class _Told(NamedTuple):
    """An event of the ticket, or (without a note) that it is to be looked at again."""

    seq: int
    number: int
    note: Note | None


class _Watcher:
    """One who watches. Used in a `with`."""

    def __init__(self, feed: Feed, serial: int) -> None:
        self._feed = feed
        self.serial = serial
        self.mailbox: Mailbox[_Told] = Mailbox(NOTES_MAX)
        self._seq = 0
        self._behind = 0  # what has a number up to this is in what was looked at
        self.has_ended = False

    def __enter__(self) -> "_Watcher":
        self._feed.watch(self)
        return self

    def __exit__(self, *_: object) -> None:
        self._feed.unwatch(self)

    # --------------------------------------------------------------------------- the core thread

    def tell(self, seq: int, number: int, note: Note) -> None:
        self.mailbox.put((_Told(seq, number, note),))

    def look_again(self) -> None:
        self.mailbox.put((_Told(0, 0, None),))

    def end(self) -> None:
        self.mailbox.shut()

    # -------------------------------------------------------------------------------- who watches

    def look(self) -> None:
        """The ticket is about to be looked at."""
        self._seq = self._feed.last

    def looked(self, watched: Watched) -> tuple[int, Note]:
        """What was seen, as an event. It has the number of the latest event before the look, so
        that whoever goes on from there misses nothing."""
        assert watched.seen is not None
        self._behind = watched.noted
        return self._noted(self._seq, note_of_ticket(watched.seen.ticket))

    def take(self) -> tuple[int, Note] | Empty | None:
        """What came next; None: the ticket has to be looked at again."""
        while True:
            told = self.mailbox.take()
            if isinstance(told, Empty):
                return told
            if told.note is None:
                return None
            if told.number > self._behind:
                return self._noted(told.seq, told.note)

    def _noted(self, seq: int, note: Note) -> tuple[int, Note]:
        self.has_ended = note[0] in ENDS
        return seq, note


class _Limit:
    """The time that a watch may take."""

    def __init__(self, clock: Clock, timeout_ms: int | None) -> None:
        self._clock = clock
        self._until_ms = None if timeout_ms is None else clock.monotonic_ms() + timeout_ms

    def left_s(self) -> float | None:
        if self._until_ms is None:
            return None
        return max(0, self._until_ms - self._clock.monotonic_ms()) / 1_000


def watch(desk: "Desk", ticket_id: str, timeout_ms: int | None) -> Iterator[Event]:
    """See `Ticket.watch`."""
    runtime = desk.runtime
    request = desk.watch(ticket_id, "ticket.watch")
    limit = _Limit(runtime.clock, timeout_ms)
    with _Watcher(runtime.host.feed, desk.parse(ticket_id).serial) as watcher:
        entry: tuple[int, Note] | Empty | None = None
        while True:
            if entry is None:
                watcher.look()
                entry = watcher.looked(desk.ask(request))
            if not isinstance(entry, Empty):
                yield event_of(*entry, runtime.id_of_parts)
                if watcher.has_ended:
                    return
                entry = watcher.take()
                continue
            is_going_on = not runtime.drive.is_alone() and watcher.mailbox.wait(limit.left_s())
            entry = watcher.take()
            if isinstance(entry, Empty) and not is_going_on:
                return


async def awatch(desk: "Desk", ticket_id: str, timeout_ms: int | None) -> AsyncIterator[Event]:
    """See `Ticket.awatch`."""
    runtime = desk.runtime
    request = desk.watch(ticket_id, "ticket.awatch")
    limit = _Limit(runtime.clock, timeout_ms)
    with _Watcher(runtime.host.feed, desk.parse(ticket_id).serial) as watcher:
        entry: tuple[int, Note] | Empty | None = None
        while True:
            if entry is None:
                watcher.look()
                entry = watcher.looked(await desk.aask(request))
            if not isinstance(entry, Empty):
                yield event_of(*entry, runtime.id_of_parts)
                if watcher.has_ended:
                    return
                entry = watcher.take()
                continue
            is_going_on = await watcher.mailbox.await_one(limit.left_s())
            entry = watcher.take()
            if isinstance(entry, Empty) and not is_going_on:
                return
