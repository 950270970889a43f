"""Runs attempts: plain functions in threads, coroutines on an event loop.

The core thread gives jobs and hears outcomes, in batches, from whichever thread has them. It never
waits here, and nothing that a handler does reaches it: not what it raises, not that it never ends.
What an ending means is told in `parkade.settling`.
"""

import asyncio
import contextlib
import functools
import logging
import os
import sys
import threading
from collections import deque
from collections.abc import Callable, Sequence
from contextvars import copy_context
from typing import Any, Literal, NoReturn, TypeAlias

from parkade.attempt import RUNNING, Attempt
from parkade.clock import Clock
from parkade.durations import datetime_of
from parkade.policies import RetryPolicy
from parkade.settling import Settler
from parkade.shard.commands import Outcome
from parkade.shard.ticket import Ticket
from parkade.tasks import Task
from parkade.telling import tell
from parkade.threads import ThreadPool
from parkade.views import AttemptInfo

__all__ = ["Executor", "Job"]

Place: TypeAlias = Literal["thread", "loop"]

TIMER_MS_MAX = 60_000  # a timer is set anew at least so often, and asks the clock each time
_log = logging.getLogger("parkade.engine")


class Job:
    """An attempt to be made: its Started is durable and its place is in hand.

    `number` counts the budget from 1. `ticket` is the head as it stood at the start; it is read,
    never changed.
    """

    __slots__ = (
        "_policy",
        "fence",
        "number",
        "part",
        "payload",
        "serial",
        "task",
        "ticket",
        "ticket_id",
    )

    def __init__(
        self,
        serial: int,
        part: int,
        fence: int,
        number: int,
        task: Task[..., Any],
        payload: bytes,
        ticket: Ticket,
        ticket_id: str,
    ) -> None:
        self.serial = serial
        self.part = part
        self.fence = fence
        self.number = number
        self.task = task
        self.payload = payload
        self.ticket = ticket
        self.ticket_id = ticket_id
        self._policy: RetryPolicy | None = None

    @property
    def target(self) -> str | None:
        """What the attempt calls."""
        return self.ticket.target

    def policy(self) -> RetryPolicy:
        """The policy of the code of today, with the numbers that the ticket brought."""
        if self._policy is None:
            self._policy = self.task.policy_for(self.ticket.options)
        return self._policy


class _Run:
    """A job from its start to its outcome."""

    __slots__ = (
        "attempt",
        "cancel_reason",
        "deadline_ms",
        "future",
        "has_begun",
        "is_for_good",
        "job",
        "key",
        "side",
        "started_ms",
        "timeout_ms",
        "timer",
    )

    def __init__(self, job: Job) -> None:
        self.job = job
        self.key = (job.serial, job.fence)
        self.attempt: Attempt | None = None  # from when the handler begins
        self.cancel_reason: str | None = None
        self.is_for_good = False
        self.has_begun = False
        self.started_ms = 0  # on the monotonic clock, like the deadline
        self.timeout_ms: int | None = None
        self.deadline_ms: int | None = None
        self.side: _LoopSide | None = None  # where it runs, if not in a thread
        self.future: asyncio.Task[None] | None = None
        self.timer: asyncio.TimerHandle | None = None


class _LoopSide:
    """An event loop that attempts run on; its own callbacks alone touch `is_flush_due`."""

    __slots__ = ("is_flush_due", "loop")

    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        self.loop = loop
        self.is_flush_due = False


