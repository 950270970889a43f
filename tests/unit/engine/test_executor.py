"""Attempts in threads and on loops: one outcome each, whatever handlers do around them."""

import asyncio
import contextvars
import gc
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest

from parkade.attempt import Attempt, current_attempt
from parkade.errors import NoAttempt
from parkade.executor import Executor, Job
from parkade.shard.commands import Outcome
from parkade.shard.ticket import Ticket
from parkade.store.record import ErrorText, Options
from parkade.tasks import Task, Tasks
from parkade.verdicts import Cancelled, Fail

WAIT_S = 20.0  # never reached: only so that a broken test ends
DUE_MS = 1_798_761_600_000


class Clock:
    """Stands still until it is told; `on_ask` is called with each reading."""

    def __init__(self) -> None:
        self.ms = 1_000
        self.on_ask: Callable[[], None] = lambda: None

    def now_ms(self) -> int:
        return DUE_MS + self.ms

    def monotonic_ms(self) -> int:
        self.on_ask()
        return self.ms

    def wait(self, event: threading.Event, timeout_ms: int | None) -> bool:
        raise AssertionError("an executor waits for nobody")


class Rig:
    """An executor and what it delivered."""

    def __init__(self, thread_count: int = 4) -> None:
        self.clock = Clock()
        self.tasks = Tasks()
        self.batches: list[list[Outcome]] = []
        self._arrived = threading.Condition()
        self._serials = iter(range(1, 1_000_000))
        self.executor = Executor(
            thread_count=thread_count,
            deliver=self.deliver,
            clock=self.clock,
            entropy=lambda: 0,
            result_bytes_max=1_000,
        )

    def deliver(self, outcomes: list[Outcome]) -> None:
        with self._arrived:
            self.batches.append(outcomes)
            self._arrived.notify_all()

    @property
    def outcomes(self) -> list[Outcome]:
        return [outcome for batch in list(self.batches) for outcome in batch]

    def job(self, task: Task[..., Any], *args: Any, fence: int = 1, **head: Any) -> Job:
        serial = next(self._serials)
        number = head.pop("number", 1)
        ticket = Ticket(serial, 0, task.name, 1, DUE_MS, DUE_MS, DUE_MS, **head)
        payload = task.call(*args).payload
        return Job(serial, 0, fence, number, task, payload, ticket, f"id-{serial}")

    def start(self, task: Task[..., Any], *args: Any, **head: Any) -> Job:
        job = self.job(task, *args, **head)
        self.executor.start([job])
        return job

    def run(self, task: Task[..., Any], *args: Any, **head: Any) -> Outcome:
        """Start one, and await its outcome."""
        return self.outcome(self.start(task, *args, **head))

    def outcome(self, job: Job) -> Outcome:
        def found() -> list[Outcome]:
            return [o for o in self.outcomes if (o.serial, o.fence) == (job.serial, job.fence)]

        with self._arrived:
            assert self._arrived.wait_for(found, WAIT_S), "no outcome"
        [outcome] = found()
        return outcome

    def await_count(self, count: int) -> list[Outcome]:
        with self._arrived:
            assert self._arrived.wait_for(lambda: len(self.outcomes) >= count, WAIT_S)
        assert len(self.outcomes) == count
        return self.outcomes


@pytest.fixture
def rig() -> Iterator[Rig]:
    rig = Rig()
    yield rig
    rig.executor.close()


@pytest.fixture
def loop() -> Iterator[asyncio.AbstractEventLoop]:
    """A caller's loop that runs in a thread of its own until it is stopped."""
    loop = asyncio.new_event_loop()
    thread = threading.Thread(target=loop.run_forever)
    thread.start()
    yield loop
    if not loop.is_closed():
        loop.call_soon_threadsafe(loop.stop)
    thread.join(WAIT_S)
    if not loop.is_closed():
        loop.close()


def stop_and_close(loop: asyncio.AbstractEventLoop) -> None:
    """As an application does that ends: the loop stops where it stands."""
    loop.call_soon_threadsafe(loop.stop)
    while not loop.is_closed():
        try:
            loop.close()
        except RuntimeError:  # it is still on its way out
            continue


def released(event: threading.Event) -> None:
    assert event.wait(WAIT_S)


