"""The drive of a test engine: no threads, and every step on the thread of whoever asks.

Each question is pumped to its answer: passes of the core, frames, reads and commits, until nothing
more can happen at this time. Attempts start in a run alone (`steps`), one after another, so what a
test sees is the same every time.
"""

import threading
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import Future
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from parkade.clock import Clock, MonoMs, WallMs
from parkade.drive import Drive, open_in_turn
from parkade.errors import EngineClosed
from parkade.io import FrameJournal, Post, ShardIO
from parkade.opening import OpenShard
from parkade.shard import UNREAD
from parkade.shard.placement import unpack
from parkade.shard_host import ShardHost
from parkade.store.entry import POSITION_FIRST
from parkade.store.errors import StoreError
from parkade.store.record import (
    Buried,
    Cancelled,
    Completed,
    Expired,
    Record,
    Retried,
    Snoozed,
)
from parkade.testing.clock import ManualClock
from parkade.testing.inline import InlineExecutor, off_loop
from parkade.testing.report import Drained, Killed, Raised, StillBusy
from parkade.waiters import ThreadWaiter

if TYPE_CHECKING:
    from parkade.runtime import Runtime

__all__ = ["Run", "SteppedDrive"]

FRUITLESS_PASSES_MAX = 1_000


@dataclass(slots=True)
class Run:
    """One `run_until_idle`: what was asked, and what has happened so far."""

    skip_time: bool
    max_tickets: int
    attempts: Counter[str] = field(default_factory=Counter[str])
    records: Counter[type[Record]] = field(default_factory=Counter[type[Record]])
    raised: list[Raised] = field(default_factory=list[Raised])

    def report(self) -> Drained:
        records = self.records
        return Drained(
            done=records[Completed],
            dead=records[Buried],
            retried=records[Retried],
            cancelled=records[Cancelled],
            expired=records[Expired],
            snoozed=records[Snoozed],
            attempts=self.attempts.total(),
            errors=tuple(self.raised),
        )


