"""Who is first, over everything that waits: lanes, the queues they make up, and tasks.

A rank is (-priority, first due and serial) of a ticket at a head; the least goes first. Heads
change all the time, mostly for the worse. So a `Ranking` is told only of what may have become
better, and finds out about the rest when it comes to the top.
"""

import heapq
from itertools import count
from typing import Generic, Protocol, TypeVar

__all__ = ["Rank", "Ranked", "Ranking"]

Rank = tuple[int, int]


class Ranked(Protocol):
    """What can be in a ranking, and in one at a time. `listed` is the ranking's own."""

    listed: Rank | None

    def head(self) -> Rank | None:
        """The rank of its first; None: nothing of it may start."""
        ...


T = TypeVar("T", bound=Ranked)


class Ranking(Generic[T]):
    """A heap by rank. Each change costs a logarithm, and a look at the first of many nothing."""

    __slots__ = ("_count", "_heap", "_listed")

    def __init__(self) -> None:
        self._heap: list[tuple[Rank, int, T]] = []
        self._count = count()
        self._listed = 0

    def note(self, item: T) -> bool:
        """The item is new, or its head may have changed; whether it goes earlier than before."""
        rank = item.head()
        if rank is None:
            return False
        listed = item.listed
        if listed is None:
            self._listed += 1
        elif listed <= rank:
            return False
        item.listed = rank
        heapq.heappush(self._heap, (rank, next(self._count), item))
        if len(self._heap) > 2 * self._listed + 16:
            self._compact()
        return True

    def first(self) -> T | None:
        """The item whose head goes first; its `listed` is that head's rank."""
        heap = self._heap
        while heap:
            rank, _, item = heap[0]
            if item.listed != rank:
                heapq.heappop(heap)  # it was listed anew since
                continue
            head = item.head()
            if head == rank:
                return item
            if head is None:
                self.remove_first()
            else:
                item.listed = head
                heapq.heapreplace(heap, (head, next(self._count), item))
        return None

    def first_but_one(self) -> T | None:
        """The item that would go first if the first were not there. There must be a first."""
        heap = self._heap
        top = heapq.heappop(heap)
        while heap and heap[0][2] is top[2]:  # its head was better for a while, and is again this
            heapq.heappop(heap)
        following = self.first()
        heapq.heappush(heap, top)
        return following

    def second(self) -> Rank | None:
        """No item but the first goes before that rank; None: there is no other."""
        following = self._heap[1:3]
        return min(following)[0] if following else None

    def remove_first(self) -> None:
        """Take the first out; `note` brings it back."""
        _, _, item = heapq.heappop(self._heap)
        item.listed = None
        self._listed -= 1

    def remove(self, item: T) -> None:
        """Take one out that is listed, wherever it stands; `note` brings it back."""
        item.listed = None  # what stands of it in the heap goes when it comes to the top
        self._listed -= 1

    def all(self) -> list[T]:
        """Every item that is listed, in no order; the heads of some may be worse than listed."""
        return list(
            {id(item): item for rank, _, item in self._heap if item.listed == rank}.values()
        )

    def head(self) -> Rank | None:
        """The rank of the first; None: there is none."""
        item = self.first()
        return None if item is None else item.listed

    def _compact(self) -> None:
        kept: dict[int, tuple[Rank, int, T]] = {}
        for entry in self._heap:
            if entry[2].listed == entry[0]:
                kept[id(entry[2])] = entry
        self._heap = list(kept.values())
        heapq.heapify(self._heap)
