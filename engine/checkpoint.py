"""A checkpoint under way: the frozen flight of a shard, encoded in slices into one batch.

`apply` never changes what is in the flight, so slices can be encoded between turns; what the batch
says of each ticket comes back to the core when the commit is done (docs/architecture.md, Store).
"""

from collections.abc import Iterator, Mapping
from itertools import compress, groupby, islice
from operator import attrgetter

import msgspec

from parkade.index_keys import (
    index_keys,
    key_prefix,
    task_digest,
    task_prefix,
)
from parkade.shard import ENTRY_LANE, ENTRY_WAITS, Shard
from parkade.shard.commands import UniqueRow
from parkade.shard.generation import LaneMove
from parkade.shard.states import DEAD, DONE, PENDING, RUNNING
from parkade.shard.ticket import Placed, StoredAt, Ticket, encode_plain, encode_ticket
from parkade.store.batch import BOOKMARK_FENCE, Batch, Claim, Commit, pack_ended
from parkade.store.entry import EXPIRY, NEGATIVE, pack_entries, pack_entry, pack_lane_keys
from parkade.store.meta import Memo, encode_taken
from parkade.store.outbox import FIRST_PLACE, pack_place
from parkade.store.record import Submitted
from parkade.store.rows import pack_serials

__all__ = ["BODY_PAYLOAD", "BODY_RESULT", "Checkpoint"]

BODY_PAYLOAD, BODY_RESULT = b"P", b"R"
PLAIN_STATES = (PENDING, DONE)
PLAIN_FOR_ONE = 3  # as many are encoded from what was submitted, or moves, as another ticket
_encode_row = msgspec.msgpack.Encoder().encode


