"""A shard's store made anew of the rows that could be read: what follows from heads is reckoned.

Agenda, lanes, indexes, counters and what retention reads are never taken over: they follow from the
heads, and are written as a checkpoint writes them.
"""

from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from itertools import chain, islice

import msgspec

from parkade.checkpoint import BODY_RESULT
from parkade.index_keys import index_keys, task_digest, task_prefix
from parkade.salvaging import Salvaged
from parkade.shard.commands import UniqueRow
from parkade.shard.history import HistoryDamage, decode_attempt
from parkade.shard.lane import LaneKey, encode_lane
from parkade.shard.retry import expiry_of
from parkade.shard.states import DEAD, DONE, PENDING, RUNNING, STATES
from parkade.shard.ticket import HeadDamage, Ticket, decode_ticket, encode_ticket, format_id
from parkade.shard.unique import DURATION, HELD, KEPT, unique_name_of
from parkade.store.batch import BOOKMARK_FENCE, Batch, Claim, pack_ended
from parkade.store.bodies import whole_bodies
from parkade.store.entry import EXPIRY, pack_entry
from parkade.store.environment import MEANINGLESS
from parkade.store.listings import unpack_blob
from parkade.store.meta import (
    COUNTERS,
    MEMO,
    STATE,
    TAKEN,
    Memo,
    State,
    decode_counters,
    decode_memo,
    decode_taken,
)
from parkade.store.outbox import unpack_place
from parkade.store.parked import Parked
from parkade.store.record import Submitted
from parkade.store.rows import unseal
from parkade.store.salvage import SalvagedRow, read_rows
from parkade.store.snapshot import Snapshot
from parkade.store.writer import CLAIM_BYTES, claim_until_ms

__all__ = ["Lost", "Rebuilt", "rebuild_store"]

CHUNK_ROWS = 4_000
SERIAL_CHARS = 12  # of an id, which tell of the serial alone
KEY_BYTES = {"heads": (8,), "bodies": (8, 9), "history": (16,), "uniques": (16,), "outbox": (20,)}
META_ROWS: dict[bytes, Callable[[bytes], object]] = {
    STATE: State.unpack, MEMO: decode_memo, COUNTERS: decode_counters, TAKEN: decode_taken,
}  # fmt: skip
_decode_unique = msgspec.msgpack.Decoder(UniqueRow).decode


class Lost(msgspec.Struct, frozen=True, omit_defaults=True):
    """Something that is not in the repaired directory.

    `what`: ticket, payload, result, attempt, bookmark, unique, hand_over, house. `ticket` is an id,
    or what its first characters were where the rest is lost; `serial` is its order.
    """

    what: str
    detail: str
    ticket: str | None = None
    serial: int | None = None
    task: str | None = None


@dataclass(slots=True)
class Rebuilt:
    """The store at the LSN that it had. `no_payload`: tickets that cannot run, by serial.
    `is_placed` is False where the LSN is not known: then no journal goes with it."""

    state: State
    memo: Memo
    is_placed: bool
    tickets_expected: int | None
    lost: list[Lost] = field(default_factory=list[Lost])
    notes: list[str] = field(default_factory=list[str])
    no_payload: set[int] = field(default_factory=set[int])


def rebuild_store(
    salvaged: Salvaged, store: Parked, *, salt: int, number: int, shard_count: int, now_ms: int
) -> Rebuilt:
    """Fills a new store with what is whole, table after table; memory is bounded by what is lost.

    Raises what a commit raises.
    """
    return _Rebuild(salvaged, store, salt, number, shard_count, now_ms).run()


