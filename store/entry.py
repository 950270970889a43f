"""Agenda entries and the blobs that hold them, as bytes. Pure: no file, no LMDB.

An entry says that a pending ticket stands at a position, or that it has left it:

     0  8  due, ms since the epoch        big-endian throughout, so that
     8  8  serial                         entries sort by (due, serial) as bytes
    16  8  first due, ms
    24  4  lane number
    28  1  flags: 1 the ticket left this position, 2 a mark at the ticket's `expires`

A blob is a run of sorted entries of one bucket, then a crc32 over its key and them. Its key:

     0  1  level: 3 far, 0 coarse, 1 middle, 2 fine, 4 loose
     1  8  start of the bucket, ms
     9  8  number of the blob: it makes the key unique, and says nothing else
    17  4  how many entries
    21  4  how many of them are negative

The counts stand in the key so that a bucket can be judged without reading its blobs. A loose blob
is of many coarse and far buckets; its start is that of the first coarse one.
"""

import struct
from bisect import bisect_left
from collections.abc import Iterator
from itertools import chain, repeat
from typing import NamedTuple
from zlib import crc32

__all__ = [
    "BLOB_ENTRIES_MAX",
    "COARSE",
    "COARSE_AHEAD_MS",
    "ENTRY_BYTES",
    "EXPIRY",
    "FAR",
    "FINE",
    "FINE_AHEAD_MS",
    "LEVELS",
    "LEVEL_BITS",
    "LOOSE",
    "MIDDLE",
    "MIDDLE_AHEAD_MS",
    "NEGATIVE",
    "POSITION_FIRST",
    "SERIAL_MAX",
    "BlobKey",
    "Entry",
    "Position",
    "blob_counts",
    "bucket_prefix",
    "cancel",
    "cut_into_buckets",
    "first_negative",
    "has_negatives",
    "join_blob",
    "pack_entries",
    "pack_entry",
    "pack_lane_keys",
    "pack_upper",
    "parse_blob_key",
    "position_of",
    "rank",
    "split_entries",
    "unpack_entries",
    "unpack_entry",
]

NEGATIVE = 1
EXPIRY = 2
_POSITIVE = frozenset((0, EXPIRY))
ENTRY_BYTES = 29
POSITION_BYTES = 16
SERIAL_MAX = (1 << 64) - 1

COARSE, MIDDLE, FINE, FAR, LOOSE = 0, 1, 2, 3, 4
# A bucket of a level spans 2^bits ms; what is loose lies anywhere behind the start of its blob.
LEVEL_BITS = (26, 22, 16, 30, 63)
LEVELS = (FAR, COARSE, MIDDLE, FINE)  # each splits into the next; what is loose into all of them
# A bucket is split before its start comes this near, and what is nearer is written finer at once.
COARSE_AHEAD_MS = 1 << 30
MIDDLE_AHEAD_MS = 1 << 26
FINE_AHEAD_MS = 1 << 22

# 15 pages of LMDB less the page header: bounds what a sweep reads to find its first entry, and
# what the free list must offer in one piece.
BLOB_ENTRIES_MAX = 2048

Position = tuple[int, int]  # (due_ms, serial)
POSITION_FIRST: Position = (0, 0)

_ENTRY = struct.Struct(">QQQIB")
_LANE_KEY = struct.Struct(">IQQ")
_POSITION = struct.Struct(">QQ")
_KEY = struct.Struct(">BQQII")
_PREFIX = struct.Struct(">BQ")
_RAW = struct.Struct(f"{ENTRY_BYTES}s")
assert _ENTRY.size == ENTRY_BYTES
assert _KEY.size == 25


class Entry(NamedTuple):
    due_ms: int
    serial: int
    first_due_ms: int
    lane_number: int
    flags: int = 0


class BlobKey(NamedTuple):
    level: int
    start_ms: int
    number: int
    entries: int
    negatives: int

    def pack(self) -> bytes:
        return _KEY.pack(*self)


def pack_entry(
    due_ms: int, serial: int, first_due_ms: int, lane_number: int, flags: int = 0
) -> bytes:
    """29 bytes that sort by (due, serial). `flags`: NEGATIVE, EXPIRY, both or none."""
    return _ENTRY.pack(due_ms, serial, first_due_ms, lane_number, flags)


def pack_entries(dues_ms: list[int], serials: list[int], lane_number: int) -> list[bytes]:
    """`pack_entry` of tickets of one lane that stand where they were first due."""
    packed = map(_ENTRY.pack, dues_ms, serials, dues_ms, repeat(lane_number), repeat(0))
    return list(packed)


