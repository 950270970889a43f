"""Reading the agenda: sweeps in order of position, and walks over all of it. Changes nothing.

A sweep trusts the finest level alone. Where a coarser bucket is not split yet, its entries and the
finer ones after it are out of order, so a sweep stops before it and says so. A loose entry counts
as if it were in its coarse bucket.
"""

from collections.abc import Iterator
from struct import Struct
from typing import NamedTuple
from zlib import crc32

from lmdb import Cursor, Transaction, _Database

from parkade.store.entry import (
    COARSE,
    ENTRY_BYTES,
    EXPIRY,
    FAR,
    FINE,
    LEVEL_BITS,
    LEVELS,
    LOOSE,
    MIDDLE,
    NEGATIVE,
    SERIAL_MAX,
    Position,
    blob_counts,
    bucket_prefix,
    cancel,
    pack_upper,
    parse_blob_key,
    position_of,
    rank,
    split_entries,
)
from parkade.store.errors import Damage

__all__ = ["MS_MAX", "AgendaReader", "Sweep", "cut_at", "open_blob"]

MS_MAX = (1 << 63) - 1
_PLAIN = Struct(">QQQIx")
_MARK = Struct(">QQ13x")

STRETCH_MS = 1 << LEVEL_BITS[COARSE]  # of time that a walk takes at once

Span = tuple[memoryview, int, int]  # a run of entries, and which of them: [first, end)


class Sweep(NamedTuple):
    """What the agenda holds between two positions.

    `position` is how far it is complete: the horizon may move there, and no further.
    """

    entries: list[tuple[int, int, int, int]]  # (due_ms, serial, first_due_ms, lane_number)
    expiries: list[Position]  # (expires_ms, serial): marks, not positions of tickets
    position: Position
    needs_refine: bool  # it stopped at a bucket that a commit has yet to split


def open_blob(key: bytes | memoryview, stored: memoryview, path: str) -> memoryview:
    """The entries of a blob; raises `Damage` when key, length and checksum disagree."""
    run = stored[:-4]
    entries = blob_counts(key)[1]
    if len(run) != entries * ENTRY_BYTES or crc32(run, crc32(key)) != int.from_bytes(
        stored[-4:], "big"
    ):
        raise Damage(path, 0, f"blob {bytes(key).hex()} of table agenda fails its checksum")
    return run


