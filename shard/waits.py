"""Tickets that wait for their key when too many do: a queue for each key and lane.

The first of them wait aside in memory (`Keys`); what ranks past the queue's edge is *outside*, like
what a lane has outside: hot and waiting for a checkpoint to give it a row in `waits`, or a row
already. A ticket that is met in its lane while older ones of its key and lane are outside waits
behind them. So a key that is held costs memory by its window, however many wait for it, and costs
the other tickets of their lanes nothing. docs/architecture.md, Keys.
"""

from collections import Counter
from typing import Final

from parkade.shard.bounds import Bounds
from parkade.shard.generation import MOVE_BYTES, LaneMove
from parkade.shard.keys import Keys, Reason
from parkade.shard.lane import RANK_MAX, SERIAL_BITS, SERIAL_MASK, Lane, LaneKey
from parkade.shard.memory import Memory
from parkade.shard.ticket import StoredAt, Ticket

__all__ = ["ASIDE", "WAITING", "Queue", "Waits"]

ASIDE: Final = 3  # it may not start, for a reason of its own: its key is busy, mostly
WAITING: Final = 4  # outside of its key's queue, or on its way there


class Queue(Lane):
    """Those of one lane that wait for one key. Its window is what waits aside."""

    __slots__ = ("has_rows", "waited_for")

    def __init__(
        self, waited_for: str, key: LaneKey, seq: int, number: int | None, *, has_rows: bool = False
    ) -> None:
        super().__init__(key, seq, number, -1 if has_rows else RANK_MAX)
        self.waited_for = waited_for
        self.has_rows = has_rows  # in the store; False: none for certain