# ------------------------------------------------------------------------------ the plain paths


def test_functions_run_in_threads_and_coroutines_on_a_loop(rig: Rig) -> None:
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


def test_where_a_task_says_is_where_it_runs(rig: Rig) -> None:
    def plain() -> None: ...

    async def coroutine() -> None: ...

    kind_of = rig.executor.kind_of
    assert kind_of(rig.tasks.task(name="a", where="thread")(plain)) == "thread"
    assert kind_of(rig.tasks.task(name="b", where="loop")(coroutine)) == "loop"


def test_a_large_batch_has_one_outcome_for_each(rig: Rig) -> None:
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


def test_outcomes_of_one_turn_of_the_loop_leave_together(rig: Rig) -> None:
    @rig.tasks.task
    async def nothing() -> None: ...

    rig.executor.start([rig.job(nothing) for _ in range(256)])
    rig.await_count(256)
    assert len(rig.batches) == 1


def test_a_handler_is_told_about_its_attempt(rig: Rig) -> None:
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


def test_the_attempt_is_found_below_the_handler_and_nowhere_else(rig: Rig) -> None:
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


def test_every_attempt_has_a_context_of_its_own(rig: Rig) -> None:
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


def test_a_payload_that_does_not_fit_calls_no_handler(rig: Rig) -> None:
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
    rig: Rig, error: BaseException, kind: str
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


def test_the_traceback_begins_in_the_handler(rig: Rig) -> None:
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


def test_a_handler_that_does_not_take_its_arguments_is_given_up(rig: Rig) -> None:
    @rig.tasks.task
    def plain(n: int) -> None: ...

    plain.handler.fn = lambda: None
    assert rig.run(plain, 1).kind == "failed"


def test_a_plain_function_that_returns_a_coroutine_is_a_failure(rig: Rig) -> None:
    async def inner() -> None: ...

    @rig.tasks.task
    def plain() -> Any:
        return inner()

    outcome = rig.run(plain)
    assert outcome.kind == "failed"
    assert outcome.error is not None
    assert "async def" in outcome.error.message


def test_a_handler_that_stops_or_closes_the_loop_stops_nobody(rig: Rig) -> None:
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
    rig: Rig, caplog: pytest.LogCaptureFixture
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


def test_a_loop_of_ours_that_was_taken_down_is_replaced(rig: Rig) -> None:
    @rig.tasks.task
    async def hang() -> None:
        begun.set()
        await asyncio.Event().wait()

    @rig.tasks.task
    async def fine() -> None: ...

    begun = threading.Event()
    job = rig.start(hang)
    released(begun)
    own = rig.executor._own
    assert own is not None
    closed = asyncio.new_event_loop()
    closed.close()
    own.loop, taken = closed, own.loop
    assert rig.run(fine).kind == "done"
    outcome = rig.outcome(job)
    assert (outcome.kind, outcome.has_begun) == ("lease", True)
    rig.executor.close()
    taken.call_soon_threadsafe(taken.stop)


def test_a_task_factory_that_raises_is_not_the_tickets_fault(rig: Rig) -> None:
    def refuse(loop: Any, coro: Any, **kwargs: Any) -> Any:
        raise RuntimeError("no tasks today")

    @rig.tasks.task
    async def fine() -> None: ...

    assert rig.run(fine).kind == "done"
    assert rig.executor._own is not None
    rig.executor._own.loop.set_task_factory(refuse)
    outcome = rig.run(fine)
    assert (outcome.kind, outcome.has_begun) == ("transient", False)
    rig.executor._own.loop.set_task_factory(None)
    assert rig.run(fine).kind == "done"


def test_a_host_that_raises_is_logged_and_the_rest_goes_on(
    rig: Rig, caplog: pytest.LogCaptureFixture
) -> None:
    @rig.tasks.task
    def fine() -> None: ...

    failed = threading.Event()

    def fail(outcomes: list[Outcome]) -> None:
        rig.executor._deliver = rig.deliver
        failed.set()
        raise ValueError("host")

    rig.executor._deliver = fail
    rig.start(fine)
    released(failed)
    assert rig.run(fine).kind == "done"
    assert "could not be handed over" in caplog.text


def test_blocking_handlers_delay_nobody_while_a_thread_is_free() -> None:
    rig = Rig(thread_count=8)
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