class Executor:
    """Runs jobs and hands their outcomes to `deliver`, which is called from any thread.

    `thread_count` bounds the threads for plain functions; they are started as they are needed.
    `entropy` gives random integers >= 0 for waits. A result may have `result_bytes_max`.
    """

    def __init__(
        self,
        *,
        thread_count: int,
        deliver: Callable[[list[Outcome]], None],
        clock: Clock,
        entropy: Callable[[], int],
        result_bytes_max: int,
    ) -> None:
        self._deliver = deliver
        self._clock = clock
        self._settler = Settler(
            clock=clock,
            entropy=entropy,
            result_bytes_max=result_bytes_max,
        )
        # Whoever takes a run out of here owns its outcome: there is one.
        self._runs: dict[tuple[int, int], _Run] = {}
        self._lock = threading.Lock()
        self._outcomes: deque[Outcome] = deque()
        self._handing_over = threading.Lock()
        self._threads = ThreadPool(thread_count, self._attend, self._refuse)
        self._attached: _LoopSide | None = None
        self._own: _LoopSide | None = None
        self._is_closed = False
        self._pid = os.getpid()

    # --------------------------------------------------------------------- for the core thread

    def kind_of(self, task: Task[..., Any]) -> Place:
        """Where the attempts of a task run."""
        where = task.where
        is_on_loop = task.handler.is_async if where == "auto" else where == "loop"
        return "loop" if is_on_loop else "thread"

    def attach_loop(self, loop: asyncio.AbstractEventLoop | None) -> None:
        """Run coroutines on the caller's loop; None: on a loop of our own, in a thread of its own,
        made when the first one comes."""
        self._attached = None if loop is None else _LoopSide(loop)

    def ask_breakers(self, trips: Callable[[Job, BaseException], bool]) -> None:
        """`trips` tells whether an error counts as a failure of the target; it is asked where the
        handler ran."""
        self._settler.trips = trips

    def start(self, jobs: Sequence[Job]) -> None:
        """Begin attempts. Returns at once and never raises: whatever goes wrong is an outcome."""
        if self._is_closed:
            return
        threaded: list[_Run] = []
        looped: list[_Run] = []
        with self._lock:
            for job in jobs:
                run = _Run(job)
                self._runs[run.key] = run
                (threaded if self.kind_of(job.task) == "thread" else looped).append(run)
        if threaded:
            self._threads.put(threaded)
        if looped:
            self._post(looped)

    def cancel(self, serial: int, fence: int, reason: str, *, is_for_good: bool = False) -> None:
        """Ask an attempt to stop: a coroutine gets `CancelledError`, a thread has to look.

        If it does, the ticket is given back, to run again; cancelled, when it was `is_for_good`.
        """
        run = self._runs.get((serial, fence))
        if run is None:
            return
        # In this order, and the other way round where it begins: one of the two sees the other.
        run.is_for_good = run.is_for_good or is_for_good
        run.cancel_reason = reason
        if run.attempt is not None:
            run.attempt.request_cancel(reason, is_for_good=is_for_good)
        if run.side is not None:
            with contextlib.suppress(RuntimeError):  # closed: `loop_lost` ends the attempt
                run.side.loop.call_soon_threadsafe(self._cancel_here, run)

    def running(self) -> list[tuple[int, int, bool]]:
        """Every attempt that has no outcome yet: serial, fence, whether its handler has begun."""
        with self._lock:
            return [(*run.key, run.has_begun) for run in self._runs.values()]

    def zombies(self) -> list[tuple[int, int]]:
        """Serial and fence of the attempts that run on past their timeout."""
        now_ms = self._clock.monotonic_ms()
        with self._lock:
            return [
                run.key
                for run in self._runs.values()
                if run.has_begun and run.deadline_ms is not None and now_ms >= run.deadline_ms
            ]

    def is_loop_closed(self) -> bool:
        """Whether the caller's loop was closed without `loop_lost` being called since."""
        return self._attached is not None and self._attached.loop.is_closed()

    def loop_lost(self) -> None:
        """The caller's loop has closed: what began on it ends as unknown, what did not is given
        back, and later coroutines run on a loop of our own."""
        side, self._attached = self._attached, None
        if side is not None:
            self._lose(side)

    def close(self) -> None:
        """Begin nothing more. Waits for nobody: a handler that does not end keeps its daemon
        thread, and the outcome of what `running` still lists goes nowhere."""
        with self._lock:
            self._is_closed = True
        self._threads.close()
        own, self._own = self._own, None
        if own is not None:
            with contextlib.suppress(RuntimeError):
                own.loop.call_soon_threadsafe(own.loop.stop)

    # ------------------------------------------------------------------------ in every attempt

    def _claim(self, run: _Run) -> bool:
        """Whether the run may begin; it has not been lost with its loop, or given back."""
        with self._lock:
            if self._runs.get(run.key) is not run or self._is_closed:
                return False
            run.has_begun = True
            return True

    def _prepared(self, run: _Run) -> tuple[tuple[Any, ...], dict[str, Any]] | Outcome:
        """As `_prepare`, and whatever goes wrong there is an outcome too."""
        try:
            return self._prepare(run)
        except BaseException as error:
            return self._settler.untold(run.job, error)

    def _prepare(self, run: _Run) -> tuple[tuple[Any, ...], dict[str, Any]] | Outcome:
        """The handler's arguments, with the attempt set up; or the outcome, if it will not run."""
        job, ticket = run.job, run.job.ticket
        task, options = job.task, ticket.options
        if run.cancel_reason is not None:
            return self._settler.withdrawn(job, run.cancel_reason, is_for_good=run.is_for_good)
        try:
            args, kwargs = task.decode(job.payload)
        except BaseException as error:
            return self._settler.unreadable(job, error)
        run.started_ms = self._clock.monotonic_ms()
        run.timeout_ms = task.timeout_ms
        if options is not None and options.timeout_ms is not None:
            run.timeout_ms = options.timeout_ms
        if run.timeout_ms is not None:
            run.deadline_ms = run.started_ms + run.timeout_ms
        attempt = Attempt(
            job.ticket_id,
            ticket.task,
            clock=self._clock,
            number=job.number,
            max_attempts=job.policy().max_attempts,
            fence=job.fence,
            due_ms=ticket.first_due_ms,
            key=ticket.key,
            target=None if options is None else options.target,
            tags=None if options is None else options.tags,
            last_error=None if ticket.error is None else _last_error(job),
            deadline_ms=run.deadline_ms,
        )
        run.attempt = attempt
        if run.cancel_reason is not None:
            attempt.request_cancel(run.cancel_reason, is_for_good=run.is_for_good)
        RUNNING.set(attempt)
        if task.handler.takes_attempt:
            return (attempt, *args), kwargs
        return args, kwargs

    def _ended(self, run: _Run, value: Any, error: BaseException | None) -> Outcome:
        """The outcome of a handler that has returned or raised. There always is one: a run
        without would keep its place, and its ticket would run for ever."""
        if os.getpid() != self._pid:
            _leave_fork(error)
        try:
            return self._outcome_of(run, value, error)
        except BaseException as second:
            return self._settler.untold(run.job, second)

    def _outcome_of(self, run: _Run, value: Any, error: BaseException | None) -> Outcome:
        attempt = run.attempt
        assert attempt is not None, run.key
        ran_ms = self._clock.monotonic_ms() - run.started_ms
        if run.timeout_ms is not None and ran_ms >= run.timeout_ms:
            return self._settler.overran(run.job, run.timeout_ms, ran_ms, error)
        if error is not None:
            return self._settler.raised(run.job, attempt, error, ran_ms)
        return self._settler.returned(run.job, attempt, value, ran_ms)

    def _release(self, run: _Run) -> bool:
        """Takes the run out; whether its outcome is still wanted."""
        with self._lock:
            return not self._is_closed and self._runs.pop(run.key, None) is run

    def _hand_over(self) -> None:
        """Delivers what is there; whoever comes while another delivers leaves it to that one."""
        while self._outcomes and self._handing_over.acquire(blocking=False):
            try:
                batch = []
                with contextlib.suppress(IndexError):
                    while True:
                        batch.append(self._outcomes.popleft())
                if batch:
                    self._deliver(batch)
            except Exception as error:
                tell(_log, logging.ERROR, "outcomes could not be handed over", error=error)
            finally:
                self._handing_over.release()

    def _refuse(self, runs: Sequence[_Run], error: BaseException) -> None:
        """Ends runs that nothing can run."""
        for run in runs:
            if self._release(run):
                self._outcomes.append(self._settler.not_run(run.job, error))
        self._hand_over()

    # ------------------------------------------------------------------------------- in threads

    def _attend(self, run: _Run) -> None:
        """One attempt, start to end, on a thread of the pool."""
        outcome = copy_context().run(self._call, run) if self._claim(run) else None
        if outcome is not None and self._release(run):
            self._outcomes.append(outcome)
            self._hand_over()

    def _call(self, run: _Run) -> Outcome:
        prepared = self._prepared(run)
        if isinstance(prepared, Outcome):
            return prepared
        args, kwargs = prepared
        # Caught where it is called: an error of the call itself has no frame of the handler's.
        try:
            value = run.job.task.handler.fn(*args, **kwargs)
        except BaseException as error:
            return self._ended(run, None, error)
        return self._ended(run, value, None)

    # ------------------------------------------------------------------------------- on a loop

    def _post(self, runs: list[_Run]) -> None:
        """Brings runs to the loop, all of them in one callback."""
        attached = self._attached
        if attached is not None and self._post_to(attached, runs):
            return
        if attached is not None:
            self.loop_lost()
        for _ in range(2):  # a handler may have closed our own loop too; a new one is at hand
            try:
                own = self._own_side()
            except Exception as error:
                self._refuse(runs, error)
                return
            if self._post_to(own, runs):
                return
            self._own = None
            self._lose(own)
        self._refuse(runs, RuntimeError("the event loop was closed at once"))

    def _post_to(self, side: _LoopSide, runs: list[_Run]) -> bool:
        """False: the loop is closed, and the runs are nowhere."""
        for run in runs:
            run.side = side
        try:
            side.loop.call_soon_threadsafe(self._begin, side, runs)
        except RuntimeError:
            for run in runs:
                run.side = None
            return False
        return True

    def _begin(self, side: _LoopSide, runs: list[_Run]) -> None:
        if self._is_closed:
            return
        for run in runs:
            context = copy_context()
            attending = self._attend_here(side, run)
            try:
                run.future = side.loop.create_task(attending, context=context)
                run.future.add_done_callback(functools.partial(self._check, side, run))
            except BaseException as error:  # the application's own task factory
                attending.close()
                self._finish_here(side, run, self._settler.not_run(run.job, error))

    async def _attend_here(self, side: _LoopSide, run: _Run) -> None:
        """One attempt, start to end, as a task of its own."""
        if not self._claim(run):
            return
        prepared = self._prepared(run)
        if isinstance(prepared, Outcome):
            self._finish_here(side, run, prepared)
            return
        args, kwargs = prepared
        if run.timeout_ms is not None:
            self._set_timer(side, run)
        try:
            value = await run.job.task.handler.fn(*args, **kwargs)
        except GeneratorExit:
            # Nobody will step this task again: its loop has gone, or somebody closed it.
            self._finish_here(side, run, self._settler.lost(run.job, "its task was destroyed"))
            raise
        except BaseException as error:
            self._finish_here(side, run, self._ended(run, None, error))
            # Ctrl-C in the application's main thread is for the application.
            if isinstance(error, KeyboardInterrupt) and _is_main_thread():
                raise
        else:
            self._finish_here(side, run, self._ended(run, value, None))

    def _set_timer(self, side: _LoopSide, run: _Run) -> None:
        assert run.deadline_ms is not None
        left_ms = run.deadline_ms - self._clock.monotonic_ms()
        if left_ms > 0:
            delay_s = min(left_ms, TIMER_MS_MAX) / 1_000
            run.timer = side.loop.call_later(delay_s, self._set_timer, side, run)
        elif run.future is not None:
            run.future.cancel()

    def _cancel_here(self, run: _Run) -> None:
        """On its loop. A task that has not begun sees the flag: cancelled now, it would not run at
        all, and nobody would hear of it."""
        if run.has_begun and run.future is not None:
            run.future.cancel(run.cancel_reason)

    def _finish_here(self, side: _LoopSide, run: _Run, outcome: Outcome) -> None:
        """On its loop: outcomes of one iteration leave together."""
        if run.timer is not None:
            run.timer.cancel()
        if not self._release(run):
            return
        self._outcomes.append(outcome)
        if side.is_flush_due:
            return
        try:
            side.loop.call_soon(self._flush, side)
            side.is_flush_due = True
        except RuntimeError:
            self._hand_over()

    def _flush(self, side: _LoopSide) -> None:
        side.is_flush_due = False
        self._hand_over()

    def _check(self, side: _LoopSide, run: _Run, future: "asyncio.Task[None]") -> None:
        """After a task: one that was cancelled before its first step has told nobody."""
        if not future.cancelled():
            future.exception()  # seen: the loop need not report it
        if self._runs.get(run.key) is run:
            if run.has_begun:
                outcome = self._settler.lost(run.job, "its task ended and told nobody how")
            else:
                why = "its task was cancelled before it began"
                outcome = self._settler.given_back(run.job, why)
            self._finish_here(side, run, outcome)

    def _lose(self, side: _LoopSide) -> None:
        """Ends what is on a loop that is no more."""
        with self._lock:
            runs = [run for run in self._runs.values() if run.side is side]
            for run in runs:
                del self._runs[run.key]
        why = "its event loop was closed"
        for run in runs:
            settle = self._settler.lost if run.has_begun else self._settler.given_back
            self._outcomes.append(settle(run.job, why))
        self._hand_over()

    def _own_side(self) -> _LoopSide:
        if self._own is None:
            side = _LoopSide(asyncio.new_event_loop())
            name = "parkade-loop"
            threading.Thread(target=self._run_loop, args=(side,), name=name, daemon=True).start()
            self._own = side
        return self._own

    def _run_loop(self, side: _LoopSide) -> None:
        """Our own loop's thread: a handler that stops the loop stops only until the next line."""
        loop = side.loop
        asyncio.set_event_loop(loop)
        while not self._is_closed and not loop.is_closed():
            try:
                loop.run_forever()
            except BaseException as error:
                text = "an event loop of handlers was interrupted and goes on"
                tell(_log, logging.ERROR, text, error=error)
        with contextlib.suppress(BaseException):
            _wind_up(loop)
        if not loop.is_closed():
            loop.close()


