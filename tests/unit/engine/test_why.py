"""Why a ticket is not running: one sentence for every reason there is."""

import asyncio
import shutil
import threading
from collections.abc import Iterator
from datetime import timedelta
from pathlib import Path

import pytest
from click.testing import CliRunner

from kit.engines import PATIENCE_S, hold_handlers, make, when
from parkade import Breaker, Engine, Limit, ResultTimeout, RetryPolicy, Snooze, Why, open_readonly
from parkade.cli.app import cli
from parkade.testing import TestEngine


@pytest.fixture
def engine() -> Iterator[TestEngine]:
    with TestEngine() as engine:
        yield engine


def test_of_one_that_is_due_later_it_says_when(engine: TestEngine) -> None:
    task = engine.task(name="note")(lambda: None)
    ticket = task.options(delay="3d").submit()
    due = engine.clock.now() + timedelta(days=3)
    assert ticket.why() == Why("scheduled", "due in 3 d", (), due)


def test_of_one_that_is_tried_again_it_says_what_went_wrong(engine: TestEngine) -> None:
    @engine.task(retry=RetryPolicy(5, backoff=["1m"]))
    def fail() -> None:
        raise ValueError("no luck")

    ticket = fail.submit()
    engine.run_until_idle()
    assert ticket.why().text == "attempt 2 in 1 min; the last one ended with ValueError: no luck"

    @engine.task
    def sleep() -> None:
        raise Snooze("1h")

    snoozed = sleep.submit()
    engine.run_until_idle()
    assert snoozed.why().text == "attempt 1 in 1 h; snoozed 1 times"


def test_of_one_without_a_handler_it_says_so(engine: TestEngine) -> None:
    task = engine.task(name="old")(lambda: None)
    engine.clock.advance("1s")
    with TestEngine() as other:
        other.include(engine)
        ticket = other.submit("old", {})
        other._by_name.clear()  # as after a deploy without it
        other._aliases.clear()
        other.version += 1
        why = ticket.why()
    assert (why.state, why.blockers) == ("ready", ["handler:old"])
    assert why.text == 'ready, held: no task "old" is registered. Due 0 ms ago'
    assert task.name == "old"


def test_of_what_is_held_it_names_everything_and_when_that_changes(engine: TestEngine) -> None:
    breaker = Breaker("psp", failures=1, open_for="1m")

    @engine.task(target="psp", breaker=breaker, retry=RetryPolicy(5, backoff=["1s"]))
    def charge() -> None:
        raise ValueError("no")

    first, second = charge.submit(), charge.submit()
    engine.run_until_idle()
    engine.clock.advance("20s")
    engine.run_until_idle()
    probe_at = engine.clock.now() + timedelta(seconds=40)
    assert second.why() == Why(
        "ready",
        'ready, held: breaker "psp" is open (1 failure: ValueError), next probe in 40 s. '
        "Due 20 s ago, 1 other goes first",
        ["breaker:psp"],
        probe_at,
    )
    engine.pause(task="charge", reason="ann looks at it")
    why = first.why()
    assert why.blockers == ["pause task:charge", "breaker:psp"]
    assert why.text.startswith(
        'ready, held: task:charge is paused (ann looks at it); breaker "psp"'
    )
    assert why.next_change_at is None
    engine.pause(task="charge", until=engine.clock.now() + timedelta(hours=1))
    why = first.why()
    assert "task:charge is paused, until 1 h from now" in why.text
    assert why.next_change_at == engine.clock.now() + timedelta(hours=1)


def test_of_one_that_a_rate_holds_it_says_when_the_next_may_start(engine: TestEngine) -> None:
    task = engine.task(name="call", limits=[Limit(rate=(1, "1m"))])(lambda: None)
    ticket = task.submit()
    engine.run_until_idle()
    engine.clock.advance("15s")
    why = ticket.why()
    assert "held: limit task:call is reached, the next may start in 45 s" in why.text
    assert why.blockers == ["limit task:call"]
    assert why.next_change_at == engine.clock.now() + timedelta(seconds=45)


def test_of_one_whose_key_is_taken_it_names_who_has_it(tmp_path: Path) -> None:
    with hold_handlers() as gate, make(tmp_path / "data") as engine:

        @engine.task(key="one")
        def work() -> None:
            gate.enter()

        first = work.submit()
        gate.wait()
        second = work.submit()
        why = second.why()
        assert f"held: ticket {first.id} has its key" in why.text
        assert (why.state, why.blockers) == ("ready", ["key:one"])
        assert first.why().text.startswith("running, attempt 1, for ")
        gate.open()


