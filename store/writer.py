"""One batch, written into one transaction: every table of the store, in order of keys.

Nothing here commits or counts on the commit: what the store keeps in memory of its own state goes
in and comes out as values, so a transaction that fails leaves no trace.
"""

import struct
from bisect import bisect_left
from collections import Counter
from collections.abc import Callable
from itertools import repeat
from operator import itemgetter
from typing import NamedTuple

from lmdb import Cursor, Transaction, _Database

from parkade.store.agenda import AgendaWriter, Upkeep
from parkade.store.batch import Batch
from parkade.store.bodies import CUT_BYTES_MIN, PageFill, cut_count, is_cut, rest_keys
from parkade.store.entry import EXPIRY
from parkade.store.environment import INDEX_SERIAL_BYTES, Tables
from parkade.store.errors import Damage
from parkade.store.listings import write_listings
from parkade.store.meta import (
    COUNTERS,
    LANE_ROWS,
    LANE_TICKETS,
    MEMO,
    STATE,
    TAKEN,
    State,
    encode_counters,
    encode_lane_rows,
    encode_memo,
)
from parkade.store.rows import in_parts, pack_serials, seal, seal_all, unseal

__all__ = [
    "CLAIM_BYTES",
    "CLAIM_ENDS_MAX",
    "CLAIM_END_BITS_MIN",
    "ENDED_BITS",
    "REFINE_ENTRIES",
    "TIDY_ENTRIES",
    "Written",
    "claim_end_bits",
    "claim_until_ms",
    "lane_key",
    "lane_tickets_key",
    "unpack_stamps",
    "wait_key",
    "wait_prefix",
    "write_batch",
]

REFINE_ENTRIES = 65_536  # split ahead of their time, per commit
TIDY_ENTRIES = 32_768  # cancelled or joined, per commit
CLAIM_ENDS_MAX = 8_192  # unique rows looked at for their end, per commit
ENDED_BITS = 22  # retention and ends of unique rows are kept in buckets of 2^22 ms
CLAIM_END_BITS_MIN = 16  # but 2^16 ms where the end of a unique row is nearer than one of those
BUCKET_ROWS_MAX = 250  # entries in one blob of these two tables: it fills a page of 4 KiB
APPENDED_MIN = 16  # in one index prefix: below it, asking where the prefix ends costs more

_LANE_AND_FLAGS = slice(24, 29)  # of a packed entry
_LANE_OF_KEY = slice(0, 4)  # of the key of a row of `lanes`
_due = itemgetter(slice(4, 12))
_CLAIM = struct.Struct(">q")
_STAMP = struct.Struct(">QQ")
CLAIM_BYTES = _CLAIM.size  # before the row of a unique name


class Written(NamedTuple):
    """What the store is after the batch, if the transaction commits."""

    state: State
    lane_rows: dict[int, int]
    wait_rows: int
    written_bytes: int
    has_refine_due: bool
    has_upkeep: bool
    lane_tickets: dict[int, int] | None