def _last_error(job: Job) -> AttemptInfo:
    """What the head keeps of the attempt before: its error. Its times are in the history."""
    ticket = job.ticket
    assert ticket.error is not None
    first_due = datetime_of(ticket.first_due_ms)
    return AttemptInfo(
        number=max(1, job.number - 1),
        started_at=first_due,
        ended_at=None,
        fence=job.fence - 1,
        outcome="error",
        error_type=ticket.error.type,
        error=ticket.error.message,
        traceback=ticket.error.traceback or None,
    )


def _leave_fork(error: BaseException | None) -> NoReturn:
    """Ends a child that a handler forked and that comes out of the handler: it has a copy of the
    work that waits here, and would do it a second time."""
    code: object = 0 if error is None else 1
    if isinstance(error, SystemExit):
        code = error.code or 0
    for stream in (sys.stdout, sys.stderr):
        with contextlib.suppress(BaseException):
            stream.flush()
    os._exit(code & 0xFF if isinstance(code, int) else 1)


def _is_main_thread() -> bool:
    return threading.current_thread() is threading.main_thread()


def _wind_up(loop: asyncio.AbstractEventLoop) -> None:
    """Cancels what is left on a loop and lets it end, as `asyncio.run` does."""
    tasks = asyncio.all_tasks(loop)
    for task in tasks:
        task.cancel()
    if tasks:
        loop.run_until_complete(asyncio.gather(*tasks, return_exceptions=True))
    loop.run_until_complete(loop.shutdown_asyncgens())
