"""A parked store in memory, for tests of the core: tables as dicts, commits at once, old snapshots.

It does what the core counts on, the slow and obvious way: one commit makes it the state at one LSN,
and the writer finds a ticket's old entry by looking (docs/architecture.md, Placement, rule 6).
"""

from collections import Counter
from copy import deepcopy
from dataclasses import dataclass, field
from typing import TypeVar

from msgspec.structs import replace

from parkade.shard import (
    DONE,
    ENTRY_AGENDA,
    ENTRY_LANE,
    ENTRY_WAITS,
    PENDING,
    AttemptRow,
    Cut,
    LaneMove,
    RefillAsk,
    Refilled,
    Shard,
    SweepAsk,
    Swept,
    SweptEntry,
    decode_attempt,
    encode_attempt,
    encode_lane,
)
from parkade.shard.check import StoreView
from parkade.shard.commands import Loaded, Parked, UniqueRow
from parkade.shard.outbox import Place
from parkade.shard.retry import expiry_of
from parkade.shard.scout import ScoutAsk, Scouted
from parkade.shard.ticket import (
    SERIAL_MAX,
    Placed,
    StoredAt,
    Ticket,
    decode_ticket,
    encode_plain,
    encode_ticket,
    ticket_of,
)
from parkade.shard.unique import unique_name_of
from parkade.store.record import Submitted

AgendaEntry = tuple[int, int, int, int]

K = TypeVar("K")
V = TypeVar("V")


@dataclass
class Batch:
    """What one checkpoint writes, and how each of its tickets stands in the store then."""

    lsn: int
    counters: dict[tuple[str, int], int]
    heads: dict[int, bytes | None] = field(default_factory=dict)
    bodies: dict[int, bytes | None] = field(default_factory=dict)
    uniques: dict[bytes, UniqueRow | None] = field(default_factory=dict)
    history: dict[tuple[int, int], bytes] = field(default_factory=dict)
    leaves: list[tuple[int, StoredAt, str | None]] = field(default_factory=list)
    enters: list[tuple[int, StoredAt, str | None]] = field(default_factory=list)
    moves: dict[int, LaneMove] = field(default_factory=dict)
    lane_names: list[tuple[int, bytes | None]] = field(default_factory=list)
    outbox: dict[tuple[int, Place], Submitted] = field(default_factory=dict)
    handed: dict[int, Place] = field(default_factory=dict)
    taken: dict[int, Place] = field(default_factory=dict)
    placed: dict[int, Placed | None] = field(default_factory=dict)


class Building:
    """A checkpoint being encoded, in as many slices as one likes, while the core goes on."""

    def __init__(self, core: Shard, cut: Cut) -> None:
        self.core = core
        self.flight = cut.flight
        self.batch = Batch(cut.lsn, cut.counters, taken=cut.taken)
        self.todo = list(cut.flight.tickets)
        self.plain = list(cut.flight.plain.values())

    def slice(self, count: int) -> bool:
        """Encode some more tickets; True when all are done."""
        for serial in self.todo[:count]:
            self._encode(serial, self.flight.tickets[serial])
        del self.todo[:count]
        return not self.todo

    def finish(self) -> Batch:
        """Encode the rest."""
        self.slice(len(self.todo))
        batch, flight = self.batch, self.flight
        for draft in self.plain:
            ticket = ticket_of(draft)
            number = self.core.lane_number(ticket.lane)
            at = stored_at(ticket, number, flight.is_lined(draft.task, draft.serial))
            batch.heads[draft.serial] = _plain_head(draft)
            batch.enters.append((draft.serial, at, None))
        batch.bodies = {**{draft.serial: draft.payload for draft in self.plain}, **flight.bodies}
        batch.uniques = dict(flight.uniques)
        batch.history = {place: encode_attempt(row) for place, row in flight.history.items()}
        batch.moves = dict(flight.moves)
        batch.lane_names = list(flight.lane_names)
        batch.handed = dict(flight.handed)
        for receiver, entries in flight.outbox.items():
            batch.outbox |= {(receiver, place): entry for place, entry in entries.items()}
        return batch

    def _encode(self, serial: int, ticket: Ticket | None) -> None:
        core, batch = self.core, self.batch
        before = core.stored_at.get(serial)
        if ticket is None:
            batch.heads[serial] = batch.placed[serial] = None
            if before is not None and before.state == PENDING:
                batch.leaves.append((serial, before, self.flight.gone[serial].key))
            return
        batch.heads[serial] = encode_ticket(ticket)
        number, kind, expiry_ms = core.lane_number(ticket.lane), ENTRY_AGENDA, None
        if ticket.state == PENDING:
            kind = core.entry_kind(serial)
            expiry_ms = expiry_of(ticket)
        at = stored_at(ticket, number, kind == ENTRY_LANE, expiry_ms)
        at = replace(at, in_waits=kind == ENTRY_WAITS)
        is_plain = ticket.state in (PENDING, DONE) and ticket.options is None
        is_plain = is_plain and core.is_new_to_agenda(serial)
        batch.placed[serial] = at.lane_number if is_plain else at
        if at == before:
            return
        if before is not None and before.state == PENDING:
            batch.leaves.append((serial, before, ticket.key))
        if ticket.state == PENDING:
            batch.enters.append((serial, at, ticket.key))


