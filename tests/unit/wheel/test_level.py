"""Slot arithmetic, exhaustively, and the ring's seam."""

import sys

import pytest

from parkade.wheel.level import SPAN_MS, Level, Timer

STARTS_MS = (0, 1, 63, 64, 65, 4_095, 4_096, 65_535, 65_536, 65_537, 1_893_456_000_123, -1, -70_001)


def take_all(level: Level, until_ms: int, due_max: int = sys.maxsize) -> list[Timer]:
    due: list[Timer] = []
    level.take_due(until_ms, due, due_max)
    return due


@pytest.mark.parametrize("start_ms", STARTS_MS)
def test_every_millisecond_of_the_window_comes_back_as_itself(start_ms: int) -> None:
    level = Level(start_ms)
    for offset_ms in range(SPAN_MS):
        assert level.add(start_ms + offset_ms, offset_ms)
    expected = [(start_ms + offset_ms, offset_ms) for offset_ms in range(SPAN_MS)]
    assert level.count == SPAN_MS
    assert [(at_ms, serial) for at_ms, (serial,) in level.buckets()] == expected
    assert take_all(level, start_ms + SPAN_MS - 1) == expected
    assert level.count == 0
    assert level.first_ms() is None


@pytest.mark.parametrize("start_ms", STARTS_MS)
def test_a_lone_timer_is_found_at_every_boundary_of_the_window(start_ms: int) -> None:
    level = Level(start_ms)
    seam_ms = -start_ms % SPAN_MS
    near_the_seam = {(seam_ms + step) % SPAN_MS for step in (-2, -1, 0, 1, 2)}
    for offset_ms in {0, 1, 255, 256, 257, 32_768, SPAN_MS - 2, SPAN_MS - 1} | near_the_seam:
        at_ms = start_ms + offset_ms
        assert level.add(at_ms, 7)
        assert level.first_ms() == at_ms
        assert take_all(level, at_ms - 1) == []
        assert take_all(level, at_ms) == [(at_ms, 7)]
        assert level.first_ms() is None


@pytest.mark.parametrize("start_ms", STARTS_MS)
def test_a_due_outside_the_window_is_refused_and_changes_nothing(start_ms: int) -> None:
    level = Level(start_ms)
    for at_ms in (start_ms - 1, start_ms + SPAN_MS, start_ms - SPAN_MS, start_ms + 2 * SPAN_MS):
        assert not level.add(at_ms, 1)
        assert not level.place(at_ms, [1])
        strays: list[Timer] = []
        level.add_many([(at_ms, 1)], strays)
        assert strays == [(at_ms, 1)]
    assert level.count == 0
    assert level.occupied.count(1) == 0


def test_moving_the_window_forward_moves_no_timer() -> None:
    level = Level(65_000)
    level.add(66_000, 1)
    level.start_ms = 66_000
    assert level.first_ms() == 66_000
    assert level.add(66_000 + SPAN_MS - 1, 2)
    assert take_all(level, 66_000 + SPAN_MS) == [(66_000, 1), (66_000 + SPAN_MS - 1, 2)]
    assert level.visits == 2


def test_taking_stops_at_the_bound_within_a_bucket_and_goes_on_there() -> None:
    level = Level(0)
    for serial in range(5):
        level.add(10, serial)
    level.add(11, 5)
    assert take_all(level, 11, due_max=2) == [(10, 0), (10, 1)]
    assert level.count == 4
    level.add(10, 6)
    assert take_all(level, 11, due_max=1) == [(10, 2)]
    assert take_all(level, 11, due_max=3) == [(10, 3), (10, 4), (10, 6)]
    assert take_all(level, 11, due_max=3) == [(11, 5)]


def test_taking_with_no_room_takes_nothing() -> None:
    level = Level(0)
    level.add(0, 1)
    assert take_all(level, 0, due_max=0) == []
    assert level.count == 1
    assert level.visits == 0


def test_a_free_slot_holds_no_bucket() -> None:
    level = Level(0)
    assert level.chunks.count(None) == len(level.chunks)
    level.add(5, 1)
    assert level.bucket_of(5) == [1]
    take_all(level, 5)
    assert level.chunks.count(None) == len(level.chunks)


def test_a_chunk_of_slots_is_there_as_long_as_one_of_them_holds_a_bucket() -> None:
    level = Level(0)
    for at_ms in (5, 200, 300, 40_000):
        level.add(at_ms, at_ms)
    made = len(level.chunks) - level.chunks.count(None)
    assert take_all(level, 255) == [(5, 5), (200, 200)]
    assert (made, len(level.chunks) - level.chunks.count(None)) == (3, 2)
    assert [bucket for _, bucket in level.buckets()] == [[300], [40_000]]
