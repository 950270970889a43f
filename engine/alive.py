"""Things of a process, for as long as somebody else holds them: its open engines, its registries.

A `WeakSet` may not be looked through while another thread adds to it, or a collection takes from it
what somebody adds in a finalizer.
"""

import weakref
from typing import Generic, TypeVar

__all__ = ["Alive"]

T = TypeVar("T")


class Alive(Generic[T]):
    """Any thread, at any time."""

    def __init__(self) -> None:
        self._known: dict[int, weakref.ref[T]] = {}

    def add(self, thing: T) -> None:
        number, known = id(thing), self._known
        known[number] = weakref.ref(thing, lambda _: known.pop(number, None))

    def discard(self, thing: T) -> None:
        self._known.pop(id(thing), None)

    def all(self) -> list[T]:
        """Those that are held now."""
        things = [known() for known in list(self._known.values())]
        return [thing for thing in things if thing is not None]
