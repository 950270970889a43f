"""The clocks: what the machine says, and what the settled clock believes of it."""

import threading
import time

import pytest

from parkade.clock import (
    HOLD_MS,
    Clock,
    MonoMs,
    SettledClock,
    SettledMs,
    SystemClock,
    WallMs,
)

DAY, HOUR, MINUTE = 86_400_000, 3_600_000, 60_000
START = 1_800_000_000_000


class Machine:
    """A wall clock that can be set, a monotonic clock, and a settled clock that watches both."""

    def __init__(self, settled: int | None = START, wall: int = START, mono: int = 5_000) -> None:
        self.wall, self.mono = wall, mono
        start = None if settled is None else SettledMs(settled)
        self.clock = SettledClock(start, WallMs(wall), MonoMs(mono))

    def run(self, ms: int) -> int:
        self.wall += ms
        self.mono += ms
        return self.read()

    def set(self, by: int) -> int:
        self.wall += by
        return self.read()

    def read(self) -> int:
        return self.clock.read(WallMs(self.wall), MonoMs(self.mono))


def test_the_system_clock_counts_milliseconds_and_waits_for_an_event() -> None:
    clock: Clock = SystemClock()
    assert clock.now_ms() > 1_700_000_000_000
    first = clock.monotonic_ms()
    assert clock.monotonic_ms() >= first
    event = threading.Event()
    assert not clock.wait(event, 0)
    assert not clock.wait(event, -5)
    event.set()
    assert clock.wait(event, None)
    assert clock.wait(event, 10**18)


def test_a_wait_until_a_deadline_ends_as_its_millisecond_begins(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    class Waits(threading.Event):
        timeout_s: float | None = None

        def wait(self, timeout: float | None = None) -> bool:
            self.timeout_s = timeout
            return False

    event, clock = Waits(), SystemClock()
    monkeypatch.setattr(time, "time_ns", lambda: START * 1_000_000 + 700_000)
    assert clock.now_ms() == START
    assert not clock.wait(event, 5)
    assert event.timeout_s is not None and round(1e6 * event.timeout_s) == 4_300


def test_an_honest_wall_clock_is_followed() -> None:
    machine = Machine()
    for _ in range(5):
        assert machine.run(7 * MINUTE) == machine.wall
    assert not machine.clock.is_following_uptime


def test_a_new_directory_begins_with_the_wall_clock() -> None:
    assert Machine(settled=None, wall=START + 999 * DAY).clock.now == START + 999 * DAY


def test_an_engine_that_was_down_for_a_day_believes_the_clock_at_once() -> None:
    machine = Machine(wall=START + DAY)
    assert machine.clock.now == START + DAY
    assert not machine.clock.is_following_uptime


def test_a_start_in_the_far_future_goes_on_by_uptime_until_the_clock_has_held() -> None:
    machine = Machine(wall=START + DAY + 1)
    assert machine.clock.now == START
    assert machine.clock.is_following_uptime
    assert machine.run(HOLD_MS - 1) == START + HOLD_MS - 1
    assert machine.run(1) == machine.wall
    assert not machine.clock.is_following_uptime


def test_a_step_of_an_hour_is_believed_and_a_longer_one_only_when_it_has_held() -> None:
    assert Machine().set(HOUR) == START + HOUR
    machine = Machine()
    assert machine.set(HOUR + 1) == START
    assert machine.run(MINUTE) == START + MINUTE
    assert machine.run(HOLD_MS) == machine.wall


def test_two_steps_within_the_ten_minutes_count_together() -> None:
    machine = Machine()
    assert machine.set(40 * MINUTE) == START + 40 * MINUTE
    machine.run(MINUTE)
    assert machine.set(40 * MINUTE) == START + 41 * MINUTE
    assert machine.clock.is_following_uptime


def test_a_clock_that_is_set_right_again_is_believed_again() -> None:
    machine = Machine()
    machine.set(11 * 365 * DAY)
    machine.run(MINUTE)
    assert machine.set(-11 * 365 * DAY) == machine.wall
    assert not machine.clock.is_following_uptime


def test_a_clock_that_jumps_about_never_holds() -> None:
    machine = Machine()
    for step in (9 * DAY, -DAY, 3 * DAY, -2 * DAY):
        machine.set(step)
        machine.run(HOLD_MS - 1)
        assert machine.clock.is_following_uptime
    assert machine.clock.now == START + 4 * (HOLD_MS - 1)


def test_a_slow_slew_does_not_break_the_hold() -> None:
    machine = Machine()
    machine.set(DAY)
    for _ in range(10):
        machine.run(MINUTE)
        machine.set(30)
    assert machine.read() == machine.wall


def test_a_suspend_of_a_night_is_believed_after_ten_minutes() -> None:
    machine = Machine()
    machine.set(9 * HOUR)  # the monotonic clock stood still
    assert machine.clock.now == START
    machine.run(HOLD_MS)
    assert machine.clock.now == machine.wall


def test_a_person_may_confirm_the_clock() -> None:
    machine = Machine(wall=START + 30 * DAY)
    machine.run(MINUTE)
    machine.clock.confirm(WallMs(machine.wall), MonoMs(machine.mono))
    assert machine.clock.now == machine.wall
    assert machine.run(MINUTE) == machine.wall


def test_a_clock_set_back_is_waited_for() -> None:
    machine = Machine()
    assert machine.set(-HOUR) == START
    assert machine.run(HOUR) == START
    assert machine.run(MINUTE) == START + MINUTE


def test_a_machine_that_starts_in_1970_is_believed_once_its_clock_is_right() -> None:
    machine = Machine(wall=1_000)
    assert machine.clock.now == START
    machine.run(MINUTE)
    machine.set(START + HOUR - machine.wall)
    assert machine.clock.now == START
    machine.run(HOLD_MS)
    assert machine.clock.now == machine.wall


def test_restarts_do_not_make_a_wrong_clock_right() -> None:
    settled = START
    for _ in range(20):
        machine = Machine(settled=settled, wall=START + 4_000 * DAY)
        settled = machine.run(MINUTE)
    assert settled == START + 20 * MINUTE
