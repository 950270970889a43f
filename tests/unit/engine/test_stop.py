"""A stop: what ends in time, what is asked to, what is given back, and who is told."""

import asyncio
import threading
from collections.abc import Callable
from pathlib import Path

import pytest

from kit.clock import ManualClock
from kit.engines import PATIENCE_S, Gate, hold_handlers, make, runtime_of, when
from parkade import Attempt, EngineClosed, EngineInUse, StopReport
from parkade.asks import Ask
from parkade.checkpointing import Checkpointing
from parkade.shard.commands import Cancel


def stop_in_thread(engine: object, **spans: str) -> tuple[threading.Thread, list[StopReport]]:
    reports: list[StopReport] = []
    stopping = threading.Thread(target=lambda: reports.append(engine.stop(**spans)))  # type: ignore[attr-defined]
    stopping.start()
    return stopping, reports


def test_a_stop_waits_for_what_runs_and_starts_nothing_more(tmp_path: Path) -> None:
    with hold_handlers() as gate:
        engine = make(tmp_path / "data", threads=2, durability="process").start()

        @engine.task
        def wait(n: int) -> int:
            gate.enter()
            return n

        tickets = engine.submit_many([wait.call(n) for n in range(5)])
        gate.wait(2)
        runtime = runtime_of(engine)
        stopping, reports = stop_in_thread(engine)
        event = runtime.host.when(lambda: runtime.attempts.is_stopping)
        assert event.wait(PATIENCE_S)
        with pytest.raises(EngineClosed):
            wait.submit(6)
        gate.open()
        stopping.join(PATIENCE_S)
        assert reports == [StopReport(True, finished=2, cancelled=0, given_back=0, zombies=0)]
    with make(tmp_path / "data", durability="process", run=False) as engine:
        states = [engine.ticket(ticket.id).info().state for ticket in tickets]
        assert sorted(states) == ["done", "done", "ready", "ready", "ready"]


def test_who_does_not_end_in_time_is_asked_to(tmp_path: Path) -> None:
    gate = Gate()
    engine = make(tmp_path / "data").start()

    @engine.task
    def looks(attempt: Attempt) -> str:
        gate.enter()
        while not attempt.cancelled:
            threading.Event().wait(0.001)
        attempt.raise_if_cancelled()
        return "unreachable"

    @engine.task
    async def awaits() -> None:
        gate.enter()
        await asyncio.Event().wait()

    gate.open()
    first, second = looks.submit(), awaits.submit()
    gate.wait(2)
    ids = [first.id, second.id]
    assert engine.stop(drain=0, cancel="20s") == StopReport(
        True, finished=0, cancelled=2, given_back=0, zombies=0
    )
    with make(tmp_path / "data", run=False) as engine:
        infos = [engine.ticket(each).info() for each in ids]
        assert [info.state for info in infos] == ["ready", "ready"], "stopping cancels no ticket"
        assert [info.attempts for info in infos] == [0, 0], "and costs no attempt"
        assert all(info.maybe_applied for info in infos)


def test_what_does_not_end_at_all_is_given_back_and_run_again(tmp_path: Path) -> None:
    with hold_handlers() as gate:
        engine = make(tmp_path / "data", threads=2).start()

        @engine.task
        def stuck(n: int) -> int:
            gate.enter()
            return n

        @engine.task(on_crash="ambiguous")
        def careful() -> None:
            gate.enter()

        ordinary, other = stuck.submit(1), careful.submit()
        gate.wait(2)
        assert engine.stop(drain=0, cancel=0) == StopReport(
            False, finished=0, cancelled=0, given_back=2, zombies=2
        )
        gate.open()
    again = make(tmp_path / "data")
    again.task(name="stuck")(lambda n: n + 100)
    with again:
        info = again.ticket(other.id).info()
        assert (info.state, info.dead_reason, info.maybe_applied) == ("dead", "ambiguous", True)
        ticket = again.ticket(ordinary.id)
        assert ticket.result("20s") == 101, "what the zombie returned went nowhere"
        info = ticket.info()
        assert (info.attempts, info.fence, info.maybe_applied) == (1, 2, True)
        assert [attempt.outcome for attempt in ticket.attempts()] == ["released", "done"]


def test_everybody_who_waits_is_told(tmp_path: Path) -> None:
    engine = make(tmp_path / "data").start()
    task = engine.task(name="note")(lambda n: n)
    ticket = task.options(delay="3d").submit(1)
    told: list[BaseException] = []

    def wait() -> None:
        try:
            ticket.result()
        except BaseException as error:
            told.append(error)

    async def await_it() -> None:
        try:
            await ticket
        except EngineClosed as error:
            told.append(error)

    waiting = [threading.Thread(target=wait) for _ in range(3)]
    waiting.append(threading.Thread(target=lambda: asyncio.run(await_it())))
    for thread in waiting:
        thread.start()
    when(
        engine,
        lambda runtime: sum(len(x) for s in runtime.shards for x in s.awaiting.values()) == 4,
    )
    assert engine.stop().clean
    for thread in waiting:
        thread.join(PATIENCE_S)
    assert [type(error) for error in told] == [EngineClosed] * 4


