"""Attempts in processes of their own: results, errors, deaths, timeouts, cancels."""

import os
import sys
from collections.abc import Iterator
from datetime import datetime
from pathlib import Path
from typing import Any

import pytest

from kit import process_tasks as work
from kit.children import Fifo, engine_with, error_of, pool_of, quick_to_kill, until, wait_gone
from kit.engines import PATIENCE_S, make, runtime_of, walk, when
from parkade import ConfigError, Engine, Tasks, Ticket, process
from parkade.runs import Run
from parkade.store.processes import identify
from parkade.testing import ManualClock, TestEngine


@pytest.fixture(scope="module")
def shared(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Engine]:
    """One engine with one child for all tests that leave it as they found it."""
    with engine_with(tmp_path_factory.mktemp("shared") / "data") as engine:
        yield engine


@pytest.fixture
def came(tmp_path: Path) -> Iterator[Fifo]:
    fifo = Fifo(tmp_path / "came")
    yield fifo
    fifo.close()


def test_a_handler_runs_in_a_process_that_serves_again(shared: Engine) -> None:
    assert shared.submit(work.add, 2, 3).result(timeout=PATIENCE_S) == 5
    tickets = [shared.submit(work.who) for _ in range(3)]
    told = [ticket.result(timeout=PATIENCE_S) for ticket in tickets]
    assert [ticket_id for _, _, ticket_id in told] == [ticket.id for ticket in tickets]
    assert {pid for pid, _, _ in told} == set(pool_of(shared).pids)
    assert os.getpid() not in pool_of(shared).pids


def test_a_child_has_little_of_its_owner(shared: Engine) -> None:
    told: dict[str, Any] = shared.submit(work.surroundings).result(timeout=PATIENCE_S)
    assert told["argv"] == sys.argv
    assert told["path"] == sys.path
    assert told["sigint"] is told["thread"] is True
    # Input, output, errors, the connection, and the listing itself.
    assert told["fds"] <= 5


def test_an_exception_comes_as_text_with_the_handlers_own_traceback(shared: Engine) -> None:
    ticket = shared.submit(work.break_down, "luck")
    assert "ValueError: no luck here" in error_of(ticket)
    [attempt] = ticket.attempts()
    assert attempt.outcome == "error" and attempt.traceback is not None
    assert 'raise ValueError(f"no {word} here")' in attempt.traceback
    assert "child.py" not in attempt.traceback
    gone = shared.submit(work.give_up)
    assert "Fail: never (order=7)" in error_of(gone)
    assert gone.info().dead_reason == "failed"


def test_a_result_that_is_too_large_is_refused_where_it_is_made(shared: Engine) -> None:
    ticket = shared.submit(work.large, 1_000_001)
    assert "result is 1.0 MB, the limit is 1.0 MB" in error_of(ticket)
    assert ticket.info().maybe_applied
    assert len(shared.submit(work.large, 999_000).result(timeout=PATIENCE_S)) == 999_000


def test_a_payload_that_does_not_fit_is_found_before_the_handler_runs(shared: Engine) -> None:
    ticket = shared.submit(work.add, 2, 3)
    assert ticket.result(timeout=PATIENCE_S) == 5
    runtime = runtime_of(shared)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(type(work.add.definition.payloads), "encode", lambda *_: (b"\x81", {}))
        bad = shared.submit(work.add, 2, 3)
    error_of(bad)
    info = bad.info()
    assert (info.dead_reason, info.attempts) == ("bad_payload", 0) or info.attempts == 1
    assert runtime.attempts.running == 0


@pytest.mark.parametrize(
    ("task", "args", "how"),
    [
        (work.leave, (7,), "ended with exit code 7 before the handler returned"),
        (work.crash, (), "ended with signal SIGSEGV before the handler returned"),
        (work.babble, (), "its process was ended, for a frame of"),
    ],
    ids=lambda value: getattr(value, "name", ""),
)
def test_a_child_that_dies_loses_its_attempt_and_another_takes_its_place(
    shared: Engine, task: Any, args: tuple[Any, ...], how: str
) -> None:
    before = shared.submit(work.who).result(timeout=PATIENCE_S)[0]
    open_before = len(os.listdir("/dev/fd"))
    ticket = shared.submit(task, *args)
    assert how in error_of(ticket)
    [attempt] = ticket.attempts()
    assert attempt.outcome == "lost"
    info = ticket.info()
    assert (info.dead_reason, info.maybe_applied) == ("exhausted", True)
    after = shared.submit(work.who).result(timeout=PATIENCE_S)[0]
    assert after != before and pool_of(shared).pids == [after]
    assert len(os.listdir("/dev/fd")) == open_before


