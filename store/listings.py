"""Table `listings`: serials under a prefix, in blobs. For prefixes that every ticket enters and
leaves, where a row for each of them would be half of what a commit puts.

The blobs of a prefix are the leaves of a tree: in order, and cut where they grow too long. A row's
key is the prefix and a serial, which is at most the first in it; its value is the sorted serials
and a crc32. A commit rewrites a blob once, however many of its serials come and go.
"""

import sys
from array import array
from bisect import bisect_left
from collections.abc import Iterable, Iterator, Mapping
from typing import Final, NamedTuple

from lmdb import Cursor, Transaction, _Database

from parkade.store.errors import Damage
from parkade.store.rows import seal, unseal

__all__ = [
    "BLOB_SERIALS_MAX", "BLOB_SERIALS_MIN", "SERIAL_BYTES", "ListingReader", "unpack_blob",
    "write_listings",
]  # fmt: skip

SERIAL_BYTES = 8
SERIAL_MAX = (1 << 64) - 1
BLOB_SERIALS_MAX: Final = 508  # with their crc32 they fill a page of 4 KiB
BLOB_SERIALS_MIN: Final = 127  # in all blobs of a prefix but its first and its last
_IS_LITTLE: Final = sys.byteorder == "little"


class _Blob(NamedTuple):
    """`end`: where the next blob of the prefix begins; None: it is the last one."""

    key: bytes
    serials: "array[int]"
    end: int | None


def write_listings(
    transaction: "Transaction[memoryview]",
    table: _Database,
    path: str,
    *,
    listed: Mapping[bytes, Iterable[int]],
    unlisted: Mapping[bytes, Iterable[int]],
) -> None:
    """Takes serials out of their prefixes, then puts others in; no list names one twice. Serials
    that are not there, or are there already, change nothing. Raises `Damage`."""
    writer = _Writer(transaction, table, path)
    for prefix in sorted(listed.keys() | unlisted.keys()):
        come, gone = listed.get(prefix, ()), unlisted.get(prefix, ())
        writer.change(prefix, array("Q", sorted(come)), array("Q", sorted(gone)))


class _Writer:
    def __init__(self, transaction: "Transaction[memoryview]", table: _Database, path: str) -> None:
        self._transaction = transaction
        self._table = table
        self._path = path
        self._cursor = transaction.cursor(table)

    def change(self, prefix: bytes, come: "array[int]", gone: "array[int]") -> None:
        """Blob by blob; both are sorted."""
        come_at = gone_at = 0
        come_count, gone_count = len(come), len(gone)
        while come_at < come_count or gone_at < gone_count:
            if gone_at == gone_count or (come_at < come_count and come[come_at] < gone[gone_at]):
                first = come[come_at]
            else:
                first = gone[gone_at]
            blob = _find(self._cursor, prefix, first, self._path)
            if blob is None:
                self._put(_cut(prefix, None, come[come_at:], is_last=True))
                return
            come_end, gone_end = come_count, gone_count
            if blob.end is not None:
                come_end = bisect_left(come, blob.end, come_at)
                gone_end = bisect_left(gone, blob.end, gone_at)
            has_changed = _take_out(blob.serials, gone[gone_at:gone_end])
            if _put_in(blob.serials, come[come_at:come_end]) or has_changed:
                self._rewrite(prefix, blob)
            come_at, gone_at = come_end, gone_end

    def _rewrite(self, prefix: bytes, blob: _Blob) -> None:
        key, serials, end = blob
        is_of_size = BLOB_SERIALS_MIN <= len(serials) <= BLOB_SERIALS_MAX
        if is_of_size and serials[0] >= int.from_bytes(key[-SERIAL_BYTES:], "big"):
            self._transaction.put(key, seal(key, _pack(serials)), db=self._table)
            return
        old_keys, is_last = [key], end is None
        if serials and len(serials) < BLOB_SERIALS_MIN and not is_last:
            other = self._neighbour(prefix, blob)
            if other is not None:
                old_keys.append(other.key)
                is_behind = other.key > key
                serials = serials + other.serials if is_behind else other.serials + serials
                is_last = is_behind and other.end is None
        rows = _cut(prefix, min(old_keys), serials, is_last=is_last)
        for old_key in {*old_keys}.difference(new_key for new_key, _ in rows):
            self._transaction.delete(old_key, db=self._table)
        self._put(rows)

    def _neighbour(self, prefix: bytes, blob: _Blob) -> _Blob | None:
        """The smaller one of those beside a blob that is not the last; None: it is the first."""
        assert blob.end is not None
        before = _before(self._cursor, prefix, blob.key, self._path)
        behind = _find(self._cursor, prefix, blob.end, self._path)
        if before is None or behind is None:
            return None
        return min(before, behind, key=lambda other: len(other.serials))

    def _put(self, rows: list[tuple[bytes, bytes]]) -> None:
        if rows:
            self._cursor.putmulti([(key, seal(key, content)) for key, content in rows])


