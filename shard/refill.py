"""Refills: the window of a lane takes in the next ranks from outside, in order.

What is outside lies in three places: hot tickets without a row yet, parked ones on their way to a
row, and the rows of the table `lanes`. The rows are asked of the store; the rest is merged with
them when they come. A rank whose first due is still ahead stays outside: nothing outside is due
before its first due, so the edge itself says when there is something to fetch.
"""

from bisect import bisect_left
from collections.abc import Mapping, Sequence
from typing import NamedTuple

from parkade.shard.commands import Loaded, UniqueRow
from parkade.shard.crowd import seat_behind
from parkade.shard.lanes import RANK_MAX, SERIAL_BITS, SERIAL_MASK, SPILLED, Lane, Lanes
from parkade.shard.lined import seat_lined
from parkade.shard.memory import UNREAD
from parkade.shard.ticket import Ticket
from parkade.shard.waits import Queue

__all__ = [
    "RefillAsk",
    "Refilled",
    "next_refill_ms",
    "seat_rows",
    "take_rows",
    "take_waiting",
    "wanting",
    "wants_heads",
]


class RefillAsk(NamedTuple):
    """Read the rows of a lane after (first due, serial), in order, at most `limit` of them; with a
    `key` those that wait for it."""

    lane_number: int
    after: tuple[int, int]
    limit: int
    key: str | None = None


class Refilled(NamedTuple):
    """The rows that were read, (first due, serial) each, and their tickets, of one snapshot.

    `is_end`: the lane has no row after these.
    """

    lane_number: int
    snapshot_commit: int
    rows: Sequence[tuple[int, int]]
    is_end: bool
    loaded: Loaded
    key: str | None = None


def room_of(lanes: Lanes, lane: Lane) -> int:
    """How many more the window may take in now."""
    bounds = lanes.bounds
    size = len(lane)
    if lanes.total >= bounds.windows_max:
        return 0 if size else 1
    return min(bounds.window_max - size, bounds.windows_max - lanes.total)


def last_order(lanes: Lanes) -> tuple[int, int, int] | None:
    """Before which lane another one must go to have a head in memory beside the others; None: any
    may have one. One that is held gives way to whoever comes."""
    lanes_max = lanes.bounds.lanes_max
    if len(lanes.by_key) <= lanes_max:
        return None
    heads = lanes.sorted_heads()
    if len(heads) < lanes_max or lanes.held_lane(1) is not None:
        return None
    return heads[-1][0]


def wants_heads(lanes: Lanes) -> bool:
    """Whether some lane may go without a head because others have theirs."""
    return bool(lanes.hungry) and len(lanes.by_key) > lanes.bounds.lanes_max


def has_rows(lanes: Lanes, lane: Lane) -> bool:
    """Whether the store has rows of it, as far as is known."""
    return lane.number is not None and lanes.rows.get(lane.number, 0) > 0


def is_read_on(lanes: Lanes, lane: Lane) -> bool:
    """Whether its rows may be read now. While too much of what was read has changed and is in no
    checkpoint yet (`reads_on`), each lane reads once between two commits: so a crowd comes in as
    fast as it is parked again, and keeps no other lane from its rows."""
    return lanes.reads_on or lane.read_at < lanes.memory.completed_commit


def may_refill(lanes: Lanes, lane: Lane, last: tuple[int, int, int] | None) -> bool:
    """Whether a refill is wanted as soon as its time has come. `last`: see `last_order`."""
    if lane.is_refilling or room_of(lanes, lane) <= 0 or lanes.waits.holds_up(lane.key):
        return False
    if not is_read_on(lanes, lane) and has_rows(lanes, lane):
        return False
    is_enough = lane.window or len(lanes.by_key) > lanes.bounds.lanes_max
    if is_enough and lanes.keys.gate.is_held(lane.key):
        return False
    if lane.window or last is None:
        return True
    # What it would bring in ranks past its edge: a head that would be put out at once is left out.
    return (-lane.priority, lane.edge + 1, lane.seq) < last


def wanting(lanes: Lanes, now_ms: int) -> list[Lane]:
    """The lanes whose window is low and which have something outside whose time has come."""
    found: list[Lane] = []
    last = last_order(lanes)
    for lane in list(lanes.hungry):
        if lane.edge == RANK_MAX or len(lane) > lanes.bounds.window_max // 2:
            lanes.hungry.discard(lane)
        elif lane.edge >> SERIAL_BITS <= now_ms and may_refill(lanes, lane, last):
            found.append(lane)
    found.sort(key=lambda lane: (-lane.priority, lane.edge, lane.seq))
    return found


def next_refill_ms(lanes: Lanes) -> int | None:
    """When the next refill will be wanted; None when none is foreseen."""
    if not lanes.hungry:
        return None
    low, last = lanes.bounds.window_max // 2, last_order(lanes)
    times = [
        lane.edge >> SERIAL_BITS
        for lane in lanes.hungry
        if lane.edge < RANK_MAX and len(lane) <= low and may_refill(lanes, lane, last)
    ]
    return min(times, default=None)