def test_of_one_without_a_place_it_says_how_many_there_are(tmp_path: Path) -> None:
    with hold_handlers() as gate, make(tmp_path / "data", threads=2) as engine:

        @engine.task(limits=[Limit(concurrency=9)])
        def work() -> None:
            gate.enter()

        for _ in range(2):
            work.submit()
        gate.wait(2)
        third = work.submit()
        why = third.why()
        assert "held: all 2 threads are in use" in why.text
        assert why.blockers == ["place:thread"]
        with pytest.raises(ResultTimeout, match="It is ready, held: all 2 threads are in use"):
            third.result(timeout="1ms")
        gate.open()


def test_of_a_suspect_that_waits_for_another_it_says_so(tmp_path: Path) -> None:
    path = tmp_path / "data"
    engine = TestEngine(path, async_limit=10)
    gate = threading.Event()

    @engine.task(retry=RetryPolicy(9, backoff=["1s"]))
    async def work() -> None:
        if not gate.is_set():
            engine.crash()

    with engine:
        tickets = [work.submit() for _ in range(3)]
        with pytest.raises(BaseException, match="crashed"):
            engine.run_until_idle()
    with engine:
        suspects = [engine.ticket(ticket.id) for ticket in tickets]
        assert all(ticket.why().state in ("scheduled", "ready") for ticket in suspects)
        gate.set()
        assert engine.run_until_idle(skip_time=True).done == 3


def test_of_one_that_only_the_clock_holds_it_says_what_it_waits_for(engine: TestEngine) -> None:
    task = engine.task(name="note", expires="1h")(lambda: None)
    ticket = task.submit()
    engine.clock.step_wall(timedelta(days=2))
    engine.run_until_idle()
    why = ticket.why()
    assert why.blockers == ["clock"]
    assert "by the wall clock its time is over, by the settled clock it is not" in why.text


def test_of_one_that_has_ended_it_says_how(engine: TestEngine) -> None:
    @engine.task(retry=RetryPolicy(2, backoff=["1s"]))
    def fail() -> None:
        raise ValueError("no luck")

    done = engine.task(name="note")(lambda: None).submit()
    dead = fail.submit()
    cancelled = fail.options(delay="1h").submit()
    expired = fail.options(delay="1s", expires="1ms").submit()
    cancelled.cancel("not wanted")
    engine.run_until_idle()
    engine.clock.advance("5s")
    engine.run_until_idle()
    assert done.why() == Why("done", "done 5 s ago", (), None)
    assert dead.why().text == "dead 0 ms ago after 2 attempts (exhausted): ValueError: no luck"
    assert cancelled.why().text == "cancelled 5 s ago: not wanted"
    assert expired.why().text == "expired 0 ms ago: not started within 1 ms of being due"


def test_an_engine_that_runs_nothing_says_so(tmp_path: Path) -> None:
    with Engine(tmp_path / "data", shards=1, run=False) as engine:
        ticket = engine.task(name="note")(lambda: None).submit()
        why = ticket.why()
    assert why.text.startswith("ready, held: this engine was opened with run=False")
    assert why.blockers == ["engine"]


def test_of_one_that_ran_when_its_engine_died_it_does_not_say_that_it_runs(tmp_path: Path) -> None:
    data, copy = tmp_path / "data", str(tmp_path / "copy")
    gate = threading.Event()
    with make(data) as engine:
        ticket = engine.task(name="wait")(lambda: gate.wait(PATIENCE_S)).submit()
        when(engine, lambda runtime: len(runtime.executor.running()) == 1)
        assert ticket.why().text.startswith("running, attempt 1, for ")
        when(engine, lambda runtime: shutil.copytree(data, copy, ignore=_sockets) is not None)
        done = CliRunner().invoke(cli, ["--dir", copy, "why", ticket.id])
        gate.set()
    assert done.exit_code == 0, done.output
    assert done.output.startswith("cut off in attempt 1, which began ")
    assert "no engine runs on this directory" in done.output


def _sockets(_: str, names: list[str]) -> set[str]:
    return {name for name in names if name.endswith(".sock") or ".spare" in name}


def test_the_command_line_tells_it_from_the_engine_and_from_the_files(tmp_path: Path) -> None:
    path = str(tmp_path / "data")

    def ask(*options: str) -> str:
        done = CliRunner().invoke(cli, ["--dir", path, "why", ticket.id, *options])
        assert done.exit_code == 0, done.output
        return done.output

    with Engine(path, shards=1, run=False) as engine:
        task = engine.task(name="note")(lambda: None)
        ticket = task.options(delay="3d").submit()
        assert ask().startswith("due in 2 d 23 h. Next change 20")
    assert '"state":"scheduled"' in ask("--json")
    with open_readonly(path) as reader:
        assert reader.info(ticket.id).state == "scheduled"


def test_a_coroutine_asks_too(tmp_path: Path) -> None:
    async def ask() -> Why:
        async with make(tmp_path / "data", run=False) as engine:
            ticket = await engine.task(name="note")(lambda: None).options(delay="1h").asubmit()
            return await ticket.awhy()

    assert asyncio.run(ask()).text.startswith("due in ")
