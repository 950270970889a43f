"""Cancel, reschedule, revive, drop, resolve, forget, expire: what the answer is, what follows."""

import pytest

from kit.rig import Rig, codes
from parkade.shard import CANCELLED, DEAD, DONE, EXPIRED, PENDING, RUNNING
from parkade.shard.commands import (
    Cancel,
    Drop,
    Expire,
    Forget,
    Reschedule,
    Resolve,
    Revive,
)
from parkade.shard.retry import DUE_MS_MAX
from parkade.store.record import CancelRequested, ErrorText, Options

HOUR = 3_600_000
ERROR = ErrorText("ValueError", "no")


def dead(rig: Rig, kind: str = "failed") -> int:
    serial = rig.submit()
    rig.run(serial)
    rig.settle(serial, kind, error=ERROR)
    assert rig.head(serial).state == DEAD
    return serial


@pytest.mark.parametrize("parks", [False, True], ids=["hot", "parked"])
def test_a_pending_ticket_is_cancelled_at_once_also_when_due_in_a_year(parks: bool) -> None:
    rig = Rig()
    serial = rig.submit(365 * 24 * HOUR)
    if parks:
        rig.checkpoint()
    assert codes(rig.do(Cancel(serial, "enough")).answers) == ["cancelled"]
    ticket = rig.head(serial)
    assert (ticket.state, ticket.why, ticket.finished_ms) == (CANCELLED, "enough", rig.now_ms)
    assert rig.body(serial) is None
    rig.checkpoint()
    rig.checked()
    assert serial not in rig.store.bodies


def test_a_cancelled_ticket_that_ran_before_says_what_is_known() -> None:
    rig = Rig()
    serial = rig.submit()
    rig.run(serial)
    rig.settle(serial, "timeout", error=ERROR, wait_ms=HOUR)
    rig.do(Cancel(serial))
    ticket = rig.head(serial)
    assert ticket.state == CANCELLED and ticket.maybe_applied and ticket.error == ERROR


def test_a_running_ticket_is_asked_once() -> None:
    rig = Rig()
    serial = rig.submit()
    rig.run(serial)
    verdict = rig.do(Cancel(serial, "please"))
    assert codes(verdict.answers) == ["requested"]
    assert verdict.records == [CancelRequested(serial, 1, rig.now_ms, "please")]
    verdict = rig.do(Cancel(serial, "now"))
    assert codes(verdict.answers) == ["requested"] and not verdict.records
    assert rig.head(serial).cancel_reason == "please"
    assert rig.head(serial).state == RUNNING


@pytest.mark.parametrize("kind", ["done", "failed", "drop"])
def test_an_ended_ticket_is_not_cancelled(kind: str) -> None:
    rig = Rig()
    serial = rig.submit()
    rig.run(serial)
    rig.settle(serial, kind)
    rig.checkpoint()
    assert codes(rig.do(Cancel(serial)).answers) == ["too_late"]


def test_a_ticket_that_never_was_is_unknown_to_every_command() -> None:
    rig = Rig()
    for command in (Cancel(5), Reschedule(5, 1), Revive([5], 1), Drop([5]), Resolve(5, b"")):
        assert codes(rig.do(command).answers) == ["unknown"], command
    assert codes(rig.do(Forget("t", DONE, [5])).answers) == ["unknown"]
    assert codes(rig.do(Expire([5])).answers) == ["unknown"]


def test_a_reschedule_moves_the_due_and_the_first_due_while_never_started() -> None:
    rig = Rig()
    serial = rig.submit(HOUR)
    rig.checkpoint()
    assert codes(rig.do(Reschedule(serial, rig.now_ms + 50)).answers) == ["rescheduled"]
    ticket = rig.head(serial)
    assert ticket.due_ms == ticket.first_due_ms == rig.now_ms + 50
    rig.pass_ms(50)
    rig.settle_down()
    assert rig.pop_all() == [serial]


def test_a_reschedule_of_a_ticket_that_ran_keeps_its_rank() -> None:
    rig = Rig()
    serial = rig.submit()
    first_due_ms = rig.now_ms
    rig.run(serial)
    rig.settle(serial, "transient", wait_ms=HOUR)
    rig.do(Reschedule(serial, rig.now_ms))
    ticket = rig.head(serial)
    assert (ticket.due_ms, ticket.first_due_ms) == (rig.now_ms, first_due_ms)


def test_a_ticket_put_before_its_first_due_has_its_first_due_there() -> None:
    rig = Rig()
    serial = rig.submit()
    rig.run(serial)
    rig.settle(serial, "failed")
    rig.do(Revive([serial], rig.now_ms + HOUR))
    rig.do(Reschedule(serial, rig.now_ms + 50))
    ticket = rig.head(serial)
    assert ticket.fence == 1
    assert ticket.due_ms == ticket.first_due_ms == rig.now_ms + 50


