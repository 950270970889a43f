"""The write-back cache of a shard: which tickets are in memory, and which of them the store lacks.

A hot ticket is in `hot`, in its current version. It is dirty when it changed since the last cut, in
flight when the checkpoint under way is writing it, and clean when it is neither. A ticket that is
deleted leaves a tombstone in its generation, so that the store's row is not taken for it until that
row is gone. Memory is asked first; only where it says `UNREAD` may the store be asked.

Knows nothing of time and of where a pending ticket waits. docs/architecture.md, Store.
"""

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from enum import Enum
from typing import Any, Final

from msgspec.structs import replace

from parkade.shard.commands import Loaded, Parked, UniqueRow
from parkade.shard.generation import MOVE_BYTES, NEVER_MS, Generation
from parkade.shard.states import DONE, PENDING
from parkade.shard.ticket import Placed, StoredAt, Ticket, ticket_of
from parkade.shard.unique import unique_name_of
from parkade.store.record import Submitted

__all__ = ["UNREAD", "Memory", "Unread", "changed_bytes"]

# What a hot ticket takes in memory beside its payload, measured.
_TICKET_BYTES: Final = 500
_PLAIN_BYTES: Final = 250


def _nowhere(_: Ticket) -> None:
    pass


class Unread(Enum):
    """The type of `UNREAD`."""

    UNREAD = "unread"


UNREAD: Final = Unread.UNREAD
"""Memory cannot tell: ask the store."""


