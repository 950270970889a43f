"""What a wheel promises, one sentence each."""

from collections.abc import Iterator

import pytest

from parkade.wheel import SPAN_MS, Timer, Wheel, check

NOW_MS = 1_893_456_000_123  # an odd anchor: no boundary of the window falls on one of the ring's
HOUR_MS, DAY_MS, YEAR_MS = 3_600_000, 86_400_000, 31_536_000_000


def polled(wheel: Wheel, now_ms: int, limit: int | None = None) -> list[Timer]:
    due = wheel.poll(now_ms, limit)
    check(wheel)
    return due


def test_an_empty_wheel_has_nothing_due_and_nothing_to_wake_for() -> None:
    wheel = Wheel(NOW_MS)
    assert polled(wheel, NOW_MS) == []
    assert polled(wheel, NOW_MS + YEAR_MS) == []
    assert wheel.next_wake() is None
    assert len(wheel) == 0
    assert wheel.drain() == []


def test_an_insert_in_the_past_fires_at_the_next_poll() -> None:
    wheel = Wheel(NOW_MS)
    for serial, late_ms in enumerate((1, SPAN_MS - 1, SPAN_MS, SPAN_MS + 1, YEAR_MS)):
        wheel.insert(NOW_MS - late_ms, serial)
        assert wheel.next_wake() == NOW_MS - late_ms
        assert polled(wheel, NOW_MS) == [(NOW_MS - late_ms, serial)]


def test_an_insert_at_the_time_of_the_last_poll_fires_at_the_same_time() -> None:
    wheel = Wheel(NOW_MS)
    assert polled(wheel, NOW_MS + 5) == []
    wheel.insert(NOW_MS + 5, 1)
    assert polled(wheel, NOW_MS + 5) == [(NOW_MS + 5, 1)]


@pytest.mark.parametrize(
    "after_ms", (0, 1, 63, 64, 65, SPAN_MS - 1, SPAN_MS, SPAN_MS + 1, 2_142_720_000, 100 * YEAR_MS)
)
def test_no_timer_fires_early_not_even_by_a_millisecond(after_ms: int) -> None:
    wheel = Wheel(NOW_MS)
    due_ms = NOW_MS + after_ms
    wheel.insert(due_ms, 1)
    for before_ms in (SPAN_MS + 1, SPAN_MS, SPAN_MS - 1, 65, 64, 63, 2, 1):
        assert polled(wheel, due_ms - before_ms) == []
        assert wheel.next_wake() == due_ms
    assert polled(wheel, due_ms) == [(due_ms, 1)]


def test_a_timer_beyond_the_span_waits_for_its_own_turn_of_the_ring() -> None:
    wheel = Wheel(NOW_MS)
    wheel.insert(NOW_MS + 300_000, 1)
    wheel.insert(NOW_MS + 300_000 % SPAN_MS, 2)
    assert polled(wheel, NOW_MS + 300_000 - 1) == [(NOW_MS + 300_000 % SPAN_MS, 2)]
    assert polled(wheel, NOW_MS + 300_000) == [(NOW_MS + 300_000, 1)]


def test_a_timer_one_whole_turn_away_does_not_share_the_slot_of_now() -> None:
    wheel = Wheel(NOW_MS)
    wheel.insert(NOW_MS + SPAN_MS, 1)
    wheel.insert(NOW_MS, 2)
    assert polled(wheel, NOW_MS) == [(NOW_MS, 2)]
    assert wheel.next_wake() == NOW_MS + SPAN_MS
    assert polled(wheel, NOW_MS + SPAN_MS) == [(NOW_MS + SPAN_MS, 1)]


def test_timers_of_one_millisecond_keep_their_order_across_the_edge_of_the_span() -> None:
    wheel = Wheel(NOW_MS)
    due_ms = NOW_MS + SPAN_MS + 10
    wheel.insert(due_ms, 1)
    assert polled(wheel, NOW_MS + 10) == []
    wheel.insert(due_ms, 2)
    assert polled(wheel, NOW_MS + 11) == []
    wheel.insert(due_ms, 3)
    wheel.reanchor(NOW_MS - HOUR_MS)
    wheel.insert(due_ms, 4)
    assert polled(wheel, due_ms) == [(due_ms, serial) for serial in (1, 2, 3, 4)]


