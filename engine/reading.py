"""What is read of a shard's store for the core: whole tickets, sweeps, lane rows.

Each read is one short snapshot and says which LSN it saw. A row that fails its checksum is one
damaged ticket, reported apart; anything else that is wrong raises `Damage`.
"""

import heapq
from collections.abc import Callable, Container, Iterable, Iterator, Sequence
from itertools import chain

import msgspec

from parkade.index_keys import (
    GROUP_KIND,
    LISTING_KIND,
    STATE_KIND,
    group_prefix,
    task_prefix,
)
from parkade.shard.commands import Loaded, Need, UniqueRow
from parkade.shard.commands import Parked as ParkedTicket
from parkade.shard.history import AttemptRow, HistoryDamage, decode_attempt
from parkade.shard.lanes import LaneKey
from parkade.shard.outbox import Place
from parkade.shard.placement import SweepAsk, Swept, SweptEntry
from parkade.shard.refill import RefillAsk, Refilled
from parkade.shard.scout import ScoutAsk, Scouted
from parkade.shard.states import DEAD, PENDING, STATES
from parkade.shard.ticket import HeadDamage, StoredAt, Ticket, decode_ticket
from parkade.shard.unique import unique_name_of
from parkade.store.ended import Ended, EndedAt
from parkade.store.entry import POSITION_FIRST
from parkade.store.outbox import pack_place, receiver_key, unpack_place
from parkade.store.parked import ParkedReader
from parkade.store.record import Submitted
from parkade.store.rows import RowDamaged
from parkade.store.snapshot import Rows, Snapshot

__all__ = [
    "Body", "DamagedTicket", "GroupCounts", "GroupTickets", "Heads", "History", "OutboxRead",
    "Read", "StoreReader", "SweepRead",
]  # fmt: skip

NO_ROWS = Rows({}, [])
WALK_PAGE = 256
END_PAGE = 16  # serials of a group that are looked at together, from either end
_decode_unique = msgspec.msgpack.Decoder(UniqueRow).decode
_decode_draft = msgspec.msgpack.Decoder(Submitted).decode


class DamagedTicket(Exception):
    """A row of one ticket fails its checksum: it is never started, and answered with this."""

    reason = "checksum mismatch"

    def __init__(self, serial: int) -> None:
        self.serial = serial
        super().__init__(f"the stored row of serial {serial} fails its checksum")


class Read(msgspec.Struct):
    """Tickets as they were read, the serials of those whose rows are damaged, and the damage to
    unique rows by name."""

    loaded: Loaded
    damaged: set[int] = msgspec.field(default_factory=set[int])
    damaged_names: dict[bytes, RowDamaged] = msgspec.field(default_factory=dict[bytes, RowDamaged])

    @property
    def snapshot_commit(self) -> int:
        return self.loaded.snapshot_commit

    def damage_to(self, need: Need) -> Exception | None:
        """What is wrong with the rows that an ask needs; None: they are there, or are not."""
        for serial in need.serials:
            if serial in self.damaged:
                return DamagedTicket(serial)
        damages = (self.damaged_names.get(name) for name in need.uniques)
        return next((damage for damage in damages if damage is not None), None)


class SweepRead(msgspec.Struct):
    """A sweep's entries, and whether the agenda must be refined before one can go further."""

    swept: Swept
    needs_refine: bool


class Body(msgspec.Struct):
    """A payload or a result; None: there is no row. `is_damaged`: there is one, and it is bad."""

    snapshot_commit: int
    body: bytes | None
    is_damaged: bool = False


class History(msgspec.Struct):
    snapshot_commit: int
    rows: list[AttemptRow]


class OutboxRead(msgspec.Struct):
    """Entries of an outbox for one receiver, in order; `is_end`: there are no more."""

    snapshot_commit: int
    entries: list[tuple[Place, Submitted]]
    is_end: bool


class Heads(msgspec.Struct):
    """Part of an index, newest first: `last` is the lowest serial walked, None at its end."""

    snapshot_commit: int
    tickets: list[Ticket]
    walked: int
    last: int | None


class GroupCounts(msgspec.Struct):
    """Dead tickets by group, at an LSN; `last` is the group to go on after, None at the end."""

    snapshot_commit: int
    lsn: int
    counts: dict[bytes, int]
    last: bytes | None


