"""What an engine is asked about its tickets: one by its id, pages of many, the counts."""

from abc import abstractmethod
from datetime import datetime
from typing import Any, TypeVar

from parkade import finding
from parkade.desk import Desk
from parkade.stats import read_stats
from parkade.tasks import Task, Tasks
from parkade.ticket import Ticket
from parkade.views import Page, State, Stats, TicketInfo

__all__ = ["Looking"]

R = TypeVar("R")


class Looking(Tasks):
    """The part of `Engine` that looks and finds."""

    @abstractmethod
    def desk(self, call: str) -> Desk:
        """Where this engine is asked. Raises `EngineClosed`, and `ForkedEngine` in a fork."""

    def ticket(self, ticket_id: str) -> Ticket[Any]:
        """The handle of a ticket by its id; asking it tells whether there is one."""
        return Ticket(self.desk("engine.ticket"), ticket_id, None)

    def ticket_of(self, ticket_id: str, task: Task[..., R], /) -> Ticket[R]:
        return Ticket(self.desk(f"{task.name}.ticket"), ticket_id, task.name, bound=task)

    def find(
        self,
        *,
        state: State | None = None,
        task: str | None = None,
        key: str | None = None,
        target: str | None = None,
        tag: tuple[str, str] | None = None,
        due_before: datetime | None = None,
        created_after: datetime | None = None,
        limit: int = 100,
        cursor: str | None = None,
    ) -> Page[TicketInfo]:
        """A page of tickets, newest first; `cursor` is the `next` of the page before. All that is
        given must hold; `tag` is a name that `Engine(index_tags=)` has, and its value.

        A page looks at a bounded number of tickets: where too few of them fit it ends early, says
        so (`complete` is False), and `next` goes on. Raises `ConfigError` for an unknown state, a
        bad limit or cursor, a tag that is not indexed; `NaiveDatetime`.
        """
        desk = self.desk("engine.find")
        return desk.ask(
            finding.find(
                desk, call="engine.find", state=state, task=task, key=key, target=target, tag=tag,
                due_before=due_before, created_after=created_after, limit=limit, cursor=cursor,
            )
        )  # fmt: skip

    async def afind(
        self,
        *,
        state: State | None = None,
        task: str | None = None,
        key: str | None = None,
        target: str | None = None,
        tag: tuple[str, str] | None = None,
        due_before: datetime | None = None,
        created_after: datetime | None = None,
        limit: int = 100,
        cursor: str | None = None,
    ) -> Page[TicketInfo]:
        """`find` for coroutines."""
        desk = self.desk("engine.afind")
        return await desk.aask(
            finding.find(
                desk, call="engine.afind", state=state, task=task, key=key, target=target, tag=tag,
                due_before=due_before, created_after=created_after, limit=limit, cursor=cursor,
            )
        )  # fmt: skip

    def stats(self) -> Stats:
        """Counts by state and task, kept as tickets change."""
        return read_stats(self.desk("engine.stats").runtime)
