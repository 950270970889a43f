"""Engines with child processes for tests, and ways to wait for what children do."""

import os
import select
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from kit.engines import PATIENCE_S, make, runtime_of
from kit.process_tasks import tasks
from parkade import Engine, Ticket, TicketError
from parkade.process_pool import ProcessPool
from parkade.store.processes import identify

LOOK_S = 0.01

__all__ = ["Fifo", "engine_with", "error_of", "pool_of", "quick_to_kill", "until", "wait_gone"]


@contextmanager
def engine_with(path: Path, processes: int = 1, **options: Any) -> Iterator[Engine]:
    """An open engine with the tasks of `kit.process_tasks`."""
    with make(path, processes=processes, include=[tasks], **options) as engine:
        yield engine


def pool_of(engine: Engine) -> ProcessPool:
    return runtime_of(engine).executor.processes


def quick_to_kill(engine: Engine, grace_ms: int = 50) -> None:
    """Children that do not end when they are asked to are killed at once."""
    pool_of(engine).grace_ms = grace_ms


def error_of(ticket: Ticket[Any]) -> str:
    """What the ticket's result raises; it ends without one."""
    try:
        ticket.result(timeout=PATIENCE_S)
    except TicketError as error:
        return str(error)
    raise AssertionError("it has a result")


class Fifo:
    """A named pipe, by which a handler in another process says a number."""

    def __init__(self, path: Path) -> None:
        self.path = os.fspath(path)
        os.mkfifo(self.path)
        # Both ends, so that neither side waits to open it.
        self._fd = os.open(self.path, os.O_RDWR | os.O_NONBLOCK)

    def read(self) -> int:
        """What the next one says."""
        ready, _, _ = select.select([self._fd], [], [], PATIENCE_S)
        assert ready, "nobody said anything"
        return int(os.read(self._fd, 100))

    def close(self) -> None:
        os.close(self._fd)


def until(condition: Callable[[], bool]) -> None:
    """Returns when the condition holds, which another thread or process brings about."""
    pause = threading.Event()
    for _ in range(int(PATIENCE_S / LOOK_S)):
        if condition():
            return
        pause.wait(LOOK_S)
    raise AssertionError("it never came to that")


def wait_gone(pid: int) -> None:
    """Returns when the process has ended, reaped or not."""
    until(lambda: identify(pid) is None)
