"""Functions that are called with events: in order, on a thread of their own, at nobody's cost."""

import asyncio
import logging
import threading
from pathlib import Path

import pytest

from kit.engines import PATIENCE_S, Gate, hold_handlers, make, runtime_of, when
from parkade import ConfigError, Engine, Event, Fail
from parkade.testing import TestEngine


def idle(engine: Engine) -> None:
    """Until the callbacks have been called with all that has happened: they keep its order."""
    over = threading.Event()
    engine.on("resumed")(lambda event: over.set())
    engine.pause(task="nobody's")
    engine.resume(task="nobody's")
    assert over.wait(PATIENCE_S)


def test_callbacks_of_an_engine_that_is_not_open_yet_are_called_once_it_is(tmp_path: Path) -> None:
    engine = make(tmp_path / "data")
    told: list[tuple[str, str, bool]] = []
    main = threading.current_thread()

    @engine.on("done", "dead")
    def ends(event: Event) -> None:
        told.append((event.kind, str(event.task), threading.current_thread() is main))

    @engine.task
    def work(n: int) -> int:
        if n:
            raise Fail("gone")
        return n

    with engine:
        for n in range(2):
            work.submit(n)
        when(engine, lambda runtime: runtime.attempts.finished == 2)
    assert sorted(told) == [("dead", "work", False), ("done", "work", False)]


def test_a_stop_waits_for_the_last_callbacks_and_the_next_open_calls_again(tmp_path: Path) -> None:
    engine = make(tmp_path / "data")
    task = engine.task(name="note")(lambda n: n)
    told: list[int] = []
    engine.on("submitted")(lambda event: told.append(event.seq))
    for _ in range(2):
        with engine:
            engine.submit_many([task.options(delay="1h").call(n) for n in range(100)])
    assert told == [*range(1, 101), *range(1, 101)]


def test_a_coroutine_runs_on_the_loop_that_the_engine_was_opened_on(tmp_path: Path) -> None:
    engine = make(tmp_path / "data")
    task = engine.task(name="note")(lambda n: n)
    loops: list[asyncio.AbstractEventLoop] = []

    @engine.on("done")
    async def note(event: Event) -> None:
        await asyncio.sleep(0)
        loops.append(asyncio.get_running_loop())

    async def main() -> asyncio.AbstractEventLoop:
        async with engine:
            await (await task.asubmit(1))
        return asyncio.get_running_loop()

    loop = asyncio.run(main())
    assert loops == [loop]
    with engine:
        task.submit(2).result("20s")
    assert len(loops) == 2
    assert loops[1].is_closed() and loops[1] is not loop, "one of the engine's own"


