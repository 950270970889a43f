"""Dealing: every row of the old shards, written into the one of the new shards that it belongs to.

Tickets come in the order of their serials, over all old shards together, so that each new store is
filled from its front to its end. What is derived (indexes, agenda, counters) is made anew from the
heads; a ticket that waits in its lane's rows waits in the agenda, and is found there as at any
open. Nothing is decided here, and no ticket is changed.
"""

import heapq
from collections.abc import Callable, Iterator, Sequence
from typing import TypeVar

import msgspec

from parkade.index_keys import index_keys, task_digest, task_prefix
from parkade.limits import RESHARD_BATCH_BYTES
from parkade.shard import encode_lane
from parkade.shard.commands import UniqueRow
from parkade.shard.lanes import LaneKey
from parkade.shard.retry import expiry_of
from parkade.shard.states import PENDING, RUNNING
from parkade.shard.ticket import HeadDamage, Ticket, decode_ticket, shard_of
from parkade.store.batch import Batch, Claim, pack_ended
from parkade.store.entry import EXPIRY, pack_entry
from parkade.store.errors import Damage
from parkade.store.meta import Memo
from parkade.store.outbox import pack_place, unpack_place
from parkade.store.parked import Parked
from parkade.store.record import Submitted
from parkade.store.snapshot import Snapshot
from parkade.store.walk import RowsOfTickets, claims_of, heads_of, outbox_of

__all__ = ["Deal", "deal"]

ROW_BYTES = 500  # what the rows of a ticket take in memory beside their content, about
T = TypeVar("T")
_decode_unique = msgspec.msgpack.Decoder(UniqueRow).decode
_decode_draft = msgspec.msgpack.Decoder(Submitted).decode

Told = Callable[[int], None]
"""Hears how many tickets have been dealt."""


class Deal(msgspec.Struct, frozen=True):
    """What all new shards start from: an LSN and an epoch that none of the old ones has passed."""

    lsn: int
    epoch: int
    now_ms: int
    settled_ms: int


def deal(old: Sequence[Snapshot], fresh: Sequence[Parked], start: Deal, told: Told) -> None:
    """Writes all of the old shards into the new stores, which are empty.

    Raises `RowDamaged` and `Damage` for a row of the old ones that cannot be read, and what a
    commit raises.
    """
    table = _Table(fresh, start)
    table.keep_memos([snapshot.memo() for snapshot in old])
    others = [RowsOfTickets(snapshot) for snapshot in old]
    for count, (serial, head, place) in enumerate(_in_order(old)):
        if count & 1023 == 0:
            told(count)
        table.put_ticket(serial, head, others[place])
    for rows in others:
        rows.check_all_reached()
    for snapshot in old:
        for name, claim in claims_of(snapshot):
            table.put_claim(name, claim, snapshot.path)
    table.put_outboxes(old)
    table.commit_all()


def _in_order(old: Sequence[Snapshot]) -> Iterator[tuple[int, bytes, int]]:
    """(serial, head, number of its shard) of every ticket."""

    def of(place: int) -> Iterator[tuple[int, bytes, int]]:
        return ((serial, head, place) for serial, head in heads_of(old[place]))

    return heapq.merge(*(of(place) for place in range(len(old))))


class _Hand:
    """What one new shard has been dealt, and its store does not have yet."""

    def __init__(self, store: Parked, start: Deal) -> None:
        self.store = store
        self.size_bytes = 0
        self.counters: dict[tuple[str, int], int] = {}
        self.memo = Memo()
        self._start = start
        self._lanes: dict[LaneKey, int] = {}
        self.batch = self._new_batch()

    def _new_batch(self) -> Batch:
        start = self._start
        return Batch(start.lsn, start.epoch, start.now_ms, start.settled_ms, {}, self.memo)

    def lane_number(self, lane: LaneKey) -> int:
        number = self._lanes.get(lane)
        if number is None:
            number = self._lanes[lane] = len(self._lanes) + 1
            self.batch.lane_names[number] = encode_lane(lane)
        return number

    def commit(self) -> None:
        self.batch.counters, self.batch.memo = dict(self.counters), self.memo
        self.store.commit(self.batch)
        self.batch, self.size_bytes = self._new_batch(), 0


