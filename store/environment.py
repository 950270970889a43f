"""The LMDB environment of a store: its tables, how it is opened and grows, what its errors mean.

The file format is the one of LMDB 0.9, whatever the library could write, and the map is never
writable: a full disk then is an error, not a signal.
"""

import errno
import os
import struct
import threading
from collections.abc import Generator
from contextlib import contextmanager
from typing import Any, NamedTuple

import lmdb
import msgspec

from parkade.store.errors import Damage, FormatTooNew, ReadFailed
from parkade.store.meta import FORMAT
from parkade.store.record import is_from_later_version

__all__ = [
    "INDEX_SERIAL_BYTES",
    "MEANINGLESS",
    "Gate",
    "StoreFiles",
    "Tables",
    "file_bytes",
    "fill_up",
    "meaningless",
    "open_environment",
    "open_plain",
    "open_tables",
    "reading",
    "system_code",
    "used_bytes",
]

DATA_FILE = "data.mdb"
LOCK_FILE = "lock.mdb"  # of readers; made anew where it is missing
MAP_BYTES = 64 << 20  # before it grows
READERS_MAX = 126
TABLES_MAX = 32  # room for tables of later formats
INDEX_SERIAL_BYTES = 8
# What comes of reading a row that is none: in a key, or behind a checksum that holds all the same.
MEANINGLESS = (
    msgspec.MsgspecError,
    struct.error,
    UnicodeDecodeError,
    OverflowError,
    RecursionError,
)
# Before version 3 of the binding there is the 0.9 format alone, and no such option.
_PINNED: dict[str, Any] = {"lib_version": 0} if int(lmdb.__version__.split(".")[0]) >= 3 else {}


class Tables(NamedTuple):
    """The named databases; a field's name is the database's."""

    heads: lmdb._Database
    bodies: lmdb._Database
    history: lmdb._Database
    agenda: lmdb._Database
    lanes: lmdb._Database
    waits: lmdb._Database
    lane_names: lmdb._Database
    outbox: lmdb._Database
    uniques: lmdb._Database
    unique_ends: lmdb._Database
    listings: lmdb._Database
    indexes: lmdb._Database
    ended: lmdb._Database
    meta: lmdb._Database


