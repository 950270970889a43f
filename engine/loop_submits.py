"""Plain submits that coroutines make in one turn of their loop go to a shard as one command.

Hundreds of tasks that await their tickets wake in the same turn and submit the next: each alone
would be a command, a waiter and a wake-up. The first has the loop send what has gathered
when the turn is over.
"""

import asyncio
from collections.abc import Callable, Sequence
from functools import partial
from typing import TYPE_CHECKING, Any

from parkade.asks import Ask
from parkade.calls import Call
from parkade.draft_sizes import cut, draft_bytes
from parkade.inbox import Inbox
from parkade.shard.commands import AllCreated, Submit
from parkade.store.record import Submitted
from parkade.waiters import LoopWaiter

if TYPE_CHECKING:
    from parkade.drive import Drive
    from parkade.ticket import Ticket

__all__ = ["LoopSubmits"]


class Entry:
    """A submit, and who awaits its ticket."""

    __slots__ = ("call", "draft", "future")

    draft: Submitted

    def __init__(self, call: Call[Any], future: "asyncio.Future[Ticket[Any]]") -> None:
        self.call = call
        self.future = future


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
        self._gathered: dict[asyncio.AbstractEventLoop, list[Entry]] = {}
        self._held_back: set[asyncio.Task[None]] = set()

    def add(self, call: Call[Any]) -> "asyncio.Future[Ticket[Any]]":
        """To be awaited. Who gives up waiting changes nothing for the ticket."""
        loop = asyncio.get_running_loop()
        gathered = self._gathered.get(loop)
        if gathered is None:
            gathered = self._gathered[loop] = []
            loop.call_soon(self.send, loop)
        entry = Entry(call, loop.create_future())
        gathered.append(entry)
        return entry.future

    def send(self, loop: asyncio.AbstractEventLoop) -> None:
        """What has gathered by now; nothing, if that was sent already."""
        by_shard: dict[int, list[Entry]] = {}
        for entry in self._drafted(self._gathered.pop(loop, ())):
            by_shard.setdefault(entry.draft.part % self._shard_count, []).append(entry)
        asks = [
            (shard, ask) for shard, entries in by_shard.items() for ask in self._asks(loop, entries)
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

    def _drafted(self, entries: Sequence[Entry]) -> Sequence[Entry]:
        """Those that have drafts; the rest have heard why not, and cost the others nothing."""
        try:
            drafts = self._drafts_of([entry.call for entry in entries])
        except Exception as error:
            if len(entries) == 1:
                _give(entries[0].future, error)
                return []
            return [made for entry in entries for made in self._drafted([entry])]
        for entry, draft in zip(entries, drafts, strict=True):
            entry.draft = draft
        return entries

    def _asks(self, loop: asyncio.AbstractEventLoop, entries: Sequence[Entry]) -> list[Ask]:
        """Each of a bounded size."""
        sizes = [draft_bytes(entry.draft) for entry in entries]
        return [
            self._ask(loop, entries[begin:end], sum(sizes[begin:end])) for begin, end in cut(sizes)
        ]

    def _ask(self, loop: asyncio.AbstractEventLoop, entries: Sequence[Entry], size: int) -> Ask:
        waiter = LoopWaiter(loop)
        waiter.future.add_done_callback(partial(self._tell, waiter, entries))
        command = Submit([entry.draft for entry in entries], None)
        return Ask(command, waiter=waiter, size=size, door_bytes=size)

    def _tell(
        self, waiter: LoopWaiter, entries: Sequence[Entry], _: "asyncio.Future[bool]"
    ) -> None:
        answers = waiter.values[0]
        if waiter.error is None and type(answers) is AllCreated:
            created = self._created
            for entry in entries:
                if not entry.future.done():
                    entry.future.set_result(created(entry.call, entry.draft))
            return
        for place, entry in enumerate(entries):
            answer = waiter.error if waiter.error is not None else answers[place]
            _give(entry.future, self._outcome_of(entry.draft, answer, entry.call.bound))


def _give(future: "asyncio.Future[Any]", outcome: Any) -> None:
    if future.done():
        return
    if isinstance(outcome, BaseException):
        future.set_exception(outcome)
    else:
        future.set_result(outcome)
