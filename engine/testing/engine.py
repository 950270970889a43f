"""An engine for tests: a real directory, a manual clock, no threads."""

import asyncio
import os
import random
import tempfile
from collections.abc import Iterator, Sequence
from os import PathLike
from typing import Any, ParamSpec, Self, TypeVar, cast

from parkade.asking import check_not_on_loop
from parkade.attempt import RUNNING
from parkade.checks import check_count
from parkade.durations import Duration
from parkade.engine import Engine
from parkade.errors import ConfigError, EngineClosed
from parkade.store.disk import Handle, RealDisk
from parkade.tasks import Task
from parkade.testing.clock import ManualClock
from parkade.testing.inline import off_loop
from parkade.testing.report import Drained, Killed
from parkade.testing.stepping import Run, SteppedDrive
from parkade.views import StopReport, TicketInfo

__all__ = ["TestEngine"]

P = ParamSpec("P")
R = TypeVar("R")

PAGE = 1_000
SHARDS = 2
DEFAULTS = {"durability": "memory", "lock_wait": 0, "async_limit": 1, "keep_done": None}


class TestEngine(Engine):
    """An `Engine` in which nothing happens by itself: handlers run in `run_until_idle`, on the
    thread of the test, one after another; time passes when its clock is moved.

    `path` None: a temporary directory that goes with the engine. `seed`: what is random (ids,
    jitter) is the same for the same seed in a new directory. The other options are those of
    `Engine`. If they are not given, a new directory has 2 shards, one coroutine runs at a time
    (`async_limit`), ended tickets are kept for ever (`keep_done`), and nothing is synced
    (`durability="memory"`), since a crash of the process loses nothing that was written.
    """

    __test__ = False  # no test class, whatever its name looks like

    def __init__(
        self,
        path: str | PathLike[str] | None = None,
        *,
        clock: ManualClock | None = None,
        seed: int = 0,
        **options: Any,
    ) -> None:
        self._temporary: tempfile.TemporaryDirectory[str] | None = None
        if path is None:
            self._temporary = tempfile.TemporaryDirectory(prefix="parkade-test-")
            path = self._temporary.name
        self._manual_clock = ManualClock() if clock is None else clock
        if not isinstance(cast(object, self._manual_clock), ManualClock):
            raise ConfigError.option("TestEngine", "clock", clock, "use a ManualClock")
        settings: dict[str, Any] = DEFAULTS.copy()
        is_new = not os.path.exists(os.path.join(path, "manifest.json"))
        if is_new:
            settings["shards"] = SHARDS
        super().__init__(path, clock=self._manual_clock, **(settings | options))
        self._stands_in_for: list[Engine] = []
        self._drive: SteppedDrive | None = None
        self._options.make_drive = self._make_drive
        self._options.is_temporary = False  # it outlives a crash, which is what a test looks at
        if self._options.durability == "memory":
            self._options.disk = _Unsynced()
        if is_new:  # else an earlier engine may have used up the same numbers
            self._options.entropy = random.Random(seed).randbytes

    def _make_drive(self) -> SteppedDrive:
        self._drive = SteppedDrive(self._manual_clock)
        return self._drive

    @property
    def clock(self) -> ManualClock:
        """The time of this engine: it passes when a test says so."""
        return self._manual_clock

    # ------------------------------------------------------------------------ open and close

    async def astart(self) -> Self:
        """`start` for coroutines: on their thread, since there is no other."""
        return self._start(asyncio.get_running_loop())

    async def astop(self, drain: Duration = "10s", cancel: Duration = "5s") -> StopReport:
        """`stop` for coroutines."""
        with off_loop():
            return self._stop(drain, cancel)

    def _stop(self, drain: Duration, cancel: Duration) -> StopReport:
        drive = self._drive
        if self._desk is not None:
            self._desk.check_may_stop()
        try:
            if self._desk is not None and drive is not None and drive.is_over:
                self._kill()
                return StopReport(clean=False, finished=0, cancelled=0, given_back=0, zombies=0)
            return super()._stop(drain, cancel)
        finally:
            if drive is not None:
                drive.is_over = True
            for engine in self._stands_in_for:
                engine.engine = engine
            if self._temporary is not None:
                self._temporary.cleanup()

    def stand_in_for(self, engine: Engine) -> Self:
        """Registers the tasks of an application's engine here, and has their submits come here
        until this engine stops. The application's engine is not opened."""
        self.include(engine)
        engine.engine = self
        self._listen(vars(engine)["_options"].listeners)
        self._stands_in_for.append(engine)
        return self

    def crash(self) -> Self:
        """Ends as by kill -9, and opens the same directory again, with the same tasks and clock.

        What was acknowledged is there; attempts that ran are lost, as docs/semantics.md tells under
        Crash. Handles of tickets from before are of no more use: `ticket(id)` gives new ones. In a
        handler it does not return: it raises `Killed`.
        """
        if RUNNING.get(None) is not None and self._is_running:
            raise Killed("the engine crashed in a handler")
        with self._changing:
            if self._desk is None:
                raise EngineClosed("engine.crash")
            self._kill()
        return self._start(None)

    def _kill(self) -> None:
        """Whatever was open is not."""
        desk, self._desk = self._desk, None
        if desk is not None and self._drive is not None:
            desk.close()
            self._drive.kill()

    # ------------------------------------------------------------------------------- running

    def run_until_idle(self, *, skip_time: bool = False, max_tickets: int = 10_000) -> Drained:
        """Runs what is due, and what becomes due through it, until nothing is left to do.

        `skip_time`: then moves the clock to when the next ticket is due and goes on, until none is
        pending. `max_tickets`: how many attempts it may take; with one more it raises `StillBusy`.
        Async handlers run on an event loop of the engine's own, on this thread.

        Raises `Killed` where a handler did, `BlockingInEventLoop` on a loop's thread.
        """
        check_not_on_loop("engine.run_until_idle", "engine.arun_until_idle")
        run, drive = self._begin("engine.run_until_idle", skip_time, max_tickets)
        for _ in self._steps(run, drive):
            drive.executor.wait_here()
        return run.report()

    async def arun_until_idle(
        self, *, skip_time: bool = False, max_tickets: int = 10_000
    ) -> Drained:
        """`run_until_idle` for coroutines: async handlers run on the loop of the test."""
        run, drive = self._begin("engine.arun_until_idle", skip_time, max_tickets)
        for _ in self._steps(run, drive):
            await drive.executor.wait()
        return run.report()

    @property
    def _is_running(self) -> bool:
        return self._drive is not None and self._drive.run is not None

    def _begin(self, call: str, skip_time: bool, max_tickets: int) -> tuple[Run, SteppedDrive]:
        self.desk(call)
        drive = self._drive
        assert drive is not None
        if drive.run is not None:
            raise RuntimeError(
                f"{call}(): a run is under way, and a handler or another coroutine asks for a "
                "second one. It takes what is submitted meanwhile; end it first"
            )
        return Run(skip_time, check_count(call, "max_tickets", max_tickets)), drive

    def _steps(self, run: Run, drive: SteppedDrive) -> Iterator[None]:
        try:
            yield from drive.steps(run)
        except Killed:
            self.desk("engine.run_until_idle").close()
            raise

    def submitted(self, task: Task[P, R]) -> Sequence[TicketInfo]:
        """Every ticket of a task that is still kept, as it stands, in the order of their submits.
        May be asked on a loop too."""
        found: list[TicketInfo] = []
        cursor: str | None = None
        with off_loop():
            while True:
                page = self.find(task=task.name, limit=PAGE, cursor=cursor)
                found += page
                cursor = page.next
                if cursor is None:
                    return found[::-1]


class _Unsynced(RealDisk):
    """A real disk that is never waited for: what a process has written outlives it anyway."""

    def pwrite_durable(self, handle: Handle, buffers: Sequence[bytes], offset: int) -> None:
        self.pwrite(handle, buffers, offset)

    def fdatasync(self, handle: Handle) -> None:
        return

    def fsync_directory(self, path: str) -> None:
        return
