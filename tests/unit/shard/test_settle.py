"""After an attempt, and after a crash: docs/semantics.md, row by row."""

import pytest

from kit.rig import Rig, codes
from parkade.shard import CANCELLED, DEAD, DONE, PENDING, RUNNING
from parkade.shard.commands import Cancel, LostItem, Outcome, Refusal, Settle, SettleLost
from parkade.shard.retry import DUE_MS_MAX
from parkade.store.record import Buried, ErrorText, Late, Options, Released, Retried, Snoozed

HOUR = 3_600_000
ERROR = ErrorText("ValueError", "no", "Traceback")


def running(rig: Rig, on_crash: int = 0, **more: object) -> int:
    serial = rig.submit(**more)  # type: ignore[arg-type]
    rig.settle_down()
    assert rig.pop_all() == [serial]
    assert codes(rig.start(serial, on_crash=on_crash)) == ["started"]
    return serial


# kind, state, why, maybe_applied, attempts, outcome in the history
TABLE = [
    ("done", DONE, None, False, 1, "done"),
    ("result_lost", DEAD, "failed", True, 1, "error"),
    ("transient", PENDING, None, False, 1, "error"),
    ("failed", DEAD, "failed", False, 1, "error"),
    ("unsafe", DEAD, "unsafe", False, 1, "unsafe"),
    ("ambiguous", DEAD, "ambiguous", True, 1, "ambiguous"),
    ("snooze", PENDING, None, False, 0, "snoozed"),
    ("drop", CANCELLED, "", False, 1, "cancelled"),
    ("cancelled", CANCELLED, "", False, 1, "cancelled"),
    ("timeout", PENDING, None, True, 1, "timeout"),
    ("lease", PENDING, None, True, 1, "lost"),
    ("lost", PENDING, None, True, 1, "lost"),
    ("bad_payload", DEAD, "bad_payload", False, 0, "error"),
    ("released", PENDING, None, True, 0, "released"),
]


@pytest.mark.parametrize(("kind", "state", "why", "maybe", "attempts", "outcome"), TABLE)
def test_each_outcome_leads_where_the_table_says(
    kind: str, state: int, why: str | None, maybe: bool, attempts: int, outcome: str
) -> None:
    rig = Rig()
    serial = running(rig)
    rig.pass_ms(7)
    error = ERROR if kind in ("transient", "failed", "unsafe", "bad_payload") else None
    answer = rig.settle(serial, kind, result=b"42", error=error, wait_ms=50)
    assert answer.code == "settled"
    ticket = rig.head(serial)
    assert (ticket.state, ticket.why, ticket.maybe_applied) == (state, why, maybe)
    assert (ticket.attempts, ticket.fence, ticket.error) == (attempts, 1, error)
    assert ticket.is_ambiguous == maybe
    if state == PENDING:
        assert ticket.due_ms == rig.now_ms + 50
        assert ticket.finished_ms == 0
    else:
        assert ticket.finished_ms == rig.now_ms
    assert rig.outcomes(serial) == [outcome]
    expected = {DONE: b"42", CANCELLED: None}.get(state, b"payload")
    assert rig.body(serial) == expected
    assert not rig.core.running
    live = rig.state()
    rig.reopen()
    assert rig.state() == live
    rig.checkpoint()
    assert rig.outcomes(serial) == [outcome]
    rig.checked()


CANCELS = [row[0] for row in TABLE if row[0] != "done"]


@pytest.mark.parametrize("kind", CANCELS)
def test_what_fails_after_a_cancel_was_asked_is_cancelled_and_keeps_its_error(kind: str) -> None:
    rig = Rig()
    serial = running(rig, on_crash=1)
    rig.do(Cancel(serial, "enough"))
    rig.settle(serial, kind, error=ERROR, wait_ms=50)
    ticket = rig.head(serial)
    assert (ticket.state, ticket.why, ticket.error) == (CANCELLED, "enough", ERROR)
    unknown = kind in ("timeout", "lease", "lost", "ambiguous", "released", "result_lost")
    assert ticket.maybe_applied == unknown
    assert ticket.cancel_reason is None
    rig.checked()


def test_what_succeeds_after_a_cancel_was_asked_is_done() -> None:
    rig = Rig()
    serial = running(rig)
    rig.do(Cancel(serial))
    rig.settle(serial, "done", result=b"42")
    assert rig.head(serial).state == DONE and rig.head(serial).cancel_reason is None


@pytest.mark.parametrize("kind", ["timeout", "lease", "lost", "released"])
def test_an_unknown_end_waits_for_a_person_where_the_task_says_so(kind: str) -> None:
    rig = Rig()
    serial = running(rig, on_crash=1)
    rig.settle(serial, kind, error=ERROR)
    ticket = rig.head(serial)
    assert (ticket.state, ticket.why) == (DEAD, "ambiguous")
    assert ticket.maybe_applied and ticket.is_ambiguous


