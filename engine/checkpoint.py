"""A checkpoint under way: the frozen flight of a shard, encoded in slices into one batch.

`apply` never changes what is in the flight, so slices can be encoded between turns; what the batch
says of each ticket comes back to the core when the commit is done (docs/architecture.md, The store).
"""

from collections.abc import Iterator
from typing import Any

import msgspec

from parkade.index_keys import index_keys
from parkade.shard.core import Shard
from parkade.shard.states import DONE, PENDING
from parkade.shard.ticket import StoredAt, Ticket, encode_ticket
from parkade.store.batch import Batch

__all__ = ["BODY_PAYLOAD", "BODY_RESULT", "Checkpoint", "encode_row"]

BODY_PAYLOAD, BODY_RESULT = b"P", b"R"
encode_row = msgspec.msgpack.Encoder().encode


class Checkpoint:
    """From the cut to the completion. `is_building` -> `is_sent` -> `commit` is there."""

    def __init__(self, core: Shard, epoch: int, settled_ms: int, now_ms: int) -> None:
        cut = core.cut()
        self.core = core
        self.lsn = cut.lsn
        self.batch = Batch(
            lsn=cut.lsn, epoch=epoch, settled_ms=settled_ms, now_ms=now_ms, counters=cut.counters
        )
        self.placed: dict[int, StoredAt | None] = {}
        self.commit: Any = None
        self.is_sent = False
        self.is_building = True
        self._flight = cut.flight
        self._tickets: Iterator[tuple[int, Ticket | None]] = iter(cut.flight.tickets.items())

    def build(self, ticket_count: int) -> None:
        """Encodes at most so many tickets more; the small tables come with the last slice."""
        for _ in range(ticket_count):
            item = next(self._tickets, None)
            if item is None:
                self._build_rest()
                self.is_building = False
                return
            serial, ticket = item
            if ticket is None:
                self._forget(serial)
            else:
                self._write(serial, ticket)

    def _write(self, serial: int, ticket: Ticket) -> None:
        core, batch = self.core, self.batch
        serial_key = serial.to_bytes(8, "big")
        stored = core.stored_at.get(serial)
        batch.heads.append((serial_key, encode_ticket(ticket)))
        now = self._placed(serial, ticket)
        self.placed[serial] = now
        state, task = ticket.state, ticket.task
        if stored is None:
            batch.index_puts.extend(index_keys(serial_key, task, state, ticket.key))
        elif stored.state != state:
            old = set(index_keys(serial_key, stored.task, stored.state, stored.key))
            new = set(index_keys(serial_key, task, state, ticket.key))
            batch.index_deletes.extend(old - new)
            batch.index_puts.extend(new - old)
        if state > DONE - 1 and (stored is None or stored.state != state):
            batch.ended.append((state, ticket.finished_ms, serial, task))
        self._move(serial, stored, now)

    def _placed(self, serial: int, ticket: Ticket) -> StoredAt:
        lane_number, in_lane = 0, False
        if ticket.state == PENDING:
            lane_number = self.core.lane_number(ticket.lane)
            in_lane = self.core.wants_lane_row(serial)
        return StoredAt(
            ticket.state, ticket.due_ms, ticket.first_due_ms, lane_number,
            ticket.task, ticket.key, in_lane,
        )  # fmt: skip

    def _move(self, serial: int, stored: StoredAt | None, now: StoredAt | None) -> None:
        """The pending position that it leaves and the one that it takes, where they differ."""
        was_pending = stored is not None and stored.state == PENDING
        is_pending = now is not None and now.state == PENDING
        if was_pending and is_pending and stored == now:
            return
        if stored is not None and was_pending:
            self.batch.leaves.append(
                (stored.due_ms, serial, stored.first_due_ms, stored.lane_number)
            )
        if now is not None and is_pending:
            place = (now.due_ms, serial, now.first_due_ms, now.lane_number)
            (self.batch.enters_lane if now.in_lane else self.batch.enters_agenda).append(place)

    def _forget(self, serial: int) -> None:
        self.placed[serial] = None
        stored = self.core.stored_at.get(serial)
        if stored is None:
            return
        batch, serial_key = self.batch, serial.to_bytes(8, "big")
        batch.head_deletes.append(serial_key)
        batch.body_deletes.append(serial_key)
        batch.history_deletes.append(serial_key)
        batch.index_deletes.extend(index_keys(serial_key, stored.task, stored.state, stored.key))
        self._move(serial, stored, None)

    def _build_rest(self) -> None:
        flight, batch = self._flight, self.batch
        for serial, body in flight.bodies.items():
            serial_key = serial.to_bytes(8, "big")
            ticket = flight.tickets.get(serial)
            if body is None or ticket is None:
                batch.body_deletes.append(serial_key)
            else:
                kind = BODY_RESULT if ticket.state == DONE else BODY_PAYLOAD
                batch.bodies.append((serial_key, kind + body))
        for name, row in flight.uniques.items():
            batch.uniques.append((name, None if row is None else encode_row(row)))
        for (serial, fence), attempt in flight.history.items():
            if flight.tickets.get(serial) is not None:
                key = serial.to_bytes(8, "big") + fence.to_bytes(8, "big")
                batch.history.append((key, encode_row(attempt)))
        for serial, move in flight.moves.items():
            if serial not in flight.tickets:
                place = (move.due_ms, serial, move.first_due_ms, move.lane_number)
                batch.leaves.append(place)
                batch.enters_lane.append(place)
        batch.lane_names.extend(self.core.lane_names())
