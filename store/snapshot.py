"""What the store holds at one LSN: heads, bodies, sweeps, pages of listings. Changes nothing.

A snapshot is short: while it is open the store cannot reuse the pages it sees, and cannot grow.
Everything it returns is a copy and outlives it.
"""

import struct
from collections.abc import Collection, Iterable
from typing import NamedTuple

from lmdb import Transaction, _Database

from parkade.store.batch import BOOKMARK_FENCE
from parkade.store.bodies import cut_count, is_cut, whole_body
from parkade.store.ended import EndedReader
from parkade.store.entry import Position
from parkade.store.environment import INDEX_SERIAL_BYTES, Tables
from parkade.store.errors import Damage
from parkade.store.glance import Glance, glance
from parkade.store.listings import ListingReader
from parkade.store.meta import (
    COUNTERS,
    LANE_ROWS,
    LANE_TICKETS,
    MEMO,
    STATE,
    TAKEN,
    Memo,
    State,
    decode_counters,
    decode_lane_rows,
    decode_memo,
    decode_taken,
)
from parkade.store.rows import RowDamaged, pack_serials, unseal
from parkade.store.sweep import AgendaReader, Sweep
from parkade.store.writer import CLAIM_BYTES, wait_prefix

__all__ = ["Body", "LaneRow", "Rows", "Snapshot"]

_LANE_KEY = struct.Struct(">IQQ")
_RANK = struct.Struct(">QQ")


class Body(NamedTuple):
    """`kind`: the byte that says what it is, as whoever wrote it chose."""

    kind: int
    content: bytes


class Rows(NamedTuple):
    """Rows by serial. Serials that are in neither are not in the store."""

    found: dict[int, bytes]
    damaged: list[int]


class LaneRow(NamedTuple):
    first_due_ms: int
    serial: int
    due_ms: int