@pytest.mark.parametrize("turn", range(6))
def test_callers_at_work_get_an_answer_or_an_error_and_never_hang(
    tmp_path: Path, turn: int
) -> None:
    engine = make(tmp_path / "data").start()
    task = engine.task(name="note")(lambda n: n)
    ends: list[str] = []
    accepted: list[str] = []
    began = threading.Barrier(7)
    asks: list[Callable[[], object]] = [engine.stats, engine.find, engine.dead.find]

    def work(which: int) -> None:
        began.wait(PATIENCE_S)
        try:
            while True:
                if which < len(asks):
                    asks[which]()
                else:
                    accepted.append(task.options(delay="1h").submit(1).id)
        except EngineClosed:
            ends.append("closed")

    workers = [threading.Thread(target=work, args=(n,)) for n in range(6)]
    for worker in workers:
        worker.start()
    began.wait(PATIENCE_S)
    when(engine, lambda runtime: runtime.shards[0].core.lsn > 3 * turn)
    assert engine.stop().clean
    for worker in workers:
        worker.join(PATIENCE_S)
    assert ends == ["closed"] * 6
    with make(tmp_path / "data", run=False) as again:
        assert all(again.ticket(each).info() for each in accepted)


def test_a_stop_from_a_coroutine_leaves_its_loop_to_its_handlers(tmp_path: Path) -> None:
    engine = make(tmp_path / "data")
    ended: list[str] = []

    async def main() -> StopReport:
        await engine.astart()
        came = asyncio.Event()

        @engine.task
        async def work() -> None:
            came.set()
            for _ in range(10):
                await asyncio.sleep(0)
            ended.append("work")

        await work.asubmit()
        await came.wait()
        return await engine.astop()

    report = asyncio.run(main())
    assert report.clean
    assert ended == ["work"]


def test_a_core_thread_that_dies_lets_nobody_wait_and_the_directory_go(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    engine = make(tmp_path / "data", durability="process").start()
    task = engine.task(name="note")(lambda n: n)
    kept = task.options(delay="1h").submit(1).id
    runtime = runtime_of(engine)

    def broken() -> None:
        raise RuntimeError("a fault of ours")

    with monkeypatch.context() as patched:
        patched.setattr(runtime.host, "take_outcomes", broken)
        runtime.host.wake()
        with pytest.raises(Exception, match="a fault of ours"):
            engine.ticket(kept).result()
    with pytest.raises(Exception, match="a fault of ours"):
        task.submit(2)
    assert [shard.status for shard in engine.stats().shards] == ["refused", "refused"]
    report = engine.stop()
    assert not report.clean
    with make(tmp_path / "data", durability="process") as engine:
        assert engine.ticket(kept).info().state == "scheduled"


def test_an_interrupted_stop_lets_the_directory_go(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with hold_handlers() as gate:
        engine = make(tmp_path / "data", durability="process").start()

        @engine.task
        def stuck() -> None:
            gate.enter()

        ticket = stuck.submit()
        gate.wait()
        runtime = runtime_of(engine)

        def interrupted(event: object, timeout_ms: int) -> bool:
            raise KeyboardInterrupt

        with monkeypatch.context() as patched:
            patched.setattr(runtime, "_wait", interrupted)
            with pytest.raises(KeyboardInterrupt):
                engine.stop()
    with make(tmp_path / "data", durability="process") as engine:
        info = engine.ticket(ticket.id).info()
        assert info.maybe_applied, "its attempt was lost"
        assert info.fence == 1


def test_what_comes_behind_the_last_checkpoints_has_checkpoints_of_its_own(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Retention was about to forget, say. The clock stands: nobody waits for its age."""
    clock = ManualClock()
    engine = make(tmp_path / "data", shards=1, clock=clock).start()
    task = engine.task(name="note")(lambda n: n)
    later = [task.options(delay="3d").submit(n) for n in range(2)]
    begin, left = Checkpointing._begin, list(later)

    def begin_and_change(self: Checkpointing) -> None:
        begin(self)
        if left:
            self._shard.put(Ask(Cancel(left.pop().address[0])))

    with monkeypatch.context() as patched:
        patched.setattr(Checkpointing, "_begin", begin_and_change)
        stopping, reports = stop_in_thread(engine)
        stopping.join(PATIENCE_S)
        is_stuck = stopping.is_alive()
        clock.advance(3_600_000)
        stopping.join(PATIENCE_S)
    assert not is_stuck and reports[0].clean
    with make(tmp_path / "data", shards=1) as engine:
        assert [engine.ticket(each.id).info().state for each in later] == ["cancelled"] * 2


def test_stopping_twice_at_once_is_once(tmp_path: Path) -> None:
    engine = make(tmp_path / "data").start()
    first, one = stop_in_thread(engine)
    second, two = stop_in_thread(engine)
    first.join(PATIENCE_S)
    second.join(PATIENCE_S)
    assert [report.clean for report in one + two] == [True, True]


def test_the_next_owner_waits_for_one_that_is_leaving(tmp_path: Path) -> None:
    clock = ManualClock()
    first = make(tmp_path / "data").start()
    with pytest.raises(EngineInUse):
        make(tmp_path / "data").start()
    second = make(tmp_path / "data", lock_wait="5s", clock=clock)
    opened: list[object] = []
    opening = threading.Thread(target=lambda: opened.append(second.start()))
    opening.start()
    assert first.stop().clean
    while opening.is_alive():
        clock.advance(50)
        opening.join(0.01)
    assert opened == [second]
    second.stop()
