"""Where pending tickets wait: wheel, overlay, lanes, or the agenda alone.

The order of positions is (due, serial), and the horizon is one of them. For every pending ticket x:

    pos(x) <= horizon    it is in the wheel or in its lane
    pos(x) >  horizon    it is in the overlay or in its lane; or it is clean and not in memory, and
                         the committed agenda has exactly this entry for it

Timers and overlay entries are not removed when a ticket moves on: they are looked at when their
turn comes. A hot pending ticket is in its lane if it has a seat there; else its position says
whether wheel or overlay has it. So submitting a ticket costs one push and no lookup.

The rules cited here are those of docs/architecture.md, Placement. Nothing of this is state: replay
runs it with the horizon at minus infinity, where every hot pending ticket is in the overlay.
"""

from collections import deque
from collections.abc import Iterator, Sequence
from heapq import heapify, heappop, heappush
from typing import Final, NamedTuple

from parkade.shard.bounds import Bounds
from parkade.shard.commands import Loaded
from parkade.shard.expiry import Expiries
from parkade.shard.generation import LaneMove
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
    may_refill,
    next_refill_ms,
    room_of,
    take_rows,
    wanting,
)
from parkade.shard.retry import expiry_of
from parkade.shard.states import PENDING, RUNNING
from parkade.shard.ticket import Ticket
from parkade.wheel import Wheel

__all__ = ["NOWHERE", "Placement", "SweepAsk", "Swept", "SweptEntry"]

NOWHERE: Final = -1
"""The horizon at minus infinity: before every position."""

_DROPS_MAX: Final = 2


class SweepAsk(NamedTuple):
    """Read the agenda after a position (due, serial), to a time, at most `limit` entries."""

    from_pos: tuple[int, int]
    until_ms: int
    limit: int


class SweptEntry(NamedTuple):
    """One entry of the agenda. `is_expiry`: it says when the ticket expires, not when it is due."""

    due_ms: int
    serial: int
    first_due_ms: int
    lane_number: int
    is_expiry: bool = False


class Swept(NamedTuple):
    """Every entry with from_pos < (due, serial) <= position, in order, of one snapshot."""

    snapshot_lsn: int
    entries: Sequence[SweptEntry]
    position: tuple[int, int]


