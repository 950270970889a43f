"""Looking through the agenda for tickets of few lanes, past a crowd of others.

Nearly all blobs of a crowd are of one lane, which is told of a whole blob as fast as its bytes are
copied. In no order, and of no use for moving the horizon: whoever was found is to be read.
"""

from collections.abc import Collection
from typing import NamedTuple

from lmdb import Transaction, _Database

from parkade.store.entry import (
    ENTRY_BYTES,
    EXPIRY,
    LEVEL_BITS,
    LEVELS,
    LOOSE,
    NEGATIVE,
    Position,
    blob_counts,
    bucket_prefix,
    cancel,
    position_of,
    split_entries,
)
from parkade.store.sweep import clip, open_blob

__all__ = ["Glance", "glance"]

BLOBS_MAX = 4_096  # a tenth of a second where all are of one lane

_LANE = slice(24, 28)  # of a packed entry


class Glance(NamedTuple):
    """Serials by (due, serial), and how many blobs were looked at."""

    serials: list[int]
    blobs: int


def glance(
    transaction: "Transaction[memoryview]",
    table: _Database,
    path: str,
    after: Position,
    until_ms: int,
    passed: Collection[int],
) -> Glance:
    """The tickets past a position, due up to a time, of lanes that are not among those numbers. The
    first blobs of each level alone, where there are very many; marks of expiry are left out.

    Raises `Damage` for a blob that fails its checksum and has others than those.
    """
    lanes = frozenset(number.to_bytes(4, "big") for number in passed)
    cursor = transaction.cursor(table)
    found: list[bytes] = []
    blobs = 0
    for level in (*LEVELS, LOOSE):
        width_ms = 1 << LEVEL_BITS[level]
        left = BLOBS_MAX
        if not cursor.set_range(bucket_prefix(level, after[0] // width_ms * width_ms)):
            continue
        for key, value in cursor.iternext():
            start_ms = blob_counts(key)[0]
            if key[0] != level or start_ms > until_ms or not left:
                break
            left, blobs = left - 1, blobs + 1
            if not _is_of(value[:-4], lanes):
                run = open_blob(key, value, path)
                _, first, end = clip(run, start_ms, start_ms + width_ms, after, until_ms + 1)
                entries = split_entries(run[first * ENTRY_BYTES : end * ENTRY_BYTES])
                found += [entry for entry in entries if entry[_LANE] not in lanes]
    found.sort()
    net = [entry for entry in cancel(found) if not entry[28] & (NEGATIVE | EXPIRY)]
    return Glance([position_of(entry)[1] for entry in net], blobs)


def _is_of(run: memoryview, lanes: frozenset[bytes]) -> bool:
    """Whether all entries are of one lane, which is among these."""
    lane, count = bytes(run[_LANE]), len(run) // ENTRY_BYTES
    return lane in lanes and all(
        bytes(run[_LANE.start + place :: ENTRY_BYTES]).count(lane[place]) == count
        for place in (3, 2, 1, 0)
    )
