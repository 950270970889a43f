"""Handlers that do not stop: what they keep, whom they hold, and what becomes of what they say."""

import asyncio
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from kit.clock import ManualClock
from kit.engines import PATIENCE_S, Gate, hold_handlers, make, runtime_of, when
from parkade import Attempt, Engine, Limit, StorageFull
from parkade.deadlines import STOP_GRACE_MS

HELD = "an older attempt still running in a thread that cannot be stopped"


@pytest.fixture
def gate() -> Iterator[Gate]:
    with hold_handlers() as gate:
        yield gate


def zombies(engine: Engine, count: int) -> None:
    when(engine, lambda runtime: len(runtime.executor.zombies()) == count)


def test_a_thread_past_its_timeout_keeps_its_place_and_holds_its_ticket(
    tmp_path: Path, gate: Gate
) -> None:
    clock = ManualClock()
    engine = make(tmp_path / "data", clock=clock, threads=2)
    numbers: list[int] = []

    @engine.task(timeout="10s", retry=["2s"], limits=[Limit(concurrency=2)])
    def stuck(attempt: Attempt) -> int:
        numbers.append(attempt.number)
        if attempt.number == 1:
            gate.enter()
        return attempt.number

    @engine.task
    def quick() -> str:
        return "done"

    with engine:
        ticket = stuck.submit()
        gate.wait()
        clock.advance(10_000)
        zombies(engine, 1)
        when(engine, lambda runtime: runtime.attempts.running == 1)
        assert engine.stats().zombies == 1
        assert [a.outcome for a in ticket.attempts()] == ["timeout"]
        assert ticket.info().state == "scheduled"
        assert quick.submit().result(PATIENCE_S) == "done"  # the other place is free
        [limit] = [limit for limit in engine.limits.list() if limit.scope == "task:stuck"]
        assert limit.running == 1
        clock.advance(2_000)
        when(engine, lambda runtime: runtime.attempts.is_holding_outlived)
        why = ticket.why()
        assert HELD in why.text
        assert why.blockers == ["attempt"]
        assert numbers == [1]
        gate.open()
        assert ticket.result(PATIENCE_S) == 2
        assert numbers == [1, 2]
        zombies(engine, 0)
        assert runtime_of(engine).attempts.running == 0
        refused = sum(shard.core.refused_outcomes for shard in runtime_of(engine).shards)
        assert refused == 1
        assert ticket.info().maybe_applied


def test_the_only_place_of_an_engine_is_not_given_away_under_a_zombie(
    tmp_path: Path, gate: Gate
) -> None:
    clock = ManualClock()
    engine = make(tmp_path / "data", clock=clock, threads=1)

    @engine.task(timeout="10s", retry=None)
    def stuck() -> None:
        gate.enter()

    @engine.task
    def quick() -> str:
        return "done"

    with engine:
        ticket = stuck.submit()
        gate.wait()
        clock.advance(10_000)
        zombies(engine, 1)
        assert ticket.info().dead_reason == "exhausted"
        other = quick.submit()
        assert "all 1 threads are in use" in other.why().text
        gate.open()
        assert other.result(PATIENCE_S) == "done"


def test_a_thread_that_outlives_its_engine_still_holds_its_ticket_in_the_next(
    tmp_path: Path, gate: Gate
) -> None:
    clock = ManualClock()
    begun: list[int] = []

    def declared() -> tuple[Engine, Any]:
        engine = make(tmp_path / "data", clock=clock, durability="process")

        @engine.task
        def stuck(attempt: Attempt) -> str:
            begun.append(attempt.fence)
            if attempt.fence == 1:
                gate.enter()
            return f"fence {attempt.fence}"

        return engine, stuck

    engine, stuck = declared()
    with engine:
        ticket_id = stuck.submit().id
        gate.wait()
        report = engine.stop(drain=0, cancel=0)
    assert (report.given_back, report.zombies) == (1, 1)

    engine, _ = declared()
    with engine:
        ticket = engine.ticket(ticket_id)
        when(engine, lambda runtime: runtime.attempts.is_holding_outlived)
        assert HELD in ticket.why().text
        assert begun == [1]
        gate.open()
        assert ticket.result(PATIENCE_S) == "fence 2"
        assert begun == [1, 2]


