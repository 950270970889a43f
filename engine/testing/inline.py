"""Attempts on the thread of the test: the engine's own executor, without its threads.

What an attempt sees and what becomes of it is told by the same code as in an engine with threads;
only who calls it is another.
"""

import asyncio
from collections import deque
from collections.abc import Callable, Generator, Sequence
from contextlib import contextmanager
from typing import Any

from parkade.attempt import Attempt
from parkade.clock import Clock
from parkade.executor import Executor, PlaceKind
from parkade.job import Job
from parkade.links import LinkPort
from parkade.runs import Run
from parkade.settling import Settler
from parkade.shard.commands import Outcome
from parkade.store.record import ErrorText
from parkade.tasks import Task
from parkade.testing.report import Killed, Raised
from parkade.threaded import ThreadedPlace
from parkade.threads import ThreadPool

__all__ = ["InlineExecutor", "off_loop"]

# Documented under "Extending", for loops and tasks that are not asyncio's own.
_enter_task, _leave_task = asyncio._enter_task, asyncio._leave_task  # pyright: ignore[reportPrivateUsage]
_set_running_loop = asyncio._set_running_loop  # pyright: ignore[reportPrivateUsage]


@contextmanager
def off_loop() -> Generator[None, None, None]:
    """As on a thread without an event loop, which is where plain handlers run: they may block, and
    have a loop of their own."""
    try:
        loop = asyncio.get_running_loop()
    except RuntimeError:
        yield
        return
    task = asyncio.current_task()
    if task is not None:
        _leave_task(loop, task)
    _set_running_loop(None)
    try:
        yield
    finally:
        _set_running_loop(loop)
        if task is not None:
            _enter_task(loop, task)


class InlineExecutor(Executor):
    """Keeps its jobs until `run_next`, one call for each. `raised`: what the attempts that failed
    ended with, until somebody clears it. `killed`: where a handler ended the process."""

    def __init__(
        self,
        *,
        deliver: Callable[[list[Outcome]], None],
        clock: Clock,
        entropy: Callable[[], int],
        result_bytes_max: int,
        port: LinkPort,
    ) -> None:
        super().__init__(
            thread_count=1,
            deliver=self._arrived,
            clock=clock,
            entropy=entropy,
            result_bytes_max=result_bytes_max,
            port=port,
        )
        self.raised: list[Raised] = []
        self.killed: Killed | None = None
        self.interrupt: KeyboardInterrupt | None = None
        self._pass_on = deliver
        self._jobs: deque[Job] = deque()
        self._runner = asyncio.Runner(loop_factory=asyncio.new_event_loop)
        self._arrival: asyncio.Future[None] | None = None
        self._is_waiting_here = False

    def _make_settler(self, **given: Any) -> Settler:
        return _Noting(self, **given)

    def _make_threads(self, count: int) -> ThreadedPlace:
        return ThreadedPlace(self.runs, _Here)

    def kind_of(self, task: Task[..., Any]) -> PlaceKind:
        """What is meant for a process runs here too, like all plain functions."""
        kind = super().kind_of(task)
        return "thread" if kind == "process" else kind

    def start(self, jobs: Sequence[Job]) -> None:
        self._jobs.extend(jobs)

    def running(self) -> list[tuple[int, int, bool]]:
        waiting = [(job.serial, job.fence, False) for job in self._jobs]
        return waiting + super().running()

    def close(self) -> None:
        self._jobs.clear()
        super().close()
        self._end_wait()
        if not self._is_waiting_here:  # closed by a coroutine on it, it is closed after that one
            with off_loop():
                self._runner.close()

    # ---------------------------------------------------------------------------- for the drive

    @property
    def next_job(self) -> Job | None:
        return self._jobs[0] if self._jobs else None

    @property
    def has_begun(self) -> bool:
        """Whether a coroutine is on its way."""
        return bool(super().running())

    def run_next(self) -> None:
        """Runs a plain handler to its end; begins a coroutine on the loop that runs here, or else
        on one of its own. Raises `Killed` where the handler did."""
        job = self._jobs.popleft()
        if self.kind_of(job.task) == "thread":
            with off_loop():
                super().start([job])
            return
        try:
            loop = asyncio.get_running_loop()
        except RuntimeError:
            loop = self._runner.get_loop()
        self.attach_loop(loop)
        super().start([job])

    def wait_here(self) -> None:
        """Until an outcome of a coroutine has come, with its loop run on this thread."""
        self._is_waiting_here = True
        try:
            self._runner.run(self.wait())
        finally:
            self._is_waiting_here = False
            if self.runs.is_closed:
                self._runner.close()

    async def wait(self) -> None:
        """The same, on the loop that runs here."""
        self._arrival = asyncio.get_running_loop().create_future()
        try:
            await self._arrival
        finally:
            self._arrival = None

    def _arrived(self, outcomes: list[Outcome]) -> None:
        self._pass_on(outcomes)
        self._end_wait()

    def _end_wait(self) -> None:
        if self._arrival is not None and not self._arrival.done():
            self._arrival.set_result(None)


class _Here(ThreadPool[Run]):
    """No threads: what is put is attended to at once."""

    def __init__(
        self, attend: Callable[[Run], None], refuse: Callable[[Sequence[Run], BaseException], None]
    ) -> None:
        super().__init__(1, attend, refuse)

    def put(self, work: Sequence[Run]) -> None:
        for piece in work:
            self._attend(piece)


class _Noting(Settler):
    """Settles as ever, and keeps the exceptions themselves."""

    def __init__(self, executor: InlineExecutor, **given: Any) -> None:
        super().__init__(**given)
        self._executor = executor

    def raised(self, job: Job, attempt: Attempt, error: BaseException, ran_ms: int) -> Outcome:
        self._see(error)
        raised = self._executor.raised
        place = len(raised)  # before what a policy raises that is asked about it
        outcome = super().raised(job, attempt, error, ran_ms)
        if outcome.error is not None:
            raised.insert(place, _raised(job, error))
        return outcome

    def overran(
        self, job: Job, timeout_ms: int, ran_ms: int, error: BaseException | None = None
    ) -> Outcome:
        self._see(error)
        outcome = super().overran(job, timeout_ms, ran_ms, error)
        if error is not None:
            self._note(job, error)
        return outcome

    def unreadable(self, job: Job, error: BaseException) -> Outcome:
        self._note(job, error)
        return super().unreadable(job, error)

    def _unkept(self, job: Job, value: Any, error: BaseException) -> Outcome:
        self._note(job, error)
        return super()._unkept(job, value, error)

    def _broken_policy(self, job: Job, error: BaseException, asked_about: ErrorText) -> Outcome:
        self._note(job, error)
        return super()._broken_policy(job, error, asked_about)

    def _note(self, job: Job, error: BaseException) -> None:
        self._executor.raised.append(_raised(job, error))

    def _see(self, error: BaseException | None) -> None:
        """Ctrl-C is for whoever runs the tests; it is raised again once the attempt is settled."""
        if isinstance(error, Killed):
            self._executor.killed = error
            raise error
        if isinstance(error, KeyboardInterrupt):
            self._executor.interrupt = error


def _raised(job: Job, error: BaseException) -> Raised:
    return Raised(job.ticket_id, job.task.name, job.number, error)