def write_batch(
    transaction: "Transaction[memoryview]",
    tables: Tables,
    path: str,
    batch: Batch,
    *,
    state: State,
    lane_rows: dict[int, int],
    upkeep: Upkeep,
    file_bytes: int,
    at: Callable[[str], None],
) -> Written:
    """Write all of `batch` over `state`.

    Raises `Damage` for a blob of the agenda or of a listing, or the count of a lane, that fails its
    checksum, and what LMDB raises.
    """
    written = _write_tickets(transaction, tables, batch)
    at("tickets")
    lane_rows, removals = _leave_lanes(transaction, tables, batch, lane_rows)
    written += _enter_lanes(transaction, tables, batch, lane_rows)
    written += _enter_waits(transaction, tables, batch)
    lane_tickets = _count_lanes(transaction, tables, path, batch, state)
    agenda = AgendaWriter(
        transaction,
        tables.agenda,
        path,
        now_ms=batch.now_ms,
        next_blob=state.next_blob,
        upkeep=upkeep,
    )
    written += agenda.append(batch.agenda + removals)
    has_refine_due = agenda.refine(REFINE_ENTRIES)
    has_upkeep = agenda.tidy(TIDY_ENTRIES)
    at("agenda")
    numbers = _Numbers(agenda.next_blob)
    has_upkeep |= _end_claims(transaction, tables, batch)
    written += _write_claims(transaction, tables, batch, numbers)
    written += _write_ended(transaction, tables, batch, numbers)
    _delete_keys(transaction, tables.ended, batch.spent)
    write_listings(transaction, tables.listings, path, listed=batch.listed, unlisted=batch.unlisted)
    _write_indexes(transaction, tables, batch)
    _write_outbox(transaction, tables, batch)
    state = State(batch.lsn, batch.epoch, batch.settled_ms, numbers.next, file_bytes)
    for key, row in (
        (STATE, state.pack()),
        (COUNTERS, encode_counters(batch.counters)),
        (LANE_ROWS, encode_lane_rows(lane_rows)),
        (MEMO, encode_memo(batch.memo)),
    ):
        transaction.put(key, seal(key, row), db=tables.meta)
    if batch.taken is not None:
        transaction.put(TAKEN, seal(TAKEN, batch.taken), db=tables.meta)
    wait_rows = transaction.stat(tables.waits)["entries"]
    return Written(state, lane_rows, wait_rows, written, has_refine_due, has_upkeep, lane_tickets)


class _Numbers:
    """Numbers that make the keys of blobs unique."""

    def __init__(self, first: int) -> None:
        self.next = first

    def take(self) -> int:
        self.next += 1
        return self.next - 1


def _write_tickets(transaction: "Transaction[memoryview]", tables: Tables, batch: Batch) -> int:
    gone = sorted(serial for serial, head in batch.heads.items() if head is None)
    written = _put_fresh(transaction, tables, batch)
    written += _put_rows(transaction, tables.heads, batch.heads)
    written += _put_bodies(transaction, tables.bodies, *_sorted_rows(batch.bodies), are_new=False)
    written += _write_history(transaction, tables.history, batch)
    if gone:
        keys = pack_serials(gone)
        _delete_keys(transaction, tables.heads, keys)
        _delete_bodies(transaction, tables.bodies, keys)
        _delete_histories(transaction, tables.history, keys)
    bare = [serial for serial, body in batch.bodies.items() if body is None]
    _delete_bodies(transaction, tables.bodies, pack_serials(sorted(bare)))
    return written


def _write_history(transaction: "Transaction[memoryview]", table: _Database, batch: Batch) -> int:
    kept = sorted((name, row) for name, row in batch.history.items() if row is not None)
    keys = [_STAMP.pack(*name) for name, _ in kept]
    gone = sorted(name for name, row in batch.history.items() if row is None)
    _delete_keys(transaction, table, [_STAMP.pack(*name) for name in gone])
    return _put_sorted(transaction, table, keys, [row for _, row in kept])


def _put_rows(
    transaction: "Transaction[memoryview]", table: _Database, rows: dict[int, bytes | None]
) -> int:
    return _put_sorted(transaction, table, *_sorted_rows(rows))


def _sorted_rows(rows: dict[int, bytes | None]) -> tuple[list[bytes], list[bytes]]:
    serials = sorted(rows)
    values = [rows[serial] for serial in serials]
    if None in values:
        serials = [serial for serial in serials if rows[serial] is not None]
    return pack_serials(serials), [value for value in values if value is not None]


def _put_fresh(transaction: "Transaction[memoryview]", tables: Tables, batch: Batch) -> int:
    keys, kind = batch.fresh_keys, batch.fresh_kind
    written = _put_sorted(transaction, tables.heads, keys, batch.fresh_heads)
    return written + _put_bodies(
        transaction, tables.bodies, keys, batch.fresh_bodies, kind, are_new=True
    )


