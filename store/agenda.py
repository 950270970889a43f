"""Writing the agenda: entries into buckets of time, coarse ones split ahead of their time.

An `AgendaWriter` lives as long as one write transaction. Each call does a bounded piece of work,
so that splitting and clearing ride along with commits. Reading is in `sweep`.
"""

from collections.abc import Iterable
from dataclasses import dataclass, field
from itertools import chain, groupby, islice
from operator import itemgetter
from typing import NamedTuple

from lmdb import Transaction, _Database

from parkade.store.entry import (
    BLOB_ENTRIES_MAX,
    COARSE,
    COARSE_AHEAD_MS,
    ENTRY_BYTES,
    FAR,
    FINE_AHEAD_MS,
    LEVEL_BITS,
    LOOSE,
    MIDDLE,
    MIDDLE_AHEAD_MS,
    blob_counts,
    bucket_prefix,
    cancel,
    cut_into_buckets,
    first_negative,
    has_negatives,
    join_blob,
    parse_blob_key,
    rank,
    split_entries,
)
from parkade.store.sweep import cut_at, open_blob

__all__ = ["AgendaWriter", "Upkeep"]

SMALL_ENTRIES = BLOB_ENTRIES_MAX // 2
SMALL_BLOBS_MAX = 64  # in one bucket, before they are joined
NEGATIVES_MAX = 32_768  # in one bucket, before they are cancelled whatever else is there
TALLIES_MAX = 4_096  # buckets whose sums are remembered, some 1 MB
LOOSE_BUCKETS_MIN = 8  # for fewer, a blob in each costs next to nothing
LOOSE_EACH_MAX = 16  # entries for each bucket: of more, a blob in each is worth its page
LOOSE_ENTRIES_MAX = 4_096  # in so many or 16 blobs; then they are put into their buckets: of those
LOOSE_BLOBS_MAX = 16  # of a year of sleepers each gets some 70
BUCKET_BYTES = 9  # of the key of a blob: its level and the start of its bucket
PATROL_BLOBS = 256  # looked at per commit, by their keys alone

Bucket = tuple[int, int]  # (level, start_ms)

_bucket_of = itemgetter(slice(BUCKET_BYTES))  # of the key of a blob
_AHEAD_MS = (
    (MIDDLE, FINE_AHEAD_MS),
    (COARSE, MIDDLE_AHEAD_MS),
    (LOOSE, MIDDLE_AHEAD_MS),
    (FAR, COARSE_AHEAD_MS),
)


@dataclass(slots=True)
class Upkeep:
    """What outlives a commit: buckets worth clearing, and how far the patrol has come.

    Losing it costs nothing: the patrol finds the same buckets again.
    """

    todo: dict[Bucket, None] = field(default_factory=dict[Bucket, None])
    patrol: bytes = b""
    tallies: dict[Bucket, "Tally"] = field(default_factory=dict[Bucket, "Tally"])


class Wants(NamedTuple):
    """What a bucket needs."""

    cancel: bool
    join: bool


class Tally(NamedTuple):
    """What the keys of a bucket's blobs say: its entries, how many of them are negative, and how
    many blobs are small."""

    entries: int = 0
    negatives: int = 0
    small: int = 0

    def plus(self, other: "Tally") -> "Tally":
        entries, negatives, small = other
        return Tally(self.entries + entries, self.negatives + negatives, self.small + small)


def tally_of(keys: list[bytes]) -> Tally:
    """Of the blobs with those keys."""
    entries = negatives = small = 0
    for _, count, removals in map(blob_counts, keys):
        entries += count
        negatives += removals
        small += count < SMALL_ENTRIES
    return Tally(entries, negatives, small)


def judge(tally: Tally) -> Wants:
    """What a bucket needs, told by its tally alone."""
    entries, negatives, small = tally
    is_mostly_garbage = negatives > 0 and 2 * negatives >= entries
    return Wants(is_mostly_garbage or negatives >= NEGATIVES_MAX, small >= SMALL_BLOBS_MAX)


def _summed(entries: list[bytes]) -> tuple[list[bytes], bool]:
    """They are sorted and cancelled; whether any of them were negative."""
    entries = sorted(entries)
    is_mixed = has_negatives(entries)
    return (cancel(entries) if is_mixed else entries), is_mixed


