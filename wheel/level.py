"""The wheel's one level: a window of 65,536 milliseconds, one slot for each.

A slot holds the serials due at its millisecond, in the order they came, and exists as a list only
while it holds some. Slots come in chunks, which are made when a timer needs them: all of them take
half a megabyte, which a wheel that nothing is due in does without. Beside the slots lies one byte a
slot, 1 where it is occupied: the next occupied slot is one search for a byte. The level knows
serials and milliseconds, and no clock.
"""

from collections import deque
from collections.abc import Iterable, Iterator
from itertools import chain, repeat
from operator import index
from typing import Final, TypeAlias

SPAN_MS: Final = 65_536
"""How many milliseconds, and so slots, a level spans. A power of two: a slot is a mask away."""

SLOT_MASK: Final = SPAN_MS - 1
CHUNK_BITS: Final = 8
CHUNK_MASK: Final = (1 << CHUNK_BITS) - 1
CHUNKS: Final = SPAN_MS >> CHUNK_BITS

Timer: TypeAlias = tuple[int, int]
"""(due in ms, serial)."""

Bucket: TypeAlias = list[int] | deque[int]
"""The serials due at one millisecond, in order of insertion; never empty while it is kept."""

Chunk: TypeAlias = list[Bucket | None]
"""The slots of 256 milliseconds."""


