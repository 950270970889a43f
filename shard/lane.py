"""One lane: the queue in which the due tickets of one (task, target, priority) wait.

All of it up to its `edge` is in memory, in its window or about to come in; what ranks past the edge
is outside. Ranks, like positions, are one integer, time << 64 | serial: they compare faster than
tuples.
"""

from bisect import bisect_left
from collections import deque
from collections.abc import Container
from heapq import heapify, heappop, heappush
from itertools import repeat
from typing import Final

import msgspec

__all__ = [
    "RANK_MAX",
    "SERIAL_BITS",
    "SERIAL_MASK",
    "Lane",
    "LaneKey",
    "LaneLost",
    "decode_lane",
    "encode_lane",
]

LaneKey = tuple[str, str | None, int]
"""(task, target, priority)."""

SERIAL_BITS: Final = 64
SERIAL_MASK: Final = (1 << SERIAL_BITS) - 1
RANK_MAX: Final = 1 << 128
"""Past every rank and position."""


class LaneLost(Exception):
    """What waits names a lane by a number that no row gives a name: the store is damaged."""

    def __init__(self, number: int) -> None:
        super().__init__(f"tickets wait in lane {number}, and no row of lane_names names it")


encode_lane = msgspec.msgpack.Encoder().encode
decode_lane = msgspec.msgpack.Decoder(LaneKey).decode


class Lane:
    """One queue. Only `Lanes` changes it.

    `order` sorts lanes by their heads: (-priority, rank of the head, a number of its own).
    """

    __slots__ = (
        "asked_edge",
        "edge",
        "is_refilling",
        "key",
        "loading",
        "near",
        "near_top",
        "number",
        "order",
        "outside",
        "ranks",
        "read_at",
        "seq",
        "window",
    )

    def __init__(self, key: LaneKey, seq: int, number: int | None, edge: int) -> None:
        self.key = key
        self.seq = seq
        self.number = number
        self.edge = edge
        self.window: list[int] = []  # ranks, sorted; all hot
        self.loading: list[int] = []  # ranks, sorted; asked of the store
        self.ranks: dict[int, int] = {}  # serial -> rank of what is outside and in no row yet
        self.outside: list[int] = []  # a heap of those ranks, and of some that are so no more
        self.near = 0  # parked tickets of this lane in the wheel
        self.near_top = -1  # no rank among them is greater
        self.is_refilling = False
        self.asked_edge = edge  # from where the refill under way reads
        self.read_at = -1  # the commit that was the last one when its rows were asked for
        self.order: tuple[int, int, int] | None = None

    @property
    def priority(self) -> int:
        return self.key[2]

    @property
    def head(self) -> tuple[int, int, int]:
        """(-priority, first due, serial) of the first in the window: who goes first is least."""
        rank = self.window[0]
        return (-self.key[2], rank >> SERIAL_BITS, rank & SERIAL_MASK)

    @property
    def is_unused(self) -> bool:
        return (
            self.edge == RANK_MAX
            and not self.window
            and not self.loading
            and not self.ranks
            and not self.near
            and not self.is_refilling
        )

    def __len__(self) -> int:
        """How many are in the window or coming into it."""
        return len(self.window) + len(self.loading)

    def count_before(self, first_due_ms: int, serial: int) -> int:
        """How many in the window go before that rank."""
        return bisect_left(self.window, first_due_ms << SERIAL_BITS | serial)

    def has(self, first_due_ms: int, serial: int) -> bool:
        """Whether that rank is in the window."""
        at = self.count_before(first_due_ms, serial)
        window = self.window
        return at < len(window) and window[at] == first_due_ms << SERIAL_BITS | serial

    def top(self) -> int:
        """The greatest rank in the window or coming; -1 when there is none."""
        top = self.window[-1] if self.window else -1
        return max(top, self.loading[-1]) if self.loading else top

    def first_outside(self) -> int:
        """The least rank outside that is in no row yet; RANK_MAX when there is none."""
        outside, ranks = self.outside, self.ranks
        while outside:
            rank = outside[0]
            if ranks.get(rank & SERIAL_MASK) == rank:
                return rank
            heappop(outside)
        return RANK_MAX

    def take_outside(self, before: int, most: int, known: Container[int]) -> list[int]:
        """The least ranks outside that are in no row yet, outside no more: at most so many, below a
        rank, as far as their serials are known."""
        outside, ranks, taken = self.outside, self.ranks, list[int]()
        while outside and len(taken) < most:
            rank = outside[0]
            serial = rank & SERIAL_MASK
            if ranks.get(serial) == rank:
                if rank >= before or serial not in known:
                    break
                del ranks[serial]
                taken.append(rank)
            heappop(outside)
        return taken

    def put_outside(self, rank: int) -> None:
        """Note a rank outside, before it has a row."""
        self.ranks[rank & SERIAL_MASK] = rank
        heappush(self.outside, rank)
        self._tidy()

    def put_all_outside(self, serials: list[int], ranks: list[int]) -> None:
        """The same for many, in bulk."""
        self.ranks.update(zip(serials, ranks, strict=True))
        deque(map(heappush, repeat(self.outside), ranks), 0)
        self._tidy()

    def _tidy(self) -> None:
        if len(self.outside) > 2 * len(self.ranks) + 64:
            self.outside = list(self.ranks.values())
            heapify(self.outside)
