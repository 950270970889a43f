"""How long ended tickets are kept: what the engine was told, and what its tasks say.

Done, cancelled and expired tickets are kept by age and by number, dead ones until somebody acts
unless the engine was told an age. A task with a `keep=` of its own keeps its tickets by that alone.
"""

from collections.abc import Mapping, Sequence
from typing import Protocol

from parkade.shard.states import CANCELLED, DEAD, DONE, EXPIRED

__all__ = ["COUNTED", "Keeping", "TasksKeep", "share_of"]

COUNTED = (DONE, CANCELLED, EXPIRED)
"""The states that are kept by number too."""


class TasksKeep(Protocol):
    """What is asked of the registered tasks."""

    def keeps_ms(self) -> Mapping[str, int | None]:
        """How long each registered name keeps its tickets; None: it does not say."""
        ...


class Keeping:
    """Of an engine. Times are ms; None: for ever, without end, or not at all."""

    def __init__(
        self,
        done_ms: int | None = None,
        done_max: int | None = None,
        dead_ms: int | None = None,
        tasks: TasksKeep | None = None,
    ) -> None:
        self.done_ms = done_ms
        self.done_max = done_max
        self.dead_ms = dead_ms
        self._tasks = tasks

    def tasks_keep(self, remembered: Mapping[str, int]) -> dict[str, int]:
        """How long tasks keep their tickets that have a say in it, by name: what is registered says
        so itself, of others what they said when they were."""
        said: Mapping[str, int | None] = {}
        if self._tasks is not None:
            said = self._tasks.keeps_ms()
        keeps = {task: ms for task, ms in remembered.items() if task not in said}
        keeps |= {task: ms for task, ms in said.items() if ms is not None}
        return keeps

    def age_ms(self, task: str, state: int, tasks_keep: Mapping[str, int]) -> int | None:
        """How long after its end a ticket is kept; None: age does not end it."""
        return self.dead_ms if state == DEAD else tasks_keep.get(task, self.done_ms)

    def ages_ms(self, tasks_keep: Mapping[str, int]) -> list[int]:
        """Every age at which something is forgotten."""
        ages = [self.done_ms, self.dead_ms, *tasks_keep.values()]
        return [age_ms for age_ms in ages if age_ms is not None]

    def is_counted(self, task: str, state: int, tasks_keep: Mapping[str, int]) -> bool:
        """Whether a ticket is among those that are kept by number."""
        return self.done_max is not None and state in COUNTED and task not in tasks_keep


def share_of(place: int, counts: Sequence[int], most: int) -> int:
    """How many of its tickets one of several shards may keep, so that all of them together keep
    `most`: what one does not need is the others'."""
    left, takers = most, len(counts)
    for count in sorted(counts):
        if count * takers > left:
            break
        left -= count
        takers -= 1
    if not takers:
        return counts[place]
    level, rest = divmod(left, takers)
    if counts[place] <= level:
        return counts[place]
    rank = sum(1 for count in counts[:place] if count > level)
    return level + (rank < rest)