def _put_bodies(
    transaction: "Transaction[memoryview]",
    table: _Database,
    keys: list[bytes],
    bodies: list[bytes],
    kind: bytes = b"",
    *,
    are_new: bool,
) -> int:
    """Those past the table's end are cut where its pages end; of the others one may take the place
    of several rows, unless they `are_new`. `kind`: see `PageFill.cut`."""
    if not keys:
        return 0
    cursor = transaction.cursor(table)
    split = _count_inside(cursor, keys)
    inside, bodies_inside = keys[:split], bodies[:split]
    if not are_new:
        _delete_rests(transaction, table, inside)
    _put_run(cursor, inside, bodies_inside, kind)
    keys, bodies = keys[split:], bodies[split:]
    written = len(kind) * split + sum(map(len, bodies_inside))
    if max(map(len, bodies), default=0) >= CUT_BYTES_MIN:
        return written + _append_bodies(transaction, table, keys, bodies, kind)
    _put_run(cursor, keys, bodies, kind, append=True)
    return written + len(kind) * len(keys) + sum(map(len, bodies))


def _append_bodies(
    transaction: "Transaction[memoryview]",
    table: _Database,
    keys: list[bytes],
    bodies: list[bytes],
    kind: bytes,
) -> int:
    """Where a page ends is known from the first on that begins with one of these."""
    stat = transaction.stat(table)
    fill, pages = PageFill(stat["psize"]), stat["leaf_pages"]
    written = begun = 0
    while begun < len(keys):
        key, row = keys[begun], kind + bodies[begun]
        transaction.put(key, seal(key, row), append=True, db=table)
        written += len(row)
        begun += 1
        if transaction.stat(table)["leaf_pages"] > pages:
            fill.begin(len(row))
            break
    keys, bodies = keys[begun:], bodies[begun:]
    cursor = transaction.cursor(table)
    for part in in_parts(len(keys)):
        rows = fill.cut(keys[part], bodies[part], kind)
        sealed = seal_all(rows.keys, rows.contents, rows.leads)
        cursor.putmulti(zip(rows.keys, sealed, strict=True), append=True)
        written += sum(map(len, sealed))
    return written


def _put_sorted(
    transaction: "Transaction[memoryview]", table: _Database, keys: list[bytes], rows: list[bytes]
) -> int:
    """Put rows in order of keys; those past the table's end are appended, which fills its pages."""
    if not keys:
        return 0
    cursor = transaction.cursor(table)
    split = _count_inside(cursor, keys)
    _put_run(cursor, keys[:split], rows[:split])
    _put_run(cursor, keys[split:], rows[split:], append=True)
    return sum(map(len, rows))


def _put_run(
    cursor: "Cursor[memoryview]",
    keys: list[bytes],
    rows: list[bytes],
    lead: bytes = b"",
    *,
    append: bool = False,
) -> None:
    """Seals and puts what is found, or appended, one behind the other: a few at a time, so that a
    row is still at hand when it is put."""
    for part in in_parts(len(keys)):
        under = keys[part]
        leads = [lead] * len(under) if lead else []
        sealed = seal_all(under, rows[part], leads)
        cursor.putmulti(zip(under, sealed, strict=True), append=append)


def _count_inside(cursor: "Cursor[memoryview]", keys: list[bytes]) -> int:
    """How many of these sorted keys are not past the table's end, where rows may be appended."""
    return bisect_left(keys, bytes(cursor.key()) + b"\0") if cursor.last() else 0


def _delete_keys(
    transaction: "Transaction[memoryview]", table: _Database, keys: list[bytes]
) -> None:
    for key in keys:
        transaction.delete(key, db=table)


def _delete_bodies(
    transaction: "Transaction[memoryview]", table: _Database, keys: list[bytes]
) -> None:
    _delete_rests(transaction, table, keys)
    _delete_keys(transaction, table, keys)


def _delete_rests(
    transaction: "Transaction[memoryview]", table: _Database, keys: list[bytes]
) -> None:
    """What stands behind the first rows of these bodies."""
    find = transaction.cursor(table).get
    for key in keys:
        first = find(key)
        if first is not None and is_cut(first):
            _delete_keys(transaction, table, list(rest_keys(key, cut_count(first))))


def _delete_histories(
    transaction: "Transaction[memoryview]", table: _Database, keys: list[bytes]
) -> None:
    cursor = transaction.cursor(table)
    for key in keys:
        is_found = cursor.set_range(key)
        while is_found and bytes(cursor.key()[:8]) == key:
            is_found = cursor.delete() and bool(cursor.key())