class GroupTickets(msgspec.Struct):
    """The first and the last dead ticket of each group, by the order of their submits."""

    snapshot_commit: int
    ends: dict[bytes, list[Ticket]]


class StoreReader:
    """Used by who reads. `lane_number_of` gives the number of a lane that the store knows."""

    def __init__(self, store: ParkedReader, lane_number_of: Callable[[LaneKey], int]) -> None:
        self.store = store
        self._lane_number_of = lane_number_of

    def load(
        self, serials: Iterable[int], uniques: Iterable[bytes] = (), *, has_bodies: bool = False
    ) -> Read:
        """Heads with their unique rows (and bodies), and unique rows by name."""
        with self.store.snapshot() as snapshot:
            got = Read(Loaded(snapshot.commit, {}, {}))
            for name in uniques:
                try:
                    got.loaded.uniques[name] = _unique(snapshot, name)
                except RowDamaged as damage:
                    got.damaged_names[name] = damage
            self._load(snapshot, serials, has_bodies, got)
        return got

    def sweep(self, ask: SweepAsk) -> SweepRead:
        with self.store.snapshot() as snapshot:
            after = max(ask.from_pos, POSITION_FIRST)
            got = snapshot.sweep(after, ask.until_ms, ask.limit)
            entries = [SweptEntry(*entry, False) for entry in got.entries]
            if got.expiries:
                entries += [SweptEntry(*position, 0, 0, True) for position in got.expiries]
                entries.sort()
            return SweepRead(Swept(snapshot.commit, entries, got.position), got.needs_refine)

    def scout(self, ask: ScoutAsk) -> tuple[Scouted, set[int]]:
        """Who is due past a position, in other lanes than those that are full, whole."""
        with self.store.snapshot() as snapshot:
            glance = snapshot.glance(max(ask.after, POSITION_FIRST), ask.until_ms, ask.full)
            serials = [s for s in dict.fromkeys(glance.serials) if not ask.is_known(s)]
            got = Read(Loaded(snapshot.commit, {}, {}))
            self._load(snapshot, serials[: ask.limit], True, got)
        is_cut = len(serials) > ask.limit
        return Scouted(got.loaded, glance.blobs, is_cut), got.damaged

    def refill(self, ask: RefillAsk) -> tuple[Refilled, set[int]]:
        """The next rows of a lane, or of those of it that wait for a key, with the heads and unique
        rows of their tickets."""
        with self.store.snapshot() as snapshot:
            after = ask.after if ask.after > POSITION_FIRST else None  # before all: from the first
            number, limit = ask.lane_number, ask.limit
            if ask.key is None:
                rows = snapshot.lane_rows(number, limit=limit, after=after)
            else:
                rows = snapshot.wait_rows(ask.key, number, limit=limit, after=after)
            got = Read(Loaded(snapshot.commit, {}, {}))
            self._load(snapshot, [serial for _, serial, _ in rows], True, got)
        ranks = [(first_due_ms, serial) for first_due_ms, serial, _ in rows]
        is_end = len(rows) < ask.limit
        commit = got.snapshot_commit
        refilled = Refilled(ask.lane_number, commit, ranks, is_end, got.loaded, ask.key)
        return refilled, got.damaged

    def body(self, serial: int) -> Body:
        with self.store.snapshot() as snapshot:
            try:
                body = snapshot.body(serial)
            except RowDamaged:
                return Body(snapshot.commit, None, is_damaged=True)
            return Body(snapshot.commit, None if body is None else body[1])

    def history(self, serial: int) -> History:
        with self.store.snapshot() as snapshot:
            rows = snapshot.history(serial)
            try:
                return History(snapshot.commit, [decode_attempt(row) for _, row in rows])
            except HistoryDamage as error:
                key = serial.to_bytes(8, "big")
                raise RowDamaged(snapshot.path, "history", key, serial, str(error)) from error

    def outbox(self, receiver: int, after: Place, limit: int) -> OutboxRead:
        """The entries for a receiver from behind a place on, as many as said."""
        with self.store.snapshot() as snapshot:
            prefix = receiver_key(receiver)
            rows = snapshot.outbox(after=pack_place(receiver, after), prefix=prefix, limit=limit)
            entries = [(Place(*unpack_place(key)[1]), _decode_draft(row)) for key, row in rows]
            return OutboxRead(snapshot.commit, entries, len(rows) < limit)

    def bookmark(self, serial: int) -> Body:
        """What an attempt of it saved for the next one."""
        with self.store.snapshot() as snapshot:
            try:
                return Body(snapshot.commit, snapshot.bookmark(serial))
            except RowDamaged as damage:
                raise DamagedTicket(serial) from damage

    def ended(
        self, state: int, digest: bytes, before_ms: int, limit: int, after: EndedAt | None
    ) -> Ended:
        """Tickets of a task that ended in `state` before a time, the oldest first; some may have
        been forgotten since."""
        with self.store.snapshot() as snapshot:
            is_there = _has_died if state == DEAD else None
            return snapshot.ended().before(
                state, digest, before_ms, limit=limit, after=after, is_there=is_there
            )

    def spent_fronts(self, after: bytes, limit: int) -> tuple[list[bytes], bytes | None]:
        """See `EndedReader.spent_fronts`."""
        with self.store.snapshot() as snapshot:
            return snapshot.ended().spent_fronts(after, limit)

    def heads(
        self,
        indexes: Sequence[Sequence[bytes]],
        before: int,
        *,
        count: int,
        walk_max: int,
        fits: Callable[[Ticket], bool],
        floor: int = 0,
    ) -> Heads:
        """Tickets that fit, with serials from `floor` to below `before`: of the shortest of some
        indexes, each of them a few prefixes; of the table where there are none."""
        with self.store.snapshot() as snapshot:
            found = Heads(snapshot.commit, [], 0, before)
            for serial in _newest_of(snapshot, _shortest(snapshot, indexes), before):
                if serial < floor:
                    break
                found.walked += 1
                found.last = serial
                ticket = _head(snapshot, serial)
                if ticket is not None and fits(ticket):
                    found.tickets.append(ticket)
                if len(found.tickets) == count or found.walked == walk_max:
                    return found
            found.last = None
            return found

    def group_counts(self, after: bytes, limit: int) -> GroupCounts:
        """How many dead tickets each group has, from past `after`. No ticket is read for it."""
        with self.store.snapshot() as snapshot:
            prefixes = snapshot.prefixes(
                GROUP_KIND, after=group_prefix(after) if after else b"", limit=limit
            )
            counts = {prefix[len(GROUP_KIND) :]: count for prefix, count in prefixes}
            last = next(reversed(counts)) if len(counts) == limit else None
            return GroupCounts(snapshot.commit, snapshot.lsn, counts, last)

    def group_ends(self, groups: Iterable[bytes], passed_over: Container[int]) -> GroupTickets:
        """The two ends of each group, without the tickets that are to be passed over."""
        with self.store.snapshot() as snapshot:
            found = GroupTickets(snapshot.commit, {})
            for group in groups:
                prefix = group_prefix(group)
                ends = (
                    _first_fit(
                        _newest_first(snapshot, prefix, 1 << 64, END_PAGE),
                        snapshot,
                        group,
                        passed_over,
                    ),
                    _first_fit(_oldest_first(snapshot, prefix), snapshot, group, passed_over),
                )
                found.ends[group] = [ticket for ticket in ends if ticket is not None]
            return found

    def _load(
        self, snapshot: Snapshot, serials: Iterable[int], has_bodies: bool, got: Read
    ) -> None:
        """Table by table, each in the order of its rows."""
        loaded, asked = got.loaded, list(serials)
        heads = snapshot.heads(asked)
        bodies = snapshot.bodies(heads.found) if has_bodies else NO_ROWS
        got.damaged.update(heads.damaged, bodies.damaged)
        for serial in asked:
            loaded.tickets[serial] = None
            head = heads.found.get(serial)
            if head is None or serial in got.damaged:
                continue
            try:
                ticket = _ticket(serial, head)
                name = unique_name_of(ticket)
                if name is not None and name not in loaded.uniques:
                    loaded.uniques[name] = _unique(snapshot, name)
            except (RowDamaged, HeadDamage):
                got.damaged.add(serial)
                continue
            body = bodies.found.get(serial)
            loaded.tickets[serial] = ParkedTicket(
                ticket, self._stored_at(ticket), None if body is None else body[1:]
            )

    def _stored_at(self, ticket: Ticket) -> StoredAt:
        """Where the store has a ticket, told from its head alone."""
        due_ms, first_due_ms = ticket.due_ms, ticket.first_due_ms
        if ticket.state != PENDING:
            return StoredAt(ticket.state, due_ms, first_due_ms, 0, group=ticket.group)
        options, expiry_ms = ticket.options, 0
        if options is not None and options.expires_ms is not None and ticket.fence == 0:
            expiry_ms = first_due_ms + options.expires_ms
        number = self._lane_number_of(ticket.lane)
        return StoredAt(PENDING, due_ms, first_due_ms, number, expiry_ms, None, ticket.group)


