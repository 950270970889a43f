"""The manual clock: it stands, it is moved, and whoever waits on it is let go."""

import threading
from datetime import UTC, datetime, timedelta

import pytest

from parkade import ConfigError, Engine, NaiveDatetime
from parkade.testing import ManualClock

NOON = datetime(2031, 3, 1, 12, tzinfo=UTC)


def test_a_clock_stands_until_it_is_moved() -> None:
    clock = ManualClock(NOON)
    before = clock.now_ms(), clock.monotonic_ms()
    assert (clock.now_ms(), clock.monotonic_ms()) == before
    assert clock.now() == NOON


def test_two_clocks_begin_at_the_same_moment_unless_told_another() -> None:
    assert ManualClock().now_ms() == ManualClock().now_ms()
    assert ManualClock(NOON).now() == NOON


def test_a_start_without_a_zone_is_refused() -> None:
    with pytest.raises(NaiveDatetime, match=r"ManualClock\(start=2031-03-01T00:00\)"):
        ManualClock(datetime(2031, 3, 1))


def test_advancing_moves_both_clocks_alike() -> None:
    clock = ManualClock(NOON)
    mono_ms = clock.monotonic_ms()
    clock.advance("30d")
    assert clock.now() == NOON + timedelta(days=30)
    assert clock.monotonic_ms() - mono_ms == 30 * 86_400_000


def test_stepping_moves_the_wall_clock_alone_and_both_ways() -> None:
    clock = ManualClock(NOON)
    mono_ms = clock.monotonic_ms()
    clock.step_wall(timedelta(hours=-3))
    assert clock.now() == NOON - timedelta(hours=3)
    clock.step_wall(timedelta(hours=4))
    assert clock.now() == NOON + timedelta(hours=1)
    assert clock.monotonic_ms() == mono_ms


@pytest.mark.parametrize("by", ["-1s", -1, "soon", float("nan"), "9000y"])
def test_what_is_no_duration_moves_nothing(by: object) -> None:
    clock = ManualClock(NOON)
    with pytest.raises(ConfigError, match=r"clock\.advance"):
        clock.advance(by)  # type: ignore[arg-type]
    assert clock.now() == NOON


@pytest.mark.parametrize("days", [-400_000, 4_000_000])
def test_the_wall_clock_is_not_stepped_out_of_the_calendar(days: int) -> None:
    clock = ManualClock(NOON)
    with pytest.raises(ConfigError, match=r"clock\.step_wall"):
        clock.step_wall(timedelta(days=days))
    assert clock.now() == NOON


def test_a_wait_ends_with_its_event_or_with_its_time() -> None:
    clock = ManualClock(NOON)
    event = threading.Event()
    assert clock.wait(event, 0) is False
    waited: list[bool] = []
    thread = threading.Thread(target=lambda: waited.append(clock.wait(event, 60_000)))
    thread.start()
    clock.advance("1m")
    thread.join(20)
    assert waited == [False]
    event.set()
    assert clock.wait(event, 60_000) is True
    assert clock.wait(event, None) is True


def test_an_engine_with_threads_takes_a_manual_clock_too(tmp_path: object) -> None:
    clock = ManualClock(NOON)
    with Engine(f"{tmp_path}/data", shards=1, durability="memory", clock=clock) as engine:

        @engine.task
        def greet(name: str) -> str:
            return f"hi {name}"

        ticket = greet.options(delay="30d").submit("ann")
        assert ticket.info().state == "scheduled"
        clock.advance("30d")
        assert ticket.result(timeout=20) == "hi ann"
