"""The interpreter, given away for a moment in the midst of a long piece of work.

A thread that has the interpreter for itself is made to give it up after 5 ms, and that is how long
each of the others waits each time it wants something. Whoever works where nobody waits for it lets
go by itself, far more often.
"""

import threading
from collections.abc import Iterable, Iterator
from itertools import islice
from typing import Final, TypeVar

__all__ = ["BREATH_ROWS", "breathe", "in_breaths"]

T = TypeVar("T")

BREATH_ROWS: Final = 256  # some 0.3 ms of putting or deleting rows
_BREATH_S: Final = 0.00002  # with what the system adds, long enough for another thread to wake
_never_free = threading.Lock()
_never_free.acquire()


def breathe() -> None:
    """Lets whoever waits for the interpreter have it."""
    _never_free.acquire(timeout=_BREATH_S)


def in_breaths(items: Iterable[T]) -> Iterator[list[T]]:
    """The items, so many at a time, with a breath behind each part but the last."""
    rest = iter(items)
    part = list(islice(rest, BREATH_ROWS))
    while part:
        following = list(islice(rest, BREATH_ROWS))
        yield part
        if following:
            breathe()
        part = following
