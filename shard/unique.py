"""Dedupe keys: the name of a row, what a submit writes into it, and until when it is taken."""

from hashlib import blake2b
from typing import Final

from parkade.shard.commands import UniqueRow
from parkade.shard.ticket import Ticket
from parkade.store.record import Submitted

__all__ = [
    "ACTIVE",
    "DURATION",
    "HELD",
    "KEPT",
    "UNIQUE_NAME_BYTES",
    "alias_name",
    "is_taken",
    "row_after_end",
    "row_of",
    "unique_name",
    "unique_name_of",
]

KEPT: Final = 0
ACTIVE: Final = 1
DURATION: Final = 2

HELD: Final = -1
"""The `until_ms` of a row whose ticket has not ended, or is dead."""

UNIQUE_NAME_BYTES: Final = 16


def unique_name(task: str, key: str | None, name: str) -> bytes:
    """The key of the row: 16 bytes that stand for the name within its task and its key."""
    digest = blake2b(digest_size=UNIQUE_NAME_BYTES)
    for text in (task, name) if key is None else (task, name, key):
        encoded = text.encode()
        # Lengths first, so that no two ways of cutting the same text give the same bytes.
        digest.update(len(encoded).to_bytes(4, "big"))
        digest.update(encoded)
    return digest.digest()


def alias_name(serial: int) -> bytes:
    """The key of the row that says for whom the id of a child answers that was not made."""
    return blake2b(
        serial.to_bytes(8, "big"), digest_size=UNIQUE_NAME_BYTES, person=b"alias"
    ).digest()


def unique_name_of(ticket: Ticket | Submitted) -> bytes | None:
    """The row a ticket's dedupe key stands in; None when it has none."""
    claim = ticket.unique
    return None if claim is None else unique_name(ticket.task, ticket.key, claim.name)


def row_of(submitted: Submitted) -> UniqueRow:
    """The row as the submit writes it."""
    claim = submitted.unique
    assert claim is not None, submitted.serial
    until_ms = claim.until_ms if claim.mode == DURATION else HELD
    return UniqueRow(submitted.serial, submitted.part, until_ms, claim.mode, claim.keep_ms)


def row_after_end(row: UniqueRow, ended_ms: int) -> UniqueRow | None:
    """The row once its ticket is done, cancelled or expired; None: the name is free at once."""
    if row.mode == DURATION:
        return row
    if row.mode == ACTIVE:
        return None
    return UniqueRow(row.serial, row.part, ended_ms + row.keep_ms, row.mode, row.keep_ms)


def is_taken(row: UniqueRow | None, settled_ms: int) -> bool:
    """Whether the name is taken at this time of the settled clock."""
    return row is not None and (row.until_ms == HELD or row.until_ms > settled_ms)
