"""One shard fails: what its callers hear, how it comes back, and that the others do not notice."""

import logging
import threading
from pathlib import Path
from typing import Any

import pytest

from kit.clock import ManualClock
from kit.engines import (
    PATIENCE_S,
    checkpoint,
    hold_handlers,
    make,
    recount,
    rig,
    runtime_of,
    when,
)
from kit.failing import fail_append, key_of, keyed, recovered, statuses
from kit.faulty import FaultyDisk
from parkade import (
    PartialSubmit,
    StorageError,
    StorageFull,
    limits,
)
from parkade.asks import Ask
from parkade.shard.commands import Start, StartAlike
from parkade.store.journal import Journal
from parkade.store.parked import Parked


@pytest.fixture
def clock() -> ManualClock:
    return ManualClock()


@pytest.fixture
def disk() -> FaultyDisk:
    return FaultyDisk()


# ------------------------------------------------------------------------------- the journal


def test_a_failed_append_is_told_and_recovered_from_by_itself(
    tmp_path: Path, disk: FaultyDisk
) -> None:
    with rig(make(tmp_path / "data", durability="process"), disk=disk) as engine:
        task = engine.task(name="note")(lambda n: n)
        later = task.options(delay="1h")
        before = [keyed(later, shard).submit(shard).id for shard in (0, 1)]
        error = fail_append(engine, disk, later)
        assert error.code == "PK-109"
        assert not isinstance(error, StorageFull)
        assert "may or may not have been accepted" in str(error)
        assert isinstance(error, OSError)
        recovered(engine)
        assert statuses(engine) == ["open", "open"]
        after = [keyed(task, shard).submit(5) for shard in (0, 1)]
        assert [ticket.result("20s") for ticket in after] == [5, 5]
        assert {engine.ticket(each).info().state for each in before} == {"scheduled"}
        assert recount(engine) == engine.stats().by_task
    with make(tmp_path / "data", durability="process", run=False) as engine:
        assert {engine.ticket(each).info().state for each in before} == {"scheduled"}


def test_a_log_handler_that_raises_costs_neither_the_shard_nor_the_core_thread(
    tmp_path: Path, disk: FaultyDisk
) -> None:
    class Broken(logging.Handler):
        lines = 0

        def emit(self, record: logging.LogRecord) -> None:
            self.lines += 1
            raise OSError("the log has no room")

    broken = Broken()
    logging.getLogger("parkade.storage").addHandler(broken)
    try:
        with rig(make(tmp_path / "data", durability="process"), disk=disk) as engine:
            task = engine.task(name="note")(lambda n: n)
            assert fail_append(engine, disk, task).code == "PK-109"
            recovered(engine)
            assert [keyed(task, shard).submit(5).result("20s") for shard in (0, 1)] == [5, 5]
    finally:
        logging.getLogger("parkade.storage").removeHandler(broken)
    assert broken.lines > 0


def test_an_attempt_that_runs_meanwhile_is_not_lost(tmp_path: Path, disk: FaultyDisk) -> None:
    with (
        hold_handlers() as gate,
        rig(make(tmp_path / "data", durability="process"), disk=disk) as engine,
    ):

        @engine.task
        def work(n: int) -> int:
            gate.enter()
            return n

        task = engine.task(name="note")(lambda n: n)
        ticket = work.options(key=key_of(0)).submit(7)
        follower = work.options(key=key_of(0)).submit(8)
        gate.wait()
        fail_append(engine, disk, task.options(delay="1h"))
        recovered(engine)
        info = ticket.info()
        assert (info.state, info.attempts, info.fence) == ("running", 1, 1)
        assert follower.info().state == "ready", "its key is still held"
        gate.open()
        assert ticket.result("20s") == 7
        assert [attempt.outcome for attempt in ticket.attempts()] == ["done"]
        assert not ticket.info().maybe_applied
        assert follower.result("20s") == 8
        assert runtime_of(engine).attempts.running == 0


