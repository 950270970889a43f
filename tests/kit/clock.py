"""A clock that stands until a test moves it. Nothing waits for real time."""

import threading
from typing import Any

from parkade.clock import Clock

__all__ = ["START_MS", "ManualClock"]

START_MS = 1_700_000_000_000


class ManualClock(Clock):
    """`advance` moves both clocks and wakes who waits for them; `set_wall_ms` sets the one that
    may be set. Any thread.

    A thread that reads the clock and then waits, as one that reckons its wait does, does not wait
    at all if the clock has moved in between.
    """

    def __init__(self, start_ms: int = START_MS) -> None:
        self._lock = threading.Lock()
        self._mono_ms = 1_000_000
        self._offset_ms = start_ms - self._mono_ms
        self._waiting: list[threading.Event] = []
        self._moves = 0
        self._read = threading.local()

    def now_ms(self) -> int:
        self._note()
        return self._mono_ms + self._offset_ms

    def monotonic_ms(self) -> int:
        self._note()
        return self._mono_ms

    def _note(self) -> None:
        """What this thread reckons with since its last wait."""
        if getattr(self._read, "moves", None) is None:
            self._read.moves = self._moves

    def wait(self, event: threading.Event, timeout_ms: int | None) -> bool:
        """Ends as soon as the event is set or the clock has moved far enough."""
        known, self._read.moves = getattr(self._read, "moves", None), None
        with self._lock:
            if known is not None and known != self._moves:
                return event.is_set()
            self._waiting.append(event)
        until_ms = None if timeout_ms is None else self._mono_ms + max(0, timeout_ms)

        def is_over() -> bool:
            return event.is_set() or (until_ms is not None and self._mono_ms >= until_ms)

        try:
            if type(event) is not threading.Event:
                # One of a kind of its own: a move of the clock sets it, and who waits looks again.
                return event.is_set() if is_over() else event.wait()
            condition: Any = event._cond  # type: ignore[attr-defined]
            with condition:
                condition.wait_for(is_over)
            return event.is_set()
        finally:
            with self._lock:
                self._waiting.remove(event)

    def advance(self, ms: int) -> None:
        """Lets time pass on both clocks."""
        with self._lock:
            self._mono_ms += ms
        self._wake()

    def set_wall_ms(self, now_ms: int) -> None:
        """Sets the wall clock, forwards or backwards; no time passes."""
        with self._lock:
            self._offset_ms = now_ms - self._mono_ms
        self._wake()

    def _wake(self) -> None:
        with self._lock:
            self._moves += 1
            waiting = list(self._waiting)
        for event in waiting:
            if type(event) is not threading.Event:
                event.set()
                continue
            condition: Any = event._cond  # type: ignore[attr-defined]
            with condition:
                condition.notify_all()