# --------------------------------------------------------------------------------------- cancel


def test_a_coroutine_that_is_cancelled_hears_it_where_it_waits(rig: Rig) -> None:
    @rig.tasks.task
    async def hang(attempt: Attempt) -> None:
        begun.set()
        try:
            await asyncio.Event().wait()
        finally:
            seen.append(attempt.cancel_reason)

    begun = threading.Event()
    seen: list[str | None] = []
    job = rig.start(hang)
    released(begun)
    rig.executor.cancel(job.serial, job.fence, "typo", is_for_good=True)
    outcome = rig.outcome(job)
    assert (outcome.kind, outcome.reason, outcome.error) == ("cancelled", "typo", None)
    assert seen == ["typo"]


def test_what_stops_with_its_engine_is_given_back_and_not_cancelled(rig: Rig) -> None:
    @rig.tasks.task
    async def hang() -> None:
        begun.release()
        await asyncio.Event().wait()

    @rig.tasks.task
    def poll(attempt: Attempt) -> None:
        begun.release()
        released(asked)
        attempt.raise_if_cancelled()

    begun, asked = threading.Semaphore(0), threading.Event()
    jobs = [rig.start(hang), rig.start(poll)]
    for _ in jobs:
        assert begun.acquire(timeout=WAIT_S)
    for job in jobs:
        rig.executor.cancel(job.serial, job.fence, "the engine stops")
    asked.set()
    for job in jobs:
        outcome = rig.outcome(job)
        assert (outcome.kind, outcome.has_begun) == ("released", True)


def test_what_a_cancelled_coroutine_still_reports_is_kept(rig: Rig) -> None:
    @rig.tasks.task
    async def finish() -> str:
        begun.set()
        try:
            await asyncio.Event().wait()
        except asyncio.CancelledError:
            return "done all the same"
        return "never"

    begun = threading.Event()
    job = rig.start(finish)
    released(begun)
    rig.executor.cancel(job.serial, job.fence, "typo")
    assert rig.outcome(job).kind == "done"


def test_a_function_that_is_cancelled_sees_it_when_it_looks(rig: Rig) -> None:
    @rig.tasks.task
    def poll(attempt: Attempt) -> None:
        begun.set()
        released(cancelled)
        attempt.raise_if_cancelled()

    begun, cancelled = threading.Event(), threading.Event()
    job = rig.start(poll)
    released(begun)
    rig.executor.cancel(job.serial, job.fence + 1, "another attempt")
    rig.executor.cancel(job.serial, job.fence, "typo", is_for_good=True)
    cancelled.set()
    outcome = rig.outcome(job)
    assert (outcome.kind, outcome.reason) == ("cancelled", "typo")


def test_what_is_cancelled_before_it_begins_never_does() -> None:
    rig = Rig(thread_count=1)
    gate, begun, called = threading.Event(), threading.Event(), []

    @rig.tasks.task
    def block() -> None:
        begun.set()
        released(gate)

    @rig.tasks.task
    async def block_loop() -> None:
        begun.set()
        released(gate)

    @rig.tasks.task
    def never() -> None:
        called.append(1)

    @rig.tasks.task
    async def never_either() -> None:
        called.append(1)

    for blocking, blocked in ((block, never), (block_loop, never_either)):
        gate.clear()
        begun.clear()
        first = rig.start(blocking)
        released(begun)
        job = rig.start(blocked)
        assert rig.executor.running()[-1] == (job.serial, 1, False)
        rig.executor.cancel(job.serial, 1, "the engine stops")
        rig.executor.cancel(job.serial, 1, "typo", is_for_good=True)
        gate.set()
        assert rig.outcome(first).kind == "done"
        outcome = rig.outcome(job)
        assert (outcome.kind, outcome.reason, outcome.has_begun) == ("cancelled", "typo", False)
    assert called == []
    rig.executor.close()


def test_a_cancel_from_a_stranger_is_a_failure_like_another(rig: Rig) -> None:
    @rig.tasks.task
    async def stranger() -> None:
        task = asyncio.current_task()
        assert task is not None
        task.cancel()
        await asyncio.sleep(0)

    assert rig.run(stranger).kind == "transient"


