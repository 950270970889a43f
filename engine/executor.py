"""Runs attempts: plain functions in threads or processes, coroutines on an event loop.

The core thread gives jobs and hears outcomes, in batches, from whichever thread has them. It never
waits here, and nothing that a handler does reaches it: not what it raises, not that it never ends.
Which place makes an attempt is told here; how, in `parkade.threaded`, `parkade.looped` and
`parkade.process_pool`; and what is common to all of them in `parkade.runs`.
"""

import asyncio
from collections import Counter, defaultdict
from collections.abc import Callable, Sequence
from functools import partial
from itertools import groupby
from operator import attrgetter
from typing import Any, Literal, TypeAlias

from parkade.clock import Clock
from parkade.core_locks import CoreLock
from parkade.deadlines import Deadlines
from parkade.job import Job
from parkade.links import LinkPort
from parkade.looped import BURST_MAX, LoopedPlace
from parkade.policies import StoredRetry
from parkade.process_pool import ProcessPool
from parkade.runs import Place, Run, Runs
from parkade.settling import Settler
from parkade.shard.commands import Outcome
from parkade.store.lock import Child
from parkade.tasks import Task
from parkade.threaded import ThreadedPlace
from parkade.threads import ThreadPool

__all__ = ["Executor", "PlaceKind", "crowds_last"]

PlaceKind: TypeAlias = Literal["thread", "loop", "process"]