def lane_key(entry: bytes) -> bytes:
    """The key in table `lanes` of a packed entry: lane number, first due, serial."""
    return entry[24:28] + entry[16:24] + entry[8:16]


def _leave_lanes(
    transaction: "Transaction[memoryview]", tables: Tables, batch: Batch, lane_rows: dict[int, int]
) -> tuple[dict[int, int], list[bytes]]:
    """(rows per lane, removals for the agenda): a ticket that has a row in its lane, or among those
    that wait for its key, loses that; one that has none stands in the agenda."""
    lane_rows = dict(lane_rows)

    def has_left(entry: bytes) -> bool:
        lane_number = int.from_bytes(entry[24:28], "big")
        if (
            not lane_rows.get(lane_number)
            or entry[28] & EXPIRY
            or not transaction.delete(lane_key(entry), db=tables.lanes)
        ):
            return False
        lane_rows[lane_number] -= 1
        return True

    removals = [entry for entry in batch.leaves if not has_left(entry)]
    has_waits = transaction.stat(tables.waits)["entries"] > 0
    for key, entry in batch.keyed_leaves:
        if not has_left(entry) and not (
            has_waits and transaction.delete(wait_key(key, entry), db=tables.waits)
        ):
            removals.append(entry)
    return lane_rows, removals


def _enter_lanes(
    transaction: "Transaction[memoryview]", tables: Tables, batch: Batch, lane_rows: dict[int, int]
) -> int:
    """Put the rows of tickets that wait in their lanes on disk; counts them in `lane_rows`."""
    rows = {lane_key(entry): entry[:8] for entry in batch.lane_rows}
    keys = sorted(rows)
    cursor = transaction.cursor(tables.lanes)
    for key in keys:
        if not cursor.set_key(key):
            lane_number = int.from_bytes(key[:4], "big")
            lane_rows[lane_number] = lane_rows.get(lane_number, 0) + 1
    written = _put_sorted(transaction, tables.lanes, keys, [rows[key] for key in keys])
    fresh = sorted(batch.fresh_lane_keys)
    written += _put_sorted(transaction, tables.lanes, fresh, list(map(_due, fresh)))
    for lane_number, count in _count_fresh(batch).items():
        lane_rows[lane_number] = lane_rows.get(lane_number, 0) + count
    for lane_number, name in sorted(batch.lane_names.items()):
        key = lane_number.to_bytes(4, "big")
        if name is None:
            transaction.delete(key, db=tables.lane_names)
        else:
            transaction.put(key, seal(key, name), db=tables.lane_names)
    return written


def _count_fresh(batch: Batch) -> dict[int, int]:
    """How many tickets of each lane come as rows of it, and were not in the store before."""
    counts = _counted(batch.fresh_lane_keys, _LANE_OF_KEY)
    return {int.from_bytes(lane, "big"): count for lane, count in counts.items()}


def _counted(rows: list[bytes], part: slice) -> Counter[bytes]:
    """How often each value of that part occurs in packed rows of one size. Mostly it is the same
    in all of them, which is told faster of all than of each."""
    if not rows:
        return Counter()
    packed, row_bytes = b"".join(rows), len(rows[0])
    columns = [packed[place::row_bytes] for place in range(part.start, part.stop)]
    if all(column.count(column[:1]) == len(rows) for column in columns):
        return Counter({rows[0][part]: len(rows)})
    return Counter(map(itemgetter(part), rows))


def lane_tickets_key(lane_number: int) -> bytes:
    """The key in table `lane_names` under which the pending tickets of a lane are counted."""
    return lane_number.to_bytes(4, "big") + b"#"