def _has_died(head: bytes, finished_ms: int) -> bool:
    """A dead ticket may have come back since, and may have died anew."""
    try:
        ticket = decode_ticket(head)
    except HeadDamage:
        return False
    return ticket.state == DEAD and ticket.finished_ms == finished_ms


def _shortest(snapshot: Snapshot, indexes: Sequence[Sequence[bytes]]) -> Sequence[bytes] | None:
    """The index with the fewest rows, without its empty prefixes; None: there is no index."""
    if not indexes:
        return None
    listed = {
        task_prefix(task, state): count for (task, state), count in snapshot.counters().items()
    }

    def counted(prefix: bytes) -> list[tuple[int, bytes]]:
        if prefix.startswith(STATE_KIND):
            return [(listed[one], one) for one in listed if one.endswith(prefix[1:])]
        if prefix.startswith(LISTING_KIND):
            return [(listed.get(prefix, 0), prefix)]
        return [(snapshot.count(prefix), prefix)]

    counts = [list(chain.from_iterable(map(counted, index))) for index in indexes]
    shortest = min(counts, key=lambda index: sum(count for count, _ in index))
    return [prefix for count, prefix in shortest if count]


def _newest_of(snapshot: Snapshot, prefixes: Sequence[bytes] | None, before: int) -> Iterator[int]:
    """Serials of the table, or of all prefixes together: a ticket is under one of them at most."""
    if prefixes is None:
        return _newest_of_all(snapshot, before)
    listings = snapshot.listings()
    walks = [
        listings.newest(prefix, before)
        if prefix.startswith(LISTING_KIND)
        else _newest_first(snapshot, prefix, before)
        for prefix in prefixes
    ]
    return walks[0] if len(walks) == 1 else heapq.merge(*walks, reverse=True)


