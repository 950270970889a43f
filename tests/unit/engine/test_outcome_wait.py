"""Outcomes that small frames wait for, and what bounds the wait."""

from parkade.outcome_wait import PASSES_WITHOUT, RECORDS_MAX, OutcomeWait


def allowed() -> OutcomeWait:
    wait = OutcomeWait()
    wait.is_allowed = True
    return wait


def test_frames_wait_for_outcomes_only_where_attempts_begin_beside_small_frames() -> None:
    assert not OutcomeWait().begins(5, 5), "without a thread nobody would wait"
    wait = allowed()
    for attempts, records in ((0, 5), (5, 0), (5, RECORDS_MAX + 1)):
        assert not wait.begins(attempts, records) and not wait.is_on
    assert wait.begins(5, RECORDS_MAX) and wait.is_on


def test_outcomes_that_do_not_come_at_once_are_not_waited_for_again_soon() -> None:
    wait = allowed()
    assert wait.begins(4, 1)
    wait.end(2)
    assert not wait.is_on and wait.begins(4, 1), "half of them came"
    wait.end(1)
    assert [wait.begins(4, 1) for _ in range(PASSES_WITHOUT + 1)].count(True) == 1
    assert wait.is_on
