"""Where pending tickets wait: wheel, overlay, lanes, or the agenda alone.

The order of positions is (due, serial), and the horizon is one of them. For every pending ticket x:

    pos(x) <= horizon    it is in the wheel or in its lane
    pos(x) >  horizon    it is in the overlay or in its lane; or it is clean and not in memory, and
                         the committed agenda has exactly this entry for it

A hot pending ticket is in its lane if it has a seat there; else its position says whether wheel or
overlay has it. What the two lines rest on is in `Horizon` and `Lanes`; here is what moves tickets
between them, and what is read of the store for that.

The rules cited here are those of docs/architecture.md, Placement. Nothing of this is state: replay
runs it with the horizon at minus infinity, where every hot pending ticket is in the overlay.
"""

from collections.abc import Iterator, Sequence
from heapq import heappop
from typing import Final

from parkade.shard.bounds import Bounds
from parkade.shard.commands import Loaded
from parkade.shard.generation import NEVER_MS, LaneMove
from parkade.shard.horizon import (
    NOWHERE,
    Horizon,
    SweepAsk,
    Swept,
    SweptEntry,
    earlier,
    pack,
    unpack,
)
from parkade.shard.keys import SUSPECT
from parkade.shard.lanes import (
    SEAT_NAMES,
    SERIAL_BITS,
    SERIAL_MASK,
    Lane,
    Lanes,
)
from parkade.shard.memory import UNREAD, Memory
from parkade.shard.refill import (
    RefillAsk,
    Refilled,
    has_rows,
    last_order,
    may_refill,
    next_refill_ms,
    room_of,
    seat_rows,
    take_rows,
    take_waiting,
    wanting,
)
from parkade.shard.retry import expiry_of
from parkade.shard.scout import Scout, ScoutAsk, Scouted
from parkade.shard.states import PENDING, RUNNING
from parkade.shard.ticket import StoredAt, Ticket
from parkade.shard.waits import Queue
from parkade.store.record import Submitted

__all__ = ["NOWHERE", "Placement", "SweepAsk", "Swept", "SweptEntry", "pack", "unpack"]

_DROPS_MAX: Final = 2
_NEAR_MS: Final = 1_000