def test_an_attempt_in_a_process_has_children_that_its_outcome_makes(shared: Engine) -> None:
    children = shared.submit(work.parent, 3).result(timeout=PATIENCE_S)
    results = [shared.ticket(child).result(timeout=PATIENCE_S) for child in children]
    assert results == [0, 2, 4, 6]
    failed = shared.submit(work.parent, 2, "oops")
    assert "ValueError: oops" in error_of(failed)
    given_up = shared.submit(work.parent, 2, "fail")
    assert "Fail: fail" in error_of(given_up)
    when(shared, lambda runtime: runtime.attempts.running == 0)
    made = [info for info in walk(shared.find, task="add") if info.created_at >= failed_at(failed)]
    assert len(made) == 2, "the unique is taken, and a failure has no children"


def failed_at(ticket: Ticket[Any]) -> datetime:
    finished_at = ticket.info().finished_at
    assert finished_at is not None
    return finished_at


def test_what_the_engine_refuses_an_attempt_is_raised_in_its_process(shared: Engine) -> None:
    told = shared.submit(work.parent_of_too_many).result(timeout=PATIENCE_S)
    assert 'use "return" or "replace"' in told and "[PK-107]" in told
    assert "the engine is not open" in told and "[PK-206]" in told


def test_what_an_attempt_saves_is_there_for_the_next_in_another_process(shared: Engine) -> None:
    ticket = shared.submit(work.resume)
    assert ticket.result(timeout=PATIENCE_S) == (7, 14)
    assert [attempt.outcome for attempt in ticket.attempts()] == ["lost", "done"]
    text = shared.submit(work.save_too_much).result(timeout=PATIENCE_S)
    assert "checkpoint is 1.0 MB, the limit is 1.0 MB" in text


def test_progress_is_seen_while_the_process_works(shared: Engine, came: Fifo) -> None:
    ticket = shared.submit(work.tell, came.path)
    came.read()
    progress = ticket.info().progress
    assert progress is not None
    assert (progress.done, progress.total, progress.message) == (3.0, 3.0, "parts")
    assert ticket.cancel("enough") == "requested"
    assert ticket.result(timeout=PATIENCE_S) is None


def test_a_lease_is_renewed_from_the_process_and_lapses_when_it_is_silent(
    tmp_path: Path, came: Fifo
) -> None:
    clock = ManualClock()
    engine = make(tmp_path / "data", processes=2, clock=clock, include=[work.tasks]).start()
    runs = runtime_of(engine).executor.runs
    try:
        beating, silent = (engine.submit(work.beat, came.path, quiet) for quiet in (False, True))
        pids = {came.read(), came.read()}
        for _ in range(3):
            clock.advance("40s")
            until(lambda: any(is_fresh(run, clock.monotonic_ms()) for run in runs.all()))
        assert "no heartbeat for 1 min" in error_of(silent)
        assert [attempt.outcome for attempt in silent.attempts()] == ["lost"]
        clock.advance("10s")  # the grace: its process is ended, and the other one's is not
        until(lambda: not runs.zombies())
        assert beating.info().state == "running"
        assert len([pid for pid in pids if identify(pid)]) == 1
        assert beating.cancel() == "requested"
        assert beating.result(timeout=PATIENCE_S) is None
    finally:
        engine.stop(drain=0, cancel=0)


def is_fresh(run: Run, now_ms: int) -> bool:
    """Whether its lease was renewed just now."""
    return run.lease_until_ms is not None and run.lease_until_ms >= now_ms + 60_000


def test_the_engines_policy_and_its_breakers_count_what_happens_in_a_child(tmp_path: Path) -> None:
    with engine_with(tmp_path / "data", default_retry=1) as engine:
        assert "after 1 attempt: ValueError: once more" in error_of(engine.submit(work.stumble))
        for is_down in (True, False, True):
            error_of(engine.submit(work.call_out, is_down))
        assert engine.breakers["there"].failures == 2


