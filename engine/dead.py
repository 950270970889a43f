"""The dead letter office: find what died, bring it back, say how it really went, or drop it."""

import asyncio
from collections.abc import Mapping, Sequence
from datetime import datetime
from typing import TYPE_CHECKING, Any, cast

from parkade.asking import Request, check_not_on_loop
from parkade.dead_bulk import Bulk, Change, Dropping, Reviving, Which
from parkade.dead_groups import largest_groups
from parkade.durations import Duration
from parkade.errors import ConfigError, DeadReason, NotDead
from parkade.finding import check_limit, find
from parkade.limits import OUTCOME_BYTES
from parkade.shard.commands import Answer, Resolve
from parkade.verdicts import reason_text
from parkade.views import BulkResult, DeadGroup, Page, TicketInfo

if TYPE_CHECKING:
    from parkade.engine import Engine

__all__ = ["DeadLetters"]


class DeadLetters:
    """`engine.dead`. Dead tickets are kept until somebody acts: revives, resolves or drops them.

    Methods with an `a` in front are for coroutines; the others block. What changes many tickets
    does so page by page (500): a page that is done stays done, and the same call made again goes on
    with what is left.
    """

    def __init__(self, engine: "Engine") -> None:
        self._engine = engine

    def find(
        self,
        *,
        task: str | None = None,
        reason: DeadReason | None = None,
        error_type: str | None = None,
        group: str | None = None,
        since: datetime | None = None,
        until: datetime | None = None,
        limit: int = 100,
        cursor: str | None = None,
    ) -> Page[TicketInfo]:
        """Dead tickets, the last submitted first. `group` is the key of a `DeadGroup`; `since` and
        `until` (not included) are about when they died. Raises `ConfigError`, `NaiveDatetime`."""
        desk = self._engine.desk("engine.dead.find")
        return desk.ask(
            find(
                desk, call="engine.dead.find", state="dead", task=task, why=reason,
                error_type=error_type, group=group, since=since, until=until, limit=limit,
                cursor=cursor,
            )
        )  # fmt: skip

    async def afind(
        self,
        *,
        task: str | None = None,
        reason: DeadReason | None = None,
        error_type: str | None = None,
        group: str | None = None,
        since: datetime | None = None,
        until: datetime | None = None,
        limit: int = 100,
        cursor: str | None = None,
    ) -> Page[TicketInfo]:
        """`find` for coroutines."""
        desk = self._engine.desk("engine.dead.afind")
        return await desk.aask(
            find(
                desk, call="engine.dead.afind", state="dead", task=task, why=reason,
                error_type=error_type, group=group, since=since, until=until, limit=limit,
                cursor=cursor,
            )
        )  # fmt: skip

    def count(self, *, task: str | None = None) -> int:
        """How many are dead, by the kept counters."""
        stats = self._engine.stats()
        if task is None:
            return stats.dead
        return stats.by_task.get(task, {}).get("dead", 0)

    def groups(self, *, limit: int = 50) -> Sequence[DeadGroup]:
        """The largest groups of tickets that died alike, the largest first: of one task, with one
        type of error, and messages that differ in numbers, ids and quoted parts alone.

        Takes time in proportion to the number of groups, not to that of dead tickets. Raises
        `ConfigError` for a limit that is not 1 to 1,000.
        """
        call = "engine.dead.groups"
        check_not_on_loop(call, "engine.dead.agroups")
        check_limit(call, limit)
        return largest_groups(self._engine.desk(call), call, limit)

    async def agroups(self, *, limit: int = 50) -> Sequence[DeadGroup]:
        """`groups` for coroutines."""
        return await asyncio.to_thread(self.groups, limit=limit)

    def revive(
        self,
        *ids: str,
        group: str | None = None,
        task: str | None = None,
        delay: Duration | None = None,
        rate: tuple[int, Duration] | None = None,
        keep_attempts: bool = False,
        payload: Mapping[str, Any] | None = None,
        accept_ambiguous: bool = False,
        dry_run: bool = False,
    ) -> BulkResult:
        """Makes dead tickets pending again: the same ids, a fresh budget unless `keep_attempts`.

        By ids, or all of a group, or all of a task. `rate=(50, "1s")` lets 50 come due in each
        second, the oldest first. `payload` gives them other arguments, by name. What may have
        happened is skipped ("ambiguous") unless `accept_ambiguous`, and so is a ticket whose unique
        another one holds by now ("duplicate"). `dry_run` only tells what would be done.

        Raises `ConfigError` for none or two of ids, group and task and for a bad rate or delay;
        with `payload` also `UnknownTask` and `PayloadError`.
        """
        call = "engine.dead.revive"
        check_not_on_loop(call, "engine.dead.arevive")
        which = Which(ids, group, task)
        which.check(call)
        change = Reviving(
            self._engine, call, delay=delay, rate=rate, keep_attempts=keep_attempts,
            payload=payload, accept_ambiguous=accept_ambiguous,
        )  # fmt: skip
        return self._run(call, which, change, is_dry=dry_run)

    async def arevive(
        self,
        *ids: str,
        group: str | None = None,
        task: str | None = None,
        delay: Duration | None = None,
        rate: tuple[int, Duration] | None = None,
        keep_attempts: bool = False,
        payload: Mapping[str, Any] | None = None,
        accept_ambiguous: bool = False,
        dry_run: bool = False,
    ) -> BulkResult:
        """`revive` for coroutines."""
        return await asyncio.to_thread(
            self.revive, *ids, group=group, task=task, delay=delay, rate=rate,
            keep_attempts=keep_attempts, payload=payload, accept_ambiguous=accept_ambiguous,
            dry_run=dry_run,
        )  # fmt: skip

    def drop(
        self,
        *ids: str,
        group: str | None = None,
        task: str | None = None,
        dry_run: bool = False,
    ) -> BulkResult:
        """Deletes dead tickets for ever: by ids, or all of a group, or all of a task. Raises
        `ConfigError` for none or two of these."""
        call = "engine.dead.drop"
        check_not_on_loop(call, "engine.dead.adrop")
        return self._run(call, Which(ids, group, task), Dropping(), is_dry=dry_run)

    async def adrop(
        self,
        *ids: str,
        group: str | None = None,
        task: str | None = None,
        dry_run: bool = False,
    ) -> BulkResult:
        """`drop` for coroutines."""
        return await asyncio.to_thread(self.drop, *ids, group=group, task=task, dry_run=dry_run)

    def resolve(self, ticket_id: str, result: Any = None, *, note: str = "") -> None:
        """Makes a dead ticket done, with the result that somebody found out. `note` says how, and
        is shown with it; at most 1 KiB of it is kept.

        Raises `NotDead` (PK-407) for any other ticket, `UnknownTicket`, `UnknownTask` when no code
        registers its task, and `PayloadError` for a result that does not fit the annotation of its
        handler, or cannot be stored.
        """
        call = "engine.dead.resolve"
        check_not_on_loop(call, "engine.dead.aresolve")
        if not isinstance(cast(object, note), str):
            raise ConfigError.option(call, "note", note, "use a text")
        desk = self._engine.desk(call)
        task = self._engine.lookup(desk.ask(desk.info(ticket_id, call)).task)
        encoded = task.encode_result(result, bytes_max=desk.runtime.options.max_payload)
        task.decode_result(encoded)
        self.resolve_encoded(ticket_id, encoded, note)

    async def aresolve(self, ticket_id: str, result: Any = None, *, note: str = "") -> None:
        """`resolve` for coroutines."""
        return await asyncio.to_thread(self.resolve, ticket_id, result, note=note)

    def resolve_encoded(self, ticket_id: str, encoded: bytes, note: str) -> None:
        """`resolve` with a result that nobody has held against a handler."""
        call = "engine.dead.resolve"
        desk = self._engine.desk(call)
        known = desk.parse(ticket_id)
        shard = known.part % desk.runtime.shard_count
        request: Request[bool] = Request(
            call,
            "engine.dead.aresolve",
            [(shard, Resolve(known.serial, encoded, reason_text(note)))],
            lambda got: isinstance(got[0][0], Answer),
            sizes=(len(encoded) + len(note) + OUTCOME_BYTES,),
        )
        if not desk.ask(request):
            state = desk.ask(desk.info(ticket_id, call)).state
            raise NotDead(ticket_id, call=call, state=state)

    def _run(self, call: str, which: Which, change: Change, *, is_dry: bool) -> BulkResult:
        return Bulk(self._engine, call, which, change, is_dry=is_dry).run()
