"""LMDB in memory, at the level of its transactions: what the code of the store uses of the binding.

A `Shelf` is a disk for environments: it keeps what was committed when a process or the machine
dies. A commit happens whole or not at all, and can be made to fail, before or after it took effect,
as a real one may when its last page cannot be written. `MemoryFiles` is what a store is given to
reach it. tests/property/test_lmdb_memory.py holds it against the real library.
"""

import errno
from bisect import bisect_left, insort
from collections import Counter
from collections.abc import Callable, Iterable, Iterator
from typing import Any, Literal

import lmdb

from parkade.store.environment import StoreFiles
from parkade.store.errors import Damage

__all__ = ["CommitFailure", "MemoryFiles", "Shelf"]

PAGE_BYTES = 4096
CommitFailure = Literal["before", "after"]


class Table:
    """A named database: keys in order, each with its value, or with its sorted values."""

    def __init__(self, is_dup: bool) -> None:
        self.is_dup = is_dup
        self.keys: list[bytes] = []
        self.rows: dict[bytes, list[bytes]] = {}

    def copy(self) -> "Table":
        other = Table(self.is_dup)
        other.keys = self.keys.copy()
        # Without duplicates a row is replaced, never changed.
        copied = (lambda rows: {key: rows[key].copy() for key in rows}) if self.is_dup else dict
        other.rows = copied(self.rows)
        return other

    @property
    def entries(self) -> int:
        return sum(map(len, self.rows.values()))

    def size_bytes(self) -> int:
        return sum(
            len(key) + 16 + sum(len(value) + 8 for value in values)
            for key, values in self.rows.items()
        )

    def put(self, key: bytes, value: bytes) -> None:
        values = self.rows.get(key)
        if values is None:
            insort(self.keys, key)
            self.rows[key] = [value]
        elif not self.is_dup:
            self.rows[key] = [value]
        else:
            at = bisect_left(values, value)
            if at == len(values) or values[at] != value:
                values.insert(at, value)

    def delete(self, key: bytes, value: bytes) -> bool:
        values = self.rows.get(key)
        if values is None:
            return False
        if self.is_dup and value:
            at = bisect_left(values, value)
            if at == len(values) or values[at] != value:
                return False
            del values[at]
            if values:
                return True
        self._drop(key)
        return True

    def delete_at(self, key: bytes, place: int) -> None:
        values = self.rows[key]
        if self.is_dup and len(values) > 1:
            del values[place]
        else:
            self._drop(key)

    def _drop(self, key: bytes) -> None:
        del self.rows[key]
        del self.keys[bisect_left(self.keys, key)]