def test_a_task_that_a_stranger_cancels_before_it_begins_is_given_back(
    rig: Rig, loop: asyncio.AbstractEventLoop
) -> None:
    @rig.tasks.task
    async def never() -> None:
        called.append(1)

    called: list[int] = []
    attached = asyncio.run_coroutine_threadsafe(asyncio.sleep(0, asyncio.current_task), loop)
    attached.result(WAIT_S)
    rig.executor.attach_loop(loop)

    def cancel_all() -> None:
        # In the same turn of the loop in which the task was made, and before its first step.
        for task in asyncio.all_tasks(loop):
            task.cancel()

    def both() -> None:
        rig.executor.start([job])
        loop.call_soon(cancel_all)

    job = rig.job(never)
    loop.call_soon_threadsafe(both)
    outcome = rig.outcome(job)
    assert (outcome.kind, outcome.has_begun) == ("released", False)
    assert called == []


# ------------------------------------------------------------------------------------- timeouts


def test_a_coroutine_is_cancelled_at_its_timeout_by_the_engines_clock(rig: Rig) -> None:
    """The timer of the loop only says when to look."""

    @rig.tasks.task(timeout="1ms", retry=["7s"])
    async def hang() -> None:
        rig.clock.on_ask = count
        await asyncio.Event().wait()

    asked: list[int] = []

    def count() -> None:
        asked.append(rig.clock.ms)
        if len(asked) == 5:
            rig.clock.ms += 1

    outcome = rig.run(hang)
    assert (outcome.kind, outcome.wait_ms) == ("timeout", 7_000)
    assert outcome.error == ErrorText("TimeoutError", "ran for 1 ms, the timeout is 1 ms")
    assert asked[:5] == [1_000] * 5


def test_the_timeout_of_the_ticket_goes_before_the_tasks(rig: Rig) -> None:
    @rig.tasks.task(timeout="1h")
    async def takes_5_s() -> None:
        rig.clock.ms += 5_000

    assert rig.run(takes_5_s).kind == "done"
    assert rig.run(takes_5_s, options=Options(timeout_ms=5_001)).kind == "done"
    assert rig.run(takes_5_s, options=Options(timeout_ms=5_000)).kind == "timeout"


@pytest.mark.parametrize("ending", ["return", "raise", "cancelled"])
def test_a_function_that_took_too_long_has_timed_out_however_it_ends(rig: Rig, ending: str) -> None:
    @rig.tasks.task(timeout="2s")
    def slow(attempt: Attempt) -> None:
        rig.clock.ms += 1_999
        attempt.raise_if_cancelled()
        rig.clock.ms += 1
        assert attempt.cancelled
        if ending == "raise":
            raise Fail("too late to say")
        if ending == "cancelled":
            attempt.raise_if_cancelled()

    outcome = rig.run(slow)
    assert outcome.kind == "timeout"
    assert outcome.error is not None
    assert outcome.error.message.startswith("ran for 2 s, the timeout is 2 s")


def test_an_attempt_past_its_timeout_is_a_zombie_until_it_ends(rig: Rig) -> None:
    @rig.tasks.task(timeout="2s")
    def slow() -> None:
        begun.set()
        released(gate)

    begun, gate = threading.Event(), threading.Event()
    job = rig.start(slow)
    released(begun)
    assert rig.executor.zombies() == []
    rig.clock.ms += 2_000
    assert rig.executor.zombies() == [(job.serial, 1)]
    gate.set()
    assert rig.outcome(job).kind == "timeout"
    assert rig.executor.zombies() == []


def test_a_coroutine_that_will_not_be_cancelled_has_timed_out_when_it_ends(rig: Rig) -> None:
    @rig.tasks.task(timeout="1ms")
    async def stubborn() -> str:
        rig.clock.ms += 1
        try:
            await asyncio.Event().wait()
        except asyncio.CancelledError:
            await asyncio.sleep(0)
        return "here I am"

    assert rig.run(stubborn).kind == "timeout"


def test_the_timeouts_of_asyncio_work_inside_a_handler(rig: Rig) -> None:
    @rig.tasks.task
    async def inner() -> str:
        try:
            async with asyncio.timeout(0):
                await asyncio.Event().wait()
        except TimeoutError:
            return "mine"
        return "never"

    assert rig.run(inner).result == b"\xa4mine"


