"""Attempts of plain functions, each on a thread of a pool."""

import threading
from collections.abc import Callable, Sequence
from contextvars import copy_context
from typing import TypeAlias

from parkade.core_locks import CoreLock
from parkade.runs import Run, Runs
from parkade.shard.commands import Outcome
from parkade.threads import ThreadPool

__all__ = ["ThreadedPlace"]

MakePool: TypeAlias = Callable[
    [Callable[[Run], None], Callable[[Sequence[Run], BaseException], None]], ThreadPool[Run]
]


class ThreadedPlace:
    """Runs handlers on the threads of the pool that `make_pool` makes of what attends to a run and
    what refuses those that no thread can be had for."""

    def __init__(self, runs: Runs, make_pool: MakePool) -> None:
        self._runs = runs
        self._pool = make_pool(self._attend, runs.refuse)

    @property
    def lock(self) -> CoreLock:
        """Of its pool."""
        return self._pool.lock

    def put(self, runs: Sequence[Run]) -> None:
        self._pool.put(runs)

    can_stop = False

    def interrupt(self, run: Run) -> None:
        """Nothing stops a thread: its handler has to look."""

    def is_alive(self, run: Run) -> bool:
        thread: threading.Thread | None = run.state
        return thread is None or thread.is_alive()

    def close(self) -> None:
        """A handler that does not end keeps its daemon thread."""
        self._pool.close()

    def _attend(self, run: Run) -> None:
        """One attempt, start to end, on a thread of the pool."""
        run.state = threading.current_thread()
        if not self._runs.claim(run):
            return
        outcome = copy_context().run(self._call, run)
        if self._runs.finish(run, outcome):
            self._runs.hand_over()

    def _call(self, run: Run) -> Outcome:
        prepared = self._runs.prepare(run)
        if isinstance(prepared, Outcome):
            return prepared
        args, kwargs = prepared
        # Caught where it is called: an error of the call itself has no frame of the handler's.
        try:
            value = run.job.task.handler.fn(*args, **kwargs)
        except BaseException as error:
            return self._runs.ended(run, None, error)
        return self._runs.ended(run, value, None)
