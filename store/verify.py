"""A walk over a whole store that tells every way in which its tables disagree. Changes nothing.

The store knows nothing of tickets, so the caller brings a function that reads a head. The walk
keeps one snapshot open from its beginning to its end: run it on a store that nobody writes to, or
accept that the file grows meanwhile.
"""

from collections import Counter
from collections.abc import Callable, Generator, Iterable, Iterator
from typing import NamedTuple

from lmdb import _Database

from parkade.store.bodies import SERIAL_BYTES, cut_count, kind_of, rest_keys
from parkade.store.entry import EXPIRY, NEGATIVE, unpack_entry
from parkade.store.environment import INDEX_SERIAL_BYTES
from parkade.store.errors import Damage
from parkade.store.listing_check import ListingCheck
from parkade.store.rows import unseal
from parkade.store.snapshot import Snapshot
from parkade.store.sweep import AgendaReader
from parkade.store.writer import unpack_stamps

__all__ = ["Decode", "HeadFacts", "Judge", "Problem", "verify"]

WALK_ENTRIES = 16_384
LOST_SERIALS = 500_000  # looked for in one pass over the agenda, to bound memory
_MASK = (1 << 64) - 1


class HeadFacts(NamedTuple):
    """What a head promises about the other tables. Times are ms since the epoch."""

    task: str
    state: int
    is_pending: bool
    due_ms: int
    first_due_ms: int
    key: str | None = None
    expiry_ms: int | None = None  # where the agenda has a mark for it
    ended_ms: int | None = None  # when it ended, if retention is to find it by that
    listed_under: bytes | None = None  # the prefix of its listing
    index_keys: tuple[bytes, ...] = ()  # prefix and serial, as they were put
    body_kind: int | None = None  # with which byte its body must begin; None: nothing is asked


Decode = Callable[[int, bytes], HeadFacts | None]  # (serial, head); None: it is no head
Judge = Callable[[str, bytes, bytes], bool]  # (table, key, row): whether it can be read


class Problem(NamedTuple):
    """One disagreement. `serial` is the ticket it costs, None where it costs more than one or it
    cannot be told."""

    table: str
    serial: int | None
    text: str


def verify(
    snapshot: Snapshot, decode: Decode, *, deep: bool, judge: Judge | None = None
) -> Iterator[Problem]:
    """Every problem of a store, in no particular order; none means that the tables agree.

    Without `deep`: the rows that belong to no single ticket, and the sums of the agenda. With it:
    every row, every head against agenda, lanes, indexes and counters. `judge` is asked of rows of
    history, uniques and outbox whose checksums are right.
    """
    return _Walk(snapshot, decode, judge).run(deep)


class _Places:
    """A multiset of serials, as far as it can be compared in constant memory."""

    def __init__(self) -> None:
        self._seen = (0, 0, 0)

    def add(self, serial: int) -> None:
        count, total, squares = self._seen
        mixed = serial * 0x9E37_79B9_7F4A_7C15 & _MASK
        self._seen = count + 1, total + mixed & _MASK, squares + mixed * mixed & _MASK

    def is_same(self, other: "_Places") -> bool:
        return self._seen == other._seen


def _torn(key: bytes, what: str) -> Problem:
    return Problem("bodies", int.from_bytes(key[:SERIAL_BYTES], "big"), f"row {key.hex()} {what}")


