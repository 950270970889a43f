"""max_ready: no more is let in than so many ready ones, and who waits is let in again."""

import asyncio
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest

from kit.engines import PATIENCE_S, hold_handlers, make, runtime_of
from parkade import Backpressure, ConfigError, Engine
from parkade.backpressure import Valve
from parkade.testing import TestEngine


@pytest.fixture
def engine() -> Iterator[TestEngine]:
    with TestEngine(max_ready=3) as engine:
        engine.task(name="note")(lambda: None)
        yield engine


def test_at_the_bound_a_submit_is_refused_and_says_why(engine: TestEngine) -> None:
    for _ in range(3):
        engine.submit("note", {})
        engine.clock.advance("1s")
    with pytest.raises(Backpressure) as refused:
        engine.submit("note", {})
    error = refused.value
    assert (error.code, error.ready, error.max_ready) == ("PK-205", 3, 3)
    assert error.oldest_ms >= 2_000
    assert engine.stats().ready == 3


def test_what_has_run_makes_room_again(engine: TestEngine) -> None:
    for _ in range(2):
        for _ in range(3):
            engine.submit("note", {})
        with pytest.raises(Backpressure):
            engine.submit("note", {})
        assert engine.run_until_idle().done == 3


def test_what_is_due_later_is_not_ready_and_is_let_in(engine: TestEngine) -> None:
    task = engine.lookup("note")
    for _ in range(10):
        task.options(delay="1h").submit()
    ticket = engine.submit("note", {})
    engine.clock.advance("1h")
    assert ticket.info().state == "ready"
    with pytest.raises(Backpressure):
        engine.submit("note", {})
    task.options(delay="1h").submit()


def test_held_tickets_are_ready_ones(engine: TestEngine) -> None:
    engine.pause(task="note")
    for _ in range(3):
        engine.submit("note", {})
    engine.run_until_idle()
    with pytest.raises(Backpressure):
        engine.submit("note", {})
    engine.resume(task="note")
    engine.run_until_idle()
    engine.submit("note", {})


def test_threads_that_submit_at_once_do_not_run_past_the_bound(tmp_path: Path) -> None:
    refused = threading.Semaphore(0)
    with make(tmp_path / "data", run=False, max_ready=20, shards=3) as engine:
        engine.task(name="note")(lambda: None)

        def submit() -> None:
            for _ in range(20):
                try:
                    engine.submit("note", {})
                except Backpressure:
                    refused.release()

        threads = [threading.Thread(target=submit) for _ in range(8)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join(PATIENCE_S)
        pending = engine.stats().by_task["note"]["scheduled"]
    assert pending == 20


def test_who_waits_is_let_in_as_others_run(tmp_path: Path) -> None:
    with make(tmp_path / "data", threads=2, max_ready=5, when_full="wait") as engine:

        @engine.task
        def note(number: int) -> int:
            return number

        tickets = [note.submit(number) for number in range(60)]
        assert [ticket.result("20s") for ticket in tickets] == list(range(60))

        async def submit_all() -> list[int]:
            submitted = await asyncio.gather(*(note.asubmit(number) for number in range(60)))
            return [await ticket.aresult("20s") for ticket in submitted]

        assert asyncio.run(submit_all()) == list(range(60))


def test_a_handler_never_waits_for_handlers(tmp_path: Path) -> None:
    with (
        hold_handlers() as gate,
        make(tmp_path / "data", threads=1, max_ready=1, when_full="wait") as engine,
    ):

        @engine.task(retry=1)
        def parent() -> str:
            gate.enter()
            try:
                child.submit()
            except Backpressure:
                return "refused"
            return "submitted"

        @engine.task
        def child() -> None: ...

        first = parent.submit()
        gate.wait()
        child.submit()  # one is ready now
        gate.open()
        assert first.result("20s") == "refused"


def test_who_waits_when_the_engine_stops_hears_of_it(tmp_path: Path) -> None:
    ended: list[BaseException] = []
    with make(tmp_path / "data", run=False, max_ready=1, when_full="wait") as engine:
        engine.task(name="note")(lambda: None)
        engine.submit("note", {})

        def submit() -> None:
            try:
                engine.submit("note", {})
            except BaseException as error:
                ended.append(error)

        valve = runtime_of(engine).host.inbox.valve
        assert valve is not None
        thread = threading.Thread(target=submit)
        thread.start()
        while not valve.waiting:
            pass
        engine.stop()
        thread.join(PATIENCE_S)
    assert [type(error).__name__ for error in ended] == ["EngineClosed"]


def test_a_valve_counts_what_it_let_in_until_it_was_seen() -> None:
    valve = Valve(10, waits=False)
    valve.enter(7)
    valve.tell(0, 0, 0)
    valve.enter(2)
    valve.enter(0)
    valve.enter(5)  # one was free: a chunk goes in whole
    with pytest.raises(Backpressure):
        valve.enter(1)
    valve.tell(9, 0, 14)
    valve.enter(1)
    with pytest.raises(Backpressure):
        valve.enter(1)


@pytest.mark.parametrize("options", [{"max_ready": 0}, {"when_full": "drop"}, {"max_ready": "9"}])
def test_options_that_cannot_be_right_are_refused(options: dict[str, object]) -> None:
    with pytest.raises(ConfigError):
        Engine("nowhere", **options)  # type: ignore[arg-type]
