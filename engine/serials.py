"""Serials: one rising sequence for the engine, never reused, leased in blocks from the house.

A serial is `max(now_ms << 20, last + 1)`, and near the end of the lease `last + 1`, so that no
submit waits for a lease and none goes past it: the last quarter of one is more than can be given
out by ones. An open starts at the lease of the open before it (docs/architecture.md, Identity).
"""

import threading
from collections.abc import Callable

from parkade.limits import SERIAL_LEASE

__all__ = ["Serials"]

SERIAL_MAX = (1 << 64) - 1
RESERVE = SERIAL_LEASE // 4
RETRY = 1 << 36  # about a minute of clock
TIME_MS_MAX = 1 << 43  # the year 2248: a clock beyond it must not use the sequence up


def _believable(now_ms: int) -> int:
    return min(max(now_ms, 0), TIME_MS_MAX)


class Serials:
    """Handed out on the callers' threads, under one lock."""

    def __init__(self, first: int, lease_until: int, ask_lease: Callable[[], None]) -> None:
        self._last = first - 1
        self._lease_until = lease_until
        self._half = lease_until - SERIAL_LEASE // 2
        self._ask_lease = ask_lease
        # A child may be placed in between on the same thread, and the core thread places some too.
        self.lock = threading.RLock()
        self._is_asked = False
        self._asked_at = first

    def take(self, count: int, now_ms: int) -> int:
        """The first of `count` serials in a row."""
        timed = (now_ms if 0 <= now_ms <= TIME_MS_MAX else _believable(now_ms)) << 20
        with self.lock:
            after = self._last + 1
            first = timed if timed > after else after
            if first + count > self._lease_until - RESERVE:
                first = after
            self._last = last = first + count - 1
            ask = not self._is_asked and (last >= self._half or timed >= self._half)
            if ask:
                self._is_asked = True
                self._asked_at = max(last, timed)
        if ask:
            self._ask_lease()
        return first

    def next_lease(self, now_ms: int) -> int:
        """The end of the lease to ask for now."""
        with self.lock:
            return min(max(self._last + 1, _believable(now_ms) << 20) + SERIAL_LEASE, SERIAL_MAX)

    def extend(self, until: int) -> None:
        """A lease is durable."""
        with self.lock:
            self._lease_until = max(self._lease_until, until)
            self._half = self._lease_until - SERIAL_LEASE // 2
            self._is_asked = False

    def lease_failed(self) -> None:
        """It could not be had now. It is asked for again in a minute or so."""
        with self.lock:
            self._half = self._asked_at + RETRY
            self._is_asked = False