def test_a_cancel_gives_up_a_thread_that_is_silent_and_the_ticket_is_cancelled(
    tmp_path: Path, gate: Gate
) -> None:
    clock = ManualClock()
    engine = make(tmp_path / "data", clock=clock)
    seen: list[str | None] = []

    @engine.task
    def stuck(attempt: Attempt) -> None:
        gate.enter()
        seen.append(attempt.cancel_reason)

    with engine:
        ticket = stuck.submit()
        gate.wait()
        assert ticket.cancel("enough") == "requested"
        assert ticket.info().cancel_requested
        assert "it was asked to stop: enough" in ticket.why().text
        clock.advance(STOP_GRACE_MS)
        zombies(engine, 1)
        when(engine, lambda runtime: all(shard.is_settled for shard in runtime.shards))
        info = ticket.info()
        assert (info.state, info.maybe_applied) == ("cancelled", True)
        gate.open()
        zombies(engine, 0)
    assert seen == ["enough"]


def test_a_coroutine_of_the_callers_loop_is_cancelled_and_ends_as_cancelled(
    tmp_path: Path,
) -> None:
    engine = make(tmp_path / "data")
    ended: list[str] = []

    async def main() -> None:
        begun = asyncio.Event()

        @engine.task
        async def hang() -> None:
            begun.set()
            try:
                await asyncio.Event().wait()
            except asyncio.CancelledError:
                ended.append("cleaned up")
                raise

        async with engine:
            ticket = await hang.asubmit()
            await begun.wait()
            assert await ticket.acancel("enough") == "requested"
            while (await ticket.ainfo()).state == "running":
                await asyncio.sleep(0)
            info = await ticket.ainfo()
            assert (info.state, info.maybe_applied) == ("cancelled", False)

    asyncio.run(main())
    assert ended == ["cleaned up"]


def test_a_shard_that_recovers_asks_its_attempts_to_stop_again(
    tmp_path: Path, gate: Gate, monkeypatch: pytest.MonkeyPatch
) -> None:
    engine = make(tmp_path / "data", shards=1)
    seen: list[str | None] = []

    @engine.task
    def stuck(attempt: Attempt) -> None:
        gate.enter()
        seen.append(attempt.cancel_reason)
        attempt.raise_if_cancelled()

    with engine:
        ticket = stuck.submit()
        gate.wait()
        runtime = runtime_of(engine)
        [shard] = runtime.shards
        runtime.host.call(lambda: setattr(shard, "stop_attempt", lambda *_: None))
        assert ticket.cancel("enough") == "requested"
        runtime.host.call(lambda: shard.poison(RuntimeError("a test")))
        when(engine, lambda _: shard.recoveries == 1 and shard.is_open)
        gate.open()
        while ticket.info().state == "running":
            when(engine, lambda _: not runtime.executor.running())
        assert ticket.info().state == "cancelled"
    assert seen == ["enough"]


def test_a_checkpoint_that_finds_no_room_says_so_and_the_attempt_may_go_on(
    tmp_path: Path,
) -> None:
    engine = make(tmp_path / "data", shards=1)
    begun, full = threading.Event(), threading.Event()

    @engine.task
    def load(attempt: Attempt) -> int | None:
        attempt.save_checkpoint(1)
        begun.set()
        assert full.wait(PATIENCE_S)
        with pytest.raises(StorageFull):
            attempt.save_checkpoint(2)
        return attempt.checkpoint(int)

    with engine:
        ticket = load.submit()
        assert begun.wait(PATIENCE_S)
        runtime = runtime_of(engine)
        [shard] = runtime.shards

        def fill() -> None:
            shard.room.look = lambda: None  # type: ignore[method-assign]
            shard.core.has_room = False

        runtime.host.call(fill)
        full.set()
        assert ticket.result(PATIENCE_S) == 1


def test_threads_and_loops_save_side_by_side_and_each_reads_its_own(tmp_path: Path) -> None:
    engine = make(tmp_path / "data", durability="process")

    @engine.task(retry=["1ms"])
    def plain(attempt: Attempt, n: int) -> bool:
        if attempt.number == 1:
            for step in range(5):
                attempt.save_checkpoint([n, step])
            raise OSError("again")
        return attempt.checkpoint(list[int]) == [n, 4]

    @engine.task(retry=["1ms"])
    async def looped(attempt: Attempt, n: int) -> bool:
        if attempt.number == 1:
            for step in range(5):
                attempt.save_checkpoint([n, step])
                await asyncio.sleep(0)
            raise OSError("again")
        return attempt.checkpoint(list[int]) == [n, 4]

    with engine:
        calls = [task.call(n) for n in range(20) for task in (plain, looped)]
        tickets = engine.submit_many(calls)
        assert all(ticket.result(PATIENCE_S) for ticket in tickets)
