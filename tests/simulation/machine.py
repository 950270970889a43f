"""The machine that a simulated world stands on: its clocks, its threads, its places for handlers.

Nothing here goes by itself: each step, and all time that passes, is the world's.
"""

from collections import Counter
from collections.abc import Callable, Generator, Sequence
from concurrent.futures import Future
from contextlib import contextmanager
from contextvars import copy_context
from random import Random
from typing import TYPE_CHECKING, Any, ClassVar

from kit.disk import PowerLost
from kit.watched import Watched, WatchedWritten
from parkade.attempt import Attempt
from parkade.caller_frames import Line
from parkade.drive import Drive, open_in_turn
from parkade.executor import Executor
from parkade.io import FrameJournal, Post, ShardIO, Writer
from parkade.opening import OpenShard
from parkade.runs import Run
from parkade.runtime import Runtime
from parkade.shard.commands import Outcome
from parkade.store.record import Record, Submitted
from parkade.waiters import ThreadWaiter
from simulation.laws import Leases, check_stop

if TYPE_CHECKING:
    from simulation.world import World

__all__ = [
    "AtWork",
    "SimulatedClock",
    "SimulatedDrive",
    "SimulatedExecutor",
    "SimulatedWriter",
    "SimulatedWritten",
]

START_MS = 1_700_000_000_000
STEPS_PER_ANSWER_MAX = 5_000
SLOW_TO_TELL = 0.15
STEPS_PER_MOMENT, MOMENT_MS = 100, 40  # how time goes by while somebody waits
NEAR_MS = 600  # what is due later may be written by its caller


class SimulatedClock:
    """Both clocks of the machine; only the world moves them."""

    def __init__(self) -> None:
        self.wall_ms = START_MS
        self.mono_ms = 1_000

    def now_ms(self) -> int:
        return self.wall_ms

    def monotonic_ms(self) -> int:
        return self.mono_ms

    def wait(self, event: Any, timeout_ms: int | None) -> bool:
        return bool(event.is_set())


class AtWork:
    """A place in which a handler runs until the world ends it."""

    def __init__(self, world: "World", runs: Any) -> None:
        self._world = world
        self._runs = runs
        self.alive: dict[tuple[int, int], Run] = {}
        self.leases = Leases()

    def put(self, runs: Sequence[Run]) -> None:
        for run in runs:
            assert self._runs.claim(run)
            prepared = copy_context().run(self._runs.prepare, run)
            if isinstance(prepared, Outcome):  # it was cancelled on its way
                self._finish(run, prepared)
                continue
            self._runs.attempt_of(run)  # as a handler does that takes it
            self._world.attempt_begins(run)
            self.alive[run.key] = run
            self.leases.begins(run)

    can_stop = False

    def interrupt(self, run: Run) -> None:
        """A thread has to look."""

    def is_alive(self, run: Run) -> bool:
        return run.key in self.alive

    def close(self) -> None:
        self.alive.clear()

    def attempt_of(self, run: Run) -> Attempt:
        """What the handler is given, or asks for."""
        attempt: Attempt = self._runs.attempt_of(run)
        return attempt

    def end(
        self,
        key: tuple[int, int],
        value: Any,
        error: BaseException | None,
        children: Sequence[Any] = (),
    ) -> None:
        """`children`: calls that the handler submits before it ends."""
        run = self.alive.pop(key)
        for call in children:
            self.attempt_of(run).submit(call)
        self._world.attempt_ends(run)
        outcome = self._runs.ended(run, value, error)
        self.leases.ended(run, outcome, self._world.clock.mono_ms)
        self._finish(run, outcome)

    def _finish(self, run: Run, outcome: Outcome) -> None:
        if self._runs.finish(run, outcome):
            self._runs.hand_over()


class SimulatedExecutor(Executor):
    """The real one, with one place for everything."""

    world: ClassVar["World"]

    def _make_threads(self, count: int) -> Any:
        self.work = AtWork(self.world, self.runs)
        return self.work

    def cancel(self, serial: int, fence: int, reason: str, *, is_for_good: bool = False) -> None:
        if is_for_good:
            check_stop(self.world, serial, fence)
        super().cancel(serial, fence, reason, is_for_good=is_for_good)


