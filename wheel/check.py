"""Every invariant of a wheel, asserted. For tests: it looks at the whole wheel."""

from parkade.wheel.level import SLOT_MASK, SPAN_MS, Level
from parkade.wheel.outside import Outside
from parkade.wheel.wheel import Wheel


def check(wheel: Wheel) -> None:
    """Raise AssertionError, with the facts, if any invariant of the wheel does not hold."""
    _check_level(wheel.level)
    _check_outside(wheel.outside)
    start_ms, end_ms = wheel.start_ms, wheel.start_ms + SPAN_MS
    strays = [at_ms for at_ms in wheel.outside.heap if start_ms <= at_ms < end_ms]
    assert not strays, ("timers in the window must be in the level", start_ms, strays)
    timers = list(wheel.items())
    assert len(timers) == len(wheel), (len(timers), len(wheel))
    dues = [at_ms for at_ms, _ in timers]
    assert dues == sorted(dues), "timers are listed in due order"
    assert wheel.next_wake() == (dues[0] if dues else None), (wheel.next_wake(), dues[:1])


def _check_level(level: Level) -> None:
    assert len(level.occupied) == SPAN_MS
    occupied = level.occupied.count(1)
    assert level.occupied.count(0) == SPAN_MS - occupied, "an occupancy byte is 0 or 1"
    held = sum(len(chunk) - chunk.count(None) for chunk in level.chunks if chunk is not None)
    assert held == occupied, "a free slot holds no bucket"
    serials = 0
    for at_ms, bucket in level.buckets():
        assert level.bucket_of(at_ms & SLOT_MASK) is bucket, (at_ms, level.start_ms)
        assert level.start_ms <= at_ms < level.start_ms + SPAN_MS, (at_ms, level.start_ms)
        assert bucket, ("a bucket is never empty", at_ms)
        serials += len(bucket)
    assert serials == level.count, (serials, level.count)


def _check_outside(outside: Outside) -> None:
    heap = outside.heap
    assert len(heap) == len(set(heap)), "a millisecond is in the heap once"
    assert set(heap) == set(outside.slots), (sorted(heap), sorted(outside.slots))
    for child in range(1, len(heap)):
        assert heap[(child - 1) // 2] <= heap[child], ("the heap is out of order", child)
    for at_ms, bucket in outside.slots.items():
        assert bucket, ("a bucket is never empty", at_ms)
    serials = sum(map(len, outside.slots.values()))
    assert serials == outside.count, (serials, outside.count)
