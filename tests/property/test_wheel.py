"""A wheel against a sorted list, at every boundary of its window and of its ring."""

from bisect import bisect_right

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from parkade.wheel import SPAN_MS, Timer, Wheel, check

EDGES_MS = (0, 1, 63, 64, 65, 255, 256, 4_095, 4_096, SPAN_MS - 1, SPAN_MS, SPAN_MS + 1)
OFFSETS_MS = sorted({edge + step for edge in EDGES_MS for step in (-1, 0, 1)} | {2 * SPAN_MS})
ANCHORS_MS = (0, 1, 63, 64, 4_095, SPAN_MS - 1, SPAN_MS, SPAN_MS + 1, 1_893_456_000_123, -77_777)

anchors = st.one_of(st.sampled_from(ANCHORS_MS), st.integers(-(2**44), 2**44))
offsets = st.one_of(
    st.sampled_from(OFFSETS_MS),
    st.sampled_from(OFFSETS_MS).map(lambda offset_ms: -offset_ms),
    st.integers(-70_000, 140_000),
    st.integers(-(10**11), 10**11),
)


def due_order(timers: list[Timer]) -> list[Timer]:
    return sorted(timers, key=lambda timer: timer[0])


def split(timers: list[Timer], now_ms: int) -> tuple[list[Timer], list[Timer]]:
    """What a sorted list would give at now_ms, and what it would keep."""
    ordered = due_order(timers)
    cut = bisect_right(ordered, now_ms, key=lambda timer: timer[0])
    return ordered[:cut], ordered[cut:]


@pytest.mark.parametrize("anchor_ms", ANCHORS_MS)
def test_one_poll_at_each_boundary_agrees_with_a_sorted_list(anchor_ms: int) -> None:
    timers = [(anchor_ms + offset_ms, serial) for serial, offset_ms in enumerate(OFFSETS_MS)]
    timers += [(at_ms, serial + 1_000) for at_ms, serial in reversed(timers)]
    for poll_ms in OFFSETS_MS:
        wheel = Wheel(anchor_ms)
        wheel.insert_many(timers)
        due, kept = split(timers, anchor_ms + poll_ms)
        assert wheel.poll(anchor_ms + poll_ms) == due
        check(wheel)
        assert wheel.next_wake() == (kept[0][0] if kept else None)
        assert wheel.drain() == kept


@pytest.mark.parametrize("anchor_ms", ANCHORS_MS)
def test_polls_from_boundary_to_boundary_agree_with_a_sorted_list(anchor_ms: int) -> None:
    for step_ms in EDGES_MS[1:]:
        wheel = Wheel(anchor_ms)
        kept = [(anchor_ms + offset_ms, serial) for serial, offset_ms in enumerate(OFFSETS_MS)]
        wheel.insert_many(kept)
        now_ms = anchor_ms - 1
        for _ in range(40):
            due, kept = split(kept, now_ms)
            assert wheel.poll(now_ms) == due
            serial = now_ms - anchor_ms
            fresh = [(now_ms + offset_ms, serial) for offset_ms in (-1, 0, 1, step_ms, SPAN_MS)]
            wheel.insert_many(fresh)
            kept += fresh
            now_ms += step_ms
        check(wheel)
        assert wheel.drain() == due_order(kept)


@given(anchor_ms=anchors, dues=st.lists(offsets, max_size=60), poll_offset_ms=offsets)
@settings(max_examples=200, deadline=None)
def test_any_timers_at_any_poll_agree_with_a_sorted_list(
    anchor_ms: int, dues: list[int], poll_offset_ms: int
) -> None:
    wheel = Wheel(anchor_ms)
    timers = [(anchor_ms + due, serial) for serial, due in enumerate(dues)]
    for at_ms, serial in timers:
        wheel.insert(at_ms, serial)
    check(wheel)
    due, kept = split(timers, anchor_ms + poll_offset_ms)
    assert wheel.poll(anchor_ms + poll_offset_ms) == due
    check(wheel)
    assert list(wheel.items()) == kept


@given(anchor_ms=anchors, dues=st.lists(offsets, max_size=60))
@settings(max_examples=100, deadline=None)
def test_sleeping_until_each_next_wake_fires_every_timer_exactly_when_due(
    anchor_ms: int, dues: list[int]
) -> None:
    wheel = Wheel(anchor_ms)
    wheel.insert_many((anchor_ms + due, serial) for serial, due in enumerate(dues))
    fired: list[Timer] = []
    while (wake_ms := wheel.next_wake()) is not None:
        assert wheel.poll(wake_ms - 1) == []
        due = wheel.poll(wake_ms)
        assert due
        assert {at_ms for at_ms, _ in due} == {wake_ms}
        fired += due
    check(wheel)
    assert fired == due_order([(anchor_ms + due, serial) for serial, due in enumerate(dues)])


@given(
    anchor_ms=anchors,
    dues=st.lists(st.one_of(st.integers(-3, 3), offsets), max_size=60),
    now_offset_ms=offsets,
    limits=st.lists(st.integers(0, 7), max_size=30),
)
@settings(max_examples=200, deadline=None)
def test_limited_polls_give_together_what_one_poll_would(
    anchor_ms: int, dues: list[int], now_offset_ms: int, limits: list[int]
) -> None:
    wheel = Wheel(anchor_ms)
    timers = [(anchor_ms + due, serial) for serial, due in enumerate(dues)]
    wheel.insert_many(timers)
    now_ms = anchor_ms + now_offset_ms
    due, kept = split(timers, now_ms)
    taken: list[Timer] = []
    for limit in limits:
        part = wheel.poll(now_ms, limit)
        assert len(part) == min(limit, len(due) - len(taken))
        taken += part
        check(wheel)
        left = due[len(taken) :] or kept
        assert wheel.next_wake() == (left[0][0] if left else None)
    assert taken + wheel.poll(now_ms) == due
    assert wheel.drain() == kept


@given(anchor_ms=anchors, dues=st.lists(offsets, max_size=40), steps=st.lists(offsets, max_size=6))
@settings(max_examples=100, deadline=None)
def test_the_clock_may_be_set_anywhere_and_no_timer_notices(
    anchor_ms: int, dues: list[int], steps: list[int]
) -> None:
    wheel = Wheel(anchor_ms)
    timers = [(anchor_ms + due, serial) for serial, due in enumerate(dues)]
    for turn, step_ms in enumerate(steps):
        wheel.insert_many(timers[turn :: len(steps)])
        wheel.reanchor(anchor_ms + step_ms)
        check(wheel)
    inserted = [timer for turn in range(len(steps)) for timer in timers[turn :: len(steps)]]
    assert wheel.drain() == due_order(inserted)


@given(st.lists(st.tuples(offsets, st.integers(0, 3)), max_size=60))
@settings(max_examples=100, deadline=None)
def test_inserting_many_is_inserting_each_in_turn(timers: list[Timer]) -> None:
    together, apart = Wheel(0), Wheel(0)
    together.insert_many(iter(timers))
    for at_ms, serial in timers:
        apart.insert(at_ms, serial)
    check(together)
    assert len(together) == len(apart) == len(timers)
    assert together.level.count == apart.level.count
    assert together.drain() == apart.drain()
