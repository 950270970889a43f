"""Reading a store: of another process, or of a directory that nobody runs. Never writes.

The owner's `parked.Parked` builds on it.
"""

import errno
from collections.abc import Generator
from contextlib import contextmanager
from typing import NamedTuple

import lmdb

from parkade.store.environment import (
    DATA_FILE,
    MAP_BYTES,
    Gate,
    Tables,
    open_environment,
    open_tables,
    reading,
    used_bytes,
)
from parkade.store.errors import Damage, FormatTooNew, ReadFailed
from parkade.store.meta import FORMAT, IDENTITY, MAGIC, unpack_identity
from parkade.store.rows import unseal
from parkade.store.snapshot import Snapshot

__all__ = ["READERS_OUT_MS", "Pages", "ParkedReader", "Stat", "check_identity"]

META_PAGES = 2
READERS_OUT_MS = 2_000  # a snapshot takes milliseconds; one that stays longer is a fault of ours
ENTER_TRIES = 5  # to read beside an owner that grows, or after killed readers


class Stat(NamedTuple):
    """`used_bytes` counts pages that were freed and wait to be used again; `readers` counts the
    open snapshots of this process."""

    entries: dict[str, int]  # by table
    used_bytes: int
    map_bytes: int
    readers: int


class Pages(NamedTuple):
    """`used` and `free` together are the pages of the file; `free` waits to be used again. `depth`
    is of the greatest table, `readers` are the open snapshots of all processes."""

    entries: dict[str, int]
    page_bytes: int
    used: int
    free: int
    depth: int
    readers: int


class ParkedReader:
    """A store that is only read: of another process, or of a directory that nobody runs.

    Within the process that owns a store use its `Parked`: LMDB cannot open one twice.
    """

    _environment: lmdb.Environment
    _tables: Tables

    def __init__(self, directory: str) -> None:
        self.directory = directory
        self.path = f"{directory}/{DATA_FILE}"
        self._gate = Gate()

    @classmethod
    def open_readonly(
        cls, directory: str, *, salt: bytes, shard: int, is_live: bool = True
    ) -> "ParkedReader":
        """Open without writing a byte of the store.

        `is_live`: another process may own the store; then a slot in its lock file keeps the pages
        that a snapshot sees from being used again. Without it nothing is locked, so that a
        directory that cannot be written can be read, and the store must not change meanwhile.
        Raises `Damage`, `FormatTooNew`, `ReadFailed`.
        """
        environment = open_environment(
            directory, map_bytes=MAP_BYTES, is_readonly=True, has_lock=is_live
        )
        try:
            reader = ParkedReader(directory)
            reader._environment = environment
            reader._tables = open_tables(environment, reader.path, is_new=False)
            with reader.snapshot() as snapshot:
                check_identity(snapshot, salt, shard)
        except BaseException:
            environment.close()
            raise
        return reader

    @contextmanager
    def snapshot(self) -> Generator[Snapshot, None, None]:
        """The store as it is now. Keep it for milliseconds, and never two in one thread.

        What LMDB raises inside comes out as `Damage` or `ReadFailed`.
        """
        with reading(self.path):
            transaction = self._enter()
            try:
                with transaction:
                    yield Snapshot(transaction, self._tables, self.path)
            finally:
                self._gate.leave()

    def stat(self) -> Stat:
        """Rows per table and bytes; a constant number of reads."""
        with self.snapshot() as snapshot:
            entries = {
                name: snapshot.transaction.stat(table)["entries"]
                for name, table in zip(Tables._fields, self._tables, strict=True)
            }
            map_bytes = self._environment.info()["map_size"]
            return Stat(entries, used_bytes(self._environment), map_bytes, self._gate.inside - 1)

    def pages(self, snapshot: Snapshot) -> Pages:
        """Where the bytes of the file are; a constant number of reads."""
        facts = [snapshot.transaction.stat(table) for table in self._tables]
        names = Tables._fields
        used = META_PAGES
        for fact in facts:
            used += fact["branch_pages"] + fact["leaf_pages"] + fact["overflow_pages"]
        info = self._environment.info()
        return Pages(
            {name: fact["entries"] for name, fact in zip(names, facts, strict=True)},
            facts[0]["psize"],
            used,
            max(0, info["last_pgno"] + 1 - used),
            max(fact["depth"] for fact in facts),
            info["num_readers"],
        )

    @property
    def used_bytes(self) -> int:
        """Bytes of the file that are in use, freed pages included; cheap."""
        return used_bytes(self._environment)

    def close(self) -> None:
        """Let go of the files. Twice is once.

        A snapshot that stays open keeps them open, for as long as the process lives.
        """
        if self._gate.shut(READERS_OUT_MS):
            self._environment.close()
            self._gate.open()

    def _enter(self) -> "lmdb.Transaction[memoryview]":
        """A transaction to read, for which the gate has been entered."""
        for _ in range(ENTER_TRIES):
            self._gate.enter()
            try:
                return self._environment.begin(buffers=True)
            except lmdb.MapResizedError:
                self._gate.leave()
                self._grow(0)  # to what its owner has made of it meanwhile
            except lmdb.ReadersFullError:
                self._gate.leave()
                # A process that was killed may have left its slots behind.
                self._environment.reader_check()
            except BaseException:
                self._gate.leave()
                raise
        raise ReadFailed(self.path, errno.EBUSY, "too many readers, or it grows all the time")

    def _grow(self, map_bytes: int) -> bool:
        """Let the readers out and set the size of the map; False when they do not leave.

        Never under a reader: its pages would be pulled away while it reads them.
        """
        if not self._gate.shut(READERS_OUT_MS):
            return False
        try:
            self._environment.set_mapsize(map_bytes)
        finally:
            self._gate.open()
        return True


def check_identity(snapshot: Snapshot, salt: bytes, shard: int) -> None:
    """Raises `Damage` for another directory's or another shard's store, `FormatTooNew`."""
    path = snapshot.path
    stored = snapshot.transaction.get(IDENTITY, db=snapshot.tables.meta)
    row = None if stored is None else unseal(IDENTITY, stored)
    if row is None:
        raise Damage(path, 0, "it does not say whose it is: the row of its identity is damaged")
    identity = unpack_identity(row)
    if identity.magic != MAGIC:
        raise Damage(path, 0, "it is no store of parkade")
    if identity.format > FORMAT:
        raise FormatTooNew(path, identity.format, FORMAT)
    if identity.salt != salt:
        raise Damage(path, 0, "it belongs to another directory (its salt differs)")
    if identity.shard != shard:
        raise Damage(path, 0, f"it belongs to shard {identity.shard}, not to shard {shard}")
