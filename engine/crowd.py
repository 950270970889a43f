"""Plain tickets of one queue, over the lanes of all shards: those that one after the other would be
taken, found at once.

Each lane is sorted, so all of them are with a few comparisons each; and what admission does of each
ticket it does of a crowd once.
"""

from collections.abc import Iterable
from itertools import repeat
from operator import itemgetter
from typing import Protocol, TypeVar

from parkade.shard.crowd import first_ranks, plain_count
from parkade.shard.lane import Lane
from parkade.shard.lanes import Lanes

__all__ = ["CROWD_MIN", "crowd_of"]

CROWD_MIN = 4
"""Fewer are taken one by one: to look for them would cost as much."""


class _Owner(Protocol):
    @property
    def lanes(self) -> Lanes: ...


class _Post(Protocol):
    @property
    def lane(self) -> Lane: ...
    @property
    def owner(self) -> _Owner: ...


T = TypeVar("T", bound=_Post)
_rank_of = itemgetter(0)


def crowd_of(posts: Iterable[T], most: int, before: int, now_ms: int) -> list[tuple[int, T]]:
    """The first tickets of all these lanes, of one priority and none of them empty: by rank, with
    where each of them waits. At most so many, all below the rank `before`, and none behind one that
    is not plain."""
    found: list[tuple[int, T]] = []
    for post in posts:
        found += zip(first_ranks(post.lane, most, before), repeat(post), strict=False)
    found.sort(key=_rank_of)
    del found[most:]
    del found[plain_count([(rank, post.owner.lanes) for rank, post in found], now_ms) :]
    return found