class Executor:
    """Runs jobs and hands their outcomes to `deliver`, which is called from any thread.

    `thread_count` bounds the threads for plain functions, `process_count` the processes; they are
    started as they are needed. `entropy` gives random integers >= 0 for waits. A result, and what
    an attempt saves, may have `result_bytes_max`. `port` is where attempts reach the engine.
    `note_children` hears of the processes there are, whenever that changes, before a new one has
    anything to do. `default_retry`: see `ProcessPool`.
    """

    def __init__(
        self,
        *,
        thread_count: int,
        deliver: Callable[[list[Outcome]], None],
        clock: Clock,
        entropy: Callable[[], int],
        result_bytes_max: int,
        port: LinkPort,
        process_count: int = 0,
        note_children: Callable[[tuple[Child, ...]], None] = lambda _: None,
        default_retry: StoredRetry | None = None,
    ) -> None:
        self._clock = clock
        settler = self._make_settler(
            clock=clock, entropy=entropy, result_bytes_max=result_bytes_max
        )
        self.runs = Runs(deliver=deliver, clock=clock, settler=settler, port=port)
        self.deadlines = Deadlines(self.runs)
        # Gives up what has run out of time: the core thread's, before it hears of outcomes.
        self.look = self.deadlines.look
        # How long until something may run out of time; None: nothing will.
        self.wait_ms = self.deadlines.wait_ms
        self.loops = LoopedPlace(self.runs)
        # Whether the caller's loop was closed without `loop_lost` being called since.
        self.is_loop_closed = self.loops.is_lost
        self.processes = ProcessPool(
            process_count,
            self.runs,
            clock=clock,
            result_bytes_max=result_bytes_max,
            note_children=note_children,
            default_retry=default_retry,
        )
        # The core thread takes them too.
        self.locks: list[CoreLock] = [self.runs.lock, settler.folding.lock, self.processes.lock]
        self._places: dict[PlaceKind, Place] = {
            "thread": self._make_threads(thread_count),
            "loop": self.loops,
            "process": self.processes,
        }

    def _make_settler(self, **given: Any) -> Settler:
        return Settler(**given)

    def _make_threads(self, count: int) -> Place:
        place = ThreadedPlace(self.runs, partial(ThreadPool, count))
        self.locks.append(place.lock)
        return place

    def kind_of(self, task: Task[..., Any]) -> PlaceKind:
        """Where the attempts of a task run."""
        where = task.where
        if where == "process":
            return "process"
        is_on_loop = task.handler.is_async if where == "auto" else where == "loop"
        return "loop" if is_on_loop else "thread"

    def attach_loop(self, loop: asyncio.AbstractEventLoop | None) -> None:
        """Run coroutines on the caller's loop; None: on a loop of our own, in a thread of its own,
        made when the first one comes."""
        self.loops.attach(loop)

    def ask_breakers(self, trips: Callable[[Job, BaseException], bool]) -> None:
        """`trips` tells whether an error counts as a failure of the target; it is asked where the
        handler ran."""
        self.runs.settler.trips = trips

    def start(self, jobs: Sequence[Job]) -> None:
        """Begin attempts. Returns at once and never raises: whatever goes wrong is an outcome."""
        if self.runs.is_closed:
            return
        by_kind: dict[PlaceKind, list[Run]] = defaultdict(list)
        for task, listed in groupby(crowds_last(jobs), _task_of):
            kind = self.kind_of(task)
            place = self._places[kind]
            by_kind[kind] += [Run(job, place, (job.serial, job.fence)) for job in listed]
        now_ms = self._clock.monotonic_ms()
        for kind, runs in by_kind.items():
            self.runs.add(runs)
            self.deadlines.begin(runs, now_ms)
            self._places[kind].put(runs)

    def cancel(self, serial: int, fence: int, reason: str, *, is_for_good: bool = False) -> None:
        """Ask an attempt to stop: a coroutine gets `CancelledError`, a thread has to look.

        If it does, the ticket is given back, to run again. `is_for_good`, which the core thread
        says: the ticket is cancelled then, also when nothing is heard for `STOP_GRACE_MS`.
        """
        run = self.runs.find(serial, fence)
        if run is None:
            return
        # In this order, and the other way round where it begins: one of the two sees the other.
        if is_for_good:
            run.is_for_good = True  # a stop that asks too does not take it back
        run.cancel_reason = reason
        attempt = run.attempt
        if attempt is not None:
            attempt.request_cancel(reason, is_for_good=is_for_good)
        run.place.interrupt(run)
        if is_for_good:
            self.deadlines.asked_to_stop(run, self._clock.monotonic_ms())

    def running(self) -> list[tuple[int, int, bool]]:
        """Every attempt that has no outcome yet: serial, fence, whether its handler has begun."""
        return [(*run.key, run.has_begun) for run in self.runs.all()]

    @property
    def staying(self) -> int:
        """How many handlers would go on after `close`; those in processes are ended."""
        begun = [run for run in self.runs.all() if run.has_begun]
        return sum(run.place is not self.processes for run in begun + self.runs.zombies())

    def zombies(self) -> list[tuple[int, int]]:
        """Serial and fence of the attempts that were given up and whose handlers run on."""
        return [run.key for run in self.runs.zombies()]

    def loop_lost(self) -> None:
        """The caller's loop has closed: what began on it ends as unknown, what did not is given
        back, and later coroutines run on a loop of our own."""
        self.loops.give_up_loop()

    def close(self) -> None:
        """Begin nothing more. Waits for nobody: a handler that does not end keeps its daemon
        thread, a process is asked to end and then killed, and the outcome of what `running` still
        lists goes nowhere."""
        self.runs.close()
        for place in self._places.values():
            place.close()

    def join(self) -> None:
        """After `close`: returns when no child process is left, which may take the grace that they
        have to end."""
        self.processes.join()


def crowds_last(jobs: Sequence[Job]) -> Sequence[Job]:
    """In their order, but those of a task with more than a burst of them behind the others: all of
    them have their places, and who is alone would wait for the whole crowd's first steps."""
    if len(jobs) <= BURST_MAX:
        return jobs
    counts = Counter(map(_task_of, jobs))
    if len(counts) == 1:
        return jobs
    return sorted(jobs, key=lambda job: counts[job.task] > BURST_MAX)


_task_of = attrgetter("task")
