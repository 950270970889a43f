"""What an engine is asked about its tickets: one by its id, pages of many, the counts."""

import os
from abc import abstractmethod
from collections.abc import Callable, Mapping
from datetime import datetime
from os import PathLike
from typing import TYPE_CHECKING, Any, TypeVar, cast

from parkade import finding, scanning
from parkade.asking import check_not_on_loop
from parkade.cancelling import acancel_all, cancel_all, cancelling
from parkade.desk import Desk
from parkade.durations import Duration
from parkade.errors import EngineClosed
from parkade.health import closed_health, read_health
from parkade.holding import HOLD_CALLS
from parkade.stats import read_stats
from parkade.tasks import Task, Tasks
from parkade.ticket import Ticket
from parkade.views import BulkResult, Page, State, Stats, TicketInfo

if TYPE_CHECKING:
    from parkade.engine import Engine

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

    def scan(
        self,
        where: Callable[[TicketInfo], bool],
        *,
        budget: Duration = "2s",
        limit: int = 100,
    ) -> Page[TicketInfo]:
        """The slow way: every ticket there is, newest first, is shown to `where`, on this thread,
        until `limit` of them were wanted or `budget` is over (`complete` is False then).

        `next` is where it stopped: `find(cursor=page.next)` gives what lies beyond, for the caller
        to look through. Raises what `where` raises, and `ConfigError`; on the thread of an event
        loop `BlockingInEventLoop`: `await asyncio.to_thread(engine.scan, ...)`.
        """
        return scanning.scan(self.desk("engine.scan"), where, budget=budget, limit=limit)

    def cancel_many(
        self,
        *,
        task: str | None = None,
        key: str | None = None,
        tag: tuple[str, str] | None = None,
        reason: str = "",
        dry_run: bool = False,
    ) -> BulkResult:
        """Cancels every ticket that has not ended and to which all that is given applies: pending
        ones at once, of running ones it is asked (and both count as changed).

        Goes page by page: a page that is done stays done, whatever comes after it, and the same
        call made again goes on. What is submitted meanwhile may be left out. What ended before its
        turn came is in `skipped`, as "too_late" or "unknown". `dry_run` only counts. Raises
        `ConfigError` when nothing is given, and for a tag that is not indexed; `StorageFull`.
        """
        call = "engine.cancel_many"
        check_not_on_loop(call, "engine.acancel_many")
        desk = self.desk(call)
        flow = cancelling(desk, call, task=task, key=key, tag=tag, reason=reason, is_dry=dry_run)
        return cancel_all(desk, flow)

    async def acancel_many(
        self,
        *,
        task: str | None = None,
        key: str | None = None,
        tag: tuple[str, str] | None = None,
        reason: str = "",
        dry_run: bool = False,
    ) -> BulkResult:
        """`cancel_many` for coroutines."""
        desk = self.desk("engine.acancel_many")
        flow = cancelling(
            desk, "engine.cancel_many", task=task, key=key, tag=tag, reason=reason, is_dry=dry_run
        )
        return await acancel_all(desk, flow)

    def backup(self, to: str | PathLike[str]) -> None:
        """Copies the directory as it is now into a new one at `to`, which is a directory like this
        one: everything acknowledged before the call is in it. The engine goes on meanwhile.

        The copy is synced; one that fails leaves nothing. Raises `ConfigError` where something is
        at `to` already, `StorageDamaged`, `StorageFull`, `StorageError`; on an event loop
        `BlockingInEventLoop`: `await asyncio.to_thread(engine.backup, to)`.
        """
        check_not_on_loop("engine.backup", "asyncio.to_thread(engine.backup, to)")
        engine = cast("Engine", self)
        source = self.desk("engine.backup").runtime.directory.path
        target: str = os.path.abspath(os.fspath(to))

        def ask(name: str, **args: Any) -> Any:
            return HOLD_CALLS[name](engine, args)

        from parkade.backing_up import back_up

        back_up(source, target, ask)

    def health(self) -> Mapping[str, Any]:
        """How the engine is, for a health check: nothing is counted for it.

        `status` is ok, degraded (a shard is refused, or cannot be written) or down; `ready`: it
        answers, and some shard takes tickets; `storage_writable`: every shard can be written;
        `oldest_ready_age_ms`; `loop_lag_ms`: how long the core thread took to answer; `shards`.
        Raises `ForkedEngine`; an engine that is not open is down.
        """
        try:
            desk = self.desk("engine.health")
        except EngineClosed:
            return closed_health()
        return read_health(desk.runtime)

    def stats(self) -> Stats:
        """Counts by state and task, kept as tickets change."""
        return read_stats(self.desk("engine.stats").runtime)