class Level:
    """The timers due in [start_ms, start_ms + SPAN_MS); each occupied slot is one millisecond.

    The window is a ring: a slot is the low bits of its millisecond, so moving the window forward
    moves no timer. Occupancy is a byte a slot and not a bit, because a search through bytes runs at
    memory speed, where bits cost several integers for each step: half the time of a two-level
    bitmap on insert and on search, for 64 KiB a wheel.
    """

    __slots__ = ("chunks", "count", "occupied", "start_ms", "visits")

    def __init__(self, start_ms: int) -> None:
        """An empty level whose window begins at start_ms."""
        self.start_ms = start_ms
        self.visits = 0
        self.chunks: list[Chunk | None]
        self.clear()

    def add(self, at_ms: int, serial: int) -> bool:
        """Keep the timer and say True; False, changing nothing, when at_ms is not in the window.

        Raises TypeError for a due in the window that is no integer.
        """
        if not 0 <= at_ms - self.start_ms < SPAN_MS:
            return False
        slot = at_ms & SLOT_MASK
        chunk = self.chunks[slot >> CHUNK_BITS] or self._make_chunk(slot)
        bucket = chunk[slot & CHUNK_MASK]
        if bucket is None:
            chunk[slot & CHUNK_MASK] = [serial]
            self.occupied[slot] = 1
        else:
            bucket.append(serial)
        self.count += 1
        return True

    def add_many(self, timers: Iterable[Timer], strays: list[Timer]) -> None:
        """Keep the timers whose due is in the window and add the others to the end of strays.

        Raises TypeError at the first due that is no integer.
        """
        start_ms, chunks, occupied = self.start_ms, self.chunks, self.occupied
        kept = 0
        try:
            for at_ms, serial in timers:
                if not 0 <= at_ms - start_ms < SPAN_MS:
                    strays.append((index(at_ms), serial))
                    continue
                slot = at_ms & SLOT_MASK
                chunk = chunks[slot >> CHUNK_BITS] or self._make_chunk(slot)
                bucket = chunk[slot & CHUNK_MASK]
                if bucket is None:
                    chunk[slot & CHUNK_MASK] = [serial]
                    occupied[slot] = 1
                else:
                    bucket.append(serial)
                kept += 1
        finally:
            self.count += kept

    def place(self, at_ms: int, bucket: Bucket) -> bool:
        """Take over a whole bucket, for a slot that is free; False when outside the window."""
        if not 0 <= at_ms - self.start_ms < SPAN_MS:
            return False
        slot = at_ms & SLOT_MASK
        chunk = self.chunks[slot >> CHUNK_BITS] or self._make_chunk(slot)
        assert chunk[slot & CHUNK_MASK] is None, (at_ms, self.start_ms)
        chunk[slot & CHUNK_MASK] = bucket
        self.occupied[slot] = 1
        self.count += len(bucket)
        self.visits += 1
        return True

    def first_ms(self) -> int | None:
        """The earliest due in the window, exactly; None when the level is empty."""
        if not self.count:
            return None
        first = self.start_ms & SLOT_MASK
        slot = self.occupied.find(1, first)
        if slot < 0:
            slot = self.occupied.find(1, 0, first)
        return self.start_ms + ((slot - first) & SLOT_MASK)

    def take_due(self, until_ms: int, due: list[Timer], due_max: int) -> None:
        """Move the timers due at or before until_ms to the end of due, until it has due_max."""
        if not self.count:
            return
        chunks, occupied, find = self.chunks, self.occupied, self.occupied.find
        held, visits = len(due), 0
        for low, high, turn_ms in self._stretches(until_ms):
            slot = find(1, low, high)
            while slot >= 0 and len(due) < due_max:
                chunk, place = chunks[slot >> CHUNK_BITS], slot & CHUNK_MASK
                assert chunk is not None, (slot, self.start_ms)
                bucket = chunk[place]
                assert bucket is not None, (slot, self.start_ms)
                visits += 1
                if len(bucket) == 1:
                    due.append((turn_ms + slot, bucket[0]))
                elif len(bucket) <= due_max - len(due):
                    due.extend(zip(repeat(turn_ms + slot), bucket))
                else:
                    chunk[place] = take_front(turn_ms + slot, bucket, due, due_max)
                    break
                chunk[place] = None
                occupied[slot] = 0
                slot = find(1, slot + 1, high)
            self._let_go(low, high)
        self.count -= len(due) - held
        self.visits += visits
        if not self.count:
            self.chunks = [None] * CHUNKS

    def buckets(self) -> Iterator[tuple[int, Bucket]]:
        """Each occupied millisecond with its serials, in due order."""
        for low, high, turn_ms in self._stretches(self.start_ms + SLOT_MASK):
            slot = self.occupied.find(1, low, high)
            while slot >= 0:
                yield turn_ms + slot, self.bucket_of(slot)
                slot = self.occupied.find(1, slot + 1, high)

    def clear(self) -> None:
        """Forget every timer; the window stays where it is."""
        self.count = 0
        self.chunks = [None] * CHUNKS
        self.occupied = bytearray(SPAN_MS)

    def bucket_of(self, slot: int) -> Bucket:
        """The bucket of a slot that is occupied."""
        chunk = self.chunks[slot >> CHUNK_BITS]
        bucket = None if chunk is None else chunk[slot & CHUNK_MASK]
        assert bucket is not None, (slot, self.start_ms)
        return bucket

    def _let_go(self, low: int, high: int) -> None:
        """Forgets the chunks that end between two slots, and hold nothing."""
        for number in range(low >> CHUNK_BITS, high >> CHUNK_BITS):
            first = number << CHUNK_BITS
            if self.occupied.find(1, first, first + CHUNK_MASK + 1) < 0:
                self.chunks[number] = None

    def _make_chunk(self, slot: int) -> Chunk:
        chunk: Chunk = [None] * (CHUNK_MASK + 1)
        self.chunks[slot >> CHUNK_BITS] = chunk
        return chunk

    def _stretches(self, until_ms: int) -> tuple[tuple[int, int, int], tuple[int, int, int]]:
        """The slots from the window's start to until_ms, as (low, high, ms of slot 0) twice.

        The second stretch lies past the ring's seam and may be empty.
        """
        low = self.start_ms & SLOT_MASK
        end = low + min(until_ms - self.start_ms + 1, SPAN_MS)
        turn_ms = self.start_ms - low
        return (low, min(end, SPAN_MS), turn_ms), (0, max(end - SPAN_MS, 0), turn_ms + SPAN_MS)


def take_front(at_ms: int, bucket: Bucket, due: list[Timer], due_max: int) -> Bucket:
    """Move serials from the bucket's front to due until that has due_max; give what is left.

    What is left is a deque: a bucket of a million taken a thousand at a time is copied once, not
    shifted a thousand times.
    """
    rest = bucket if isinstance(bucket, deque) else deque(bucket)
    due.extend((at_ms, rest.popleft()) for _ in range(due_max - len(due)))
    return rest


def flatten(buckets: Iterable[tuple[int, Bucket]]) -> Iterator[Timer]:
    """The timers of the buckets, one by one, in the order given."""
    return chain.from_iterable(zip(repeat(at_ms), bucket) for at_ms, bucket in buckets)