def test_what_a_callback_raises_is_logged_and_the_next_is_called(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    engine = make(tmp_path / "data")
    task = engine.task(name="note")(lambda n: n)
    told: list[str] = []

    @engine.on("done")
    def breaks(event: Event) -> None:
        raise SystemExit(3)

    @engine.on("done")
    async def breaks_too(event: Event) -> None:
        raise ValueError("no pager")

    @engine.on("done")
    def works(event: Event) -> None:
        told.append(event.kind)

    with caplog.at_level(logging.ERROR, "parkade.engine"), engine:
        for n in range(2):
            task.submit(n).result("20s")
        idle(engine)
        assert runtime_of(engine).callbacks.failed == 4
    assert told == ["done", "done"]
    # Four calls failed, and each of the two is told once: what is broken raises each time.
    lines = [record.getMessage().rpartition(".")[2] for record in caplog.records]
    assert lines == ["breaks raised at an event done", "breaks_too raised at an event done"]


def test_a_callback_that_blocks_delays_other_callbacks_alone(tmp_path: Path) -> None:
    engine = make(tmp_path / "data")
    task = engine.task(name="note")(lambda n: n)
    told: list[int] = []
    with hold_handlers() as gate, engine:

        @engine.on("submitted")
        def blocks(event: Event) -> None:
            gate.enter()

        @engine.on("done")
        def counts(event: Event) -> None:
            told.append(event.seq)

        tickets = [task.submit(n) for n in range(20)]
        gate.wait()
        assert [ticket.result("20s") for ticket in tickets] == list(range(20))
        with engine.events(since=0) as events:
            assert next(iter(events)).seq == 1
        assert told == []
        gate.open()
        idle(engine)
        assert len(told) == 20


def test_callbacks_that_are_too_slow_lose_the_oldest_and_it_is_logged(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    engine = make(tmp_path / "data")
    later = engine.task(name="note")(lambda n: n).options(delay="1h")
    told: list[int] = []
    over = threading.Event()
    with hold_handlers() as gate, caplog.at_level(logging.WARNING, "parkade.engine"), engine:

        @engine.on("submitted")
        def slow(event: Event) -> None:
            if event.seq == 1:
                gate.enter()
            told.append(event.seq)
            if event.seq == 10_501:
                over.set()

        later.submit(0)
        gate.wait()
        engine.submit_many([later.call(n) for n in range(10_500)])
        gate.open()
        assert over.wait(PATIENCE_S)
        assert runtime_of(engine).callbacks.dropped == 500
    assert told == [1, *range(502, 10_502)]
    assert any("500 events were lost" in record.getMessage() for record in caplog.records)


def test_a_callback_may_use_the_engine_and_stop_it(tmp_path: Path) -> None:
    engine = make(tmp_path / "data")
    over = threading.Event()
    reports: list[bool] = []

    @engine.task
    def first(n: int) -> int:
        return n

    @engine.task
    def second(of: str) -> None:
        raise Fail(of)

    @engine.on("done")
    def follow(event: Event) -> None:
        assert event.ticket_id is not None
        second.submit(event.ticket_id)

    @engine.on("dead")
    def stop(event: Event) -> None:
        reports.append(engine.stop().clean)
        over.set()

    engine.start()
    ticket = first.submit(1)
    assert over.wait(PATIENCE_S)
    assert reports == [True]
    with engine:
        (dead,) = engine.dead.find(task="second")
        assert dead.error == f"Fail: {ticket.id}"


def test_a_stop_does_not_wait_for_ever_for_a_callback(tmp_path: Path) -> None:
    engine = make(tmp_path / "data")
    task = engine.task(name="note")(lambda n: n)
    gate = Gate()
    engine.on("done")(lambda event: gate.enter())
    engine.start()
    task.submit(1)
    gate.wait()
    assert engine.stop(drain=0, cancel=0).clean
    gate.open()


def test_a_loop_that_closes_under_a_callback_is_not_waited_for(tmp_path: Path) -> None:
    engine = make(tmp_path / "data")
    task = engine.task(name="note")(lambda n: n)
    came = threading.Event()
    told: list[str] = []

    @engine.on("done")
    async def hangs(event: Event) -> None:
        told.append(event.kind)
        came.set()
        if len(told) == 1:
            await asyncio.Event().wait()

    async def main() -> None:
        await engine.astart()
        await (await task.asubmit(1))
        await asyncio.to_thread(came.wait, PATIENCE_S)

    asyncio.run(main())
    task.submit(2).result("20s")
    idle(engine)
    assert told == ["done", "done"]
    assert engine.stop().clean


def test_what_is_no_function_or_no_kind_is_refused_at_once(tmp_path: Path) -> None:
    engine = make(tmp_path / "data")
    with pytest.raises(ConfigError, match='"dead"'):
        engine.on("deed")  # type: ignore[arg-type]
    with pytest.raises(ConfigError, match="function"):
        engine.on("dead")(7)  # type: ignore[arg-type]
    assert not (tmp_path / "data").exists()


# --------------------------------------------------------------------------------- in a test engine


def test_in_a_test_engine_callbacks_are_called_in_the_run_on_its_thread(
    parkade_engine: TestEngine,
) -> None:
    engine = parkade_engine
    told: list[object] = []

    @engine.task
    def work(n: int) -> int:
        if n == 1:
            raise Fail("gone")
        return n

    @engine.on("dead")
    def again(event: Event) -> None:
        told.append((event.kind, threading.current_thread() is threading.main_thread()))
        work.submit(2)

    @engine.on("done")
    async def note(event: Event) -> None:
        await asyncio.sleep(0)
        told.append(event.kind)

    work.submit(1)
    drained = engine.run_until_idle()
    assert (drained.dead, drained.done) == (1, 1)
    assert told == [("dead", True), "done"]


async def within(engine: TestEngine) -> None:
    await engine.arun_until_idle()


def test_in_a_test_engine_on_a_loop_callbacks_may_block_as_they_may_elsewhere(
    parkade_engine: TestEngine,
) -> None:
    engine = parkade_engine
    task = engine.task(name="note")(lambda n: n)
    told: list[str] = []

    @engine.on("done")
    def look(event: Event) -> None:
        assert event.ticket_id is not None
        told.append(engine.ticket(event.ticket_id).info().state)

    @engine.on("done")
    async def alook(event: Event) -> None:
        assert event.ticket_id is not None
        told.append((await engine.ticket(event.ticket_id).ainfo()).state)

    task.submit(1)
    asyncio.run(within(engine))
    assert told == ["done", "done"]


def test_an_application_s_callbacks_come_along_when_a_test_engine_stands_in_for_it(
    parkade_engine: TestEngine, tmp_path: Path
) -> None:
    application = make(tmp_path / "data")
    task = application.task(name="note")(lambda n: n)
    told: list[str] = []
    application.on("done")(lambda event: told.append(event.kind))
    parkade_engine.stand_in_for(application)
    task.submit(1)
    parkade_engine.run_until_idle()
    assert told == ["done"]
