"""The store of a shard fails to commit: what is tried again, what is recovered, what is closed."""

import contextlib
import errno
import os
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from kit.clock import ManualClock
from kit.engines import (
    PATIENCE_S,
    Gate,
    hold_handlers,
    make,
    recount,
    rig,
    runtime_of,
    when,
)
from kit.failing import fail_append, keyed, recovered, statuses
from kit.faulty import FaultyDisk
from parkade import (
    Engine,
    RetryPolicy,
    StorageError,
    TicketFailed,
)
from parkade.store.parked import Parked


@pytest.fixture
def clock() -> ManualClock:
    return ManualClock()


@pytest.fixture
def disk() -> FaultyDisk:
    return FaultyDisk()


class Hooks:
    """Opens stores whose commits fail when a test says so."""

    def __init__(self) -> None:
        self.codes: list[int] = []
        self.gate: Gate | None = None
        self.point = "before_commit"
        self.failed = threading.Semaphore(0)

    @contextlib.contextmanager
    def held(self) -> Iterator[Gate]:
        """A gate at which the next commit waits."""
        with hold_handlers() as gate:
            self.gate = gate
            yield gate

    def at(self, point: str) -> None:
        if point == self.point and self.gate is not None:
            gate, self.gate = self.gate, None
            gate.enter()
        if point == self.point and self.codes:
            code = self.codes.pop(0)
            self.failed.release()
            raise OSError(code, os.strerror(code))

    def open(self, directory: str, **options: Any) -> Parked:
        hook: Callable[[str], None] | None = self.at if "shard-000" in directory else None
        return Parked.open(directory, commit_hook=hook, **options)


@pytest.mark.parametrize("point", ["begin", "tickets", "agenda", "before_commit"])
def test_a_commit_without_room_is_merged_back_and_tried_again(
    tmp_path: Path, clock: ManualClock, point: str
) -> None:
    hooks = Hooks()
    hooks.point = point
    engine = rig(make(tmp_path / "data", durability="process", clock=clock), open_store=hooks.open)
    with engine:
        task = engine.task(name="note")(lambda n: n)
        later = keyed(task, 0).options(delay="1h")
        ids = [later.submit(n).id for n in range(20)]
        hooks.codes = [errno.ENOSPC, errno.ENOSPC]
        grow_old(engine, clock)
        assert hooks.failed.acquire(timeout=PATIENCE_S)
        when(engine, lambda runtime: not runtime.shards[0].checkpointing.is_busy)
        shard = runtime_of(engine).shards[0]
        assert (shard.checkpoints, shard.recoveries) == (0, 0)
        ids.append(later.submit(20).id)
        engine.ticket(ids[3]).cancel()
        clock.advance(1_000)
        assert hooks.failed.acquire(timeout=PATIENCE_S)
        when(engine, lambda runtime: not runtime.shards[0].checkpointing.is_busy)
        clock.advance(1_000)
        when(engine, lambda runtime: runtime.shards[0].checkpoints == 1)
        assert statuses(engine) == ["open", "open"]
        assert recount(engine) == engine.stats().by_task
    with make(tmp_path / "data", durability="process", clock=clock, run=False) as engine:
        states = [engine.ticket(each).info().state for each in ids]
        assert states == ["scheduled"] * 3 + ["cancelled"] + ["scheduled"] * 17
        assert recount(engine) == engine.stats().by_task


def grow_old(engine: Engine, clock: ManualClock) -> None:
    """What has changed has waited for a checkpoint for long, once the core knows that it waits."""
    when(
        engine,
        lambda runtime: all(
            shard.core.dirty.is_empty
            or shard.checkpointing.is_busy
            or shard.checkpointing.next_ms() is not None
            for shard in runtime.host.open_shards()
        ),
    )
    clock.advance(5_000)


def test_a_broken_commit_reopens_the_store_once_and_a_second_closes_the_shard(
    tmp_path: Path, clock: ManualClock
) -> None:
    hooks = Hooks()
    engine = rig(make(tmp_path / "data", durability="process", clock=clock), open_store=hooks.open)
    with engine:
        task = engine.task(name="note")(lambda n: n)
        later = keyed(task, 0).options(delay="1h")
        ids = [later.submit(n).id for n in range(20)]
        hooks.codes = [errno.EIO]
        grow_old(engine, clock)
        recovered(engine)
        assert [engine.ticket(each).info().state for each in ids] == ["scheduled"] * 20
        grow_old(engine, clock)
        when(engine, lambda runtime: runtime.shards[0].checkpoints == 1)
        ids.append(later.submit(20).id)
        hooks.codes = [errno.EIO]
        grow_old(engine, clock)
        when(engine, lambda runtime: runtime.shards[0].status == "refused")
        assert keyed(task, 1).submit(1).result("20s") == 1
    with make(tmp_path / "data", durability="process", clock=clock, run=False) as engine:
        assert [engine.ticket(each).info().state for each in ids] == ["scheduled"] * 21


