"""Attempts in threads and on a loop of ours: one outcome each, whatever handlers do around them."""

import asyncio
import contextvars
import os
import subprocess
import sys
import threading
from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest

from kit.attempts import WAIT_S, AttemptRig, released
from parkade.attempt import Attempt, current_attempt
from parkade.errors import NoAttempt
from parkade.looped import BURST_MAX
from parkade.shard.commands import Outcome
from parkade.store.record import ErrorText, Options
from parkade.verdicts import Cancelled, Fail


@pytest.fixture
def rig() -> Iterator[AttemptRig]:
    rig = AttemptRig()
    yield rig
    rig.executor.close()


# ------------------------------------------------------------------------------ the plain paths


def test_functions_run_in_threads_and_coroutines_on_a_loop(rig: AttemptRig) -> None:
    @rig.tasks.task
    def add(a: int, b: int) -> int:
        names.append(threading.current_thread().name)
        return a + b

    @rig.tasks.task
    async def mul(a: int, b: int) -> int:
        await asyncio.sleep(0)
        names.append(threading.current_thread().name)
        return a * b

    names: list[str] = []
    assert (rig.executor.kind_of(add), rig.executor.kind_of(mul)) == ("thread", "loop")
    assert rig.run(add, 2, 3).result == b"\x05"
    assert rig.run(mul, 2, 3).result == b"\x06"
    assert names == ["parkade-worker-1", "parkade-loop"]
    assert [outcome.kind for outcome in rig.outcomes] == ["done", "done"]
    assert rig.executor.running() == []


def test_where_a_task_says_is_where_it_runs(rig: AttemptRig) -> None:
    def plain() -> None: ...

    async def coroutine() -> None: ...

    kind_of = rig.executor.kind_of
    assert kind_of(rig.tasks.task(name="a", where="thread")(plain)) == "thread"
    assert kind_of(rig.tasks.task(name="b", where="loop")(coroutine)) == "loop"


def test_a_large_batch_has_one_outcome_for_each(rig: AttemptRig) -> None:
    @rig.tasks.task
    def plain(n: int) -> int:
        return n

    @rig.tasks.task
    async def coroutine(n: int) -> int:
        return n

    jobs = [rig.job(plain if n % 2 else coroutine, n) for n in range(1_000)]
    rig.executor.start(jobs)
    outcomes = rig.await_count(1_000)
    assert sorted(o.serial for o in outcomes) == [job.serial for job in jobs]
    assert {outcome.kind for outcome in outcomes} == {"done"}


def test_outcomes_of_one_turn_of_the_loop_leave_together(rig: AttemptRig) -> None:
    @rig.tasks.task
    async def nothing() -> None: ...

    rig.executor.start([rig.job(nothing) for _ in range(256)])
    rig.await_count(256)
    assert len(rig.batches) == 1


def test_coroutines_of_many_bursts_begin_in_their_order_and_each_ends_once(
    rig: AttemptRig,
) -> None:
    begun: list[int] = []

    @rig.tasks.task
    async def steps(attempt: Attempt, n: int) -> None:
        begun.append(n)
        if n % 7 == 0:
            await asyncio.sleep(0)

    rig.executor.start([rig.job(steps, n) for n in range(5 * BURST_MAX + 1)])
    outcomes = rig.await_count(5 * BURST_MAX + 1)
    assert begun == list(range(5 * BURST_MAX + 1))
    assert {outcome.kind for outcome in outcomes} == {"done"}
    assert len({outcome.serial for outcome in outcomes}) == len(outcomes)


