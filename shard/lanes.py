"""Where due tickets wait: all lanes of a shard, their windows, and the keys they wait for.

A lane is a queue in order of rank, (first due, serial). All of it up to its `edge` is in memory: in
its window, or asked of the store and about to come in. What ranks past the edge is *outside*: hot
and waiting for a checkpoint to give it a row in `lanes`, parked and on its way from the agenda to
such a row, or a row already. A lane whose edge is `RANK_MAX` has nothing outside. So every ticket
of a lane is in memory or past the edge, and a refill, which moves the edge, leaves none behind.
docs/architecture.md, Lanes and Keys.
"""

from bisect import bisect_left, insort
from collections.abc import Collection, Iterable, Mapping
from typing import Final

from parkade.shard.bounds import Bounds
from parkade.shard.generation import MOVE_BYTES, LaneMove
from parkade.shard.keys import SUSPECT, Keys, Reason, StartGate
from parkade.shard.lane import (
    RANK_MAX,
    SERIAL_BITS,
    SERIAL_MASK,
    Lane,
    LaneKey,
    LaneLost,
    decode_lane,
    encode_lane,
)
from parkade.shard.memory import Memory
from parkade.shard.ticket import StoredAt, Ticket
from parkade.shard.waits import ASIDE, WAITING, Queue, Waits

__all__ = [
    "ASIDE",
    "IN_HAND",
    "RANK_MAX",
    "SEAT_NAMES",
    "SERIAL_BITS",
    "SERIAL_MASK",
    "SPILLED",
    "WAITING",
    "WINDOW",
    "Lane",
    "LaneKey",
    "Lanes",
    "decode_lane",
    "encode_lane",
]

_LOOKS_MAX: Final = 64
DROPPED_MAX: Final = 64  # lanes that were dropped, and are kept until the heads are sorted

# Where in its lane a hot ticket is; two more seats are in `waits`.
WINDOW: Final = 0
SPILLED: Final = 1  # outside, past the window
IN_HAND: Final = 2  # given to admission: to be started, or to be given back
SEAT_NAMES: Final = ("window", "spilled", "in hand", "aside", "waiting")