def test_a_shard_that_fails_while_it_commits_is_recovered_after_the_commit(
    tmp_path: Path, disk: FaultyDisk, clock: ManualClock
) -> None:
    hooks = Hooks()
    engine = rig(
        make(tmp_path / "data", durability="process", clock=clock), disk=disk, open_store=hooks.open
    )
    with hooks.held() as commit, engine:
        task = engine.task(name="note")(lambda n: n)
        later = keyed(task, 0).options(delay="1h")
        ids = [later.submit(n).id for n in range(10)]
        grow_old(engine, clock)
        commit.wait()
        ids.append(later.submit(10).id)
        fail_append(engine, disk, task.options(delay="1h"))
        shard = runtime_of(engine).shards[0]
        when(engine, lambda _: shard.status == "recovering")
        assert shard.recoveries == 0
        waiting: list[Any] = []
        asking = threading.Thread(target=lambda: waiting.append(later.submit(11).id))
        asking.start()
        assert keyed(task, 1).submit(1).result("20s") == 1, "the others do not notice"
        commit.open()
        recovered(engine)
        asking.join(PATIENCE_S)
        ids += waiting
        assert len(ids) == 12
        assert [engine.ticket(each).info().state for each in ids] == ["scheduled"] * 12
        assert recount(engine) == engine.stats().by_task
        grow_old(engine, clock)
        when(engine, lambda runtime: runtime.shards[0].checkpoints >= 1)


def test_a_stop_waits_for_a_recovery_under_way(
    tmp_path: Path, disk: FaultyDisk, clock: ManualClock
) -> None:
    hooks = Hooks()
    engine = rig(
        make(tmp_path / "data", durability="process", clock=clock), disk=disk, open_store=hooks.open
    )
    with hooks.held() as commit:
        engine.start()
        task = engine.task(name="note")(lambda n: n)
        kept = keyed(task, 0).options(delay="1h").submit(1).id
        grow_old(engine, clock)
        commit.wait()
        fail_append(engine, disk, task.options(delay="1h"))
        clean: list[bool] = []
        stopping = threading.Thread(target=lambda: clean.append(engine.stop().clean))
        runtime = runtime_of(engine)
        stopping.start()
        assert runtime.host.when(lambda: runtime.attempts.is_stopping).wait(PATIENCE_S)
        commit.open()
        stopping.join(PATIENCE_S)
        assert clean == [True]
    with make(tmp_path / "data", durability="process", clock=clock, run=False) as again:
        assert again.ticket(kept).info().state == "scheduled"


def test_a_stop_on_a_full_disk_does_not_wait_for_room(tmp_path: Path, clock: ManualClock) -> None:
    """The clock stands, so whatever waited for a time would wait for ever."""
    hooks = Hooks()
    engine = rig(
        make(tmp_path / "data", durability="process", clock=clock), open_store=hooks.open
    ).start()
    task = engine.task(name="note")(lambda n: n)
    kept = [keyed(task, shard).options(delay="1h").submit(1).id for shard in (0, 1)]
    hooks.codes = [errno.ENOSPC] * 2
    grow_old(engine, clock)
    when(engine, lambda runtime: runtime.shards[0].checkpointing.has_failed)
    assert not engine.stop().clean
    assert hooks.codes == [], "it was tried once more, and not again"
    with make(tmp_path / "data", durability="process", clock=clock, run=False) as again:
        assert [again.ticket(each).info().state for each in kept] == ["scheduled"] * 2


def test_nothing_is_left_of_attempts_that_have_ended(tmp_path: Path, disk: FaultyDisk) -> None:
    with rig(make(tmp_path / "data", durability="process"), disk=disk) as engine:

        @engine.task(retry=RetryPolicy(5, backoff=[0]))
        def work(n: int) -> int:
            return 10 // (n % 5)

        tickets = engine.submit_many(
            work.options(key=f"k{n}" if n % 2 else None).call(n) for n in range(60)
        )
        note = engine.task(name="note")(lambda n: n)
        disk.break_next("write", "shard-000/journal")
        with contextlib.suppress(StorageError):  # or it is an outcome that meets it
            keyed(note, 0).submit(0)
        for ticket in tickets:
            with contextlib.suppress(TicketFailed):
                ticket.result("20s")
        attempts = runtime_of(engine).attempts
        when(engine, lambda runtime: attempts.running == 0 and not attempts._attempts)
        assert runtime_of(engine).executor.running() == []
        for shard in runtime_of(engine).shards:
            keys = shard.placement.lanes.keys
            assert (keys.running, keys.claims, keys.aside, keys.reasons) == ({}, {}, {}, {})
            assert shard.placement.lanes.seats == {}
            assert not shard.core.running