def test_a_late_poll_gives_past_near_and_far_in_one_order() -> None:
    wheel = Wheel(NOW_MS)
    dues_ms = [NOW_MS + after_ms for after_ms in (2 * DAY_MS, 5, -9, SPAN_MS, DAY_MS, 5, -9)]
    wheel.insert_many((due_ms, serial) for serial, due_ms in enumerate(dues_ms))
    assert [serial for _, serial in polled(wheel, NOW_MS + YEAR_MS)] == [2, 6, 1, 5, 3, 4, 0]


def test_a_limit_takes_the_first_and_leaves_the_rest_due() -> None:
    wheel = Wheel(NOW_MS)
    timers = [(NOW_MS - 1, 1), (NOW_MS - 1, 2), (NOW_MS + 3, 3), (NOW_MS + 3, 4)]
    timers += [(NOW_MS + DAY_MS, 5), (NOW_MS + DAY_MS, 6), (NOW_MS + YEAR_MS, 7)]
    wheel.insert_many(timers)
    for timer in timers[:-1]:
        assert wheel.next_wake() == timer[0]
        assert polled(wheel, NOW_MS + DAY_MS, limit=1) == [timer]
    assert polled(wheel, NOW_MS + DAY_MS, limit=1) == []
    assert wheel.next_wake() == NOW_MS + YEAR_MS


def test_a_limit_just_met_leaves_the_window_at_now_for_what_comes_next() -> None:
    wheel = Wheel(NOW_MS)
    wheel.insert_many([(NOW_MS + 5, 1), (NOW_MS + 900, 2)])
    assert polled(wheel, NOW_MS + 6, limit=1) == [(NOW_MS + 5, 1)]
    assert wheel.start_ms == NOW_MS + 6
    wheel.insert(NOW_MS + 7, 3)
    assert wheel.level.count == 2


def test_a_limit_that_leaves_work_holds_the_window_at_what_is_left() -> None:
    wheel = Wheel(NOW_MS)
    wheel.insert_many([(NOW_MS + 5, 1), (NOW_MS + 900, 2)])
    assert polled(wheel, NOW_MS + YEAR_MS, limit=1) == [(NOW_MS + 5, 1)]
    assert wheel.start_ms == NOW_MS + 900


def test_a_limit_of_nothing_takes_nothing() -> None:
    wheel = Wheel(NOW_MS)
    wheel.insert(NOW_MS, 1)
    assert polled(wheel, NOW_MS + YEAR_MS, limit=0) == []
    assert wheel.next_wake() == NOW_MS
    assert len(wheel) == 1


def test_a_timer_inserted_between_limited_polls_takes_its_place_in_the_order() -> None:
    wheel = Wheel(NOW_MS)
    wheel.insert_many([(NOW_MS + 5, 1), (NOW_MS + 5, 2), (NOW_MS + 9, 3)])
    assert polled(wheel, NOW_MS + 9, limit=1) == [(NOW_MS + 5, 1)]
    wheel.insert_many([(NOW_MS + 9, 4), (NOW_MS + 4, 5), (NOW_MS + 5, 6), (NOW_MS + 7, 7)])
    assert [serial for _, serial in polled(wheel, NOW_MS + 9)] == [5, 2, 6, 7, 3, 4]


def test_a_clock_set_back_fires_nothing_early_and_loses_nothing() -> None:
    wheel = Wheel(NOW_MS)
    wheel.insert_many([(NOW_MS + 10, 1), (NOW_MS + DAY_MS, 2)])
    assert polled(wheel, NOW_MS + 9) == []
    wheel.insert(NOW_MS - HOUR_MS + 4, 3)
    assert polled(wheel, NOW_MS - HOUR_MS) == []
    assert wheel.next_wake() == NOW_MS - HOUR_MS + 4
    assert polled(wheel, NOW_MS - HOUR_MS + 4) == [(NOW_MS - HOUR_MS + 4, 3)]
    assert polled(wheel, NOW_MS + 9) == []
    assert polled(wheel, NOW_MS + 10) == [(NOW_MS + 10, 1)]
    assert polled(wheel, NOW_MS + DAY_MS) == [(NOW_MS + DAY_MS, 2)]


