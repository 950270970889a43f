"""The valve before the door: with `max_ready`, no submit while so many tickets are ready.

How many are ready the core thread tells after each pass; what was let in since counts as ready
until a pass has seen it. So a burst of submits from many threads cannot run past the bound.
"""

import asyncio
import threading
from collections import deque

from parkade.attempt import RUNNING
from parkade.errors import Backpressure

__all__ = ["Valve"]


class Valve:
    """Any thread enters; the core thread tells. `waits`: instead of an error, except in a handler,
    where waiting for handlers would wait for oneself."""

    def __init__(self, max_ready: int, *, waits: bool) -> None:
        self.max_ready = max_ready
        self._waits = waits
        self._ready = 0
        self._oldest_ms = 0  # how long the oldest has waited
        self._let_in = 0  # and seen by no pass yet
        self._is_closed = False
        self._threads_waiting = 0
        self._room = threading.Condition()
        self._loops: deque[tuple[asyncio.AbstractEventLoop, asyncio.Future[None]]] = deque()

    @property
    def lock(self) -> threading.Condition:
        """The core's too (`parkade.core_locks`)."""
        return self._room

    @property
    def waiting(self) -> int:
        """How many wait to be let in."""
        return self._threads_waiting + len(self._loops)

    def enter(self, count: int) -> None:
        """Lets `count` tickets in that are due, once fewer than the bound are ready. Raises
        `Backpressure`."""
        with self._room:
            while self._is_full(count):
                self._threads_waiting += 1
                try:
                    self._room.wait()
                finally:
                    self._threads_waiting -= 1
            self._let_in += count

    async def aenter(self, count: int) -> None:
        """`enter` for a coroutine."""
        loop = asyncio.get_running_loop()
        while True:
            with self._room:
                if not self._is_full(count):
                    self._let_in += count
                    return
                future: asyncio.Future[None] = loop.create_future()
                self._loops.append((loop, future))
            await future

    def _is_full(self, count: int) -> bool:
        """Whether to wait. Raises `Backpressure` where that is not asked for, or is in vain."""
        if not count or self._is_closed or self._ready + self._let_in < self.max_ready:
            return False
        if self._waits and RUNNING.get(None) is None:
            return True
        ready = self._ready + self._let_in
        raise Backpressure(ready=ready, max_ready=self.max_ready, oldest_ms=self._oldest_ms)

    def tell(self, ready: int, oldest_ms: int, seen: int) -> None:
        """So many are ready, the oldest for so long; `seen` of those let in are among them, or have
        come to nothing."""
        with self._room:
            self._ready, self._oldest_ms = ready, oldest_ms
            self._let_in -= seen
            if self._ready + self._let_in < self.max_ready:
                self._wake_all()

    def close(self) -> None:
        """Lets everybody in: to an error."""
        with self._room:
            self._is_closed = True
            self._wake_all()

    def _wake_all(self) -> None:
        self._room.notify_all()
        waiting, self._loops = self._loops, deque()
        for loop, future in waiting:
            try:
                loop.call_soon_threadsafe(_set, future)
            except RuntimeError:  # that loop is closed: nobody waits there any more
                continue


def _set(future: "asyncio.Future[None]") -> None:
    if not future.done():
        future.set_result(None)
