"""The future of a shard's pending tickets: the horizon, and what lies on either side of it.

Up to the horizon, a position (due, serial), the wheel has every pending ticket that is not in its
lane: hot ones by their serial, parked ones (`near`) with what a move needs to know. Past it hot
tickets are in the overlay, and clean ones in the agenda alone. Sweeps read the agenda and raise the
horizon; a clock set back, or too many timers, lower it.

Timers and overlay entries are not removed when a ticket moves on: they are looked at when their
turn comes. So submitting a ticket costs one push and no lookup. The rules cited are those of
docs/architecture.md, Placement.
"""

from collections import deque
from collections.abc import Sequence
from heapq import heapify, heappop, heappush
from typing import Final, NamedTuple

from parkade.shard import lined
from parkade.shard.bounds import Bounds
from parkade.shard.expiry import Expiries
from parkade.shard.generation import NEVER_MS, LaneMove
from parkade.shard.lanes import SERIAL_BITS, SERIAL_MASK, Lanes
from parkade.shard.memory import UNREAD, Memory
from parkade.shard.states import PENDING
from parkade.shard.ticket import Ticket
from parkade.wheel import Wheel

__all__ = [
    "NOWHERE",
    "Horizon",
    "SweepAsk",
    "Swept",
    "SweptEntry",
    "pack",
    "span_end",
    "unpack",
]

NOWHERE: Final = -1
"""The horizon at minus infinity: before every position."""


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

    snapshot_commit: int
    entries: Sequence[SweptEntry]
    position: tuple[int, int]


