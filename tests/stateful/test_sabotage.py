"""Every rule between a shard's host and its journal, broken once: its law notices.

Turns, frames, segments, and what an open makes of them. The store's rules are in
`test_sabotage_store`, those of the core alone in `test_shard_rules` and `test_shard_store_rules`.
"""

from contextlib import suppress
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
from kit.stepped import Failed, Stepped
from parkade import opening
from parkade.asks import Ask
from parkade.checkpoint import Checkpoint
from parkade.checkpointing import Checkpointing
from parkade.io import ShardIO
from parkade.room import Room
from parkade.shard import CANCELLED, PENDING, Shard
from parkade.shard.commands import Cancel, Reschedule
from parkade.shard_host import ShardHost
from parkade.store.acceptance import Run, RunPart
from parkade.store.errors import StoreError
from parkade.store.journal import Journal
from parkade.store.record import Options, decode_records, encode_records

# ---------------------------------------------------------------------- turn, frames


def nothing_is_told_before_it_is_durable(shard: Stepped) -> None:
    shard.submit(shard.draft(shard.now_ms + HOUR_MS))
    steps(shard, "pass, pass")
    shard.crash()
    shard.run()
    shard.submit(shard.draft(shard.now_ms + HOUR_MS))
    steps(shard, "pass, io, pass")
    assert len(shard.answers) == 1
    shard.crash()


def no_handler_runs_before_its_start_is_durable(shard: Stepped) -> None:
    shard.submit(shard.draft())
    steps(shard, "pass, io, pass, pass")
    shard.crash()
    shard.finish()
    assert shard.witness.started == 2


def answered_at_once(patch: pytest.MonkeyPatch) -> None:
    def hold(self: ShardHost, ask: Ask, value: Any) -> None:
        self._release(ask, value)

    patch.setattr(ShardHost, "hold", hold)


def a_failed_append_answers_nobody(shard: Stepped) -> None:
    shard.fail_append("before")
    shard.submit(shard.draft(shard.now_ms + HOUR_MS))
    shard.run()
    assert isinstance(shard.answers[0][1], Failed)
    assert shard.shard.recoveries == 1
    shard.crash()


def an_append_that_cannot_fail(patch: pytest.MonkeyPatch) -> None:
    def append(self: ShardIO, journal: Any, records: Any, done: Any, failed: Any) -> None:
        last_lsn = journal.last_lsn + len(records)
        with suppress(StoreError):
            journal.append(encode_records(records), len(records))
        self._post(done, last_lsn)

    patch.setattr(ShardIO, "_append", append)


def a_waiting_frame_goes_before_the_next_read(shard: Stepped) -> None:
    read: list[int] = []
    shard.io.call(lambda: read.append(1), lambda value, error: None)
    shard.submit(shard.draft())
    steps(shard, "turn, io")
    assert not read
    shard.run()
    assert read


def reads_before_frames(patch: pytest.MonkeyPatch) -> None:
    run_one = ShardIO.run_one

    def run(self: ShardIO) -> bool:
        frames = self._frames
        if self._calls:
            self._frames = type(frames)()
        done = run_one(self)
        if self._frames is not frames:
            frames.extend(self._frames)
            self._frames = frames
        return done

    patch.setattr(ShardIO, "run_one", run)


def what_ends_things_finds_room_on_a_full_disk(shard: Stepped) -> None:
    (serial,) = submit_far(shard)
    shard.fill_disk(10_000)
    for _ in range(30):
        submit_far(shard)
        assert shard.shard.recoveries == 0, "an append met the full disk"
    assert shard.answers[-1][1][0].code == "full"
    shard.ask(Cancel(serial))
    shard.run()
    assert shard.answers[-1][1][0].code == "cancelled"


