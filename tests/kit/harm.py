"""Damage done on purpose to directories that nobody runs."""

import contextlib
import struct
from io import RawIOBase
from pathlib import Path

import lmdb

from parkade.store.rows import seal, unseal

__all__ = [
    "blank_page", "delete_row", "first_key", "harm_row", "hide_rows", "keys_of", "write_row",
]  # fmt: skip

PAGE_BYTES, PAGE_HEAD_BYTES, PAGE_IS_LEAF = 4096, 16, 0x02


def keys_of(path: Path, shard: int, table: str) -> list[bytes]:
    """The keys of a table of a shard's store, in order."""
    with lmdb.open(str(path / f"shard-{shard:03d}/store"), max_dbs=32, lib_version=0) as store:
        rows = store.open_db(table.encode(), create=False)
        with store.begin() as transaction:
            return [bytes(key) for key, _ in transaction.cursor(rows)]


def first_key(path: Path, shard: int, table: str) -> bytes:
    return keys_of(path, shard, table)[0]


def harm_row(path: Path, shard: int, table: str, key: bytes) -> None:
    """Changes a bit of one row, so that its checksum tells."""
    with lmdb.open(str(path / f"shard-{shard:03d}/store"), max_dbs=32, lib_version=0) as store:
        rows = store.open_db(table.encode(), create=False)
        with store.begin(write=True) as transaction:
            stored = bytes(transaction.get(key, db=rows) or b"")
            harmed = bytes([stored[0] ^ 1]) + stored[1:]
            transaction.put(key, harmed, db=rows)
            assert unseal(key, harmed) is None


def write_row(path: Path, shard: int, table: str, key: bytes, row: bytes) -> None:
    """Puts a row with a checksum that is right, whatever it says."""
    with lmdb.open(str(path / f"shard-{shard:03d}/store"), max_dbs=32, lib_version=0) as store:
        rows = store.open_db(table.encode(), create=False)
        with store.begin(write=True) as transaction:
            transaction.put(key, seal(key, row), db=rows)


def delete_row(path: Path, shard: int, table: str, key: bytes) -> None:
    """Takes one row away."""
    with lmdb.open(str(path / f"shard-{shard:03d}/store"), max_dbs=32, lib_version=0) as store:
        rows = store.open_db(table.encode(), create=False)
        with store.begin(write=True) as transaction:
            assert transaction.delete(key, db=rows)


def hide_rows(path: Path, shard: int, table: str) -> int:
    """Has one page of a table forget half of its rows: a walk passes over them without a word. Says
    how many those are."""
    rows = len(keys_of(path, shard, table))
    with open(_store_of(path, shard), "r+b", buffering=0) as file:
        pages = file.read()
        for page in range(2 * PAGE_BYTES, len(pages), PAGE_BYTES):
            flags, lower = struct.unpack_from("=HH", pages, page + 10)
            count = (lower - PAGE_HEAD_BYTES) // 2
            if flags != PAGE_IS_LEAF or count < 2:
                continue
            _write_at(file, page + 12, struct.pack("=H", PAGE_HEAD_BYTES + 2 * (count // 2)))
            with contextlib.suppress(lmdb.Error):
                if (seen := len(keys_of(path, shard, table))) < rows:
                    return rows - seen
            _write_at(file, page + 12, pages[page + 12 : page + 14])
    raise AssertionError(f"no page of {table} has two rows")


def blank_page(path: Path, shard: int, table: str) -> None:
    """Makes zeros of a page that has rows of a table: who walks over it may be ended by LMDB."""
    before = _store_of(path, shard).read_bytes()
    hide_rows(path, shard, table)
    after = _store_of(path, shard).read_bytes()
    differs = next(
        at for at, (old, new) in enumerate(zip(before, after, strict=True)) if old != new
    )
    with open(_store_of(path, shard), "r+b", buffering=0) as file:
        _write_at(file, differs // PAGE_BYTES * PAGE_BYTES, bytes(PAGE_BYTES))


def _store_of(path: Path, shard: int) -> Path:
    return path / f"shard-{shard:03d}/store/data.mdb"


def _write_at(file: RawIOBase, offset: int, content: bytes) -> None:
    file.seek(offset)
    file.write(content)
