"""Damage done on purpose to directories that nobody runs."""

from pathlib import Path

import lmdb

from parkade.store.rows import seal, unseal

__all__ = ["first_key", "harm_row", "keys_of", "write_row"]


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