@pytest.mark.parametrize("step_ms", (-YEAR_MS, -HOUR_MS, -SPAN_MS, -1, 0, 1, SPAN_MS, DAY_MS))
def test_after_reanchoring_every_timer_fires_exactly_when_it_is_due(step_ms: int) -> None:
    wheel = Wheel(NOW_MS)
    dues_ms = [NOW_MS + after_ms for after_ms in (-SPAN_MS, -1, 0, 1, SPAN_MS - 1, SPAN_MS, DAY_MS)]
    wheel.insert_many((due_ms, serial) for serial, due_ms in enumerate(dues_ms))
    wheel.reanchor(NOW_MS + step_ms)
    check(wheel)
    assert wheel.start_ms == NOW_MS + step_ms
    assert len(wheel) == len(dues_ms)
    for serial, due_ms in enumerate(dues_ms):
        assert wheel.next_wake() == due_ms
        assert polled(wheel, due_ms - 1) == []
        assert polled(wheel, due_ms) == [(due_ms, serial)]


def test_a_wheel_begun_in_2037_works_once_the_clock_is_right() -> None:
    wheel = Wheel(NOW_MS + 10 * YEAR_MS)
    wheel.reanchor(NOW_MS)
    wheel.insert(NOW_MS + 100, 1)
    assert wheel.level.count == 1
    assert polled(wheel, NOW_MS + 99) == []
    assert polled(wheel, NOW_MS + 100) == [(NOW_MS + 100, 1)]


def test_polling_backwards_does_not_move_the_window() -> None:
    wheel = Wheel(NOW_MS)
    assert polled(wheel, NOW_MS - YEAR_MS) == []
    assert wheel.start_ms == NOW_MS


def test_draining_gives_every_timer_in_order_and_leaves_an_empty_wheel() -> None:
    wheel = Wheel(NOW_MS)
    timers = [(NOW_MS + DAY_MS, 1), (NOW_MS + 2, 2), (NOW_MS - 7, 3), (NOW_MS + 2, 4)]
    wheel.insert_many(timers)
    in_order = sorted(timers, key=lambda timer: timer[0])
    assert list(wheel.items()) == in_order
    assert len(wheel) == len(timers)
    assert wheel.drain() == in_order
    check(wheel)
    assert len(wheel) == 0
    assert wheel.next_wake() is None
    wheel.insert_many(in_order)
    assert polled(wheel, NOW_MS + DAY_MS) == in_order


def test_a_cleared_wheel_forgets_its_timers_and_takes_new_ones() -> None:
    wheel = Wheel(NOW_MS)
    wheel.insert_many([(NOW_MS - 1, 1), (NOW_MS + 1, 2), (NOW_MS + DAY_MS, 3)])
    wheel.clear()
    check(wheel)
    assert len(wheel) == 0
    wheel.insert(NOW_MS + 1, 4)
    assert polled(wheel, NOW_MS + DAY_MS) == [(NOW_MS + 1, 4)]


def test_a_serial_inserted_twice_fires_twice() -> None:
    wheel = Wheel(NOW_MS)
    wheel.insert_many([(NOW_MS + 1, 1), (NOW_MS + 1, 1), (NOW_MS + 2, 1)])
    assert polled(wheel, NOW_MS + 2) == [(NOW_MS + 1, 1), (NOW_MS + 1, 1), (NOW_MS + 2, 1)]


def test_serials_and_dues_of_any_size_and_sign_come_back_as_they_were() -> None:
    wheel = Wheel(-5)
    timers = [(-(2**70), 2**80), (-5, -1), (0, 0), (2**70, 2**64)]
    wheel.insert_many(timers)
    assert polled(wheel, 2**70) == timers


@pytest.mark.parametrize("at_ms", (float("nan"), float("inf"), float("-inf"), NOW_MS + 0.5))
def test_a_due_that_is_no_integer_is_refused_and_changes_nothing(at_ms: float) -> None:
    wheel = Wheel(NOW_MS)
    with pytest.raises(TypeError):
        wheel.insert(at_ms, 1)  # type: ignore[arg-type]
    with pytest.raises(TypeError):
        wheel.insert_many([(at_ms, 1)])  # type: ignore[list-item]
    check(wheel)
    assert len(wheel) == 0


def test_when_the_giver_of_timers_raises_those_before_are_in_the_wheel() -> None:
    def timers() -> Iterator[Timer]:
        yield NOW_MS + 1, 1
        yield NOW_MS + DAY_MS, 2
        raise KeyError("broken")

    wheel = Wheel(NOW_MS)
    with pytest.raises(KeyError, match="broken"):
        wheel.insert_many(timers())
    check(wheel)
    assert list(wheel.items()) == [(NOW_MS + 1, 1), (NOW_MS + DAY_MS, 2)]


def test_a_negative_limit_is_our_own_mistake() -> None:
    with pytest.raises(AssertionError):
        Wheel(NOW_MS).poll(NOW_MS, limit=-1)
