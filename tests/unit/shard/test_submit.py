"""Submits and dedupe keys: docs/semantics.md, Unique."""

import pytest

from kit.rig import Rig, codes
from parkade.shard import PENDING, unique_name
from parkade.shard.commands import (
    CONFLICT_ERROR,
    CONFLICT_REPLACE,
    CONFLICT_RETURN,
    Answer,
    Cancel,
    Drop,
    Forget,
    Need,
    Refusal,
    Revive,
    Submit,
)
from parkade.shard.unique import ACTIVE, DURATION, KEPT
from parkade.store.record import Options, Submitted, UniqueClaim

HOUR = 3_600_000
KEPT_CLAIM = UniqueClaim("order", KEPT, keep_ms=HOUR)
ACTIVE_CLAIM = UniqueClaim("order", ACTIVE)


def again(rig: Rig, conflict: int = CONFLICT_RETURN, **more: object) -> Answer | Refusal:
    """A second submit of the same name."""
    draft = rig.draft(unique=more.pop("unique", KEPT_CLAIM), **more)  # type: ignore[arg-type]
    return rig.do(Submit([draft], [conflict])).answers[0]


def test_a_plain_draft_is_its_own_record_and_needs_nothing() -> None:
    rig = Rig()
    drafts = [rig.draft(), rig.draft(options=Options(priority=3))]
    verdict = rig.core.decide(Submit(drafts), rig.now_ms, rig.now_ms)
    assert verdict.records == drafts and verdict.need is None
    created = [Answer("created", d.serial, d.part) for d in drafts]
    assert list(verdict.answers) == verdict.answers[:] == created
    assert len(verdict.answers) == 2 and verdict.answers[1] == created[1]


def test_deciding_changes_nothing_at_all() -> None:
    rig = Rig()
    before = rig.state()
    rig.core.decide(Submit([rig.draft()]), rig.now_ms, rig.now_ms)
    assert rig.state() == before


def test_a_submit_sets_every_field_of_its_ticket() -> None:
    rig = Rig()
    options = Options(target="psp", priority=2)
    draft = rig.draft(50, key="k", options=options)
    rig.do(Submit([draft]))
    ticket = rig.head(draft.serial)
    assert (ticket.state, ticket.attempts, ticket.fence) == (PENDING, 0, 0)
    assert ticket.due_ms == ticket.first_due_ms == rig.now_ms + 50
    assert (ticket.created_ms, ticket.part, ticket.key) == (rig.now_ms, draft.part, "k")
    assert ticket.lane == ("t", "psp", 2)
    assert rig.body(draft.serial) == b"payload"


def test_a_name_that_memory_does_not_know_is_asked_of_the_store_once() -> None:
    rig = Rig()
    drafts = [rig.draft(unique=KEPT_CLAIM), rig.draft(unique=KEPT_CLAIM)]
    name = unique_name("t", None, "order")
    verdict = rig.core.decide(Submit(drafts), rig.now_ms, rig.now_ms)
    assert verdict.need == Need([], [name])
    assert not verdict.records and not verdict.answers
    loaded = rig.store.load([], [name])
    verdict = rig.core.decide(Submit(drafts), rig.now_ms, rig.now_ms, loaded)
    assert codes(verdict.answers) == ["created", "existing"]


def test_of_two_drafts_in_one_submit_the_second_sees_the_first() -> None:
    rig = Rig()
    drafts = [rig.draft(unique=KEPT_CLAIM) for _ in range(3)]
    conflicts = [CONFLICT_RETURN, CONFLICT_ERROR, CONFLICT_REPLACE]
    answers = rig.do(Submit(drafts, conflicts)).answers
    assert codes(answers) == ["created", "duplicate", "created"]
    assert answers[1].serial == drafts[0].serial
    assert rig.head(drafts[0].serial).why == "replaced"
    rig.checked()


def test_a_refused_draft_costs_the_others_nothing() -> None:
    rig = Rig()
    rig.submit(unique=KEPT_CLAIM)
    drafts = [rig.draft(), rig.draft(unique=KEPT_CLAIM), rig.draft()]
    answers = rig.do(Submit(drafts, [CONFLICT_ERROR] * 3)).answers
    assert codes(answers) == ["created", "duplicate", "created"]