class AgendaWriter:
    """`next_blob` numbers the blobs and must be stored with them."""

    def __init__(
        self,
        transaction: "Transaction[memoryview]",
        table: _Database,
        path: str,
        *,
        now_ms: int,
        next_blob: int,
        upkeep: Upkeep,
    ) -> None:
        self.next_blob = next_blob
        self._path = path
        self._now_ms = now_ms
        self._upkeep = upkeep
        self._cursor = transaction.cursor(table)
        self._touched: dict[Bucket, Tally] = {}  # what was added to it

    def append(self, entries: list[bytes]) -> int:
        """Write entries, positive and negative, in any order; returns the bytes written. Of few for
        many buckets that are far away one blob is made, which later commits put there."""
        entries, is_mixed = _summed(entries)
        buckets = list(cut_into_buckets(entries, self._now_ms))
        far = [part for level, _, part in buckets if level in (FAR, COARSE)]
        scattered = list(chain.from_iterable(far))
        if len(far) < LOOSE_BUCKETS_MIN or len(scattered) > LOOSE_EACH_MAX * len(far):
            return self._put_into(buckets, is_mixed)
        near = buckets[: len(buckets) - len(far)]
        return self._put_into(near, is_mixed) + self._put_loose(scattered, is_mixed)

    def _put_loose(self, entries: list[bytes], is_mixed: bool) -> int:
        """One blob of sorted entries, or all that is loose into its buckets."""
        keys = self._under(bytes([LOOSE]))
        count = sum(blob_counts(key)[1] for key in keys)
        if len(keys) >= LOOSE_BLOBS_MAX or count + len(entries) > LOOSE_ENTRIES_MAX:
            return self._spread(self._take(keys, LOOSE_ENTRIES_MAX) + entries)
        bits = LEVEL_BITS[COARSE]
        start_ms = int.from_bytes(entries[0][:8], "big") >> bits << bits
        return self._put(self._blobs(LOOSE, start_ms, entries, is_mixed))

    def _spread(self, entries: list[bytes]) -> int:
        """Write entries into their buckets."""
        entries, is_mixed = _summed(entries)
        return self._put_into(cut_into_buckets(entries, self._now_ms), is_mixed)

    def _put_into(self, buckets: Iterable[tuple[int, int, list[bytes]]], is_mixed: bool) -> int:
        blobs: list[tuple[bytes, bytes]] = []
        for level, start_ms, part in buckets:
            blobs += self._blobs(level, start_ms, part, is_mixed)
        return self._put(blobs)

    def refine(self, budget: int) -> bool:
        """Split buckets whose time is near, about `budget` entries of them; True: some are left."""
        for level, ahead_ms in _AHEAD_MS:
            while (start_ms := self._first_start(level)) is not None:
                if start_ms >= self._now_ms + ahead_ms:
                    break
                if budget <= 0:
                    return True
                entries = self._take(self._keys(level, start_ms), budget)
                budget -= len(entries)
                self._spread(entries)
        return False

    def tidy(self, budget: int) -> bool:
        """Cancel and join blobs, about `budget` entries of them; True: some work is left."""
        todo = self._upkeep.todo
        todo.update(dict.fromkeys(self._worth_a_look()))
        self._patrol()
        waiting = list(todo)
        for at, bucket in enumerate(waiting):
            spent = self._tidy_bucket(bucket, budget) if budget > 0 else None
            if spent is None:
                # What is behind it was perhaps only touched: sort it out by its keys alone.
                for other in waiting[at:]:
                    if not any(judge(self._count(other, self._keys(*other)))):
                        del todo[other]
                break
            budget -= spent
        return bool(todo)

    def _worth_a_look(self) -> list[Bucket]:
        """The buckets of this commit that may want clearing. What their blobs sum to is known from
        the last look at their keys, and reckoned on: reading the keys of each bucket that a commit
        adds a few entries to cost more than adding them."""
        tallies = self._upkeep.tallies
        if len(tallies) > TALLIES_MAX:
            tallies.clear()
        found: list[Bucket] = []
        for bucket, added in self._touched.items():
            known = tallies.get(bucket)
            if known is not None:
                known = tallies[bucket] = known.plus(added)
            if known is None or any(judge(known)):
                found.append(bucket)
        return found

    def _count(self, bucket: Bucket, keys: list[bytes]) -> Tally:
        tally = self._upkeep.tallies[bucket] = tally_of(keys)
        return tally

    def _tidy_bucket(self, bucket: Bucket, budget: int) -> int | None:
        """Entries handled, in as many slices as the budget allows; None: it allows no more."""
        spent = 0
        while spent < budget:
            keys = self._keys(*bucket)
            wants = judge(self._count(bucket, keys))
            handled = 0
            if wants.cancel:
                handled = self._cancel_slice(bucket, keys, budget - spent)
            if wants.join and not handled:
                small = [key for key in keys if parse_blob_key(key).entries < SMALL_ENTRIES]
                entries = self._take(small, max(budget - spent, BLOB_ENTRIES_MAX))
                handled = len(entries)
                self._rewrite(bucket, entries)
            if not handled:
                del self._upkeep.todo[bucket]
                return spent
            spent += handled
        return None

    def _cancel_slice(self, bucket: Bucket, keys: list[bytes], budget: int) -> int:
        """Cancel from the bucket's first negative entry on; returns how many entries that took in,
        0 when none of them cancelled."""
        runs = [self._read(key) for key in keys]
        starts: list[bytes] = []
        for run in runs:
            index = first_negative(run)
            if index is not None:
                starts.append(bytes(run[index * ENTRY_BYTES : index * ENTRY_BYTES + 16]))
        if not starts:
            return 0
        spans = [(run, rank(run, min(starts)), len(run) // ENTRY_BYTES) for run in runs]
        upper = cut_at(spans, budget)
        taken: list[bytes] = []
        rests: list[bytes] = []
        spent_keys: list[bytes] = []
        for key, (run, first, end) in zip(keys, spans, strict=True):
            stop = end if upper is None else rank(run, upper, first)
            if stop > first:
                taken.append(bytes(run[first * ENTRY_BYTES : stop * ENTRY_BYTES]))
                rests.append(bytes(run[: first * ENTRY_BYTES]) + bytes(run[stop * ENTRY_BYTES :]))
                spent_keys.append(key)
        del runs, spans  # views of pages that the writes below let go
        entries = split_entries(b"".join(taken))
        entries.sort()
        left = cancel(entries)
        if len(left) == len(entries):
            return 0
        self._delete(spent_keys)
        for rest in map(split_entries, rests):
            if len(rest) < SMALL_ENTRIES:
                left += rest
            else:
                self._rewrite(bucket, rest)
        self._rewrite(bucket, left)
        return len(entries)

    def _rewrite(self, bucket: Bucket, entries: list[bytes]) -> None:
        """Put entries back into the bucket they came from, whatever the time."""
        entries = cancel(sorted(entries))
        self._put(self._blobs(*bucket, entries, True))

    def _take(self, keys: list[bytes], budget: int) -> list[bytes]:
        """Remove whole blobs, at least one, until they hold `budget` entries; returns those."""
        taken: list[bytes] = []
        contents: list[bytes] = []
        count = 0
        for key in keys:
            contents.append(bytes(self._read(key)))
            taken.append(key)
            count += parse_blob_key(key).entries
            if count >= budget:
                break
        self._delete(taken)
        return split_entries(b"".join(contents))

    def _blobs(
        self, level: int, start_ms: int, entries: list[bytes], is_mixed: bool
    ) -> list[tuple[bytes, bytes]]:
        blobs: list[tuple[bytes, bytes]] = []
        small = negatives = 0
        for at in range(0, len(entries), BLOB_ENTRIES_MAX):
            part = entries[at : at + BLOB_ENTRIES_MAX]
            blobs.append(join_blob(level, start_ms, self.next_blob, part, is_mixed=is_mixed))
            self.next_blob += 1
            small += len(part) < SMALL_ENTRIES
            if is_mixed:
                negatives += blob_counts(blobs[-1][0])[2]
        if blobs and level != LOOSE:  # which wants nothing but to be put into its buckets
            added = Tally(len(entries), negatives, small)
            before = self._touched.get((level, start_ms))
            self._touched[level, start_ms] = added if before is None else before.plus(added)
        return blobs

    def _put(self, blobs: list[tuple[bytes, bytes]]) -> int:
        blobs.sort()
        self._cursor.putmulti(blobs)
        return sum(len(value) for _, value in blobs)

    def _delete(self, keys: list[bytes]) -> None:
        for key in keys:
            blob = parse_blob_key(key)
            self._upkeep.tallies.pop((blob.level, blob.start_ms), None)
            if self._cursor.set_key(key):
                self._cursor.delete()

    def _read(self, key: bytes) -> memoryview:
        self._cursor.set_key(key)
        return open_blob(key, self._cursor.value(), self._path)

    def _keys(self, level: int, start_ms: int) -> list[bytes]:
        return self._under(bucket_prefix(level, start_ms))

    def _under(self, prefix: bytes) -> list[bytes]:
        """The keys that begin so."""
        keys: list[bytes] = []
        if self._cursor.set_range(prefix):
            for key in map(bytes, self._cursor.iternext(keys=True, values=False)):
                if not key.startswith(prefix):
                    break
                keys.append(key)
        return keys

    def _first_start(self, level: int) -> int | None:
        if not self._cursor.set_range(bytes([level])):
            return None
        blob = parse_blob_key(self._cursor.key())
        return blob.start_ms if blob.level == level else None

    def _patrol(self) -> None:
        """Look at the next few blobs, round and round, for buckets that nobody touches any more."""
        upkeep = self._upkeep
        if not self._cursor.set_range(upkeep.patrol or b"\0"):
            upkeep.patrol = b""
            return
        upkeep.patrol = b""
        following = map(bytes, self._cursor.iternext(keys=True, values=False))
        found = list(islice(following, PATROL_BLOBS))
        for key in following:
            if not key.startswith(_bucket_of(found[-1])):
                upkeep.patrol = key
                break
            found.append(key)
        seen = [list(keys) for _, keys in groupby(found, _bucket_of)]
        for keys in seen:
            blob = parse_blob_key(keys[0])
            if any(judge(self._count((blob.level, blob.start_ms), keys))):
                upkeep.todo[blob.level, blob.start_ms] = None
