"""One change of many dead tickets: a page at a time, each page one command a shard.

A page that was answered is durable, whatever comes after it; and since what is changed is dead no
more, the same call goes on where another one was cut off.
"""

from collections import Counter, defaultdict
from collections.abc import Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any, NamedTuple, Protocol, cast

import msgspec

from parkade.asking import Request
from parkade.asks import Look, Rehearse
from parkade.dead_groups import count_group
from parkade.durations import Duration, after_ms, parse_duration_ms
from parkade.errors import ConfigError, UnknownTicket
from parkade.finding import find, parse_group
from parkade.limits import COMMAND_BYTES_MAX, OUTCOME_BYTES
from parkade.shard.commands import Answer, Command, Drop, Revive
from parkade.shard.ticket import TicketId
from parkade.views import BulkResult

if TYPE_CHECKING:
    from parkade.desk import Desk
    from parkade.engine import Engine

__all__ = ["Bulk", "Dropping", "Place", "Reviving", "Which"]

BULK_PAGE = 500


class Known(NamedTuple):
    """A ticket that may be changed; `nth` counts those of the whole call. `task` is empty where it
    does not matter."""

    id: TicketId
    nth: int
    task: str = ""


class Which(msgspec.Struct, frozen=True):
    """The tickets a call is about: by ids, or all of a group, or all of a task."""

    ids: tuple[str, ...] = ()
    group: str | None = None
    task: str | None = None

    def check(self, call: str) -> None:
        """Raises `ConfigError` unless one of the three is given."""
        given = bool(self.ids) + (self.group is not None) + (self.task is not None)
        if given != 1:
            raise ConfigError(f"{call}(): give ids, or group=, or task=: one of them, and not more")
        if self.group is not None:
            parse_group(call, self.group)


class Place(msgspec.Struct):
    """How far a call has come. `cursor` is where it goes on; None: from the start."""

    cursor: str | None = None
    nth: int = 0
    total: int = 0  # how many there were at the start, where that matters
    base_ms: int = 0  # when it was begun


class Change(Protocol):
    """What is done with each ticket."""

    needs_task: bool
    needs_total: bool

    def commands(
        self, knowns: Sequence[Known], place: Place
    ) -> Iterator[tuple[list[Known], Command, int]]:
        """Commands for tickets of one shard: which of them, and the bytes that it may write."""
        ...


class Dropping:
    """Deletes them."""

    needs_task = needs_total = False

    def commands(
        self, knowns: Sequence[Known], place: Place
    ) -> Iterator[tuple[list[Known], Command, int]]:
        yield list(knowns), Drop([known.id.serial for known in knowns]), 0


