"""The first tickets of a lane, many at once, where nothing is to be said of any of them by itself.

A plain one is due, has no key and is no suspect: one after the other they would all be let through.
Told from here to admission, which knows who goes before whom over all lanes.
"""

from bisect import bisect_left
from collections.abc import Iterable

from parkade.shard.lane import SERIAL_MASK, Lane
from parkade.shard.lanes import IN_HAND, WINDOW, Lanes

__all__ = ["first_ranks", "lone_fresh", "plain_count", "seat_behind", "take_first"]


def first_ranks(lane: Lane, most: int, before: int) -> list[int]:
    """The first ranks of a lane, at most so many, all of them below `before`."""
    window = lane.window
    ranks = window[:most]
    return ranks if not ranks or ranks[-1] < before else ranks[: bisect_left(ranks, before)]


def plain_count(ranks: Iterable[tuple[int, Lanes]], now_ms: int) -> int:
    """How many of these come before the first that is not plain: ranks, and where each waits."""
    count = 0
    for rank, lanes in ranks:
        ticket = lanes.memory.hot[rank & SERIAL_MASK]
        if ticket.key is not None or ticket.is_suspect or ticket.due_ms > now_ms:
            break
        count += 1
    return count


def take_first(lanes: Lanes, lane: Lane, count: int) -> None:
    """The first so many of a lane, which are plain, are in hand."""
    taken = lane.window[:count]
    del lane.window[:count]
    lanes.seats.update(dict.fromkeys([rank & SERIAL_MASK for rank in taken], IN_HAND))
    lanes.total -= count
    lanes.changed.add(lane)
    lanes.note_hunger(lane)


def seat_behind(lanes: Lanes, lane: Lane, ranks: list[int]) -> None:
    """Hot tickets with these ranks, in order, take their seats behind all that a lane's window
    has."""
    if not lane.window or lane in lanes.passed:
        lanes.passed.discard(lane)
        lanes.changed.add(lane)
    lane.window += ranks
    lanes.seats.update(dict.fromkeys([rank & SERIAL_MASK for rank in ranks], WINDOW))
    lanes.total += len(ranks)


def lone_fresh(lanes: Lanes) -> Lane | None:
    """The lane that `Lanes.take_fresh` would tell of, if it is the only one, and of one ticket."""
    if lanes.fresh is None or lanes.fresh or lanes.passed or len(lanes.changed) != 1:
        return None
    (lane,) = lanes.changed
    return lane if len(lane.window) == 1 else None