class Checkpoint:
    """From the cut to the completion: it is built, then sent, then `commit` is there."""

    def __init__(
        self,
        core: Shard,
        *,
        epoch: int,
        now_ms: int,
        settled_ms: int,
        keeps_ms: dict[str, int],
        spent: list[bytes],
    ) -> None:
        """`keeps_ms`: how long the tasks that say so keep what has ended. `spent`: see `Batch`."""
        cut = core.cut()
        self.lsn = cut.lsn
        memo = Memo(cut.done_forgotten, keeps_ms)
        self.batch = Batch(cut.lsn, epoch, now_ms, settled_ms, cut.counters, memo, spent=spent)
        self.batch.fresh_kind = BODY_PAYLOAD
        if cut.taken:
            self.batch.taken = encode_taken(cut.taken)
        self.placed: dict[int, Placed | None] = {}
        self.commit: Commit | None = None
        self.is_sent = False
        self.is_building = True
        self._core = core
        self._flight = cut.flight
        self._tickets: Iterator[tuple[int, Ticket | None]] = iter(cut.flight.tickets.items())
        self._plain: Iterator[Submitted] = iter(_in_order(cut.flight.plain))
        self._moves: Iterator[tuple[int, LaneMove]] = iter(cut.flight.moves.items())

    def build(self, ticket_count: int) -> None:
        """Encodes at most so many tickets more; the small tables come with the last slice."""
        slice_of = list(islice(self._tickets, ticket_count))
        is_new, stored_at = self._core.is_new_to_agenda, self._core.stored_at
        plain, ended = list[Ticket](), list[tuple[Ticket, StoredAt]]()
        for serial, ticket in slice_of:
            if ticket is None:
                self._forget(serial)
            elif ticket.state in PLAIN_STATES and ticket.options is None:
                stored = stored_at.get(serial)
                if stored is None and (ticket.state == DONE or is_new(serial)):
                    plain.append(ticket)
                elif stored is not None and ticket.state == DONE and _is_plain(ticket, stored):
                    ended.append((ticket, stored))
                else:
                    self._write(serial, ticket)
            else:
                self._write(serial, ticket)
        for (task, state), listed in groupby(plain, attrgetter("task", "state")):
            self._write_plain(task, state, list(listed))
        if ended:
            self._write_ended(ended)
        left = (ticket_count - len(slice_of)) * PLAIN_FOR_ONE
        drafts = list(islice(self._plain, left))
        for task, submitted in groupby(drafts, attrgetter("task")):
            self._write_submitted(task, list(submitted))
        left -= len(drafts)
        if not left:
            return
        moves = list(islice(self._moves, left))
        self._move(moves)
        if len(moves) < left:
            self._build_rest()
            self.is_building = False

    def _write_submitted(self, task: str, drafts: list[Submitted]) -> None:
        """`_write_plain` of what is in memory as it was submitted, bodies included. How the store
        has them nobody needs to know: they are not in memory when it does."""
        batch, lined = self.batch, self._flight.lined.get(task, ())
        lane_number = self._core.lane_number((task, None, 0))
        serials = [draft.serial for draft in drafts]
        dues_ms = [draft.due_ms for draft in drafts]
        keys = pack_serials(serials)
        batch.fresh_keys += keys
        batch.fresh_heads += encode_plain(task, drafts)
        batch.fresh_bodies += [draft.payload for draft in drafts]
        batch.listed[task_prefix(task, PENDING)] += serials
        if lined:
            if len(lined) == len(self._flight.plain):  # as in a crowd of one task
                batch.fresh_lane_keys += pack_lane_keys(lane_number, dues_ms, serials)
                return
            is_lined = [serial in lined for serial in serials]
            lane_keys = pack_lane_keys(lane_number, dues_ms, serials)
            batch.fresh_lane_keys += compress(lane_keys, is_lined)
            is_asleep = [not one for one in is_lined]
            serials, dues_ms = (
                list(compress(serials, is_asleep)),
                list(compress(dues_ms, is_asleep)),
            )
        batch.agenda += pack_entries(dues_ms, serials, lane_number)

    def _write_plain(self, task: str, state: int, tickets: list[Ticket]) -> None:
        """What `_write` does, for what most tickets are at a checkpoint: without options, and new
        and asleep, or done. This is what parking and lives cost."""
        batch, lane_number = self.batch, 0
        serials = [ticket.serial for ticket in tickets]
        batch.heads.update(zip(serials, map(encode_ticket, tickets), strict=True))
        if state == PENDING:
            lane_number = self._core.lane_number(tickets[0].lane)
            batch.agenda += [
                pack_entry(ticket.due_ms, ticket.serial, ticket.first_due_ms, lane_number)
                for ticket in tickets
            ]
        else:
            digest = task_digest(task)
            batch.ended += [
                pack_ended(state, digest, ticket.finished_ms, ticket.serial) for ticket in tickets
            ]
        batch.listed[task_prefix(task, state)] += serials
        batch.index_puts += [
            key_prefix(ticket.key) + ticket.serial.to_bytes(8, "big")
            for ticket in tickets
            if ticket.key is not None
        ]
        self.placed.update(dict.fromkeys(serials, lane_number))

    def _write_ended(self, ended: list[tuple[Ticket, StoredAt]]) -> None:
        """What `_write` does, for those that the store has as pending, and that are done."""
        batch = self.batch
        for task, listed in groupby([ticket for ticket, _ in ended], attrgetter("task")):
            tickets = list(listed)
            self._write_plain(task, DONE, tickets)
            batch.unlisted[task_prefix(task, PENDING)] += [ticket.serial for ticket in tickets]
        batch.leaves += [
            pack_entry(at.due_ms, ticket.serial, at.first_due_ms, at.lane_number, NEGATIVE)
            for ticket, at in ended
        ]

    def _write(self, serial: int, ticket: Ticket) -> None:
        batch, stored = self.batch, self._core.stored_at.get(serial)
        batch.heads[serial] = encode_ticket(ticket)
        now = self._place(serial, ticket)
        self.placed[serial] = now
        if stored is None or (stored.state, stored.group) != (now.state, now.group):
            self._index(serial, ticket, stored)
        elif ticket.state == DEAD:
            self._note_end(serial, ticket)  # it may have been revived, and have died again
        if stored != now:
            self._leave(serial, stored, ticket.key)
            self._enter(serial, now, ticket.key)

    def _index(self, serial: int, ticket: Ticket, stored: StoredAt | None) -> None:
        batch, serial_key, state = self.batch, serial.to_bytes(8, "big"), ticket.state
        new = index_keys(serial_key, ticket, ticket.group)
        if stored is None:
            batch.index_puts += new
        else:
            old = index_keys(serial_key, ticket, stored.group)
            batch.index_puts += [key for key in new if key not in old]
            batch.index_deletes += [key for key in old if key not in new]
        if stored is None or stored.state != state:
            batch.listed[task_prefix(ticket.task, state)].append(serial)
            if stored is not None:
                batch.unlisted[task_prefix(ticket.task, stored.state)].append(serial)
        if state not in (PENDING, RUNNING):
            self._note_end(serial, ticket)

    def _note_end(self, serial: int, ticket: Ticket) -> None:
        digest = task_digest(ticket.task)
        self.batch.ended.append(pack_ended(ticket.state, digest, ticket.finished_ms, serial))

    def _place(self, serial: int, ticket: Ticket) -> StoredAt:
        """How the store is to have it."""
        if ticket.state != PENDING:
            return StoredAt(ticket.state, ticket.due_ms, ticket.first_due_ms, 0, group=ticket.group)
        lane_number = self._core.lane_number(ticket.lane)
        kind = self._core.entry_kind(serial)
        options, expiry_ms = ticket.options, 0
        if options is not None and options.expires_ms is not None and ticket.fence == 0:
            expiry_ms = ticket.first_due_ms + options.expires_ms
        return StoredAt(
            PENDING,
            ticket.due_ms,
            ticket.first_due_ms,
            lane_number,
            expiry_ms,
            kind == ENTRY_LANE,
            in_waits=kind == ENTRY_WAITS,
        )

    def _leave(self, serial: int, stored: StoredAt | None, key: str | None) -> None:
        """Gives up the pending position that the last checkpoint left it."""
        if stored is None or stored.state != PENDING:
            return
        first_due, lane = stored.first_due_ms, stored.lane_number
        self._give_up(pack_entry(stored.due_ms, serial, first_due, lane, NEGATIVE), key)
        if stored.expiry_ms:
            flags = NEGATIVE | EXPIRY
            self.batch.agenda.append(pack_entry(stored.expiry_ms, serial, first_due, lane, flags))

    def _give_up(self, entry: bytes, key: str | None) -> None:
        if key is None:
            self.batch.leaves.append(entry)
        else:
            self.batch.keyed_leaves.append((key, entry))

    def _enter(self, serial: int, now: StoredAt, key: str | None) -> None:
        if now.state != PENDING:
            return
        batch, first_due, lane = self.batch, now.first_due_ms, now.lane_number
        entry = pack_entry(now.due_ms, serial, first_due, lane)
        if now.in_waits:
            assert key is not None, serial
            batch.wait_rows.append((key, entry))
        else:
            (batch.lane_rows if now.in_lane else batch.agenda).append(entry)
        if now.expiry_ms:
            batch.agenda.append(pack_entry(now.expiry_ms, serial, first_due, lane, EXPIRY))

    def _move(self, moves: list[tuple[int, LaneMove]]) -> None:
        batch = self.batch
        for serial, move in moves:
            place = (move.due_ms, serial, move.first_due_ms, move.lane_number)
            self._give_up(pack_entry(*place, NEGATIVE), move.key)
            if move.to_waits:
                assert move.key is not None, serial
                batch.wait_rows.append((move.key, pack_entry(*place)))
            else:
                batch.lane_rows.append(pack_entry(*place))

    def _forget(self, serial: int) -> None:
        self.placed[serial] = None
        stored = self._core.stored_at.get(serial)
        if stored is None:
            return
        self.batch.heads[serial] = None
        gone = self._flight.gone[serial]
        serial_key = serial.to_bytes(8, "big")
        self.batch.unlisted[task_prefix(gone.task, stored.state)].append(serial)
        self.batch.index_deletes += index_keys(serial_key, gone, stored.group)
        self._leave(serial, stored, gone.key)

    def _build_rest(self) -> None:
        flight, batch = self._flight, self.batch
        tickets = flight.tickets
        for serial, body in flight.bodies.items():
            ticket = tickets.get(serial)
            if ticket is None:
                continue  # a deleted head takes its body with it
            kind = BODY_RESULT if ticket.state == DONE else BODY_PAYLOAD
            batch.bodies[serial] = None if body is None else kind + body
        for name, row in flight.uniques.items():
            batch.uniques[name] = None if row is None else _claim(row)
        for (serial, fence), attempt in flight.history.items():
            if tickets.get(serial) is not None:
                batch.history[serial, fence] = _encode_row(attempt)
        for serial, value in flight.bookmarks.items():
            if tickets.get(serial) is not None:
                batch.history[serial, BOOKMARK_FENCE] = value
        batch.lane_names |= flight.lane_names
        for receiver, last in flight.handed.items():
            spent = pack_place(receiver, FIRST_PLACE), pack_place(receiver, last)
            batch.outbox_spent.append(spent)
        for receiver, entries in flight.outbox.items():
            batch.outbox |= {pack_place(receiver, at): _encode_row(e) for at, e in entries.items()}


def _is_plain(ticket: Ticket, stored: StoredAt) -> bool:
    """Whether it left nothing behind but its entry as pending, and what tells of its state."""
    return stored.state == PENDING and ticket.key is None and not stored.expiry_ms


def _in_order(plain: Mapping[int, Submitted]) -> list[Submitted]:
    """Most come in the order of their serials, and many callers at once nearly so."""
    serials = list(plain)
    ordered = sorted(serials)
    if ordered == serials:
        return list(plain.values())
    return [plain[serial] for serial in ordered]


def _claim(row: UniqueRow) -> Claim:
    return Claim(_encode_row(row), row.until_ms)
