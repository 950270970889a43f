"""Small deliberate faults, each switched on alone (`make sabotage`).

Most are those that the laws of single rules are held against (tests/stateful, tests/fault); the
rest are of what lies between shards, and written here. Each names a test that fails while it is
switched on, and may lean the simulator's histories towards what it takes to notice.
"""

from collections.abc import Callable, Mapping, Sequence
from typing import Any, Final, NamedTuple

import msgspec
import pytest
from fault import test_journal_rules as journal_rules
from stateful import test_sabotage as host_rules
from stateful import test_sabotage_bookmarks as bookmark_rules
from stateful import test_sabotage_retention as retention_rules
from stateful import test_sabotage_store as store_rules
from stateful import test_shard_rules as placement_rules
from stateful import test_shard_store_rules as memory_rules

from parkade.admission import Admission
from parkade.asks import Ask
from parkade.attempts import Attempts
from parkade.caller_frames import CallerFrames, Line, Written
from parkade.guards import Guards
from parkade.handing import Handing
from parkade.host import Host
from parkade.levers import Levers
from parkade.runtime import Runtime
from parkade.shard.apply import Applying
from parkade.shard.births import Births
from parkade.shard.commands import Hand
from parkade.shard.outbox import Outbox
from parkade.store.errors import StoreError
from parkade.store.journal import Journal
from parkade.store.record import Submitted
from simulation.history import EVEN, Lean
from simulation.sabotage_second import SECOND

__all__ = ["FAULTS", "Break", "Fault"]

Break = Callable[[pytest.MonkeyPatch], None]


class Fault(NamedTuple):
    """`test`: the one that fails while it is switched on, no simulation."""

    name: str
    broken: Break
    test: str
    lean: Lean = EVEN


# ------------------------------------------------------------------ submits that callers write


def a_caller_who_writes_beside_a_frame_on_its_way(patch: pytest.MonkeyPatch) -> None:
    takes = Written.takes

    def takes_any(self: Written, count: int, body_bytes: int) -> bool:
        shard, records = self._shard, self._shard.records
        in_flight, shard.records, shard.frame_in_flight = shard.frame_in_flight, [], False
        try:
            return takes(self, count, body_bytes)
        finally:
            shard.records, shard.frame_in_flight = records, in_flight

    patch.setattr(Written, "takes", takes_any)
    patch.setattr(CallerFrames, "_is_under_way", lambda self, shard: False)


def what_callers_wrote_left_until_there_is_much(patch: pytest.MonkeyPatch) -> None:
    take_in = Written.take_in
    patch.setattr(Written, "take_in", lambda self: take_in(self) if len(self) > 20 else None)


def a_caller_told_of_a_write_that_failed(patch: pytest.MonkeyPatch) -> None:
    write = Written.write

    def write_at_best(
        self: Written, lines: list[Line], drafts: list[Submitted], body: bytes
    ) -> None:
        try:
            write(self, lines, drafts, body)
        except StoreError:
            self._shard.pen.is_durable = True

    patch.setattr(Written, "write", write_at_best)


# ------------------------------------------------------------------ attempts and what they hold


def the_fence_lowered_by_a_revive(patch: pytest.MonkeyPatch) -> None:
    revived = Applying._revived

    def lowered(self: Applying, record: Any) -> None:
        revived(self, record)
        ticket = self.memory.hot.get(record.serial)
        if ticket is not None:
            ticket.fence = 0

    patch.setattr(Applying, "_revived", lowered)


def deaths_counted_of_whoever_ran(patch: pytest.MonkeyPatch) -> None:
    lost_item = Attempts._lost_item

    def blamed(self: Attempts, ticket: Any, suspects: int) -> Any:
        return msgspec.structs.replace(lost_item(self, ticket, suspects), is_alone=True)

    patch.setattr(Attempts, "_lost_item", blamed)


def suspects_side_by_side(patch: pytest.MonkeyPatch) -> None:
    nobody = property(lambda _: None, lambda _, value: None)
    patch.setattr(Admission, "suspect_running", nobody, raising=False)


def a_permit_freed_before_the_attempt_ends(patch: pytest.MonkeyPatch) -> None:
    begin = Attempts._run_all

    def early(self: Attempts, shard: Any, started: Any, payloads: Any) -> None:
        begin(self, shard, started, payloads)
        for serial in payloads:
            attempt = self._attempts.get(serial)
            if attempt is not None and attempt.permit is not None:
                permit, attempt.permit = attempt.permit, None
                self.admission.release(permit, shard.host.now_ms)

    patch.setattr(Attempts, "_run_all", early)