class Placement(Horizon):
    """The pending tickets of a shard by where they wait. Told the time; asks for reads."""

    def __init__(self, memory: Memory, bounds: Bounds, lanes: Lanes) -> None:
        super().__init__(memory, bounds, lanes)
        self.loads_out = 0  # reads of due tickets under way
        self.refills_out = 0  # reads of lanes' rows under way
        self._early: list[Ticket] = []
        self._load_drops = 0
        self._refill_drops = 0
        self._has_caught_up = False
        self._coming: set[int] | None = None  # due since before the open, and not in memory yet
        self.seats_at_once = True  # what is due as it enters is in its lane then
        self._advanced_ms = NOWHERE
        self.scout = Scout(lanes)

    # ------------------------------------------------------------------ what apply calls

    def enter(self, ticket: Ticket) -> None:
        """A hot ticket has become pending, or pending at another due. One that was due at the last
        `advance` needs no timer, which the next would take out again."""
        if ticket.due_ms <= self._advanced_ms and self.seats_at_once:
            self._line_up(ticket)
        else:
            super().enter(ticket)

    def seats_all(self, drafts: Sequence[Submitted]) -> bool:
        """Whether all of these, which are due, would take their seats as they enter."""
        advanced_ms = self._advanced_ms
        return self.seats_at_once and max([draft.due_ms for draft in drafts]) <= advanced_ms

    def leave(self, ticket: Ticket) -> None:
        """A hot ticket is about to be pending no more, or at another due."""
        if ticket.serial in self.lanes.seats:
            self.lanes.leave(ticket)
        else:
            if ticket.due_ms << SERIAL_BITS | ticket.serial <= self.horizon:
                self.stale += 1
            if ticket.key is not None:
                self.lanes.hand_on(ticket.key)
            if ticket.is_suspect:
                self.lanes.hand_on(SUSPECT)

    def came_in(self, ticket: Ticket) -> None:
        """A parked pending ticket has been read into memory, for another reason than its due."""
        serial = ticket.serial
        memory, lanes = self.memory, self.lanes
        if self.forget_near(serial):
            return  # its timer is now that of a hot ticket
        was_row = serial in lanes.loading
        if was_row:
            lanes.stop_loading(serial)
        elif lanes.is_moving(serial):
            del lanes.lane(ticket.lane).ranks[serial]
            was_row = memory.dirty.moves.pop(serial, None) is None
        if was_row:
            # It may be, or become with this checkpoint, a row that no refill will look for.
            ticket = memory.own(ticket)
        self.enter(ticket)

    def relocate(self, ticket: Ticket) -> None:
        """A ticket was met in its lane before its due: rule 8. It counts as changed. The clock was
        set back since the last `advance`, so what was due then may not be."""
        super().enter(self.memory.own(ticket))

    # ------------------------------------------------------------------ time

    def advance(self, now_ms: int, settled_ms: int, limit: int = 4096) -> list[int]:
        """Bring what is due into the lanes, at most so many timers at once.

        Afterwards due hot tickets are in their lanes, and due parked ones are among the loads that
        are wanted, or on their way to a row. Gives the serials that have expired by the settled
        clock. `next_wake` tells whether the limit left something.
        """
        self._advanced_ms = now_ms
        self.clock_lag_ms = now_ms - settled_ms if now_ms > settled_ms else 0
        self.watch_clock(now_ms)
        hot, seats = self.memory.hot, self.lanes.seats
        for due_ms, serial in self.wheel.poll(now_ms, limit):
            ticket = hot.get(serial)
            if ticket is None:
                self._fire_timer(due_ms, serial)
            elif is_due(ticket, now_ms) and serial not in seats:
                self._line_up(ticket)
            elif self.stale:
                self.stale -= 1
        dirty, flight = self.memory.dirty, self.memory.flight
        if dirty.plain_due_ms <= now_ms or (flight is not None and flight.plain_due_ms <= now_ms):
            self.memory.unpack_until(now_ms)
        overlay = self.overlay
        while overlay and overlay[0] >> SERIAL_BITS <= now_ms and limit > 0:
            ticket = hot.get(heappop(overlay) & SERIAL_MASK)
            limit -= 1
            if ticket is not None and is_due(ticket, now_ms) and ticket.serial not in seats:
                self._line_up(ticket)
        return self.expiries.take_due(settled_ms, 4096) if self.expiries.heap else []

    def _fire_timer(self, due_ms: int, serial: int) -> None:
        move = self.near.get(serial)
        if move is None or move.due_ms != due_ms:
            self.stale = max(self.stale - 1, 0)
            return
        self.forget_near(serial)
        self.fire_parked(serial, move)

    def _line_up(self, ticket: Ticket) -> None:
        self._arm(ticket)
        self.lanes.enter(ticket)

    def _arm(self, ticket: Ticket) -> None:
        if ticket.options is not None:
            expiry_ms = expiry_of(ticket)
            if expiry_ms is not None:
                self.expiries.arm(ticket.serial, expiry_ms)

    def next_wake(self) -> int | None:
        """When `advance` or one of the `want_` questions will, or may, have something to do, in ms,
        if no command and no read comes in; None: never. What is past is to be done now."""
        if self.load_queue and not self.loads_out:
            return 0
        lanes = self.lanes
        has_timers = self.overlay or self.expiries.heap or len(self.wheel)
        # At full load everybody is due: this is asked in every turn.
        is_timed = has_timers or self.memory.plain_due_ms < NEVER_MS
        wake_ms = self.next_timer() if is_timed else None
        sweep_ms = (self.horizon >> SERIAL_BITS) - self.bounds.horizon_ms // 2
        # Whether it can be then is asked again when it is near.
        if sweep_ms > self._advanced_ms + _NEAR_MS or self.can_sweep():
            wake_ms = earlier(wake_ms, sweep_ms)
        if lanes.hungry:
            wake_ms = earlier(wake_ms, next_refill_ms(lanes))
        if lanes.waits.hungry and self._has_caught_up:
            wake_ms = earlier(wake_ms, lanes.waits.next_refill_ms())
        return wake_ms

    # ------------------------------------------------------------------ loads

    def want_loads(self, limit: int = 512) -> list[int]:
        """Serials of due parked tickets to be read, each asked once, until `loaded` or
        `loads_lost` gives them back."""
        queue, loading = self.load_queue, self.lanes.loading
        asked: list[int] = []
        while queue and len(asked) < limit:
            serial = queue.popleft()
            if serial in loading:
                asked.append(serial)
        self.loads_out += bool(asked)
        return asked

    def loads_lost(self, asked: Sequence[int]) -> None:
        """The read failed: they are wanted again."""
        self._load_drops = 0
        self.loads_out -= 1
        self.load_queue.extend(asked)

    def loaded(self, asked: Sequence[int], loaded: Loaded, now_ms: int) -> bool:
        """Due parked tickets were read. False: stale, and wanted again.

        One that could not be read is None in `loaded` and stays out.
        """
        memory, lanes = self.memory, self.lanes
        self.loads_out -= 1
        if not memory.is_fresh(loaded.snapshot_commit):
            self._load_drops += 1
            self.load_queue.extend(asked)
            return False
        self._load_drops = 0
        for serial in asked:
            if serial not in lanes.loading:
                continue
            lanes.stop_loading(serial)
            parked = loaded.tickets.get(serial)
            if parked is not None and memory.look(serial) is UNREAD:
                self._settle_in(memory.admit(parked, loaded.uniques), now_ms)
        return True

    def _settle_in(self, ticket: Ticket, now_ms: int) -> None:
        assert ticket.state == PENDING, ticket.serial
        if ticket.due_ms > now_ms:
            self.relocate(ticket)
        else:
            self._line_up(ticket)

    # ------------------------------------------------------------------ past a crowd

    def want_scout(self, now_ms: int) -> ScoutAsk | None:
        """What to look through past the horizon while that is behind the clock. Asked once, until
        `scouted`."""
        return self.scout.want(self.horizon, now_ms)

    def scouted(self, result: Scouted, now_ms: int) -> bool:
        """It was read. False: stale, and wanted again."""
        memory, scout, loaded = self.memory, self.scout, result.loaded
        is_fresh = memory.is_fresh(loaded.snapshot_commit)
        found = len(scout.found)
        if not is_fresh:
            scout.took(result, is_again=True)
            return False
        for serial, parked in loaded.tickets.items():
            if parked is None or parked.ticket.state != PENDING:
                continue
            if memory.look(serial) is not UNREAD:
                continue
            if parked.ticket.key is not None:
                scout.leave(serial)
                continue
            scout.found.add(serial)
            self.came_in(memory.admit(parked, loaded.uniques))
        scout.took(result, is_again=result.is_cut and len(scout.found) > found)
        return True

    # ------------------------------------------------------------------ refills

    def want_refills(self, now_ms: int, limit: int = 16) -> list[RefillAsk]:
        """Rows to be read for lanes whose window is low, each lane asked once, until `refilled`
        or `refill_lost`. Lanes without rows are served from memory at once."""
        lanes = self.lanes
        is_wanted = lanes.waits.hungry and self._catch_up(now_ms)
        asks = self._want_waiting(now_ms, limit) if is_wanted else []
        if not lanes.hungry:
            return asks
        for lane in wanting(lanes, now_ms):
            if len(asks) >= limit:
                break
            if not may_refill(lanes, lane, last_order(lanes)):
                continue  # the others took the room that was left
            if lane.number is None or not has_rows(lanes, lane):
                self._refill(lane, None, now_ms)
                continue
            lane.is_refilling, lane.asked_edge = True, lane.edge
            lane.read_at = self.memory.completed_commit
            self.refills_out += 1
            count = min(room_of(lanes, lane), lanes.bounds.refill_max)
            asks.append(RefillAsk(lane.number, unpack(lane.edge), count))
        return asks

    def _catch_up(self, now_ms: int) -> bool:
        """Whether what the agenda had due at the open is in memory: it may be older than rows that
        wait for its key, and goes first."""
        if self._has_caught_up:
            return True
        if self.is_behind(now_ms):
            return False
        near, loading = self.near, self.lanes.loading
        coming = {*near, *loading} if self._coming is None else self._coming
        self._coming = {
            serial
            for serial in coming
            if serial in loading or (serial in near and near[serial].due_ms <= now_ms)
        }
        self._has_caught_up = not self._coming
        return self._has_caught_up

    def _want_waiting(self, now_ms: int, limit: int) -> list[RefillAsk]:
        """The same for the queues of keys."""
        lanes, waits = self.lanes, self.lanes.waits
        asks: list[RefillAsk] = []
        for queue in waits.wanting(now_ms):
            room = waits.room_of(queue)
            if len(asks) >= limit or room <= 0:
                break
            number = lanes.numbers.get(queue.key)
            if number is None or not queue.has_rows:
                self._refill_waiting(queue, None, now_ms)
                continue
            queue.is_refilling, queue.asked_edge = True, queue.edge
            self.refills_out += 1
            asks.append(RefillAsk(number, unpack(queue.edge), room, queue.waited_for))
        return asks

    def refill_lost(self, lane_number: int, key: str | None = None) -> None:
        """The read failed: it is wanted again."""
        self._refill_drops = 0
        self.refills_out -= 1
        asker = self._asker(lane_number, key)
        asker.is_refilling, asker.read_at = False, -1

    def _asker(self, lane_number: int, key: str | None) -> Lane:
        """Who asked for rows: a lane, or the queue of a key."""
        lane = self.lanes.lane_by_number(lane_number)
        return lane if key is None else self.lanes.waits.queues[key, lane.key]

    def refilled(self, result: Refilled, now_ms: int) -> bool:
        """Rows of a lane were read. False: stale, and wanted again."""
        lane = self._asker(result.lane_number, result.key)
        lane.is_refilling = False
        self.refills_out -= 1
        if not self.memory.is_fresh(result.snapshot_commit):
            self._refill_drops += 1
            return False
        self._refill_drops = 0
        if lane.edge < lane.asked_edge:
            lane.read_at = -1
            # What went past the lowered edge may have got rows that were not asked for.
            if isinstance(lane, Queue):
                self.lanes.waits.note_hunger(lane)
            else:
                self.lanes.note_hunger(lane)
            return False
        if isinstance(lane, Queue):
            self._refill_waiting(lane, result, now_ms)
        else:
            self._refill(lane, result, now_ms)
        return True

    def _refill_waiting(self, queue: Queue, result: Refilled | None, now_ms: int) -> None:
        lanes, waits = self.lanes, self.lanes.waits
        for ticket in take_waiting(lanes, queue, result, now_ms):
            if ticket.due_ms > now_ms:
                self.relocate(ticket)
            else:
                self._arm(ticket)
                waits.take_in(queue, ticket, ticket.first_due_ms << SERIAL_BITS | ticket.serial)
        waits.note_hunger(queue)
        lanes.hand_on(queue.waited_for)
        waits.drop_if_unused(queue)

    def _refill(self, lane: Lane, result: Refilled | None, now_ms: int) -> None:
        came_in, to_load = take_rows(self.lanes, lane, result, now_ms)
        self.load_queue.extend(to_load)
        if not seat_rows(self.lanes, lane, came_in, now_ms):
            for ticket in came_in:
                self._settle_in(ticket, now_ms)
        self.lanes.keep_bounds(lane)

    @property
    def hold_completion(self) -> bool:
        """Whether a read is under way that was overtaken twice before: the next completion waits
        until it is in."""
        return (
            (self.sweep_from is not None and self.sweep_drops >= _DROPS_MAX)
            or (self.loads_out > 0 and self._load_drops >= _DROPS_MAX)
            or (self.refills_out > 0 and self._refill_drops >= _DROPS_MAX)
        )

    # ------------------------------------------------------------------ admission

    def heads(self) -> Iterator[Lane]:
        """The lanes with a window that is not empty, by (priority, the greater first; first due;
        serial) of their heads."""
        return iter([lane for _, lane in self.lanes.sorted_heads()])

    def take_head(self, lane: Lane, rank: int, now_ms: int) -> int | None:
        """The first ticket of a lane, in hand, if it has that rank and may start: its key is free
        and the gate has no objection. None: the lane's head has changed, or none of it may."""
        early = self._early
        serial = self.lanes.take_head(lane, rank, now_ms, early)
        while early:
            self.relocate(early.pop())
        return serial

    def pop(self, lane: Lane, now_ms: int) -> int | None:
        """The first ticket of a lane that is due and may start: its key is free, and the gate has
        no objection. It is then in hand, to be started or given back. None: the lane has none."""
        early = self._early
        serial = self.lanes.pop(lane, now_ms, early)
        while early:
            self.relocate(early.pop())
        return serial

    def give_back(self, serial: int, now_ms: int) -> None:
        """A ticket in hand was not started. Does nothing when it has left meanwhile."""
        ticket = self.memory.hot.get(serial)
        if ticket is None or not self.lanes.give_back(ticket):
            return
        if ticket.due_ms > now_ms:
            self.relocate(ticket)
        else:
            self.lanes.enter(ticket)

    def is_key_busy(self, key: str) -> bool:
        """Whether a ticket of that key runs, or is about to."""
        return self.lanes.keys.is_busy(key)

    # ------------------------------------------------------------------ completions

    def keeps(self, ticket: Ticket, at: StoredAt | None) -> bool:
        """Whether a clean ticket stays in memory: it runs, or its time is near, or it is in its
        lane's window; `at`: how the store has it, if that is new."""
        if ticket.state == RUNNING:
            return True
        if ticket.state != PENDING:
            return False
        seat = self.lanes.seats.get(ticket.serial)
        if seat is not None:
            return self.lanes.keeps(ticket, seat, at) or self._disarm_far(ticket)
        if ticket.due_ms << SERIAL_BITS | ticket.serial <= self.horizon:
            return True
        return ticket.serial in self.scout.found

    def may_go(self, ticket: Ticket) -> bool:
        """Whether a clean ticket, pending or done, and without `expires`, is not needed in memory:
        it is done, or has no seat and is past the horizon."""
        if ticket.state != PENDING:
            return True
        if ticket.serial in self.lanes.seats or ticket.serial in self.scout.found:
            return False
        return ticket.due_ms << SERIAL_BITS | ticket.serial > self.horizon

    def _disarm_far(self, ticket: Ticket) -> bool:
        """It leaves memory: its marked entry in the agenda wakes it, if a sweep is yet to come."""
        if self.expiries.armed.get(ticket.serial, 0) << SERIAL_BITS > self.horizon:
            self.expiries.disarm(ticket.serial)
        return False

    def move_completed(self, serial: int, move: LaneMove) -> None:
        """A commit has made this ticket's entry a row of its lane."""
        ticket = self.lanes.move_completed(serial, move)
        if ticket is not None:
            self._disarm_far(ticket)
            self.memory.evict(ticket)

    # ------------------------------------------------------------------ for people

    def where(self, serial: int) -> str:
        """Where a pending ticket waits, in a word or two."""
        lanes = self.lanes
        seat = lanes.seats.get(serial)
        if seat is not None:
            return SEAT_NAMES[seat]
        ticket = self.memory.look(serial)
        if isinstance(ticket, Ticket):
            position = ticket.due_ms << SERIAL_BITS | serial
            return "wheel" if position <= self.horizon else "overlay"
        if serial in self.near:
            return "wheel"
        if serial in lanes.loading:
            return "loading"
        return "outside" if lanes.is_moving(serial) else "parked"

    @property
    def ready_count(self) -> int:
        """Due tickets, about: those in memory or on their way, and the rows of the lanes."""
        lanes = self.lanes
        moves = len(self.memory.dirty.moves)
        rows = sum(lanes.rows.values()) + lanes.waits.row_count
        return len(lanes.seats) + self.memory.lined_count + len(lanes.loading) + moves + rows

    def oldest_ready_ms(self) -> int | None:
        """The earliest first due in any window; None when all are empty."""
        heads = (lane.window[0] >> SERIAL_BITS for _, lane in self.lanes.sorted_heads())
        return min(heads, default=None)


def is_due(ticket: Ticket, now_ms: int) -> bool:
    """A timer only reminds: what counts is the ticket's own due. Rule 5."""
    return ticket.state == PENDING and ticket.due_ms <= now_ms