def test_what_a_stop_gives_back_unbegun_is_not_marked() -> None:
    rig = Rig()
    serial = running(rig, on_crash=1)
    verdict = rig.do(Settle([Outcome(serial, 1, "released", has_begun=False)]))
    assert verdict.records == [Released(serial, 1, rig.now_ms, rig.now_ms, False)]
    assert not rig.head(serial).maybe_applied
    rig.run(serial)
    assert rig.head(serial).fence == 2 and rig.head(serial).attempts == 1


@pytest.mark.parametrize("kind", ["transient", "timeout"])
def test_a_spent_budget_wins_over_being_late(kind: str) -> None:
    rig = Rig()
    serial = running(rig)
    outcome = Outcome(serial, 1, kind, error=ERROR, max_attempts=1, max_elapsed_ms=0)
    record = rig.do(Settle([outcome])).records[0]
    assert record == Buried(serial, 1, rig.now_ms, "exhausted", ERROR, kind == "timeout")


@pytest.mark.parametrize(("elapsed", "why"), [(99, "late"), (100, "late"), (101, None)])
def test_a_retry_that_would_be_too_late_is_buried_at_once(elapsed: int, why: str | None) -> None:
    rig = Rig()
    serial = running(rig)
    rig.pass_ms(40)
    rig.settle(serial, "transient", wait_ms=60, max_elapsed_ms=elapsed)
    assert rig.head(serial).why == why


def test_a_tickets_own_numbers_go_before_the_policys() -> None:
    rig = Rig()
    serial = running(rig, options=Options(max_attempts=2, max_elapsed_ms=HOUR))
    rig.settle(serial, "transient", max_attempts=1, max_elapsed_ms=0)
    assert rig.head(serial).state == PENDING
    rig.run(serial)
    rig.settle(serial, "transient", max_attempts=9)
    assert rig.head(serial).why == "exhausted"


def test_a_retry_by_a_clock_that_is_not_believed_is_not_buried() -> None:
    rig = Rig()
    serial = running(rig)
    rig.now_ms += HOUR
    rig.settle(serial, "transient", max_elapsed_ms=1_000)
    assert rig.head(serial).state == PENDING


def test_a_wait_never_passes_the_year_9999() -> None:
    rig = Rig()
    serial = running(rig)
    record = rig.do(Settle([Outcome(serial, 1, "transient", wait_ms=1 << 60)])).records[0]
    assert isinstance(record, Retried) and record.due_ms == DUE_MS_MAX


def test_snoozes_are_free_up_to_their_bound() -> None:
    rig = Rig()
    serial = running(rig)
    for nth in range(3):
        verdict = rig.do(
            Settle([Outcome(serial, nth + 1, "snooze", max_snoozes=3, reason="not yet")])
        )
        expected = Snoozed(serial, nth + 1, rig.now_ms, rig.now_ms, "not yet")
        assert verdict.records == [expected]
        assert (rig.head(serial).attempts, rig.head(serial).snoozes) == (0, nth + 1)
        rig.run(serial)
    rig.settle(serial, "snooze", max_snoozes=3, reason="not yet")
    assert (rig.head(serial).state, rig.head(serial).why) == (DEAD, "exhausted")
    text = "put off once more after 3 times, which is max_snoozes: not yet"
    assert rig.head(serial).error == ErrorText("Snooze", text)
    assert rig.outcomes(serial) == ["snoozed", "snoozed", "snoozed", "error"]


def test_an_outcome_of_another_fence_is_refused_and_counted() -> None:
    rig = Rig()
    serial = running(rig)
    rig.settle(serial, "transient")
    rig.run(serial)
    for fence in (0, 1, 3):
        verdict = rig.do(Settle([Outcome(serial, fence, "failed")]))
        assert verdict.answers == [Refusal("refused", serial)] and not verdict.records
    assert rig.core.refused_outcomes == 3
    assert rig.head(serial).state == RUNNING


def test_of_two_outcomes_of_one_attempt_the_first_counts() -> None:
    rig = Rig()
    serial = running(rig)
    outcomes = [Outcome(serial, 1, "done", b"1"), Outcome(serial, 1, "done", b"2")]
    assert codes(rig.do(Settle(outcomes)).answers) == ["settled", "refused"]
    assert rig.body(serial) == b"1" and not rig.head(serial).maybe_applied
    assert codes(rig.do(Settle(outcomes)).answers) == ["refused", "refused"]
    assert not rig.head(serial).maybe_applied


@pytest.mark.parametrize("parks", [False, True], ids=["hot", "parked"])
def test_a_success_of_an_attempt_that_was_given_up_is_noted(parks: bool) -> None:
    rig = Rig()
    serial = running(rig)
    rig.settle(serial, "failed")
    if parks:
        rig.checkpoint()
        assert serial not in rig.core.hot
    verdict = rig.do(Settle([Outcome(serial, 1, "done", b"after all")]))
    assert codes(verdict.answers) == ["refused"]
    assert verdict.records == [Late(serial, 1)]
    ticket = rig.head(serial)
    assert ticket.state == DEAD and ticket.maybe_applied
    assert not rig.do(Settle([Outcome(serial, 1, "done")])).records, "once is enough"


