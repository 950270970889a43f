"""Cancelling many tickets: an index page by page, each page one command a shard.

A page that was answered is durable, whatever comes after it; and since what is cancelled is matched
no more, the same call goes on where another one was cut off.
"""

from collections import Counter
from collections.abc import Generator
from typing import TYPE_CHECKING, Any, TypeAlias, cast

from parkade.asking import Request
from parkade.asks import PageOf, ShardPage
from parkade.errors import ConfigError, StorageFull
from parkade.finding import NEWEST, check_names, check_tag, indexes_of
from parkade.limits import COMMAND_BYTES_MAX, OUTCOME_BYTES
from parkade.shard.commands import Answer, CancelMany, Refusal
from parkade.shard.states import PENDING, RUNNING
from parkade.verdicts import reason_text
from parkade.views import BulkResult

if TYPE_CHECKING:
    from parkade.desk import Desk

__all__ = ["CancelFlow", "Places", "acancel_all", "cancel_all", "cancelling", "everywhere"]

Places: TypeAlias = dict[int, int]  # by shard: the serial below which to go on
PAGE = 500  # tickets of one shard between two looks at its index

CancelFlow: TypeAlias = Generator[Request[list[Any]], list[Any], BulkResult]


def cancelling(
    desk: "Desk",
    call: str,
    *,
    task: str | None = None,
    key: str | None = None,
    tag: tuple[str, str] | None = None,
    reason: str = "",
    is_dry: bool = False,
    places: Places | None = None,
    rounds_max: int | None = None,
) -> CancelFlow:
    """What is to be asked, one request after the other, and the sum of the answers.

    It begins at `places` (None: everywhere) and keeps them up to date: after `rounds_max` pages of
    each shard they say where to go on, and nothing is left of them when all is done.
    Raises `ConfigError` unless at least one of task, key and tag is given, and for a tag that is
    not indexed.
    """
    check_names(call, task=task, key=key)
    if task is None and key is None and tag is None:
        raise ConfigError(f"{call}(): give task=, key= or tag=: which tickets are to be cancelled")
    if not isinstance(cast(object, reason), str):
        raise ConfigError.option(call, "reason", reason, "use a text")
    tag = None if tag is None else check_tag(desk, call, tag)
    asked = PageOf(
        indexes_of((PENDING, RUNNING), task, key, None, tag),
        NEWEST,
        PAGE,
        task=task,
        key=key,
        tag=tag,
        is_unended=True,
    )
    left = everywhere(desk) if places is None else places
    return _flow(call, asked, reason_text(reason), left, rounds_max, is_dry=is_dry)


def everywhere(desk: "Desk") -> Places:
    """The newest of every shard."""
    return dict.fromkeys(range(desk.runtime.shard_count), NEWEST)


def cancel_all(desk: "Desk", flow: CancelFlow) -> BulkResult:
    """Blocks until all is done."""
    try:
        request = next(flow)
        while True:
            request = flow.send(desk.ask(request))
    except StopIteration as end:
        return cast(BulkResult, end.value)


async def acancel_all(desk: "Desk", flow: CancelFlow) -> BulkResult:
    """The same, awaited."""
    try:
        request = next(flow)
        while True:
            request = flow.send(await desk.aask(request))
    except StopIteration as end:
        return cast(BulkResult, end.value)


def _flow(
    call: str, asked: PageOf, reason: str, left: Places, rounds_max: int | None, *, is_dry: bool
) -> CancelFlow:
    matched = changed = 0
    skipped: Counter[str] = Counter()
    rounds = 0
    while left and rounds != rounds_max:
        rounds += 1
        pages = yield _request(call, [(shard, _below(asked, at)) for shard, at in left.items()])
        parts: dict[int, ShardPage] = dict(zip(left, pages, strict=True))
        matched += sum(len(part.tickets) for part in parts.values())
        below = {shard: part.last for shard, part in parts.items() if part.last is not None}
        left.clear()
        left.update(below)
        if is_dry:
            continue
        asks = [
            (shard, CancelMany(serials, reason))
            for shard, part in parts.items()
            for serials in _commands(part, reason)
        ]
        answers = yield _request(call, asks, OUTCOME_BYTES + len(reason.encode()))
        for (shard, _), answered in zip(asks, answers, strict=True):
            refused = [answer.code for answer in answered if not isinstance(answer, Answer)]
            if "full" in refused:
                raise StorageFull(shard=shard)
            changed += len(answered) - len(refused)
            skipped.update(refused)
    return BulkResult(matched, matched if is_dry else changed, dict(skipped))


def _below(asked: PageOf, before: int) -> PageOf:
    return PageOf(
        asked.indexes,
        before,
        asked.limit,
        task=asked.task,
        key=asked.key,
        tag=asked.tag,
        is_unended=True,
    )


def _commands(part: ShardPage, reason: str) -> list[list[int]]:
    """The serials of a page, as many at a time as one command may write."""
    serials = [ticket.serial for ticket in part.tickets]
    count = max(1, COMMAND_BYTES_MAX // (OUTCOME_BYTES + len(reason.encode())))
    return [serials[first : first + count] for first in range(0, len(serials), count)]


def _request(
    call: str, asks: list[tuple[int, Any]], bytes_each: int = 0
) -> Request[list[list[Answer | Refusal]]]:
    where, _, verb = call.rpartition(".")
    sizes = [bytes_each * len(asked.serials) for _, asked in asks] if bytes_each else ()
    return Request(call, f"{where}.a{verb}", asks, lambda got: got, sizes=sizes)