class News:
    """What a thread has done and not told yet: it may be halted in between, and then another's
    work is told before."""

    def __init__(self, post: Post, random: Random) -> None:
        self._post = post
        self._random = random
        self._untold: tuple[Any, ...] | None = None

    @property
    def is_left(self) -> bool:
        return self._untold is not None

    def tell(self, *news: Any) -> None:
        if self._random.random() < SLOW_TO_TELL:
            self._untold = news
        else:
            self._post(*news)

    def bring(self) -> bool:
        """Whether there was something left to tell; it is told now."""
        news, self._untold = self._untold, None
        if news is None:
            return False
        self._post(*news)
        return True


class SimulatedIO(ShardIO):
    """A journal's thread that may be halted before it tells; the core writes here as well."""

    def __init__(self, name: str, post: Post, random: Random, counts: Counter[str]) -> None:
        self._news = News(post, random)
        self._counts = counts
        self._is_under_way = False
        super().__init__(name, self._news.tell)

    def write(self, journal: FrameJournal, records: Sequence[Record]) -> int:
        with counted(self._counts, "the thread" if self._is_under_way else "the core"):
            return super().write(journal, records)

    def run_one(self) -> bool:
        if self._news.bring():
            self._ended += 1
            return True
        self._is_under_way = True
        try:
            has_worked = self._run_one()
        finally:
            self._is_under_way = False
        self._ended += has_worked and not self._news.is_left
        return has_worked


class SimulatedWritten(WatchedWritten):
    """What callers write, counted."""

    def __init__(self, shard: Watched, counts: Counter[str]) -> None:
        super().__init__(shard)
        self._counts = counts

    def write(self, lines: list[Line], drafts: list[Submitted], body: bytes) -> None:
        with counted(self._counts, "callers"):
            super().write(lines, drafts, body)


@contextmanager
def counted(counts: Counter[str], by: str) -> Generator[None, None, None]:
    """A frame is written by somebody; it may be cut short by the power, or fail."""
    counts[f"frames by {by}"] += 1
    try:
        yield
    except PowerLost:
        counts[f"frames by {by}, cut"] += 1
        raise
    except Exception:
        counts[f"frames by {by}, failed"] += 1
        raise


class SimulatedWriter(Writer):
    """A writer that may be halted before it tells."""

    def __init__(self, name: str, post: Post, random: Random) -> None:
        self._news = News(post, random)
        super().__init__(name, self._news.tell)

    def run_one(self) -> bool:
        return self._news.bring() or super().run_one()


class SimulatedDrive(Drive):
    """No threads: the world takes every step, also those that a caller waits for."""

    has_threads = False

    def __init__(self, world: "World") -> None:
        self._world = world

    def open_each(
        self, count: int, open_one: Callable[[int], OpenShard]
    ) -> "list[Future[OpenShard]]":
        return open_in_turn(count, open_one)

    def make_io(self, name: str, post: Post) -> ShardIO:
        return SimulatedIO(name, post, self._world.random, self._world.counts)

    def make_executor(self, *, thread_count: int, **given: Any) -> Executor:
        SimulatedExecutor.world = self._world
        return SimulatedExecutor(thread_count=thread_count, **given)

    def start(self, runtime: Runtime) -> None:
        self._world.runtime = runtime
        runtime.host.lone_frames.is_allowed = self._world.has_lone_frames
        runtime.host.caller_frames.is_allowed = self._world.has_caller_frames
        runtime.host.caller_frames.near_ms = NEAR_MS

    def stir(self) -> None:
        """Whoever asked goes on; the world takes the steps."""

    def wait_for(self, waiter: ThreadWaiter, timeout_s: float | None) -> bool:
        for nth in range(1, STEPS_PER_ANSWER_MAX):
            if waiter.wait(0.0):
                return True
            self._world.random_step()
            if nth % STEPS_PER_MOMENT == 0:
                self._world.pass_ms(MOMENT_MS)
        return waiter.wait(0.0)

    def wait(self, clock: Any, event: Any, timeout_ms: int) -> bool:
        until_ms = clock.monotonic_ms() + timeout_ms
        while not event.is_set() and clock.monotonic_ms() < until_ms:
            self._world.random_step()
            self._world.pass_ms(10)
        return bool(event.is_set())
