"""Inquiries of one shard on the core thread: answered now, once the store was read, or at an end.

What memory and store say is made into answers in `parkade.inquiring`; here is who waits for them.
"""

from collections import deque
from collections.abc import Callable, Iterable
from typing import TYPE_CHECKING, Any

from parkade import inquiring
from parkade.asks import Ask, AwaitEnd, Explain, Inquiry, Seen, StopWaiting
from parkade.inquiring import FromStore, NotEnded
from parkade.shard.commands import Command, Loaded, Need, Verdict
from parkade.shard.states import PENDING, RUNNING
from parkade.store.record import CancelRequested, Record

if TYPE_CHECKING:
    from parkade.shard_host import ShardHost

__all__ = ["Answering", "stop_attempts"]


class Answering:
    """Used by the core thread alone. Those who wait for an end are in the shard's `awaiting`."""

    def __init__(self, shard: "ShardHost") -> None:
        self._shard = shard
        self._aliases: dict[int, int] = {}  # ids that were asked about -> whose end is awaited

    def keeps(self, ask: Ask, asked: AwaitEnd) -> bool:
        """Whether the end that is asked for is one that memory knows to be outstanding: then there
        is nothing to do but to wait, and no turn for it."""
        shard, serial = self._shard, asked.serial
        ticket = shard.core.memory.hot.get(serial)
        if ticket is None or ticket.state not in (PENDING, RUNNING) or ask.is_abandoned:
            return False
        shard.awaiting.setdefault(serial, []).append(ask)
        return True

    def inquire(self, ask: Ask, asked: Inquiry, loaded: Loaded | None) -> None:
        """Answers, or sees to it that somebody will."""
        shard = self._shard
        if isinstance(asked, StopWaiting):
            self._stop_waiting(asked.serial)
            return
        found = inquiring.answer(shard.core, asked, loaded, shard.host.settled_ms)
        if type(found) is Seen:
            self._tell_seen(ask, asked, found)
            return
        if found is None and shard.arrivals.holds(ask):
            return
        if isinstance(found, Need):
            shard.waiting.append((ask, found))
        elif isinstance(found, NotEnded):
            if not ask.is_abandoned:
                if isinstance(asked, AwaitEnd) and asked.serial != found.serial:
                    self._aliases[asked.serial] = found.serial
                shard.awaiting.setdefault(found.serial, []).append(ask)
        elif isinstance(found, FromStore):
            self._ask_store(ask, found)
        else:
            shard.hold(ask, found)

    def _tell_seen(self, ask: Ask, asked: Inquiry, seen: Seen) -> None:
        shard = self._shard
        if type(asked) is Explain and shard.explain is not None:
            shard.explain(shard, ask, seen.ticket)
        else:
            progress = shard.progress
            shard.hold(ask, seen if progress is None else progress.shown(shard.number, seen))

    def inquire_first(self, asks: deque[Ask]) -> None:
        """Answers those that only look: they write nothing, so on a full disk they need not wait
        behind what has no room."""
        looking = [ask for ask in asks if isinstance(ask.asked, Inquiry)]
        if looking:
            writing = [ask for ask in asks if not isinstance(ask.asked, Inquiry)]
            asks.clear()
            asks.extend(writing)
        for ask in looking:
            self._shard.decide(ask)

    def tell_awaiting(self, records: Iterable[Record]) -> None:
        """Some of those who wait may have their end now."""
        awaiting = self._shard.awaiting
        for record in records:
            serial = getattr(record, "serial", None)
            if serial in awaiting:
                for ask in awaiting.pop(serial):
                    self.inquire(ask, AwaitEnd(serial), None)
                if self._aliases:
                    self._aliases = {a: of for a, of in self._aliases.items() if of in awaiting}

    def _ask_store(self, ask: Ask, found: FromStore) -> None:
        shard = self._shard
        reader, core = shard.reader, shard.core

        def done(got: Any, error: Exception | None) -> None:
            if not shard.is_open or core is not shard.core:
                shard.put(ask)
                return
            try:
                if error is not None:
                    raise error
                self._finish(ask, found, got)
            except Exception as failure:
                # Nobody else knows of the ask: whoever waits would wait for ever.
                shard.fail_one(ask, shard.host.failure(shard.number, failure))

        shard.io.read(lambda: found.work(reader), done)

    def _finish(self, ask: Ask, found: FromStore, got: Any) -> None:
        shard = self._shard
        if shard.is_stale(got.snapshot_commit):
            if found.stands_alone:
                self._ask_store(ask, found)
            else:
                shard.put(ask)
            return
        value = found.finish(shard.core, got)
        if value is inquiring.AGAIN:
            shard.put(ask)
        elif isinstance(value, FromStore):
            self._ask_store(ask, value)
        else:
            shard.hold(ask, value)

    def _stop_waiting(self, serial: int) -> None:
        """Some of those who waited for this end have gone."""
        awaiting = self._shard.awaiting
        serial = self._aliases.get(serial, serial)
        left = [ask for ask in awaiting.pop(serial, ()) if not ask.is_abandoned]
        if left:
            awaiting[serial] = left


def stop_attempts(
    shard: "ShardHost", stop: Callable[[int, int, str], None], asked: Command, verdict: Verdict
) -> None:
    """Attempts hear that they are to stop once that is durable, like any answer."""
    requests = [record for record in verdict.records if type(record) is CancelRequested]
    if not requests:
        return

    def told(_: Any, error: BaseException | None) -> None:
        for request in requests if error is None else ():
            stop(request.serial, request.fence, request.reason)

    shard.hold(Ask(asked, then=told), None)
