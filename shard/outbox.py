"""What one shard has for others: entries in the order in which they came about, and their end.

An entry is a draft that belongs to another shard, or that a unique decides about. It stands in the
record of its cause, then here, until a Handed says that its receiver has it. Of each receiver a
window of the first entries is in memory, to be sent; the rest is in the generations and in the
store, and is read when the window has run low. A window is no state: a replay may have another.
docs/architecture.md, Outbox.
"""

from collections.abc import Iterable, Mapping
from itertools import chain
from typing import Final, NamedTuple

from parkade.shard.generation import Generation
from parkade.shard.memory import Memory
from parkade.store.record import Submitted

__all__ = ["NO_PLACE", "Outbox", "Place"]

DRAFT_BYTES: Final = 300  # of an entry beside its payload, about


class Place(NamedTuple):
    """Where an entry stands: its record, by epoch and LSN, and its number in that."""

    epoch: int
    lsn: int
    nth: int


NO_PLACE: Final = Place(0, 0, 0)
"""Before all entries."""


class Outbox:
    """Of one shard. `taken` is the other side: up to where it has taken what others sent it."""

    __slots__ = ("_memory", "_window_bytes_max", "beyond", "full", "handed", "taken",
                 "window_bytes", "window_max", "windows")  # fmt: skip

    def __init__(
        self,
        memory: Memory,
        taken: Mapping[int, tuple[int, int, int]],
        stored: Iterable[int],
        window_max: int,
        window_bytes_max: int,
    ) -> None:
        """`stored`: receivers for whom the store may have entries."""
        self._memory = memory
        self.window_max = window_max
        self._window_bytes_max = window_bytes_max
        self.taken = {sender: Place(*place) for sender, place in taken.items()}
        self.windows: dict[int, dict[Place, Submitted]] = {}
        self.window_bytes: dict[int, int] = {}
        self.beyond = set(stored)  # receivers of whom there may be more than their windows hold
        self.full: set[int] = set()  # where the next entry found no room
        self.handed: dict[int, Place] = {}  # as far as memory knows

    # ------------------------------------------------------------------ changed by records

    def add(self, receiver: int, place: Place, draft: Submitted) -> None:
        """A new entry, the last of all."""
        dirty = self._memory.dirty
        dirty.outbox.setdefault(receiver, {})[place] = draft
        dirty.size_bytes += _bytes_of(draft)
        if receiver not in self.beyond and not self._take(receiver, place, draft):
            self.beyond.add(receiver)

    def hand(self, receiver: int, place: Place) -> None:
        """The entries up to that place have arrived."""
        self.handed[receiver] = max(place, self.handed.get(receiver, NO_PLACE))
        self._memory.dirty.hand(receiver, place)
        window = self.windows.get(receiver)
        if window is None:
            return
        for gone in [other for other in window if other <= place]:
            self.window_bytes[receiver] -= _bytes_of(window.pop(gone))
        self.full.discard(receiver)
        if not window:
            del self.windows[receiver], self.window_bytes[receiver]

    def take(self, sender: int, place: Place) -> None:
        """An entry of another's outbox is here."""
        self.taken[sender] = place

    # ------------------------------------------------------------------ the window

    def last(self, receiver: int) -> Place:
        """The last entry that its window had: where to read on."""
        window = self.windows.get(receiver)
        return next(reversed(window)) if window else self.handed.get(receiver, NO_PLACE)

    def wants_refill(self, receiver: int) -> bool:
        """Whether there may be more, and the window has run low."""
        if receiver not in self.beyond or receiver in self.full:
            return False
        is_low = len(self.windows.get(receiver, ())) <= self.window_max // 2
        return is_low and self.window_bytes.get(receiver, 0) <= self._window_bytes_max // 2

    def refill(
        self, receiver: int, rows: Iterable[tuple[Place, Submitted]], *, is_end: bool
    ) -> None:
        """The next entries of the store, from behind `last`; `is_end`: it has no more. They must be
        fresh (docs/architecture.md, Store, rule 7)."""
        newer = self._generations() if is_end else []
        for place, draft in chain(rows, *(table.get(receiver, {}).items() for table in newer)):
            if place > self.last(receiver) and not self._take(receiver, place, draft):
                self.full.add(receiver)
                return
        if is_end:
            self.beyond.discard(receiver)

    def _take(self, receiver: int, place: Place, draft: Submitted) -> bool:
        """Into the window, if there is room; one entry always finds some."""
        window = self.windows.setdefault(receiver, {})
        size = self.window_bytes.get(receiver, 0) + _bytes_of(draft)
        is_full = len(window) >= self.window_max or size > self._window_bytes_max
        if window and is_full:
            return False
        window[place] = draft
        self.window_bytes[receiver] = size
        return True

    # ------------------------------------------------------------------ all there is

    def changed(self) -> dict[tuple[int, Place], Submitted]:
        """The entries that the store does not have, or not for sure."""
        return {
            (receiver, place): draft
            for table in self._generations()
            for receiver, entries in table.items()
            for place, draft in entries.items()
            if place > self.handed.get(receiver, NO_PLACE)
        }

    def _generations(self) -> list[dict[int, dict[Place, Submitted]]]:
        flight: Generation | None = self._memory.flight
        older = [] if flight is None else [flight.outbox]
        return [*older, self._memory.dirty.outbox]


def _bytes_of(draft: Submitted) -> int:
    return DRAFT_BYTES + len(draft.payload)