def room_is_taken_for_granted(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(Room, "takes", lambda self, ask: True)
    patch.setattr(Room, "_spare_prepared", lambda self, value, error: None)


# ---------------------------------------------------------------------- journal


def a_segment_stays_until_the_store_has_its_records(shard: Stepped) -> None:
    (serial,) = submit_far(shard)
    for nth in range(60):
        shard.ask(Reschedule(serial, shard.now_ms + DAY_MS + nth))
        steps(shard, "pass, io, pass, io, hear io")
    send_checkpoint(shard)
    assert shard.shard.checkpointing.is_sent and shard.shard.store.lsn == 0
    steps(shard, "io, io, io")
    shard.crash()
    assert shard.shard.journal.segments > 2
    assert shard.witness.model.tickets[serial].due_ms == shard.now_ms + DAY_MS + 59
    shard.checkpoint()
    assert shard.shard.journal.segments < 3


def segments_that_go_when_the_commit_is_sent(patch: pytest.MonkeyPatch) -> None:
    send = Checkpointing._send_when_durable

    def sent(self: Checkpointing, current: Checkpoint) -> None:
        send(self, current)
        shard, lsn = self._shard, current.lsn
        if current.is_sent:
            shard.io.call(lambda: shard.journal.drop_through(lsn), shard.failed_if)

    patch.setattr(Checkpointing, "_send_when_durable", sent)


def behind_a_torn_tail_it_goes_on(shard: Stepped) -> None:
    submit_far(shard)
    shard.fail_append("short")
    shard.submit(shard.draft(payload=bytes(600)))
    shard.run()
    assert shard.shard.is_open
    submit_far(shard)
    for _ in range(2):
        shard.crash()
    assert len(shard.witness.tickets) == 2


def a_tail_cut_before_its_last_frame(patch: pytest.MonkeyPatch) -> None:
    def cut(self: Journal, handle: int, part: RunPart) -> None:
        self._disk.ftruncate(handle, part.frames[-1].offset)

    patch.setattr(Journal, "_cut", cut)


def the_next_lsn_is_past_store_and_journal(shard: Stepped) -> None:
    submit_far(shard, 4)
    shard.checkpoint()
    shard.crash()
    assert shard.shard.core.lsn == 4, "the store is ahead of what the journal kept"
    submit_far(shard)
    shard.kill()
    assert len(shard.witness.tickets) == 5


def the_next_lsn_of_the_journal_alone(patch: pytest.MonkeyPatch) -> None:
    begin = Journal._begin

    def begun(self: Journal, run: Run, store_lsn: int, store_epoch: int) -> None:
        last_lsn = run.parts[-1].frames[-1].last_lsn if run.parts else 0
        begin(self, run, store_lsn, store_epoch)
        self.next_lsn = last_lsn + 1

    patch.setattr(Journal, "_begin", begun)


def a_frame_that_straddles_the_stores_lsn_is_applied_from_there(shard: Stepped) -> None:
    def submit() -> None:
        shard.submit(shard.draft(shard.now_ms + HOUR_MS))

    submit()
    steps(shard, "turn")
    submit()
    steps(shard, "turn")
    shard.want_checkpoint()
    steps(shard, "turn")  # the cut, between two records of one frame
    submit()
    steps(shard, "turn, io, hear io, turn, io, hear io, turn, turn, writer")
    assert shard.shard.store.lsn == 2
    shard.crash()
    assert len(shard.witness.tickets) == 3


def whole_frames_applied(patch: pytest.MonkeyPatch) -> None:
    def replay(core: Shard, reader: Any, frames: Any, path: str) -> None:
        for frame in frames:
            records = decode_records(frame.body)
            opening.load_named(core, reader, records)
            for record in records:
                core.apply(record)

    patch.setattr(opening, "replay", replay)


# ---------------------------------------------------------------------- opening


def what_a_record_names_is_loaded_before_it_is_applied(shard: Stepped) -> None:
    (serial,) = park(shard)
    shard.ask(Cancel(serial))
    shard.run()
    shard.crash()
    assert shard.witness.model.tickets[serial].state == CANCELLED


def a_replay_that_loads_nothing(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(opening, "load_named", lambda core, reader, records: frozenset())


def what_ran_at_a_crash_is_lost_and_tried_again(shard: Stepped) -> None:
    shard.submit(shard.draft())
    shard.run()
    assert shard.handlers.alive
    shard.checkpoint()
    shard.crash()
    shard.finish()
    assert shard.witness.started == 2


def running_tickets_left_in_the_store(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(opening, "adopt_running", lambda core, reader: None)


def a_clock_that_was_not_believed_destroys_nothing_after_an_open(shard: Stepped) -> None:
    shard.submit(shard.draft(shard.now_ms + 1_000, options=Options(expires_ms=HOUR_MS)))
    shard.checkpoint()
    (serial,) = shard.witness.model.tickets
    shard.pass_ms(3 * DAY_MS, 1)  # the wall clock leaps
    submit_far(shard)
    shard.checkpoint()
    shard.crash()
    shard.run()
    assert shard.witness.model.tickets[serial].state == PENDING


def the_wall_clock_saved_as_settled(patch: pytest.MonkeyPatch) -> None:
    build = Checkpoint._build_rest

    def built(self: Checkpoint) -> None:
        build(self)
        self.batch.settled_ms = self.batch.now_ms

    patch.setattr(Checkpoint, "_build_rest", built)


RULES = [
    Rule("turn-8", nothing_is_told_before_it_is_durable, answered_at_once),
    Rule("turn-8", no_handler_runs_before_its_start_is_durable, answered_at_once),
    Rule("journal-4", what_ends_things_finds_room_on_a_full_disk, room_is_taken_for_granted),
    Rule("journal-5", a_failed_append_answers_nobody, an_append_that_cannot_fail),
    Rule(
        "journal-6",
        a_segment_stays_until_the_store_has_its_records,
        segments_that_go_when_the_commit_is_sent,
    ),
    Rule("journal-1", behind_a_torn_tail_it_goes_on, a_tail_cut_before_its_last_frame),
    Rule(
        "opening-3", what_a_record_names_is_loaded_before_it_is_applied, a_replay_that_loads_nothing
    ),
    Rule(
        "opening-3",
        a_frame_that_straddles_the_stores_lsn_is_applied_from_there,
        whole_frames_applied,
    ),
    Rule(
        "opening-4", what_ran_at_a_crash_is_lost_and_tried_again, running_tickets_left_in_the_store
    ),
    Rule(
        "time-3",
        a_clock_that_was_not_believed_destroys_nothing_after_an_open,
        the_wall_clock_saved_as_settled,
    ),
    Rule("store-8", a_waiting_frame_goes_before_the_next_read, reads_before_frames),
    Rule(
        "store-10",
        the_next_lsn_is_past_store_and_journal,
        the_next_lsn_of_the_journal_alone,
        "process",
    ),
]


@pytest.mark.parametrize("rule", RULES, ids=name_of)
def test_a_rule_that_is_kept_lets_its_law_hold(rule: Rule) -> None:
    check_kept(rule)


@pytest.mark.parametrize("rule", RULES, ids=name_of)
def test_a_rule_that_is_broken_is_noticed(rule: Rule, monkeypatch: pytest.MonkeyPatch) -> None:
    check_broken(rule, monkeypatch)