def pack_lane_keys(lane_number: int, dues_ms: list[int], serials: list[int]) -> list[bytes]:
    """The keys in table `lanes` of tickets of one lane that stand where they were first due: lane
    number, first due, serial."""
    return list(map(_LANE_KEY.pack, repeat(lane_number), dues_ms, serials))


def unpack_entry(entry: bytes) -> Entry:
    return Entry._make(_ENTRY.unpack(entry))


def unpack_entries(entries: list[bytes]) -> list[tuple[int, int, int, int, int]]:
    """(due_ms, serial, first_due_ms, lane_number, flags) of each."""
    return list(_ENTRY.iter_unpack(b"".join(entries)))


def position_of(entry: bytes) -> Position:
    due_ms, serial = _POSITION.unpack_from(entry)
    return due_ms, serial


def pack_upper(position: Position) -> bytes:
    """A key that is greater than every entry at or before `position`, and less than the rest."""
    return _POSITION.pack(*position) + b"\xff"


def parse_blob_key(key: bytes | memoryview) -> BlobKey:
    return BlobKey._make(_KEY.unpack(key))


def blob_counts(key: bytes | memoryview) -> tuple[int, int, int]:
    """(start_ms, entries, negatives): what most readers of a key want, at half the price."""
    _, start_ms, _, entries, negatives = _KEY.unpack(key)
    return start_ms, entries, negatives


def bucket_prefix(level: int, start_ms: int) -> bytes:
    """What the keys of all blobs of a bucket begin with."""
    return _PREFIX.pack(level, start_ms)


def split_entries(content: bytes | memoryview) -> list[bytes]:
    return list(chain.from_iterable(_RAW.iter_unpack(content)))


def has_negatives(entries: list[bytes]) -> bool:
    return not _POSITIVE.issuperset(b"".join(entries)[28::ENTRY_BYTES])


def cancel(entries: list[bytes]) -> list[bytes]:
    """Sorted entries without the pairs that cancel: what is left is what they sum to.

    A negative entry whose positive is not among them stays, and so does a second positive.
    """
    # A removal sorts right after the entries it removes: they differ in the last bit alone.
    left: list[bytes] = []
    for entry in entries:
        if entry[28] & NEGATIVE and left:
            last = left[-1]
            if last[28] + NEGATIVE == entry[28] and last[:28] == entry[:28]:
                left.pop()
                continue
        left.append(entry)
    return left


def cut_into_buckets(entries: list[bytes], now_ms: int) -> Iterator[tuple[int, int, list[bytes]]]:
    """(level, start_ms, entries) of each bucket that sorted entries belong to as of `now_ms`."""
    ends = (
        (FINE, _ceil(now_ms + FINE_AHEAD_MS, LEVEL_BITS[MIDDLE])),
        (MIDDLE, _ceil(now_ms + MIDDLE_AHEAD_MS, LEVEL_BITS[COARSE])),
        (COARSE, _ceil(now_ms + COARSE_AHEAD_MS, LEVEL_BITS[FAR])),
    )
    at = 0
    while at < len(entries):
        due_ms = int.from_bytes(entries[at][:8], "big")
        level = FAR
        for nearer, end_ms in ends:
            if due_ms < end_ms:
                level = nearer
                break
        bits = LEVEL_BITS[level]
        start_ms = due_ms >> bits << bits
        end_ms = start_ms + (1 << bits)
        end = bisect_left(entries, end_ms.to_bytes(8, "big"), at)
        yield level, start_ms, entries[at:end]
        at = end


def _ceil(ms: int, bits: int) -> int:
    """The first bucket border at or after `ms`."""
    return -(-ms >> bits) << bits


def join_blob(
    level: int, start_ms: int, number: int, entries: list[bytes], *, is_mixed: bool
) -> tuple[bytes, bytes]:
    """Key and value of a blob. `is_mixed` False: the caller knows that no entry is negative."""
    negatives = sum(entry[28] & NEGATIVE for entry in entries) if is_mixed else 0
    key = _KEY.pack(level, start_ms, number, len(entries), negatives)
    content = b"".join(entries)
    return key, content + crc32(content, crc32(key)).to_bytes(4, "big")


def rank(run: memoryview, key: bytes, first: int = 0) -> int:
    """How many of the sorted entries of a run are less than `key`; `first` are known to be."""
    size = len(key)
    return bisect_left(
        range(len(run) // ENTRY_BYTES),
        key,
        first,
        key=lambda index: bytes(run[index * ENTRY_BYTES : index * ENTRY_BYTES + size]),
    )


def first_negative(run: memoryview) -> int | None:
    """The index of the first negative entry of a run."""
    flags = bytes(run[28::ENTRY_BYTES])
    found = [at for at in (flags.find(1), flags.find(3)) if at >= 0]
    return min(found, default=None)