def a_permit_never_freed_when_its_start_is_refused(patch: pytest.MonkeyPatch) -> None:
    def forget(self: Attempts, serial: int) -> None:
        self._attempts.pop(serial, None)

    patch.setattr(Attempts, "_release", forget)


def a_zombie_without_a_place(patch: pytest.MonkeyPatch) -> None:
    end = Attempts._end

    def ended(self: Attempts, number: int, outcome: Any) -> None:
        end(self, number, outcome)
        zombie = self._zombies.get(outcome.serial)
        if zombie is not None and zombie.permit is not None:
            permit, zombie.permit = zombie.permit, None
            self.admission.release(permit, self._shards[number].host.now_ms)

    patch.setattr(Attempts, "_end", ended)


def a_ticket_started_beside_its_zombie(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(Attempts, "is_outlived", lambda self, serial: False)


def limits_that_nobody_asks(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(Guards, "_limit", lambda self, scope, quotas, mono_ms: None)


def a_shard_that_recovers_loses_its_attempts(patch: pytest.MonkeyPatch) -> None:
    failed = Attempts.shard_failed

    def forgotten(self: Attempts, shard: Any) -> None:
        failed(self, shard)
        for serial in [s for s, held in self._attempts.items() if held.number == shard.number]:
            self._release(serial)

    patch.setattr(Attempts, "shard_failed", forgotten)


# ------------------------------------------------------------------ between shards


def an_entry_dropped_when_it_is_sent(patch: pytest.MonkeyPatch) -> None:
    send = Handing._send

    def sent(self: Handing, number: int) -> None:
        window = list(self._core.outbox.windows.get(number, ()))
        was_idle = number not in self._under_way
        send(self, number)
        if was_idle and number in self._under_way:
            self._shard.put(Ask(Hand(number, window[-1]), size=200))

    patch.setattr(Handing, "_send", sent)


def entries_sent_before_they_are_durable(patch: pytest.MonkeyPatch) -> None:
    batch = Handing._batch

    def early(self: Handing, number: int) -> Any:
        shard = self._shard
        durable_lsn, shard.durable_lsn = shard.durable_lsn, 1 << 62
        try:
            return batch(self, number)
        finally:
            shard.durable_lsn = durable_lsn

    patch.setattr(Handing, "_batch", early)


def entries_sent_backwards(patch: pytest.MonkeyPatch) -> None:
    batch = Handing._batch

    def backwards(self: Handing, number: int) -> Any:
        entries, size = batch(self, number)
        return entries[::-1], size

    patch.setattr(Handing, "_batch", backwards)


def what_was_taken_is_forgotten(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(Outbox, "take", lambda self, sender, place: None)


def births_for_others_forgotten(patch: pytest.MonkeyPatch) -> None:
    complete = Births._with

    def at_home_only(self: Births, record: Any, drafts: Any) -> Any:
        return complete(self, record, [draft for draft in drafts if self.is_home(draft)])

    patch.setattr(Births, "_with", at_home_only)


# ------------------------------------------------------------------ time and the house


def the_wall_clock_for_the_settled_one(patch: pytest.MonkeyPatch) -> None:
    read = Host._read_clocks

    def believing(self: Host) -> None:
        read(self)
        self.settled_ms = self.now_ms
        self._settled_clock._settled = self.now_ms  # type: ignore[assignment]

    patch.setattr(Host, "_read_clocks", believing)


def serials_given_out_without_a_lease(patch: pytest.MonkeyPatch) -> None:
    def lease(self: Runtime) -> None:
        self.serials.extend(self.serials.next_lease(self.clock.now_ms()))

    patch.setattr(Runtime, "_lease", lease)


def pauses_told_and_not_written(patch: pytest.MonkeyPatch) -> None:
    def change(self: Levers, records: Any, apply: Callable[[], None]) -> None:
        self._host.call(apply)

    patch.setattr(Levers, "change", change)


def trips_told_and_not_written(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(Levers, "note_breakers", lambda self, names: None)


def trips_shown_before_they_are_written(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(Levers, "expect_breakers", lambda self, names: None)


# ------------------------------------------------------------------ the journal


def _journal(kind: type[Journal]) -> Break:
    def broken(patch: pytest.MonkeyPatch) -> None:
        patch.setattr("parkade.opening.Journal", kind)
        patch.setattr("parkade.house.Journal", kind)

    broken.__name__ = kind.__name__
    return broken


STATEFUL = "tests/stateful/test_"


def _of_rules(module: Any, file: str, breaks: Sequence[Break]) -> dict[Break, str]:
    """The law of each rule that such a break breaks, as it holds while nothing is broken."""
    laws = {rule.broken: module.name_of(rule) for rule in reversed(module.RULES)}
    test = f"{STATEFUL}{file}.py::test_a_rule_that_is_kept_lets_its_law_hold"
    return {broken: f"{test}[{laws[broken]}]" for broken in breaks}


def _of_scenarios(module: Any, file: str, breaks: Sequence[Break]) -> dict[Break, str]:
    scenarios = {broken: scenario.__name__ for scenario, broken in reversed(module.RULES)}
    test = f"{STATEFUL}{file}.py::test_a_rule_that_is_kept_lets_its_scenario_pass"
    return {broken: f"{test}[{scenarios[broken]}]" for broken in breaks}


def _of_journals(kinds: Sequence[type[Journal]]) -> dict[Break, str]:
    laws = {
        kind: f"rule-{number}-{law.__name__}"
        for number, law, broken in reversed(journal_rules.LAWS)
        for kind in broken
    }
    test = "tests/fault/test_journal_rules.py::test_the_journal_keeps_the_law_of_the_rule"
    return {_journal(kind): f"{test}[{laws[kind]}]" for kind in kinds}


OF_RULES: Final = {
    **_of_rules(host_rules, "sabotage", [
        host_rules.answered_at_once,
        host_rules.an_append_that_cannot_fail,
        host_rules.segments_that_go_when_the_commit_is_sent,
        host_rules.a_tail_cut_before_its_last_frame,
        host_rules.the_next_lsn_of_the_journal_alone,
        host_rules.whole_frames_applied,
        host_rules.a_replay_that_loads_nothing,
        host_rules.running_tickets_left_in_the_store,
        host_rules.the_wall_clock_saved_as_settled,
    ]),
    **_of_rules(store_rules, "sabotage_store", [
        store_rules.counters_of_another_moment,
        store_rules.tickets_changed_in_place,
        store_rules.a_commit_sent_ahead_of_the_journal,
        store_rules.completed_when_it_is_sent,
        store_rules.the_dirty_evicted,
        store_rules.no_tombstones,
        store_rules.old_pages_taken,
        store_rules.old_sweeps_taken,
        store_rules.the_flight_forgotten,
        store_rules.a_failed_commit_believed,
        store_rules.a_horizon_that_is_a_time,
        store_rules.the_overlay_emptied_at_the_cut,
        store_rules.every_entry_taken_from_the_agenda,
    ]),
    **_of_scenarios(placement_rules, "shard_rules", [
        placement_rules.whatever_a_timer_names_fires,
        placement_rules.a_horizon_that_is_never_lowered,
        placement_rules.an_open_that_begins_at_now,
        placement_rules.a_ticket_met_early_counts_as_unchanged,
        placement_rules.a_window_that_takes_in_whatever_comes,
        placement_rules.a_key_that_stops_nobody,
        placement_rules.a_key_that_is_not_handed_on,
    ]),
    **_of_scenarios(memory_rules, "shard_store_rules", [
        memory_rules.any_ticket_deletes_the_row_of_its_name,
        memory_rules.the_store_asked_before_the_flight,
        memory_rules.every_read_counts_as_fresh,
    ]),
    **_of_rules(bookmark_rules, "sabotage_bookmarks", [
        bookmark_rules.any_fence_will_do,
        bookmark_rules.a_merge_without_it,
        bookmark_rules.rows_that_nobody_deletes,
    ]),
    **_of_rules(retention_rules, "sabotage_retention", [retention_rules.age_by_the_wall_clock]),
    **_of_journals([
        journal_rules.AppendsBehindTheGarbage,
        journal_rules.EndsNoRun,
        journal_rules.KnowsNoProof,
        journal_rules.TakesAReadErrorForTheEnd,
        journal_rules.TrustsAFailedSyncsPages,
        journal_rules.TrustsThePageCache,
        journal_rules.NeverSyncsItsDirectory,
        journal_rules.DropsTooMuch,
        journal_rules.GivesEachSegmentTheSameSalt,
    ]),
}  # fmt: skip

CALLERS: Final = "tests/unit/engine/test_caller_frames.py"
PENS: Final = "tests/unit/engine/test_pens.py"
BETWEEN: Final[dict[Break, str]] = {
    a_caller_who_writes_beside_a_frame_on_its_way: (
        f"{PENS}::test_only_a_shard_with_all_on_disk_and_room_for_more_takes_it"
    ),
    what_callers_wrote_left_until_there_is_much: (
        f"{CALLERS}::test_a_sleeper_takes_no_pass_and_no_other_thread"
    ),
    a_caller_told_of_a_write_that_failed: (
        f"{CALLERS}::test_a_disk_that_fails_is_told_to_the_caller_and_the_shard_recovers"
    ),
    deaths_counted_of_whoever_ran: (
        "tests/unit/testing/test_crash.py::"
        "test_a_ticket_that_kills_its_process_three_times_alone_is_buried"
    ),
    the_fence_lowered_by_a_revive: (
        "tests/unit/engine/test_dead.py::test_reviving_gives_the_same_ticket_a_fresh_budget"
    ),
    suspects_side_by_side: (
        "tests/unit/engine/test_admission.py::"
        "test_one_suspect_runs_at_a_time_over_all_shards_and_holds_nobody_else"
    ),
    a_permit_freed_before_the_attempt_ends: (
        "tests/unit/engine/test_limits.py::test_a_concurrency_is_never_exceeded_and_always_used"
    ),
    a_permit_never_freed_when_its_start_is_refused: (
        "tests/unit/engine/test_in_hand.py::test_a_ticket_that_ends_in_hand_is_not_taken_for_damaged"
    ),
    a_zombie_without_a_place: (
        "tests/unit/engine/test_zombies.py::"
        "test_a_thread_past_its_timeout_keeps_its_place_and_holds_its_ticket"
    ),
    a_ticket_started_beside_its_zombie: (
        "tests/unit/engine/test_zombies.py::"
        "test_a_thread_past_its_timeout_keeps_its_place_and_holds_its_ticket"
    ),
    limits_that_nobody_asks: (
        "tests/unit/engine/test_limits.py::test_a_concurrency_is_never_exceeded_and_always_used"
    ),
    a_shard_that_recovers_loses_its_attempts: (
        "tests/fault/test_shard_failure.py::test_an_attempt_that_runs_meanwhile_is_not_lost"
    ),
    an_entry_dropped_when_it_is_sent: (
        "tests/fault/test_handover.py::"
        "test_what_an_outcome_brings_forth_is_there_once_wherever_the_process_dies"
    ),
    entries_sent_before_they_are_durable: (
        "tests/fault/test_handover.py::"
        "test_what_an_outcome_brings_forth_is_there_once_wherever_the_process_dies"
    ),
    entries_sent_backwards: (
        "tests/unit/engine/test_children.py::"
        "test_children_of_a_key_run_in_the_order_of_their_submits"
    ),
    what_was_taken_is_forgotten: (
        "tests/unit/shard/test_outbox.py::test_a_delivered_entry_is_taken_once_and_in_order"
    ),
    births_for_others_forgotten: (
        "tests/unit/engine/test_children.py::test_a_verdict_on_the_ticket_brings_its_children_forth"
    ),
    the_wall_clock_for_the_settled_one: (
        "tests/unit/engine/test_why.py::test_of_one_that_only_the_clock_holds_it_says_what_it_waits_for"
    ),
    serials_given_out_without_a_lease: (
        "tests/unit/engine/test_house.py::test_every_life_begins_behind_the_lease_of_the_one_before"
    ),
    pauses_told_and_not_written: (
        "tests/unit/engine/test_pauses.py::test_pauses_outlive_a_crash_and_a_stop"
    ),
    trips_told_and_not_written: (
        "tests/unit/engine/test_breakers.py::"
        "test_a_trip_outlives_a_crash_and_is_in_force_before_anything_starts"
    ),
    trips_shown_before_they_are_written: (
        "tests/unit/engine/test_breakers_told.py::"
        "test_a_trip_that_is_told_outlives_a_kill_though_its_outcome_is_not_durable_yet"
    ),
}

# What a fault takes that few histories have by themselves, by its name.
DISK: Final = {"durability": "disk"}
SYNCS: Final = DISK | {"failing": ("pwrite_durable", "fdatasync")}
BY_CALLERS: Final[dict[str, Any]] = {"has_caller_frames": True, "durability": "disk"}
LEANS: Final[Mapping[str, Lean]] = {
    "a_caller_who_writes_beside_a_frame_on_its_way": Lean({"submit sleepers": 6}, BY_CALLERS),
    "what_callers_wrote_left_until_there_is_much": Lean({"submit sleepers": 6}, BY_CALLERS),
    "a_caller_told_of_a_write_that_failed": Lean(
        {"submit sleepers": 10, "disk fails": 10}, BY_CALLERS | {"failing": ("pwrite_durable",)}
    ),
    "old_pages_taken": Lean({"page": 20, "find": 10, "checkpoint": 8, "submit": 2}),
    "old_sweeps_taken": Lean({"checkpoint": 6, "tick": 2}),
    "every_read_counts_as_fresh": Lean({"checkpoint": 6, "tick": 2}),
    "segments_that_go_when_the_commit_is_sent": Lean({"checkpoint": 6, "power cut": 4}, DISK),
    "a_commit_sent_ahead_of_the_journal": Lean({"checkpoint": 6, "power cut": 4}, DISK),
    "a_horizon_that_is_never_lowered": Lean(
        {"submit": 8, "rest": 4, "checkpoint": 4, "finish": 0, "run": 0, "sleep": 0},
        {"bounds": 1, "shards": 1, "mix": 0},
    ),
    "a_sweep_taken_though_the_horizon_came_down_meanwhile": Lean(
        {"submit": 8, "checkpoint": 4, "finish": 0, "set clock": 6},
        {"bounds": 1, "shards": 1, "mix": 0},
    ),
    "a_ticket_met_early_counts_as_unchanged": Lean(
        {"submit": 4, "finish": 0, "checkpoint": 6, "while away": 20, "sleep": 0}, {"bounds": 1}
    ),
    "any_ticket_deletes_the_row_of_its_name": Lean({"replace and drop": 30}),
    "any_fence_will_do": Lean({"tell": 8}, {"has_leases": True}),
    "a_merge_without_it": Lean({"tell": 20, "commit fails": 20, "checkpoint": 8}),
    "age_by_the_wall_clock": Lean(
        {"set clock": 6, "finish": 2}, {"keep_ms": 2_000, "keep_max": None}
    ),
    "EndsNoRun": Lean({"tear and kill": 20}, {"durability": "process", "has_caller_frames": True}),
    "TakesAReadErrorForTheEnd": Lean(
        {"disk fails": 8, "kill": 6, "disk fills": 0}, {"failing": ("pread",)}
    ),
    "TrustsAFailedSyncsPages": Lean({"disk fails": 4, "power cut": 4}, SYNCS),
    "a_ticket_started_beside_its_zombie": Lean({"tick": 2}, {"has_leases": True}),
    "entries_sent_before_they_are_durable": Lean(
        {"finish": 2, "power cut": 6}, DISK | {"shards": 3, "mix": 1}
    ),
    "a_bookmark_read_past_the_flight": Lean({"tell": 8, "checkpoint": 6}),
    "starts_before_what_was_sent_has_arrived": Lean({"send and kill": 20}, {"shards": 2, "mix": 0}),
    "what_arrived_forgotten_when_a_commit_fails": Lean(
        {"send and fail": 20}, {"shards": 3, "mix": 0}
    ),
    "a_refill_taken_though_the_edge_came_down_meanwhile": Lean({"submit": 2, "checkpoint": 6}),
    "a_window_emptied_by_whatever_arrives": Lean({"finish": 2}, {"shards": 3, "mix": 1}),
    "names_free_by_the_wall_clock": Lean({"submit": 2, "set clock": 8, "finish": 2}),
    "a_lease_renewed_after_its_end": Lean({"tell": 8}, {"has_leases": True}),
    "events_of_what_never_was": Lean({"disk fails": 6}, SYNCS),
    "trips_told_and_not_written": Lean({"breaker": 6, "kill": 6}, {"has_breaker": True}),
    "trips_shown_before_they_are_written": Lean({"trip and kill": 8}, {"has_breaker": True}),
}

FAULTS: Final = [
    Fault(broken.__name__, broken, test, LEANS.get(broken.__name__, EVEN))
    for broken, test in (OF_RULES | BETWEEN | SECOND).items()
]
