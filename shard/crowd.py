"""The first tickets of a lane, many at once, where nothing is to be said of any of them by itself.

A plain one is due, has no key and is no suspect: one after the other they would all be let through.
Told from here to admission, which knows who goes before whom over all lanes.
"""

from bisect import bisect_left

from parkade.shard.lane import RANK_MAX, SERIAL_MASK, Lane
from parkade.shard.lanes import IN_HAND, Lanes

__all__ = ["lone_fresh", "plain_ranks", "take_first"]


def plain_ranks(
    lanes: Lanes, lane: Lane, most: int, before: int, now_ms: int
) -> tuple[list[int], int]:
    """The ranks of the first that are plain, at most so many, all of them below `before`; and the
    rank of the one behind them that is not plain, or `before`."""
    hot, window = lanes.memory.hot, lane.window
    ranks = window[: min(most, bisect_left(window, before))]
    for at, rank in enumerate(ranks):
        ticket = hot[rank & SERIAL_MASK]
        if ticket.key is not None or ticket.is_suspect or ticket.due_ms > now_ms:
            return ranks[:at], rank
    return ranks, min(before, RANK_MAX)


def take_first(lanes: Lanes, lane: Lane, count: int) -> None:
    """The first so many of a lane, which are plain, are in hand."""
    taken = lane.window[:count]
    del lane.window[:count]
    lanes.seats.update(dict.fromkeys([rank & SERIAL_MASK for rank in taken], IN_HAND))
    lanes.total -= count
    lanes.changed.add(lane)
    lanes.note_hunger(lane)


def lone_fresh(lanes: Lanes) -> Lane | None:
    """The lane that `Lanes.take_fresh` would tell of, if it is the only one, and of one ticket."""
    if lanes.fresh is None or lanes.fresh or lanes.passed or len(lanes.changed) != 1:
        return None
    (lane,) = lanes.changed
    return lane if len(lane.window) == 1 else None
