"""What a shard sent to others and took from them, as its own records tell it.

Sender and receiver note the same entries, each in its own journal. Held against each other they say
whether every entry arrived, once, and in order (docs/architecture.md, Outbox).
"""

from collections.abc import Sequence
from typing import Any, NamedTuple

from parkade.shard.outbox import NO_PLACE, Place
from parkade.shard.ticket import shard_of
from parkade.store.record import Delivered, Handed, Record

__all__ = ["Sent", "Taken", "Traffic"]


class Sent(NamedTuple):
    """An entry, by the LSN of its cause."""

    lsn: int
    receiver: int
    place: Place
    serial: int


class Taken(NamedTuple):
    """An entry that arrived. `holder`: who answers for it; 0: it was made."""

    lsn: int
    sender: int
    place: Place
    serial: int
    holder: int


class Acknowledged(NamedTuple):
    """The entries for a receiver have arrived, up to this one."""

    lsn: int
    receiver: int
    place: Place


class Traffic:
    """Of one shard, through all its lives."""

    def __init__(self) -> None:
        self.sent: list[Sent] = []
        self.taken: list[Taken] = []
        self.acknowledged: list[Acknowledged] = []

    def note(self, records: Sequence[Record], last_lsn: int, epoch: int, shard_count: int) -> None:
        """Records were applied; `last_lsn` is that of the last."""
        for lsn, record in enumerate(records, last_lsn - len(records) + 1):
            for index, draft in enumerate(getattr(record, "sent", None) or ()):
                receiver = shard_of(draft.part, shard_count)
                self.sent.append(Sent(lsn, receiver, Place(epoch, lsn, index), draft.serial))
            if isinstance(record, Delivered):
                place = Place(record.epoch, record.lsn, record.index)
                serial = record.child if record.draft is None else record.draft.serial
                self.taken.append(Taken(lsn, record.sender, place, serial, record.holder))
            elif isinstance(record, Handed):
                place = Place(record.epoch, record.lsn, record.index)
                self.acknowledged.append(Acknowledged(lsn, record.receiver, place))

    def go_back(self, lsn: int) -> None:
        """Forgets what came after that LSN."""
        for listed in (self.sent, self.taken, self.acknowledged):
            noted: list[Any] = listed
            while noted and noted[-1].lsn > lsn:
                noted.pop()

    def handed(self, receiver: int) -> Place:
        """How far this shard knows its entries to have arrived there."""
        places = [noted.place for noted in self.acknowledged if noted.receiver == receiver]
        return max(places, default=NO_PLACE)