@pytest.mark.parametrize("parks", [False, True], ids=["hot", "parked"])
def test_a_second_submit_is_answered_with_the_first(parks: bool) -> None:
    rig = Rig()
    first = rig.submit(HOUR, unique=KEPT_CLAIM)
    if parks:
        rig.checkpoint()
        assert first not in rig.core.hot
    assert again(rig) == Answer("existing", first, 7)
    assert again(rig, CONFLICT_ERROR) == Refusal("duplicate", first, 7, -1)
    rig.checked()


def test_a_name_belongs_to_its_task_and_its_key() -> None:
    rig = Rig()
    rig.submit(unique=KEPT_CLAIM)
    assert again(rig, task="u").code == "created"
    assert again(rig, key="k").code == "created"
    assert again(rig, key="").code == "created"
    assert again(rig, key="k").code == "existing"


def test_a_kept_name_is_taken_until_so_long_after_the_end() -> None:
    rig = Rig()
    first = rig.submit(unique=KEPT_CLAIM)
    rig.run(first)
    rig.settle(first)
    ended_ms = rig.now_ms
    rig.checkpoint()
    assert again(rig, CONFLICT_ERROR) == Refusal("duplicate", first, 7, ended_ms + HOUR)
    rig.pass_ms(HOUR - 1)
    assert again(rig).code == "existing"
    rig.pass_ms(1)
    assert again(rig).code == "created"


def test_a_kept_name_outlives_its_forgotten_ticket() -> None:
    rig = Rig()
    first = rig.submit(unique=KEPT_CLAIM)
    rig.run(first)
    rig.settle(first)
    rig.do(Forget("t", 2, [first]))
    rig.checkpoint()
    assert again(rig) == Answer("existing", first, 7)
    assert again(rig, CONFLICT_REPLACE).code == "created"


def test_a_name_ends_by_the_settled_clock_alone() -> None:
    rig = Rig()
    first = rig.submit(unique=KEPT_CLAIM)
    rig.run(first)
    rig.settle(first)
    rig.now_ms += 10 * HOUR
    assert again(rig).code == "existing"
    rig.settled_ms = rig.now_ms
    assert again(rig).code == "created"


def test_a_dead_ticket_keeps_a_kept_name_until_it_is_dropped() -> None:
    rig = Rig()
    first = rig.submit(unique=KEPT_CLAIM)
    rig.run(first)
    rig.settle(first, "failed")
    rig.pass_ms(100 * HOUR)
    assert again(rig).code == "existing"
    rig.do(Drop([first]))
    assert again(rig).code == "created"


def test_a_dead_ticket_that_retention_forgets_frees_its_name() -> None:
    rig = Rig()
    first = rig.submit(unique=KEPT_CLAIM)
    rig.run(first)
    rig.settle(first, "failed")
    rig.do(Forget("t", 3, [first]))
    assert again(rig).code == "created"


@pytest.mark.parametrize("kind", ["done", "failed", "drop"])
def test_an_active_name_is_free_at_the_end(kind: str) -> None:
    rig = Rig()
    first = rig.submit(unique=ACTIVE_CLAIM)
    assert again(rig, unique=ACTIVE_CLAIM).code == "existing"
    rig.run(first)
    assert again(rig, unique=ACTIVE_CLAIM).code == "existing"
    rig.settle(first, kind)
    assert again(rig, unique=ACTIVE_CLAIM).code == "created"
    rig.checked()


def test_a_name_for_a_while_is_taken_that_long_whatever_happens() -> None:
    rig = Rig()
    claim = UniqueClaim("order", DURATION, rig.now_ms + HOUR)
    first = rig.submit(2 * HOUR, unique=claim)
    rig.do(Cancel(first))
    assert again(rig, unique=claim).code == "existing"
    rig.pass_ms(HOUR)
    later = UniqueClaim("order", DURATION, rig.now_ms + HOUR)
    assert again(rig, unique=later).code == "created"