class _Table:
    """All new shards."""

    def __init__(self, fresh: Sequence[Parked], start: Deal) -> None:
        self.hands = [_Hand(store, start) for store in fresh]
        self._epoch = start.epoch

    def hand(self, part: int) -> _Hand:
        return self.hands[shard_of(part, len(self.hands))]

    def keep_memos(self, memos: Sequence[Memo]) -> None:
        """Every new shard remembers what any of the old ones did; what was counted is counted by
        the first."""
        keeps_ms: dict[str, int] = {}
        for memo in memos:
            for task, keep_ms in memo.keeps_ms.items():
                keeps_ms[task] = max(keep_ms, keeps_ms.get(task, 0))
        for number, hand in enumerate(self.hands):
            forgotten = 0 if number else sum(memo.done_forgotten for memo in memos)
            hand.memo = Memo(forgotten, keeps_ms)

    def put_ticket(self, serial: int, head: bytes, others: RowsOfTickets) -> None:
        ticket = _ticket(serial, head, others.snapshot.path)
        body, history = others.of(serial)
        hand = self.hand(ticket.part)
        batch = hand.batch
        batch.heads[serial] = head
        if body is not None:
            batch.bodies[serial] = body
        for fence, row in history:
            batch.history[serial, fence] = row
        batch.listed[task_prefix(ticket.task, ticket.state)].append(serial)
        batch.index_puts += index_keys(serial.to_bytes(8, "big"), ticket, ticket.group)
        if ticket.state == PENDING:
            _place(hand, ticket)
        elif ticket.state != RUNNING:
            digest = task_digest(ticket.task)
            batch.ended.append(pack_ended(ticket.state, digest, ticket.finished_ms, serial))
        name = (ticket.task, ticket.state)
        hand.counters[name] = hand.counters.get(name, 0) + 1
        hand.size_bytes += len(head) + len(body or b"") + ROW_BYTES
        hand.size_bytes += sum(len(row) for _, row in history)
        self.make_room()

    def put_claim(self, name: bytes, claim: Claim, path: str) -> None:
        hand = self.hand(_decoded(_decode_unique, claim.row, path, "uniques").part)
        hand.batch.uniques[name] = claim
        hand.size_bytes += len(claim.row) + ROW_BYTES
        self.make_room()

    def put_outboxes(self, old: Sequence[Snapshot]) -> None:
        """What is under way between shards goes on, each entry from the shard that it is for: in
        the order of its old sender, and only those that have not arrived."""
        taken = [snapshot.taken() for snapshot in old]
        number = 0
        for sender, snapshot in enumerate(old):
            for key, row in outbox_of(snapshot):
                receiver, place = unpack_place(key)
                if place <= taken[receiver].get(sender, (0, 0, 0)):
                    continue
                number += 1
                draft = _decoded(_decode_draft, row, snapshot.path, "outbox")
                to = shard_of(draft.part, len(self.hands))
                hand = self.hands[to]
                hand.batch.outbox[pack_place(to, (self._epoch, number, 0))] = row
                hand.size_bytes += len(row) + ROW_BYTES
                self.make_room()

    def make_room(self) -> None:
        """Commits the fullest hand, when all together hold more than they may."""
        if sum(hand.size_bytes for hand in self.hands) >= RESHARD_BATCH_BYTES:
            max(self.hands, key=lambda hand: hand.size_bytes).commit()

    def commit_all(self) -> None:
        for hand in self.hands:
            hand.commit()


def _decoded(decode: Callable[[bytes], T], row: bytes, path: str, table: str) -> T:
    try:
        return decode(row)
    except msgspec.MsgspecError as error:
        raise Damage(path, 0, f"a row of table {table} is none: {error}") from error


def _ticket(serial: int, head: bytes, path: str) -> Ticket:
    try:
        ticket = decode_ticket(head)
    except HeadDamage as error:
        raise Damage(path, 0, f"the head of serial {serial} is no ticket: {error}") from error
    if ticket.serial != serial:
        raise Damage(path, 0, f"the head of serial {serial} is that of {ticket.serial}")
    return ticket


def _place(hand: _Hand, ticket: Ticket) -> None:
    """Its entry in the agenda, and the one at its `expires`."""
    serial, first_due_ms = ticket.serial, ticket.first_due_ms
    number = hand.lane_number(ticket.lane)
    agenda = hand.batch.agenda
    agenda.append(pack_entry(ticket.due_ms, serial, first_due_ms, number))
    expiry_ms = expiry_of(ticket)
    if expiry_ms is not None:
        agenda.append(pack_entry(expiry_ms, serial, first_due_ms, number, EXPIRY))
