"""A pool of daemon threads that never makes its caller wait."""

import logging
import threading
from collections import deque
from collections.abc import Callable, Sequence
from typing import Generic, TypeVar

from parkade.telling import tell

__all__ = ["ThreadPool"]

T = TypeVar("T")
_log = logging.getLogger("parkade.engine")


class ThreadPool(Generic[T]):
    """At most `thread_count` threads, started as they are needed: `attend` is called with each
    piece of work on one of them, in the order they came. `refuse` gets what no thread can be had
    for.

    Not `concurrent.futures`: its threads are joined when the interpreter exits, so a handler that
    never ends would keep the process alive.

    Waking a thread is dear, so of much work each woken thread wakes at most one more, before it
    begins its own: a handler that blocks delays nobody while a thread is free, and handlers that
    do not block are done by whoever is awake. One thread is kept in reserve as long as the bound
    allows, since starting one may have to wait for the interpreter, and the core thread must not.
    """

    def __init__(
        self,
        thread_count: int,
        attend: Callable[[T], None],
        refuse: Callable[[Sequence[T], BaseException], None],
    ) -> None:
        self._thread_count = thread_count
        self._attend = attend
        self._refuse = refuse
        self.lock = threading.RLock()  # the core's too (`parkade.core_locks`)
        self._work: deque[T] = deque()
        self._parked: list[threading.Lock] = []  # the last to park is the first to wake
        self._count = 0
        self._is_rousing = False  # a thread is on its way to look for work
        self._is_closed = False

    def put(self, work: Sequence[T]) -> None:
        """Takes work; never waits for a handler."""
        with self.lock:
            self._work.extend(work)
            is_spawning = self._rouse()
        if is_spawning:
            self._spawn()

    def close(self) -> None:
        """Lets the threads end as they become free; what has not begun never will."""
        with self.lock:
            self._is_closed = True
            self._work.clear()
            parked, self._parked = self._parked, []
        for gate in parked:
            gate.release()

    def _rouse(self) -> bool:
        """Under the lock: sends one more thread to the work; True: the caller has to start it."""
        if self._is_rousing or not self._work:
            return False
        if self._parked:
            self._is_rousing = True
            self._parked.pop().release()
            return False
        return self._reserve()

    def _reserve(self) -> bool:
        """Under the lock: True when the caller has to start another thread."""
        if self._is_rousing or self._parked or self._count >= self._thread_count:
            return False
        self._is_rousing = True
        self._count += 1
        return True

    def _spawn(self) -> None:
        name = f"parkade-worker-{self._count}"
        try:
            threading.Thread(target=self._run, name=name, daemon=True).start()
        except Exception as error:  # the system gives no more threads, or the interpreter ends
            with self.lock:
                self._is_rousing = False
                self._count -= 1
                stranded = [] if self._count else list(self._work)
                if stranded:
                    self._work.clear()
            tell(
                _log,
                logging.WARNING,
                "no more threads for handlers (%d run): %s",
                self._count,
                error,
            )
            self._refuse(stranded, error)

    def _run(self) -> None:
        gate = threading.Lock()
        gate.acquire()
        was_roused = True
        while True:
            piece, is_spawning = None, False
            with self.lock:
                if was_roused:
                    self._is_rousing = was_roused = False
                if self._is_closed:
                    self._count -= 1
                    return
                if self._work:
                    piece = self._work.popleft()
                    is_spawning = self._rouse() or self._reserve()
                else:
                    self._parked.append(gate)
            if piece is None:
                gate.acquire()
                was_roused = True
                continue
            if is_spawning:
                self._spawn()
            try:
                self._attend(piece)
            except BaseException as error:
                tell(_log, logging.ERROR, "a worker thread met an error and goes on", error=error)
