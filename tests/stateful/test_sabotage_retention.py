"""Every rule of forgetting, broken once: its law notices (docs/semantics.md, Forgetting)."""

from typing import Any

import pytest

from kit.laws import DAY_MS, Rule, check_broken, check_kept, name_of, steps
from kit.stepped import KeepingTasks, Stepped
from parkade.keeping import Keeping
from parkade.retention import Retention
from parkade.shard import DONE
from parkade.store.ended import Ended


def keep(shard: Stepped, *how: Any) -> None:
    """From here on, in the next life."""
    shard.keeping = Keeping(*how)
    shard.kill()
    shard.run()


def finish(shard: Stepped, count: int, task: str = "t") -> list[int]:
    """Tickets that are done, and in the store."""
    serials = []
    for _ in range(count):
        draft = shard.draft(task=task)
        serials.append(draft.serial)
        shard.submit(draft)
        shard.run()
        for job in list(shard.handlers.alive.values()):
            shard.settle(job)
        shard.run()
    shard.checkpoint()
    return serials


def left(shard: Stepped) -> list[int]:
    return sorted(s for s, entry in shard.witness.model.tickets.items() if entry.state == DONE)


# ---------------------------------------------------------------------- what is spent


def a_blob_goes_with_the_checkpoint_that_has_its_tickets_forgotten(shard: Stepped) -> None:
    keep(shard, 3_000)
    finish(shard, 2)
    shard.pass_ms(4_000)
    steps(shard, "pass, io, hear io")  # what is old was found, and is not forgotten yet
    shard.want_checkpoint()
    for _ in range(12):
        steps(shard, "turn, writer, hear writer")
    shard.run()
    assert left(shard) == []


def blobs_dropped_when_they_are_read(patch: pytest.MonkeyPatch) -> None:
    found = Retention._found

    def dropped(
        self: Retention, kind: Any, before: int, commit: int, got: Ended, **how: Any
    ) -> None:
        self._note_spent(got.spent)
        found(self, kind, before, commit, got, **how)

    patch.setattr(Retention, "_found", dropped)


# ---------------------------------------------------------------------- how long


def a_clock_that_jumps_forgets_nothing(shard: Stepped) -> None:
    keep(shard, DAY_MS)
    serials = finish(shard, 3)
    shard.pass_ms(400 * DAY_MS, 1_000)
    shard.run()
    assert left(shard) == serials


def age_by_the_wall_clock(patch: pytest.MonkeyPatch) -> None:
    look = Retention._look_by_age

    def looked(self: Retention) -> bool:
        host: Any = self._shard.host
        settled_ms, host.settled_ms = host.settled_ms, host.now_ms
        try:
            return look(self)
        finally:
            host.settled_ms = settled_ms

    patch.setattr(Retention, "_look_by_age", looked)


def what_a_task_keeps_is_kept_beside_a_busy_one(shard: Stepped) -> None:
    keep(shard, None, 2, None, KeepingTasks({"u": DAY_MS}))
    kept = finish(shard, 3, "u")
    busy = finish(shard, 5)
    for _ in range(10):
        shard.pass_ms(500)
        shard.run()
    assert left(shard) == kept + busy[-2:]


def all_of_them_counted(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(Keeping, "is_counted", lambda self, task, state, keeps: state == DONE)


# ---------------------------------------------------------------------- going on


def a_backlog_is_forgotten_without_waiting_for_the_next_look(shard: Stepped) -> None:
    keep(shard)
    finish(shard, 30)
    shard.pass_ms(10_000)
    keep(shard, 1_000)
    assert left(shard) == []


def one_slice_for_each_look(patch: pytest.MonkeyPatch) -> None:
    put = Retention._forget

    def forget(self: Retention, *what: Any) -> None:
        put(self, *what)
        self._next_ms = self._shard.host.mono_ms + self.pause_ms

    patch.setattr(Retention, "_forget", forget)


def a_forgetting_that_failed_is_made_again(shard: Stepped) -> None:
    keep(shard, 3_000)
    finish(shard, 4)
    shard.pass_ms(4_000)
    shard.fail_append("before")
    shard.run()
    shard.pass_ms(2_000)
    shard.run()
    assert left(shard) == []


def nobody_looks_again_after_an_error(patch: pytest.MonkeyPatch) -> None:
    put = Retention._forget

    def forget(self: Retention, *what: Any) -> None:
        put(self, *what)
        Retention.step = lambda self: None  # type: ignore[method-assign]

    patch.setattr(Retention, "step", Retention.step)
    patch.setattr(Retention, "_forget", forget)


RULES = [
    Rule(
        "spent",
        a_blob_goes_with_the_checkpoint_that_has_its_tickets_forgotten,
        blobs_dropped_when_they_are_read,
    ),
    Rule("age", a_clock_that_jumps_forgets_nothing, age_by_the_wall_clock),
    Rule("number", what_a_task_keeps_is_kept_beside_a_busy_one, all_of_them_counted),
    Rule("pace", a_backlog_is_forgotten_without_waiting_for_the_next_look, one_slice_for_each_look),
    Rule("pace", a_forgetting_that_failed_is_made_again, nobody_looks_again_after_an_error),
]


@pytest.mark.parametrize("rule", RULES, ids=name_of)
def test_a_rule_that_is_kept_lets_its_law_hold(rule: Rule) -> None:
    check_kept(rule)


@pytest.mark.parametrize("rule", RULES, ids=name_of)
def test_a_rule_that_is_broken_is_noticed(rule: Rule, monkeypatch: pytest.MonkeyPatch) -> None:
    check_broken(rule, monkeypatch)
