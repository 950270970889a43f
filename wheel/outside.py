"""The timers outside the level's window: already past when they came, or beyond its span.

Both are rare by contract, so a sparse shape will do: a dict of buckets and a heap of their
milliseconds. A timer costs an append, and only a new millisecond costs a step of the heap.
"""

from collections.abc import Iterator
from heapq import heappop, heappush
from operator import index

from parkade.wheel.level import Bucket, Timer, take_front


class Outside:
    """Buckets at any milliseconds, found by the earliest."""

    __slots__ = ("count", "heap", "slots", "visits")

    def __init__(self) -> None:
        self.count = 0
        self.visits = 0
        self.slots: dict[int, Bucket] = {}
        self.heap: list[int] = []

    def add(self, at_ms: int, serial: int) -> None:
        """Keep the timer. Raises TypeError for a due that is no integer: NaN would break order."""
        bucket = self.slots.get(at_ms)
        if bucket is None:
            self.slots[index(at_ms)] = [serial]
            heappush(self.heap, at_ms)
        else:
            bucket.append(serial)
        self.count += 1

    def place(self, at_ms: int, bucket: Bucket) -> None:
        """Take over a whole bucket, of a millisecond that is not here yet."""
        assert at_ms not in self.slots, at_ms
        self.slots[at_ms] = bucket
        heappush(self.heap, at_ms)
        self.count += len(bucket)
        self.visits += 1

    def first_ms(self) -> int | None:
        """The earliest due, exactly; None when there is no timer here."""
        return self.heap[0] if self.heap else None

    def pop_first(self) -> tuple[int, Bucket]:
        """Hand over the earliest bucket, whole."""
        at_ms = heappop(self.heap)
        bucket = self.slots.pop(at_ms)
        self.count -= len(bucket)
        self.visits += 1
        return at_ms, bucket

    def take_due(self, until_ms: int, due: list[Timer], due_max: int) -> None:
        """Move the timers due at or before until_ms to the end of due, until it has due_max."""
        while self.heap and self.heap[0] <= until_ms and len(due) < due_max:
            at_ms = self.heap[0]
            bucket = self.slots[at_ms]
            room = due_max - len(due)
            if len(bucket) <= room:
                self.pop_first()
                due.extend((at_ms, serial) for serial in bucket)
            else:
                self.slots[at_ms] = take_front(at_ms, bucket, due, due_max)
                self.count -= room
                self.visits += 1

    def buckets(self) -> Iterator[tuple[int, Bucket]]:
        """Each millisecond with its serials, in no order."""
        return iter(self.slots.items())

    def clear(self) -> None:
        """Forget every timer."""
        self.count = 0
        self.slots.clear()
        self.heap.clear()