# ----------------------------------------------------------------------------- the caller's loop


def test_coroutines_run_on_the_callers_loop(rig: Rig, loop: asyncio.AbstractEventLoop) -> None:
    @rig.tasks.task
    async def which() -> bool:
        return asyncio.get_running_loop() is loop

    rig.executor.attach_loop(loop)
    assert rig.run(which).result == b"\xc3"
    rig.executor.attach_loop(None)
    assert rig.run(which).result == b"\xc2"


@pytest.mark.parametrize("is_told", [True, False], ids=["told", "found out"])
def test_when_the_callers_loop_closes_its_attempts_end_and_the_rest_goes_on(
    rig: Rig, loop: asyncio.AbstractEventLoop, is_told: bool, caplog: pytest.LogCaptureFixture
) -> None:
    @rig.tasks.task(retry=["7s"])
    async def hang() -> None:
        begun.set()
        await asyncio.Event().wait()

    @rig.tasks.task
    def block() -> None:
        released(gate)

    @rig.tasks.task
    async def which() -> bool:
        return asyncio.get_running_loop() is loop

    begun, gate = threading.Event(), threading.Event()
    rig.executor.attach_loop(loop)
    blocking, hanging = rig.start(block), rig.start(hang)
    released(begun)
    assert not rig.executor.is_loop_closed()
    stop_and_close(loop)
    assert rig.executor.is_loop_closed()
    rig.executor.cancel(hanging.serial, 1, "nobody is there to hear it")
    if is_told:
        rig.executor.loop_lost()
        rig.executor.loop_lost()
    assert rig.run(which).result == b"\xc2"
    outcome = rig.outcome(hanging)
    assert (outcome.kind, outcome.has_begun, outcome.wait_ms) == ("lease", True, 7_000)
    assert outcome.error is not None
    assert "event loop was closed" in outcome.error.message
    gate.set()
    assert rig.outcome(blocking).kind == "done"
    # What is left of the task is collected, and tells nobody anything more.
    gc.collect()
    assert len(rig.outcomes) == 3
    assert not rig.executor.is_loop_closed()


def test_what_had_not_begun_on_a_loop_that_closed_is_given_back(rig: Rig) -> None:
    @rig.tasks.task
    async def never() -> None: ...

    loop = asyncio.new_event_loop()
    rig.executor.attach_loop(loop)
    job = rig.start(never)
    loop.close()
    rig.executor.loop_lost()
    outcome = rig.outcome(job)
    assert (outcome.kind, outcome.has_begun) == ("released", False)


def test_ctrl_c_in_the_main_thread_reaches_the_application(rig: Rig) -> None:
    @rig.tasks.task
    async def interrupted() -> None:
        raise KeyboardInterrupt

    loop = asyncio.new_event_loop()
    rig.executor.attach_loop(loop)
    job = rig.start(interrupted)
    with pytest.raises(KeyboardInterrupt):
        loop.run_forever()
    loop.run_until_complete(asyncio.sleep(0))
    assert rig.outcome(job).kind == "transient"
    loop.close()


def test_an_application_that_ends_with_asyncio_run_leaves_no_attempt_without_outcome(
    rig: Rig,
) -> None:
    @rig.tasks.task
    async def hang() -> None:
        begun.append(1)
        await asyncio.Event().wait()

    async def main() -> None:
        rig.executor.attach_loop(asyncio.get_running_loop())
        rig.executor.start(jobs)
        while len(begun) < 20:
            await asyncio.sleep(0)

    begun: list[int] = []
    jobs = [rig.job(hang) for _ in range(20)]
    asyncio.run(main())
    rig.executor.loop_lost()
    assert {outcome.kind for outcome in rig.await_count(20)} == {"transient"}
    assert rig.executor.running() == []


# ---------------------------------------------------------------------------------------- close


def test_after_close_nothing_begins_and_nothing_is_delivered() -> None:
    before = set(threading.enumerate())
    rig = Rig(thread_count=2)
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


def test_what_ended_before_the_close_is_still_delivered(rig: Rig) -> None:
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
from parkade.executor import Executor, Job
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
                    result_bytes_max=10)
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


def test_a_storm_of_jobs_and_cancels_gives_one_outcome_for_each(rig: Rig) -> None:
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
