"""Questions to the host, written once and asked in two ways: blocking, or awaited.

A `Request` is a list of (shard, command or inquiry) and a function that makes the caller's answer
of the shards' answers. It knows nothing of how it is waited for.
"""

import asyncio
from asyncio.events import _get_running_loop  # pyright: ignore[reportPrivateUsage] -- see below
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any, Generic, TypeVar

from parkade.asks import Ask, AwaitEnd, Inquiry, StopWaiting
from parkade.errors import BlockingInEventLoop
from parkade.inbox import Inbox
from parkade.shard.commands import Command, Submit
from parkade.waiters import LoopWaiter, ThreadWaiter

if TYPE_CHECKING:
    from parkade.drive import Drive

__all__ = ["Asker", "Request", "TimeIsUp", "check_not_on_loop", "is_on_loop"]

T = TypeVar("T")


class TimeIsUp(Exception):
    """The answer did not come in time."""


class Request(Generic[T]):
    """`asks`: what goes to which shard. `finish` gets their answers in the same order, on the
    caller's thread. `sizes`: the bytes that each holds at the door and writes, where they may be
    many: of what is submitted, or found out. `door_sizes`: what it holds, where that is not the
    same.
    `takes_errors`: `finish` also gets the errors, each in the place of its shard's answer."""

    __slots__ = ("asks", "call", "door_sizes", "finish", "instead", "sizes", "takes_errors")

    def __init__(
        self,
        call: str,
        instead: str,
        asks: Sequence[tuple[int, Command | Inquiry]],
        finish: Callable[[list[Any]], T],
        *,
        sizes: Sequence[int] = (),
        door_sizes: Sequence[int] = (),
        takes_errors: bool = False,
    ) -> None:
        self.call = call
        self.instead = instead
        self.asks = asks
        self.finish = finish
        self.sizes = sizes
        self.door_sizes = door_sizes or sizes
        self.takes_errors = takes_errors


class Asker:
    """Puts requests to one host."""

    def __init__(
        self, inbox: Inbox, drive: "Drive", check: Callable[[str], None] = lambda call: None
    ) -> None:
        """`check` raises where the thread that calls must not wait for the core thread."""
        self._check = check
        self._inbox = inbox
        self._drive = drive

    def ask(self, request: Request[T], timeout_s: float | None = None) -> T:
        """Blocks until the answer is durable. Raises `BlockingInEventLoop` on a loop's thread,
        `TimeIsUp`, and what the shards answer with."""
        check_not_on_loop(request.call, request.instead)
        return self.ask_here(request, timeout_s)

    def ask_here(self, request: Request[T], timeout_s: float | None = None) -> T:
        """The same on any thread: a loop's is stopped meanwhile."""
        if not request.asks:
            return request.finish([])
        self._check(request.call)
        waiter = ThreadWaiter(len(request.asks))
        if request.sizes:
            valve = self._inbox.valve
            if valve is not None:
                valve.enter(sum(_due_counts(request)))
            self._inbox.enter(sum(request.door_sizes))
        self._put(request, waiter)
        try:
            if not self._drive.wait_for(waiter, timeout_s):
                raise TimeIsUp
        except BaseException:
            self._leave(request, waiter)
            raise
        if waiter.error is not None and not request.takes_errors:
            raise waiter.error
        return request.finish(waiter.values)

    async def aask(self, request: Request[T], timeout_s: float | None = None) -> T:
        """The same, awaited."""
        if not request.asks:
            return request.finish([])
        waiter = LoopWaiter(asyncio.get_running_loop(), len(request.asks))
        if request.sizes:
            valve = self._inbox.valve
            if valve is not None:
                await valve.aenter(sum(_due_counts(request)))
            size = sum(request.door_sizes)
            if not self._inbox.enter_now(size):
                await self._inbox.aenter(size)
        self._put(request, waiter)
        self._drive.stir()
        try:
            if not await waiter.wait(timeout_s):
                raise TimeIsUp
        except BaseException:
            self._leave(request, waiter)
            raise
        if waiter.error is not None and not request.takes_errors:
            raise waiter.error
        return request.finish(waiter.values)

    def _put(self, request: Request[Any], waiter: ThreadWaiter | LoopWaiter) -> None:
        # Who waits for an end has submitted it a moment ago, mostly: it is about to run, and the
        # core thread gives way to that.
        is_patient = len(request.asks) == 1 and type(request.asks[0][1]) is AwaitEnd
        asks = _asks(request, waiter, is_counted=self._inbox.valve is not None)
        self._inbox.put(asks, is_patient=is_patient)

    def _leave(self, request: Request[Any], waiter: ThreadWaiter | LoopWaiter) -> None:
        """The asker is gone: what may wait for years in its name is let go."""
        waiter.is_abandoned = True
        gone = [
            (shard, Ask(StopWaiting(asked.serial)))
            for shard, asked in request.asks
            if isinstance(asked, AwaitEnd)
        ]
        if gone:
            self._inbox.put(gone)


def _asks(
    request: Request[Any], waiter: ThreadWaiter | LoopWaiter, *, is_counted: bool
) -> list[tuple[int, Ask]]:
    sizes = request.sizes or (0,) * len(request.asks)
    door_sizes = request.door_sizes or sizes
    if len(sizes) == 1 and not is_counted:
        ((shard, asked),), (size,), (held,) = request.asks, sizes, door_sizes
        return [(shard, Ask(asked, waiter=waiter, size=size, door_bytes=held))]
    asks = [
        (shard, Ask(asked, waiter=waiter, slot=slot, size=size, door_bytes=held))
        for slot, ((shard, asked), size, held) in enumerate(
            zip(request.asks, sizes, door_sizes, strict=True)
        )
    ]
    if is_counted:
        for (_, ask), count in zip(asks, _due_counts(request), strict=True):
            ask.due_count = count
    return asks


def _due_counts(request: Request[Any]) -> list[int]:
    """How many tickets of each command are due at once."""
    return [
        sum(draft.due_ms <= draft.at_ms for draft in asked.drafts)
        if isinstance(asked, Submit)
        else 0
        for _, asked in request.asks
    ]


def is_on_loop() -> bool:
    """Whether an event loop runs on this thread."""
    # One of the names that `asyncio.events` exports; `get_running_loop` raises, which is dear.
    return _get_running_loop() is not None


def check_not_on_loop(call: str, instead: str) -> None:
    """Raises `BlockingInEventLoop` where a blocking wait would stop an event loop."""
    if is_on_loop():
        raise BlockingInEventLoop(call, instead=instead)