class Snapshot:
    """Reads one state of the store. Made by `ParkedReader.snapshot` and used by one thread."""

    def __init__(
        self,
        transaction: "Transaction[memoryview]",
        tables: Tables,
        path: str,
    ) -> None:
        self.transaction = transaction
        self.tables = tables
        self.path = path
        self._agenda = AgendaReader(transaction, tables.agenda, path)
        self._state: State | None = None

    @property
    def lsn(self) -> int:
        """The LSN whose state this is."""
        return self.state().lsn

    @property
    def commit(self) -> int:
        """The number of the commit that made this state (`Commit.number`): two may be at one LSN,
        since what moves into its lane's rows leaves no record."""
        return self.transaction.id()

    def state(self) -> State:
        """LSN, epoch and settled time as committed. Raises `Damage`."""
        if self._state is None:
            self._state = State.unpack(self._meta_row(STATE))
        return self._state

    def counters(self) -> dict[tuple[str, int], int]:
        """Tickets by (task, state). Raises `Damage`."""
        return decode_counters(self._meta_row(COUNTERS))

    def memo(self) -> Memo:
        """What outlives the tickets it was of. Raises `Damage`."""
        if self.transaction.get(MEMO, db=self.tables.meta) is None:
            return Memo()  # written before there was one
        return decode_memo(self._meta_row(MEMO))

    def lane_row_counts(self) -> dict[int, int]:
        """How many rows of table `lanes` each lane has. Raises `Damage`."""
        return decode_lane_rows(self._meta_row(LANE_ROWS))

    def lane_names(self) -> dict[int, bytes]:
        """Every lane number that is in use, and its name. Raises `Damage`."""
        names: dict[int, bytes] = {}
        for key, stored in self.transaction.cursor(self.tables.lane_names):
            name = unseal(key, stored)
            if name is None:
                raise self._damage("lane_names", bytes(key))
            if len(key) == 4:  # else a count: see `idle_lanes`
                names[int.from_bytes(key, "big")] = name
        return names

    def idle_lanes(self) -> set[int] | None:
        """The lane numbers of which no ticket is pending; None: not counted here. Raises
        `Damage`."""
        stored = self.transaction.get(LANE_TICKETS, db=self.tables.meta)
        if stored is None or unseal(LANE_TICKETS, stored) != self.lsn.to_bytes(8, "big"):
            return None
        idle: set[int] = set()
        for key, _ in self.transaction.cursor(self.tables.lane_names):
            number = int.from_bytes(key[:4], "big")
            if len(key) == 4:
                idle.add(number)
            else:
                idle.discard(number)  # a count, which stands behind the name
        return idle

    def head(self, serial: int) -> bytes | None:
        """None: no such ticket. Raises `RowDamaged`."""
        return self._row("heads", self.tables.heads, serial)

    def heads(self, serials: Iterable[int]) -> Rows:
        """Many heads in one go, in any order; those that are damaged do not hide the others."""
        return self._rows(self.tables.heads, serials)

    def body(self, serial: int) -> Body | None:
        """Payload or result. Raises `RowDamaged`."""
        row = self._row("bodies", self.tables.bodies, serial)
        if row is None:
            return None
        key = serial.to_bytes(8, "big")
        whole = whole_body(key, row, self.transaction.cursor(self.tables.bodies).get)
        if whole is None:
            raise RowDamaged(self.path, "bodies", key, serial, "it goes on in rows that are lost")
        return Body(whole[0], whole[1:])

    def body_rows(self, serial: int) -> int:
        """How many rows there are of a body, by what the first of them says."""
        stored = self.transaction.get(serial.to_bytes(8, "big"), db=self.tables.bodies)
        return 0 if stored is None else 1 + cut_count(stored)

    def bodies(self, serials: Iterable[int]) -> Rows:
        """Like `heads`; a body's first byte is its kind."""
        rows = self._rows(self.tables.bodies, serials)
        get = self.transaction.cursor(self.tables.bodies).get
        for serial in [serial for serial, row in rows.found.items() if is_cut(row)]:
            key = serial.to_bytes(8, "big")
            whole = whole_body(key, rows.found.pop(serial), get)
            if whole is None:
                rows.damaged.append(serial)
            else:
                rows.found[serial] = whole
        return rows

    def history(self, serial: int) -> list[tuple[int, bytes]]:
        """(fence, row) of each attempt, oldest first. Raises `RowDamaged`, also for the row that
        `bookmark` gives: it stands before them."""
        prefix = serial.to_bytes(8, "big")
        rows: list[tuple[int, bytes]] = []
        cursor = self.transaction.cursor(self.tables.history)
        if cursor.set_range(prefix):
            for key, stored in cursor.iternext():
                if bytes(key[:8]) != prefix:
                    break
                row = unseal(key, stored)
                if row is None:
                    raise RowDamaged(self.path, "history", bytes(key), serial)
                fence = int.from_bytes(key[8:], "big")
                if fence != BOOKMARK_FENCE:
                    rows.append((fence, row))
        return rows

    def bookmark(self, serial: int) -> bytes | None:
        """What an attempt saved for the next one. Raises `RowDamaged`."""
        key = serial.to_bytes(8, "big") + BOOKMARK_FENCE.to_bytes(8, "big")
        stored = self.transaction.get(key, db=self.tables.history)
        if stored is None:
            return None
        row = unseal(key, stored)
        if row is None:
            raise RowDamaged(self.path, "history", key, serial)
        return row

    def unique(self, name: bytes) -> bytes | None:
        """The row of a 16-byte unique name, also when its time is over. Raises `RowDamaged`."""
        stored = self.transaction.get(name, db=self.tables.uniques)
        if stored is None:
            return None
        row = unseal(name, stored)
        if row is None:
            raise RowDamaged(self.path, "uniques", name, None)
        return row[CLAIM_BYTES:]

    def page(
        self,
        prefix: bytes,
        *,
        limit: int,
        before: int | None = None,
        after: int | None = None,
    ) -> list[int]:
        """Serials under an index prefix: newest first, from below `before`; or, with `after`,
        oldest first from above it."""
        cursor = self.transaction.cursor(self.tables.indexes)
        if after is not None:
            start = (after + 1).to_bytes(INDEX_SERIAL_BYTES, "big")
            if not cursor.set_range_dup(prefix, start):
                return []
            found = zip(range(limit), cursor.iternext_dup(), strict=False)
            return [int.from_bytes(serial, "big") for _, serial in found]
        if not cursor.set_key(prefix):
            return []
        end = None if before is None else before.to_bytes(INDEX_SERIAL_BYTES, "big")
        if end is None or not cursor.set_range_dup(prefix, end):
            cursor.set_key(prefix)
            cursor.last_dup()
        elif not cursor.prev_dup():
            return []
        back = zip(range(limit), cursor.iterprev_dup(), strict=False)
        return [int.from_bytes(serial, "big") for _, serial in back]

    def prefixes(self, kind: bytes, *, after: bytes, limit: int) -> list[tuple[bytes, int]]:
        """(prefix, how many serials it has) of the index prefixes that begin with `kind`, in their
        order, from past `after`. Counts nothing: each prefix costs the same, whatever it has."""
        found: list[tuple[bytes, int]] = []
        cursor = self.transaction.cursor(self.tables.indexes)
        is_there = cursor.set_range(after + b"\0" if after else kind)
        while is_there and len(found) < limit:
            prefix = bytes(cursor.key())
            if not prefix.startswith(kind):
                break
            found.append((prefix, cursor.count()))
            is_there = cursor.next_nodup()
        return found

    def count(self, prefix: bytes) -> int:
        """How many serials are under an index prefix; kept, not counted."""
        cursor = self.transaction.cursor(self.tables.indexes)
        return cursor.count() if cursor.set_key(prefix) else 0

    def listings(self) -> ListingReader:
        """Which tickets are listed under the prefixes that all of them enter and leave."""
        return ListingReader(self.transaction, self.tables.listings, self.path)

    def serials(self, *, before: int, limit: int) -> list[int]:
        """Of all tickets there are: newest first, from below `before`."""
        cursor = self.transaction.cursor(self.tables.heads)
        is_there = cursor.set_range(before.to_bytes(8, "big")) if before < 1 << 64 else False
        if not (cursor.prev() if is_there else cursor.last()):
            return []
        back = zip(range(limit), cursor.iterprev(values=False), strict=False)
        return [int.from_bytes(key, "big") for _, key in back]

    def sweep(self, after: Position, until_ms: int, limit: int) -> Sweep:
        """See `AgendaReader.sweep`. Raises `Damage`."""
        return self._agenda.sweep(after, until_ms, limit)

    def glance(self, after: Position, until_ms: int, passed: Collection[int]) -> Glance:
        """See `glance.glance`. Raises `Damage`."""
        table = self.tables.agenda
        return glance(self.transaction, table, self.path, after, until_ms, passed)

    def first_position(self, after: Position) -> Position | None:
        """The earliest position of the agenda after `after`; it may have to sort a whole bucket
        that is not split yet. Raises `Damage`."""
        return self._agenda.first_position(after)

    def lane_rows(
        self, lane_number: int, *, limit: int, after: tuple[int, int] | None = None
    ) -> list[LaneRow]:
        """Rows of a lane in order, from past `after`, a (first due, serial). Raises `Damage`."""
        prefix = lane_number.to_bytes(4, "big")
        start = prefix if after is None else _LANE_KEY.pack(lane_number, *after) + b"\0"
        rows: list[LaneRow] = []
        cursor = self.transaction.cursor(self.tables.lanes)
        if not cursor.set_range(start):
            return rows
        for key, stored in cursor.iternext():
            if len(rows) >= limit or bytes(key[:4]) != prefix:
                break
            due = unseal(key, stored)
            if due is None:
                raise self._damage("lanes", bytes(key))
            _, first_due_ms, serial = _LANE_KEY.unpack(key)
            rows.append(LaneRow(first_due_ms, serial, int.from_bytes(due, "big")))
        return rows

    def wait_rows(
        self, key: str, lane_number: int, *, limit: int, after: tuple[int, int] | None = None
    ) -> list[LaneRow]:
        """Rows of those of a lane that wait for a key, in order, from past `after`, a (first due,
        serial). Raises `Damage`."""
        prefix = wait_prefix(key, lane_number)
        start = prefix if after is None else prefix + _RANK.pack(*after) + b"\0"
        rows: list[LaneRow] = []
        cursor = self.transaction.cursor(self.tables.waits)
        if not cursor.set_range(start):
            return rows
        for row_key, stored in cursor.iternext():
            if len(rows) >= limit or bytes(row_key[: len(prefix)]) != prefix:
                break
            due = unseal(row_key, stored)
            if due is None:
                raise self._damage("waits", bytes(row_key))
            first_due_ms, serial = _RANK.unpack(row_key[len(prefix) :])
            rows.append(LaneRow(first_due_ms, serial, int.from_bytes(due, "big")))
        return rows

    def wait_queues(self) -> list[tuple[str, int]]:
        """Each key and lane number with rows in `waits`: one seek for each."""
        queues: list[tuple[str, int]] = []
        cursor = self.transaction.cursor(self.tables.waits)
        is_found = cursor.first()
        while is_found:
            prefix = bytes(cursor.key())[: -_RANK.size]
            queues.append((prefix[1:-4].decode(), int.from_bytes(prefix[-4:], "big")))
            is_found = cursor.set_range(prefix + b"\xff" * (_RANK.size + 1))
        return queues

    def wait_row_count(self) -> int:
        """How many tickets wait for their keys on disk."""
        count: int = self.transaction.stat(self.tables.waits)["entries"]
        return count

    def ended(self) -> EndedReader:
        """What has ended, for retention."""
        return EndedReader(self.transaction, self.tables, self.path)

    def taken(self) -> dict[int, tuple[int, int, int]]:
        """Up to which (epoch, LSN, index) the entries of each sender are here. Raises `Damage`."""
        if self.transaction.get(TAKEN, db=self.tables.meta) is None:
            return {}
        return decode_taken(self._meta_row(TAKEN))

    def outbox(
        self, *, after: bytes = b"", prefix: bytes = b"", limit: int
    ) -> list[tuple[bytes, bytes]]:
        """Rows of the outbox in order of their keys, those with a prefix. Raises `Damage`."""
        rows: list[tuple[bytes, bytes]] = []
        cursor = self.transaction.cursor(self.tables.outbox)
        if cursor.set_range(max(after + b"\0", prefix)):
            for key, stored in cursor.iternext():
                if len(rows) >= limit or not bytes(key).startswith(prefix):
                    break
                row = unseal(key, stored)
                if row is None:
                    raise self._damage("outbox", bytes(key))
                rows.append((bytes(key), row))
        return rows

    def _row(self, name: str, table: _Database, serial: int) -> bytes | None:
        key = serial.to_bytes(8, "big")
        stored = self.transaction.get(key, db=table)
        if stored is None:
            return None
        row = unseal(key, stored)
        if row is None:
            raise RowDamaged(self.path, name, key, serial)
        return row

    def _rows(self, table: _Database, serials: Iterable[int]) -> Rows:
        """One after the other: `getmulti` holds a view of every page at once, which costs more."""
        found: dict[int, bytes] = {}
        damaged: list[int] = []
        get = self.transaction.cursor(table).get
        ordered = sorted(set(serials))
        for serial, key in zip(ordered, pack_serials(ordered), strict=True):
            stored = get(key)
            if stored is not None:
                row = unseal(key, stored)
                if row is None:
                    damaged.append(serial)
                else:
                    found[serial] = row
        return Rows(found, damaged)

    def _meta_row(self, key: bytes) -> bytes:
        stored = self.transaction.get(key, db=self.tables.meta)
        row = None if stored is None else unseal(key, stored)
        if row is None:
            raise self._damage("meta", key)
        return row

    def _damage(self, table: str, key: bytes) -> Damage:
        return Damage(self.path, 0, f"row {key.hex()} of table {table} is missing or damaged")
