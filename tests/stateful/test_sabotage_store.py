"""Every rule between a shard's host and its store, broken once: its law notices.

Cuts, commits, completions, reads, and where tickets wait meanwhile. The journal's rules are in
`test_sabotage`, those of the core alone in `test_shard_rules` and `test_shard_store_rules`.
"""

import errno
from typing import Any

import pytest

from kit.laws import (
    DAY_MS,
    HOUR_MS,
    Rule,
    check_broken,
    check_kept,
    name_of,
    park,
    send_checkpoint,
    steps,
    submit_far,
)
from kit.stepped import Stepped
from parkade.asks import PageOf
from parkade.checkpoint import Checkpoint
from parkade.checkpointing import Checkpointing
from parkade.shard import CANCELLED, PENDING, Shard
from parkade.shard.commands import Cancel, Forget, Reschedule
from parkade.shard.lanes import SERIAL_BITS
from parkade.shard.memory import Memory
from parkade.shard.placement import Placement, Swept
from parkade.shard.ticket import StoredAt, Ticket
from parkade.shard_host import ShardHost
from parkade.store import writer
from parkade.store.snapshot import Snapshot

# ---------------------------------------------------------------------- store


def a_commit_is_the_state_at_its_lsn(shard: Stepped) -> None:
    submit_far(shard, 5)
    shard.want_checkpoint()
    steps(shard, "turn")  # the cut, and the first slice
    shard.submit(shard.draft(shard.now_ms + HOUR_MS))
    steps(shard, "turn, turn, turn, io, pass, writer")
    assert shard.shard.store.lsn == 5
    shard.crash()


def counters_of_another_moment(patch: pytest.MonkeyPatch) -> None:
    build = Checkpoint._build_rest

    def built(self: Checkpoint) -> None:
        build(self)
        self.batch.counters = self._core.counters

    patch.setattr(Checkpoint, "_build_rest", built)


def a_checkpoint_waits_for_its_lsn_to_be_durable(shard: Stepped) -> None:
    shard.submit(shard.draft(shard.now_ms + HOUR_MS))
    shard.want_checkpoint()
    steps(shard, "turn, turn, turn, writer")
    shard.crash()
    shard.finish()


def a_commit_sent_ahead_of_the_journal(patch: pytest.MonkeyPatch) -> None:
    send = Checkpointing._send_when_durable

    def sent(self: Checkpointing, current: Checkpoint) -> None:
        durable_lsn, self._shard.durable_lsn = self._shard.durable_lsn, current.lsn
        send(self, current)
        self._shard.durable_lsn = durable_lsn

    patch.setattr(Checkpointing, "_send_when_durable", sent)


def only_a_completion_makes_clean(shard: Stepped) -> None:
    submit_far(shard, 3)
    send_checkpoint(shard)
    assert len(shard.shard.core.hot) == 3
    steps(shard, "writer, hear writer")
    assert not shard.shard.core.hot


def completed_when_it_is_sent(patch: pytest.MonkeyPatch) -> None:
    send = Checkpointing._send_when_durable

    def sent(self: Checkpointing, current: Checkpoint) -> None:
        send(self, current)
        if current.is_sent:
            store = self._shard.store
            self._shard.core.complete(current.lsn, current.placed, store.lane_rows, 1, 0, {})
            self._current = None

    patch.setattr(Checkpointing, "_send_when_durable", sent)


def what_changed_during_a_flight_stays_in_memory(shard: Stepped) -> None:
    (serial,) = submit_far(shard)
    send_checkpoint(shard)
    shard.ask(Reschedule(serial, shard.now_ms + DAY_MS))
    steps(shard, "turn, writer, hear writer")
    assert list(shard.shard.core.hot) == [serial]
    shard.run()
    shard.crash()