class Waits:
    """All such queues of a shard."""

    __slots__ = (
        "bounds",
        "by_key",
        "found",
        "hungry",
        "keys",
        "lanes",
        "memory",
        "outside_count",
        "queues",
        "row_count",
        "seats",
    )

    def __init__(
        self, memory: Memory, bounds: Bounds, keys: Keys, seats: dict[int, int], row_count: int
    ) -> None:
        self.memory = memory
        self.bounds = bounds
        self.keys = keys
        self.seats = seats
        self.row_count = row_count
        self.queues: dict[tuple[str, LaneKey], Queue] = {}
        self.by_key: dict[str, list[Queue]] = {}
        self.lanes: Counter[LaneKey] = Counter()  # how many queues each has
        self.hungry: set[Queue] = set()  # queues that may want a refill
        # Of the rows at the open. Those of queues that were read in to their end are among them, so
        # there may be more than are made.
        self.found = 0
        self.outside_count = 0  # hot ones outside: they wait for a checkpoint

    def add(self, queue: Queue) -> Queue:
        self.queues[queue.waited_for, queue.key] = queue
        self.by_key.setdefault(queue.waited_for, []).append(queue)
        self.lanes[queue.key] += 1
        self.note_hunger(queue)
        return queue

    def drop_if_unused(self, queue: Queue) -> None:
        """Let a queue go that has nothing outside."""
        if queue.edge < RANK_MAX or queue.ranks or queue.is_refilling:
            return
        self.hungry.discard(queue)
        if self.queues.pop((queue.waited_for, queue.key), None) is not None:
            others = self.by_key[queue.waited_for]
            others.remove(queue)
            if not others:
                del self.by_key[queue.waited_for]
            self.lanes[queue.key] -= 1
            if not self.lanes[queue.key]:
                del self.lanes[queue.key]

    # ------------------------------------------------------------------ who waits

    def held(self, queue: Queue) -> int:
        """How many of the queue wait aside, in memory."""
        return len(self.keys.aside.get(queue.waited_for, {}).get(queue.key, ()))

    def must_wait(self, ticket: Ticket) -> bool:
        """Whether an older ticket of its key is outside, and has to come in first."""
        assert ticket.key is not None, ticket.serial
        queues = self.by_key.get(ticket.key)
        if queues is None:
            return False
        rank = ticket.first_due_ms << SERIAL_BITS | ticket.serial
        lane = ticket.lane
        return any(
            queue.edge < rank and (queue.key == lane or not self.held(queue)) for queue in queues
        )

    def has_room(self, ticket: Ticket, reason: Reason) -> bool:
        """Whether it may leave its lane to wait for that reason."""
        return self.keys.count < self.bounds.aside_max or self._may_queue(ticket, reason)

    def _may_queue(self, ticket: Ticket, reason: Reason) -> bool:
        if ticket.key != reason:
            return False
        is_known = (reason, ticket.lane) in self.queues
        return is_known or len(self.queues) < self.bounds.queues_max

    def put(self, ticket: Ticket, rank: int, reason: Reason) -> None:
        """A ticket that has left its lane waits for the reason: aside, or outside its queue."""
        queue = None if type(reason) is int else self.queues.get((str(reason), ticket.lane))
        if queue is not None and rank > queue.edge:
            self._put_outside(queue, ticket, rank)
            return
        self.seats[ticket.serial] = ASIDE
        self.keys.put_aside(ticket, rank, reason)
        if self._may_queue(ticket, reason):
            self._keep_bounds(str(reason), ticket.lane)

    def take_in(self, queue: Queue, ticket: Ticket, rank: int) -> None:
        """A ticket from outside waits aside now."""
        self.seats[ticket.serial] = ASIDE
        self.keys.put_aside(ticket, rank, queue.waited_for)

    def _keep_bounds(self, key: str, lane: LaneKey) -> None:
        """Put outside what is too much, the last of that key and lane first."""
        keys, bounds = self.keys, self.bounds
        ranks = keys.aside[key][lane]
        while ranks and (len(ranks) > bounds.waits_window or keys.count > bounds.aside_max):
            rank = ranks[-1]
            ticket = self.memory.hot[rank & SERIAL_MASK]
            keys.take_back(ticket, rank)
            queue = self.queues.get((key, lane))
            if queue is None:
                queue = self.add(Queue(key, lane, 0, None))
            queue.edge = min(queue.edge, rank - 1)
            self._put_outside(queue, ticket, rank)

    def _put_outside(self, queue: Queue, ticket: Ticket, rank: int) -> None:
        serial = ticket.serial
        self.seats[serial] = WAITING
        queue.put_outside(rank)
        self.outside_count += 1
        memory = self.memory
        under_way = None if memory.flight is None else memory.flight.moves.get(serial)
        if memory.is_clean(serial) and (under_way is None or not under_way.to_waits):
            self._move(ticket)
        self.note_hunger(queue)

    def _move(self, ticket: Ticket) -> None:
        """The next checkpoint makes its entry a row of `waits`."""
        dirty, at = self.memory.dirty, self.memory.stored_at[ticket.serial]
        place = (at.due_ms, at.first_due_ms, at.lane_number)
        dirty.moves[ticket.serial] = LaneMove(*place, ticket.key, to_waits=True)
        dirty.size_bytes += MOVE_BYTES

    def vacate(self, ticket: Ticket) -> None:
        """A ticket that was outside is so no more."""
        queue = self.queues[str(ticket.key), ticket.lane]
        self.bring_in(queue, ticket.serial)
        self.note_hunger(queue)

    def bring_in(self, queue: Queue, serial: int) -> None:
        """It is not outside any more, or not in memory."""
        del queue.ranks[serial]
        self.outside_count -= 1

    @property
    def is_full(self) -> bool:
        """Whether so many wait for a checkpoint that it must come first."""
        return self.outside_count >= self.bounds.waiting_max

    def holds_up(self, lane: LaneKey) -> bool:
        """Whether the lane is not to be read on before the next checkpoint: what comes in from it
        would go on waiting in memory."""
        return self.is_full and lane in self.lanes

    # ------------------------------------------------------------------ refills

    def note_hunger(self, queue: Queue) -> None:
        """Remember the queue if it is low and has more outside."""
        if queue.edge < RANK_MAX and self.held(queue) <= self.bounds.waits_window // 2:
            self.hungry.add(queue)

    def note_key(self, key: str) -> None:
        """Somebody of that key waits aside no more."""
        for queue in self.by_key.get(key, ()):
            self.note_hunger(queue)

    def room_of(self, queue: Queue) -> int:
        """How many more may come in now."""
        held, bounds = self.held(queue), self.bounds
        if self.keys.count >= bounds.aside_max:
            return 0 if held else 1
        return min(bounds.waits_window - held, bounds.aside_max - self.keys.count)

    def wanting(self, now_ms: int) -> list[Queue]:
        """The queues that are low and have something outside whose time has come."""
        found: list[Queue] = []
        for queue in list(self.hungry):
            if queue.edge == RANK_MAX or self.held(queue) > self.bounds.waits_window // 2:
                self.hungry.discard(queue)
                self.drop_if_unused(queue)
            elif queue.edge >> SERIAL_BITS <= now_ms and self._may_refill(queue):
                found.append(queue)
        found.sort(key=lambda queue: (-queue.priority, queue.edge))
        return found

    def next_refill_ms(self) -> int | None:
        """When the next refill will be wanted; None when none is foreseen."""
        low = self.bounds.waits_window // 2
        times = [
            queue.edge >> SERIAL_BITS
            for queue in self.hungry
            if queue.edge < RANK_MAX and self.held(queue) <= low and self._may_refill(queue)
        ]
        return min(times, default=None)

    def _may_refill(self, queue: Queue) -> bool:
        return not queue.is_refilling and self.room_of(queue) > 0

    # ------------------------------------------------------------------ completions

    def keeps(self, ticket: Ticket, at: StoredAt | None) -> bool:
        """Whether a clean ticket outside stays in memory; `at` None: where the store has it is as
        `stored_at` says."""
        serial = ticket.serial
        if serial in self.memory.dirty.moves:
            return True
        if at is not None and at.in_waits:
            self.leave_memory(ticket)
            return False
        self._move(ticket)
        return True

    def leave_memory(self, ticket: Ticket) -> None:
        """The store has its row: from here on that is where it is."""
        queue = self.queues[str(ticket.key), ticket.lane]
        queue.has_rows = True
        del self.seats[ticket.serial]
        self.bring_in(queue, ticket.serial)
