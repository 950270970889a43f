"""`engine.events(...)`: what somebody listens for, and the events as they are taken."""

from collections.abc import Callable, Collection, Iterator, Sequence
from types import TracebackType
from typing import TYPE_CHECKING, Self

from parkade.asking import check_not_on_loop
from parkade.checks import check_count, check_text
from parkade.events import Event, Note, event_of, kinds_of
from parkade.feed import Feed
from parkade.mailbox import Empty, Mailbox

if TYPE_CHECKING:
    from parkade.runtime import Runtime

__all__ = ["BUFFER_EVENTS", "Subscription", "names_of", "subscribe"]

BUFFER_EVENTS = 10_000


class Subscription:
    """Events, taken one after another: `for` in a thread, `async for` on an event loop.

    Iterating waits for the next event, and ends when the subscription is closed or the engine has
    stopped and all is taken. Breaking off and iterating again goes on behind the last event taken;
    several iterations at a time share the events out. It listens from when it is made until
    `close()`, the end of its `with`, or until nobody holds it.
    """

    def __init__(
        self,
        feed: Feed,
        id_of: Callable[[int, int], str],
        *,
        kinds: frozenset[int],
        tasks: frozenset[str] | None,
        size_max: int,
        is_alone: Callable[[], bool],
    ) -> None:
        self._feed = feed
        self._id_of = id_of
        self._kinds = kinds
        self._tasks = tasks
        self._is_alone = is_alone
        self._missed = 0
        self._mailbox: Mailbox[tuple[int, Note]] = Mailbox(size_max)
        self._replay: Iterator[tuple[int, Note]] = iter(())
        self._behind = 0  # what is put up to this number has been replayed
        self._is_closed = False

    def begin(self, since: int | None) -> Self:
        """Listens from now on; and first to what the ring has above `since`."""
        feed = self._feed
        feed.join(self)
        if since is not None:
            if since > feed.last:
                since = 0  # a number of an earlier open: nothing of this one has been seen
            first, entries = feed.after(since)
            replay = [entry for entry in entries if self._wants(entry[1])]
            self._missed = max(0, first - 1 - since)
            self._behind = replay[-1][0] if replay else 0
            self._replay = iter(replay)
        return self

    @property
    def dropped(self) -> int:
        """How many events were lost: pushed out of the buffer before they were taken, or no longer
        in the ring when this began (those are counted whatever their kind)."""
        return self._missed + self._mailbox.lost

    def __iter__(self) -> "_Iteration":
        return _Iteration(self)

    def __aiter__(self) -> "_Iteration":
        return _Iteration(self)

    def close(self) -> None:
        """Listens no more; iterations end at once. Twice is once."""
        self._is_closed = True
        self._feed.leave(self)
        self._mailbox.shut()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, et: type[BaseException] | None, e: BaseException | None, tb: TracebackType | None
    ) -> None:
        self.close()

    # --------------------------------------------------------------------------- the core thread

    def offer(self, first: int, notes: Sequence[Note]) -> None:
        kinds = self._kinds
        if self._tasks is None:
            found = [entry for entry in enumerate(notes, first) if entry[1][0] in kinds]
        else:
            found = [entry for entry in enumerate(notes, first) if self._wants(entry[1])]
        if found:
            self._mailbox.put(found)

    def end(self) -> None:
        self._mailbox.shut()

    # ------------------------------------------------------------------------------ who iterates

    def _wants(self, note: Note) -> bool:
        return note[0] in self._kinds and (self._tasks is None or note[4] in self._tasks)

    def take(self) -> Event | None:
        """The next event that is there."""
        if self._is_closed:
            return None
        for seq, note in self._replay:
            return event_of(seq, note, self._id_of)
        while True:
            entry = self._mailbox.take()
            if isinstance(entry, Empty):
                return None
            if entry[0] > self._behind:
                return event_of(*entry, self._id_of)

    def wait(self) -> bool:
        """Until there may be one more; False: what is there by now is all."""
        return not self._is_alone() and self._mailbox.wait()

    async def await_one(self) -> bool:
        """`wait` for a coroutine."""
        return await self._mailbox.await_one()

    def check_may_block(self) -> None:
        """Raises `BlockingInEventLoop`."""
        if not self._is_alone():
            check_not_on_loop("for event in engine.events", "async for event in engine.events")


class _Iteration:
    """One `for` or `async for` over a subscription."""

    def __init__(self, subscription: Subscription) -> None:
        self._subscription = subscription

    def __iter__(self) -> Self:
        return self

    def __next__(self) -> Event:
        subscription = self._subscription
        event = subscription.take()
        while event is None:
            subscription.check_may_block()
            is_going_on = subscription.wait()
            event = subscription.take()
            if event is None and not is_going_on:
                raise StopIteration
        return event

    def __aiter__(self) -> Self:
        return self

    async def __anext__(self) -> Event:
        subscription = self._subscription
        event = subscription.take()
        while event is None:
            is_going_on = await subscription.await_one()
            event = subscription.take()
            if event is None and not is_going_on:
                raise StopAsyncIteration
        return event


def subscribe(
    runtime: "Runtime",
    kinds: Collection[str],
    *,
    task: str | None = None,
    since: int | None = None,
    buffer: int = BUFFER_EVENTS,
) -> Subscription:
    """See `Engine.events`."""
    call = "engine.events"
    wanted = kinds_of(call, kinds)
    tasks = None if task is None else names_of(runtime, call, task)
    if since is not None:
        check_count(call, "since", since, least=0)
    subscription = Subscription(
        runtime.host.feed,
        runtime.id_of_parts,
        kinds=wanted,
        tasks=tasks,
        size_max=check_count(call, "buffer", buffer),
        is_alone=runtime.drive.is_alone,
    )
    return subscription.begin(since)


def names_of(runtime: "Runtime", call: str, task: str) -> frozenset[str]:
    """The names under which tickets of a task may be stored. Raises `ConfigError`."""
    found = runtime.tasks.task_of(check_text(call, "task", task))
    return frozenset((task,) if found is None else (found.name, *found.definition.settings.aliases))
