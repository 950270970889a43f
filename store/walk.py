"""A walk over all rows of a store, as bytes, in order of their keys: for whoever writes them anew.

A row that fails its checksum ends the walk, and so does one that is not met: what is written anew
would lack it for good. A damaged page may lead past rows without a word, so what is met is counted.
"""

import struct
from collections.abc import Iterator
from typing import NamedTuple

from parkade.store.batch import Claim
from parkade.store.errors import Damage
from parkade.store.rows import RowDamaged, unseal
from parkade.store.snapshot import Snapshot
from parkade.store.writer import CLAIM_BYTES, claim_until_ms

__all__ = [
    "RowsOfTickets", "TicketRows", "all_rows", "check_reached", "claims_of", "heads_of",
    "outbox_of",
]  # fmt: skip

OUTBOX_PAGE = 500
_HISTORY_KEY = struct.Struct(">QQ")


class TicketRows(NamedTuple):
    """What a store has of a ticket beside its head. `history` is by fence, what an attempt saved
    under `BOOKMARK_FENCE` among it."""

    body: bytes | None
    history: list[tuple[int, bytes]]


def all_rows(snapshot: Snapshot, name: str) -> Iterator[tuple[memoryview, memoryview]]:
    """Every row of a table. Raises `Damage` at the end where the table has others."""
    reached = 0
    for row in snapshot.transaction.cursor(getattr(snapshot.tables, name)):
        reached += 1
        yield row
    check_reached(snapshot, name, reached)


def check_reached(snapshot: Snapshot, name: str, reached: int) -> None:
    """Raises `Damage` where a table counts other rows than were reached."""
    counted = snapshot.transaction.stat(getattr(snapshot.tables, name))["entries"]
    if counted != reached:
        reason = f"table {name} counts {counted} rows, and {reached} can be reached"
        raise Damage(snapshot.path, 0, reason)


def heads_of(snapshot: Snapshot) -> Iterator[tuple[int, bytes]]:
    """(serial, head) of every ticket. Raises `RowDamaged`, `Damage`."""
    for key, stored in all_rows(snapshot, "heads"):
        serial = int.from_bytes(key, "big")
        head = unseal(key, stored)
        if head is None:
            raise RowDamaged(snapshot.path, "heads", bytes(key), serial)
        yield serial, head


class RowsOfTickets:
    """The other rows of the tickets of a store, ticket by ticket."""

    def __init__(self, snapshot: Snapshot) -> None:
        self.snapshot = snapshot
        self._bodies = 0
        self._history = 0

    def of(self, serial: int) -> TicketRows:
        """Those of one, to be asked once of each. Raises `RowDamaged`."""
        snapshot = self.snapshot
        body = snapshot.body(serial)
        history = list(self._history_of(serial))
        self._bodies += snapshot.body_rows(serial)
        self._history += len(history)
        return TicketRows(None if body is None else bytes([body.kind]) + body.content, history)

    def check_all_reached(self) -> None:
        """Raises `Damage` where there are other rows than those of the tickets asked for."""
        check_reached(self.snapshot, "bodies", self._bodies)
        check_reached(self.snapshot, "history", self._history)

    def _history_of(self, serial: int) -> Iterator[tuple[int, bytes]]:
        snapshot = self.snapshot
        cursor = snapshot.transaction.cursor(snapshot.tables.history)
        if not cursor.set_range(serial.to_bytes(8, "big")):
            return
        for key, stored in cursor.iternext():
            owner, fence = _HISTORY_KEY.unpack(key)
            if owner != serial:
                return
            row = unseal(key, stored)
            if row is None:
                raise RowDamaged(snapshot.path, "history", bytes(key), serial)
            yield fence, row


def claims_of(snapshot: Snapshot) -> Iterator[tuple[bytes, Claim]]:
    """Every unique name with its row. Raises `RowDamaged`, `Damage`."""
    for key, stored in all_rows(snapshot, "uniques"):
        name, row = bytes(key), unseal(key, stored)
        if row is None:
            raise RowDamaged(snapshot.path, "uniques", name, None)
        yield name, Claim(row[CLAIM_BYTES:], claim_until_ms(row))


def outbox_of(snapshot: Snapshot) -> Iterator[tuple[bytes, bytes]]:
    """Every entry with its key. Raises `Damage`."""
    after = b""
    reached = 0
    while True:
        page = snapshot.outbox(after=after, limit=OUTBOX_PAGE)
        yield from page
        reached += len(page)
        if len(page) < OUTBOX_PAGE:
            check_reached(snapshot, "outbox", reached)
            return
        after = page[-1][0]