def take_rows(
    lanes: Lanes, lane: Lane, result: Refilled | None, now_ms: int
) -> tuple[list[Ticket], list[int]]:
    """Merge rows with what memory has outside, and move the edge past all that was taken.

    `result` None: the lane has no rows. The tickets taken in from rows, which still have to find
    their place, and the serials of parked ones to load.
    """
    rows, last = ([], RANK_MAX) if result is None else _unknown_rows(lanes, lane, result)
    parked = {} if result is None else result.loaded.tickets
    names: Mapping[bytes, UniqueRow | None] = {} if result is None else result.loaded.uniques
    came_in: list[Ticket] = []
    to_load: list[int] = []
    at, room, end = 0, room_of(lanes, lane), min(last + 1, now_ms + 1 << SERIAL_BITS)
    while True:
        outside = lane.first_outside()
        most = min(at + max(room, 0), len(rows))
        taken = rows[at : bisect_left(rows, min(outside + 1, end), at, most)]
        at += len(taken)
        # One whose row cannot be read the host has in quarantine.
        read = [one for rank in taken if (one := parked.get(rank & SERIAL_MASK)) is not None]
        came_in += [lanes.memory.admit(one, names) for one in read]
        room -= len(read)
        row = rows[at] if at < len(rows) else RANK_MAX
        rank = min(row, outside)
        if room <= 0 or rank >= end or rank == RANK_MAX:
            break
        if rank == row:
            continue
        seated = seat_lined(lanes, lane, min(row, end), room)
        if not seated and not _take_outside(lanes, lane, rank):
            to_load.append(rank & SERIAL_MASK)
        room -= seated or 1
    lane.edge = RANK_MAX if rank == last == RANK_MAX else min(rank - 1, last)
    lanes.changed.add(lane)
    lanes.note_hunger(lane)
    return came_in, to_load


def seat_rows(lanes: Lanes, lane: Lane, came_in: list[Ticket], now_ms: int) -> bool:
    """Seats tickets that were taken in from rows together, where they go behind all others of the
    window, and nothing is to be done for any of them by itself; whether it did."""
    if not all(ticket.options is None and ticket.due_ms <= now_ms for ticket in came_in):
        return False
    ranks = [ticket.first_due_ms << SERIAL_BITS | ticket.serial for ticket in came_in]
    if not ranks or (lane.window and ranks[0] < lane.window[-1]):
        return False
    seat_behind(lanes, lane, ranks)
    return True


def take_waiting(lanes: Lanes, queue: Queue, result: Refilled | None, now_ms: int) -> list[Ticket]:
    """The same for a queue of a key: those from memory wait aside now; the tickets taken in from
    rows still have to find their place."""
    rows, last = ([], RANK_MAX) if result is None else _unknown_rows(lanes, queue, result)
    waits, memory = lanes.waits, lanes.memory
    came_in: list[Ticket] = []
    at, room = 0, waits.room_of(queue)
    while True:
        row = rows[at] if at < len(rows) else RANK_MAX
        rank = min(row, queue.first_outside())
        if room <= 0 or rank > last or rank == RANK_MAX or rank >> SERIAL_BITS > now_ms:
            break
        serial = rank & SERIAL_MASK
        if rank != row:
            waits.bring_in(queue, serial)
            memory.dirty.moves.pop(serial, None)
            waits.take_in(queue, memory.hot[serial], rank)
        else:
            at += 1
            assert result is not None
            ticket = result.loaded.tickets.get(serial)
            if ticket is None:
                continue  # its row cannot be read: the host has it in quarantine
            came_in.append(memory.admit(ticket, result.loaded.uniques))
        room -= 1
    queue.edge = RANK_MAX if rank == last == RANK_MAX else min(rank - 1, last)
    if result is not None and result.is_end and at == len(rows):
        queue.has_rows = False
    return came_in


def _take_outside(lanes: Lanes, lane: Lane, rank: int) -> bool:
    """Let a rank from outside into the window; False when its ticket has to be loaded first."""
    serial = rank & SERIAL_MASK
    lanes.memory.unpack(serial)
    del lane.ranks[serial]
    move = lanes.memory.dirty.moves.pop(serial, None)
    if lanes.seats.get(serial) == SPILLED:
        lanes.seat(lane, rank)
        return True
    if move is None:
        assert lanes.memory.flight is not None, serial
        move = lanes.memory.flight.moves[serial]
    lanes.start_loading(lane, rank, move)
    return False


def _unknown_rows(lanes: Lanes, lane: Lane, result: Refilled) -> tuple[list[int], int]:
    """The ranks among the rows that memory has no other word on, and how far the rows reach."""
    memory = lanes.memory
    ranks = [first_due_ms << SERIAL_BITS | serial for first_due_ms, serial in result.rows]
    reach = RANK_MAX if result.is_end else ranks[-1]
    serials = [serial for _, serial in result.rows]
    is_beside = any(not known.keys().isdisjoint(serials) for known in (lane.ranks, lanes.loading))
    if not is_beside and memory.is_unread(serials):
        return ranks, reach
    ranks.clear()
    for first_due_ms, serial in result.rows:
        if serial in lane.ranks:
            continue
        known = memory.look(serial)
        if known is UNREAD:
            if serial not in lanes.loading:
                ranks.append(first_due_ms << SERIAL_BITS | serial)
        elif known is not None and serial not in lanes.seats and memory.is_clean(serial):
            # Met in its lane's rows while it waits for its due: the next checkpoint moves the row.
            memory.own(known)
    return ranks, reach
