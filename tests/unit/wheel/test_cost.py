"""What a wheel costs, counted in buckets visited and bytes kept, never in time."""

import tracemalloc

import pytest

from parkade.wheel import SPAN_MS, Wheel, check

NOW_MS = 1_893_456_000_123
YEAR_MS = 31_536_000_000


def test_an_idle_wheel_visits_nothing_however_long_it_is_polled() -> None:
    wheel = Wheel(NOW_MS)
    wheel.insert(NOW_MS + SPAN_MS - 1, 1)
    for now_ms in range(NOW_MS, NOW_MS + 5_000):
        assert wheel.poll(now_ms) == []
        assert wheel.next_wake() == NOW_MS + SPAN_MS - 1
    assert wheel.visits == 0


@pytest.mark.parametrize("jump_ms", (1_000, SPAN_MS, 86_400_000, YEAR_MS, 100 * YEAR_MS))
def test_a_jump_of_the_clock_costs_only_what_is_due(jump_ms: int) -> None:
    wheel = Wheel(NOW_MS)
    wheel.insert_many((NOW_MS + 100 * serial, serial) for serial in range(10))
    assert len(wheel.poll(NOW_MS + jump_ms)) == 10
    assert wheel.visits == 10


@pytest.mark.parametrize("others", (0, 10, 1_000, 100_000))
def test_the_cost_of_a_poll_is_the_same_however_many_timers_are_not_due(others: int) -> None:
    wheel = Wheel(NOW_MS)
    wheel.insert_many((NOW_MS + 1_000 + serial % 60_000, serial) for serial in range(others))
    wheel.insert_many((NOW_MS + 1 + serial, serial) for serial in range(7))
    assert wheel.visits == 0, "an insert visits no bucket but its own"
    assert len(wheel.poll(NOW_MS + 500)) == 7
    assert wheel.visits == 7


def test_timers_that_share_a_millisecond_are_taken_in_one_visit() -> None:
    wheel = Wheel(NOW_MS)
    wheel.insert_many((NOW_MS + 5, serial) for serial in range(50_000))
    assert len(wheel.poll(NOW_MS + 5)) == 50_000
    assert wheel.visits == 1


def test_a_far_timer_moves_once_and_whole_milliseconds_at_a_time() -> None:
    wheel = Wheel(NOW_MS)
    wheel.insert_many((NOW_MS + YEAR_MS, serial) for serial in range(1_000))
    for step in range(1, 20):
        assert wheel.poll(NOW_MS + YEAR_MS * step // 20) == []
    assert wheel.visits == 0
    assert wheel.poll(NOW_MS + YEAR_MS - SPAN_MS) == []
    assert wheel.visits == 0
    assert wheel.poll(NOW_MS + YEAR_MS - SPAN_MS + 1) == []
    assert wheel.visits == 2  # taken from outside, placed in the level
    assert len(wheel.poll(NOW_MS + YEAR_MS)) == 1_000
    assert wheel.visits == 3


def test_a_far_timer_met_by_a_jump_is_not_moved_first() -> None:
    wheel = Wheel(NOW_MS)
    wheel.insert_many((NOW_MS + SPAN_MS + serial, serial) for serial in range(1_000))
    assert len(wheel.poll(NOW_MS + YEAR_MS)) == 1_000
    assert wheel.visits == 1_000


def test_a_full_millisecond_taken_in_small_limits_is_copied_once() -> None:
    wheel = Wheel(NOW_MS)
    wheel.insert_many((NOW_MS, serial) for serial in range(10_000))
    taken = wheel.poll(NOW_MS, limit=10)
    rest = next(bucket for _, bucket in wheel.level.buckets())
    for _ in range(998):
        taken += wheel.poll(NOW_MS, limit=10)
        assert next(bucket for _, bucket in wheel.level.buckets()) is rest
    taken += wheel.poll(NOW_MS, limit=10)
    check(wheel)
    assert taken == [(NOW_MS, serial) for serial in range(10_000)]
    assert wheel.visits == 1_000


def test_reanchoring_costs_a_move_for_each_occupied_millisecond() -> None:
    wheel = Wheel(NOW_MS)
    wheel.insert_many((NOW_MS + serial % 10, serial) for serial in range(1_000))
    wheel.reanchor(NOW_MS - YEAR_MS)
    assert wheel.visits == 10


def test_an_empty_slot_costs_little_more_than_a_byte_and_a_timer_about_a_hundred() -> None:
    tracemalloc.start()
    try:
        before = tracemalloc.get_traced_memory()[0]
        wheel = Wheel(NOW_MS)
        empty = tracemalloc.get_traced_memory()[0] - before
        wheel.insert_many((NOW_MS + serial, serial) for serial in range(10_000))
        full = tracemalloc.get_traced_memory()[0] - before
    finally:
        tracemalloc.stop()
    assert empty < SPAN_MS + 8_192
    assert full - empty < 110 * 10_000


def test_a_wheel_that_was_full_and_is_empty_again_keeps_no_bucket() -> None:
    wheel = Wheel(NOW_MS)
    for turn in range(3):
        start_ms = NOW_MS + turn * SPAN_MS
        wheel.insert_many((start_ms + serial % SPAN_MS, serial) for serial in range(70_000))
        assert len(wheel.poll(start_ms + SPAN_MS)) == 70_000
        assert all(chunk is None or not any(chunk) for chunk in wheel.level.chunks)
        assert wheel.outside.slots == {}
