"""A clock that stands until a test moves it. Nothing waits for real time."""

import threading
from typing import Any

from parkade.clock import Clock

__all__ = ["START_MS", "ManualClock"]

START_MS = 1_700_000_000_000


class ManualClock(Clock):
    """`advance` moves both clocks and wakes who waits for them; `set_wall_ms` sets the one that
    may be set. Any thread."""

    def __init__(self, start_ms: int = START_MS) -> None:
        self._lock = threading.Lock()
        self._mono_ms = 1_000_000
        self._offset_ms = start_ms - self._mono_ms
        self._waiting: list[threading.Event] = []

    def now_ms(self) -> int:
        return self._mono_ms + self._offset_ms

    def monotonic_ms(self) -> int:
        return self._mono_ms

    def wait(self, event: threading.Event, timeout_ms: int | None) -> bool:
        """An event's own condition is what is waited on, so that both setting the event and moving
        the clock end the wait at once."""
        until_ms = None if timeout_ms is None else self._mono_ms + max(0, timeout_ms)
        condition: Any = event._cond  # type: ignore[attr-defined]
        with condition:
            with self._lock:
                self._waiting.append(event)
            try:
                condition.wait_for(
                    lambda: event.is_set() or (until_ms is not None and self._mono_ms >= until_ms)
                )
            finally:
                with self._lock:
                    self._waiting.remove(event)
            return event.is_set()

    def advance(self, ms: int) -> None:
        """Lets time pass on both clocks."""
        self._mono_ms += ms
        self._wake()

    def set_wall_ms(self, now_ms: int) -> None:
        """Sets the wall clock, forwards or backwards; no time passes."""
        self._offset_ms = now_ms - self._mono_ms
        self._wake()

    def _wake(self) -> None:
        with self._lock:
            waiting = list(self._waiting)
        for event in waiting:
            condition: Any = event._cond  # type: ignore[attr-defined]
            with condition:
                condition.notify_all()