def the_dirty_evicted(patch: pytest.MonkeyPatch) -> None:
    complete = Memory.complete

    def completed(self: Memory, lsn: int, placed: Any, keeps: Any, may_go: Any) -> Any:
        flight = complete(self, lsn, placed, keeps, may_go)
        for serial, ticket in list(self.dirty.tickets.items()):
            if ticket is not None and not keeps(ticket, False):
                del self.dirty.tickets[serial]
                self.evict(ticket)
        return flight

    patch.setattr(Memory, "complete", completed)


def what_is_in_flight_is_not_changed(shard: Stepped) -> None:
    serials = submit_far(shard, 5)
    shard.want_checkpoint()
    steps(shard, "turn")
    shard.ask(Reschedule(serials[-1], shard.now_ms + DAY_MS))
    # Its slice is encoded after the change, which is not durable when the power goes.
    for step in ("turn", "turn", "turn", "writer"):
        shard.step(step)
    shard.crash()


def tickets_changed_in_place(patch: pytest.MonkeyPatch) -> None:
    def own(self: Memory, ticket: Ticket) -> Ticket:
        self.dirty.tickets[ticket.serial] = ticket
        return ticket

    patch.setattr(Memory, "own", own)


def what_is_gone_stays_gone_while_the_store_has_it(shard: Stepped) -> None:
    (serial,) = park(shard)
    shard.ask(Cancel(serial))
    shard.run()
    shard.checkpoint()
    shard.ask(Forget("t", CANCELLED, [serial]))
    shard.run()
    shard.check()
    shard.crash()
    assert not shard.witness.tickets


def no_tombstones(patch: pytest.MonkeyPatch) -> None:
    erase = Memory.erase

    def erased(self: Memory, ticket: Ticket) -> None:
        erase(self, ticket)
        self.dirty.tickets.pop(ticket.serial, None)
        self.dirty.gone.pop(ticket.serial, None)
        self.stored_at.pop(ticket.serial, None)

    patch.setattr(Memory, "erase", erased)


def a_page_that_a_completion_overtook_is_read_again(shard: Stepped) -> None:
    submit_far(shard, 2)
    send_checkpoint(shard)
    shard.ask(PageOf((), 1 << 64, 10))
    steps(shard, "turn, io, io, writer, hear writer, hear io")
    shard.run()
    assert len(shard.answers[-1][1].tickets) == 2


