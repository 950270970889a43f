"""All that one committed store of a shard holds, read once, for laws to look at."""

from collections import Counter
from dataclasses import dataclass

import msgspec

from kit.model import PENDING
from parkade.index_keys import index_keys, task_prefix
from parkade.keeping import COUNTED
from parkade.shard.check import StoreView
from parkade.shard.commands import UniqueRow
from parkade.shard.history import AttemptRow, decode_attempt
from parkade.shard.lane import decode_lane
from parkade.shard.outbox import Place
from parkade.shard.retry import expiry_of
from parkade.shard.ticket import Ticket, decode_ticket
from parkade.store.entry import EXPIRY, NEGATIVE, unpack_entry
from parkade.store.outbox import unpack_place
from parkade.store.parked import ParkedReader
from parkade.store.record import Submitted
from parkade.store.snapshot import Snapshot
from parkade.store.sweep import AgendaReader
from parkade.store.verify import HeadFacts, verify

__all__ = ["StoreImage"]

ALL = 1 << 20
_decode_row = msgspec.msgpack.Decoder(UniqueRow).decode
_decode_draft = msgspec.msgpack.Decoder(Submitted).decode


@dataclass
class StoreImage:
    """All that one committed store holds."""

    lsn: int
    heads: dict[int, Ticket]
    bodies: dict[int, bytes]
    bookmarks: dict[int, bytes]
    attempts: dict[int, dict[int, AttemptRow]]
    rows: dict[bytes, UniqueRow]
    outbox: dict[tuple[int, Place], Submitted]
    view: StoreView

    @classmethod
    def of(cls, store: ParkedReader) -> "StoreImage":
        """Reads it, and asserts that its tables agree with each other."""
        with store.snapshot() as snapshot:
            problems = list(verify(snapshot, _facts, deep=True))
            assert not problems, problems
            serials = snapshot.serials(before=1 << 64, limit=ALL)
            found = snapshot.heads(serials).found
            heads = {serial: decode_ticket(head) for serial, head in found.items()}
            bodies = {s: body[1:] for s, body in snapshot.bodies(serials).found.items()}
            marks = {serial: snapshot.bookmark(serial) for serial in serials}
            bookmarks = {serial: mark for serial, mark in marks.items() if mark is not None}
            attempts = {
                serial: {fence: decode_attempt(row) for fence, row in snapshot.history(serial)}
                for serial in serials
            }
            names = [bytes(key) for key, _ in snapshot.transaction.cursor(snapshot.tables.uniques)]
            rows = {name: _decode_row(row) for name in names if (row := snapshot.unique(name))}
            outbox = {
                (receiver, Place(*place)): _decode_draft(row)
                for key, row in snapshot.outbox(limit=ALL)
                for receiver, place in [unpack_place(key)]
            }
            view = _view(snapshot, heads)
            return cls(snapshot.lsn, heads, bodies, bookmarks, attempts, rows, outbox, view)


def _view(snapshot: Snapshot, heads: dict[int, Ticket]) -> StoreView:
    agenda: Counter[tuple[int, int, int, int]] = Counter()
    marks: Counter[tuple[int, int]] = Counter()
    reader = AgendaReader(snapshot.transaction, snapshot.tables.agenda, snapshot.path)
    for entries in reader.walk(ALL):
        for entry in map(unpack_entry, entries):
            assert not entry.flags & NEGATIVE, ("a removal of nothing", entry)
            if entry.flags & EXPIRY:
                marks[entry.due_ms, entry.serial] += 1
            else:
                agenda[entry[:4]] += 1
    pending = Counter(ticket.lane for ticket in heads.values() if ticket.state == PENDING)
    lane_names = {n: decode_lane(name) for n, name in snapshot.lane_names().items()}
    idle = snapshot.idle_lanes()
    assert idle is None or idle == {n for n, lane in lane_names.items() if not pending[lane]}
    rows = {
        (lane_number, row.first_due_ms, row.serial): 1
        for lane_number in snapshot.lane_names()
        for row in snapshot.lane_rows(lane_number, limit=ALL)
    }
    waits = {
        (key, lane_number, row.first_due_ms, row.serial): 1
        for key, lane_number in snapshot.wait_queues()
        for row in snapshot.wait_rows(key, lane_number, limit=ALL)
    }
    return StoreView(heads, agenda, marks, rows, waits=waits)


def _facts(serial: int, head: bytes) -> HeadFacts:
    ticket = decode_ticket(head)
    is_pending = ticket.state == PENDING
    return HeadFacts(
        task=ticket.task,
        state=ticket.state,
        is_pending=is_pending,
        due_ms=ticket.due_ms,
        first_due_ms=ticket.first_due_ms,
        expiry_ms=expiry_of(ticket) if is_pending else None,
        key=ticket.key,
        ended_ms=ticket.finished_ms if ticket.state in COUNTED else None,
        listed_under=task_prefix(ticket.task, ticket.state),
        index_keys=tuple(index_keys(serial.to_bytes(8, "big"), ticket, ticket.group)),
    )