class _Version:
    """What one transaction committed."""

    def __init__(self, number: int, tables: dict[bytes, Table]) -> None:
        self.number = number
        self.tables = tables
        self.used_bytes = PAGE_BYTES * (
            2 + sum(1 + table.size_bytes() * 3 // 2 // PAGE_BYTES for table in tables.values())
        )


class _File:
    """A data file: its last committed version, and how long it is."""

    def __init__(self) -> None:
        self.version = _Version(0, {})
        self.length = 0


class Shelf:
    """The environments of one machine, by path. `counts` tells what happened to them."""

    def __init__(self) -> None:
        self.files: dict[str, _File] = {}
        self.directories: set[str] = set()
        self.counts: Counter[str] = Counter()
        self.free_bytes = 1 << 40
        self.fail_commit: Callable[[str], tuple[CommitFailure, int] | None] = lambda _: None
        self.on_commit: Callable[[str], None] = lambda _: None
        self._open: list[MemoryEnvironment] = []

    def lose_process(self) -> None:
        """The process died: what it had open is closed, and what was committed is there."""
        for environment in self._open:
            environment.is_closed = True
        self._open.clear()

    def opened(self, environment: "MemoryEnvironment") -> None:
        self._open.append(environment)


class MemoryFiles(StoreFiles):
    """How a store reaches a shelf."""

    def __init__(self, shelf: Shelf) -> None:
        self.shelf = shelf

    def open(self, directory: str, *, map_bytes: int, is_new: bool, sync: bool) -> Any:
        path = f"{directory}/data.mdb"
        file = self.shelf.files.get(path)
        if file is None:
            if not is_new:
                raise Damage(path, 0, "the file is missing or empty")
            file = self.shelf.files[path] = _File()
        environment = MemoryEnvironment(
            self.shelf, path, file, max(map_bytes, file.length * 4 // 3)
        )
        self.shelf.opened(environment)
        return environment

    def file_bytes(self, path: str) -> int:
        file = self.shelf.files.get(path)
        return 0 if file is None else file.length

    def fill_up(self, environment: Any, path: str) -> None:
        file = self.shelf.files[path]
        file.length = max(file.length, file.version.used_bytes)

    def make_directory(self, path: str) -> None:
        self.shelf.directories.add(path)

    def sync_directory(self, path: str) -> None:
        self.shelf.counts["sync_directory"] += 1

    def free_bytes(self, path: str) -> int:
        return self.shelf.free_bytes


class MemoryEnvironment:
    """What the store uses of `lmdb.Environment`."""

    def __init__(self, shelf: Shelf, path: str, file: _File, map_bytes: int) -> None:
        self.shelf = shelf
        self.file_path = path
        self.file = file
        self.map_bytes = map_bytes
        self.is_closed = False
        self.readers = 0
        self.is_writing = False
        self.is_panicked = False  # its last page may or may not be there: it has to be opened anew

    def open_db(
        self, name: bytes, *, create: bool = True, dupsort: bool = False, dupfixed: bool = False
    ) -> bytes:
        self._check()
        if name not in self.file.version.tables:
            if not create:
                raise lmdb.NotFoundError("mdb_dbi_open")
            tables = {**self.file.version.tables, name: Table(dupsort)}
            self.file.version = _Version(self.file.version.number + 1, tables)
        return name

    def begin(self, *, write: bool = False, buffers: bool = False) -> "MemoryTransaction":
        self._check()
        if write and self.is_panicked:
            raise _coded(lmdb.PanicError("mdb_txn_begin"), -30795)
        return MemoryTransaction(self, is_write=write, has_buffers=buffers)

    def info(self) -> dict[str, int]:
        self._check()
        pages = self.file.version.used_bytes // PAGE_BYTES
        return {"map_size": self.map_bytes, "last_pgno": pages - 1}

    def stat(self) -> dict[str, int]:
        self._check()
        return {"psize": PAGE_BYTES}

    def set_mapsize(self, map_bytes: int) -> None:
        self._check()
        assert not self.readers, "growing the map kills whoever reads"
        self.shelf.counts["map growths"] += 1
        self.map_bytes = map_bytes

    def reader_check(self) -> int:
        return 0

    def close(self) -> None:
        self.is_closed = True

    def _check(self) -> None:
        if self.is_closed:
            raise lmdb.Error("Attempt to operate on closed/deleted/dropped object.")


class MemoryTransaction:
    """What the store uses of `lmdb.Transaction`: a context that commits, or aborts on an error."""

    def __init__(
        self, environment: MemoryEnvironment, *, is_write: bool, has_buffers: bool
    ) -> None:
        self.environment = environment
        self.is_write = is_write
        self.has_buffers = has_buffers
        self.version = environment.file.version
        self.number = self.version.number + is_write
        self.touched: dict[bytes, Table] = {}
        if is_write:
            assert not environment.is_writing, "one writer at a time"
            environment.is_writing = True
        else:
            environment.readers += 1

    def __enter__(self) -> "MemoryTransaction":
        return self

    def __exit__(self, et: Any, e: Any, tb: Any) -> None:
        environment = self.environment
        if not self.is_write:
            environment.readers -= 1
            return
        environment.is_writing = False
        if et is None:
            self._commit()

    def _commit(self) -> None:
        environment = self.environment
        if environment.is_closed:
            raise lmdb.Error("Attempt to operate on closed/deleted/dropped object.")
        shelf, path = environment.shelf, environment.file_path
        version = _Version(self.number, {**self.version.tables, **self.touched})
        if version.used_bytes > environment.map_bytes:
            raise lmdb.MapFullError("mdb_txn_commit: MDB_MAP_FULL")
        shelf.on_commit(path)
        failure = shelf.fail_commit(path)
        if failure is not None and failure[0] == "before":
            shelf.counts["failed commits"] += 1
            raise _disk_error(failure[1])
        environment.file.version = version
        shelf.counts["commits"] += 1
        if failure is not None:
            shelf.counts["failed commits"] += 1
            environment.is_panicked = True
            raise _disk_error(failure[1])
        environment.file.length = max(environment.file.length, version.used_bytes)

    def id(self) -> int:
        return self.number

    def table(self, name: bytes) -> Table:
        return self.touched.get(name) or self.version.tables[name]

    def writable(self, name: bytes) -> Table:
        assert self.is_write
        table = self.touched.get(name)
        if table is None:
            table = self.touched[name] = self.version.tables[name].copy()
        return table

    def shown(self, value: bytes) -> Any:
        return memoryview(value) if self.has_buffers else value

    def get(self, key: Any, default: Any = None, db: Any = None) -> Any:
        values = self.table(db).rows.get(bytes(key))
        return default if values is None else self.shown(values[0])

    def put(self, key: Any, value: Any, *, db: Any, append: bool = False) -> bool:
        self.writable(db).put(bytes(key), bytes(value))
        return True

    def delete(self, key: Any, value: Any = b"", db: Any = None) -> bool:
        return self.writable(db).delete(bytes(key), bytes(value))

    def stat(self, db: Any) -> dict[str, int]:
        table = self.table(db)
        pages = -(-table.size_bytes() // PAGE_BYTES)
        return {"psize": PAGE_BYTES, "leaf_pages": pages, "entries": table.entries}

    def cursor(self, db: Any) -> "MemoryCursor":
        return MemoryCursor(self, db)


class MemoryCursor:
    """What the store uses of `lmdb.Cursor`. A position is a key and a place among its values."""

    def __init__(self, transaction: MemoryTransaction, name: bytes) -> None:
        self._transaction = transaction
        self._name = name
        self._key: bytes | None = None
        self._place = 0
        self._is_placed = False

    @property
    def _table(self) -> Table:
        return self._transaction.table(self._name)

    def _go(self, index: int, place: int = 0) -> bool:
        keys = self._table.keys
        self._is_placed = True
        if not 0 <= index < len(keys):
            self._key, self._place = None, 0
            return False
        self._key = keys[index]
        last = len(self._table.rows[self._key]) - 1
        self._place = place if place >= 0 else last
        return True

    def key(self) -> Any:
        return self._transaction.shown(b"" if self._key is None else self._key)

    def value(self) -> Any:
        value = b"" if self._key is None else self._table.rows[self._key][self._place]
        return self._transaction.shown(value)

    def item(self) -> tuple[Any, Any]:
        return self.key(), self.value()

    def count(self) -> int:
        """How many values its key has."""
        return 0 if self._key is None else len(self._table.rows[self._key])

    # ------------------------------------------------------------------ moving

    def first(self) -> bool:
        return self._go(0)

    def last(self) -> bool:
        return self._go(len(self._table.keys) - 1, -1)

    def next(self) -> bool:
        if self._key is None:
            return self.first() if not self._is_placed else False
        if self._place + 1 < len(self._table.rows[self._key]):
            self._place += 1
            return True
        return self._go(bisect_left(self._table.keys, self._key) + 1)

    def prev(self) -> bool:
        if self._key is None:
            return self.last()
        if self._place:
            self._place -= 1
            return True
        index = bisect_left(self._table.keys, self._key) - 1
        return self._go(index, -1) if index >= 0 else self._go(-1)

    def last_dup(self) -> bool:
        if self._key is None:
            return False
        self._place = len(self._table.rows[self._key]) - 1
        return True

    def prev_dup(self) -> bool:
        if self._key is None or not self._place:
            self._key, self._place = None, 0
            return False
        self._place -= 1
        return True

    def set_key(self, key: Any) -> bool:
        index = bisect_left(self._table.keys, bytes(key))
        if index < len(self._table.keys) and self._table.keys[index] == bytes(key):
            return self._go(index)
        return self._go(-1)

    def get(self, key: Any) -> Any:
        return self.value() if self.set_key(key) else None

    def set_key_dup(self, key: Any, value: Any) -> bool:
        if self.set_range_dup(key, value) and bytes(self.value()) == bytes(value):
            return True
        return self._go(-1)

    def set_range(self, key: Any) -> bool:
        return self._go(bisect_left(self._table.keys, bytes(key)))

    def set_range_dup(self, key: Any, value: Any) -> bool:
        if not self.set_key(key):
            return False
        assert self._key is not None
        place = bisect_left(self._table.rows[self._key], bytes(value))
        if place == len(self._table.rows[self._key]):
            return self._go(-1)
        self._place = place
        return True

    # ------------------------------------------------------------------ walking

    def __iter__(self) -> Iterator[Any]:
        return self.iternext()

    def iternext(self, keys: bool = True, values: bool = True) -> Iterator[Any]:
        if self._key is None and not self._is_placed:
            self.first()
        return self._walk(self.next, keys, values)

    def iterprev(self, keys: bool = True, values: bool = True) -> Iterator[Any]:
        if self._key is None:
            self.last()
        return self._walk(self.prev, keys, values)

    def iternext_dup(self, keys: bool = False, values: bool = True) -> Iterator[Any]:
        return self._walk(self._next_dup, keys, values)

    def iterprev_dup(self, keys: bool = False, values: bool = True) -> Iterator[Any]:
        return self._walk(self.prev_dup, keys, values)

    def _next_dup(self) -> bool:
        assert self._key is not None
        if self._place + 1 >= len(self._table.rows[self._key]):
            self._key, self._place = None, 0
            return False
        self._place += 1
        return True

    def _walk(self, step: Callable[[], bool], keys: bool, values: bool) -> Iterator[Any]:
        while self._key is not None:
            if keys and values:
                yield self.key(), self.value()
            else:
                yield self.key() if keys else self.value()
            if self._key is None or not step():
                return

    def getmulti(self, keys: Iterable[Any]) -> list[tuple[Any, Any]]:
        table, shown = self._table, self._transaction.shown
        found: list[tuple[Any, Any]] = []
        for key in map(bytes, keys):
            values = table.rows.get(key)
            if values is not None:
                found.append((shown(key), shown(values[0])))
        return found

    # ------------------------------------------------------------------ changing

    def putmulti(self, items: Iterable[tuple[Any, Any]], append: bool = False) -> tuple[int, int]:
        """How many there were, and how many were put: the binding passes over what it cannot
        append, without a word."""
        table = self._transaction.writable(self._name)
        consumed = added = 0
        for key, value in ((bytes(key), bytes(value)) for key, value in items):
            consumed += 1
            if append and table.keys and not _follows(table, key, value):
                continue
            before = table.entries
            table.put(key, value)
            added += 1 if not table.is_dup else table.entries - before
        return consumed, added

    def delete(self) -> bool:
        """Deletes where it stands, and stands at what followed."""
        if self._key is None:
            return False
        table = self._transaction.writable(self._name)
        key, place = self._key, self._place
        table.delete_at(key, place)
        index = bisect_left(table.keys, key)
        if key in table.rows and place < len(table.rows[key]):
            return True
        self._go(index + (key in table.rows))
        return True


def _follows(table: Table, key: bytes, value: bytes) -> bool:
    """Whether it may be appended: behind all keys; with duplicates, behind those of its key."""
    if table.is_dup:
        return key not in table.rows or value > table.rows[key][-1]
    return key > table.keys[-1]


def _disk_error(code: int) -> lmdb.Error:
    error = lmdb.DiskError if code == errno.ENOSPC else lmdb.Error
    return _coded(error("mdb_txn_commit"), code)


def _coded(error: lmdb.Error, code: int) -> lmdb.Error:
    error.code = code  # type: ignore[misc]
    return error