def test_a_retry_after_the_clock_was_set_back_is_not_hidden_behind_its_first_due() -> None:
    rig = Rig()
    serial = rig.submit()
    rig.run(serial)
    rig.now_ms -= HOUR
    rig.settle(serial, "transient", wait_ms=50)
    ticket = rig.head(serial)
    assert ticket.due_ms == ticket.first_due_ms == rig.now_ms + 50


def test_a_held_ticket_can_be_rescheduled_and_leaves_its_lane() -> None:
    rig = Rig()
    serial = rig.submit()
    rig.settle_down()
    assert rig.core.placement.where(serial) == "window"
    rig.do(Reschedule(serial, rig.now_ms + 200))
    rig.settle_down()
    assert rig.pop_all() == []
    rig.checked()


def test_dues_stay_between_the_epoch_and_the_year_9999() -> None:
    rig = Rig()
    serial = rig.submit()
    rig.do(Reschedule(serial, 1 << 60))
    assert rig.head(serial).due_ms == DUE_MS_MAX
    rig.do(Reschedule(serial, -5))
    assert rig.head(serial).due_ms == 0


def test_what_is_not_pending_is_not_rescheduled() -> None:
    rig = Rig()
    serial = rig.submit()
    rig.run(serial)
    assert codes(rig.do(Reschedule(serial, rig.now_ms)).answers) == ["not_pending"]


@pytest.mark.parametrize("keep", [False, True])
def test_a_revived_ticket_begins_again_under_the_same_id(keep: bool) -> None:
    rig = Rig()
    serial = dead(rig)
    rig.checkpoint()
    assert rig.body(serial) == b"payload", "a dead ticket keeps its payload"
    due_ms = rig.now_ms + 30
    command = Revive([serial], due_ms, keep_attempts=keep, payload=b"repaired")
    assert codes(rig.do(command).answers) == ["revived"]
    ticket = rig.head(serial)
    assert (ticket.state, ticket.attempts, ticket.fence) == (PENDING, int(keep), 1)
    assert ticket.due_ms == ticket.first_due_ms == due_ms
    assert ticket.why is None and ticket.finished_ms == 0 and ticket.error == ERROR
    assert rig.core.payload(serial) == b"repaired"
    rig.checkpoint()
    assert rig.store.bodies[serial] == b"repaired"
    rig.pass_ms(30)
    rig.run(serial)
    assert rig.head(serial).fence == 2


def test_reviving_what_may_have_been_done_needs_to_be_said() -> None:
    rig = Rig()
    serial = dead(rig, "ambiguous")
    assert rig.head(serial).is_ambiguous and rig.head(serial).maybe_applied
    assert codes(rig.do(Revive([serial], rig.now_ms)).answers) == ["ambiguous"]
    command = Revive([serial], rig.now_ms, accept_ambiguous=True)
    assert codes(rig.do(command).answers) == ["revived"]
    assert rig.head(serial).maybe_applied, "it is never forgotten"
    assert not rig.head(serial).is_ambiguous


def test_many_are_revived_each_by_its_own_state() -> None:
    rig = Rig()
    one, two, pending = dead(rig), dead(rig), rig.submit(HOUR)
    rig.checkpoint()
    answers = rig.do(Revive([one, pending, 5, two, one], rig.now_ms)).answers
    assert codes(answers) == ["revived", "not_dead", "unknown", "revived", "unknown"]


def test_a_dropped_ticket_is_gone_with_all_it_had() -> None:
    rig = Rig()
    serial = dead(rig)
    rig.checkpoint()
    assert codes(rig.do(Drop([serial])).answers) == ["dropped"]
    assert rig.find(serial) is None
    rig.checkpoint()
    assert serial not in rig.store.heads and serial not in rig.store.bodies
    assert not rig.store.history and not rig.core.stored_at
    assert rig.core.counters == {}
    rig.checked()


def test_only_a_dead_ticket_is_dropped_or_resolved() -> None:
    rig = Rig()
    serial = rig.submit(HOUR)
    assert codes(rig.do(Drop([serial])).answers) == ["not_dead"]
    assert codes(rig.do(Resolve(serial, b"")).answers) == ["not_dead"]


def test_a_resolved_ticket_is_done_with_the_result_that_was_given() -> None:
    rig = Rig()
    serial = dead(rig, "ambiguous")
    rig.pass_ms(10)
    assert codes(rig.do(Resolve(serial, b"42", "checked")).answers) == ["resolved"]
    ticket = rig.head(serial)
    assert (ticket.state, ticket.why, ticket.finished_ms) == (DONE, "checked", rig.now_ms)
    assert rig.body(serial) == b"42"
    rig.checkpoint()
    assert rig.store.bodies[serial] == b"42"