def _cut(
    prefix: bytes, key: bytes | None, serials: "array[int]", *, is_last: bool
) -> list[tuple[bytes, bytes]]:
    """(key, content) of blobs for these serials, which are of no use behind that. The first has
    the key that was there, unless it begins earlier; the last of a prefix has room for more."""
    content, count = _pack(serials), len(serials)
    each = BLOB_SERIALS_MAX
    if count > each and not is_last:
        each = -(-count // -(-count // BLOB_SERIALS_MAX))
    size = each * SERIAL_BYTES
    parts = [content[at : at + size] for at in range(0, len(content), size)]
    rows = [(prefix + part[:SERIAL_BYTES], part) for part in parts]
    if rows and key is not None and key < rows[0][0]:
        rows[0] = key, parts[0]
    return rows


def _find(cursor: "Cursor[memoryview]", prefix: bytes, serial: int, path: str) -> _Blob | None:
    """The blob that a serial belongs to: the last that begins at or before it, or the first. None:
    the prefix has no blob. Raises `Damage`."""
    end: int | None = None
    place = prefix + serial.to_bytes(SERIAL_BYTES, "big")
    if cursor.set_range(place):
        key = bytes(cursor.key())
        if key == place:
            return _read_with_end(cursor, prefix, path)
        if _is_of(key, prefix):
            end = int.from_bytes(key[-SERIAL_BYTES:], "big")
        is_there = cursor.prev()
    else:
        is_there = cursor.last()
    if is_there:
        key = bytes(cursor.key())
        if _is_of(key, prefix):
            return _read(cursor, key, path, end)
    if end is None:
        return None
    cursor.set_range(place)
    return _read_with_end(cursor, prefix, path)


def _before(cursor: "Cursor[memoryview]", prefix: bytes, key: bytes, path: str) -> _Blob | None:
    """The blob before the one with that key. Raises `Damage`."""
    if not cursor.set_key(key) or not cursor.prev():
        return None
    end, key = int.from_bytes(key[-SERIAL_BYTES:], "big"), bytes(cursor.key())
    return _read(cursor, key, path, end) if _is_of(key, prefix) else None


def _read_with_end(cursor: "Cursor[memoryview]", prefix: bytes, path: str) -> _Blob:
    blob = _read(cursor, bytes(cursor.key()), path)
    if cursor.next():
        key = bytes(cursor.key())
        if _is_of(key, prefix):
            return blob._replace(end=int.from_bytes(key[-SERIAL_BYTES:], "big"))
    return blob


def _read(cursor: "Cursor[memoryview]", key: bytes, path: str, end: int | None = None) -> _Blob:
    serials = unpack_blob(key, cursor.value())
    if serials is None:
        raise _damage(path, key, "fails its checksum")
    return _Blob(key, serials, end)


def _is_of(key: bytes, prefix: bytes) -> bool:
    return len(key) == len(prefix) + SERIAL_BYTES and key.startswith(prefix)


def _damage(path: str, key: bytes, what: str) -> Damage:
    return Damage(path, 0, f"row {key.hex()} of table listings {what}")


def unpack_blob(key: bytes, stored: bytes | memoryview) -> "array[int] | None":
    """The serials of a row; None: it fails its checksum, or holds no serials."""
    content = unseal(key, stored)
    if content is None or len(content) % SERIAL_BYTES:
        return None
    serials = array("Q", content)
    if _IS_LITTLE:
        serials.byteswap()
    return serials


def _pack(serials: "array[int]") -> bytes:
    """They are of no use behind it."""
    if _IS_LITTLE:
        serials.byteswap()
    return serials.tobytes()


def _take_out(serials: "array[int]", gone: "array[int]") -> bool:
    """Whether any was there."""
    if not gone:
        return False
    place, count = bisect_left(serials, gone[0]), len(serials)
    if serials[place : place + len(gone)] == gone:
        del serials[place : place + len(gone)]
        return True
    for serial in gone:
        place = bisect_left(serials, serial, place)
        if place < len(serials) and serials[place] == serial:
            del serials[place]
    return len(serials) < count


def _put_in(serials: "array[int]", come: "array[int]") -> bool:
    """Whether any was not there."""
    if not come:
        return False
    place, count = bisect_left(serials, come[0]), len(serials)
    if place == count or serials[place] > come[-1]:
        serials[place:place] = come
        return True
    for serial in come:
        place = bisect_left(serials, serial, place)
        if place == len(serials) or serials[place] != serial:
            serials.insert(place, serial)
    return len(serials) > count


class ListingReader:
    """Reads one snapshot of the table."""

    def __init__(self, transaction: "Transaction[memoryview]", table: _Database, path: str) -> None:
        self._transaction = transaction
        self._table = table
        self._path = path

    def newest(self, prefix: bytes, before: int) -> Iterator[int]:
        """Serials under a prefix, downward from below `before`. Raises `Damage`."""
        cursor = self._transaction.cursor(self._table)
        blob = _find(cursor, prefix, before - 1, self._path) if before > 0 else None
        while blob is not None:
            serials = blob.serials
            for serial in reversed(serials[: bisect_left(serials, before)]):
                if serial >= before:
                    raise _damage(self._path, blob.key, "is out of order")
                before = serial
                yield serial
            blob = _before(cursor, prefix, blob.key, self._path)

    def oldest(self, prefix: bytes, after: int = -1) -> Iterator[int]:
        """Serials under a prefix, upward from above `after`. Raises `Damage`."""
        cursor = self._transaction.cursor(self._table)
        begin: int | None = after + 1
        while begin is not None and begin <= SERIAL_MAX:
            blob = _find(cursor, prefix, begin, self._path)
            if blob is None:
                return
            serials = blob.serials
            for serial in serials[bisect_left(serials, begin) :]:
                if serial <= after:
                    raise _damage(self._path, blob.key, "is out of order")
                after = serial
                yield serial
            begin = blob.end