class Memory:
    """The tickets in memory, their payloads and unique rows, and the two generations.

    `uniques` holds the row of every name that a hot ticket has or a generation changes; None means
    that there is no row. `stored_at` tells how the store has a ticket, and of a hot or deleted one
    only; a ticket that is not in it is not in the store.
    """

    __slots__ = (
        "completed_commit",
        "completed_lsn",
        "dirty",
        "enter",
        "flight",
        "hot",
        "lingering",
        "payload_bytes",
        "payload_bytes_max",
        "payloads",
        "stored_at",
        "unique_users",
        "uniques",
    )

    def __init__(self, completed_lsn: int, payload_bytes_max: int) -> None:
        self.completed_lsn = completed_lsn
        self.completed_commit = 0  # of the store; two commits may be at one LSN
        self.hot: dict[int, Ticket] = {}
        self.dirty = Generation()
        self.flight: Generation | None = None
        self.stored_at: dict[int, StoredAt] = {}
        self.uniques: dict[bytes, UniqueRow | None] = {}
        self.unique_users: dict[bytes, int] = {}
        self.payloads: dict[int, bytes] = {}
        self.payload_bytes = 0
        self.payload_bytes_max = payload_bytes_max
        # Hears of a ticket that was among the plain ones: it is to wait for its time.
        self.enter: Callable[[Ticket], None] = _nowhere
        # Clean tickets in memory that no generation will remember at its completion.
        self.lingering: set[int] = set()

    # ------------------------------------------------------------------ looking

    def look(self, serial: int) -> Ticket | Unread | None:
        """The ticket; None when it is gone; UNREAD when only the store can tell."""
        ticket = self.hot.get(serial)
        if ticket is not None:
            return ticket
        if self.dirty.plain or self.flight is not None:
            ticket = self.unpack(serial)
            if ticket is not None:
                return ticket
        return None if self.is_gone(serial) else UNREAD

    def is_gone(self, serial: int) -> bool:
        """Whether a tombstone stands for it."""
        if serial in self.dirty.tickets:
            return self.dirty.tickets[serial] is None
        flight = self.flight
        return flight is not None and serial in flight.tickets and flight.tickets[serial] is None

    def is_clean(self, serial: int) -> bool:
        """Whether neither generation has a version of it."""
        flight, dirty = self.flight, self.dirty
        if serial in dirty.tickets or serial in dirty.plain:
            return False
        return flight is None or not (serial in flight.tickets or serial in flight.plain)

    def is_unread(self, serials: Sequence[int]) -> bool:
        """Whether of all of these only the store can tell."""
        flight, dirty = self.flight, self.dirty
        tables: list[dict[int, Any]] = [self.hot, dirty.tickets, dirty.plain]
        if flight is not None:
            tables += [flight.tickets, flight.plain]
        return all(table.keys().isdisjoint(serials) for table in tables)

    def is_fresh(self, snapshot_commit: int) -> bool:
        """Whether what was read from a snapshot may be used: no completion has overtaken it."""
        return snapshot_commit >= self.completed_commit

    def row(self, name: bytes) -> UniqueRow | Unread | None:
        """A unique row; None when there is none; UNREAD when only the store can tell."""
        return self.uniques.get(name, UNREAD)

    def body(self, serial: int) -> bytes | Unread | None:
        """Payload or result; None when there is none; UNREAD when only the store can tell."""
        for generation in (self.dirty, self.flight):
            if generation is None:
                continue
            if serial in generation.bodies:
                return generation.bodies[serial]
            if serial in generation.plain:
                return generation.plain[serial].payload
            if serial in generation.tickets and generation.tickets[serial] is None:
                return None
        return self.payloads.get(serial, UNREAD)

    def bodies(self, serials: Sequence[int]) -> list[bytes | None]:
        """`body` of each; also None where only the store can tell."""
        known, kept, found = self.dirty.bodies, self.payloads, list[bytes | None]()
        for serial in serials:
            body: bytes | Unread | None = known.get(serial)
            if body is None:
                body = kept.get(serial)
            if body is None:
                body = self.body(serial)
            found.append(None if body is UNREAD else body)
        return found

    def bookmark(self, serial: int) -> bytes | Unread | None:
        """What an attempt of a ticket that has a bookmark saved; or UNREAD."""
        for generation in (self.dirty, self.flight):
            if generation is not None and serial in generation.bookmarks:
                return generation.bookmarks[serial]
        return UNREAD

    # ------------------------------------------------------------------ changing

    def own(self, ticket: Ticket) -> Ticket:
        """The version of a hot ticket that may be changed: the dirty one, or else a copy.

        What is in the flight, or clean, is never changed: a checkpoint may be encoding it.
        """
        serial = ticket.serial
        dirty = self.dirty
        if serial in dirty.tickets:
            return ticket
        ticket = replace(ticket)
        self.hot[serial] = dirty.tickets[serial] = ticket
        dirty.moves.pop(serial, None)
        dirty.size_bytes += _TICKET_BYTES
        return ticket

    def create(self, ticket: Ticket, payload: bytes) -> None:
        """Take in a ticket that has never been."""
        serial = ticket.serial
        dirty = self.dirty
        self.hot[serial] = dirty.tickets[serial] = ticket
        dirty.bodies[serial] = payload
        dirty.size_bytes += _TICKET_BYTES + len(payload)

    def create_all(self, drafts: Sequence[Submitted]) -> None:
        """`create` of what was submitted."""
        self._make_tickets([draft.serial for draft in drafts], drafts)
        payload_bytes = sum([len(draft.payload) for draft in drafts])
        self.dirty.size_bytes += _TICKET_BYTES * len(drafts) + payload_bytes

    def _make_tickets(self, serials: Sequence[int], drafts: Sequence[Submitted]) -> None:
        dirty, made = self.dirty, dict(zip(serials, map(ticket_of, drafts), strict=True))
        self.hot.update(made)
        dirty.tickets.update(made)
        dirty.bodies.update(zip(serials, [draft.payload for draft in drafts], strict=True))

    # ------------------------------------------------------------------ plain tickets

    def create_plain(self, drafts: Sequence[Submitted]) -> None:
        """Take in tickets that have never been and that nobody will look at soon: what was
        submitted stands for them, until somebody does or a checkpoint has them."""
        self._keep_plain([draft.serial for draft in drafts], drafts)
        self.dirty.plain_due_ms = min(self.dirty.plain_due_ms, min([one.due_ms for one in drafts]))

    def create_lined(self, task: str, serials: list[int], drafts: Sequence[Submitted]) -> None:
        """The same for tickets of one task that are due, and wait outside of their lane's
        window."""
        self._keep_plain(serials, drafts)
        self.dirty.lined.setdefault(task, set()).update(serials)

    def _keep_plain(self, serials: list[int], drafts: Sequence[Submitted]) -> None:
        dirty = self.dirty
        dirty.plain.update(zip(serials, drafts, strict=True))
        payload_bytes = sum([len(draft.payload) for draft in drafts])
        dirty.size_bytes += _PLAIN_BYTES * len(drafts) + payload_bytes

    @property
    def plain_due_ms(self) -> int:
        """No plain ticket is due before."""
        flight = self.flight
        due_ms = self.dirty.plain_due_ms
        return due_ms if flight is None else min(due_ms, flight.plain_due_ms)

    def unpack(self, serial: int) -> Ticket | None:
        """The ticket, in memory like others from now on, if it was among the plain ones."""
        dirty, flight = self.dirty, self.flight
        submitted = dirty.plain.pop(serial, None)
        if submitted is not None:
            if dirty.is_lined(submitted.task, serial):
                dirty.lined[submitted.task].discard(serial)
            ticket = self._unpacked(submitted)
        elif flight is not None and serial in flight.plain and not self._is_unpacked(serial):
            # The flight is being encoded as it is: its ticket stands beside it.
            ticket = flight.unpacked[serial] = ticket_of(flight.plain[serial])
            flight.lined_unpacked += flight.is_lined(ticket.task, serial)
        else:
            return None
        self.hot[serial] = ticket
        self.enter(ticket)
        return ticket

    def unpack_lined(self, task: str, serials: Sequence[int]) -> None:
        """`unpack` of some that were lined up since the cut, for who knows their places."""
        dirty = self.dirty
        dirty.lined[task].difference_update(serials)
        self._make_tickets(serials, [dirty.plain.pop(serial) for serial in serials])
        dirty.size_bytes += (_TICKET_BYTES - _PLAIN_BYTES) * len(serials)

    def _unpacked(self, submitted: Submitted) -> Ticket:
        """A ticket of what was dirty as it was submitted."""
        dirty, ticket = self.dirty, ticket_of(submitted)
        dirty.tickets[ticket.serial] = ticket
        dirty.bodies[ticket.serial] = submitted.payload
        dirty.size_bytes += _TICKET_BYTES - _PLAIN_BYTES
        return ticket

    def _is_unpacked(self, serial: int) -> bool:
        """Whether it became a ticket since the cut, which may have been deleted since."""
        flight = self.flight
        return flight is not None and serial in flight.unpacked

    def unpack_until(self, due_ms: int) -> None:
        """Make tickets of all plain ones that are due up to then, but for those that wait in their
        lanes."""
        for generation in (self.dirty, self.flight):
            if generation is None or generation.plain_due_ms > due_ms:
                continue
            plain, unpacked = generation.plain, generation.unpacked
            lined = set[int]().union(*generation.lined.values())
            asleep = [(draft.due_ms, s) for s, draft in plain.items() if s not in lined]
            for sleeper_ms, serial in asleep:
                if sleeper_ms <= due_ms:
                    self.unpack(serial)
            left = [at_ms for at_ms, s in asleep if at_ms > due_ms and s not in unpacked]
            generation.plain_due_ms = min(left, default=NEVER_MS)

    def unpack_between(self, first: int, before: int) -> None:
        """Make tickets of all plain ones with serials from `first` on and below `before`."""
        for generation in (self.dirty, self.flight):
            if generation is not None:
                for serial in [serial for serial in generation.plain if first <= serial < before]:
                    self.unpack(serial)

    @property
    def plain_count(self) -> int:
        """How many tickets in memory are plain ones."""
        flight = self.flight
        in_flight = 0 if flight is None else len(flight.plain) - len(flight.unpacked)
        return len(self.dirty.plain) + in_flight

    @property
    def lined_count(self) -> int:
        """How many of those are due."""
        flight = self.flight
        return self.dirty.lined_count + (0 if flight is None else flight.lined_count)

    def plain_tickets(self) -> Iterator[Ticket]:
        """The plain ones, each as the ticket that it would become; none of them becomes one."""
        for generation in (self.dirty, self.flight):
            if generation is not None:
                for serial, draft in generation.plain.items():
                    if serial not in generation.unpacked:
                        yield ticket_of(draft)

    def erase(self, ticket: Ticket) -> None:
        """Delete a hot ticket. A tombstone stays if the store has it, or may be getting it."""
        serial = ticket.serial
        dirty = self.dirty
        del self.hot[serial]
        self.drop_payload(serial)
        self._release_name(ticket)
        dirty.moves.pop(serial, None)
        dirty.bodies.pop(serial, None)
        dirty.bookmarks.pop(serial, None)
        dirty.forget_history(serial, ticket.fence)
        if self.is_in_store(serial):
            dirty.tickets[serial] = None
            dirty.gone[serial] = ticket
            dirty.size_bytes += _TICKET_BYTES
        else:
            dirty.tickets.pop(serial, None)

    def is_in_store(self, serial: int) -> bool:
        """Whether the store has the ticket, or will have it when the flight is complete."""
        flight = self.flight
        if serial in self.stored_at:
            return True
        return flight is not None and (serial in flight.tickets or serial in flight.plain)

    def set_body(self, serial: int, body: bytes | None) -> None:
        """Replace payload or result; None deletes it."""
        if serial in self.payloads:
            self.drop_payload(serial)
        dirty = self.dirty
        if body is not None:
            dirty.bodies[serial] = body
            dirty.size_bytes += len(body)
        elif self.is_in_store(serial):
            dirty.bodies[serial] = None
        else:
            dirty.bodies.pop(serial, None)

    def set_bookmark(self, serial: int, value: bytes | None) -> None:
        """Replace what an attempt saved; None deletes it."""
        dirty = self.dirty
        if value is not None:
            dirty.size_bytes += len(value) - len(dirty.bookmarks.get(serial) or b"")
            dirty.bookmarks[serial] = value
        elif self.is_in_store(serial):
            dirty.bookmarks[serial] = None
        else:
            dirty.bookmarks.pop(serial, None)

    def set_row(self, name: bytes, row: UniqueRow | None) -> None:
        """Write or delete a unique row."""
        self.uniques[name] = row
        self.dirty.uniques[name] = row
        self.dirty.size_bytes += _TICKET_BYTES

    def use_name(self, name: bytes) -> None:
        """A hot ticket has this name: its row stays in memory as long."""
        self.unique_users[name] = self.unique_users.get(name, 0) + 1

    # ------------------------------------------------------------------ in and out

    def adopt(self, loaded: Loaded) -> list[Ticket] | None:
        """Take what was read into memory, clean, unless memory knows better.

        The tickets that came in; None when the read is stale, and nothing did.
        """
        if not self.is_fresh(loaded.snapshot_commit):
            return None
        taken: list[Ticket] = []
        for serial, parked in loaded.tickets.items():
            if parked is not None and self.look(serial) is UNREAD:
                taken.append(self.admit(parked, loaded.uniques))
        return taken

    def admit(self, parked: Parked, rows: Mapping[bytes, UniqueRow | None]) -> Ticket:
        """Take in one ticket that memory does not know. Its unique row must have been read too."""
        ticket = parked.ticket
        serial = ticket.serial
        self.hot[serial] = ticket
        # Whether a pending one is a row of its lane may change before it is written again, by a
        # move that is under way: then its old entry is taken away wherever it is.
        at = parked.stored_at
        if at.in_lane is not None and ticket.state == PENDING:
            at = replace(at, in_lane=None)
        self.stored_at[serial] = at
        self.lingering.add(serial)
        name = None if ticket.unique is None else unique_name_of(ticket)
        if name is not None:
            self.use_name(name)
            if name not in self.uniques:
                self.uniques[name] = rows[name]
        if parked.body is not None and ticket.state == PENDING:
            self.keep_payload(serial, parked.body)
        return ticket

    def evict(self, ticket: Ticket) -> None:
        """Let a clean ticket leave memory."""
        serial = ticket.serial
        del self.hot[serial]
        self.stored_at.pop(serial, None)
        if serial in self.payloads:
            self.drop_payload(serial)
        if ticket.unique is not None:
            self._release_name(ticket)

    def _release_name(self, ticket: Ticket) -> None:
        name = unique_name_of(ticket)
        if name is None:
            return
        users = self.unique_users[name] - 1
        if users:
            self.unique_users[name] = users
        else:
            del self.unique_users[name]
            self._forget_rows((name,))

    def _forget_rows(self, names: Iterable[bytes]) -> None:
        flight_rows = () if self.flight is None else self.flight.uniques
        for name in names:
            if not (name in self.unique_users or name in self.dirty.uniques or name in flight_rows):
                self.uniques.pop(name, None)

    def keep_payload(self, serial: int, payload: bytes) -> None:
        """Keep a clean payload, if there is room for it."""
        if serial in self.payloads or self.payload_bytes + len(payload) > self.payload_bytes_max:
            return
        self.payloads[serial] = payload
        self.payload_bytes += len(payload)

    def drop_payload(self, serial: int) -> None:
        """Let a kept payload go."""
        payload = self.payloads.pop(serial, None)
        if payload is not None:
            self.payload_bytes -= len(payload)

    # ------------------------------------------------------------------ checkpoints

    @property
    def moved_bytes(self) -> int:
        """What of that only moves to rows, which has a bound of its own (`Bounds.moves_max`)."""
        moves = len(self.dirty.moves) + (0 if self.flight is None else len(self.flight.moves))
        return MOVE_BYTES * moves

    def cut(self) -> Generation:
        """What is dirty becomes the flight."""
        assert self.flight is None, "one checkpoint at a time"
        flight = self.flight = self.dirty
        self.dirty = Generation()
        return flight

    def merge_back(self) -> None:
        """The commit failed: what was in flight is dirty again, under what changed since."""
        assert self.flight is not None, "no checkpoint is under way"
        self.dirty = self.flight.under(self.dirty)
        self.flight = None

    def complete(
        self,
        lsn: int,
        placed: Mapping[int, Placed | None],
        keeps: Callable[[Ticket, StoredAt | None], bool],
        may_go: Callable[[Ticket], bool],
    ) -> Generation:
        """The commit is done: what is in neither generation is clean, and leaves memory unless
        `keeps` says that it is needed, told how the store has it if that is new. `may_go` says of a
        plain one (`Placed`) that it is not. The generation that was in flight."""
        flight = self.flight
        assert flight is not None, "no checkpoint is under way"
        self.flight = None
        flight.settle_unpacked()
        self.completed_lsn = lsn
        hot, dirty, stored_at, payloads = (
            self.hot,
            self.dirty.tickets,
            self.stored_at,
            self.payloads,
        )
        for serial, ticket in flight.tickets.items():
            if ticket is None:
                stored_at.pop(serial, None)
                continue
            at = placed[serial]
            assert at is not None, serial
            if isinstance(at, int):
                if serial not in dirty and (ticket.state == DONE or may_go(ticket)):
                    if ticket.unique is not None or serial in payloads:
                        self.evict(ticket)
                    else:
                        del hot[serial]
                        stored_at.pop(serial, None)
                    continue
                at = StoredAt(ticket.state, ticket.due_ms, ticket.first_due_ms, at)
            stored_at[serial] = at
            if serial in dirty:
                continue
            if keeps(ticket, at):
                payload = flight.bodies.get(serial)
                if payload is not None and ticket.state == PENDING:
                    self.keep_payload(serial, payload)
            elif ticket.unique is not None or serial in payloads:
                self.evict(ticket)
            else:
                del hot[serial], stored_at[serial]
        for serial in self.lingering:
            clean = None if serial in dirty else hot.get(serial)
            if clean is not None and not keeps(clean, None):
                self.evict(clean)
        self.lingering.clear()
        self._forget_rows(flight.uniques)
        return flight


def changed_bytes(memories: Iterable[Memory]) -> int:
    """What the stores of these have not got yet, about: dirty or in flight."""
    total = 0
    for memory in memories:
        total += memory.dirty.size_bytes
        if memory.flight is not None:
            total += memory.flight.size_bytes
    return total