def _newest_of_all(snapshot: Snapshot, before: int) -> Iterator[int]:
    while page := snapshot.serials(before=before, limit=WALK_PAGE):
        yield from page
        before = page[-1]


def _newest_first(
    snapshot: Snapshot, prefix: bytes, before: int, limit: int = WALK_PAGE
) -> Iterator[int]:
    end = before if before < 1 << 64 else None
    while page := snapshot.page(prefix, limit=limit, before=end):
        yield from page
        end = page[-1]


def _oldest_first(snapshot: Snapshot, prefix: bytes) -> Iterator[int]:
    after = -1
    while page := snapshot.page(prefix, limit=END_PAGE, after=after):
        yield from page
        after = page[-1]


def _first_fit(
    serials: Iterable[int], snapshot: Snapshot, group: bytes, passed_over: Container[int]
) -> Ticket | None:
    for serial in serials:
        ticket = None if serial in passed_over else _head(snapshot, serial)
        if ticket is not None and ticket.group == group:
            return ticket
    return None


def _unique(snapshot: Snapshot, name: bytes) -> UniqueRow | None:
    row = snapshot.unique(name)
    try:
        return None if row is None else _decode_unique(row)
    except msgspec.MsgspecError as error:
        raise RowDamaged(snapshot.path, "uniques", name, None, str(error)) from error


def _head(snapshot: Snapshot, serial: int) -> Ticket | None:
    """None also for a damaged row: a listing goes on without it."""
    try:
        head = snapshot.head(serial)
        return None if head is None else _ticket(serial, head)
    except (RowDamaged, HeadDamage):
        return None


def _ticket(serial: int, head: bytes) -> Ticket:
    """What stands in a head. Raises `HeadDamage`, also for the head of another ticket."""
    ticket = decode_ticket(head)
    if ticket.serial != serial or ticket.state not in STATES:
        raise HeadDamage(f"under serial {serial} stands serial {ticket.serial}, in no known state")
    return ticket
