"""What the core thread puts and somebody takes elsewhere: bounded, and never waited for.

Nothing here is locked between the two: `deque` is all they share, and counts that one of them
writes. Whoever waits leaves something to call; putting calls it once.
"""

import asyncio
import contextlib
import os
import threading
from collections import deque
from collections.abc import Callable, Sequence
from typing import Generic, TypeVar

from parkade.forks import check_process

__all__ = ["EMPTY", "Empty", "Mailbox"]

T = TypeVar("T")


class Empty:
    """What is taken where there is nothing."""


EMPTY = Empty()


class Mailbox(Generic[T]):
    """Keeps the last `size_max` things put. One thread puts; any number take and wait."""

    def __init__(self, size_max: int) -> None:
        self._kept: deque[T] = deque(maxlen=size_max)
        self._put = 0
        self._taken = 0
        self._is_shut = False
        self._waiting: deque[Callable[[], object]] = deque()
        self._pid = os.getpid()

    def put(self, things: Sequence[T]) -> None:
        self._kept.extend(things)
        self._put += len(things)
        self._wake()

    def shut(self) -> None:
        """Nothing more is put: whoever waits goes on."""
        self._is_shut = True
        self._wake()

    def take(self) -> T | Empty:
        """What was put first. Raises `ForkedEngine` in a fork, where nothing will be put."""
        check_process(self._pid)
        self._taken += 1  # before it is: else it would be lost for a moment
        try:
            return self._kept.popleft()
        except IndexError:
            self._taken -= 1
            return EMPTY

    @property
    def lost(self) -> int:
        """How many were put and pushed out before anybody took them."""
        while True:
            put, taken = self._put, self._taken
            kept = len(self._kept)
            if (put, taken) == (self._put, self._taken):
                return max(0, put - taken - kept)

    def wait(self, timeout_s: float | None = None) -> bool:
        """Blocks until something may be there; False when the time is up, or when there is nothing
        and will be nothing."""
        gate = threading.Lock()
        gate.acquire()
        self._waiting.append(gate.release)
        known = self._look()
        if known is not None:
            self._forget(gate.release)
            return known
        if timeout_s is None:
            return gate.acquire()
        if gate.acquire(timeout=min(max(0.0, timeout_s), threading.TIMEOUT_MAX)):
            return True
        self._forget(gate.release)
        return False

    async def await_one(self, timeout_s: float | None = None) -> bool:
        """`wait` for a coroutine."""
        loop = asyncio.get_running_loop()
        future: asyncio.Future[None] = loop.create_future()

        def wake() -> None:
            with contextlib.suppress(RuntimeError):  # the loop is closed: nobody waits there
                loop.call_soon_threadsafe(_set, future)

        self._waiting.append(wake)
        try:
            known = self._look()
            if known is not None:
                return known
            done, _ = await asyncio.wait([future], timeout=timeout_s)
            return bool(done)
        finally:
            self._forget(wake)

    def _look(self) -> bool | None:
        # In this order: what was put before it was shut is there by now.
        is_shut = self._is_shut
        if self._kept:
            return True
        return False if is_shut else None

    def _forget(self, wake: Callable[[], object]) -> None:
        with contextlib.suppress(ValueError):
            self._waiting.remove(wake)

    def _wake(self) -> None:
        waiting = self._waiting
        while waiting:
            try:
                waiting.popleft()()
            except IndexError:  # it left just now
                return


def _set(future: "asyncio.Future[None]") -> None:
    if not future.done():
        future.set_result(None)
