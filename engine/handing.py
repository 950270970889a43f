"""Hand-overs between shards: what a shard has in its outbox, brought to whom it is for.

For each receiver one batch is under way at a time, in order, and only of entries whose records are
durable. When the receiver has it on disk, this shard notes that (Handed), and the next one goes. A
receiver that is recovered, and a shard that is, begin again at the first entry that is not Handed;
what comes a second time is passed over. Entries for a shard that is not open wait
(docs/architecture.md, Outbox).
"""

from collections.abc import Callable
from typing import TYPE_CHECKING, Any, NamedTuple

from parkade import limits
from parkade.asks import Ask
from parkade.draft_sizes import draft_bytes
from parkade.reading import OutboxRead
from parkade.shard.commands import Deliver, Hand
from parkade.shard.outbox import NO_PLACE, Place
from parkade.store.record import Submitted

if TYPE_CHECKING:
    from parkade.shard_host import ShardHost

__all__ = ["Handing", "Left"]


class Left(NamedTuple):
    """Entries for a receiver that have not arrived: those in memory by serial, the first of them,
    and whether there are more behind them."""

    places: dict[int, Place]
    first: Place
    has_more: bool

    def may_have(self, serial: int, place: Place) -> bool:
        """Whether the ticket may be one of them, from before that place."""
        if serial in self.places:
            return self.places[serial] < place
        return self.has_more and self.first < place


class Handing:
    """Of one shard, for as long as its memory; used by the core thread alone."""

    def __init__(self, shard: "ShardHost") -> None:
        self._shard = shard
        self._core = shard.core
        self._under_way: dict[int, int] = {}  # receiver -> how often its shard had been recovered
        self._arrived: dict[int, Place] = {}
        self._reading: set[int] = set()
        self._retry_at_ms: dict[int, int] = {}
        # What was there from before: nothing starts until it is where it belongs.
        self._from_before = {*self._core.outbox.windows, *self._core.outbox.beyond}

    @property
    def is_busy(self) -> bool:
        """Whether an entry is under way, or can go."""
        outbox = self._core.outbox
        return any(self._receiver(number) for number in (*outbox.windows, *outbox.beyond))

    @property
    def is_behind(self) -> bool:
        """Whether entries that were there when the shard was opened have not arrived yet, though
        they can."""
        self._from_before = {
            receiver
            for receiver in self._from_before
            if self._receiver(receiver) and self._has_older(receiver)
        }
        return bool(self._from_before)

    def _has_older(self, receiver: int) -> bool:
        """Entries are in order; of those that memory does not hold yet it is not known."""
        outbox, arrived = self._core.outbox, self._arrived.get(receiver, NO_PLACE)
        for place in outbox.windows.get(receiver, ()):
            if place > arrived:
                return place.epoch < self._core.epoch
        return receiver in outbox.beyond

    @property
    def durable_place(self) -> Place:
        """Behind all entries whose cause may have been told to anybody by now."""
        return Place(self._core.epoch, self._shard.durable_lsn + 1, 0)

    def left_for(self, receiver: int) -> "Left":
        """What has not arrived there yet."""
        outbox, arrived = self._core.outbox, self._arrived.get(receiver, NO_PLACE)
        window = outbox.windows.get(receiver, {})
        left = {draft.serial: place for place, draft in window.items() if place > arrived}
        return Left(left, next(iter(left.values()), NO_PLACE), receiver in outbox.beyond)

    def next_ms(self) -> int | None:
        """When, on the monotonic clock, to try again what failed."""
        return min(self._retry_at_ms.values()) if self._retry_at_ms else None

    def step(self) -> None:
        """Sends what can be sent, and has more read where memory has little left."""
        outbox = self._core.outbox
        if not outbox.windows and not outbox.beyond:
            return
        for receiver in [*outbox.windows]:
            self._send(receiver)
        for receiver in [*outbox.beyond]:
            if outbox.wants_refill(receiver) and self._receiver(receiver) is not None:
                self._refill(receiver)

    def restart(self, receiver: int) -> None:
        """The receiver was recovered: it may lack what was on its way."""
        self._under_way.pop(receiver, None)
        self._arrived.pop(receiver, None)
        self._retry_at_ms.pop(receiver, None)
        self._from_before.add(receiver)
        self.step()

    def _receiver(self, number: int) -> "ShardHost | None":
        shard = self._shard.host.shard(number)
        return shard if shard is not None and shard.is_open else None

    def _send(self, number: int) -> None:
        shard, receiver = self._shard, self._receiver(number)
        if number in self._under_way or receiver is None:
            return
        if shard.host.mono_ms < self._retry_at_ms.get(number, 0):
            return
        entries, size = self._batch(number)
        if not entries:
            return
        self._retry_at_ms.pop(number, None)
        life = self._under_way[number] = receiver.recoveries
        last = entries[-1][0]
        ask = Ask(Deliver(shard.number, entries), then=self._then(number, life, last), size=size)
        receiver.put(ask)

    def _batch(self, number: int) -> tuple[list[tuple[Place, Submitted]], int]:
        """The first entries that are durable and have not arrived, and their bytes."""
        durable_lsn, epoch = self._shard.durable_lsn, self._core.epoch
        arrived = self._arrived.get(number, NO_PLACE)
        entries: list[tuple[Place, Submitted]] = []
        total = 0
        for place, draft in self._core.outbox.windows[number].items():
            if place <= arrived:
                continue
            if place.epoch == epoch and place.lsn > durable_lsn:
                break
            size = draft_bytes(draft)
            if entries and total + size > limits.COMMAND_BYTES_MAX:
                break
            entries.append((place, draft))
            total += size
        return entries, total

    def _then(
        self, number: int, life: int, last: Place
    ) -> Callable[[Any, BaseException | None], None]:
        def then(answers: Any, error: BaseException | None) -> None:
            shard = self._shard
            if shard.handing is not self or self._under_way.get(number) != life:
                return  # this shard, or the other, has begun again since
            del self._under_way[number]
            if not shard.is_open:
                return
            if error is not None:
                if self._receiver(number) is None:
                    return
                self._retry_at_ms[number] = shard.host.mono_ms + limits.HAND_RETRY_MS
                return
            self._arrived[number] = last
            self._stir(number)
            shard.put(Ask(Hand(number, last), size=limits.OUTCOME_BYTES))
            self.step()

        return then

    def _stir(self, number: int) -> None:
        """Somebody may wait there for what has arrived."""
        receiver = self._receiver(number)
        if receiver is not None and receiver.arrivals.is_awaited:
            receiver.is_stirred = True

    def _refill(self, number: int) -> None:
        if number in self._reading:
            return
        self._reading.add(number)
        shard, after = self._shard, self._core.outbox.last(number)
        reader = shard.reader

        def done(got: OutboxRead) -> None:
            self._reading.discard(number)
            if not shard.is_stale(got.snapshot_commit):
                self._core.outbox.refill(number, got.entries, is_end=got.is_end)
                self._stir(number)
            self.step()

        shard.read(lambda: reader.outbox(number, after, limits.OUTBOX_READ_MAX), done)