class _Walk:
    def __init__(self, snapshot: Snapshot, decode: Decode, judge: Judge | None = None) -> None:
        self._judge = judge
        self._snapshot = snapshot
        self._tables = snapshot.tables
        self._transaction = snapshot.transaction
        self._decode = decode
        self._agenda = AgendaReader(snapshot.transaction, snapshot.tables.agenda, snapshot.path)
        self._pending = _Places()
        self._placed = _Places()
        self._marks = 0
        self._to_forget = _Places()
        self._noted = _Places()

    def run(self, deep: bool) -> Iterator[Problem]:
        yield from self._meta()
        sealed = ["lane_names", "unique_ends", "ended", "outbox"]
        if deep:
            sealed += ["bodies", "history", "uniques"]
        for name in sealed:
            yield from self._sealed(name, getattr(self._tables, name))
        is_sound = True
        try:
            yield from self._entries(deep)
        except Damage as damage:
            is_sound = False
            yield Problem("agenda", None, damage.reason)
        yield from self._lanes(deep)
        yield from self._waits(deep)
        listings = ListingCheck(self._transaction, self._tables.listings, self._snapshot.path)
        for text in listings.rows():
            yield Problem("listings", None, text)
        if deep:
            yield from self._ended()
            marks_wanted = yield from self._heads(listings)
            if not self._to_forget.is_same(self._noted):
                yield Problem("ended", None, "what has ended is not what is noted to be forgotten")
            if is_sound and marks_wanted != self._marks:
                yield Problem("agenda", None, f"{self._marks} marks, of {marks_wanted} that expire")
            if is_sound and not self._pending.is_same(self._placed):
                yield from self._lost()

    def _meta(self) -> Iterator[Problem]:
        for read in (
            self._snapshot.state,
            self._snapshot.counters,
            self._snapshot.lane_row_counts,
        ):
            try:
                read()
            except Damage as damage:
                yield Problem("meta", None, damage.reason)

    def _sealed(self, name: str, table: _Database) -> Iterator[Problem]:
        """Rows that fail their checksum; bodies and history must have a head as well."""
        heads = self._transaction.cursor(self._tables.heads)
        is_of_ticket = name in ("bodies", "history")
        for key, stored in self._rows(table):
            serial = int.from_bytes(key[:8], "big") if is_of_ticket else None
            row = unseal(key, stored)
            if row is None:
                yield Problem(name, serial, f"row {bytes(key).hex()} fails its checksum")
            elif self._judge is not None and not self._judge(name, bytes(key), row):
                yield Problem(name, serial, f"row {bytes(key).hex()} cannot be read")
            if is_of_ticket and not heads.set_key(key[:8]):
                yield Problem(name, serial, f"row {bytes(key).hex()} belongs to no ticket")
        if name == "bodies":
            yield from self._cut_bodies()

    def _cut_bodies(self) -> Iterator[Problem]:
        """Bodies in several rows: whether all of these are there, and no others."""
        wanted: list[bytes] = []
        for key, stored in self._rows(self._tables.bodies):
            here = bytes(key)
            if wanted and here == wanted[0]:
                del wanted[0]
                continue
            if wanted:
                yield _torn(wanted[0], "is missing")
            is_piece = len(here) > SERIAL_BYTES
            if is_piece:
                yield _torn(here, "follows no other")
            wanted = [] if is_piece else list(rest_keys(here, cut_count(stored)))
        if wanted:
            yield _torn(wanted[0], "is missing")

    def _entries(self, deep: bool) -> Iterator[Problem]:
        """The agenda: what its entries sum to, and whether their tickets say the same."""
        last = b""
        for entries in self._agenda.walk(WALK_ENTRIES):
            for packed in entries:
                entry = unpack_entry(packed)
                where = f"{entry.due_ms} ms"
                if entry.flags & NEGATIVE:
                    text = f"a removal at {where} has nothing to remove"
                    yield Problem("agenda", entry.serial, text)
                    continue
                if packed == last:
                    yield Problem("agenda", entry.serial, f"two entries at {where}")
                last = packed
                if not deep:
                    continue
                facts = self._facts(entry.serial)
                if facts is None and self._has_head(entry.serial):
                    continue  # what the head says cannot be read, and that is told elsewhere
                if entry.flags & EXPIRY:
                    self._marks += 1
                    if facts is None or facts.expiry_ms != entry.due_ms:
                        text = f"a mark at {where} that its ticket does not have"
                        yield Problem("agenda", entry.serial, text)
                    continue
                self._placed.add(entry.serial)
                if facts is None or not facts.is_pending:
                    text = f"an entry at {where} of a ticket that is not pending"
                    yield Problem("agenda", entry.serial, text)
                elif (facts.due_ms, facts.first_due_ms) != (entry.due_ms, entry.first_due_ms):
                    text = f"an entry at {where} of a ticket due at {facts.due_ms} ms"
                    yield Problem("agenda", entry.serial, text)

    def _lanes(self, deep: bool) -> Iterator[Problem]:
        """Rows of lanes: their checksums, their tickets, their number."""
        names = self._transaction.cursor(self._tables.lane_names)
        counts: Counter[int] = Counter()
        for key, stored in self._rows(self._tables.lanes):
            lane_number, serial = int.from_bytes(key[:4], "big"), int.from_bytes(key[12:], "big")
            counts[lane_number] += 1
            due = unseal(key, stored)
            if due is None:
                yield Problem("lanes", serial, f"its row in lane {lane_number} fails its checksum")
                continue
            if not deep:
                continue
            facts = self._facts(serial)
            if facts is None and self._has_head(serial):
                continue
            self._placed.add(serial)
            place = int.from_bytes(due, "big"), int.from_bytes(key[4:12], "big")
            if facts is None or not facts.is_pending:
                yield Problem("lanes", serial, "a row of a ticket that is not pending")
            elif (facts.due_ms, facts.first_due_ms) != place:
                yield Problem(
                    "lanes", serial, f"a row of a ticket that is due at {facts.due_ms} ms"
                )
        for lane_number in counts:
            if not names.set_key(lane_number.to_bytes(4, "big")):
                yield Problem("lanes", None, f"lane {lane_number} has rows and no name")
        try:
            stored_counts = self._snapshot.lane_row_counts()
        except Damage:
            return  # told with the other rows of meta
        if stored_counts != counts:
            yield Problem("meta", None, f"rows per lane are {dict(counts)}, not {stored_counts}")

    def _waits(self, deep: bool) -> Iterator[Problem]:
        """Rows of tickets that wait for their keys: their checksums, their tickets, their lane."""
        names = self._transaction.cursor(self._tables.lane_names)
        for key, stored in self._rows(self._tables.waits):
            lane_number, serial = (
                int.from_bytes(key[-20:-16], "big"),
                int.from_bytes(key[-8:], "big"),
            )
            due = unseal(key, stored)
            if due is None:
                yield Problem("waits", serial, "its row among those of its key fails its checksum")
                continue
            if not names.set_key(key[-20:-16]):
                yield Problem("waits", None, f"lane {lane_number} has rows and no name")
            facts = self._facts(serial) if deep else None
            if not deep or (facts is None and self._has_head(serial)):
                continue
            self._placed.add(serial)
            place = int.from_bytes(due, "big"), int.from_bytes(key[-16:-8], "big")
            if facts is None or not facts.is_pending:
                yield Problem("waits", serial, "a row of a ticket that is not pending")
            elif (facts.due_ms, facts.first_due_ms, facts.key) != (
                *place,
                bytes(key[1:-20]).decode(),
            ):
                text = f"a row of a ticket of key {facts.key}, due at {facts.due_ms} ms"
                yield Problem("waits", serial, text)

    def _ended(self) -> Iterator[Problem]:
        """What is noted of those that retention will look for by the time of their end."""
        for key, stored in self._rows(self._tables.ended):
            for finished_ms, serial in unpack_stamps(unseal(key, stored) or b""):
                facts = self._facts(serial)
                if facts is None or facts.ended_ms is None or facts.state != key[0]:
                    continue  # gone, or it has come back from that end
                self._noted.add(serial)
                if facts.ended_ms != finished_ms:
                    text = f"it ended at {facts.ended_ms} ms, and is noted at {finished_ms} ms"
                    yield Problem("ended", serial, text)

    def _rows(self, table: _Database) -> Iterator[tuple[memoryview, memoryview]]:
        """All of a table. Damaged pages may lead back to where the walk has been: it ends there."""
        last = b""
        for key, stored in self._transaction.cursor(table):
            here = bytes(key)
            if here <= last:
                reason = f"a table goes from row {last.hex()} back to row {here.hex()}"
                raise Damage(self._snapshot.path, 0, reason)
            last = here
            yield key, stored

    def _facts(self, serial: int) -> HeadFacts | None:
        key = serial.to_bytes(8, "big")
        stored = self._transaction.get(key, db=self._tables.heads)
        head = None if stored is None else unseal(key, stored)
        return None if head is None else self._decode(serial, head)

    def _has_head(self, serial: int) -> bool:
        key = serial.to_bytes(8, "big")
        return self._transaction.get(key, db=self._tables.heads) is not None

    def _heads(self, listings: ListingCheck) -> Generator[Problem, None, int]:
        """Every head, and what it promises of listings and indexes; then the sums over all of them.

        Returns how many marks the agenda should have.
        """
        counts: Counter[tuple[str, int]] = Counter()
        bodies = self._transaction.cursor(self._tables.bodies)
        indexes = self._transaction.cursor(self._tables.indexes)
        index_rows = marks = 0
        for key, stored in self._rows(self._tables.heads):
            serial = int.from_bytes(key, "big")
            head = unseal(key, stored)
            facts = None if head is None else self._decode(serial, head)
            if facts is None:
                what = "fails its checksum" if head is None else "cannot be read"
                yield Problem("heads", serial, f"the head {what}")
                continue
            counts[facts.task, facts.state] += 1
            marks += facts.expiry_ms is not None
            if facts.is_pending:
                self._pending.add(serial)
            if facts.ended_ms is not None:
                self._to_forget.add(serial)
            if facts.body_kind is not None:
                if not bodies.set_key(key):
                    yield Problem("bodies", serial, "what it was to do, or gave, is not there")
                elif kind_of(bodies.value()) != facts.body_kind:
                    yield Problem("bodies", serial, "its body is of another kind than it says")
            if facts.listed_under is not None:
                extra, is_listed = listings.meet(facts.listed_under, serial)
                yield from self._unasked(extra)
                if not is_listed:
                    yield Problem("listings", serial, "it is not listed under its state")
            for index_key in facts.index_keys:
                split = len(index_key) - INDEX_SERIAL_BYTES
                if not indexes.set_key_dup(index_key[:split], index_key[split:]):
                    yield Problem("indexes", serial, f"no row {index_key.hex()}")
                index_rows += 1
        yield from self._unasked(listings.rest())
        stored_rows = self._transaction.stat(self._tables.indexes)["entries"]
        if stored_rows != index_rows:
            yield Problem(
                "indexes", None, f"{stored_rows} rows, and the heads ask for {index_rows}"
            )
        try:
            counters = self._snapshot.counters()
        except Damage:
            return marks  # told with the other rows of meta
        if counters != counts:
            wrong = [
                f"{task!r} in state {state}: counted {counters.get((task, state), 0)}, there are "
                f"{counts[task, state]}"
                for task, state in sorted(counters.keys() | counts.keys())
                if counters.get((task, state), 0) != counts[task, state]
            ]
            yield Problem("meta", None, "; ".join(wrong))
        return marks

    def _unasked(self, serials: Iterable[int]) -> Iterator[Problem]:
        """Those that are listed where their heads do not say so."""
        for serial in serials:
            if self._facts(serial) is not None:
                yield Problem("listings", serial, "it is listed under a state that it is not in")
            elif not self._has_head(serial):
                yield Problem("listings", serial, "it is listed, and there is no ticket of it")

    def _lost(self) -> Iterator[Problem]:
        """Pending tickets with no place or more than one, found a slice of serials at a time."""
        wanted: Counter[int] = Counter()
        for key, stored in self._rows(self._tables.heads):
            serial = int.from_bytes(key, "big")
            head = unseal(key, stored)
            facts = None if head is None else self._decode(serial, head)
            if facts is not None and facts.is_pending:
                wanted[serial] = 0
            if len(wanted) >= LOST_SERIALS:
                yield from self._misplaced(wanted)
                wanted.clear()
        yield from self._misplaced(wanted)

    def _misplaced(self, wanted: "Counter[int]") -> Iterator[Problem]:
        for entries in self._agenda.walk(WALK_ENTRIES):
            for packed in entries:
                serial, flags = int.from_bytes(packed[8:16], "big"), packed[28]
                if not flags and serial in wanted:
                    wanted[serial] += 1
        for table in (self._tables.lanes, self._tables.waits):
            for key, _ in self._rows(table):
                serial = int.from_bytes(key[-8:], "big")
                if serial in wanted:
                    wanted[serial] += 1
        for serial, places in wanted.items():
            if places == 0:
                yield Problem("agenda", serial, "a pending ticket has no entry and no row")
            elif places > 1:
                yield Problem("agenda", serial, f"a pending ticket has {places} places")