class SteppedDrive(Drive):
    """For one open of a test engine. `is_over`: nothing moves any more; whoever asks hears it."""

    has_threads = False
    advice = ". In a TestEngine no handler runs before run_until_idle()"

    def __init__(self, clock: ManualClock) -> None:
        self.clock = clock
        self.is_over = False
        self.run: Run | None = None
        self._records: Counter[type[Record]] = Counter()
        self._expired_told = 0
        self._stirring = threading.RLock()
        self._is_stirring = False
        self._places: dict[str, int] = {}
        self._thread = threading.get_ident()

    # --------------------------------------------------------------------------- as for any drive

    def open_each(
        self, count: int, open_one: Callable[[int], OpenShard]
    ) -> "list[Future[OpenShard]]":
        return open_in_turn(count, open_one)

    def make_io(self, name: str, post: Post) -> ShardIO:
        return _CountingIO(name, post, self._records)

    def make_executor(self, *, thread_count: int, **given: Any) -> InlineExecutor:
        for name in ("process_count", "note_children", "default_retry"):
            given.pop(name, None)
        self.executor = InlineExecutor(**given)
        return self.executor

    def start(self, runtime: "Runtime") -> None:
        self._runtime = runtime
        # What a manual clock says is never doubted, however far it was moved while nothing ran.
        clock = self.clock
        runtime.settled_clock.confirm(WallMs(clock.now_ms()), MonoMs(clock.monotonic_ms()))
        places = runtime.attempts.admission.places
        self._places = {"thread": 1, "loop": places["loop"]}
        self._open_places(False)
        self.stir()

    def stir(self) -> None:
        """Goes on until nothing more can happen before the clock is moved."""
        with self._stirring:
            if self._is_stirring or self.is_over:
                return
            self._is_stirring = True
            try:
                self._stir()
            finally:
                self._is_stirring = False
            with off_loop():
                self._runtime.callbacks.pump()

    def wait_for(self, waiter: ThreadWaiter, timeout_s: float | None) -> bool:
        self.stir()
        # Nobody else would bring the answer; to another thread, this one may.
        return waiter.wait(0.0 if threading.get_ident() == self._thread else timeout_s)

    def is_alone(self) -> bool:
        self.stir()
        return threading.get_ident() == self._thread

    def wait(self, clock: Clock, event: threading.Event, timeout_ms: int) -> bool:
        self.stir()
        return event.is_set()

    def _stir(self) -> None:
        host, workers = self._runtime.host, self._runtime.workers
        fruitless = 0
        while fruitless < FRUITLESS_PASSES_MAX:
            wait_ms = host.step()
            has_worked = False
            for worker in workers:
                while worker.run_one():
                    has_worked = True
            if has_worked:
                fruitless = 0
            elif wait_ms > 0:
                return
            else:
                fruitless += 1
        raise RuntimeError("the engine does not come to rest, though nothing is left to do")

    # --------------------------------------------------------------------------------- attempts

    def steps(self, run: Run) -> Iterator[None]:
        """Makes the attempts that are to be made; yields while a coroutine is on its way.

        Raises `StillBusy`, what ends a process (`Killed`, `KeyboardInterrupt`), and `EngineClosed`
        when another thread stopped the engine.
        """
        self.run = run
        executor = self.executor
        executor.raised = run.raised
        before = self._records.copy()
        self._open_places(True)
        try:
            while self._go_on():
                job = executor.next_job
                if job is not None:
                    if run.attempts.total() >= run.max_tickets:
                        raise StillBusy(run.attempts)
                    run.attempts[job.task.name] += 1
                    executor.run_next()
                elif executor.has_begun:
                    yield
                elif not (run.skip_time and self._skip()):
                    return
        except Killed:
            self.is_over = True
            raise
        finally:
            self.run = None
            self._open_places(False)
            run.records = self._records - before
            # What expired may have done so in an earlier pass, while somebody asked something.
            run.records[Expired] = self._records[Expired] - self._expired_told
            self._expired_told = self._records[Expired]

    def _go_on(self) -> bool:
        """Settles what has come; True, unless something ends the run."""
        executor = self.executor
        if executor.killed is not None:
            raise executor.killed
        if self.is_over:
            raise EngineClosed("engine.run_until_idle")
        self.stir()
        if executor.interrupt is not None:
            interrupt, executor.interrupt = executor.interrupt, None
            raise interrupt
        return True

    def _open_places(self, is_open: bool) -> None:
        places = self._runtime.attempts.admission.places
        for kind, count in self._places.items():
            places[kind] = count if is_open else 0

    def _skip(self) -> bool:
        """Moves the clock to when the next ticket is due, or one that is held may start; False when
        there is no such time."""
        now_ms = self.clock.now_ms()
        dues: list[int | None] = []
        for shard in self._runtime.host.open_shards():
            try:
                dues.append(_next_due_ms(shard))
            except StoreError as error:  # as the shard's own sweep will, when its time comes
                shard.refuse(error)
        wait_ms = self._runtime.attempts.wait_ms(now_ms, self.clock.monotonic_ms())
        dues.append(None if wait_ms is None else now_ms + wait_ms)
        due_ms = min((due for due in dues if due is not None), default=now_ms)
        if due_ms <= now_ms:
            return False
        self.clock.advance((due_ms - now_ms) / 1_000)
        return True

    # -------------------------------------------------------------------------------------- end

    def kill(self) -> None:
        """The process is gone: nothing is finished, covered, committed or told any more."""
        self.is_over = True
        runtime = self._runtime
        runtime.executor.close()
        runtime.host.end()
        runtime.host.inbox.close(EngineClosed("engine.crash"))
        for shard in runtime.shards:
            shard.refuse_rest()
            if hasattr(shard, "core"):
                shard.opened.close()
        runtime.host.wakeups.send()
        runtime.host.feed.close()
        with off_loop():
            runtime.callbacks.close()
        runtime.house.close(is_clean=False)
        runtime.directory.release()


class _CountingIO(ShardIO):
    """Counts the records that have become durable, by type."""

    def __init__(self, name: str, post: Post, records: Counter[type[Record]]) -> None:
        super().__init__(name, post)
        self._records = records

    def append(
        self,
        journal: FrameJournal,
        records: Sequence[Record],
        on_durable: Callable[[int], None],
        on_failed: Callable[[Exception], None],
    ) -> None:
        def count(lsn: int) -> None:
            self._records.update(type(record) for record in records)
            on_durable(lsn)

        super().append(journal, records, count, on_failed)


def _next_due_ms(shard: ShardHost) -> int | None:
    """When the next pending ticket of a shard comes due or expires, wherever it waits."""
    placement, core = shard.placement, shard.core
    timer_ms = placement.next_timer()
    position = max(unpack(placement.horizon), POSITION_FIRST)
    with shard.store.snapshot() as snapshot:
        while True:
            found = snapshot.first_position(position)
            if found is None:
                return timer_ms
            position = found
            # Of what memory holds, or knows to be gone, the store's entry is old.
            if core.look(position[1]) is UNREAD:
                return position[0] if timer_ms is None else min(timer_ms, position[0])