def cut_at(spans: list[Span], want: int) -> bytes | None:
    """A key below which lie at least `want` entries of the spans, and not many more.

    None when there are not twice as many. It never parts the entries of one position.
    """
    spans = [span for span in spans if span[2] > span[1]]
    if sum(end - first for _, first, end in spans) <= 2 * want:
        return None
    # Each sample stands for the `stride` entries of its run that end with it.
    stride = max(1, want // (2 * len(spans)))
    samples = sorted(
        bytes(run[at * ENTRY_BYTES : at * ENTRY_BYTES + 16])
        for run, first, end in spans
        for at in range(first + stride - 1, end, stride)
    )
    index = -(-want // stride) - 1
    return samples[index] + b"\xff" if index < len(samples) else None


def take_slices(spans: list[Span], want: int) -> Iterator[list[bytes]]:
    """The entries of sorted spans in one order, about `want` at a time."""
    while spans:
        cut = cut_at(spans, want)
        taken: list[memoryview] = []
        rest: list[Span] = []
        for run, first, end in spans:
            stop = end if cut is None else min(end, rank(run, cut, first))
            taken.append(run[first * ENTRY_BYTES : stop * ENTRY_BYTES])
            if stop < end:
                rest.append((run, stop, end))
        entries = split_entries(b"".join(taken))
        entries.sort()
        yield entries
        spans = rest


def part_at(spans: list[Span], key: bytes) -> tuple[list[Span], list[Span]]:
    """The parts of spans below a key, and the rest of them."""
    below: list[Span] = []
    rest: list[Span] = []
    for run, first, end in spans:
        stop = min(end, rank(run, key, first))
        if stop > first:
            below.append((run, first, stop))
        if stop < end:
            rest.append((run, stop, end))
    return below, rest


def clip(run: memoryview, start_ms: int, end_ms: int, after: Position, stop_ms: int) -> Span:
    """The part of a run after a position and before `stop_ms`. All of the run lies between
    `start_ms` and `end_ms`, so most runs need no look inside."""
    first = rank(run, pack_upper(after)) if after[0] >= start_ms else 0
    end = len(run) // ENTRY_BYTES
    if stop_ms < end_ms:
        end = rank(run, stop_ms.to_bytes(8, "big"), first)
    return run, first, end


class AgendaReader:
    """Reads one snapshot; its transaction must give buffers."""

    def __init__(self, transaction: "Transaction[memoryview]", table: _Database, path: str) -> None:
        self._transaction = transaction
        self._table = table
        self._path = path

    def sweep(self, after: Position, until_ms: int, limit: int) -> Sweep:
        """The entries after a position, due up to `until_ms`, at most about `limit` of them.

        All entries of one position come together, so a sweep may return a few more than `limit`.
        Raises `Damage` for a blob that fails its checksum.
        """
        unsplit = self._first_unsplit(after)
        stop_ms = until_ms + 1 if unsplit is None else min(until_ms + 1, unsplit[1])
        found = self._net_entries(after, stop_ms, limit)
        if len(found) < limit:
            position = max(after, (stop_ms - 1, SERIAL_MAX))
            needs_refine = stop_ms <= until_ms
        else:
            end = limit
            while end < len(found) and found[end][:16] == found[end - 1][:16]:
                end += 1
            del found[end:]
            position, needs_refine = position_of(found[-1]), False
        # An entry that is there twice is one entry, and a removal of nothing removes nothing:
        # neither can wake a ticket wrongly, and a check of the whole store reports both.
        entries = [entry for entry in dict.fromkeys(found) if not entry[28] & NEGATIVE]
        marks = [entry for entry in entries if entry[28] & EXPIRY]
        if marks:
            entries = [entry for entry in entries if not entry[28] & EXPIRY]
        return Sweep(
            list(_PLAIN.iter_unpack(b"".join(entries))),
            list(_MARK.iter_unpack(b"".join(marks))),
            position,
            needs_refine,
        )

    def first_position(self, after: Position) -> Position | None:
        """The earliest position after `after` that holds an entry, split or not."""
        while True:
            swept = self.sweep(after, MS_MAX - 1, 1)
            if swept.entries or swept.expiries:
                return swept.position
            unsplit = self._first_unsplit(swept.position)
            if unsplit is None:
                return None
            level, start_ms = unsplit
            end_ms = start_ms + (1 << LEVEL_BITS[level])
            for entries in take_slices(self._spans(level, start_ms, end_ms, after), 4096):
                for entry in cancel(entries):
                    if not entry[28] & NEGATIVE:
                        return position_of(entry)
            after = (end_ms - 1, SERIAL_MAX)

    def walk(self, want: int) -> Iterator[list[bytes]]:
        """All entries of all levels, sorted and cancelled, about `want` at a time."""
        end_ms = 0
        while (start_ms := self._next_start(end_ms)) is not None:
            end_ms = start_ms + (1 << LEVEL_BITS[FAR])
            after = (start_ms - 1, SERIAL_MAX) if start_ms else (0, 0)
            spans = self._spans(FAR, start_ms, end_ms, after)
            # Not in one piece: to cut one takes a look at samples of all that is left of it.
            for stop_ms in range(start_ms, end_ms, STRETCH_MS):
                stretch, spans = part_at(spans, (stop_ms + STRETCH_MS).to_bytes(8, "big"))
                for entries in take_slices(stretch, want):
                    yield cancel(entries)

    def _net_entries(self, after: Position, stop_ms: int, limit: int) -> list[bytes]:
        """What the finest level holds after a position and before `stop_ms`, at least `limit`
        entries if there are as many."""
        cursor = self._transaction.cursor(self._table)
        bits = LEVEL_BITS[FINE]
        start_ms = after[0] >> bits << bits
        found: list[bytes] = []
        while start_ms < stop_ms and len(found) < limit:
            spans, is_mixed, start_ms = self._read_buckets(
                cursor, start_ms, after, stop_ms, limit - len(found)
            )
            for entries in take_slices(spans, limit):
                found += cancel(entries) if is_mixed else entries
                if len(found) >= limit:
                    break
        return found

    def _read_buckets(
        self, cursor: "Cursor[memoryview]", start_ms: int, after: Position, stop_ms: int, want: int
    ) -> tuple[list[Span], bool, int]:
        """(spans, whether any entry is negative, start of the next bucket) of whole fine buckets,
        as far as they lie after a position and before `stop_ms`."""
        spans: list[Span] = []
        is_mixed = False
        width_ms = 1 << LEVEL_BITS[FINE]
        bucket_ms = start_ms
        if cursor.set_range(bucket_prefix(FINE, start_ms)):
            for key, value in cursor.iternext():
                blob_ms, _, negatives = blob_counts(key)
                if key[0] != FINE or blob_ms >= stop_ms:
                    break
                if want <= 0 and blob_ms != bucket_ms:
                    return spans, is_mixed, blob_ms
                bucket_ms = blob_ms
                run = open_blob(key, value, self._path)
                span = clip(run, blob_ms, blob_ms + width_ms, after, stop_ms)
                if span[2] > span[1]:
                    spans.append(span)
                    want -= span[2] - span[1]
                    is_mixed |= negatives > 0
        return spans, is_mixed, stop_ms

    def _spans(self, level: int, start_ms: int, end_ms: int, after: Position) -> list[Span]:
        """Everything in a stretch of time, from `level` to the finest."""
        cursor = self._transaction.cursor(self._table)
        spans: list[Span] = []
        for each in LEVELS[LEVELS.index(level) :]:
            end = bucket_prefix(each, end_ms)
            if cursor.set_range(bucket_prefix(each, start_ms)):
                for key, value in cursor.iternext():
                    if bytes(key) >= end:
                        break
                    run = open_blob(key, value, self._path)
                    span = clip(run, start_ms, end_ms, after, end_ms)
                    if span[2] > span[1]:
                        spans.append(span)
        after = max(after, (start_ms - 1, SERIAL_MAX))
        for blob_ms, key, value in self._loose_blobs():
            if blob_ms >= end_ms:
                break
            span = clip(open_blob(key, value, self._path), 0, MS_MAX, after, end_ms)
            if span[2] > span[1]:
                spans.append(span)
        return spans

    def _loose_blobs(self) -> Iterator[tuple[int, memoryview, memoryview]]:
        """(start_ms, key, value) of each loose blob, in order of their starts."""
        cursor = self._transaction.cursor(self._table)
        if cursor.set_range(bucket_prefix(LOOSE, 0)):
            for key, value in cursor.iternext():
                yield blob_counts(key)[0], key, value

    def _first_loose(self, after: Position) -> int | None:
        """The start of the first coarse bucket that has a loose entry past a position."""
        bits = LEVEL_BITS[COARSE]
        starts: list[int] = []
        for blob_ms, key, value in self._loose_blobs():
            if blob_ms > after[0]:
                starts.append(blob_ms)
                break
            run = open_blob(key, value, self._path)
            at = rank(run, pack_upper(after)) * ENTRY_BYTES
            if at < len(run):
                starts.append(int.from_bytes(run[at : at + 8], "big") >> bits << bits)
        return min(starts, default=None)

    def _first_unsplit(self, after: Position) -> tuple[int, int] | None:
        """(level, start_ms) of the first bucket above the finest with room after a position."""
        due_ms = after[0] + (after[1] == SERIAL_MAX)
        found: list[tuple[int, int]] = []
        for level in (FAR, COARSE, MIDDLE):
            bits = LEVEL_BITS[level]
            start_ms = self._start_from(level, due_ms >> bits << bits)
            if start_ms is not None:
                found.append((level, start_ms))
        loose_ms = self._first_loose(after)
        if loose_ms is not None:
            found.append((COARSE, loose_ms))
        # Of those that begin together the first is the widest, and has what the others have.
        return min(found, key=lambda bucket: bucket[1], default=None)

    def _next_start(self, start_ms: int) -> int | None:
        """The first far stretch of time from `start_ms` on that has a blob of any level."""
        bits = LEVEL_BITS[FAR]
        starts = [self._start_from(level, start_ms) for level in LEVELS]
        starts.append(self._first_loose((start_ms - 1, SERIAL_MAX) if start_ms else (0, 0)))
        return min((start >> bits << bits for start in starts if start is not None), default=None)

    def _start_from(self, level: int, start_ms: int) -> int | None:
        cursor = self._transaction.cursor(self._table)
        if not cursor.set_range(bucket_prefix(level, start_ms)):
            return None
        blob = parse_blob_key(cursor.key())
        return blob.start_ms if blob.level == level else None
