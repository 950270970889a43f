"""The dead letter office: find what died, bring it back, say how it really went, or drop it."""

import asyncio
from collections import defaultdict
from typing import TYPE_CHECKING, Any

from parkade.asking import Request, check_not_on_loop
from parkade.durations import Duration, after_ms, parse_duration_ms
from parkade.errors import ConfigError, DeadReason, UnknownTicket
from parkade.finding import find
from parkade.limits import OUTCOME_BYTES
from parkade.shard.commands import Answer, Drop, Resolve, Revive
from parkade.views import BulkResult, Page, TicketInfo

if TYPE_CHECKING:
    from parkade.desk import Desk
    from parkade.engine import Engine

__all__ = ["DeadLetters"]

BULK_PAGE = 500


class DeadLetters:
    """`engine.dead`. Dead tickets are kept until somebody acts: revives, resolves or drops them.

    Methods with an `a` in front are for coroutines; the others block.
    """

    def __init__(self, engine: "Engine") -> None:
        self._engine = engine

    def find(
        self,
        *,
        task: str | None = None,
        reason: DeadReason | None = None,
        error_type: str | None = None,
        limit: int = 100,
        cursor: str | None = None,
    ) -> Page[TicketInfo]:
        """Dead tickets, newest first. Raises `ConfigError`."""
        desk = self._engine.desk("engine.dead.find")
        return desk.ask(
            find(
                desk, call="engine.dead.find", state="dead", task=task, why=reason,
                error_type=error_type, limit=limit, cursor=cursor,
            )
        )  # fmt: skip

    async def afind(
        self,
        *,
        task: str | None = None,
        reason: DeadReason | None = None,
        error_type: str | None = None,
        limit: int = 100,
        cursor: str | None = None,
    ) -> Page[TicketInfo]:
        """`find` for coroutines."""
        desk = self._engine.desk("engine.dead.afind")
        return await desk.aask(
            find(
                desk, call="engine.dead.afind", state="dead", task=task, why=reason,
                error_type=error_type, limit=limit, cursor=cursor,
            )
        )  # fmt: skip

    def count(self, *, task: str | None = None) -> int:
        """How many are dead, by the kept counters."""
        stats = self._engine.stats()
        if task is None:
            return stats.dead
        return stats.by_task.get(task, {}).get("dead", 0)

    def revive(
        self,
        *ids: str,
        task: str | None = None,
        delay: Duration | None = None,
        keep_attempts: bool = False,
        accept_ambiguous: bool = False,
        dry_run: bool = False,
    ) -> BulkResult:
        """Makes dead tickets pending again: the same ids, a fresh budget unless `keep_attempts`.

        By ids, or all of a task. What may have happened is skipped ("ambiguous") unless
        `accept_ambiguous`. Raises `ConfigError` when neither or both are given.
        """
        desk = self._engine.desk("engine.dead.revive")
        delay_ms = 0 if delay is None else parse_duration_ms(delay, what="delay")
        due_ms = after_ms(desk.runtime.clock.now_ms(), delay_ms, what="delay")
        bulk = _Bulk(self._engine, "revive", ids, task, is_dry=dry_run)
        return bulk.run(
            lambda serials: Revive(
                serials, due_ms, keep_attempts, None, accept_ambiguous=accept_ambiguous
            ),
            lambda info: "ambiguous" if info.maybe_applied and not accept_ambiguous else None,
        )

    async def arevive(
        self,
        *ids: str,
        task: str | None = None,
        delay: Duration | None = None,
        keep_attempts: bool = False,
        accept_ambiguous: bool = False,
        dry_run: bool = False,
    ) -> BulkResult:
        """`revive` for coroutines."""
        return await asyncio.to_thread(
            self.revive, *ids, task=task, delay=delay, keep_attempts=keep_attempts,
            accept_ambiguous=accept_ambiguous, dry_run=dry_run,
        )  # fmt: skip

    def drop(self, *ids: str, task: str | None = None, dry_run: bool = False) -> BulkResult:
        """Deletes dead tickets for ever. Raises as `revive` does."""
        bulk = _Bulk(self._engine, "drop", ids, task, is_dry=dry_run)
        return bulk.run(lambda serials: Drop(serials), lambda _: None)

    async def adrop(self, *ids: str, task: str | None = None, dry_run: bool = False) -> BulkResult:
        """`drop` for coroutines."""
        return await asyncio.to_thread(self.drop, *ids, task=task, dry_run=dry_run)

    def resolve(self, ticket_id: str, result: Any = None) -> bool:
        """Makes a dead ticket done, with the result that somebody found out; False: it is not dead.

        Raises `UnknownTicket`, `UnknownTask` when no code registers its task, and `PayloadError`
        for a result that does not fit the annotation of its handler, or cannot be stored.
        """
        call, instead = "engine.dead.resolve", "engine.dead.aresolve"
        check_not_on_loop(call, instead)
        desk = self._engine.desk(call)
        task = self._engine.lookup(desk.ask(desk.info(ticket_id, call)).task)
        encoded = task.encode_result(result, bytes_max=desk.runtime.options.max_payload)
        task.decode_result(encoded)
        known = desk.parse(ticket_id)
        shard = known.part % desk.runtime.shard_count
        asks = [(shard, Resolve(known.serial, encoded))]
        request: Request[bool] = Request(
            call,
            instead,
            asks,
            lambda got: isinstance(got[0][0], Answer),
            sizes=(len(encoded) + OUTCOME_BYTES,),
        )
        return desk.ask(request)

    async def aresolve(self, ticket_id: str, result: Any = None) -> bool:
        """`resolve` for coroutines."""
        return await asyncio.to_thread(self.resolve, ticket_id, result)


