"""Rows of the store: keys in order, values that end in a crc32 over key and value. No LMDB here."""

import struct
from collections.abc import Iterator, Sequence
from operator import add
from typing import Final
from zlib import crc32

from parkade.store.errors import StoreError

__all__ = [
    "CRC_BYTES", "PART_ROWS", "RowDamaged", "in_parts", "pack_serials", "seal", "seal_all",
    "unseal",
]  # fmt: skip

CRC_BYTES = 4
PART_ROWS: Final = 256  # of 1,000 bytes are made in some 0.5 ms
_SERIAL = struct.Struct(">Q")
_CRC = struct.Struct(">I")
_join = b"".join


class RowDamaged(StoreError):
    """A row of the store fails its crc, or says what it cannot: one ticket is lost to it, and no
    other.

    `serial` is the ticket's, None where the row does not tell (a unique name).
    """

    def __init__(
        self,
        path: str,
        table: str,
        key: bytes,
        serial: int | None,
        reason: str = "checksum mismatch",
    ) -> None:
        super().__init__(
            f"{path}: row {key.hex()} of table {table} cannot be used ({reason}); restore the "
            f"ticket from a backup, or drop it"
        )
        self.reason = reason
        self.path = path
        self.table = table
        self.key = key
        self.serial = serial


def seal(key: bytes, value: bytes) -> bytes:
    """What is stored under `key`: the value and a crc32 that covers both."""
    return value + crc32(value, crc32(key)).to_bytes(4, "big")


def seal_all(
    keys: Sequence[bytes], values: Sequence[bytes], leads: Sequence[bytes] = ()
) -> list[bytes]:
    """`seal` of each of them, or of its lead and the value where there are `leads`."""
    seeds = map(crc32, keys)
    if not leads:
        return list(map(add, values, map(_CRC.pack, map(crc32, values, seeds))))
    crcs = map(crc32, values, map(crc32, leads, seeds))
    return list(map(_join, zip(leads, values, map(_CRC.pack, crcs), strict=True)))


def unseal(key: bytes | memoryview, stored: bytes | memoryview) -> bytes | None:
    """The value, or None when it or its key are not what was written."""
    row = bytes(stored)
    value, crc = row[:-CRC_BYTES], row[-CRC_BYTES:]
    return value if crc32(value, crc32(key)).to_bytes(CRC_BYTES, "big") == crc else None


def in_parts(count: int) -> Iterator[slice]:
    """Where to cut so many rows that are made and put part by part: what was made is still at hand
    when it is put. While rows are made no other thread has the interpreter, and LMDB gives it away
    with each row that it is told to put."""
    return (slice(begin, begin + PART_ROWS) for begin in range(0, count, PART_ROWS))


def pack_serials(serials: list[int]) -> list[bytes]:
    """The keys of tickets: 8 bytes, big-endian."""
    return list(map(_SERIAL.pack, serials))