def test_a_pending_ticket_whose_while_is_over_does_not_touch_its_successors_name() -> None:
    rig = Rig()
    first = rig.submit(9 * HOUR, unique=UniqueClaim("order", DURATION, rig.now_ms + HOUR))
    rig.pass_ms(HOUR)
    second = again(rig, unique=KEPT_CLAIM)
    assert second.code == "created"
    rig.do(Cancel(first))
    assert again(rig) == Answer("existing", second.serial, 7)
    rig.checked()


@pytest.mark.parametrize("parks", [False, True], ids=["hot", "parked"])
def test_replace_cancels_a_pending_holder_in_the_same_command(parks: bool) -> None:
    rig = Rig()
    first = rig.submit(HOUR, unique=KEPT_CLAIM)
    if parks:
        rig.checkpoint()
    second = again(rig, CONFLICT_REPLACE)
    assert second.code == "created"
    assert rig.head(first).why == "replaced"
    assert again(rig) == Answer("existing", second.serial, 7)
    rig.checked()


def test_replace_leaves_a_running_holder_alone() -> None:
    rig = Rig()
    first = rig.submit(unique=KEPT_CLAIM)
    rig.run(first)
    assert again(rig, CONFLICT_REPLACE) == Answer("existing", first, 7)


@pytest.mark.parametrize("kind", ["done", "failed"])
def test_replace_takes_the_name_of_an_ended_holder(kind: str) -> None:
    rig = Rig()
    first = rig.submit(unique=KEPT_CLAIM)
    rig.run(first)
    rig.settle(first, kind)
    rig.checkpoint()
    state = rig.head(first).state
    assert again(rig, CONFLICT_REPLACE).code == "created"
    assert rig.head(first).state == state


def test_a_dead_ticket_whose_name_is_taken_is_not_revived() -> None:
    rig = Rig()
    first = rig.submit(unique=ACTIVE_CLAIM)
    rig.run(first)
    rig.settle(first, "failed")
    second = rig.submit(HOUR, unique=ACTIVE_CLAIM)
    rig.checkpoint()
    answers = rig.do(Revive([first], rig.now_ms)).answers
    assert answers == [Refusal("duplicate", second, 7, -1)]
    rig.do(Cancel(second))
    assert codes(rig.do(Revive([first], rig.now_ms)).answers) == ["revived"]
    assert again(rig, unique=ACTIVE_CLAIM) == Answer("existing", first, 7)
    rig.checked()


def test_of_two_dead_tickets_of_one_name_one_is_revived() -> None:
    rig = Rig()
    serials = []
    for _ in range(2):
        serial = rig.submit(unique=ACTIVE_CLAIM)
        rig.run(serial)
        rig.settle(serial, "failed")
        serials.append(serial)
    answers = rig.do(Revive(serials, rig.now_ms)).answers
    assert codes(answers) == ["revived", "duplicate"]


def test_without_room_nothing_is_submitted_and_a_known_name_is_answered() -> None:
    rig = Rig()
    first = rig.submit(unique=KEPT_CLAIM)
    rig.core.has_room = False
    drafts = [rig.draft(), rig.draft(unique=KEPT_CLAIM), rig.draft(unique=ACTIVE_CLAIM, key="k")]
    verdict = rig.do(Submit(drafts, [CONFLICT_RETURN, CONFLICT_REPLACE, CONFLICT_RETURN]))
    assert codes(verdict.answers) == ["full", "existing", "full"]
    assert verdict.answers[1].serial == first and not verdict.records


def test_rows_in_memory_go_with_their_tickets() -> None:
    rig = Rig()
    for nth in range(5):
        rig.submit(HOUR, unique=UniqueClaim(f"order-{nth}", KEPT))
    rig.checkpoint()
    assert not rig.core.memory.uniques and not rig.core.hot
    rig.checked()


def test_a_child_in_an_outcome_is_born_with_it() -> None:
    rig = Rig()
    parent = rig.submit()
    rig.run(parent)
    child = Submitted(rig.last_serial + 1, 7, "u", rig.now_ms + 5, rig.now_ms, b"child")
    rig.settle(parent, born=[child])
    assert rig.head(child.serial).task == "u"
    live = rig.state()
    rig.reopen()
    assert rig.state() == live
    rig.checked()