def open_environment(
    directory: str,
    *,
    map_bytes: int,
    is_new: bool = False,
    is_readonly: bool = False,
    has_lock: bool = True,
    sync: bool = True,
) -> lmdb.Environment:
    """Open the environment, with room for what is there. Raises `Damage`, `ReadFailed`.

    A missing data file is damage unless `is_new`.
    """
    path = f"{directory}/{DATA_FILE}"
    size = file_bytes(path)
    if not size and not is_new:
        raise Damage(path, 0, "the file is missing or empty")
    with reading(path):
        environment = lmdb.open(
            directory,
            map_size=max(map_bytes, _page_up(size * 4 // 3)),
            readonly=is_readonly,
            create=is_new,
            mode=0o600,
            readahead=False,  # reads are of single pages, and the map may exceed memory
            max_readers=READERS_MAX,
            max_dbs=TABLES_MAX,
            max_spare_txns=2,
            lock=has_lock,
            sync=sync,
            metasync=sync,
            **_PINNED,
        )
    try:
        with reading(path):
            _guard_end(environment, path, size, is_readonly=is_readonly)
        if not is_readonly:
            environment.reader_check()
    except BaseException:
        environment.close()
        raise
    return environment


def open_plain(directory: str) -> lmdb.Environment:
    """Open the environment as it is, damaged or not, to read what can be read. Writes nothing.

    Raises what LMDB raises. A page that the file has lost ends the process that reads it.
    """
    size = file_bytes(f"{directory}/{DATA_FILE}")
    return lmdb.open(
        directory,
        map_size=_page_up(size * 4 // 3 + MAP_BYTES),
        readonly=True,
        create=False,
        max_dbs=TABLES_MAX,
        lock=False,
        **_PINNED,
    )


def open_tables(environment: lmdb.Environment, path: str, *, is_new: bool) -> Tables:
    """All tables; those that are missing are made if `is_new`, else they are damage."""
    names = Tables._fields
    with reading(path):
        try:
            return Tables._make(
                environment.open_db(
                    name.encode(),
                    create=is_new,
                    dupsort=name == "indexes",
                    dupfixed=name == "indexes",
                )
                for name in names
            )
        except lmdb.NotFoundError as error:
            raise Damage(path, 0, f"a table is missing ({error})") from error
        except lmdb.IncompatibleError as error:
            raise Damage(path, 0, f"a table is of another kind ({error})") from error


def meaningless(path: str, error: Exception) -> Damage | FormatTooNew:
    """What a row is that has the right checksum, or needs none, and cannot be read all the same."""
    if isinstance(error, msgspec.MsgspecError) and is_from_later_version(error):
        return FormatTooNew(path, FORMAT + 1, FORMAT)
    return Damage(path, 0, f"a row says what no row can say: {error}")


@contextmanager
def reading(path: str) -> Generator[None, None, None]:
    """Turns what LMDB raises while reading, and what reading a row raises, into `Damage`,
    `FormatTooNew` or `ReadFailed`."""
    try:
        yield
    except MEANINGLESS as error:
        raise meaningless(path, error) from error
    except (
        lmdb.CorruptedError,
        lmdb.PageNotFoundError,
        lmdb.InvalidError,
        lmdb.VersionMismatchError,
    ) as error:
        raise Damage(path, 0, str(error)) from error
    except (lmdb.Error, OSError) as error:
        raise ReadFailed(path, system_code(error), str(error)) from error


def system_code(error: lmdb.Error | OSError) -> int:
    """The errno behind an error; EIO where LMDB has a number of its own, or none."""
    code = getattr(error, "code", 0) if isinstance(error, lmdb.Error) else error.errno
    return code if code and code > 0 else errno.EIO


def used_bytes(environment: lmdb.Environment) -> int:
    """Up to where the file has been used; what was freed since is part of it."""
    return (environment.info()["last_pgno"] + 1) * environment.stat()["psize"]


def fill_up(environment: lmdb.Environment, path: str) -> None:
    """Make the file as long as its pages: LMDB leaves out those it took and freed at once, and a
    file that is shorter could not be told from one that lost its end."""
    size, need = file_bytes(path), used_bytes(environment)
    if size < need:
        os.truncate(path, need)


def _guard_end(environment: lmdb.Environment, path: str, size: int, *, is_readonly: bool) -> None:
    """A page past the end of the file would kill whoever reads it; one of zeros is an error.

    A reader beside the owner may meet the moment before the owner fills the file up.
    """
    if not is_readonly:
        if size:
            fill_up(environment, path)
        return
    short = 0
    for _ in range(3):
        short = used_bytes(environment) - file_bytes(path)
        if short <= 0:
            return
        threading.Event().wait(0.01)
    raise Damage(path, file_bytes(path), f"the file is {short} bytes too short")


def file_bytes(path: str) -> int:
    """How long a file is, 0 when it is missing."""
    try:
        return os.stat(path).st_size
    except FileNotFoundError:
        return 0
    except OSError as error:
        raise ReadFailed(path, error.errno or errno.EIO) from error


def _page_up(count: int) -> int:
    return -(-count // 65_536) * 65_536


class StoreFiles:
    """How the owner of a store reaches its files: those of this machine. A simulation has others.

    Methods raise `OSError`, `lmdb.Error`, and what the functions above raise.
    """

    def open(self, directory: str, *, map_bytes: int, is_new: bool, sync: bool) -> lmdb.Environment:
        return open_environment(directory, map_bytes=map_bytes, is_new=is_new, sync=sync)

    def file_bytes(self, path: str) -> int:
        return file_bytes(path)

    def fill_up(self, environment: lmdb.Environment, path: str) -> None:
        fill_up(environment, path)

    def identity(self, path: str) -> tuple[int, int] | None:
        """Which file has this name; None where there is none, or the files are not the system's."""
        try:
            facts = os.stat(path)
        except OSError:
            return None
        return facts.st_dev, facts.st_ino

    def make_directory(self, path: str) -> None:
        os.makedirs(path, mode=0o700, exist_ok=True)

    def sync_directory(self, path: str) -> None:
        descriptor = os.open(path, os.O_RDONLY | os.O_DIRECTORY)
        try:
            os.fsync(descriptor)
        finally:
            os.close(descriptor)

    def free_bytes(self, path: str) -> int:
        """What is free on the disk of a path."""
        facts = os.statvfs(path)
        return facts.f_bavail * facts.f_frsize


class Gate:
    """Lets readers in, unless somebody wants them all out.

    Growing the map pulls it away from under whoever reads, so the writer shuts the gate first. A
    thread must not enter twice: shut in between, it waits for itself until the writer gives up.
    """

    def __init__(self) -> None:
        self._changed = threading.Condition()
        self._inside = 0
        self._is_shut = False

    @property
    def inside(self) -> int:
        """How many readers there are."""
        return self._inside

    def enter(self) -> None:
        with self._changed:
            while self._is_shut:
                self._changed.wait()
            self._inside += 1

    def leave(self) -> None:
        with self._changed:
            self._inside -= 1
            self._changed.notify_all()

    def shut(self, timeout_ms: int) -> bool:
        """Keep readers out and wait for those inside; False, and open again, when they stay."""
        with self._changed:
            self._is_shut = True
            is_empty = self._changed.wait_for(lambda: self._inside == 0, timeout_ms / 1000)
            if not is_empty:
                self._reopen()
            return is_empty

    def open(self) -> None:
        with self._changed:
            self._reopen()

    def _reopen(self) -> None:
        self._is_shut = False
        self._changed.notify_all()