def old_pages_taken(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(ShardHost, "is_stale", lambda self, commit: False)


def a_sweep_that_a_completion_overtook_counts_for_nothing(shard: Stepped) -> None:
    shard.run()
    (serial,) = submit_far(shard, delay_ms=1_200)
    assert shard.shard.placement.where(serial) == "overlay"
    send_checkpoint(shard)
    shard.pass_ms(600)
    steps(shard, "turn, io, io, writer, hear writer")
    assert not shard.shard.core.hot
    steps(shard, "hear io, hear io")
    shard.finish()


def old_sweeps_taken(patch: pytest.MonkeyPatch) -> None:
    swept = Placement.swept

    def taken(self: Placement, result: Swept, now_ms: int) -> bool:
        return swept(self, result._replace(snapshot_commit=1 << 62), now_ms)

    patch.setattr(Placement, "swept", taken)


def rows_that_were_read_before_others_came_leave_none_behind(shard: Stepped) -> None:
    """The read is overtaken by a commit at its own LSN: one of moves alone."""
    serials = park(shard, 6, 3_000)
    shard.run()
    shard.pass_ms(3_000)
    steps(shard, "turn, io, hear io, turn")
    send_checkpoint(shard)
    steps(shard, "writer, hear writer")
    assert len(shard.image().view.rows) == 1  # three are loaded, the fourth of the sweep has a row
    steps(shard, "io, hear io, io, hear io, io, hear io, io, hear io, turn")
    send_checkpoint(shard)  # of the other two, which are to have rows
    for serial in serials[:3]:
        shard.ask(Cancel(serial))
    steps(shard, "turn, io, io, io, writer, hear writer")
    assert len(shard.image().view.rows) == 3
    steps(shard, "hear io, hear io, hear io")
    shard.finish()


def snapshots_told_apart_by_lsn(patch: pytest.MonkeyPatch) -> None:
    complete = Shard.complete

    def completed(
        self: Shard, cut_lsn: int, placed: dict[int, StoredAt | None], rows: Any, commit: int
    ) -> None:
        is_same = cut_lsn == self.completed_lsn
        complete(self, cut_lsn, placed, rows, self.completed_commit if is_same else commit)

    patch.setattr(Shard, "complete", completed)


def a_read_that_was_dropped_twice_comes_in(shard: Stepped) -> None:
    horizon = shard.shard.placement.horizon
    shard.pass_ms(600)
    for _ in range(5):
        shard.submit(shard.draft(shard.now_ms + HOUR_MS))
        steps(shard, "turn, io, hear io")
        send_checkpoint(shard)
        steps(shard, "io, writer, hear writer, turn, hear io, turn")
        if shard.shard.placement.horizon > horizon:
            return
        steps(shard, "io, hear io")
    raise AssertionError("never read")


def no_completion_is_held(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(ShardHost, "holds_completion", False)


def a_failed_commit_loses_nothing(shard: Stepped) -> None:
    submit_far(shard, 3)
    for code in (errno.ENOSPC, errno.EIO):
        shard.fail_commit("before_commit", code)
        shard.want_checkpoint()
        shard.run()
        shard.check()
        shard.pass_ms(300)
    shard.checkpoint()
    assert len(shard.image().heads) == 3


def the_flight_forgotten(patch: pytest.MonkeyPatch) -> None:
    def merge_back(self: Shard) -> None:
        self.memory.flight = None

    patch.setattr(Shard, "merge_back", merge_back)


def a_commit_that_said_it_failed_and_was_done_is_found(shard: Stepped) -> None:
    submit_far(shard, 3)
    shard.fail_commit("after")
    shard.want_checkpoint()
    shard.run()
    assert (shard.shard.recoveries, shard.shard.core.completed_lsn) == (1, 3)
    shard.check()


def a_failed_commit_believed(patch: pytest.MonkeyPatch) -> None:
    def failed(self: Checkpointing, error: Exception | None) -> None:
        self._current = None
        self._shard.core.merge_back()

    patch.setattr(Checkpointing, "_failed", failed)


# ---------------------------------------------------------------------- placement


def tickets_of_one_millisecond_are_all_found(shard: Stepped) -> None:
    due_ms = shard.now_ms + 500
    for _ in range(7):
        shard.submit(shard.draft(due_ms))
        shard.run()
    shard.checkpoint()
    shard.crash()
    for _ in range(12):
        steps(shard, "pass, io")
    shard.finish()
    assert shard.witness.started >= 7


def a_horizon_that_is_a_time(patch: pytest.MonkeyPatch) -> None:
    raise_horizon = Placement._raise_horizon

    def raised(self: Placement, position: int) -> None:
        raise_horizon(self, position | ((1 << SERIAL_BITS) - 1))

    patch.setattr(Placement, "_raise_horizon", raised)


def what_is_not_yet_committed_fires_from_memory(shard: Stepped) -> None:
    shard.run()
    (serial,) = submit_far(shard, delay_ms=1_200)
    send_checkpoint(shard)
    shard.pass_ms(1_200)
    steps(shard, "pass, io, pass, io, pass")
    assert shard.witness.model.tickets[serial].state != PENDING


def the_overlay_emptied_at_the_cut(patch: pytest.MonkeyPatch) -> None:
    cut = Shard.cut

    def taken(self: Shard) -> Any:
        self.placement.overlay.clear()
        return cut(self)

    patch.setattr(Shard, "cut", taken)


def the_writer_finds_a_tickets_old_entry_by_looking(shard: Stepped) -> None:
    for _ in range(8):
        shard.submit(shard.draft())
        shard.run()
    shard.checkpoint()
    rows = shard.image().view.rows
    assert rows
    for _, _, serial in rows:
        shard.ask(Cancel(serial))
        shard.run()
    shard.checkpoint()
    assert not shard.image().view.rows


def every_entry_taken_from_the_agenda(patch: pytest.MonkeyPatch) -> None:
    def leave(transaction: Any, tables: Any, batch: Any, lane_rows: dict[int, int]) -> Any:
        return dict(lane_rows), list(batch.leaves)

    patch.setattr(writer, "_leave_lanes", leave)


def a_ticket_that_waits_for_its_key_has_one_row(shard: Stepped) -> None:
    for _ in range(9):
        shard.submit(shard.draft(key="k"))
        shard.run()
    for _ in range(6):
        shard.checkpoint()
    waits = shard.image().view.waits
    assert len(waits) >= 3
    for *_, serial in waits:
        shard.ask(Cancel(serial))
        shard.run()
    shard.checkpoint()
    assert not waits.keys() & shard.image().view.waits.keys()


def rows_of_keys_left_behind(patch: pytest.MonkeyPatch) -> None:
    leave = writer._leave_lanes

    def without_keys(transaction: Any, tables: Any, batch: Any, lane_rows: dict[int, int]) -> Any:
        batch.leaves += [entry for _, entry in batch.keyed_leaves]
        batch.keyed_leaves.clear()
        return leave(transaction, tables, batch, lane_rows)

    patch.setattr(writer, "_leave_lanes", without_keys)


def rows_of_keys_outlive_the_process(shard: Stepped) -> None:
    for _ in range(9):
        shard.submit(shard.draft(key="k"))
        shard.run()
    for _ in range(6):
        shard.checkpoint()
    assert len(shard.image().view.waits) >= 3
    shard.kill()
    shard.finish()


def an_open_without_queues(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(Snapshot, "wait_queues", lambda self: [])


RULES = [
    Rule("store-1", a_commit_is_the_state_at_its_lsn, counters_of_another_moment),
    Rule("store-3", what_is_in_flight_is_not_changed, tickets_changed_in_place),
    Rule(
        "store-4", a_checkpoint_waits_for_its_lsn_to_be_durable, a_commit_sent_ahead_of_the_journal
    ),
    Rule("store-5", only_a_completion_makes_clean, completed_when_it_is_sent),
    Rule("store-5", what_changed_during_a_flight_stays_in_memory, the_dirty_evicted),
    Rule("store-6", what_is_gone_stays_gone_while_the_store_has_it, no_tombstones),
    Rule("store-7", a_page_that_a_completion_overtook_is_read_again, old_pages_taken),
    Rule("store-7", a_sweep_that_a_completion_overtook_counts_for_nothing, old_sweeps_taken),
    Rule(
        "store-7",
        rows_that_were_read_before_others_came_leave_none_behind,
        snapshots_told_apart_by_lsn,
    ),
    Rule("store-7", a_read_that_was_dropped_twice_comes_in, no_completion_is_held),
    Rule("store-9", a_failed_commit_loses_nothing, the_flight_forgotten),
    Rule("store-9", a_commit_that_said_it_failed_and_was_done_is_found, a_failed_commit_believed),
    Rule("placement-1", tickets_of_one_millisecond_are_all_found, a_horizon_that_is_a_time),
    Rule(
        "placement-3", what_is_not_yet_committed_fires_from_memory, the_overlay_emptied_at_the_cut
    ),
    Rule(
        "placement-6",
        the_writer_finds_a_tickets_old_entry_by_looking,
        every_entry_taken_from_the_agenda,
    ),
    Rule("keys-3", a_ticket_that_waits_for_its_key_has_one_row, rows_of_keys_left_behind),
    Rule("keys-3", rows_of_keys_outlive_the_process, an_open_without_queues),
]


@pytest.mark.parametrize("rule", RULES, ids=name_of)
def test_a_rule_that_is_kept_lets_its_law_hold(rule: Rule) -> None:
    check_kept(rule)


@pytest.mark.parametrize("rule", RULES, ids=name_of)
def test_a_rule_that_is_broken_is_noticed(rule: Rule, monkeypatch: pytest.MonkeyPatch) -> None:
    check_broken(rule, monkeypatch)