def test_a_late_success_of_a_forgotten_ticket_is_refused() -> None:
    rig = Rig()
    verdict = rig.do(Settle([Outcome(5, 1, "done"), Outcome(6, 1, "failed")]))
    assert codes(verdict.answers) == ["refused", "refused"] and not verdict.records


def test_one_bad_outcome_in_a_batch_leaves_the_others_alone() -> None:
    rig = Rig()
    serials = [rig.submit() for _ in range(3)]
    rig.settle_down()
    rig.start(*rig.pop_all())
    kinds = ["failed", "done", "transient"]
    outcomes = [Outcome(5, 1, "done")]
    outcomes += [Outcome(s, 1, kind) for s, kind in zip(serials, kinds, strict=True)]
    answers = codes(rig.do(Settle(outcomes)).answers)
    assert answers == ["refused", "settled", "settled", "settled"]
    assert [rig.head(s).state for s in serials] == [DEAD, DONE, PENDING]


# ---------------------------------------------------------------------- lost attempts


def test_a_lost_attempt_counts_is_marked_and_makes_a_suspect() -> None:
    rig = Rig()
    serial = running(rig)
    rig.reopen()
    assert codes(rig.settle_lost(wait_ms=100)) == ["settled"]
    ticket = rig.head(serial)
    assert (ticket.state, ticket.attempts, ticket.deaths) == (PENDING, 1, 0)
    assert ticket.due_ms == rig.now_ms + 100
    assert ticket.is_suspect and ticket.maybe_applied and ticket.is_ambiguous
    assert rig.outcomes(serial) == ["lost"]
    rig.checked()


def test_what_ran_when_it_was_parked_is_found_again_with_its_key() -> None:
    rig = Rig()
    serial = running(rig, key="k")
    rig.checkpoint()
    rig.reopen()
    assert rig.adopt_running() == [serial]
    assert rig.core.placement.is_key_busy("k")
    rig.settle_lost()
    assert not rig.core.placement.is_key_busy("k")
    rig.checked()


def test_the_third_death_alone_buries_whatever_the_budget() -> None:
    rig = Rig()
    serial = running(rig)
    rig.reopen()
    rig.settle_lost(wait_ms=0)
    for deaths in (1, 2):
        rig.run(serial)
        rig.reopen()
        rig.settle_lost(wait_ms=0)
        assert (rig.head(serial).state, rig.head(serial).deaths) == (PENDING, deaths)
    rig.run(serial)
    rig.reopen()
    rig.settle_lost(wait_ms=0)
    ticket = rig.head(serial)
    assert (ticket.state, ticket.why, ticket.deaths) == (DEAD, "crashed", 3)
    assert ticket.maybe_applied and not ticket.is_suspect
    assert rig.outcomes(serial) == ["lost"] * 4


def test_a_death_beside_other_suspects_points_at_nobody() -> None:
    rig = Rig()
    serials = [rig.submit() for _ in range(3)]
    for _ in range(4):
        rig.settle_down()
        verdict_items = [LostItem(s, rig.head(s).fence + 1, 0) for s in serials]
        rig.pop_all()
        for serial in serials:
            rig.start(serial)
        rig.do(SettleLost(verdict_items))
    assert all(rig.head(s).state == PENDING and rig.head(s).deaths == 0 for s in serials)


@pytest.mark.parametrize(
    ("on_crash", "options", "asked", "why"),
    [
        (1, None, False, "ambiguous"),
        (0, Options(max_attempts=1), False, "exhausted"),
        (0, Options(max_elapsed_ms=50), False, "late"),
        (1, Options(max_attempts=1), True, "enough"),
    ],
)
def test_a_lost_attempt_is_settled_by_what_its_start_said(
    on_crash: int, options: Options | None, asked: bool, why: str
) -> None:
    rig = Rig()
    serial = running(rig, on_crash=on_crash, options=options)
    if asked:
        rig.do(Cancel(serial, "enough"))
    rig.reopen()
    rig.settle_lost(wait_ms=100)
    ticket = rig.head(serial)
    assert (ticket.state, ticket.why) == (CANCELLED if asked else DEAD, why)
    assert ticket.maybe_applied


def test_a_policys_budget_counts_for_a_lost_attempt() -> None:
    rig = Rig()
    serial = running(rig)
    rig.reopen()
    rig.settle_lost(max_attempts=1)
    assert rig.head(serial).why == "exhausted"


def test_an_attempt_that_has_been_settled_is_not_lost_again() -> None:
    rig = Rig()
    serial = running(rig)
    items = [LostItem(serial, 1, 10), LostItem(serial, 1, 10), LostItem(5, 1, 10)]
    assert codes(rig.do(SettleLost(items)).answers) == ["settled", "refused", "refused"]
    assert codes(rig.do(SettleLost(items[:1])).answers) == ["refused"]


def test_two_opens_after_one_crash_arrive_at_the_same_state() -> None:
    rig = Rig()
    serial = running(rig)
    rig.reopen()
    frames = list(rig.journal)
    rig.settle_lost(wait_ms=33)
    once = rig.state()
    rig.journal = frames
    rig.reopen()
    rig.settle_lost(wait_ms=33)
    assert rig.state() == once
    assert rig.head(serial).due_ms == rig.now_ms + 33