class Lanes:
    """All lanes of a shard, the numbers of lanes, and who holds a key."""

    __slots__ = (
        "bounds",
        "by_key",
        "changed",
        "fresh",
        "heads_order",
        "hungry",
        "idle",
        "keys",
        "loading",
        "looked_at",
        "memory",
        "names",
        "number_next",
        "numbers",
        "passed",
        "reads_on",
        "rows",
        "seats",
        "seq",
        "total",
        "unsorted",
        "waits",
    )

    def __init__(
        self,
        memory: Memory,
        bounds: Bounds,
        names: Mapping[int, bytes],
        rows: Mapping[int, int],
        waits: Collection[tuple[str, int]] = (),
        wait_rows: int = 0,
        idle: Collection[int] | None = None,
    ) -> None:
        """`rows`: of `lanes`, by lane number. `waits`: each key and lane number with rows in
        `waits`, of which there are `wait_rows`. `idle`: the numbers of lanes of which the store has
        no pending ticket; None: it cannot tell, and numbers are kept for ever."""
        self.memory = memory
        self.bounds = bounds
        self.by_key: dict[LaneKey, Lane] = {}
        self.names: dict[int, LaneKey] = {n: decode_lane(name) for n, name in names.items()}
        self.numbers: dict[LaneKey, int] = {key: number for number, key in self.names.items()}
        self.number_next = max(self.names, default=0) + 1
        self.idle = None if idle is None else set(idle)  # what else is, memory has to tell
        self.rows: Mapping[int, int] = rows
        self.seats: dict[int, int] = {}
        self.total = 0  # in all windows, or coming into them
        self.loading: dict[int, LaneMove] = {}
        self.seq = 0
        self.changed: set[Lane] = set()
        self.heads_order: list[tuple[tuple[int, int, int], Lane]] = []
        self.hungry: set[Lane] = set()  # lanes that may want a refill
        self.reads_on = True  # False: of rows, once a lane and commit; see `refill.is_read_on`
        # Lanes whose head may have changed: `changed` since it was sorted in and admission asked,
        # `fresh` since admission asked (None: it never will), `unsorted` since it was sorted in.
        # What it would be told of is in one of the first two.
        self.fresh: set[Lane] | None = None
        self.unsorted: set[Lane] = set()
        # Lanes in which nobody could start, for want of room aside.
        self.passed: set[Lane] = set()
        self.keys = Keys()
        self.looked_at = 0  # among the sorted heads, for one that is held
        for number, count in rows.items():
            if count:
                self.lane(self.names[number])
        self.waits = Waits(memory, bounds, self.keys, self.seats, wait_rows)
        for key, number in waits:
            self.waits.add(Queue(key, self.names[number], 0, number, has_rows=True))
        self.waits.found = len(self.waits.queues)
        self.keys.must_wait = self.waits.must_wait

    # ------------------------------------------------------------------ lanes

    def lane(self, key: LaneKey) -> Lane:
        """The lane of that key, made when it is not there. One with rows has them all outside."""
        lane = self.by_key.get(key)
        if lane is None:
            number = self.numbers.get(key)
            has_rows = number is not None and self.rows.get(number, 0) > 0
            self.seq += 1
            lane = Lane(key, self.seq, number, -1 if has_rows else RANK_MAX)
            self.by_key[key] = lane
            if has_rows:
                self.hungry.add(lane)
        return lane

    def lane_by_number(self, number: int) -> Lane:
        name = self.names.get(number)
        if name is None:
            raise LaneLost(number)
        return self.lane(name)

    def number(self, key: LaneKey) -> int:
        """The number of a lane, given out now if it has none. Never given to another."""
        number = self.numbers.get(key)
        if number is None:
            number = self.numbers[key] = self.number_next
            self.number_next += 1
            self.names[number] = key
            if self.idle is not None:
                self.idle.add(number)
            memory = self.memory
            generation = memory.dirty if memory.flight is None else memory.flight
            generation.lane_names.append((number, encode_lane(key)))
            lane = self.by_key.get(key)
            if lane is not None:
                lane.number = number
        return number

    def drop_unused(self) -> None:
        """Forget lanes that nobody uses."""
        rows = self.rows
        unused = [lane for lane in self.by_key.values() if lane.is_unused]
        for lane in unused:
            if lane.number is not None and rows.get(lane.number):
                continue
            del self.by_key[lane.key]
            self.hungry.discard(lane)
            self.passed.discard(lane)
            self.changed.add(lane)
        if len(self.changed) + len(self.unsorted) > 2 * len(self.by_key) + DROPPED_MAX:
            self.sorted_heads()  # nobody may ask for long, and most of these are no more

    # ------------------------------------------------------------------ in and out

    def enter(self, ticket: Ticket) -> None:
        """A due hot ticket takes its place in its lane."""
        lane = self.lane(ticket.lane)
        rank = ticket.first_due_ms << SERIAL_BITS | ticket.serial
        if rank > lane.edge:
            self._spill(lane, rank)
            return
        self.seat(lane, rank)
        bounds = self.bounds
        if (
            len(lane.window) + len(lane.loading) > bounds.window_max
            or self.total > bounds.windows_max
            or len(self.by_key) > bounds.lanes_max
        ):
            self.keep_bounds(lane)

    def seat(self, lane: Lane, rank: int) -> None:
        """Put a hot ticket into the window."""
        window = lane.window
        if not window or rank < window[0]:
            window.insert(0, rank)
            self.changed.add(lane)
        elif rank > window[-1]:
            window.append(rank)
        else:
            insort(window, rank)
        self.seats[rank & SERIAL_MASK] = WINDOW
        self.total += 1
        if self.passed and lane in self.passed:
            self.passed.discard(lane)
            self.changed.add(lane)

    def leave(self, ticket: Ticket) -> None:
        """The ticket is no more in its lane, if it was; its key is for the next one."""
        seat = self.seats.pop(ticket.serial, None)
        if seat is not None:
            self._vacate(ticket, seat)
        if ticket.key is not None:
            self.hand_on(ticket.key)
        if ticket.is_suspect:
            self.hand_on(SUSPECT)

    def _vacate(self, ticket: Ticket, seat: int) -> None:
        serial = ticket.serial
        if seat == IN_HAND:
            self.keys.drop_claim(ticket)
        elif seat == ASIDE:
            self.keys.take_back(ticket, ticket.first_due_ms << SERIAL_BITS | serial)
        elif seat == WAITING:
            self.waits.vacate(ticket)
        else:
            lane = self.lane(ticket.lane)
            if seat == WINDOW:
                rank = ticket.first_due_ms << SERIAL_BITS | serial
                at = bisect_left(lane.window, rank)
                assert lane.window[at] == rank, (serial, lane.key)
                self._take(lane, at)
            else:
                del lane.ranks[serial]
            self.note_hunger(lane)

    def _take(self, lane: Lane, at: int) -> None:
        del lane.window[at]
        self.total -= 1
        if not at:
            self.changed.add(lane)

    def note_hunger(self, lane: Lane) -> None:
        """Remember the lane if it is low and has more outside."""
        if lane.edge < RANK_MAX and len(lane) <= self.bounds.window_max // 2:
            self.hungry.add(lane)

    # ------------------------------------------------------------------ bounds

    def keep_bounds(self, lane: Lane) -> None:
        """Put outside what is too much, in the lane's window or in all of them."""
        bounds = self.bounds
        size = len(lane)
        if size > bounds.window_max:
            self._overflow(lane)
        elif self.total > bounds.windows_max and size > 1:
            self._overflow(self.held_lane(2) or lane)
        while len(self.by_key) > bounds.lanes_max:
            order = self.sorted_heads()
            if len(order) <= bounds.lanes_max:
                return
            last = self.held_lane(1) or order[-1][1]
            while last.window:
                self._overflow(last)

    def held_lane(self, least: int) -> Lane | None:
        """A lane that is held and has so many in memory, if one is met among a few: those that may
        start are not to lose their place to it."""
        order, is_held = self.sorted_heads(), self.keys.gate.is_held
        for _ in range(min(_LOOKS_MAX, len(order))):
            self.looked_at = (self.looked_at + 1) % len(order)
            lane = order[self.looked_at][1]
            if len(lane) >= least and is_held(lane.key):
                return lane
        return None

    def _overflow(self, lane: Lane) -> None:
        """Put the last of a lane outside."""
        rank = lane.top()
        lane.edge = min(lane.edge, rank - 1)
        if lane.loading and lane.loading[-1] == rank:
            serial = rank & SERIAL_MASK
            move = self.loading[serial]
            self.stop_loading(serial)
            self.put_move(lane, serial, move)
        else:
            self._take(lane, len(lane.window) - 1)
            self._spill(lane, rank)
        self.note_hunger(lane)

    def _spill(self, lane: Lane, rank: int) -> None:
        serial = rank & SERIAL_MASK
        self.seats[serial] = SPILLED
        lane.put_outside(rank)
        memory = self.memory
        under_way = None if memory.flight is None else memory.flight.moves.get(serial)
        if memory.is_clean(serial) and (under_way is None or under_way.to_waits):
            # No generation would take its entry from where it is to the lane's rows.
            self._move_hot(serial)
        self.note_hunger(lane)

    def _move_hot(self, serial: int) -> None:
        at = self.memory.stored_at[serial]
        key = self.memory.hot[serial].key
        move = LaneMove(at.due_ms, at.first_due_ms, at.lane_number, key)
        self.memory.dirty.moves[serial] = move
        self.memory.dirty.size_bytes += MOVE_BYTES

    def put_move(self, lane: Lane, serial: int, move: LaneMove) -> None:
        """A parked ticket waits outside: the next checkpoint makes its agenda entry a row."""
        rank = move.first_due_ms << SERIAL_BITS | serial
        assert rank > lane.edge, (serial, lane.key)
        lane.put_outside(rank)
        flight = self.memory.flight
        if flight is None or serial not in flight.moves:
            self.memory.dirty.moves[serial] = move
            self.memory.dirty.size_bytes += MOVE_BYTES
        self.note_hunger(lane)

    # ------------------------------------------------------------------ parked tickets

    def fire(self, serial: int, move: LaneMove) -> bool:
        """A parked ticket is due: True when it is to be loaded; else it waits outside."""
        lane = self.lane_by_number(move.lane_number)
        rank = move.first_due_ms << SERIAL_BITS | serial
        if rank > lane.edge:
            self.put_move(lane, serial, move)
            return False
        self.start_loading(lane, rank, move)
        self.keep_bounds(lane)
        return serial in self.loading

    def run_ahead(self, serial: int, move: LaneMove, now_ms: int) -> bool:
        """A parked ticket that is not due yet goes to its lane's rows at once when its lane is full
        and it would be the last of it. True when it does; else the wheel takes it."""
        lane = self.lane_by_number(move.lane_number)
        if move.first_due_ms <= now_ms:
            return False
        rank = move.first_due_ms << SERIAL_BITS | serial
        if rank <= lane.edge:
            top = max(lane.top(), lane.near_top)
            if len(lane) + lane.near < self.bounds.window_max or rank < top:
                return False
            lane.edge = rank - 1
        self.put_move(lane, serial, move)
        return True

    def start_loading(self, lane: Lane, rank: int, move: LaneMove) -> None:
        serial = rank & SERIAL_MASK
        insort(lane.loading, rank)
        self.total += 1
        self.loading[serial] = move

    def stop_loading(self, serial: int) -> None:
        """The ticket is not awaited any more."""
        move = self.loading.pop(serial)
        lane = self.lane_by_number(move.lane_number)
        rank = move.first_due_ms << SERIAL_BITS | serial
        del lane.loading[bisect_left(lane.loading, rank)]
        self.total -= 1
        self.note_hunger(lane)

    def is_moving(self, serial: int) -> bool:
        """Whether a parked ticket is on its way from the agenda to its lane's rows."""
        memory = self.memory
        if serial in memory.dirty.moves:
            return True
        return memory.flight is not None and serial in memory.flight.moves

    # ------------------------------------------------------------------ completions

    def keeps(self, ticket: Ticket, seat: int, at: StoredAt | None) -> bool:
        """Whether a clean ticket with a seat in a lane stays in memory; `at`: see `Waits.keeps`."""
        if seat == WAITING:
            return self.waits.keeps(ticket, at)
        if seat != SPILLED:
            return True
        serial = ticket.serial
        if serial in self.memory.dirty.moves:
            return True
        if at is not None and at.in_lane:
            del self.seats[serial]
            del self.lane(ticket.lane).ranks[serial]
            return False
        self._move_hot(serial)
        return True

    def move_completed(self, serial: int, move: LaneMove) -> Ticket | None:
        """The store has the row of this move now. The ticket, when it may leave memory with it."""
        memory = self.memory
        ticket = memory.hot.get(serial)
        if serial in memory.stored_at:
            at = memory.stored_at[serial]
            memory.stored_at[serial] = at.as_row(is_waiting=move.to_waits)
        if ticket is None:
            self.lane_by_number(move.lane_number).ranks.pop(serial, None)
            return None
        if serial in memory.dirty.tickets or serial in memory.dirty.moves:
            return None
        seat = self.seats.get(serial)
        if seat == SPILLED and not move.to_waits:
            del self.seats[serial]
            del self.lane(ticket.lane).ranks[serial]
        elif seat == WAITING and move.to_waits:
            self.waits.leave_memory(ticket)
        else:
            return None
        return ticket

    def rows_counted(
        self, rows: Mapping[int, int], wait_rows: int, tickets: Mapping[int, int] | None
    ) -> None:
        """What the store has now: rows of `lanes` by lane number, and of `waits`; the pending
        tickets of lanes of which it has got or lost some, None where it does not count them."""
        self.rows = rows
        self.waits.row_count = wait_rows
        self.drop_unused()
        if self.idle is None or tickets is None:
            self.idle = None
            return
        for number, count in tickets.items():
            (self.idle.discard if count else self.idle.add)(number)
        self._give_numbers_up(self.idle)

    def _give_numbers_up(self, idle: set[int]) -> None:
        """Forgets the numbers of lanes that have no ticket, here or in the store: targets may have
        names that come once. Whatever the store read before is stale by now."""
        for number in list(idle):
            key = self.names[number]
            if key not in self.by_key and key not in self.waits.lanes:
                idle.discard(number)
                del self.names[number], self.numbers[key]
                self.memory.dirty.lane_names.append((number, None))

    # ------------------------------------------------------------------ keys

    def hand_on(self, reason: Reason) -> None:
        """The reason may have gone, for one of them: the first of each lane comes back."""
        if self.passed:
            self.changed |= self.passed
            self.passed.clear()
        keys = self.keys
        if reason in keys.aside:
            self._bring_back(reason, keys.firsts(reason))
        if type(reason) is str:
            self.waits.note_key(reason)

    def hand_on_all(self, reason: Reason) -> None:
        """The reason has gone for all of them."""
        self.hand_on(reason)
        self._bring_back(reason, self.keys.all_aside(reason))
        if type(reason) is str:
            self.waits.note_key(reason)

    def _bring_back(self, reason: Reason, ranks: Iterable[int]) -> None:
        keys, hot = self.keys, self.memory.hot
        for rank in ranks:
            ticket = hot[rank & SERIAL_MASK]
            if ticket.key != reason or keys.has_room(ticket):
                keys.take_back(ticket, rank)
                del self.seats[ticket.serial]
                self.enter(ticket)

    def _step_aside(self, lane: Lane, at: int, ticket: Ticket, reason: Reason) -> None:
        rank = lane.window[at]
        self._take(lane, at)
        self.waits.put(ticket, rank, reason)
        self.note_hunger(lane)
        key = ticket.key
        if key is not None and key != reason and key in self.keys.aside:
            self.hand_on(key)  # it came back for a key that it cannot take now

    # ------------------------------------------------------------------ heads

    def sorted_heads(self) -> list[tuple[tuple[int, int, int], Lane]]:
        """Each lane that has a head, under its `order`, sorted; to be read only."""
        order = self.heads_order
        for lane in self.changed | self.unsorted if self.unsorted else self.changed:
            if lane.order is not None:
                del order[bisect_left(order, (lane.order,))]
                lane.order = None
            if lane.window:
                lane.order = (-lane.key[2], lane.window[0], lane.seq)
                insort(order, (lane.order, lane))
        if self.fresh is not None:
            self.fresh |= self.changed
        self.changed.clear()
        self.unsorted.clear()
        return order

    def watch(self, gate: StartGate) -> None:
        """From here on `gate` has a say in who may start, and `take_fresh` is asked."""
        self.keys.gate = gate
        self.fresh = {lane for _, lane in self.sorted_heads()}

    def take_fresh(self) -> Collection[Lane]:
        """The lanes whose head may have changed since the last time, empty ones too; all that have
        a head the first time."""
        changed, self.changed = self.changed, set()
        self.unsorted |= changed
        if self.fresh:
            changed |= self.fresh
            self.fresh.clear()
        return changed

    def is_fresh_alone(self, lane: Lane) -> bool:
        """Whether `take_fresh` would tell of that lane and no other; then it is told."""
        if self.fresh or len(self.changed) != 1 or lane not in self.changed:
            return False
        self.unsorted.add(lane)
        self.changed.clear()
        return True

    def take_head(self, lane: Lane, rank: int, now_ms: int, early: list[Ticket]) -> int | None:
        """The first of the lane, now in hand, if it has that rank and may start.

        Else None: those before it that may not start have stepped aside, as far as there is room
        for them, so that the lane's head is a ticket that may; where there is none, whoever may
        start is taken from behind it. Tickets met before their due leave the lane, to `early`.
        """
        hot, window, keys = self.memory.hot, lane.window, self.keys
        while window:
            first = window[0]
            ticket = hot[first & SERIAL_MASK]
            if ticket.due_ms > now_ms:
                early.append(ticket)
                self.leave(ticket)
                continue
            reason = keys.reason_to_wait(ticket)
            if reason is None:
                return self._take_in_hand(lane, 0, ticket) if first == rank else None
            if not self.waits.has_room(ticket, reason):
                return self.pop(lane, now_ms, early) if first == rank else None
            self._step_aside(lane, 0, ticket, reason)
        return None

    def _take_in_hand(self, lane: Lane, at: int, ticket: Ticket) -> int:
        self._take(lane, at)
        self.seats[ticket.serial] = IN_HAND
        if ticket.key is not None:
            self.keys.claim(ticket)
            if ticket.key in self.keys.aside:
                self.hand_on(ticket.key)  # there may be room for more of them
        self.note_hunger(lane)
        return ticket.serial

    def pop(self, lane: Lane, now_ms: int, early: list[Ticket]) -> int | None:
        """The first of the lane that is due and may start, now in hand; None if there is none.
        Tickets that are met before their due leave the lane, and are added to `early`."""
        at = 0
        hot, window, keys = self.memory.hot, lane.window, self.keys
        while at < len(window):
            ticket = hot[window[at] & SERIAL_MASK]
            if ticket.due_ms > now_ms:
                early.append(ticket)
                self.leave(ticket)
                # Its key may have put another one in front.
                at = 0
                continue
            reason = keys.reason_to_wait(ticket)
            if reason is not None:
                if self.waits.has_room(ticket, reason):
                    self._step_aside(lane, at, ticket, reason)
                else:
                    at += 1
                continue
            return self._take_in_hand(lane, at, ticket)
        if window:
            self.passed.add(lane)
        return None

    def give_back(self, ticket: Ticket) -> bool:
        """A ticket in hand was not started, and is in hand no more. False: it was not."""
        if self.seats.get(ticket.serial) != IN_HAND:
            return False
        self.leave(ticket)
        return True