class _Bulk:
    """One command about many dead tickets, page by page."""

    def __init__(
        self, engine: "Engine", verb: str, ids: tuple[str, ...], task: str | None, *, is_dry: bool
    ) -> None:
        self.call = f"engine.dead.{verb}"
        self._instead = f"engine.dead.a{verb}"
        check_not_on_loop(self.call, self._instead)
        if bool(ids) == (task is not None):
            raise ConfigError(f"{self.call}(): give ids, or task=, and not both")
        self._desk: Desk = engine.desk(self.call)
        self._ids, self._task, self._is_dry = ids, task, is_dry
        self.matched = self.changed = 0
        self.skipped: dict[str, int] = defaultdict(int)

    def run(self, command: Any, why_not: Any) -> BulkResult:
        if self._ids:
            for first in range(0, len(self._ids), BULK_PAGE):
                self._apply(list(self._ids[first : first + BULK_PAGE]), command, why_not)
        else:
            cursor: str | None = None
            while True:
                page = self._desk.ask(
                    find(
                        self._desk, call=self.call, state="dead", task=self._task,
                        limit=BULK_PAGE, cursor=cursor,
                    )
                )  # fmt: skip
                self._apply([info.id for info in page], command, why_not)
                cursor = page.next
                if cursor is None:
                    break
        return BulkResult(self.matched, self.changed, dict(self.skipped))

    def _apply(self, ids: list[str], command: Any, why_not: Any) -> None:
        self.matched += len(ids)
        if self._is_dry:
            for ticket_id in ids:
                self._plan(ticket_id, why_not)
            return
        by_shard: dict[int, list[int]] = defaultdict(list)
        for ticket_id in ids:
            try:
                known = self._desk.parse(ticket_id)
            except UnknownTicket:
                self.skipped["unknown"] += 1
                continue
            by_shard[known.part % self._desk.runtime.shard_count].append(known.serial)
        asks = [(shard, command(serials)) for shard, serials in by_shard.items()]
        request: Request[list[Any]] = Request(self.call, self._instead, asks, lambda got: got)
        for answered in self._desk.ask(request):
            for answer in answered:
                if isinstance(answer, Answer):
                    self.changed += 1
                else:
                    self.skipped[answer.code] += 1

    def _plan(self, ticket_id: str, why_not: Any) -> None:
        try:
            info = self._desk.ask(self._desk.info(ticket_id, self.call))
        except UnknownTicket:
            self.skipped["unknown"] += 1
            return
        reason = "not_dead" if info.state != "dead" else why_not(info)
        if reason is None:
            self.changed += 1
        else:
            self.skipped[reason] += 1