def test_an_outcome_that_could_not_be_written_is_written_after_the_recovery(
    tmp_path: Path, disk: FaultyDisk
) -> None:
    with (
        hold_handlers() as gate,
        rig(make(tmp_path / "data", durability="process"), disk=disk) as engine,
    ):

        @engine.task
        def work(n: int) -> int:
            gate.enter()
            return n

        ticket = work.options(key=key_of(0)).submit(7)
        gate.wait()
        disk.break_next("write", "shard-000/journal")
        gate.open()
        assert ticket.result("20s") == 7, "who waits does not notice"
        recovered(engine)
        assert [attempt.outcome for attempt in ticket.attempts()] == ["done"]
        assert ticket.info().fence == 1


def test_a_start_that_could_not_be_written_costs_no_attempt(
    tmp_path: Path, disk: FaultyDisk, clock: ManualClock
) -> None:
    engine = rig(make(tmp_path / "data", durability="process", clock=clock), disk=disk)
    with engine:
        task = engine.task(name="note")(lambda n: n)
        ticket = keyed(task, 0).options(delay="1s").submit(3)
        disk.break_next("write", "shard-000/journal")
        clock.advance(1_000)
        assert ticket.result("20s") == 3
        recovered(engine)
        info = ticket.info()
        assert (info.attempts, info.maybe_applied) == (1, False)
        assert {attempt.outcome for attempt in ticket.attempts()} <= {"done", "released"}


def test_an_attempt_lost_by_the_last_owner_stays_lost_if_saying_so_fails_at_first(
    tmp_path: Path, disk: FaultyDisk
) -> None:
    with hold_handlers() as gate, make(tmp_path / "data", durability="process") as engine:

        @engine.task
        def work() -> None:
            gate.enter()

        ticket_id = work.options(key=key_of(0)).submit().id
        gate.wait()
        runtime_of(engine).abandon()
    # The tail written again and a header; then the frame that settles the lost attempt.
    disk.break_next("write", "shard-000/journal", skip=2)
    with rig(make(tmp_path / "data", durability="process"), disk=disk) as engine:
        engine.task(name="work")(lambda: None)
        recovered(engine)
        when(engine, lambda runtime: runtime.attempts.is_admitting)
        ticket = engine.ticket(ticket_id)
        assert ticket.attempts()[0].outcome == "lost"
        assert ticket.info().maybe_applied


def test_waiters_outlive_a_recovery(tmp_path: Path, disk: FaultyDisk) -> None:
    with rig(make(tmp_path / "data", durability="process"), disk=disk) as engine:
        task = engine.task(name="note")(lambda n: n)
        ticket = keyed(task, 0).options(delay="1h").submit(1)
        ended: list[BaseException] = []

        def wait() -> None:
            try:
                ticket.result()
            except BaseException as error:
                ended.append(error)

        waiting = threading.Thread(target=wait)
        waiting.start()
        when(engine, lambda runtime: any(shard.awaiting for shard in runtime.shards))
        fail_append(engine, disk, task.options(delay="1h"))
        recovered(engine)
        when(engine, lambda runtime: any(shard.awaiting for shard in runtime.shards))
        assert ticket.cancel() == "cancelled"
        waiting.join(PATIENCE_S)
        assert [type(error).__name__ for error in ended] == ["TicketCancelled"]


