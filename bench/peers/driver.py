"""What a queue must let itself be asked, to be measured beside the others.

A driver speaks to one queue through its public API, in the queue's own environment: nothing here
needs more than the standard library. What a queue does not offer raises `NotOffered`, which the
table says in place of a figure.
"""

import asyncio
import sqlite3
import threading
import time
from abc import ABC, abstractmethod
from collections.abc import Callable, Coroutine, Sequence
from concurrent.futures import Future
from dataclasses import dataclass
from pathlib import Path
from time import perf_counter_ns
from typing import Any, ClassVar, TypeVar

T = TypeVar("T")

Handler = Callable[[str], None]
Dues = Sequence[float] | None  # in seconds since the epoch, one for each payload; None: at once

FULL = 2  # SQLite's synchronous=FULL: a commit returns after its sync
WAIT_S_MAX = 60


class NotOffered(Exception):
    """The queue has no such thing; the text says what it lacks."""


@dataclass(frozen=True)
class Place:
    """Where a queue keeps what it is given: a directory, and a database server's address if it
    needs one."""

    directory: Path
    address: str = ""
    server: int = 0
    """The server's process id, for what it holds and what it burns; 0: the queue is in-process."""


class Driver(ABC):
    """One queue in one process."""

    settings: ClassVar[str]
    """What is set apart from the defaults, and what the worker is, for the reader of a table."""

    has_bulk: ClassVar[bool] = False
    """Whether the API takes many jobs in one call, in one durable step."""

    has_delays: ClassVar[bool] = True
    """Whether a job may be due later."""

    def __init__(self, place: Place) -> None:
        self.place = place

    @abstractmethod
    def open(self) -> None:
        """Makes what is not there yet. Nothing runs before `work`."""

    @abstractmethod
    def submit_each(self, payloads: Sequence[str], dues: Dues = None) -> list[float]:
        """Submits one after the other, each durable before the next; the microseconds of each."""

    def submit_bulk(self, payloads: Sequence[str], dues: Dues = None) -> None:
        """Submits all in as few calls as the API has; all are durable when it returns."""
        raise NotOffered("no bulk submit")

    @abstractmethod
    def work(self, handler: Handler, *, is_blocking: bool = False) -> None:
        """Starts the workers: each job's payload is handed to `handler`, and recorded as done. A
        handler that blocks for a moment goes where the queue would have it: into threads, if its
        handlers are else awaited."""

    def is_settled(self, count: int) -> bool:
        """Whether so many ends are on record; where a queue cannot be asked, its handlers' returns
        are taken for it."""
        return True

    @abstractmethod
    def close(self) -> None:
        """Stops the workers and gives everything back."""


def left_s(due: float) -> float:
    """The seconds until then, for an API that takes delays; 0 when it has passed."""
    return max(0.0, due - time.time())


def timed_each(
    submit: Callable[[str, float | None], object], jobs: Sequence[str], dues: Dues
) -> list[float]:
    """The microseconds of each of these submits, one after the other."""
    taken: list[float] = []
    for index, job in enumerate(jobs):
        due = None if dues is None else dues[index]
        start_ns = perf_counter_ns()
        submit(job, due)
        taken.append((perf_counter_ns() - start_ns) / 1e3)
    return taken


async def atimed_each(
    submit: Callable[[str, float | None], Coroutine[Any, Any, object]],
    jobs: Sequence[str],
    dues: Dues,
) -> list[float]:
    """The same on an event loop: nothing but the API's own awaiting is in the figures."""
    taken: list[float] = []
    for index, job in enumerate(jobs):
        due = None if dues is None else dues[index]
        start_ns = perf_counter_ns()
        await submit(job, due)
        taken.append((perf_counter_ns() - start_ns) / 1e3)
    return taken


async def called(handler: Handler, body: str, is_blocking: bool) -> None:
    """What an awaited job does: its handler at once, or on a thread if it blocks."""
    if is_blocking:
        await asyncio.to_thread(handler, body)
    else:
        handler(body)


class Looped:
    """An event loop on a thread of its own, for queues that are only awaited."""

    def __init__(self) -> None:
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._loop.run_forever, daemon=True)
        self._thread.start()

    def spawn(self, coroutine: Coroutine[Any, Any, T]) -> "Future[T]":
        """Lets it run; its outcome comes with the future."""
        return asyncio.run_coroutine_threadsafe(coroutine, self._loop)

    def run(self, coroutine: Coroutine[Any, Any, T]) -> T:
        """What it returns, or raises."""
        return self.spawn(coroutine).result()

    def close(self) -> None:
        """Stops the loop; what still runs on it is left where it is."""
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join(WAIT_S_MAX)


class Drained:
    """The worker of a queue that has none: a thread that takes, calls the handler and acknowledges,
    one job at a time. `take` returns None when nothing is there."""

    def __init__(
        self,
        take: Callable[[], tuple[str, object] | None],
        acknowledge: Callable[[object], object],
        handler: Handler,
        idle_s: float,
    ) -> None:
        self._stopping = threading.Event()

        def drain() -> None:
            while not self._stopping.is_set():
                taken = take()
                if taken is None:
                    self._stopping.wait(idle_s)
                    continue
                payload, token = taken
                handler(payload)
                acknowledge(token)

        self._thread = threading.Thread(target=drain, daemon=True)
        self._thread.start()

    def close(self) -> None:
        """Returns when the thread has ended its job."""
        self._stopping.set()
        self._thread.join(WAIT_S_MAX)


def use_wal(path: Path) -> None:
    """Puts a database file into WAL mode, which it keeps, and makes sure of what a connection does
    that says nothing about syncs: it has to sync each commit, or the queue would be measured at
    less than the others' durability."""
    connection = sqlite3.connect(path)
    try:
        connection.execute("PRAGMA journal_mode=WAL")
        (level,) = connection.execute("PRAGMA synchronous").fetchone()
    finally:
        connection.close()
    if level != FULL:
        raise NotOffered(f"this SQLite's default is synchronous={level}, not FULL")
