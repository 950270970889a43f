"""Handlers that outlive the engine that ran them, as long as the process lives.

A thread cannot be stopped. One that is left behind by a stop is the process's from then on: whoever
opens the directory again in this process does not start its ticket beside it (docs/architecture.md,
Admission and attempts, rule 5).
"""

import threading
from collections.abc import Callable, Iterable
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from parkade.runs import Run

__all__ = ["OUTLIVING", "Outliving"]


class Outliving:
    """The runs that engines of this process left behind, by the salt of their directory."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._left: dict[bytes, list[Run]] = {}
        self._hears: dict[bytes, Callable[[int], None]] = {}

    def leave(self, salt: bytes, runs: "Iterable[Run]") -> None:
        """The engine of the directory ends, and these handlers do not."""
        with self._lock:
            self._left.setdefault(salt, []).extend(runs)
            if not self._left[salt]:
                del self._left[salt]

    def end(self, salt: bytes, run: "Run") -> None:
        """The handler has ended; what was not left behind does not matter."""
        with self._lock:
            left = self._left.get(salt, [])
            if run not in left:
                return
            left.remove(run)
            if not left:
                del self._left[salt]
            hear = self._hears.get(salt)
        if hear is not None:
            hear(run.job.serial)

    def watch(self, salt: bytes, hear: Callable[[int], None]) -> set[int]:
        """The serials whose handlers still run; `hear` is called from any thread, with the serial
        of each that ends from now on."""
        with self._lock:
            self._hears[salt] = hear
            alive = [run for run in self._left.pop(salt, []) if run.place.is_alive(run)]
            if alive:
                self._left[salt] = alive
            return {run.job.serial for run in alive}

    def ignore(self, salt: bytes) -> None:
        """Nobody hears of the directory's any more."""
        with self._lock:
            self._hears.pop(salt, None)


OUTLIVING = Outliving()
"""Of this process."""