class Reviving:
    """Makes them pending again. `rate` spreads their due times: so many in each span of time.

    Raises `ConfigError`, `UnknownTask`, `PayloadError`.
    """

    def __init__(
        self,
        engine: "Engine",
        call: str,
        *,
        delay: Duration | None = None,
        rate: tuple[int, Duration] | None = None,
        keep_attempts: bool = False,
        payload: Mapping[str, Any] | None = None,
        accept_ambiguous: bool = False,
    ) -> None:
        self._engine, self._call = engine, call
        self._delay_ms = 0 if delay is None else parse_duration_ms(delay, what="delay")
        after_ms(engine.clock.now_ms(), self._delay_ms, what="delay")
        self._rate = None if rate is None else _parse_rate(call, rate)
        self._keep_attempts = keep_attempts
        self._payload = payload
        self._accept_ambiguous = accept_ambiguous
        self._encoded: dict[str, bytes] = {}
        self.needs_task = payload is not None
        self.needs_total = rate is not None

    def commands(
        self, knowns: Sequence[Known], place: Place
    ) -> Iterator[tuple[list[Known], Command, int]]:
        by_task: dict[str, list[Known]] = defaultdict(list)
        for known in knowns:
            by_task[known.task].append(known)
        for task, listed in by_task.items():
            payload = self._encode(task)
            size = OUTCOME_BYTES + (0 if payload is None else len(payload))
            count = max(1, COMMAND_BYTES_MAX // size)
            for first in range(0, len(listed), count):
                some = listed[first : first + count]
                command = Revive(
                    [known.id.serial for known in some],
                    place.base_ms + self._delay_ms,
                    self._keep_attempts,
                    payload,
                    self._accept_ambiguous,
                    self._dues(some, place),
                )
                yield some, command, 0 if payload is None else size * len(some)

    def _encode(self, task: str) -> bytes | None:
        """The new arguments, as a submit of this task by name would store them."""
        if self._payload is None:
            return None
        encoded = self._encoded.get(task)
        if encoded is None:
            call = self._engine.lookup(task).call_with(self._payload)
            bytes_max = self._engine.desk(self._call).runtime.options.max_payload
            prepared = call.prepare(0, payload_bytes_max=bytes_max)
            encoded = self._encoded[task] = prepared.payload
        return encoded

    def _dues(self, knowns: Sequence[Known], place: Place) -> list[int] | None:
        if self._rate is None:
            return None
        count, span_ms = self._rate
        base_ms = place.base_ms + self._delay_ms
        return [base_ms + _turn(known.nth, place.total) * span_ms // count for known in knowns]


def _turn(nth: int, total: int) -> int:
    """The pages begin with the newest; the oldest is due first. So a call that is repeated after it
    was cut off gives the rest the turns ahead of those that have theirs. Who died meanwhile comes
    last."""
    return total - 1 - nth if nth < total else nth


def _parse_rate(call: str, rate: tuple[int, Duration]) -> tuple[int, int]:
    given: Any = rate
    advice = 'use (count, span), like (50, "1s"): so many in each span'
    if not isinstance(given, tuple | list) or len(cast(Any, given)) != 2:
        raise ConfigError.option(call, "rate", rate, advice)
    count, span = cast(Any, given)
    if not isinstance(count, int) or isinstance(count, bool) or count < 1:
        raise ConfigError.option(call, "rate", rate, advice)
    span_ms = parse_duration_ms(span, what=f"{call}(rate)")
    if not span_ms:
        raise ConfigError.option(call, "rate", rate, advice)
    return count, span_ms


class Bulk:
    """One call about many dead tickets. `step` does a page; `place` is where it stands."""

    def __init__(
        self, engine: "Engine", call: str, which: Which, change: Change, *, is_dry: bool = False,
        place: Place | None = None,
    ) -> None:  # fmt: skip
        which.check(call)
        self._desk: Desk = engine.desk(call)
        self._call, self._which, self._change, self._is_dry = call, which, change, is_dry
        where, _, verb = call.rpartition(".")
        self._instead = f"{where}.a{verb}"
        self.place = place or self._begin(engine)
        self.matched = self.changed = 0
        self.skipped: Counter[str] = Counter()

    @property
    def result(self) -> BulkResult:
        return BulkResult(self.matched, self.changed, dict(self.skipped))

    def run(self) -> BulkResult:
        while self.step():
            pass
        return self.result

    def step(self) -> bool:
        """One page; False: it was the last. Raises what the desk raises: then the pages before are
        done, and of this one what some of the shards had to do may be."""
        place = self.place
        knowns, cursor = self._page()
        self.matched += len(knowns)
        by_shard: dict[int, list[Known]] = defaultdict(list)
        for known in knowns:
            if known is None:
                self.skipped["unknown"] += 1
            else:
                by_shard[known.id.part % self._desk.runtime.shard_count].append(known)
        asks: list[tuple[int, Any]] = []
        sizes: list[int] = []
        for shard, listed in by_shard.items():
            for _, command, size in self._change.commands(listed, place):
                asks.append((shard, Rehearse(command) if self._is_dry else command))
                sizes.append(size)
        self._give(asks, [] if self._is_dry or not any(sizes) else sizes)
        place.cursor = cursor
        place.nth += len(knowns)
        return cursor is not None

    def _give(self, asks: list[tuple[int, Any]], sizes: list[int]) -> None:
        request: Request[list[Any]] = Request(
            self._call, self._instead, asks, lambda got: got, sizes=sizes
        )
        for answered in self._desk.ask(request):
            for answer in answered:
                if isinstance(answer, Answer):
                    self.changed += 1
                else:
                    self.skipped[answer.code] += 1

    def _begin(self, engine: "Engine") -> Place:
        place = Place(base_ms=engine.clock.now_ms())
        if self._change.needs_total:
            if self._which.group is not None:
                group = parse_group(self._call, self._which.group)
                place.total = count_group(self._desk, self._call, group)
            elif self._which.task is not None:
                place.total = engine.dead.count(task=self._which.task)
        return place

    def _page(self) -> tuple[list[Known | None], str | None]:
        if self._which.ids:
            return self._page_of_ids()
        page = self._desk.ask(
            find(
                self._desk, call=self._call, state="dead", task=self._which.task,
                group=self._which.group, limit=BULK_PAGE, cursor=self.place.cursor,
            )
        )  # fmt: skip
        knowns: list[Known | None] = [
            Known(self._desk.parse(info.id), self.place.nth + n, info.task)
            for n, info in enumerate(page)
        ]
        return knowns, page.next

    def _page_of_ids(self) -> tuple[list[Known | None], str | None]:
        nth = self.place.nth
        listed = self._which.ids[nth : nth + BULK_PAGE]
        knowns: list[Known | None] = []
        for n, ticket_id in enumerate(listed, nth):
            try:
                knowns.append(Known(self._desk.parse(ticket_id), n))
            except UnknownTicket:
                knowns.append(None)
        if self._change.needs_task:
            knowns = self._with_tasks(knowns)
        has_more = nth + len(listed) < len(self._which.ids)
        return knowns, str(nth + len(listed)) if has_more else None

    def _with_tasks(self, knowns: list[Known | None]) -> list[Known | None]:
        there = [known for known in knowns if known is not None]
        count = self._desk.runtime.shard_count
        asks = [(known.id.part % count, Look(known.id.serial)) for known in there]
        request: Request[list[Any]] = Request(self._call, self._instead, asks, lambda got: got)
        answers = self._desk.ask(request)
        tasks = {
            known.nth: seen.ticket.task
            for known, seen in zip(there, answers, strict=True)
            if seen is not None
        }
        return [
            None
            if known is None or known.nth not in tasks
            else known._replace(task=tasks[known.nth])
            for known in knowns
        ]
