"""Outcomes that small frames wait for, and what bounds the wait."""

from collections.abc import Callable
from pathlib import Path

from kit.clock import ManualClock
from kit.engines import make, runtime_of
from parkade.outcome_wait import RECORDS_MAX, OutcomeWait
from parkade.patience import WITHOUT_MAX


def allowed() -> OutcomeWait:
    wait = OutcomeWait()
    wait.is_allowed = True
    return wait


def test_frames_wait_for_outcomes_only_where_attempts_begin_beside_small_frames() -> None:
    assert not OutcomeWait().begins(5, 5), "without a thread nobody would wait"
    wait = allowed()
    for attempts, records in ((0, 5), (5, RECORDS_MAX + 1)):
        assert not wait.begins(attempts, records) and not wait.is_expecting
    assert not wait.begins(5, 0) and not wait.is_on and wait.is_expecting, "no frame is there"
    assert wait.begins(5, RECORDS_MAX) and wait.is_on


def test_outcomes_that_do_not_come_at_once_are_not_waited_for_again_soon() -> None:
    wait = allowed()
    assert wait.begins(4, 1)
    wait.give_up()
    wait.end(2)
    assert not wait.is_on and wait.begins(4, 1), "half of them came"
    wait.end(0)
    assert wait.begins(4, 1), "somebody else wanted something"


def test_the_longer_they_are_waited_for_in_vain_the_less_they_are() -> None:
    wait, pauses = allowed(), list[int]()
    for outcomes in (1, 1, 1, 2, *[1] * 8):
        pauses.append(0)
        while not wait.begins(4, 1):
            pauses[-1] += 1
        wait.give_up()
        wait.end(outcomes)
    assert pauses == [0, 2, 4, 8, 0, 2, 4, 8, 16, *[WITHOUT_MAX] * 3]


def test_who_delivers_the_last_outcome_that_is_waited_for_rings() -> None:
    wait = allowed()
    assert not wait.holds(1), "nothing is waited for"
    wait.begins(4, 0)
    assert wait.is_short and [wait.holds(1), wait.holds(2), wait.holds(1)] == [True, True, False]
    assert not wait.is_short
    wait.end(4)
    wait.begins(4, 0)
    wait.give_up()
    assert not wait.holds(1) and not wait.is_short, "the moment is over"


def test_a_ring_for_what_a_pass_has_taken_makes_no_pass_of_its_own(tmp_path: Path) -> None:
    with make(tmp_path / "data", clock=ManualClock()) as engine:
        host = runtime_of(engine).host

        def hushed_after(*rings: Callable[[], None]) -> bool:
            host._event.clear()
            host._is_wanted = False
            for ring in rings:
                ring()
            host._hush()
            return not host._event.is_set()

        def deliver() -> None:
            host.deliver([])

        def look() -> None:
            assert hushed_after(deliver, host.take_outcomes)
            assert not hushed_after(deliver), "nobody has taken it"
            assert not hushed_after(host.take_outcomes, host.wake)

        host.call(look)
