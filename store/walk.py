"""A walk over all rows of a store, as bytes, in order of their keys: for whoever writes them anew.

A row that fails its checksum ends the walk: what is written anew would lack it for good.
"""

import struct
from collections.abc import Iterator
from typing import NamedTuple

from parkade.store.batch import Claim
from parkade.store.rows import RowDamaged, unseal
from parkade.store.snapshot import Snapshot
from parkade.store.writer import CLAIM_BYTES, claim_until_ms

__all__ = ["TicketRows", "claims_of", "heads_of", "outbox_of", "rows_of"]

OUTBOX_PAGE = 500
_HISTORY_KEY = struct.Struct(">QQ")


class TicketRows(NamedTuple):
    """What a store has of a ticket beside its head. `history` is by fence, what an attempt saved
    under `BOOKMARK_FENCE` among it."""

    body: bytes | None
    history: list[tuple[int, bytes]]


def heads_of(snapshot: Snapshot) -> Iterator[tuple[int, bytes]]:
    """(serial, head) of every ticket. Raises `RowDamaged`."""
    for key, stored in snapshot.transaction.cursor(snapshot.tables.heads):
        serial = int.from_bytes(key, "big")
        head = unseal(key, stored)
        if head is None:
            raise RowDamaged(snapshot.path, "heads", bytes(key), serial)
        yield serial, head


def rows_of(snapshot: Snapshot, serial: int) -> TicketRows:
    """The other rows of a ticket. Raises `RowDamaged`."""
    body = snapshot.body(serial)
    history: list[tuple[int, bytes]] = []
    prefix = serial.to_bytes(8, "big")
    cursor = snapshot.transaction.cursor(snapshot.tables.history)
    if cursor.set_range(prefix):
        for key, stored in cursor.iternext():
            owner, fence = _HISTORY_KEY.unpack(key)
            if owner != serial:
                break
            row = unseal(key, stored)
            if row is None:
                raise RowDamaged(snapshot.path, "history", bytes(key), serial)
            history.append((fence, row))
    return TicketRows(None if body is None else bytes([body.kind]) + body.content, history)


def claims_of(snapshot: Snapshot) -> Iterator[tuple[bytes, Claim]]:
    """Every unique name with its row. Raises `RowDamaged`."""
    for key, stored in snapshot.transaction.cursor(snapshot.tables.uniques):
        name, row = bytes(key), unseal(key, stored)
        if row is None:
            raise RowDamaged(snapshot.path, "uniques", name, None)
        yield name, Claim(row[CLAIM_BYTES:], claim_until_ms(row))


def outbox_of(snapshot: Snapshot) -> Iterator[tuple[bytes, bytes]]:
    """Every entry with its key. Raises `Damage`."""
    after = b""
    while True:
        page = snapshot.outbox(after=after, limit=OUTBOX_PAGE)
        yield from page
        if len(page) < OUTBOX_PAGE:
            return
        after = page[-1][0]
