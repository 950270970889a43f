"""When attempts are to stop: cancelled, timed out, or their loop closes under them."""

import asyncio
import contextlib
import gc
import threading
from collections.abc import Iterator

import pytest

from kit.attempts import WAIT_S, AttemptRig, released
from parkade.attempt import Attempt
from parkade.deadlines import STOP_GRACE_MS
from parkade.store.record import ErrorText, Options
from parkade.verdicts import Fail


@pytest.fixture
def rig() -> Iterator[AttemptRig]:
    rig = AttemptRig()
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


# --------------------------------------------------------------------------------------- cancel


def test_a_coroutine_that_is_cancelled_hears_it_where_it_waits(rig: AttemptRig) -> None:
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


def test_what_stops_with_its_engine_is_given_back_and_not_cancelled(rig: AttemptRig) -> None:
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


def test_what_a_cancelled_coroutine_still_reports_is_kept(rig: AttemptRig) -> None:
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


def test_a_function_that_is_cancelled_sees_it_when_it_looks(rig: AttemptRig) -> None:
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
    rig = AttemptRig(thread_count=1)
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


def test_a_cancel_from_a_stranger_is_a_failure_like_another(rig: AttemptRig) -> None:
    @rig.tasks.task
    async def stranger() -> None:
        task = asyncio.current_task()
        assert task is not None
        task.cancel()
        await asyncio.sleep(0)

    assert rig.run(stranger).kind == "transient"


def test_a_task_that_a_stranger_cancels_before_it_begins_is_given_back(
    rig: AttemptRig, loop: asyncio.AbstractEventLoop
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


def test_a_coroutine_is_cancelled_at_its_timeout_by_the_engines_clock(rig: AttemptRig) -> None:
    @rig.tasks.task(timeout="2s", retry=["7s"])
    async def hang() -> None:
        begun.set()
        await asyncio.Event().wait()

    begun = threading.Event()
    job = rig.start(hang)
    released(begun)
    rig.pass_ms(1_999)
    assert rig.executor.wait_ms(rig.clock.ms) == 1
    assert rig.outcomes == []
    rig.pass_ms(1)
    outcome = rig.outcome(job)
    assert (outcome.kind, outcome.wait_ms, outcome.lives_on) == ("timeout", 7_000, False)
    assert outcome.error == ErrorText("TimeoutError", "ran for 2 s, the timeout is 2 s")


def test_the_timeout_of_the_ticket_goes_before_the_tasks(rig: AttemptRig) -> None:
    @rig.tasks.task(timeout="1h")
    async def takes_5_s() -> None:
        rig.clock.ms += 5_000

    assert rig.run(takes_5_s).kind == "done"
    assert rig.run(takes_5_s, options=Options(timeout_ms=5_001)).kind == "done"
    assert rig.run(takes_5_s, options=Options(timeout_ms=5_000)).kind == "timeout"


@pytest.mark.parametrize("ending", ["return", "raise", "cancelled"])
def test_a_function_that_took_too_long_has_timed_out_however_it_ends(
    rig: AttemptRig, ending: str
) -> None:
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


def test_a_thread_past_its_timeout_has_its_outcome_at_once_and_is_a_zombie_until_it_ends(
    rig: AttemptRig,
) -> None:
    @rig.tasks.task(timeout="2s", retry=["7s"])
    def slow(attempt: Attempt) -> str:
        begun.set()
        released(gate)
        seen.append((attempt.cancelled, attempt.cancel_reason))
        return "done after all"

    begun, gate = threading.Event(), threading.Event()
    seen: list[object] = []
    job = rig.start(slow)
    released(begun)
    rig.pass_ms(1_999)
    assert rig.outcomes == []
    assert rig.executor.zombies() == []
    rig.pass_ms(1)
    [outcome] = rig.outcomes
    assert (outcome.kind, outcome.wait_ms, outcome.lives_on) == ("timeout", 7_000, True)
    assert rig.executor.zombies() == [(job.serial, 1)]
    assert rig.executor.running() == []
    gate.set()
    late = rig.await_count(2)[1]
    assert (late.serial, late.fence, late.kind, late.lives_on) == (job.serial, 1, "done", False)
    assert rig.executor.zombies() == []
    assert seen == [(True, "it was given up: another attempt may run")]


def test_a_coroutine_that_will_not_be_cancelled_is_given_up_after_a_grace(rig: AttemptRig) -> None:
    @rig.tasks.task(timeout="2s")
    async def stubborn() -> str:
        begun.set()
        with contextlib.suppress(asyncio.CancelledError):
            await asyncio.Event().wait()
        told.set()
        while not gate.is_set():
            with contextlib.suppress(asyncio.CancelledError):
                await asyncio.sleep(0)
        return "here I am"

    begun, told, gate = threading.Event(), threading.Event(), threading.Event()
    job = rig.start(stubborn)
    released(begun)
    rig.pass_ms(2_000)
    released(told)
    rig.pass_ms(STOP_GRACE_MS - 1)
    assert rig.outcomes == []
    rig.pass_ms(1)
    [outcome] = rig.outcomes
    assert (outcome.kind, outcome.lives_on) == ("timeout", True)
    assert rig.executor.zombies() == [(job.serial, 1)]
    gate.set()
    rig.await_count(2)
    assert rig.executor.zombies() == []


def test_the_timeouts_of_asyncio_work_inside_a_handler(rig: AttemptRig) -> None:
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


def test_coroutines_run_on_the_callers_loop(
    rig: AttemptRig, loop: asyncio.AbstractEventLoop
) -> None:
    @rig.tasks.task
    async def which() -> bool:
        return asyncio.get_running_loop() is loop

    rig.executor.attach_loop(loop)
    assert rig.run(which).result == b"\xc3"
    rig.executor.attach_loop(None)
    assert rig.run(which).result == b"\xc2"


@pytest.mark.parametrize("is_told", [True, False], ids=["told", "found out"])
def test_when_the_callers_loop_closes_its_attempts_end_and_the_rest_goes_on(
    rig: AttemptRig,
    loop: asyncio.AbstractEventLoop,
    is_told: bool,
    caplog: pytest.LogCaptureFixture,
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


def test_what_had_not_begun_on_a_loop_that_closed_is_given_back(rig: AttemptRig) -> None:
    @rig.tasks.task
    async def never() -> None: ...

    loop = asyncio.new_event_loop()
    rig.executor.attach_loop(loop)
    job = rig.start(never)
    loop.close()
    rig.executor.loop_lost()
    outcome = rig.outcome(job)
    assert (outcome.kind, outcome.has_begun) == ("released", False)


def test_ctrl_c_in_the_main_thread_reaches_the_application(rig: AttemptRig) -> None:
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
    rig: AttemptRig,
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