def test_retention_forgets_what_has_ended_in_that_state_and_nothing_else() -> None:
    rig = Rig()
    done, other = rig.submit(), rig.submit(task="u")
    for serial in (done, other):
        rig.run(serial)
        rig.settle(serial)
    failed, waiting = dead(rig), rig.submit(HOUR)
    rig.checkpoint()
    verdict = rig.do(Forget("t", DONE, [done, other, failed, waiting, done]))
    assert codes(verdict.answers) == ["forgotten", "other", "other", "not_ended", "unknown"]
    assert len(verdict.records) == 1
    assert rig.core.counters == {("t", DEAD): 1, ("t", PENDING): 1, ("u", DONE): 1}
    rig.checkpoint()
    rig.checked()


def test_retention_leaves_what_has_ended_again_since_it_was_looked_for() -> None:
    rig = Rig()
    serial = dead(rig)
    before_ms = rig.now_ms + 1
    rig.pass_ms(10)
    rig.do(Revive([serial], rig.now_ms))
    rig.settle_down()
    rig.run(serial)
    rig.settle(serial, "failed")
    assert codes(rig.do(Forget("t", DEAD, [serial], before_ms)).answers) == ["kept"]
    assert codes(rig.do(Forget("t", DEAD, [serial], rig.now_ms + 1)).answers) == ["forgotten"]


def test_how_many_were_done_outlives_them_and_a_replay() -> None:
    rig = Rig()
    for _ in range(3):
        serial = rig.submit()
        rig.run(serial)
        rig.settle(serial)
        rig.do(Forget("t", DONE, [serial]))
    rig.do(Forget("t", DEAD, [dead(rig)]))
    assert rig.core.done_forgotten == 3
    rig.checkpoint()
    rig.checked()


def test_a_ticket_that_came_and_went_between_checkpoints_never_reaches_the_store() -> None:
    rig = Rig()
    serial = rig.submit()
    rig.run(serial)
    rig.settle(serial)
    rig.do(Forget("t", DONE, [serial]))
    assert rig.core.dirty.is_empty
    rig.cut()
    assert rig.building is not None and not rig.building.todo
    rig.commit()
    rig.complete()
    assert not rig.store.heads and not rig.store.bodies


def test_a_held_ticket_expires_at_its_time_and_not_when_a_place_frees() -> None:
    rig = Rig()
    serial = rig.submit(100, options=Options(expires_ms=50))
    rig.pass_ms(149)
    assert rig.settle_down() == []
    assert rig.core.placement.next_wake() == rig.now_ms + 1
    rig.pass_ms(1)
    assert rig.settle_down() == [serial]
    assert codes(rig.do(Expire([serial])).answers) == ["expired"]
    ticket = rig.head(serial)
    assert (ticket.state, ticket.finished_ms) == (EXPIRED, rig.now_ms)
    assert rig.body(serial) is None
    rig.checked()


def test_a_ticket_does_not_expire_early_nor_once_it_has_been_started() -> None:
    rig = Rig()
    early = rig.submit(options=Options(expires_ms=50))
    assert codes(rig.do(Expire([early])).answers) == ["not_due"]
    rig.run(early)
    rig.settle(early, "transient")
    rig.pass_ms(100)
    assert rig.settle_down() == []
    assert codes(rig.do(Expire([early])).answers) == ["not_due"]


def test_a_reschedule_takes_the_expiry_along() -> None:
    rig = Rig()
    serial = rig.submit(options=Options(expires_ms=50))
    rig.settle_down()
    rig.do(Reschedule(serial, rig.now_ms + 30))
    rig.pass_ms(60)
    assert rig.settle_down() == []
    rig.pass_ms(20)
    assert rig.settle_down() == [serial]


def test_a_parked_ticket_in_a_full_lane_expires_by_its_mark_in_the_agenda() -> None:
    rig = Rig()
    serials = [rig.submit(options=Options(expires_ms=2_000)) for _ in range(9)]
    rig.settle_down()
    rig.checkpoint()
    rig.checked()
    parked = [serial for serial in serials if serial not in rig.core.hot]
    assert parked
    expired = []
    for _ in range(4):
        rig.pass_ms(500)
        expired += rig.settle_down()
    assert sorted(expired) == serials
    assert set(codes(rig.do(Expire(expired)).answers)) == {"expired"}
    rig.checkpoint()
    rig.checked()
    assert not rig.store.marks and not rig.store.rows