def _count_lanes(
    transaction: "Transaction[memoryview]", tables: Tables, path: str, batch: Batch, state: State
) -> dict[int, int] | None:
    """Counts the pending tickets of each lane of the batch; how many each has now. None: a version
    that did not count has written to this store. Raises `Damage`."""
    stored = transaction.get(LANE_TICKETS, db=tables.meta)
    if stored is None or unseal(LANE_TICKETS, stored) != state.lsn.to_bytes(8, "big"):
        return None
    row = seal(LANE_TICKETS, batch.lsn.to_bytes(8, "big"))
    transaction.put(LANE_TICKETS, row, db=tables.meta)
    changes: Counter[int] = Counter()
    for by, entries in (
        (1, batch.agenda),
        (1, batch.lane_rows),
        (1, [entry for _, entry in batch.wait_rows]),
        (-1, batch.leaves),
        (-1, [entry for _, entry in batch.keyed_leaves]),
    ):
        for lane, count in _counted(entries, _LANE_AND_FLAGS).items():
            if not lane[4] & EXPIRY:
                changes[int.from_bytes(lane[:4], "big")] += by * count
    changes.update(_count_fresh(batch))
    return {
        lane_number: _count_lane(transaction, tables, path, lane_number, change)
        for lane_number, change in sorted(changes.items())
        if change
    }


def _count_lane(
    transaction: "Transaction[memoryview]",
    tables: Tables,
    path: str,
    lane_number: int,
    change: int,
) -> int:
    key = lane_tickets_key(lane_number)
    stored = transaction.get(key, db=tables.lane_names)
    count = change
    if stored is not None:
        row = unseal(key, stored)
        if row is None:
            raise Damage(path, 0, f"the count of tickets of lane {lane_number} fails its checksum")
        count += int.from_bytes(row, "big", signed=True)
    if count:
        row = count.to_bytes(8, "big", signed=True)
        transaction.put(key, seal(key, row), db=tables.lane_names)
    elif stored is not None:
        transaction.delete(key, db=tables.lane_names)
    return count


def wait_prefix(key: str, lane_number: int) -> bytes:
    """Of the rows in table `waits` of one key and lane: length of the key, the key, lane number."""
    encoded = key.encode()
    return bytes([len(encoded)]) + encoded + lane_number.to_bytes(4, "big")


def wait_key(key: str, entry: bytes) -> bytes:
    """The key in table `waits` of a packed entry: its prefix, first due, serial."""
    return wait_prefix(key, int.from_bytes(entry[24:28], "big")) + entry[16:24] + entry[8:16]


def _enter_waits(transaction: "Transaction[memoryview]", tables: Tables, batch: Batch) -> int:
    rows = {wait_key(key, entry): entry[:8] for key, entry in batch.wait_rows}
    keys = sorted(rows)
    return _put_sorted(transaction, tables.waits, keys, [rows[key] for key in keys])


def claim_until_ms(row: bytes) -> int:
    """Until when the row of a unique name holds, ms; negative without end."""
    until_ms: int = _CLAIM.unpack_from(row)[0]
    return until_ms


def _write_claims(
    transaction: "Transaction[memoryview]", tables: Tables, batch: Batch, numbers: _Numbers
) -> int:
    held = sorted((name, claim) for name, claim in batch.uniques.items() if claim is not None)
    names = [name for name, _ in held]
    rows = [_CLAIM.pack(claim.until_ms) + claim.row for _, claim in held]
    written = _put_sorted(transaction, tables.uniques, names, rows)
    freed = sorted(name for name, claim in batch.uniques.items() if claim is None)
    _delete_keys(transaction, tables.uniques, freed)
    ends: dict[bytes, list[bytes]] = {}
    for name, claim in held:
        if claim.until_ms >= 0:
            bits = claim_end_bits(claim.until_ms, batch.settled_ms)
            end_ms = (claim.until_ms >> bits) + 1 << bits
            ends.setdefault(end_ms.to_bytes(8, "big"), []).append(name)
    return written + _put_buckets(transaction, tables.unique_ends, ends, numbers)


def claim_end_bits(until_ms: int, settled_ms: int) -> int:
    """How wide the bucket is, 2^bits ms, in which the end of a unique row is noted: a row whose end
    is near shall not outstay it by much, and one that holds for long costs no bucket of its own."""
    return ENDED_BITS if until_ms - settled_ms >> ENDED_BITS else CLAIM_END_BITS_MIN


