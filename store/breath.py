"""The interpreter, given away for a moment in the midst of a long piece of work.

A thread that has the interpreter for itself is made to give it up after 5 ms, and that is how long
each of the others waits each time it wants something. Whoever works where nobody waits for it lets
go by itself, far more often.
"""

import threading
from collections.abc import Iterator
from typing import Final

__all__ = ["BREATH_ROWS", "breathe", "in_breaths"]

BREATH_ROWS: Final = 256  # some 0.3 ms of putting or deleting rows
_BREATH_S: Final = 0.00002  # with what the system adds, long enough for another thread to wake
_never_free = threading.Lock()
_never_free.acquire()


def breathe() -> None:
    """Lets whoever waits for the interpreter have it."""
    _never_free.acquire(timeout=_BREATH_S)


def in_breaths(count: int) -> Iterator[slice]:
    """Where to cut so many items, one part after the other, with a breath between two parts."""
    for begin in range(0, count, BREATH_ROWS):
        if begin:
            breathe()
        yield slice(begin, begin + BREATH_ROWS)
