"""Reading what can be read of a store whose pages may be damaged, into a file of its rows.

A table is walked from its front, and where that ends too early from its back, so that one damaged
page costs no more than it had. Reading damaged pages may end the process: each step is told before
it is taken, and rows are written one by one, so that whoever started this process knows what to
leave out. Rows are written as they stand, checksums and all; nothing is judged here.
"""

import os
import struct
from collections.abc import Callable, Iterator
from typing import NamedTuple

import lmdb

from parkade.store.environment import DATA_FILE, open_plain

__all__ = [
    "BACKWARD",
    "FORWARD",
    "TABLES",
    "SalvagedRow",
    "is_store_there",
    "read_rows",
    "salvage_step",
]

TABLES = ("meta", "heads", "bodies", "history", "uniques", "outbox", "listings")
FORWARD, BACKWARD = "forward", "backward"

_ROW = struct.Struct(">BII")


class SalvagedRow(NamedTuple):
    """`stored` is with its checksum."""

    table: str
    key: bytes
    stored: bytes


def salvage_step(directory: str, table: str, way: str, target: str, last: bytes) -> bool:
    """Appends the rows of one table to the file `target`; whether the walk came to its end.

    Backward it ends at the key `last`, where the walk from the front ended. Raises `lmdb.Error`
    and `ReadFailed` where not even a beginning can be made; `OSError` where `target` cannot be
    written.
    """
    descriptor = os.open(target, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600)
    environment = open_plain(directory)
    try:
        number = TABLES.index(table)
        handle = environment.open_db(table.encode(), create=False)
        with environment.begin() as transaction:
            cursor = transaction.cursor(handle)
            walk = _walk_back if way == BACKWARD else _walk
            return walk(cursor, last, lambda row: _write(descriptor, number, row))
    finally:
        os.close(descriptor)
        environment.close()


def _walk(
    cursor: "lmdb.Cursor[bytes]",
    last: bytes,
    take: Callable[[tuple[bytes, bytes]], None],
) -> bool:
    try:
        is_there = cursor.first()
        while is_there:
            key, stored = cursor.item()
            if key <= last:
                return False  # damaged pages lead back
            last = key
            take((key, stored))
            is_there = cursor.next()
    except lmdb.Error:
        return False
    return True


def _walk_back(
    cursor: "lmdb.Cursor[bytes]",
    last: bytes,
    take: Callable[[tuple[bytes, bytes]], None],
) -> bool:
    before: bytes | None = None
    try:
        is_there = cursor.last()
        while is_there:
            key, stored = cursor.item()
            if key <= last or (before is not None and key >= before):
                return False
            before = key
            take((key, stored))
            is_there = cursor.prev()
    except lmdb.Error:
        return False
    return True


def _write(descriptor: int, number: int, row: tuple[bytes, bytes]) -> None:
    key, stored = row
    rest = memoryview(_ROW.pack(number, len(key), len(stored)) + key + stored)
    while rest:
        rest = rest[os.write(descriptor, rest) :]


def read_rows(target: str, *tables: str) -> Iterator[SalvagedRow]:
    """The rows of these tables (none named: of all), as they were written. A last one that is cut
    short is left out."""
    if not os.path.exists(target):
        return
    with open(target, "rb") as file:
        while len(head := file.read(_ROW.size)) == _ROW.size:
            number, key_bytes, stored_bytes = _ROW.unpack(head)
            table = TABLES[int(number)]
            if tables and table not in tables:
                file.seek(key_bytes + stored_bytes, os.SEEK_CUR)
                continue
            content = file.read(key_bytes + stored_bytes)
            if len(content) == key_bytes + stored_bytes:
                yield SalvagedRow(table, content[:key_bytes], content[key_bytes:])


def is_store_there(directory: str) -> bool:
    """Whether there is a file to read."""
    path = f"{directory}/{DATA_FILE}"
    return os.path.isfile(path) and os.path.getsize(path) > 0
