"""The tickets of a bulk submit: a sequence that makes a handle when somebody asks for it.

Of a hundred thousand tickets most are never looked at again. What stands for one until then is a
number in an array: no payload is kept alive by it.
"""

from array import array
from bisect import bisect_right
from collections.abc import Sequence
from operator import eq
from typing import TYPE_CHECKING, Any, NamedTuple, cast, overload

from parkade.calls import Call
from parkade.store.record import Submitted
from parkade.ticket import Ticket

if TYPE_CHECKING:
    from parkade.desk import Desk

__all__ = ["Handles"]


class _Created(NamedTuple):
    """Tickets with serials in a row, all of them created."""

    first_serial: int
    parts: "array[int]"
    tasks: list[str]
    bounds: list[Any]


class Handles(Sequence[Ticket[Any]]):
    """Grows chunk by chunk; the same place gives the same handle each time. Any thread."""

    def __init__(self, desk: "Desk") -> None:
        self._desk = desk
        self._count = 0
        self._starts: list[int] = []
        self._chunks: list[_Created | Sequence[Ticket[Any]]] = []
        self._made: dict[int, Ticket[Any]] = {}

    def add_created(self, drafts: Sequence[Submitted], calls: Sequence[Call[Any]]) -> None:
        """These became tickets; their serials are in a row."""
        parts = array("H", [draft.part for draft in drafts])
        tasks = [call.task for call in calls]
        bounds = [call.bound for call in calls]
        self._add(_Created(drafts[0].serial, parts, tasks, bounds), len(drafts))

    def add(self, tickets: Sequence[Ticket[Any]]) -> None:
        """Handles that are there."""
        if tickets:
            self._add(tickets, len(tickets))

    def _add(self, chunk: _Created | Sequence[Ticket[Any]], count: int) -> None:
        self._starts.append(self._count)
        self._chunks.append(chunk)
        self._count += count

    def __len__(self) -> int:
        return self._count

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, list | Handles):
            return NotImplemented
        others = cast("Sequence[object]", other)
        return len(self) == len(others) and all(map(eq, self, others))

    __hash__ = None  # type: ignore[assignment]

    def __repr__(self) -> str:
        return f"<{self._count} tickets>"

    @overload
    def __getitem__(self, place: int) -> Ticket[Any]: ...
    @overload
    def __getitem__(self, place: slice) -> list[Ticket[Any]]: ...
    def __getitem__(self, place: int | slice) -> Ticket[Any] | list[Ticket[Any]]:
        if isinstance(place, slice):
            return [self._handle_at(one) for one in range(*place.indices(self._count))]
        if not -self._count <= place < self._count:
            raise IndexError(f"ticket {place} of {self._count}")
        return self._handle_at(place % self._count)

    def _handle_at(self, place: int) -> Ticket[Any]:
        made = self._made.get(place)
        if made is not None:
            return made
        number = bisect_right(self._starts, place) - 1
        chunk, offset = self._chunks[number], place - self._starts[number]
        if not isinstance(chunk, _Created):
            return chunk[offset]
        identity = (chunk.first_serial + offset, chunk.parts[offset])
        ticket: Ticket[Any] = Ticket(
            self._desk, identity, chunk.tasks[offset], created=True, bound=chunk.bounds[offset]
        )
        return self._made.setdefault(place, ticket)
