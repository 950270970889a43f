"""The application's door: what callers put, the core thread takes; bounded in bytes.

Only this door is bounded: what the engine asks of itself never waits. A full door makes `submit`
wait and `asubmit` await (docs/architecture.md, Bounds).
"""

import asyncio
import threading
from collections import deque
from collections.abc import Callable, Iterable

from parkade.asks import Ask
from parkade.backpressure import Valve
from parkade.waiters import Wakeups

__all__ = ["Inbox"]


class Inbox:
    """Any thread puts, the core thread takes."""

    def __init__(
        self, bytes_max: int, wake: Callable[[], None], wake_soon: Callable[[], None]
    ) -> None:
        """`wake_soon` wakes whoever takes where that would not look again in a moment."""
        self._bytes_max = bytes_max
        self._wake = wake
        self._wake_soon = wake_soon
        self.asks: deque[tuple[int, Ask]] = deque()  # looked at in every pass
        self.valve: Valve | None = None  # before the door, with Engine(max_ready=)
        self._bytes = 0
        self._closed: BaseException | None = None
        self.lock = threading.RLock()  # the core's too (`parkade.core_locks`)
        self._room = threading.Condition(self.lock)
        self._threads_waiting = 0
        self._loops_waiting: deque[tuple[asyncio.AbstractEventLoop, asyncio.Future[None]]] = deque()

    def put(self, asks: Iterable[tuple[int, Ask]], *, is_patient: bool = False) -> None:
        """(shard, ask) pairs. Unbounded: `enter` comes before. `is_patient`: they may be taken a
        moment later."""
        self.asks.extend(asks)
        if is_patient:
            self._wake_soon()
        else:
            self._wake()
        if self._closed is not None:
            self._fail_all(self._closed)

    def close(self, error: BaseException) -> None:
        """Nobody takes any more: who is there and who still comes gets the error."""
        self._closed = error
        if self.valve is not None:
            self.valve.close()
        self._fail_all(error)
        self.leave(0)
        with self.lock:
            self._room.notify_all()

    def _fail_all(self, error: BaseException) -> None:
        wakeups = Wakeups()
        while self.asks:
            try:
                _, ask = self.asks.popleft()
            except IndexError:  # another thread that came late took it
                break
            ask.fail(error, wakeups)
        wakeups.send()

    def enter(self, size: int) -> None:
        """Waits until `size` more bytes may be undecided; more than the bound goes in alone."""
        with self.lock:
            while self._is_full(size):
                self._threads_waiting += 1
                try:
                    self._room.wait()
                finally:
                    self._threads_waiting -= 1
            self._bytes += size

    async def aenter(self, size: int) -> None:
        """`enter` for a coroutine."""
        loop = asyncio.get_running_loop()
        while True:
            future: asyncio.Future[None] = loop.create_future()
            if self.enter_now(size, (loop, future)):
                return
            await future

    def enter_now(
        self,
        size: int,
        waiting: tuple[asyncio.AbstractEventLoop, asyncio.Future[None]] | None = None,
    ) -> bool:
        """`enter` where nobody has to wait; else False, and `waiting` is told when to try again."""
        with self.lock:
            if not self._is_full(size):
                self._bytes += size
                return True
            if waiting is not None:
                self._loops_waiting.append(waiting)
            return False

    def _is_full(self, size: int) -> bool:
        # A closed door lets everybody in: to an error.
        is_over = self._bytes > 0 and self._bytes + size > self._bytes_max
        return is_over and self._closed is None

    def leave(self, size: int) -> None:
        """So many bytes have been decided."""
        with self.lock:
            self._bytes -= size
            if self._threads_waiting:
                self._room.notify_all()
            waiting, self._loops_waiting = self._loops_waiting, deque()
        for loop, future in waiting:
            try:
                loop.call_soon_threadsafe(_set, future)
            except RuntimeError:  # that loop is closed: nobody waits there any more
                continue

    def take(self) -> Iterable[tuple[int, Ask]]:
        """All that is there, in order."""
        asks = self.asks
        for _ in range(len(asks)):
            yield asks.popleft()


def _set(future: "asyncio.Future[None]") -> None:
    if not future.done():
        future.set_result(None)