class Horizon:
    """Wheel, overlay and sweeps. `Placement` is built on it."""

    def __init__(self, memory: Memory, bounds: Bounds, lanes: Lanes) -> None:
        self.memory = memory
        memory.enter = self.unpacked
        self.bounds = bounds
        self.lanes = lanes
        self.wheel = Wheel(0)
        self.horizon = NOWHERE
        self.overlay: list[int] = []  # a heap of positions, some of them of tickets that moved on
        self.near: dict[int, LaneMove] = {}  # the parked tickets in the wheel
        self.load_queue: deque[int] = deque()  # due parked tickets, to be read
        self.expiries = Expiries()
        self.stale = 0  # timers in the wheel whose ticket has moved on, about
        self.sweep_from: int | None = None
        self.sweep_drops = 0
        self.is_stalled = False
        self.clock_lag_ms = 0

    def enter(self, ticket: Ticket) -> None:
        """A hot ticket has become pending, or pending at another due."""
        due_ms, serial = ticket.due_ms, ticket.serial
        position = due_ms << SERIAL_BITS | serial
        if position <= self.horizon:
            self.wheel.insert(due_ms, serial)
        else:
            heappush(self.overlay, position)

    def unpacked(self, ticket: Ticket) -> None:
        """One that was plain is a hot ticket from now on."""
        if not lined.take_seat(self.lanes, ticket):
            self.enter(ticket)

    def fire_parked(self, serial: int, move: LaneMove) -> None:
        """A parked ticket is due."""
        if self.lanes.fire(serial, move):
            self.load_queue.append(serial)

    def forget_near(self, serial: int) -> bool:
        move = self.near.pop(serial, None)
        if move is None:
            return False
        lane = self.lanes.lane_by_number(move.lane_number)
        lane.near -= 1
        if not lane.near:
            lane.near_top = -1
        return True

    def next_timer(self) -> int | None:
        """When the next ticket that memory knows of comes due or expires, in ms; None: none will.
        One that lies beyond the horizon and is not hot is the agenda's."""
        due_ms, expiry_ms = self._next_hot_due(), self.expiries.next_ms()
        return due_ms if expiry_ms is None else earlier(due_ms, expiry_ms + self.clock_lag_ms)

    def next_due(self) -> tuple[int | None, int]:
        """(when the next ticket that memory knows of comes due, until when it knows of all), in ms.
        Of what is due later than the second, the agenda may have something earlier."""
        return self._next_hot_due(), self.horizon >> SERIAL_BITS

    def _next_hot_due(self) -> int | None:
        due_ms = earlier(self.wheel.next_wake(), self._overlay_wake())
        plain_ms = self.memory.plain_due_ms
        return earlier(due_ms, plain_ms) if plain_ms < NEVER_MS else due_ms

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

    def watch_clock(self, now_ms: int) -> None:
        if self.horizon >> SERIAL_BITS > now_ms + 2 * self.bounds.horizon_ms:
            self.reanchor(now_ms)
        elif self.wheel.level.start_ms > now_ms + 1_000:
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
                self.forget_near(serial)
        self.wheel.insert_many(kept)
        self.stale = 0

    # ------------------------------------------------------------------ sweeps

    def can_sweep(self) -> bool:
        return (
            self.sweep_from is None
            and not self.is_stalled
            and not self.wants_checkpoint
            and len(self.wheel) - self.stale < self.bounds.wheel_max
        )

    def is_behind(self, now_ms: int) -> bool:
        """Whether the agenda may have tickets that are due and were not swept yet."""
        return self.horizon >> SERIAL_BITS < now_ms

    @property
    def wants_checkpoint(self) -> bool:
        """Whether so many tickets wait to become rows of their lanes or keys that sweeps wait for
        the next checkpoint."""
        return len(self.memory.dirty.moves) >= self.bounds.moves_max or self.lanes.waits.is_full

    def want_sweep(self, now_ms: int) -> SweepAsk | None:
        """The next piece of the agenda to read, when the horizon is too near.

        Asked once: the next comes after `swept` or `sweep_lost`.
        """
        horizon_ms = self.bounds.horizon_ms
        if self.horizon >> SERIAL_BITS > now_ms + horizon_ms // 2 or not self.can_sweep():
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
        self.sweep_drops = 0

    def swept(self, result: Swept, now_ms: int) -> bool:
        """The sweep was read. False: it may not be used, and is wanted again. Rule 4."""
        asked_from, self.sweep_from = self.sweep_from, None
        if not self.memory.is_fresh(result.snapshot_commit):
            self.sweep_drops += 1
            return False
        self.sweep_drops = 0
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
        if due_ms <= now_ms:
            self.fire_parked(serial, move)  # in the wheel, others would wait behind it
            return
        if lanes.run_ahead(serial, move, now_ms):
            return
        self.near[serial] = move
        self.wheel.insert(due_ms, serial)
        lane = lanes.lane_by_number(lane_number)
        lane.near += 1
        lane.near_top = max(lane.near_top, first_due_ms << SERIAL_BITS | serial)

    def _raise_horizon(self, position: int) -> None:
        """Move the overlay's tickets up to the new horizon into the wheel. Rules 3 and 4."""
        if self.memory.plain_due_ms <= position >> SERIAL_BITS:
            self.memory.unpack_until(position >> SERIAL_BITS)
        overlay = self.overlay
        while overlay and overlay[0] <= position:
            first = heappop(overlay)
            if self._is_in_overlay(first):
                self.wheel.insert(first >> SERIAL_BITS, first & SERIAL_MASK)
        self.horizon = position

    # ------------------------------------------------------------------ completions

    def completed(self) -> None:
        """A completion has been processed: what left memory leaves the overlay, when that is
        worth the walk."""
        self.is_stalled = False
        if len(self.overlay) > 2 * len(self.memory.hot) + 1024:
            hot = self.memory.hot
            hot_ones = [position for position in self.overlay if position & SERIAL_MASK in hot]
            self.overlay = list({pos for pos in hot_ones if self._is_in_overlay(pos)})
            heapify(self.overlay)


def earlier(one_ms: int | None, other_ms: int | None) -> int | None:
    """The first of two times; None: never."""
    if one_ms is None or (other_ms is not None and other_ms < one_ms):
        return other_ms
    return one_ms


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
