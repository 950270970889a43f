"""Deliberate faults that somebody invented who had seen none of the others.

Each is what a tired colleague might write: a check left out, an order turned round, a moment too
early, something that is never let go. How they are switched on: `simulation.faults`.
"""

from collections.abc import Callable, Sequence
from typing import Any

import pytest
from stateful import test_sabotage_bookmarks as bookmark_rules

from parkade.asks import Inquiry
from parkade.checkpoint import Checkpoint
from parkade.handing import Handing
from parkade.levers import Levers
from parkade.noting import Notebook
from parkade.runs import Run
from parkade.serials import Serials
from parkade.shard.apply import Applying
from parkade.shard.claims import Claims
from parkade.shard.generation import Generation
from parkade.shard.horizon import Horizon
from parkade.shard.memory import UNREAD, Memory
from parkade.shard.outbox import Outbox
from parkade.shard.placement import Placement
from parkade.shard.ticket import Ticket
from parkade.shard_host import ShardHost
from parkade.store.journal import Journal
from parkade.store.meta import encode_taken

__all__ = ["SECOND"]

Break = Callable[[pytest.MonkeyPatch], None]


# ------------------------------------------------------------------ checkpoints and memory


def hand_overs_taken_noted_when_the_checkpoint_is_built(patch: pytest.MonkeyPatch) -> None:
    rest = Checkpoint._build_rest

    def late(self: Checkpoint) -> None:
        rest(self)
        self.batch.taken = encode_taken(self._core.outbox.taken)

    patch.setattr(Checkpoint, "_build_rest", late)


def marks_of_expiry_left_behind(patch: pytest.MonkeyPatch) -> None:
    leave = Checkpoint._leave

    def unmarked(self: Checkpoint, serial: int, stored: Any, key: str | None) -> None:
        leave(self, serial, None if stored is None else stored._replace(expiry_ms=0), key)

    patch.setattr(Checkpoint, "_leave", unmarked)


def a_bookmark_read_past_the_flight(patch: pytest.MonkeyPatch) -> None:
    def bookmark(self: Memory, serial: int) -> Any:
        return self.dirty.bookmarks.get(serial, UNREAD)

    patch.setattr(Memory, "bookmark", bookmark)


def clean_tickets_kept_for_ever_when_the_horizon_is_lowered(patch: pytest.MonkeyPatch) -> None:
    lower = Horizon._lower

    def lowered(self: Horizon, horizon: int) -> None:
        before = set(self.memory.lingering)
        lower(self, horizon)
        self.memory.lingering = before

    patch.setattr(Horizon, "_lower", lowered)


def what_arrived_forgotten_when_a_commit_fails(patch: pytest.MonkeyPatch) -> None:
    under = Generation.under

    def kept(self: Generation, newer: Generation) -> Generation:
        handed, newer.handed = newer.handed, {}
        both = under(self, newer)
        newer.handed = handed
        return both

    patch.setattr(Generation, "under", kept)


# ------------------------------------------------------------------ where tickets wait


def expiry_forgotten_with_whoever_leaves_memory(patch: pytest.MonkeyPatch) -> None:
    def disarm(self: Placement, ticket: Ticket) -> bool:
        self.expiries.disarm(ticket.serial)
        return False

    patch.setattr(Placement, "_disarm_far", disarm)


def a_sweep_taken_though_the_horizon_came_down_meanwhile(patch: pytest.MonkeyPatch) -> None:
    swept = Placement.swept

    def taken(self: Placement, result: Any, now_ms: int) -> bool:
        self.sweep_from = self.horizon
        return swept(self, result, now_ms)

    patch.setattr(Placement, "swept", taken)


def a_refill_taken_though_the_edge_came_down_meanwhile(patch: pytest.MonkeyPatch) -> None:
    refilled = Placement.refilled

    def taken(self: Placement, result: Any, now_ms: int) -> bool:
        self._asker(result.lane_number, result.key).asked_edge = -2
        return refilled(self, result, now_ms)

    patch.setattr(Placement, "refilled", taken)