def test_a_child_dies_at_its_timeout_before_its_ticket_is_settled(
    tmp_path: Path, came: Fifo
) -> None:
    with engine_with(tmp_path / "data") as engine:
        quick_to_kill(engine)
        for is_deaf in (False, True):
            task = work.hang.options(timeout="100ms")
            ticket = engine.submit(task, came.path, is_deaf)
            pid = came.read()
            assert "the timeout is 0.1 s" in error_of(ticket)
            with pytest.raises(ProcessLookupError):
                os.kill(pid, 0)
            assert [attempt.outcome for attempt in ticket.attempts()] == ["timeout"]
            assert ticket.info().maybe_applied


def test_where_the_system_does_not_tell_of_a_death_it_is_found_all_the_same(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(process, "_watch_exit", lambda _: None)
    with engine_with(tmp_path / "data") as engine:
        assert "ended with exit code 7" in error_of(engine.submit(work.leave, 7))
        assert engine.submit(work.add, 1, 2).result(timeout=PATIENCE_S) == 3


def test_a_child_is_named_in_the_lock_while_it_lives(tmp_path: Path) -> None:
    with engine_with(tmp_path / "data") as engine:
        lock = runtime_of(engine).directory.lock
        assert not lock.owner.children
        pid, _, _ = engine.submit(work.who).result(timeout=PATIENCE_S)
        [child] = lock.owner.children
        assert child.pid == pid and child.started
    wait_gone(pid)
    assert lock.owner.children == ()


def test_a_stop_ends_what_runs_and_gives_it_back(tmp_path: Path, came: Fifo) -> None:
    with engine_with(tmp_path / "data", durability="process") as engine:
        quick_to_kill(engine)
        tickets = [engine.submit(work.hang, came.path, is_deaf) for is_deaf in (True, False)]
        pid = came.read()
        report = engine.stop(drain=0, cancel=0)
        assert (report.given_back, report.clean) == (1, False)
        with pytest.raises(ProcessLookupError):
            os.kill(pid, 0)
    with make(tmp_path / "data", durability="process", run=False) as engine:
        first, second = (engine.ticket(ticket.id).info() for ticket in tickets)
        assert (first.state, first.attempts, first.maybe_applied) == ("ready", 0, True)
        assert (second.state, second.fence) == ("ready", 0)


def test_a_stop_asks_a_handler_that_looks_and_has_its_outcome(tmp_path: Path, came: Fifo) -> None:
    with engine_with(tmp_path / "data") as engine:
        engine.submit(work.look, came.path)
        came.read()
        report = engine.stop(drain=0, cancel=PATIENCE_S)
    assert (report.cancelled, report.given_back, report.clean) == (1, 0, True)


def test_without_processes_a_ticket_is_held_and_says_what_is_missing(tmp_path: Path) -> None:
    with engine_with(tmp_path / "data", processes=0) as engine:
        ticket = engine.submit(work.add, 1, 2)
        when(engine, lambda runtime: not runtime.attempts.admission.is_stirred)
        why = ticket.why()
        assert why.blockers == ["place:process"]
        assert "this engine has none: Engine(processes=...)" in why.text
        assert pool_of(engine).pids == []


def test_an_engine_without_processes_says_so_when_it_opens(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    few = Tasks()
    few.task(name="few", where="process")(work.not_decorated)
    for options in ({"processes": 1}, {"run": False}, {}):
        with make(tmp_path / "data", include=[few], **options):
            pass
    [warning] = [record.getMessage() for record in caplog.records]
    assert "tickets of few are held. Give it some: Engine(processes=" in warning


def test_a_test_engine_runs_what_is_meant_for_a_process_itself() -> None:
    with TestEngine(include=[work.tasks]) as engine:
        ticket = engine.submit(work.who)
        engine.run_until_idle()
        assert ticket.result()[0] == os.getpid()


def test_what_a_child_cannot_import_is_refused_where_it_is_decorated() -> None:
    def inner() -> None: ...

    for fn, name in ((inner, "inner"), (lambda: None, "nameless")):
        with pytest.raises(ConfigError, match="at the top level of a module") as caught:
            Tasks().task(name=name, where="process")(fn)
        assert caught.value.code == "PK-306"


def test_a_task_that_its_module_does_not_register_is_told_apart(tmp_path: Path) -> None:
    late = Tasks()
    late.task(name="late", where="process", retry=1)(work.not_decorated)
    with make(tmp_path / "data", processes=1, include=[late]) as engine:
        text = error_of(engine.submit("late", {}))
    assert 'the task "late" is not there in a child process' in text
