"""How an answer reaches who asked: a thread on a lock, a coroutine on a future.

All answers are given by the core thread, which wakes those who have theirs when it is about to wait
(`Wakeups`): the coroutines of one loop by one `call_soon_threadsafe`. One waiter stands for a whole
chunk of tickets.
"""

import asyncio
import threading
from collections.abc import Awaitable, Iterable
from typing import Any, Protocol

__all__ = ["LoopWaiter", "ThreadWaiter", "Waiter", "Wakeups"]


class Waiter(Protocol):
    """One asker: `parts` answers are to come, a value or an error for each slot."""

    is_abandoned: bool

    def answer(self, slot: int, value: Any, wakeups: "Wakeups") -> None: ...
    def fail(self, slot: int, error: BaseException, wakeups: "Wakeups") -> None: ...


class _Collected:
    """The answers of one asker as they come in: in `values`, where an error stands in the slot of
    the part that it ended; `error` is the first of them. Once `is_abandoned` nobody looks."""

    __slots__ = ("error", "is_abandoned", "parts_left", "values")

    def __init__(self, parts: int) -> None:
        self.values: list[Any] = [None] * parts
        self.parts_left = parts
        self.error: BaseException | None = None
        self.is_abandoned = False

    def take(self, slot: int, value: Any) -> bool:
        """True when this was the last answer."""
        self.values[slot] = value
        self.parts_left -= 1
        return self.parts_left == 0

    def take_error(self, slot: int, error: BaseException) -> bool:
        self.error = self.error or error
        return self.take(slot, error)


class ThreadWaiter(_Collected):
    """A blocked thread."""

    __slots__ = ("_lock",)

    def __init__(self, parts: int = 1) -> None:
        super().__init__(parts)
        self._lock = threading.Lock()
        self._lock.acquire()

    def answer(self, slot: int, value: Any, wakeups: "Wakeups") -> None:
        if self.take(slot, value):
            wakeups.add_thread(self._lock)

    def fail(self, slot: int, error: BaseException, wakeups: "Wakeups") -> None:
        if self.take_error(slot, error):
            wakeups.add_thread(self._lock)

    def wait(self, timeout_s: float | None = None) -> bool:
        """False when the time is up; the answer then goes nowhere."""
        if timeout_s is None:
            return self._lock.acquire()
        return self._lock.acquire(timeout=min(max(0.0, timeout_s), threading.TIMEOUT_MAX))


class LoopWaiter(_Collected):
    """A coroutine. Waiting is not owning: a cancelled waiter changes nothing for the ticket.
    `future` is what to await, however long it takes."""

    __slots__ = ("future", "loop")

    def __init__(self, loop: asyncio.AbstractEventLoop, parts: int = 1) -> None:
        self.values = [None] * parts
        self.parts_left = parts
        self.error = None
        self.is_abandoned = False
        self.loop = loop
        self.future: asyncio.Future[bool] = loop.create_future()

    def answer(self, slot: int, value: Any, wakeups: "Wakeups") -> None:
        if self.take(slot, value):
            wakeups.add(self)

    def fail(self, slot: int, error: BaseException, wakeups: "Wakeups") -> None:
        if self.take_error(slot, error):
            wakeups.add(self)

    def wake(self) -> None:
        """On its loop."""
        if not self.future.done():
            self.future.set_result(True)

    def wait(self, timeout_s: float | None = None) -> Awaitable[bool]:
        """False when the time is up."""
        return self.future if timeout_s is None else self._wait(timeout_s)

    async def _wait(self, timeout_s: float) -> bool:
        done, _ = await asyncio.wait([self.future], timeout=max(0.0, timeout_s))
        return bool(done)


class Wakeups:
    """Who is to wake at the end of a pass: threads by their locks, coroutines by loop."""

    def __init__(self) -> None:
        self._threads: list[threading.Lock] = []
        self._by_loop: dict[asyncio.AbstractEventLoop, list[LoopWaiter]] = {}
        self.vanished = 0  # waiters whose loop had closed

    def add(self, waiter: LoopWaiter) -> None:
        waiters = self._by_loop.get(waiter.loop)
        if waiters is None:
            self._by_loop[waiter.loop] = [waiter]
        else:
            waiters.append(waiter)

    def add_thread(self, lock: threading.Lock) -> None:
        self._threads.append(lock)

    @property
    def has_any(self) -> bool:
        """Whether somebody is to wake."""
        return bool(self._threads or self._by_loop)

    def send(self) -> bool:
        """Wakes them all; whether there was anybody."""
        threads, self._threads = self._threads, []
        for lock in threads:
            lock.release()
        if not self._by_loop:
            return bool(threads)
        by_loop, self._by_loop = self._by_loop, {}
        for loop, waiters in by_loop.items():
            try:
                loop.call_soon_threadsafe(_wake_all, waiters)
            except RuntimeError:  # the loop is closed: nobody listens any more
                self.vanished += len(waiters)
        return True


def _wake_all(waiters: Iterable[LoopWaiter]) -> None:
    for waiter in waiters:
        future = waiter.future
        if not future.done():
            future.set_result(True)
