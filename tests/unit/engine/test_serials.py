"""Serials: they rise, follow the clock while their lease lasts, and never come twice."""

import threading

from hypothesis import given
from hypothesis import strategies as st

from parkade.limits import SERIAL_LEASE
from parkade.serials import RESERVE, SERIAL_MAX, Serials

NOW_MS = 1_700_000_000_000
FIRST = NOW_MS << 20


class Asked:
    """Counts how often a lease was asked for."""

    def __init__(self, until: int = FIRST + SERIAL_LEASE) -> None:
        self.count = 0
        self.serials = Serials(FIRST, until, self.ask)

    def ask(self) -> None:
        self.count += 1


def test_a_serial_is_the_time_and_never_the_one_before() -> None:
    serials = Asked().serials
    assert serials.take(1, NOW_MS) == FIRST
    assert serials.take(1, NOW_MS) == FIRST + 1
    assert serials.take(10, NOW_MS) == FIRST + 2
    assert serials.take(1, NOW_MS + 1) == (NOW_MS + 1) << 20
    assert serials.take(1, NOW_MS - 60_000) == ((NOW_MS + 1) << 20) + 1, "a clock set back"


def test_half_a_lease_before_its_end_the_next_is_asked_for_once() -> None:
    asked = Asked()
    half_ms = SERIAL_LEASE // 2 >> 20
    asked.serials.take(1, NOW_MS + half_ms - 1)
    assert asked.count == 0
    for _ in range(5):
        asked.serials.take(1, NOW_MS + half_ms)
    assert asked.count == 1
    asked.serials.extend(asked.serials.next_lease(NOW_MS + half_ms))
    asked.serials.take(1, NOW_MS + half_ms + 1)
    assert asked.count == 1
    asked.serials.take(1, NOW_MS + 2 * half_ms + 1)
    assert asked.count == 2


def test_a_lease_that_could_not_be_had_is_asked_for_again_a_minute_later() -> None:
    asked = Asked()
    late_ms = NOW_MS + (SERIAL_LEASE // 2 >> 20)
    asked.serials.take(1, late_ms)
    asked.serials.lease_failed()
    asked.serials.take(1, late_ms + 1_000)
    assert asked.count == 1
    asked.serials.take(1, late_ms + 70_000)
    assert asked.count == 2


@given(st.lists(st.tuples(st.integers(1, 1000), st.integers(-(10**6), 10**9)), max_size=60))
def test_none_is_ever_outside_the_lease_or_taken_twice(
    takes: list[tuple[int, int]],
) -> None:
    serials = Asked().serials
    last = FIRST - 1
    for count, step_ms in takes:
        first = serials.take(count, NOW_MS + step_ms)
        assert first > last
        last = first + count - 1
        assert last < FIRST + SERIAL_LEASE


def test_the_reserve_outlasts_any_lease_that_does_not_come() -> None:
    asked = Asked()
    edge_ms = NOW_MS + (SERIAL_LEASE - RESERVE >> 20) - 1
    edge = asked.serials.take(1, edge_ms)
    for step_ms in range(1_000):
        assert (
            asked.serials.take(1_000, edge_ms + 2 + step_ms * 60_000) == edge + 1 + 1_000 * step_ms
        )
    assert asked.count == 1


def test_a_clock_at_the_end_of_time_uses_up_nothing() -> None:
    serials = Asked().serials
    assert serials.next_lease(1 << 60) <= SERIAL_MAX
    assert serials.take(1, 1 << 60) == FIRST
    assert serials.take(1, -5) == FIRST + 1


def test_threads_never_share_one() -> None:
    serials = Asked().serials
    taken: list[int] = []

    def take() -> None:
        mine = [serials.take(3, NOW_MS) for _ in range(300)]
        taken.extend(mine)

    threads = [threading.Thread(target=take) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert sorted(taken) == list(range(FIRST, FIRST + 3 * 1_200, 3))