def test_a_second_failure_within_a_minute_closes_the_shard_and_no_other(
    tmp_path: Path, disk: FaultyDisk, clock: ManualClock
) -> None:
    engine = rig(make(tmp_path / "data", durability="process", clock=clock), disk=disk)
    with hold_handlers() as gate, engine:

        @engine.task
        def work(n: int) -> int:
            gate.enter()
            return n

        task = engine.task(name="note")(lambda n: n)
        later = task.options(delay="1h")
        kept = keyed(later, 0).submit(1)
        running = keyed(work, 0).submit(2)
        gate.wait()
        fail_append(engine, disk, later)
        recovered(engine)
        fail_append(engine, disk, later)
        when(engine, lambda runtime: runtime.shards[0].status == "refused")
        for ask in (kept.info, kept.cancel, lambda: keyed(task, 0).submit(3), kept.result):
            with pytest.raises(StorageError, match="shard-000"):
                ask()
        assert keyed(task, 1).submit(4).result("20s") == 4
        plain = [task.submit(n) for n in range(8)]
        assert [ticket.result("20s") for ticket in plain] == list(range(8))
        assert {ticket.info().shard for ticket in plain} == {1}
        with pytest.raises(PartialSubmit):
            engine.submit_many([keyed(task, 0).call(1), keyed(task, 1).call(1)])
        stats = engine.stats()
        assert [shard.status for shard in stats.shards] == ["refused", "open"]
        assert "shard-000" in (stats.shards[0].reason or "")
        gate.open()
        when(engine, lambda runtime: runtime.attempts.running == 0)
        assert not engine.stop().clean
    with make(tmp_path / "data", durability="process", clock=clock) as engine:
        engine.task(name="work")(lambda n: n)
        assert engine.ticket(kept.id).info().state == "scheduled"
        info = engine.ticket(running.id).info()
        assert info.maybe_applied, "its outcome could not be written"


def test_after_a_minute_a_failure_is_the_first_again(
    tmp_path: Path, disk: FaultyDisk, clock: ManualClock
) -> None:
    engine = rig(make(tmp_path / "data", durability="process", clock=clock), disk=disk)
    with engine:
        task = engine.task(name="note")(lambda n: n)
        for count in (1, 2, 3):
            fail_append(engine, disk, task.options(delay="1h"))
            recovered(engine, count)
            clock.advance(60_000)
        assert statuses(engine) == ["open", "open"]


def test_a_recovery_that_fails_closes_the_shard(tmp_path: Path, disk: FaultyDisk) -> None:
    with rig(make(tmp_path / "data", durability="process"), disk=disk) as engine:
        task = engine.task(name="note")(lambda n: n)
        disk.break_next("pread", "shard-000/journal")
        fail_append(engine, disk, task)
        when(engine, lambda runtime: runtime.shards[0].status == "refused")
        with pytest.raises(StorageError, match="read its files"):
            keyed(task, 0).submit(1)
        assert keyed(task, 1).submit(2).result("20s") == 2


