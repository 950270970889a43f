"""The settled clock under any history of the wall clock."""

from hypothesis import given
from hypothesis import strategies as st

from parkade.clock import (
    HOLD_DRIFT_MS_MAX,
    HOLD_MS,
    START_AHEAD_MS_MAX,
    STEP_AHEAD_MS_MAX,
    MonoMs,
    SettledClock,
    SettledMs,
    WallMs,
)

YEAR = 365 * 86_400_000
START = 1_800_000_000_000

# (how long the machine runs, by how much its wall clock is set)
STEPS = st.one_of(
    st.just(0),
    st.integers(-HOLD_DRIFT_MS_MAX, HOLD_DRIFT_MS_MAX),
    st.integers(-2 * STEP_AHEAD_MS_MAX, 2 * STEP_AHEAD_MS_MAX),
    st.integers(-20 * YEAR, 20 * YEAR),
)
HISTORIES = st.lists(st.tuples(st.integers(0, HOLD_MS + 1), STEPS), max_size=40)


@given(st.integers(-YEAR, 20 * YEAR), HISTORIES)
def test_it_never_goes_back_and_never_passes_what_it_was_told(
    ahead: int, history: list[tuple[int, int]]
) -> None:
    wall, mono = START + ahead, 0
    clock = SettledClock(SettledMs(START), WallMs(wall), MonoMs(mono))
    last, latest = clock.now, max(START, wall)
    for ran, step in history:
        mono, wall = mono + ran, max(0, wall + ran + step)
        settled = clock.read(WallMs(wall), MonoMs(mono))
        latest = max(latest, wall)
        assert last <= settled
        assert settled <= max(latest, START + mono)
        last = settled


@given(st.integers(-YEAR, 20 * YEAR), HISTORIES)
def test_a_leap_is_taken_over_only_by_a_clock_that_has_held(
    ahead: int, history: list[tuple[int, int]]
) -> None:
    wall, mono = START + ahead, 0
    clock = SettledClock(SettledMs(START), WallMs(wall), MonoMs(mono))
    assert clock.now <= START + START_AHEAD_MS_MAX
    offset, since, allowed = wall - mono, 0, clock.now
    for ran, step in history:
        mono, wall = mono + ran, max(0, wall + ran + step)
        settled = clock.read(WallMs(wall), MonoMs(mono))
        if abs(wall - mono - offset) > HOLD_DRIFT_MS_MAX:
            offset, since = wall - mono, mono
        has_held = mono - since >= HOLD_MS
        if has_held:
            allowed = SettledMs(max(allowed, settled - mono))
        if not has_held:
            slack = STEP_AHEAD_MS_MAX + HOLD_DRIFT_MS_MAX
            assert settled <= max(allowed, START + START_AHEAD_MS_MAX) + mono + slack


@given(st.integers(0, START_AHEAD_MS_MAX), st.lists(st.integers(0, YEAR), max_size=40))
def test_an_honest_clock_is_believed_to_the_millisecond(ahead: int, runs: list[int]) -> None:
    wall, mono = START + ahead, 0
    clock = SettledClock(SettledMs(START), WallMs(wall), MonoMs(mono))
    for ran in runs:
        wall, mono = wall + ran, mono + ran
        assert clock.read(WallMs(wall), MonoMs(mono)) == wall
        assert not clock.is_following_uptime


@given(HISTORIES, st.integers(0, 20 * YEAR))
def test_any_clock_is_believed_once_it_has_held_or_been_confirmed(
    history: list[tuple[int, int]], ahead: int
) -> None:
    for ends_by_confirming in (False, True):
        wall, mono = START + ahead, 0
        clock = SettledClock(SettledMs(START), WallMs(wall), MonoMs(mono))
        for ran, step in history:
            mono, wall = mono + ran, max(0, wall + ran + step)
            clock.read(WallMs(wall), MonoMs(mono))
        if ends_by_confirming:
            clock.confirm(WallMs(wall), MonoMs(mono))
        else:
            clock.read(WallMs(wall + HOLD_MS), MonoMs(mono + HOLD_MS))
        assert not clock.is_following_uptime
        assert clock.now >= wall


@given(st.lists(st.tuples(st.integers(0, 10**6), st.integers(0, 10**6)), max_size=20))
def test_a_monotonic_clock_that_goes_back_all_the_same_does_no_harm(
    readings: list[tuple[int, int]],
) -> None:
    clock = SettledClock(None, WallMs(START), MonoMs(0))
    last = clock.now
    for ahead, mono in readings:
        settled = clock.read(WallMs(START + ahead), MonoMs(mono))
        assert settled >= last
        last = settled
