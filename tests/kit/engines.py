"""Engines on real directories for tests: small, quick, with a clock or a disk of the test's own."""

import os
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from kit.faulty import FaultyDisk
from kit.unasked import watch_for_unasked
from parkade import Engine, Page, TicketInfo
from parkade.runtime import Runtime
from parkade.runtime_options import RuntimeOptions
from parkade.store.disk import Disk
from parkade.store.journal import Sizing
from parkade.store.parked import Parked

__all__ = [
    "PATIENCE_S",
    "Gate",
    "checkpoint",
    "hold_handlers",
    "make",
    "recount",
    "rig",
    "runtime_of",
    "walk",
    "when",
]

watch_for_unasked()

PATIENCE_S = 20.0  # how long a test waits for what must come; never how long it takes


def make(path: Path | str, **options: Any) -> Engine:
    """An engine of two shards that syncs nothing, unless the options say otherwise. Its directory
    stays, to be opened again."""
    settings: dict[str, Any] = {"shards": 2, "durability": "memory", "lock_wait": 0} | options
    engine = Engine(os.fspath(path), **settings)
    vars(engine)["_options"].is_temporary = False
    return engine


def rig(
    engine: Engine,
    *,
    disk: Disk | None = None,
    sizing: Sizing | None = None,
    open_store: Callable[..., Parked] | None = None,
    entropy: Callable[[int], bytes] | None = None,
) -> Engine:
    """The same engine, on a disk or a store that fails when a test likes, or with random bytes that
    are the same each time. Before it is started."""
    options: RuntimeOptions = vars(engine)["_options"]
    if disk is not None:
        options.disk = disk
        if isinstance(disk, FaultyDisk):
            options.open_store = disk.open_store
    if sizing is not None:
        options.sizing = sizing
    if entropy is not None:
        options.entropy = entropy
    if open_store is not None:
        options.open_store = open_store
    return engine


def runtime_of(engine: Engine) -> Runtime:
    """What serves an engine that is open."""
    return engine.desk("test").runtime


def when(engine: Engine, condition: Callable[[Runtime], bool]) -> None:
    """Returns after the first pass of the core thread in which the condition holds."""
    runtime = runtime_of(engine)
    event = runtime.host.when(lambda: condition(runtime))
    assert event.wait(PATIENCE_S), "it never came to that"


def checkpoint(engine: Engine) -> None:
    """Has everything in the stores, and what sleeps out of memory."""

    def want() -> None:
        for shard in runtime_of(engine).host.open_shards():
            shard.checkpointing.is_wanted = True

    runtime_of(engine).host.call(want)
    when(engine, lambda runtime: all(shard.is_quiet for shard in runtime.shards))


class Gate:
    """Handlers come to it and stay until it is opened."""

    def __init__(self) -> None:
        self._came = threading.Semaphore(0)
        self._open = threading.Event()
        self._lock = threading.Lock()
        self.inside = 0
        self.inside_max = 0

    def enter(self) -> None:
        """In a handler."""
        with self._lock:
            self.inside += 1
            self.inside_max = max(self.inside_max, self.inside)
        self._came.release()
        try:
            assert self._open.wait(PATIENCE_S), "nobody opened the gate"
        finally:
            with self._lock:
                self.inside -= 1

    def wait(self, count: int = 1) -> None:
        """Until so many more have come."""
        for _ in range(count):
            assert self._came.acquire(timeout=PATIENCE_S), "nobody came to the gate"

    def open(self) -> None:
        self._open.set()


@contextmanager
def hold_handlers() -> Iterator[Gate]:
    """A gate that is open at the end, whatever the test does."""
    gate = Gate()
    try:
        yield gate
    finally:
        gate.open()


def walk(find: Callable[..., Page[TicketInfo]], **asked: Any) -> list[TicketInfo]:
    """Every ticket that all pages give, in their order."""
    found: list[TicketInfo] = []
    cursor: str | None = None
    while True:
        page = find(cursor=cursor, **asked)
        found += page
        cursor = page.next
        if cursor is None:
            return found


def recount(engine: Engine) -> dict[str, dict[str, int]]:
    """What `stats().by_task` must say, counted from every ticket there is."""
    counts: dict[str, dict[str, int]] = {}
    for info in walk(engine.find, limit=1000):
        state = "scheduled" if info.state == "ready" else info.state
        of_task = counts.setdefault(info.task, {})
        of_task[state] = of_task.get(state, 0) + 1
    return counts