def test_an_error_in_apply_throws_the_memory_away_and_not_the_data(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with make(tmp_path / "data", durability="process") as engine:
        task = engine.task(name="note")(lambda n: n)
        later = keyed(task, 0).options(delay="1h")
        kept = later.submit(1)
        assert kept.info().state == "scheduled"
        core = runtime_of(engine).shards[0].core

        def broken(record: object) -> None:
            raise AssertionError("a fault of ours")

        with monkeypatch.context() as patched:
            patched.setattr(core, "apply", broken)
            with pytest.raises(StorageError, match="a fault of ours"):
                later.options(unique="the core's").submit(2)
        recovered(engine)
        assert kept.info().state == "scheduled"
        assert keyed(task, 0).submit(3).result("20s") == 3
        assert recount(engine) == engine.stats().by_task


def test_a_start_that_was_not_decided_is_not_decided_anew_by_what_recovers(tmp_path: Path) -> None:
    with make(tmp_path / "data", durability="process") as engine:
        shard, heard = runtime_of(engine).shards[0], list[Any]()

        def fail() -> None:
            for command in (StartAlike([1], None, 0), Start([])):
                shard.asks.append(Ask(command, then=lambda *answer: heard.append(answer)))
            shard.poison(AssertionError("a fault of ours"))
            assert not shard.asks

        runtime_of(engine).host.call(fail)
        assert [(value, type(error)) for value, error in heard] == [(None, StorageError)] * 2
        recovered(engine)
        assert len(heard) == 2


def test_an_error_in_a_turn_costs_one_shard_its_memory(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with make(tmp_path / "data", durability="process") as engine:
        task = engine.task(name="note")(lambda n: n)
        kept = keyed(task, 0).options(delay="1h").submit(1)
        shard = runtime_of(engine).shards[0]

        def broken() -> None:
            raise AssertionError("a fault of ours")

        monkeypatch.setattr(shard.read_ahead, "fire", broken)
        assert keyed(task, 1).submit(2).result("20s") == 2
        recovered(engine)
        assert keyed(task, 0).submit(3).result("20s") == 3
        assert kept.info().state == "scheduled"


def test_an_answer_that_cannot_be_made_is_an_error_and_no_silence(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with make(tmp_path / "data", durability="process") as engine:
        task = engine.task(name="note")(lambda n: n)
        ticket = keyed(task, 0).submit(1)
        assert ticket.result("20s") == 1
        checkpoint(engine)

        def broken(*_: object) -> None:
            raise AssertionError("a fault of ours")

        with monkeypatch.context() as patched:
            patched.setattr("parkade.inquiring._merged", broken)
            with pytest.raises(StorageError, match="a fault of ours"):
                engine.find()
        assert [info.id for info in engine.find()] == [ticket.id]
        assert [shard.recoveries for shard in engine.stats().shards] == [0, 0]


def test_what_comes_back_from_its_threads_and_cannot_be_taken_in_costs_a_shard_its_memory(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with make(tmp_path / "data", durability="process") as engine:
        task = engine.task(name="note")(lambda n: n)
        later = keyed(task, 0).options(delay="1h")
        kept = later.submit(1)
        assert kept.info().state == "scheduled"
        shard = runtime_of(engine).shards[0]

        def broken(lsn: int) -> None:
            raise AssertionError("a fault of ours")

        with monkeypatch.context() as patched:
            patched.setattr(shard, "durable", broken)
            with pytest.raises(StorageError, match="a fault of ours"):
                later.options(unique="the core's").submit(2)
        recovered(engine)
        assert kept.info().state == "scheduled"
        assert keyed(task, 0).submit(3).result("20s") == 3


def test_an_error_in_admission_recovers_all_shards_and_ends_nothing(
    tmp_path: Path, clock: ManualClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    with make(tmp_path / "data", clock=clock, durability="process") as engine:
        task = engine.task(name="note")(lambda n: n)
        admission = runtime_of(engine).attempts.admission

        def broken(*_: object, **__: object) -> None:
            monkeypatch.undo()
            raise AssertionError("a fault of ours")

        tickets = [keyed(task, shard).options(delay="1s").submit(shard) for shard in (0, 1)]
        monkeypatch.setattr(admission, "take", broken)
        clock.advance(1_000)
        assert [ticket.result("20s") for ticket in tickets] == [0, 1]
        assert [shard.recoveries for shard in engine.stats().shards] == [1, 1]
        assert statuses(engine) == ["open", "open"]


def test_a_policy_that_cannot_be_told_falls_back_to_the_default(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with make(tmp_path / "data") as engine:
        task = engine.task(name="note")(lambda n: n)

        def broken(*_: object) -> None:
            raise ValueError("numbers of another age")

        monkeypatch.setattr(task, "policy_for", broken)
        shards = runtime_of(engine).shards
        first = task.options(key="k").submit(1)
        assert engine.task(name="other")(lambda n: n).submit(2).result("20s") == 2
        when(engine, lambda runtime: runtime.attempts.running == 0)
        assert [shard.recoveries for shard in shards] == [0, 0]
        monkeypatch.undo()
        assert first.info().state in ("done", "dead", "scheduled", "ready")


# ------------------------------------------------------------------------------- a full disk


def test_a_full_disk_refuses_submits_lets_work_end_and_is_over_by_itself(
    tmp_path: Path, disk: FaultyDisk, clock: ManualClock
) -> None:
    engine = rig(make(tmp_path / "data", durability="process", clock=clock, shards=1), disk=disk)
    with hold_handlers() as gate, engine:

        @engine.task
        def work(n: int) -> int:
            gate.enter()
            return n

        task = engine.task(name="note")(lambda text: len(text))
        later = task.options(delay="1h")
        running = [work.submit(n) for n in range(3)]
        gate.wait(3)
        kept = later.submit("x")
        disk.is_full = True
        with pytest.raises(StorageFull) as caught:
            for _ in range(40):
                later.submit("x" * 100_000)
        assert caught.value.code == "PK-106"
        assert "Nothing was accepted" in str(caught.value)
        count = engine.stats().scheduled
        with pytest.raises(StorageFull):
            engine.submit_many([later.call("y"), later.call("z")])
        assert kept.cancel() == "cancelled", "what ends things has a reserve"
        gate.open()
        assert [ticket.result("20s") for ticket in running] == [0, 1, 2]
        assert engine.stats().scheduled == count - 1, "nothing of a refused submit is there"
        assert statuses(engine) == ["open"]
        disk.is_full = False
        clock.advance(1_000)
        when(engine, lambda runtime: not runtime.shards[0].room.is_full)
        assert task.submit("again").result("20s") == 5
        assert recount(engine) == engine.stats().by_task


def test_who_only_looks_does_not_wait_behind_what_has_no_room(
    tmp_path: Path, clock: ManualClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    with make(tmp_path / "data", clock=clock, shards=1) as engine:
        task = engine.task(name="note")(lambda text: len(text))
        kept = task.options(delay="1h").submit("x")
        with monkeypatch.context() as full:
            full.setattr(Journal, "has_room", lambda *_: False)
            full.setattr(Journal, "has_spare", property(lambda _: False))
            full.setattr(Journal, "fits", lambda *_: False)
            cancelling = threading.Thread(target=kept.cancel)
            cancelling.start()
            when(engine, lambda runtime: len(runtime.shards[0].asks) == 1)
            assert kept.info().state == "scheduled"
            assert [info.id for info in engine.find(task="note").items] == [kept.id]
        clock.advance(1_000)
        cancelling.join(PATIENCE_S)
        assert kept.info().state == "cancelled"


def test_at_the_dirty_bound_a_submit_is_refused_where_a_checkpoint_has_no_room(
    tmp_path: Path, disk: FaultyDisk, clock: ManualClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(limits, "DIRTY_BYTES_MAX", 60_000)
    monkeypatch.setattr(limits, "CHECKPOINT_DIRTY_BYTES", 30_000)
    engine = rig(make(tmp_path / "data", durability="process", clock=clock, shards=1), disk=disk)
    with engine:
        task = engine.task(name="note")(lambda text: len(text))
        later = task.options(delay="1h")
        when(engine, lambda runtime: runtime.shards[0].room.is_there)
        disk.is_full = True
        with pytest.raises(StorageFull):
            for _ in range(40):
                later.submit("x" * 5_000)
        assert statuses(engine) == ["open"]
        assert not engine.health()["storage_writable"]
        with pytest.raises(StorageFull):
            engine.submit_many([later.call("y"), later.call("z")])
        disk.is_full = False
        clock.advance(1_000)
        when(engine, lambda runtime: not runtime.shards[0].room.is_full)
        assert task.submit("again").result("20s") == 5
        assert recount(engine) == engine.stats().by_task


def test_segments_that_a_checkpoint_gives_back_are_used_again_before_a_disk_is_called_full(
    tmp_path: Path, disk: FaultyDisk
) -> None:
    engine = make(tmp_path / "data", durability="process", shards=1)
    with rig(engine, disk=disk, open_store=Parked.open):
        task = engine.task(name="note")(lambda text: len(text))
        later = task.options(delay="1h")
        assert task.submit("x" * 100_000).result("20s") == 100_000
        when(engine, lambda runtime: runtime.shards[0].journal.has_spare)
        disk.is_full = True  # for the journal; the store has room
        for _ in range(40):
            later.submit("x" * 100_000)
        assert engine.stats().by_task == {"note": {"scheduled": 40, "done": 1}}
        assert disk.met.acquire(blocking=False), "a spare was refused"
