"""Timers before the window or beyond it, by millisecond."""

import sys

import pytest

from parkade.wheel.level import Timer
from parkade.wheel.outside import Outside


def test_timers_come_back_by_due_then_by_insertion() -> None:
    outside = Outside()
    for at_ms, serial in ((900, 1), (-3, 2), (900, 3), (10**15, 4), (-3, 5)):
        outside.add(at_ms, serial)
    due: list[Timer] = []
    outside.take_due(10**15, due, sys.maxsize)
    assert due == [(-3, 2), (-3, 5), (900, 1), (900, 3), (10**15, 4)]
    assert outside.count == 0
    assert outside.first_ms() is None


def test_one_millisecond_is_in_the_heap_once_however_many_timers_share_it() -> None:
    outside = Outside()
    for serial in range(1_000):
        outside.add(7, serial)
    assert outside.heap == [7]
    assert outside.count == 1_000
    at_ms, bucket = outside.pop_first()
    assert (at_ms, list(bucket)) == (7, list(range(1_000)))
    assert outside.visits == 1


def test_taking_stops_at_the_bound_within_a_bucket_and_goes_on_there() -> None:
    outside = Outside()
    for serial in range(4):
        outside.add(7, serial)
    due: list[Timer] = []
    outside.take_due(7, due, 3)
    outside.add(7, 9)
    assert due == [(7, 0), (7, 1), (7, 2)]
    assert outside.count == 2
    outside.take_due(7, due, 5)
    assert due[3:] == [(7, 3), (7, 9)]


@pytest.mark.parametrize("at_ms", (float("nan"), float("inf"), 7.5))
def test_a_due_that_is_no_integer_is_refused_and_changes_nothing(at_ms: float) -> None:
    outside = Outside()
    with pytest.raises(TypeError):
        outside.add(at_ms, 1)  # type: ignore[arg-type]
    assert outside.count == 0
    assert outside.heap == []
    assert outside.slots == {}