def test_a_handler_is_told_about_its_attempt(rig: AttemptRig) -> None:
    @rig.tasks.task(retry=3, timeout="10s")
    def charge(attempt: Attempt, order: str) -> str:
        told.append(attempt)
        assert current_attempt() is attempt
        return order

    told: list[Attempt] = []
    options = Options(target="psp", tags={"a": "b"})
    error = ErrorText("OSError", "gone", "trace")
    outcome = rig.run(
        charge, "seven", fence=9, number=2, key="order-7", options=options, error=error
    )
    assert outcome.result == b"\xa5seven"
    [attempt] = told
    assert (attempt.number, attempt.fence, attempt.max_attempts) == (2, 9, 3)
    assert (attempt.key, attempt.target, attempt.tags) == ("order-7", "psp", {"a": "b"})
    assert attempt.scheduled_for == datetime(2027, 1, 1, tzinfo=UTC)
    assert attempt.time_left == timedelta(seconds=10)
    assert attempt.last_error is not None
    assert (attempt.last_error.number, attempt.last_error.error_type) == (1, "OSError")
    assert attempt.idempotency_key == f"pk-id-{outcome.serial}"


def test_the_attempt_is_found_below_the_handler_and_nowhere_else(rig: AttemptRig) -> None:
    async def below() -> str:
        await asyncio.sleep(0)
        return current_attempt().ticket_id

    @rig.tasks.task
    async def parent() -> list[str]:
        return [*await asyncio.gather(below(), asyncio.create_task(below()))]

    @rig.tasks.task
    def thread() -> str:
        return contextvars.copy_context().run(lambda: current_attempt().ticket_id)

    jobs = [rig.job(parent), rig.job(parent), rig.job(thread)]
    rig.executor.start(jobs)
    first, second, third = (rig.outcome(job) for job in jobs)
    assert first.result == b"\x92" + b"\xa4id-1" * 2
    assert second.result == b"\x92" + b"\xa4id-2" * 2
    assert third.result == b"\xa4id-3"
    with pytest.raises(NoAttempt):
        current_attempt()


def test_every_attempt_has_a_context_of_its_own(rig: AttemptRig) -> None:
    var: contextvars.ContextVar[int] = contextvars.ContextVar("var", default=0)

    @rig.tasks.task
    def plain() -> int:
        var.set(var.get() + 1)
        return var.get()

    @rig.tasks.task
    async def coroutine() -> int:
        var.set(var.get() + 1)
        return var.get()

    jobs = [rig.job(task) for task in (plain, coroutine) * 20]
    rig.executor.start(jobs)
    assert {outcome.result for outcome in rig.await_count(40)} == {b"\x01"}


def test_a_payload_that_does_not_fit_calls_no_handler(rig: AttemptRig) -> None:
    called: list[int] = []

    @rig.tasks.task
    def plain(n: int) -> None:
        called.append(n)

    @rig.tasks.task
    async def coroutine(n: int) -> None:
        called.append(n)

    for task in (plain, coroutine):
        for payload in (b"", b"\xc1", b"\x81\xa1n\xa1x", b"\x80"):
            job = rig.job(task, 1)
            job.payload = payload
            rig.executor.start([job])
            outcome = rig.outcome(job)
            assert (outcome.kind, outcome.has_begun) == ("bad_payload", False)
            assert outcome.error is not None
            assert outcome.error.type == "PayloadError"
    assert called == []


# ------------------------------------------------------------------------------- what goes wrong


class Unspeakable(Exception):
    def __str__(self) -> str:
        raise RuntimeError("no text")


ERRORS: list[tuple[BaseException, str]] = [
    (ValueError("x"), "transient"),
    (Fail("x"), "failed"),
    (SystemExit(1), "transient"),
    (KeyboardInterrupt(), "transient"),
    (asyncio.CancelledError(), "transient"),
    (Cancelled("x"), "cancelled"),
    (StopIteration(3), "transient"),
    (StopAsyncIteration(), "transient"),
    (Unspeakable(), "transient"),
    (RecursionError(), "transient"),
    (MemoryError(), "transient"),
]


