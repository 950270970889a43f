"""A check that cannot fail proves nothing: each kind of damage is noticed."""

from collections.abc import Callable

import pytest

from parkade.wheel import SPAN_MS, Wheel, check


def mark_a_free_slot(wheel: Wheel) -> None:
    wheel.level.occupied[99] = 1


def unmark_an_occupied_slot(wheel: Wheel) -> None:
    wheel.level.occupied[5] = 0


def mark_with_a_strange_byte(wheel: Wheel) -> None:
    wheel.level.occupied[5] = 2


def empty_a_bucket(wheel: Wheel) -> None:
    wheel.level._make_chunk(5)[5] = []
    wheel.level.count -= 1


def miscount_the_level(wheel: Wheel) -> None:
    wheel.level.count += 1


def miscount_outside(wheel: Wheel) -> None:
    wheel.outside.count -= 1


def leave_a_near_timer_outside(wheel: Wheel) -> None:
    wheel.outside.add(6, 9)


def lose_a_far_bucket(wheel: Wheel) -> None:
    del wheel.outside.slots[SPAN_MS + 1]


def empty_a_far_bucket(wheel: Wheel) -> None:
    wheel.outside.slots[SPAN_MS + 1].clear()
    wheel.outside.count -= 1


def disorder_the_heap(wheel: Wheel) -> None:
    wheel.outside.heap.reverse()


def repeat_a_heap_entry(wheel: Wheel) -> None:
    wheel.outside.heap.append(wheel.outside.heap[-1])


@pytest.mark.parametrize(
    "damage",
    (
        mark_a_free_slot,
        unmark_an_occupied_slot,
        mark_with_a_strange_byte,
        empty_a_bucket,
        miscount_the_level,
        miscount_outside,
        leave_a_near_timer_outside,
        lose_a_far_bucket,
        empty_a_far_bucket,
        disorder_the_heap,
        repeat_a_heap_entry,
    ),
)
def test_check_notices_each_kind_of_damage(damage: Callable[[Wheel], None]) -> None:
    wheel = Wheel(0)
    wheel.insert_many([(5, 1), (SPAN_MS + 1, 2), (SPAN_MS + 2, 3), (-1, 4)])
    check(wheel)
    damage(wheel)
    with pytest.raises(AssertionError):
        check(wheel)