class Placement:
    """The pending tickets of a shard by where they wait. Told the time; asks for reads."""

    def __init__(self, memory: Memory, bounds: Bounds, lanes: Lanes) -> None:
        self.memory = memory
        self.bounds = bounds
        self.lanes = lanes
        self.wheel = Wheel(0)
        self.horizon = NOWHERE
        self.overlay: list[int] = []  # a heap of positions, some of them of tickets that moved on
        self.near: dict[int, LaneMove] = {}  # the parked tickets in the wheel
        self.expiries = Expiries()
        self.stale = 0  # timers in the wheel whose ticket has moved on, about
        self.load_queue: deque[int] = deque()
        self.loads_out = 0  # reads of due tickets under way
        self.refills_out = 0  # reads of lanes' rows under way
        self.sweep_from: int | None = None
        self.is_stalled = False
        self.clock_lag_ms = 0
        self._early: list[Ticket] = []
        self._sweep_drops = 0
        self._load_drops = 0
        self._refill_drops = 0

    # ------------------------------------------------------------------ what apply calls

    def enter(self, ticket: Ticket) -> None:
        """A hot ticket has become pending, or pending at another due."""
        due_ms, serial = ticket.due_ms, ticket.serial
        position = due_ms << SERIAL_BITS | serial
        if position <= self.horizon:
            self.wheel.insert(due_ms, serial)
        else:
            heappush(self.overlay, position)

    def leave(self, ticket: Ticket) -> None:
        """A hot ticket is about to be pending no more, or at another due."""
        if ticket.serial in self.lanes.seats:
            self.lanes.leave(ticket)
        else:
            if ticket.due_ms << SERIAL_BITS | ticket.serial <= self.horizon:
                self.stale += 1
            if ticket.key is not None:
                self.lanes.hand_on(ticket.key)

    def came_in(self, ticket: Ticket) -> None:
        """A parked pending ticket has been read into memory, for another reason than its due."""
        serial = ticket.serial
        memory, lanes = self.memory, self.lanes
        if self._forget_near(serial):
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
        """A ticket was met in its lane before its due: rule 8. It counts as changed."""
        self.enter(self.memory.own(ticket))

    # ------------------------------------------------------------------ time

    def advance(self, now_ms: int, settled_ms: int, limit: int = 4096) -> list[int]:
        """Bring what is due into the lanes, at most so many timers at once.

        Afterwards due hot tickets are in their lanes, and due parked ones are among the loads that
        are wanted, or on their way to a row. Gives the serials that have expired by the settled
        clock. `next_wake` tells whether the limit left something.
        """
        self.clock_lag_ms = max(now_ms - settled_ms, 0)
        self._watch_clock(now_ms)
        hot, seats = self.memory.hot, self.lanes.seats
        for due_ms, serial in self.wheel.poll(now_ms, limit):
            ticket = hot.get(serial)
            if ticket is None:
                self._fire_parked(due_ms, serial)
            elif is_due(ticket, now_ms) and serial not in seats:
                self._line_up(ticket)
            elif self.stale:
                self.stale -= 1
        overlay = self.overlay
        while overlay and overlay[0] >> SERIAL_BITS <= now_ms and limit > 0:
            ticket = hot.get(heappop(overlay) & SERIAL_MASK)
            limit -= 1
            if ticket is not None and is_due(ticket, now_ms) and ticket.serial not in seats:
                self._line_up(ticket)
        return self.expiries.take_due(settled_ms, 4096)

    def _fire_parked(self, due_ms: int, serial: int) -> None:
        move = self.near.get(serial)
        if move is None or move.due_ms != due_ms:
            self.stale = max(self.stale - 1, 0)
            return
        self._forget_near(serial)
        if self.lanes.fire(serial, move):
            self.load_queue.append(serial)

    def _line_up(self, ticket: Ticket) -> None:
        if ticket.options is not None:
            expiry_ms = expiry_of(ticket)
            if expiry_ms is not None:
                self.expiries.arm(ticket.serial, expiry_ms)
        self.lanes.enter(ticket)

    def _forget_near(self, serial: int) -> bool:
        move = self.near.pop(serial, None)
        if move is None:
            return False
        lane = self.lanes.lane_by_number(move.lane_number)
        lane.near -= 1
        if not lane.near:
            lane.near_top = -1
        return True

    def next_wake(self) -> int | None:
        """When `advance` or one of the `want_` questions will have something to do, in ms, if no
        command and no read comes in; None: never. What is past is to be done now."""
        if self.load_queue and not self.loads_out:
            return 0
        wakes = [self.next_timer(), next_refill_ms(self.lanes)]
        if self._can_sweep():
            wakes.append((self.horizon >> SERIAL_BITS) - self.bounds.horizon_ms // 2)
        return min((wake for wake in wakes if wake is not None), default=None)

    def next_timer(self) -> int | None:
        """When the next ticket that memory knows of comes due or expires, in ms; None: none will.
        One that lies beyond the horizon and is not hot is the agenda's."""
        wakes = [self.wheel.next_wake(), self._overlay_wake()]
        expiry_ms = self.expiries.next_ms()
        if expiry_ms is not None:
            wakes.append(expiry_ms + self.clock_lag_ms)
        return min((wake for wake in wakes if wake is not None), default=None)

    def _overlay_wake(self) -> int | None:
        overlay = self.overlay
        while overlay:
            if self._is_in_overlay(overlay[0]):
                return overlay[0] >> SERIAL_BITS
            heappop(overlay)
        return None

    def _is_in_overlay(self, position: int) -> bool:
        """Whether the entry stands for a ticket that is there, not for one that has moved on."""
        ticket = self.memory.hot.get(position & SERIAL_MASK)
        return (
            ticket is not None
            and ticket.state == PENDING
            and ticket.due_ms == position >> SERIAL_BITS
            and position > self.horizon
            and ticket.serial not in self.lanes.seats
        )

    # ------------------------------------------------------------------ the horizon, lowered

    def _watch_clock(self, now_ms: int) -> None:
        if self.horizon >> SERIAL_BITS > now_ms + 2 * self.bounds.horizon_ms:
            self.reanchor(now_ms)
        elif self.wheel.start_ms > now_ms + 1_000:
            self.wheel.reanchor(now_ms)
        if len(self.wheel) > self.bounds.wheel_max * 5 // 4:
            self.trim()

    def reanchor(self, now_ms: int) -> None:
        """The clock was set back: the horizon comes down to one span from now. Rule 7."""
        self.wheel.reanchor(now_ms)
        self._lower(span_end(now_ms + self.bounds.horizon_ms))

    def trim(self) -> None:
        """Keep at most so many timers in the wheel, and none that is stale. Rule 9."""
        live = sorted({pos for pos in map(pack, self.wheel.items()) if self._is_in_wheel(pos)})
        wheel_max = self.bounds.wheel_max
        self._lower(live[wheel_max - 1] if len(live) > wheel_max else self.horizon)

    def _is_in_wheel(self, position: int) -> bool:
        due_ms, serial = position >> SERIAL_BITS, position & SERIAL_MASK
        ticket = self.memory.hot.get(serial)
        if ticket is None:
            move = self.near.get(serial)
            return move is not None and move.due_ms == due_ms
        return is_waiting_for(ticket, due_ms) and serial not in self.lanes.seats

    def _lower(self, horizon: int) -> None:
        """Lower the horizon, and take out of the wheel what is past it or stale."""
        self.horizon = min(self.horizon, horizon)
        memory = self.memory
        kept: list[tuple[int, int]] = []
        for timer in self.wheel.drain():
            position = pack(timer)
            if not self._is_in_wheel(position):
                continue
            serial = timer[1]
            if position <= self.horizon:
                kept.append(timer)
            elif serial in memory.hot:
                heappush(self.overlay, position)
                if memory.is_clean(serial):
                    memory.lingering.add(serial)
            else:
                self._forget_near(serial)
        self.wheel.insert_many(kept)
        self.stale = 0

    # ------------------------------------------------------------------ sweeps

    def _can_sweep(self) -> bool:
        return (
            self.sweep_from is None
            and not self.is_stalled
            and not self.wants_checkpoint
            and len(self.wheel) - self.stale < self.bounds.wheel_max
        )

    @property
    def wants_checkpoint(self) -> bool:
        """Whether so many tickets wait to become rows of their lanes that sweeps wait for the next
        checkpoint."""
        return len(self.memory.dirty.moves) >= self.bounds.moves_max

    def want_sweep(self, now_ms: int) -> SweepAsk | None:
        """The next piece of the agenda to read, when the horizon is too near.

        Asked once: the next comes after `swept` or `sweep_lost`.
        """
        horizon_ms = self.bounds.horizon_ms
        if self.horizon >> SERIAL_BITS > now_ms + horizon_ms // 2 or not self._can_sweep():
            return None
        if self.stale > self.bounds.wheel_max // 4:
            self.trim()
        self.sweep_from = self.horizon
        room = self.bounds.wheel_max - len(self.wheel) + self.stale
        limit = max(min(self.bounds.sweep_limit, room), 1)
        return SweepAsk(unpack(self.horizon), now_ms + horizon_ms, limit)

    def sweep_lost(self) -> None:
        """The read failed."""
        self.sweep_from = None
        self._sweep_drops = 0

    def swept(self, result: Swept, now_ms: int) -> bool:
        """The sweep was read. False: it may not be used, and is wanted again. Rule 4."""
        asked_from, self.sweep_from = self.sweep_from, None
        if not self.memory.is_fresh(result.snapshot_lsn):
            self._sweep_drops += 1
            return False
        self._sweep_drops = 0
        if asked_from != self.horizon:
            return False
        position = pack(result.position)
        if position == self.horizon:
            # It could not read on before the agenda has been refined: by the next checkpoint.
            self.is_stalled = True
            return True
        for entry in result.entries:
            self._take_entry(entry, now_ms)
        self._raise_horizon(position)
        return True

    def _take_entry(self, entry: SweptEntry, now_ms: int) -> None:
        due_ms, serial, first_due_ms, lane_number, is_expiry = entry
        lanes = self.lanes
        # Memory is the authority on what it holds: rule 2.
        if self.memory.look(serial) is not UNREAD:
            return
        if is_expiry:
            self.expiries.arm(serial, due_ms)
            return
        if serial in lanes.loading or lanes.is_moving(serial):
            return
        move = LaneMove(due_ms, first_due_ms, lane_number)
        if lanes.run_ahead(serial, move, now_ms):
            return
        self.near[serial] = move
        self.wheel.insert(due_ms, serial)
        lane = lanes.lane_by_number(lane_number)
        lane.near += 1
        lane.near_top = max(lane.near_top, first_due_ms << SERIAL_BITS | serial)

    def _raise_horizon(self, position: int) -> None:
        """Move the overlay's tickets up to the new horizon into the wheel. Rules 3 and 4."""
        overlay = self.overlay
        while overlay and overlay[0] <= position:
            first = heappop(overlay)
            if self._is_in_overlay(first):
                self.wheel.insert(first >> SERIAL_BITS, first & SERIAL_MASK)
        self.horizon = position

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
        if not memory.is_fresh(loaded.snapshot_lsn):
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

    # ------------------------------------------------------------------ refills

    def want_refills(self, now_ms: int, limit: int = 16) -> list[RefillAsk]:
        """Rows to be read for lanes whose window is low, each lane asked once, until `refilled`
        or `refill_lost`. Lanes without rows are served from memory at once."""
        lanes = self.lanes
        asks: list[RefillAsk] = []
        if not lanes.hungry:
            return asks
        for lane in wanting(lanes, now_ms):
            if len(asks) >= limit:
                break
            if not may_refill(lanes, lane):
                continue  # the others took the room that was left
            if lane.number is None or not lanes.rows.get(lane.number):
                self._refill(lane, None, now_ms)
                continue
            lane.is_refilling = True
            self.refills_out += 1
            asks.append(RefillAsk(lane.number, unpack(lane.edge), room_of(lanes, lane)))
        return asks

    def refill_lost(self, lane_number: int) -> None:
        """The read failed: it is wanted again."""
        self._refill_drops = 0
        self.refills_out -= 1
        self.lanes.lane_by_number(lane_number).is_refilling = False

    def refilled(self, result: Refilled, now_ms: int) -> bool:
        """Rows of a lane were read. False: stale, and wanted again."""
        lane = self.lanes.lane_by_number(result.lane_number)
        lane.is_refilling = False
        self.refills_out -= 1
        if not self.memory.is_fresh(result.snapshot_lsn):
            self._refill_drops += 1
            return False
        self._refill_drops = 0
        self._refill(lane, result, now_ms)
        return True

    def _refill(self, lane: Lane, result: Refilled | None, now_ms: int) -> None:
        came_in, to_load = take_rows(self.lanes, lane, result, now_ms)
        self.load_queue.extend(to_load)
        for ticket in came_in:
            self._settle_in(ticket, now_ms)
        self.lanes.keep_bounds(lane)

    @property
    def hold_completion(self) -> bool:
        """Whether a read is under way that was overtaken twice before: the next completion waits
        until it is in."""
        return (
            (self.sweep_from is not None and self._sweep_drops >= _DROPS_MAX)
            or (self.loads_out > 0 and self._load_drops >= _DROPS_MAX)
            or (self.refills_out > 0 and self._refill_drops >= _DROPS_MAX)
        )

    # ------------------------------------------------------------------ admission

    def heads(self) -> Iterator[Lane]:
        """The lanes with a window that is not empty, by (priority, the greater first; first due;
        serial) of their heads."""
        return iter([lane for _, lane in self.lanes.sorted_heads()])

    def pop(self, lane: Lane, now_ms: int) -> int | None:
        """The first ticket of a lane that is due and whose key is free; it is then in hand, to be
        started or given back. None: the lane has none."""
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
        return self.lanes.is_key_busy(key)

    # ------------------------------------------------------------------ completions

    def keeps(self, ticket: Ticket, in_rows: bool) -> bool:
        """Whether a clean ticket stays in memory: it runs, or its time is near, or it is in its
        lane's window."""
        if ticket.state == RUNNING:
            return True
        if ticket.state != PENDING:
            return False
        seat = self.lanes.seats.get(ticket.serial)
        if seat is not None:
            return self.lanes.keeps(ticket, seat, in_rows) or self._disarm_far(ticket)
        return ticket.due_ms << SERIAL_BITS | ticket.serial <= self.horizon

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

    def completed(self) -> None:
        """A completion has been processed: what left memory leaves the overlay, when that is
        worth the walk."""
        self.is_stalled = False
        if len(self.overlay) > 2 * len(self.memory.hot) + 1024:
            hot = self.memory.hot
            hot_ones = [position for position in self.overlay if position & SERIAL_MASK in hot]
            self.overlay = list({pos for pos in hot_ones if self._is_in_overlay(pos)})
            heapify(self.overlay)

    # ------------------------------------------------------------------ for people

    def where(self, serial: int) -> str:
        """Where a pending ticket waits, in a word or two."""
        lanes = self.lanes
        seat = lanes.seats.get(serial)
        if seat is not None:
            return SEAT_NAMES[seat]
        ticket = self.memory.hot.get(serial)
        if ticket is not None:
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
        return len(lanes.seats) + len(lanes.loading) + moves + sum(lanes.rows.values())

    def oldest_ready_ms(self) -> int | None:
        """The earliest first due in any window; None when all are empty."""
        heads = (lane.window[0] >> SERIAL_BITS for _, lane in self.lanes.sorted_heads())
        return min(heads, default=None)


def is_due(ticket: Ticket, now_ms: int) -> bool:
    """A timer only reminds: what counts is the ticket's own due. Rule 5."""
    return ticket.state == PENDING and ticket.due_ms <= now_ms


def is_waiting_for(ticket: Ticket, due_ms: int) -> bool:
    return ticket.state == PENDING and ticket.due_ms == due_ms


def pack(position: tuple[int, int]) -> int:
    """(time, serial) as one integer."""
    return position[0] << SERIAL_BITS | position[1]


def unpack(position: int) -> tuple[int, int]:
    """One integer as (time, serial)."""
    return position >> SERIAL_BITS, position & SERIAL_MASK


def span_end(until_ms: int) -> int:
    """The last position of a millisecond."""
    return until_ms << SERIAL_BITS | SERIAL_MASK