# ------------------------------------------------------------------ between shards


def a_window_emptied_by_whatever_arrives(patch: pytest.MonkeyPatch) -> None:
    hand = Outbox.hand

    def emptied(self: Outbox, receiver: int, place: Any) -> None:
        hand(self, receiver, place)
        self.windows.pop(receiver, None)
        self.window_bytes.pop(receiver, None)

    patch.setattr(Outbox, "hand", emptied)


def ids_that_answer_for_a_name_for_ever(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(Applying, "_end_aliases", lambda self, ticket, row: None)


def starts_before_what_was_sent_has_arrived(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(Handing, "is_behind", property(lambda self: False))


def children_of_attempts_that_failed(patch: pytest.MonkeyPatch) -> None:
    patch.setattr("parkade.runs.is_stated", lambda outcome, error: True)


# ------------------------------------------------------------------ names, ids, time


def names_free_by_the_wall_clock(patch: pytest.MonkeyPatch) -> None:
    begin = Claims.__init__

    def believing(self: Claims, view: Any, now_ms: int, _: int, *, may_replace: bool) -> None:
        begin(self, view, now_ms, now_ms, may_replace=may_replace)

    patch.setattr(Claims, "__init__", believing)


def a_life_whose_serials_begin_at_the_clock(patch: pytest.MonkeyPatch) -> None:
    begin = Serials.__init__

    def anew(self: Serials, first: int, lease_until: int, ask_lease: Callable[[], None]) -> None:
        begin(self, 1, lease_until, ask_lease)

    patch.setattr(Serials, "__init__", anew)


def a_lease_renewed_after_its_end(patch: pytest.MonkeyPatch) -> None:
    def renew(self: Run, now_ms: int) -> None:
        if self.lease_until_ms is not None:
            self.lease_until_ms = max(self.lease_until_ms, now_ms + self.lease_ms)

    patch.setattr(Run, "renew", renew)


# ------------------------------------------------------------------ forgetting


def each_shard_keeps_its_part_whatever_the_others_have(patch: pytest.MonkeyPatch) -> None:
    def share_of(place: int, counts: Sequence[int], most: int) -> int:
        return most // len(counts)

    patch.setattr("parkade.retention.share_of", share_of)


# ------------------------------------------------------------------ breakers and the house


def a_breaker_that_closed_and_is_open_at_the_next_open(patch: pytest.MonkeyPatch) -> None:
    note = Levers.note_breakers

    def trips_alone(self: Levers, names: Sequence[str]) -> None:
        circuits = self._guards.circuits
        note(self, [name for name in names if name in circuits and circuits[name].state])

    patch.setattr(Levers, "note_breakers", trips_alone)


# ------------------------------------------------------------------ what is told, and when


def reads_that_do_not_wait_for_what_they_saw(patch: pytest.MonkeyPatch) -> None:
    bookmark_rules.answers_that_do_not_wait(patch, Inquiry)


def attempts_told_to_stop_before_that_is_durable(patch: pytest.MonkeyPatch) -> None:
    def at_once(shard: ShardHost, stop: Any, asked: Any, verdict: Any) -> None:
        for record in verdict.records:
            if type(record).__name__ == "CancelRequested":
                stop(record.serial, record.fence, record.reason)

    patch.setattr("parkade.shard_host.stop_attempts", at_once)


def events_of_what_never_was(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(Notebook, "drop", lambda self: None)


# ------------------------------------------------------------------ the journal


def frames_behind_a_header_that_may_be_lost(patch: pytest.MonkeyPatch) -> None:
    start = Journal._start_segment

    def unsynced(self: Journal, spare: Any, prior_end: int) -> Any:
        self._sync = lambda handle: None  # type: ignore[method-assign]
        try:
            return start(self, spare, prior_end)
        finally:
            del self._sync

    patch.setattr(Journal, "_start_segment", unsynced)


SMALLEST = "tests/stateful/test_second_faults.py"

SECOND: dict[Break, str] = {
    hand_overs_taken_noted_when_the_checkpoint_is_built: (
        f"{SMALLEST}::test_a_checkpoint_says_what_was_taken_when_it_was_cut"
    ),
    marks_of_expiry_left_behind: (f"{SMALLEST}::test_the_mark_of_an_expiry_goes_with_its_ticket"),
    a_bookmark_read_past_the_flight: (
        "tests/stateful/test_sabotage_bookmarks.py::test_a_rule_that_is_kept_lets_its_law_hold"
    ),
    clean_tickets_kept_for_ever_when_the_horizon_is_lowered: (
        f"{SMALLEST}::test_a_clean_ticket_past_a_lowered_horizon_leaves_memory"
    ),
    what_arrived_forgotten_when_a_commit_fails: (
        "tests/unit/shard/test_outbox.py::"
        "test_what_is_handed_while_a_checkpoint_writes_it_is_gone_with_the_next"
    ),
    expiry_forgotten_with_whoever_leaves_memory: (
        f"{SMALLEST}::test_who_leaves_memory_behind_the_mark_of_its_expiry_still_expires"
    ),
    a_sweep_taken_though_the_horizon_came_down_meanwhile: (
        f"{SMALLEST}::test_a_sweep_counts_for_nothing_when_the_horizon_came_down_meanwhile"
    ),
    a_refill_taken_though_the_edge_came_down_meanwhile: (
        "tests/unit/shard/test_placement.py::"
        "test_a_refill_asked_from_an_edge_that_has_come_down_is_asked_again"
    ),
    a_window_emptied_by_whatever_arrives: (
        "tests/unit/shard/test_outbox.py::"
        "test_a_window_holds_the_first_entries_and_goes_on_from_the_store"
    ),
    ids_that_answer_for_a_name_for_ever: (
        "tests/unit/shard/test_outbox.py::"
        "test_a_child_whose_unique_is_taken_answers_as_its_holder_until_that_ends"
    ),
    starts_before_what_was_sent_has_arrived: (
        "tests/unit/engine/test_handing.py::test_what_memory_does_not_hold_yet_is_waited_for_too"
    ),
    children_of_attempts_that_failed: (
        "tests/unit/engine/test_children.py::"
        "test_an_id_that_nobody_made_is_unknown_also_while_children_are_on_their_way"
    ),
    names_free_by_the_wall_clock: (
        "tests/unit/shard/test_submit.py::test_a_name_ends_by_the_settled_clock_alone"
    ),
    a_life_whose_serials_begin_at_the_clock: (
        "tests/unit/engine/test_serials.py::test_none_is_ever_outside_the_lease_or_taken_twice"
    ),
    a_lease_renewed_after_its_end: (
        "tests/unit/testing/test_attempts_in_depth.py::"
        "test_a_lease_that_is_over_is_not_renewed_and_nothing_is_saved"
    ),
    each_shard_keeps_its_part_whatever_the_others_have: (
        f"{SMALLEST}::test_what_the_other_shards_do_not_need_is_kept_by_one_that_has_more"
    ),
    a_breaker_that_closed_and_is_open_at_the_next_open: (
        "tests/unit/engine/test_breakers.py::"
        "test_a_trip_outlives_a_crash_and_is_in_force_before_anything_starts"
    ),
    reads_that_do_not_wait_for_what_they_saw: (
        f"{SMALLEST}::test_a_look_waits_until_what_it_saw_is_durable"
    ),
    attempts_told_to_stop_before_that_is_durable: (
        f"{SMALLEST}::test_an_attempt_hears_that_it_is_to_stop_once_that_is_durable"
    ),
    events_of_what_never_was: (f"{SMALLEST}::test_no_event_tells_of_what_a_shard_could_not_write"),
    frames_behind_a_header_that_may_be_lost: (
        "tests/fault/test_journal.py::"
        "test_when_any_call_fails_once_what_was_answered_survives_the_next_power_cut"
    ),
}