def _plain_head(draft: Submitted) -> bytes:
    return encode_plain(draft.task, [draft])[0]


def stored_at(
    ticket: Ticket, number: int, in_lane: bool = False, expiry_ms: int | None = None
) -> StoredAt:
    return StoredAt(
        ticket.state,
        ticket.due_ms,
        ticket.first_due_ms,
        number,
        expiry_ms or 0,
        in_lane,
        ticket.group,
    )


class FakeStore:
    """Committed tables at one LSN. A snapshot is a copy of them all."""

    def __init__(self) -> None:
        self.lsn = 0
        self.commits = 0
        self.counters: dict[tuple[str, int], int] = {}
        self.heads: dict[int, bytes] = {}
        self.bodies: dict[int, bytes] = {}
        self.uniques: dict[bytes, UniqueRow] = {}
        self.history: dict[tuple[int, int], bytes] = {}
        self.agenda: Counter[AgendaEntry] = Counter()
        self.marks: Counter[tuple[int, int, int, int]] = Counter()
        self.rows: dict[tuple[int, int, int], int] = {}
        self.waits: dict[tuple[str, int, int, int], int] = {}
        self.lane_names: dict[int, bytes] = {}
        self.outbox: dict[tuple[int, Place], Submitted] = {}
        self.taken: dict[int, Place] = {}
        self.damaged: set[int] = set()

    # ------------------------------------------------------------------ writing

    def commit(self, batch: Batch) -> None:
        """Become the state at the batch's LSN."""
        assert batch.lsn >= self.lsn, (batch.lsn, self.lsn)
        for number, name in batch.lane_names:
            if name is None:
                del self.lane_names[number]
            else:
                self.lane_names[number] = name
        for serial, at, key in batch.leaves:
            self._leave(serial, at.due_ms, at.first_due_ms, at.lane_number, key)
            if at.expiry_ms:
                mark = (at.expiry_ms, serial, at.first_due_ms, at.lane_number)
                self._count(self.marks, mark, -1)
        for serial, at, key in batch.enters:
            if at.in_waits:
                self._add_waiting(serial, at.due_ms, at.first_due_ms, at.lane_number, key)
            elif at.in_lane:
                self._add_row(serial, at.due_ms, at.first_due_ms, at.lane_number)
            else:
                entry = (at.due_ms, serial, at.first_due_ms, at.lane_number)
                self._count(self.agenda, entry, 1)
            if at.expiry_ms:
                mark = (at.expiry_ms, serial, at.first_due_ms, at.lane_number)
                self._count(self.marks, mark, 1)
        for serial, move in batch.moves.items():
            place = move.due_ms, move.first_due_ms, move.lane_number
            self._leave(serial, *place, move.key)
            if move.to_waits:
                self._add_waiting(serial, *place, move.key)
            else:
                self._add_row(serial, *place)
        for serial, head in batch.heads.items():
            if head is not None:
                self.heads[serial] = head
                continue
            self.heads.pop(serial, None)
            self.bodies.pop(serial, None)
            self.history = {place: row for place, row in self.history.items() if place[0] != serial}
        put(self.bodies, batch.bodies)
        put(self.uniques, batch.uniques)
        self.history.update(batch.history)
        handed = batch.handed
        self.outbox = {
            (to, place): entry
            for (to, place), entry in self.outbox.items()
            if to not in handed or place > handed[to]
        } | batch.outbox
        self.taken = dict(batch.taken)
        self.counters = dict(batch.counters)
        self.lsn = batch.lsn
        self.commits += 1

    def _leave(
        self, serial: int, due_ms: int, first_due_ms: int, number: int, key: str | None
    ) -> None:
        if self.rows.pop((number, first_due_ms, serial), None) is not None:
            return
        if (
            key is not None
            and self.waits.pop((key, number, first_due_ms, serial), None) is not None
        ):
            return
        self._count(self.agenda, (due_ms, serial, first_due_ms, number), -1)

    def _add_waiting(
        self, serial: int, due_ms: int, first_due_ms: int, number: int, key: str | None
    ) -> None:
        assert key is not None, serial
        row = (key, number, first_due_ms, serial)
        assert row not in self.waits, row
        self.waits[row] = due_ms

    def _add_row(self, serial: int, due_ms: int, first_due_ms: int, number: int) -> None:
        row = (number, first_due_ms, serial)
        assert row not in self.rows, row
        self.rows[row] = due_ms

    def _count(self, entries: Counter[AgendaEntry], entry: AgendaEntry, by: int) -> None:
        entries[entry] += by
        if not entries[entry]:
            del entries[entry]

    # ------------------------------------------------------------------ reading

    def snapshot(self) -> "FakeStore":
        return deepcopy(self)

    def lane_rows(self) -> dict[int, int]:
        return dict(Counter(number for number, _, _ in self.rows))

    def lane_tickets(self) -> dict[int, int]:
        """The pending tickets of each lane."""
        counts = dict.fromkeys(self.lane_names, 0)
        for _, _, _, number in self.agenda:
            counts[number] += 1
        for number, _, _ in self.rows:
            counts[number] += 1
        for _, number, _, _ in self.waits:
            counts[number] += 1
        return counts

    def wait_queues(self) -> list[tuple[str, int]]:
        return sorted({(key, number) for key, number, _, _ in self.waits})

    def ticket(self, serial: int) -> Ticket | None:
        head = self.heads.get(serial)
        return None if head is None or serial in self.damaged else decode_ticket(head)

    def load(self, serials: list[int], names: list[bytes] | None = None) -> Loaded:
        """The heads of tickets, each with its payload and its unique row, and further rows."""
        tickets: dict[int, Parked | None] = {}
        uniques = {name: self.uniques.get(name) for name in names or ()}
        numbers = {name: number for number, name in self.lane_names.items()}
        for serial in serials:
            ticket = self.ticket(serial)
            if ticket is None:
                tickets[serial] = None
                continue
            name = unique_name_of(ticket)
            if name is not None:
                uniques[name] = self.uniques.get(name)
            expiry_ms = expiry_of(ticket) if ticket.state == PENDING else None
            number = numbers[encode_lane(ticket.lane)] if ticket.state == PENDING else 0
            at = stored_at(ticket, number, expiry_ms=expiry_ms)
            tickets[serial] = Parked(ticket, at, self.bodies.get(serial))
        return Loaded(self.commits, tickets, uniques)

    def sweep(self, ask: SweepAsk) -> Swept:
        """The agenda from a position to a time; never more entries than asked for."""
        found = sorted(
            [(*entry, False) for entry in self.agenda] + [(*mark, True) for mark in self.marks]
        )
        until = (ask.until_ms, SERIAL_MAX)
        entries = [SweptEntry(*e) for e in found if ask.from_pos < (e[0], e[1]) <= until]
        if len(entries) <= ask.limit:
            return Swept(self.commits, entries, until)
        entries = entries[: ask.limit]
        return Swept(self.commits, entries, (entries[-1].due_ms, entries[-1].serial))

    def scout(self, ask: ScoutAsk) -> Scouted:
        """Who is due past a position, in other lanes than those that are full."""
        found = [
            serial
            for due_ms, serial, _, lane_number in sorted(self.agenda)
            if (due_ms, serial) > ask.after
            and due_ms <= ask.until_ms
            and lane_number not in ask.full
            and not ask.is_known(serial)
        ]
        return Scouted(self.load(found[: ask.limit]), 1, len(found) > ask.limit)

    def refill(self, ask: RefillAsk) -> Refilled:
        """The rows of a lane or of a key after a rank, with their tickets."""
        places = [(None, *row) for row in self.rows] if ask.key is None else list(self.waits)
        rows = sorted(
            (first, serial)
            for key, number, first, serial in places
            if (key, number) == (ask.key, ask.lane_number) and (first, serial) > ask.after
        )
        taken = rows[: ask.limit]
        loaded = self.load([serial for _, serial in taken])
        is_end = len(rows) <= ask.limit
        return Refilled(ask.lane_number, self.commits, taken, is_end, loaded, ask.key)

    def entries(self, receiver: int, after: Place, limit: int) -> list[tuple[Place, Submitted]]:
        """The outbox for a receiver, behind a place."""
        listed = sorted((at, e) for (to, at), e in self.outbox.items() if to == receiver)
        return [(at, entry) for at, entry in listed if at > after][:limit]

    def attempts(self, serial: int) -> list[AttemptRow]:
        return [decode_attempt(row) for place, row in self.history.items() if place[0] == serial]

    def view(self) -> StoreView:
        """As `check` wants to see it."""
        return StoreView(
            heads={serial: decode_ticket(head) for serial, head in self.heads.items()},
            agenda=self.agenda,
            marks={(expiry, serial): n for (expiry, serial, _, _), n in self.marks.items()},
            rows=dict.fromkeys(self.rows, 1),
            damaged=frozenset(self.damaged),
            waits=dict.fromkeys(self.waits, 1),
        )


def put(table: dict[K, V], changes: dict[K, V | None]) -> None:
    for key, value in changes.items():
        if value is None:
            table.pop(key, None)
        else:
            table[key] = value