def _end_claims(transaction: "Transaction[memoryview]", tables: Tables, batch: Batch) -> bool:
    """Drop rows of unique names whose time is over, a slice of them, and more of them than the
    batch brings; True: more may be waiting.

    An entry is only a hint: a name that was claimed again since has a row with another end.
    """
    settled_ms = batch.settled_ms
    budget = CLAIM_ENDS_MAX + 2 * len(batch.uniques)
    cursor = transaction.cursor(tables.unique_ends)
    while cursor.first():
        key = bytes(cursor.key())
        if int.from_bytes(key[:8], "big") > settled_ms:
            return False
        if budget <= 0:
            return True
        # A bad blob is dropped: the rows it named are void all the same, and only stay on disk.
        names = unseal(key, cursor.value()) or b""
        cursor.delete()
        for at in range(0, len(names), 16):
            name = names[at : at + 16]
            stored = transaction.get(name, db=tables.uniques)
            row = None if stored is None else unseal(name, stored)
            if row is not None and 0 <= claim_until_ms(row) <= settled_ms:
                transaction.delete(name, db=tables.uniques)
        budget -= len(names) // 16
    return False


def _write_ended(
    transaction: "Transaction[memoryview]", tables: Tables, batch: Batch, numbers: _Numbers
) -> int:
    ends: dict[bytes, list[bytes]] = {}
    entries, begin = sorted(batch.ended), 0
    while begin < len(entries):
        kind, ended_ms = entries[begin][:9], int.from_bytes(entries[begin][9:17], "big")
        number = ended_ms >> ENDED_BITS
        end = bisect_left(entries, kind + _bucket(number + 1), begin)
        ends[kind + _bucket(number)] = [entry[9:] for entry in entries[begin:end]]
        begin = end
    return _put_buckets(transaction, tables.ended, ends, numbers)


def unpack_stamps(content: bytes) -> list[tuple[int, int]]:
    """(finished_ms, serial) of each ticket in a blob of table `ended`."""
    return list(_STAMP.iter_unpack(content))


def _bucket(number: int) -> bytes:
    return (number << ENDED_BITS).to_bytes(8, "big")


def _put_buckets(
    transaction: "Transaction[memoryview]",
    table: _Database,
    buckets: dict[bytes, list[bytes]],
    numbers: _Numbers,
) -> int:
    """One blob or more for each bucket, under a key of the bucket and a number."""
    written = 0
    for bucket, entries in sorted(buckets.items()):
        for at in range(0, len(entries), BUCKET_ROWS_MAX):
            key = bucket + numbers.take().to_bytes(8, "big")
            row = seal(key, b"".join(entries[at : at + BUCKET_ROWS_MAX]))
            transaction.put(key, row, db=table)
            written += len(row)
    return written


def _write_indexes(transaction: "Transaction[memoryview]", tables: Tables, batch: Batch) -> None:
    """Serials under their prefixes; they come in order, so most go to the end of their prefix."""
    for entry in sorted(batch.index_deletes):
        split = len(entry) - INDEX_SERIAL_BYTES
        transaction.delete(entry[:split], entry[split:], db=tables.indexes)
    runs: dict[bytes, list[bytes]] = {}
    for entry in batch.index_puts:
        runs.setdefault(entry[:-INDEX_SERIAL_BYTES], []).append(entry[-INDEX_SERIAL_BYTES:])
    cursor = transaction.cursor(tables.indexes)
    for prefix, serials in sorted(runs.items()):
        serials.sort()
        split = len(serials)
        if split >= APPENDED_MIN:
            last = bytes(cursor.value()) if cursor.set_key(prefix) and cursor.last_dup() else b""
            split = bisect_left(serials, last + b"\0") if last else 0
        cursor.putmulti(zip(repeat(prefix), serials[:split]))
        cursor.putmulti(zip(repeat(prefix), serials[split:]), append=True)


def _write_outbox(transaction: "Transaction[memoryview]", tables: Tables, batch: Batch) -> None:
    cursor = transaction.cursor(tables.outbox)
    for first, last in batch.outbox_spent:
        is_found = cursor.set_range(first)
        while is_found and bytes(cursor.key()) <= last:
            is_found = cursor.delete() and bool(cursor.key())
    for key, row in sorted(batch.outbox.items()):
        transaction.put(key, seal(key, row), db=tables.outbox)