@pytest.mark.parametrize(("error", "kind"), ERRORS, ids=[type(e).__name__ for e, _ in ERRORS])
def test_whatever_a_handler_raises_is_its_outcome_and_no_more(
    rig: AttemptRig, error: BaseException, kind: str
) -> None:
    @rig.tasks.task
    def plain() -> None:
        raise error

    @rig.tasks.task
    async def coroutine() -> None:
        await asyncio.sleep(0)
        raise error

    @rig.tasks.task
    def fine() -> None: ...

    @rig.tasks.task
    async def fine_too() -> None: ...

    assert rig.run(plain).kind == kind
    assert rig.run(coroutine).kind == kind
    assert rig.run(fine).kind == rig.run(fine_too).kind == "done"
    assert rig.executor.running() == []


def test_an_end_that_cannot_be_told_is_an_outcome_and_spends_an_attempt(
    rig: AttemptRig, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(*_: Any, **__: Any) -> Any:
        raise RuntimeError("no way to tell")

    @rig.tasks.task
    def plain() -> None: ...

    @rig.tasks.task
    async def coroutine() -> None: ...

    for name in ("_outcome_of", "_prepare"):
        with monkeypatch.context() as patch:
            patch.setattr(rig.executor.runs, name, fail)
            for task in (plain, coroutine):
                outcome = rig.run(task)
                assert (outcome.kind, outcome.has_begun) == ("lease", True)
                assert outcome.wait_ms > 0
                assert outcome.error is not None
                assert outcome.error.message == "no way to tell"
    assert rig.run(plain).kind == rig.run(coroutine).kind == "done"
    assert rig.executor.running() == []


def test_the_traceback_begins_in_the_handler(rig: AttemptRig) -> None:
    @rig.tasks.task
    def plain() -> None:
        raise ValueError("x")

    @rig.tasks.task
    async def coroutine() -> None:
        raise ValueError("x")

    for task in (plain, coroutine):
        error = rig.run(task).error
        assert error is not None
        assert f"in {task.name}" in error.traceback.splitlines()[1]
        assert "engine/executor.py" not in error.traceback


def test_a_handler_that_does_not_take_its_arguments_is_given_up(rig: AttemptRig) -> None:
    @rig.tasks.task
    def plain(n: int) -> None: ...

    plain.handler.fn = lambda: None
    assert rig.run(plain, 1).kind == "failed"


def test_a_plain_function_that_returns_a_coroutine_is_a_failure(rig: AttemptRig) -> None:
    async def inner() -> None: ...

    @rig.tasks.task
    def plain() -> Any:
        return inner()

    outcome = rig.run(plain)
    assert outcome.kind == "failed"
    assert outcome.error is not None
    assert "async def" in outcome.error.message


def test_a_handler_that_stops_or_closes_the_loop_stops_nobody(rig: AttemptRig) -> None:
    @rig.tasks.task
    async def stop() -> None:
        asyncio.get_running_loop().stop()
        await asyncio.sleep(0)

    @rig.tasks.task(retry=None)
    async def close() -> None:
        asyncio.get_running_loop().close()

    @rig.tasks.task
    async def waits() -> str:
        await asyncio.sleep(0)
        return "here"

    rig.executor.start([rig.job(stop), rig.job(waits), rig.job(close), rig.job(waits)])
    kinds = [o.kind for o in sorted(rig.await_count(4), key=lambda o: o.serial)]
    assert kinds == ["done", "done", "transient", "done"]
    assert rig.run(waits).kind == "done"


def test_a_child_task_that_ends_the_program_ends_nothing(
    rig: AttemptRig, caplog: pytest.LogCaptureFixture
) -> None:
    async def exits() -> None:
        raise SystemExit(1)

    @rig.tasks.task
    async def careless() -> None:
        await asyncio.create_task(exits())

    @rig.tasks.task
    async def fine() -> None: ...

    assert rig.run(careless).kind == "transient"
    assert rig.run(fine).kind == "done"
    assert "was interrupted and goes on" in caplog.text


def test_a_loop_of_ours_that_was_taken_down_is_replaced(rig: AttemptRig) -> None:
    @rig.tasks.task
    async def hang() -> None:
        begun.set()
        await asyncio.Event().wait()

    @rig.tasks.task
    async def fine() -> None: ...

    begun = threading.Event()
    job = rig.start(hang)
    released(begun)
    own = rig.executor.loops._own
    assert own is not None
    closed = asyncio.new_event_loop()
    closed.close()
    own.loop, taken = closed, own.loop
    assert rig.run(fine).kind == "done"
    outcome = rig.outcome(job)
    assert (outcome.kind, outcome.has_begun) == ("lease", True)
    rig.executor.close()
    taken.call_soon_threadsafe(taken.stop)


def test_a_task_factory_that_raises_is_not_the_tickets_fault(rig: AttemptRig) -> None:
    def refuse(loop: Any, coro: Any, **kwargs: Any) -> Any:
        raise RuntimeError("no tasks today")

    @rig.tasks.task
    async def fine() -> None: ...

    assert rig.run(fine).kind == "done"
    own = rig.executor.loops.own_loop
    assert own is not None
    own.set_task_factory(refuse)
    outcome = rig.run(fine)
    assert (outcome.kind, outcome.has_begun) == ("transient", False)
    own.set_task_factory(None)
    assert rig.run(fine).kind == "done"


def test_a_host_that_raises_is_logged_and_the_rest_goes_on(
    rig: AttemptRig, caplog: pytest.LogCaptureFixture
) -> None:
    @rig.tasks.task
    def fine() -> None: ...

    failed = threading.Event()

    def fail(outcomes: list[Outcome]) -> None:
        rig.executor.runs.deliver = rig.deliver
        failed.set()
        raise ValueError("host")

    rig.executor.runs.deliver = fail
    rig.start(fine)
    released(failed)
    assert rig.run(fine).kind == "done"
    assert "could not be handed over" in caplog.text


def test_blocking_handlers_delay_nobody_while_a_thread_is_free() -> None:
    rig = AttemptRig(thread_count=8)
    gate = threading.Event()
    begun = threading.Semaphore(0)

    @rig.tasks.task
    def block() -> None:
        begun.release()
        released(gate)

    @rig.tasks.task
    def quick() -> None: ...

    rig.executor.start([rig.job(block) for _ in range(7)])
    for _ in range(7):
        assert begun.acquire(timeout=WAIT_S)
    rig.executor.start([rig.job(quick) for _ in range(50)])
    assert {outcome.kind for outcome in rig.await_count(50)} == {"done"}
    assert [has_begun for _, _, has_begun in rig.executor.running()] == [True] * 7
    gate.set()
    rig.await_count(57)
    rig.executor.close()


# ---------------------------------------------------------------------------------------- close


@pytest.mark.parametrize(
    ("leave", "status"), [(None, 0), (SystemExit(7), 7), (SystemExit(), 0), (ValueError("x"), 1)]
)
def test_a_child_forked_in_a_handler_ends_with_it_and_does_no_other_work(
    leave: BaseException | None, status: int, tmp_path: Path
) -> None:
    rig = AttemptRig(thread_count=1)
    log = tmp_path / "log"

    def fork() -> int:
        waiting.wait(WAIT_S)
        child = os.fork()
        if child:
            return os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
        if leave is not None:
            raise leave
        return -1

    @rig.tasks.task
    def plain() -> int:
        return fork()

    @rig.tasks.task
    async def coroutine() -> int:
        return fork()

    @rig.tasks.task
    def other() -> None:
        with log.open("a") as lines:
            lines.write(f"{os.getpid()}\n")

    for task in (plain, coroutine):
        waiting = threading.Event()
        jobs = [rig.start(each) for each in (task, other)]
        waiting.set()
        assert [rig.outcome(job).kind for job in jobs] == ["done", "done"]
        assert task.decode_result(rig.outcome(jobs[0]).result) == status
    assert log.read_text().split() == [str(os.getpid())] * 2
    rig.executor.close()


def test_after_close_nothing_begins_and_nothing_is_delivered() -> None:
    before = set(threading.enumerate())
    rig = AttemptRig(thread_count=2)
    begun, gate, ended = threading.Semaphore(0), threading.Event(), threading.Semaphore(0)

    @rig.tasks.task
    def block() -> None:
        begun.release()
        released(gate)
        ended.release()

    @rig.tasks.task
    async def hang() -> None:
        begun.release()
        try:
            await asyncio.Event().wait()
        finally:
            ended.release()

    running = [rig.start(block), rig.start(hang)]
    for _ in running:
        assert begun.acquire(timeout=WAIT_S)
    rig.executor.close()
    gate.set()
    for _ in running:
        assert ended.acquire(timeout=WAIT_S)
    rig.executor.start([rig.job(block), rig.job(hang)])
    for thread in set(threading.enumerate()) - before:
        thread.join(WAIT_S)
        assert not thread.is_alive()
    assert rig.outcomes == []
    assert not begun.acquire(blocking=False)
    rig.executor.close()


def test_what_ended_before_the_close_is_still_delivered(rig: AttemptRig) -> None:
    """Else the ticket would count as lost at the next open: nobody lists it any more."""

    @rig.tasks.task
    async def nothing() -> None: ...

    @rig.tasks.task
    async def closes() -> None:
        rig.executor.close()

    # One turn of the loop: both have ended when the first outcome leaves.
    jobs = [rig.job(nothing), rig.job(closes)]
    rig.executor.start(jobs)
    assert rig.outcome(jobs[0]).kind == "done"
    assert rig.executor.running() == [(jobs[1].serial, 1, True)]


def test_a_handler_that_never_ends_does_not_keep_the_process_alive() -> None:
    script = """
import asyncio, threading
from parkade.clock import SystemClock
from parkade.executor import Executor
from parkade.job import Job
from parkade.shard.ticket import Ticket
from parkade.tasks import Tasks

tasks, begun = Tasks(), threading.Semaphore(0)

@tasks.task
def stuck() -> None:
    begun.release()
    threading.Event().wait()

@tasks.task
async def stuck_too() -> None:
    begun.release()
    while True:
        try:
            await asyncio.Event().wait()
        except BaseException:
            pass

executor = Executor(thread_count=2, deliver=print, clock=SystemClock(), entropy=lambda: 0,
                    result_bytes_max=10, port=None)
for serial, task in enumerate((stuck, stuck_too)):
    head = Ticket(serial, 0, task.name, 1, 0, 0, 0)
    executor.start([Job(serial, 0, 1, 1, task, task.call().payload, head, "id")])
    begun.acquire()
executor.close()
print("out")
"""
    done = subprocess.run(
        [sys.executable, "-c", script], capture_output=True, text=True, timeout=60, check=True
    )
    assert done.stdout == "out\n"
    assert "Error" not in done.stderr


def test_a_storm_of_jobs_and_cancels_gives_one_outcome_for_each(rig: AttemptRig) -> None:
    @rig.tasks.task(retry=2)
    def plain(attempt: Attempt, n: int) -> int:
        attempt.raise_if_cancelled()
        if n % 5 == 0:
            raise ValueError(n)
        return n

    @rig.tasks.task(retry=2)
    async def coroutine(attempt: Attempt, n: int) -> int:
        for _ in range(n % 4):
            await asyncio.sleep(0)
        if n % 5 == 0:
            raise ValueError(n)
        return n

    def storm(part: int) -> None:
        for n in range(0, 300, 10):
            batch = [rig.job(plain if (part + k) % 2 else coroutine, n + k) for k in range(10)]
            rig.executor.start(batch)
            for job in batch[:: 2 + part]:
                rig.executor.cancel(job.serial, job.fence, "storm")

    threads = [threading.Thread(target=storm, args=(part,)) for part in range(3)]
    for thread in threads:
        thread.start()
    outcomes = rig.await_count(900)
    for thread in threads:
        thread.join(WAIT_S)
    assert len({outcome.serial for outcome in outcomes}) == 900
    assert {outcome.kind for outcome in outcomes} <= {"done", "transient", "released"}
    assert rig.executor.running() == []
