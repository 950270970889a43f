"""Plain submits that coroutines make in one turn of their loop go to a shard as one command.

Hundreds of tasks that await their tickets wake in the same turn and submit the next: each alone
would be a command, a waiter and a wake-up, and spread over all shards they would be a frame, a sync
and a thread that wakes for each shard. The first has the loop send what has gathered when the turn
is over, to one shard where nothing speaks against it.
"""

import asyncio
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from typing import TYPE_CHECKING, Any, TypeAlias

from parkade.asks import Ask
from parkade.calls import Call
from parkade.draft_sizes import DRAFT_BYTES, cut, draft_bytes
from parkade.inbox import Inbox
from parkade.shard.commands import AllCreated, Submit
from parkade.store.record import Submitted
from parkade.waiters import LoopWaiter

if TYPE_CHECKING:
    from parkade.drive import Drive
    from parkade.ticket import Ticket

__all__ = ["LoopSubmits"]

TOGETHER_MAX = 256  # so many go to one shard: thousands are spread over all of them

_Gathered: TypeAlias = "tuple[Call[Any], asyncio.Future[Ticket[Any]]]"
_Drafted: TypeAlias = "tuple[Submitted, Call[Any], asyncio.Future[Ticket[Any]]]"


class LoopSubmits:
    """Each method on the loop that it is about. `drafts_of` makes drafts of calls, or raises for
    the first that cannot be one; `outcome_of` makes a ticket or an error of a shard's answer."""

    def __init__(
        self,
        inbox: Inbox,
        drive: "Drive",
        shard_count: int,
        *,
        drafts_of: Callable[[Sequence[Call[Any]]], list[Submitted]],
        created: Callable[[Call[Any], Submitted], "Ticket[Any]"],
        outcome_of: Callable[[Submitted, Any, Any], "Ticket[Any] | Exception"],
    ) -> None:
        self._inbox = inbox
        self._drive = drive
        self._shard_count = shard_count
        self._drafts_of = drafts_of
        self._created = created
        self._outcome_of = outcome_of
        self._gathered: dict[asyncio.AbstractEventLoop, list[_Gathered]] = {}
        self._held_back: set[asyncio.Task[None]] = set()

    def add(self, call: Call[Any]) -> "asyncio.Future[Ticket[Any]]":
        """To be awaited. Who gives up waiting changes nothing for the ticket."""
        loop = asyncio.get_running_loop()
        gathered = self._gathered.get(loop)
        if gathered is None:
            gathered = self._gathered[loop] = []
            loop.call_soon(self.send, loop)
        future: asyncio.Future[Ticket[Any]] = loop.create_future()
        gathered.append((call, future))
        return future

    def send(self, loop: asyncio.AbstractEventLoop) -> None:
        """What has gathered by now; nothing, if that was sent already."""
        gathered = self._gathered.pop(loop, [])
        try:
            self._send(loop, gathered)
        except BaseException as error:  # a signal handler's: nobody would answer them
            for _, future in gathered:
                _give(future, error)
            raise

    def _send(self, loop: asyncio.AbstractEventLoop, gathered: Sequence[_Gathered]) -> None:
        by_shard: dict[int, list[_Drafted]] = {}
        for together in _pieces(gathered):
            for one in self._drafted(together):
                by_shard.setdefault(one[0].part % self._shard_count, []).append(one)
        asks = [
            (shard, ask) for shard, drafted in by_shard.items() for ask in self._asks(loop, drafted)
        ]
        let_in: list[tuple[int, Ask]] = []
        rest: list[tuple[int, Ask]] = []
        for shard, ask in asks:
            (let_in if self._inbox.enter_now(ask.size) else rest).append((shard, ask))
        if let_in:
            self._inbox.put(let_in)
        if rest:
            task = loop.create_task(self._send_in_time(rest))
            self._held_back.add(task)
            task.add_done_callback(self._held_back.discard)
        self._drive.stir()

    async def _send_in_time(self, asks: Sequence[tuple[int, Ask]]) -> None:
        """At the door of the engine, which is full."""
        for shard, ask in asks:
            await self._inbox.aenter(ask.size)
            self._inbox.put([(shard, ask)])
            self._drive.stir()

    def _drafted(self, gathered: Sequence[_Gathered]) -> list[_Drafted]:
        """Those that have drafts; the rest have heard why not, and cost the others nothing."""
        try:
            drafts = self._drafts_of([call for call, _ in gathered])
        except Exception as error:
            if len(gathered) == 1:
                _give(gathered[0][1], error)
                return []
            return [made for one in gathered for made in self._drafted([one])]
        return [
            (draft, call, future) for draft, (call, future) in zip(drafts, gathered, strict=True)
        ]

    def _asks(self, loop: asyncio.AbstractEventLoop, drafted: Sequence[_Drafted]) -> list[Ask]:
        """Each of a bounded size."""
        sizes = [draft_bytes(draft) for draft, _, _ in drafted]
        return [
            self._ask(loop, drafted[begin:end], sum(sizes[begin:end])) for begin, end in cut(sizes)
        ]

    def _ask(self, loop: asyncio.AbstractEventLoop, drafted: Sequence[_Drafted], size: int) -> Ask:
        waiter = LoopWaiter(loop)
        waiter.future.add_done_callback(partial(self._tell, waiter, drafted))
        command = Submit([draft for draft, _, _ in drafted], None)
        return Ask(command, waiter=waiter, size=size, door_bytes=size)

    def _tell(
        self, waiter: LoopWaiter, drafted: Sequence[_Drafted], _: "asyncio.Future[bool]"
    ) -> None:
        try:
            self._tell_all(waiter, drafted)
        except BaseException:  # a signal handler's: the rest would wait for ever
            self._tell_all(waiter, drafted)
            raise

    def _tell_all(self, waiter: LoopWaiter, drafted: Sequence[_Drafted]) -> None:
        answers = waiter.values[0]
        if waiter.error is None and type(answers) is AllCreated:
            created = self._created
            for draft, call, future in drafted:
                if not future.done():
                    future.set_result(created(call, draft))
            return
        for place, (draft, call, future) in enumerate(drafted):
            answer = waiter.error if waiter.error is not None else answers[place]
            _give(future, self._outcome_of(draft, answer, call.bound))


def _pieces(gathered: Sequence[_Gathered]) -> Iterator[Sequence[_Gathered]]:
    """What may go to one shard together."""
    for first in range(0, len(gathered), TOGETHER_MAX):
        piece = gathered[first : first + TOGETHER_MAX]
        for begin, end in cut([len(call.payload) + DRAFT_BYTES for call, _ in piece]):
            yield piece[begin:end]


def _give(future: "asyncio.Future[Any]", outcome: Any) -> None:
    if future.done():
        return
    if isinstance(outcome, BaseException):
        future.set_exception(outcome)
    else:
        future.set_result(outcome)
