"""The locks that the core thread takes as others do.

A signal handler, or a finalizer in a collection, comes in between on any thread, also on one that
has such a lock. Were it to wait there for the core thread, which waits for the lock, neither would
go on.
"""

import threading
from collections.abc import Callable, Iterable
from typing import Any, TypeAlias, cast

__all__ = ["CoreLock", "CoreLocks"]

CoreLock: TypeAlias = "threading.RLock | threading.Condition"


class CoreLocks:
    """Those of one engine."""

    def __init__(self) -> None:
        self._asks: tuple[Callable[[], bool], ...] = ()

    def add(self, locks: Iterable[CoreLock]) -> None:
        """Also of these it is to be told whether a thread has one."""
        # What a condition asks of its lock: the library has no other way to tell.
        self._asks = (*self._asks, *(cast(Any, lock)._is_owned for lock in locks))

    def has_any(self) -> bool:
        """Whether the thread that asks has one of them."""
        has_one = False
        for is_owned in self._asks:
            has_one = has_one or is_owned()
        return has_one