class _Rebuild:
    def __init__(
        self, salvaged: Salvaged, store: Parked, salt: int, number: int, shards: int, now_ms: int
    ) -> None:
        self.salvaged = salvaged
        self.store = store
        self.salt = salt
        self.number = number
        self.shards = shards
        self.now_ms = now_ms
        self.counters: Counter[tuple[str, int]] = Counter()
        self.lanes: dict[LaneKey, int] = {}
        self.told: set[int] = set()  # tickets that are told as lost
        self.taken: bytes | None = None
        self.has_bad_names = "uniques" in salvaged.broken
        self.has_bad_history = "history" in salvaged.broken

    def run(self) -> Rebuilt:
        self.out = self._read_meta()
        self._write_heads()
        self._write_bodies()
        self._write_history()
        self._write_uniques()
        self._write_outbox()
        self._find_unreached()
        self._check_heads()
        return self.out

    def _rows(self, table: str) -> Iterator[list[SalvagedRow]]:
        rows = read_rows(self.salvaged.rows, table)
        sizes = KEY_BYTES.get(table, ())
        while chunk := list(islice(rows, CHUNK_ROWS)):
            odd = [row.key.hex() for row in chunk if sizes and len(row.key) not in sizes]
            self.out.notes += [f"table {table}: {key} is no key of it" for key in odd]
            yield chunk if not odd else [row for row in chunk if len(row.key) in sizes]

    def _batch(self) -> Batch:
        state = self.out.state
        counters = {key: count for key, count in self.counters.items() if count}
        batch = Batch(
            state.lsn, state.epoch, self.now_ms, state.settled_ms, counters, self.out.memo
        )
        batch.taken = self.taken
        return batch

    def _read_meta(self) -> Rebuilt:
        found: dict[bytes, bytes] = {}
        bad: list[str] = []
        for row in read_rows(self.salvaged.rows, "meta"):
            value = unseal(row.key, row.stored)
            if value is None:
                bad.append(row.key.decode("ascii", "replace"))
            else:
                found[row.key] = value
        for name, decode in META_ROWS.items():
            if name in found and not _can_be_read(decode, found[name]):
                bad.append(name.decode())
                del found[name]
        state = State.unpack(found[STATE]) if STATE in found else State()
        memo = decode_memo(found[MEMO]) if MEMO in found else Memo()
        expected = None
        if COUNTERS in found:
            expected = sum(decode_counters(found[COUNTERS]).values())
        out = Rebuilt(state, memo, STATE in found, expected, notes=list(self.salvaged.notes))
        out.notes += [f"table meta: the row {name!r} is damaged" for name in bad]
        self.taken = found.get(TAKEN)
        if self.taken is None and ("taken" in bad or "meta" in self.salvaged.broken):
            out.notes.append(
                "up to where hand-overs of other shards were taken is lost: a child that was made "
                "may be made again"
            )
        return out

    # ------------------------------------------------------------------------ table by table

    def _write_heads(self) -> None:
        for chunk in self._rows("heads"):
            kept: list[Ticket] = []
            for row in chunk:
                ticket = self._head(row)
                if ticket is not None:
                    kept.append(ticket)
                    self.counters[ticket.task, ticket.state] += 1
            batch = self._batch()
            for ticket in kept:
                self._place(batch, ticket)
            self.store.commit(batch)

    def _head(self, row: SalvagedRow) -> Ticket | None:
        serial = int.from_bytes(row.key, "big")
        head = unseal(row.key, row.stored)
        try:
            ticket = None if head is None else decode_ticket(head)
        except HeadDamage:
            ticket = None
        is_ours = (
            ticket is not None
            and ticket.serial == serial
            and ticket.state in STATES
            and ticket.part % self.shards == self.number
        )
        if not is_ours:
            self._lose_ticket(serial, "its head is damaged")
            return None
        return ticket

    def _lose_ticket(self, serial: int, detail: str) -> None:
        if serial in self.told:
            return
        self.told.add(serial)
        front = format_id(serial, 0, self.salt)[:SERIAL_CHARS]
        self.out.lost.append(Lost("ticket", detail, ticket=f"{front}…", serial=serial))

    def _lose(self, what: str, detail: str, ticket: Ticket) -> None:
        ticket_id = format_id(ticket.serial, ticket.part, self.salt)
        self.out.lost.append(
            Lost(what, detail, ticket=ticket_id, serial=ticket.serial, task=ticket.task)
        )

    def _place(self, batch: Batch, ticket: Ticket) -> None:
        serial = ticket.serial
        batch.heads[serial] = encode_ticket(ticket)
        batch.listed[task_prefix(ticket.task, ticket.state)].append(serial)
        batch.index_puts += index_keys(serial.to_bytes(8, "big"), ticket, ticket.group)
        if ticket.state == PENDING:
            lane = self.lanes.get(ticket.lane)
            if lane is None:
                lane = self.lanes[ticket.lane] = len(self.lanes) + 1
                batch.lane_names[lane] = encode_lane(ticket.lane)
            place = (serial, ticket.first_due_ms, lane)
            batch.agenda.append(pack_entry(ticket.due_ms, *place))
            expiry_ms = expiry_of(ticket)
            if expiry_ms is not None:
                batch.agenda.append(pack_entry(expiry_ms, *place, EXPIRY))
        elif ticket.state != RUNNING:
            digest = task_digest(ticket.task)
            batch.ended.append(pack_ended(ticket.state, digest, ticket.finished_ms, serial))

    def _write_bodies(self) -> None:
        rows = chain.from_iterable(self._rows("bodies"))
        bodies = whole_bodies((row.key, row.stored) for row in rows)
        while chunk := list(islice(bodies, CHUNK_ROWS)):
            batch = self._batch()
            with self.store.snapshot() as snapshot:
                for key, body in chunk:
                    serial = int.from_bytes(key, "big")
                    if body is not None and self._has_head(snapshot, serial, "its body is there"):
                        batch.bodies[serial] = body
            self.store.commit(batch)

    def _has_head(self, snapshot: Snapshot, serial: int, detail: str) -> bool:
        if snapshot.head(serial) is not None:
            return True
        self._lose_ticket(serial, f"its head is not to be found; {detail}")
        return False

    def _write_history(self) -> None:
        for chunk in self._rows("history"):
            batch = self._batch()
            with self.store.snapshot() as snapshot:
                for row in chunk:
                    serial, fence = row.key[:8], int.from_bytes(row.key[8:], "big")
                    self._take_history(batch, snapshot, int.from_bytes(serial, "big"), fence, row)
            self.store.commit(batch)

    def _take_history(
        self, batch: Batch, snapshot: Snapshot, serial: int, fence: int, row: SalvagedRow
    ) -> None:
        if not self._has_head(snapshot, serial, "a row of its history is there"):
            return
        value = unseal(row.key, row.stored)
        if value is not None and fence != BOOKMARK_FENCE:
            try:
                decode_attempt(value)
            except HistoryDamage:
                value = None
        if value is not None:
            batch.history[serial, fence] = value
            return
        self.has_bad_history = True
        head = snapshot.head(serial)
        assert head is not None
        if fence != BOOKMARK_FENCE:
            self._lose("attempt", f"what is known of attempt {fence}", decode_ticket(head))

    def _write_uniques(self) -> None:
        for chunk in self._rows("uniques"):
            batch = self._batch()
            for row in chunk:
                value = unseal(row.key, row.stored)
                is_whole = value is not None and _can_be_read(_decode_unique, value[CLAIM_BYTES:])
                if value is None or not is_whole:
                    self.has_bad_names = True
                    self.out.lost.append(Lost("unique", f"the row of the name {row.key.hex()}"))
                else:
                    batch.uniques[row.key] = Claim(value[CLAIM_BYTES:], claim_until_ms(value))
            self.store.commit(batch)

    def _write_outbox(self) -> None:
        decode = msgspec.msgpack.Decoder(Submitted).decode
        for chunk in self._rows("outbox"):
            batch = self._batch()
            for row in chunk:
                value = unseal(row.key, row.stored)
                try:
                    draft = None if value is None else decode(value)
                except msgspec.MsgspecError:
                    draft = None
                if value is not None and draft is not None:
                    batch.outbox[row.key] = value
                    continue
                receiver, place = unpack_place(row.key)
                detail = f"a child on its way to shard {receiver:02d}, made by LSN {place[1]}"
                self.out.lost.append(Lost("hand_over", detail))
            self.store.commit(batch)

    # ------------------------------------------------------------------ what is not there

    def _find_unreached(self) -> None:
        """Tickets that are listed, and whose heads were not met."""
        for row in chain.from_iterable(self._rows("listings")):
            serials = unpack_blob(row.key, row.stored)
            if serials is None:
                self.out.notes.append(f"table listings: the row {row.key.hex()} is damaged")
                continue
            with self.store.snapshot() as snapshot:
                for serial in serials:
                    self._has_head(snapshot, serial, "it is listed")

    def _check_heads(self) -> None:
        before = 1 << 64
        while True:
            batch = self._batch()
            with self.store.snapshot() as snapshot:
                serials = snapshot.serials(before=before, limit=CHUNK_ROWS)
                for serial in serials:
                    head = snapshot.head(serial)
                    assert head is not None
                    self._check_rows(snapshot, batch, decode_ticket(head))
            if not serials:
                return
            self.store.commit(batch)
            before = serials[-1]

    def _check_rows(self, snapshot: Snapshot, batch: Batch, ticket: Ticket) -> None:
        body = snapshot.body(ticket.serial)
        if ticket.state in (PENDING, RUNNING, DEAD):
            if body is None:
                self._lose("payload", "what it was to do", ticket)
                self.out.no_payload.add(ticket.serial)
        elif body is None and ticket.state == DONE:
            self._lose("result", "what it returned", ticket)
            batch.bodies[ticket.serial] = BODY_RESULT  # which cannot be decoded, and says so
        is_in_doubt = ticket.has_bookmark and self.has_bad_history
        if is_in_doubt and snapshot.bookmark(ticket.serial) is None:
            self._lose("bookmark", "what an attempt saved for the next one", ticket)
            ticket.has_bookmark = False
            batch.heads[ticket.serial] = encode_ticket(ticket)
        name = unique_name_of(ticket) if self.has_bad_names else None
        if name is not None and snapshot.unique(name) is None:
            row = _row_of(ticket)
            if row is not None:
                batch.uniques[name] = Claim(msgspec.msgpack.encode(row), row.until_ms)


def _can_be_read(decode: Callable[[bytes], object], row: bytes) -> bool:
    try:
        decode(row)
    except MEANINGLESS:
        return False
    return True


def _row_of(ticket: Ticket) -> UniqueRow | None:
    """The row of a unique, told from the head of who holds it; None: it holds none any more."""
    claim = ticket.unique
    assert claim is not None
    until_ms = HELD
    if claim.mode == DURATION:
        until_ms = claim.until_ms
    elif ticket.state not in (PENDING, RUNNING):
        if claim.mode != KEPT:
            return None
        if ticket.state != DEAD:
            until_ms = ticket.finished_ms + claim.keep_ms
    return UniqueRow(ticket.serial, ticket.part, until_ms, claim.mode, claim.keep_ms)
