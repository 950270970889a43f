"""How many starts in a row one task has had: a crowd that is due at once is no wall for others.

By rank alone, who becomes due while a million older tickets of another task wait would wait for all
of them. So after a row of starts the next one is of another task of the same priority, if one
waits. What is counted is starts and no time: with slow handlers a row is slow too.
"""

from typing import Generic, Protocol, TypeVar

from parkade.limits import STARTS_IN_A_ROW_MAX
from parkade.ranking import Rank

__all__ = ["Turns"]


class _Taker(Protocol):
    """A task that waits, as a ranking lists it, for a place of some kind."""

    kind: str
    listed: Rank | None


T = TypeVar("T", bound=_Taker)


class Turns(Generic[T]):
    """One row for each kind of place: kinds do not take each other's. `in_a_row`: how many the
    latest task has started since any other did, whatever the kind."""

    def __init__(self) -> None:
        self.in_a_row = 0
        self._latest: T | None = None
        self._rows: dict[str, tuple[T, int]] = {}

    def left(self, task: T) -> int:
        """How many more starts it may have before it is another's turn."""
        row = self._rows.get(task.kind)
        return STARTS_IN_A_ROW_MAX - row[1] if row and row[0] is task else STARTS_IN_A_ROW_MAX

    def note(self, task: T, count: int = 1) -> None:
        """It has started so many more."""
        self.in_a_row = self.in_a_row + count if task is self._latest else count
        self._latest = task
        row = self._rows.get(task.kind)
        self._rows[task.kind] = (task, row[1] + count if row and row[0] is task else count)

    def next(self, task: T, other: T | None) -> T:
        """Whose turn it is after a whole row of the first task: that of the one behind it, if it is
        not of a lesser priority; else the same again."""
        if other is not None and _priority(other) == _priority(task):
            return other
        self._rows[task.kind] = (task, 0)
        return task


def _priority(task: _Taker) -> int:
    assert task.listed is not None
    return task.listed[0]
