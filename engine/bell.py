"""An event for one waiter, on one lock: what wakes the core thread.

`threading.Event` makes a lock for every wait and takes a second one for every set; between a submit
and its answer the core thread waits twice.
"""

import threading

__all__ = ["Bell"]


class Bell(threading.Event):
    """Any thread rings (`set`); one thread waits and clears. `is_set` stays true until `clear`."""

    def __init__(self) -> None:
        super().__init__()
        self._gate = threading.Lock()
        self._gate.acquire()
        self._is_rung = False

    def is_set(self) -> bool:
        return self._is_rung

    def set(self) -> None:
        if not self._is_rung:
            self._is_rung = True
            try:
                self._gate.release()
            except RuntimeError:
                return  # two rang at once: the gate is open already

    def clear(self) -> None:
        # In this order: who rings in between leaves `is_rung` true, and the next wait is none.
        self._is_rung = False
        self._gate.acquire(blocking=False)

    def wait(self, timeout: float | None = None) -> bool:
        if not self._is_rung:
            self._gate.acquire(timeout=-1 if timeout is None else max(0.0, timeout))
        return self._is_rung
