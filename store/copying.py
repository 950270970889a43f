"""Copying a shard as it was at one LSN, without owning it: its store, and the journal behind that.

The store is copied row by row, which leaves out the pages that are free. Of the journal the frames
up to an LSN are copied as they stand: a segment that ends earlier is a segment. So whoever opens
the copy does what an open does after a crash.
"""

import os
from contextlib import suppress
from itertools import islice

import lmdb
from lmdb import _Database

from parkade.store.acceptance import accept
from parkade.store.disk import Disk
from parkade.store.environment import (
    DATA_FILE,
    LOCK_FILE,
    MAP_BYTES,
    Tables,
    file_bytes,
    open_environment,
    open_tables,
    reading,
    system_code,
)
from parkade.store.errors import NO_ROOM_CODES, Damage, NoRoom, ReadFailed, WriteFailed
from parkade.store.meta import STATE, State
from parkade.store.rows import seal, unseal
from parkade.store.segment import HEADER_BYTES, SegmentScan, scan_directory
from parkade.store.snapshot import Snapshot
from parkade.store.walk import all_rows

__all__ = ["copy_journal", "copy_store", "sync_file"]

COPY_BYTES = 1 << 20
COPY_ROWS = 20_000


def copy_store(snapshot: Snapshot, directory: str) -> None:
    """Writes what a snapshot sees into a new store, row by row: without free pages, and full ones.
    Synced on return, but for the directory.

    Raises `ReadFailed`, `WriteFailed`, `NoRoom`, `Damage`.
    """
    path = f"{directory}/{DATA_FILE}"
    used = file_bytes(snapshot.path)
    try:
        os.mkdir(directory, 0o700)
        # Nothing of it is of use before all of it is there: it is synced once.
        environment = open_environment(
            directory, map_bytes=2 * used + MAP_BYTES, is_new=True, sync=False
        )
    except OSError as error:
        raise _write_error(path, error) from error
    try:
        tables = open_tables(environment, path, is_new=True)
        with reading(snapshot.path):
            names = [name for name in Tables._fields if name != "meta"]
            for name in [*names, "meta"]:
                _copy_table(snapshot, name, environment, getattr(tables, name))
        _note_length(environment, tables, path)
        environment.sync(True)
    except lmdb.Error as error:
        raise _write_error(path, OSError(system_code(error), str(error))) from error
    except ReadFailed as error:
        raise _write_error(path, OSError(error.code, error.detail)) from error
    finally:
        environment.close()
    with suppress(FileNotFoundError):
        os.unlink(f"{directory}/{LOCK_FILE}")
    sync_file(path)


def _copy_table(
    snapshot: Snapshot, name: str, environment: lmdb.Environment, target: _Database
) -> None:
    rows = all_rows(snapshot, name)
    while chunk := list(islice(rows, COPY_ROWS)):
        with environment.begin(write=True) as transaction:
            _, taken = transaction.cursor(target).putmulti(chunk, append=True)
        if taken != len(chunk):
            raise Damage(snapshot.path, 0, f"the rows of table {name} are not in order")


def _note_length(environment: lmdb.Environment, tables: Tables, path: str) -> None:
    """It says how long it is: it is shorter than what it was copied from."""
    with environment.begin(write=True) as transaction:
        row = unseal(STATE, transaction.get(STATE, b"\0" * 4, db=tables.meta))
        if row is None:
            raise Damage(path, 0, "the row of its state is missing or damaged")
        state = State.unpack(row)._replace(file_bytes=file_bytes(path))
        transaction.put(STATE, seal(STATE, state.pack()), db=tables.meta)


def copy_journal(
    disk: Disk,
    source: str,
    target: str,
    *,
    salt: bytes,
    shard: int,
    store_lsn: int,
    until_lsn: int | None,
) -> int:
    """Copies the records behind `store_lsn` up to `until_lsn` (None: all that an open would accept)
    into a new directory, and returns the last LSN that it has. Synced on return.

    The journal may grow meanwhile; what is copied must not be dropped. Raises `Damage`,
    `ReadFailed`, `FormatTooNew`, `WriteFailed`, `NoRoom`.
    """
    scans = scan_directory(disk, source, salt=salt, shard=shard)
    if until_lsn is None:
        wanted, until_lsn = _accepted(scans, source, store_lsn)
    else:
        wanted = _up_to(scans, source, store_lsn, until_lsn)
    last, end = wanted[-1]
    # What the last one says of a file behind it is not true of the copy.
    wanted[-1] = last, min([end, *(frame.offset for frame in last.frames if frame.goes_on)])
    try:
        disk.mkdir(target)
        for scan, end in wanted:
            _copy_front(disk, scan.path, f"{target}/{scan.name}", end)
        disk.fsync_directory(target)
    except OSError as error:
        raise _write_error(target, error) from error
    return until_lsn


def _accepted(
    scans: list[SegmentScan], source: str, store_lsn: int
) -> tuple[list[tuple[SegmentScan, int]], int]:
    """The segments that an open would accept, with their ends, and the last LSN."""
    run = accept(scans, store_lsn)
    if run.parts:
        return [(part.scan, part.frames[-1].end) for part in run.parts], run.last_lsn
    if run.spent:
        return [(run.spent[-1], HEADER_BYTES)], run.last_lsn
    raise Damage(source, 0, "the journal is missing: no segment is there")


def _up_to(
    scans: list[SegmentScan], source: str, store_lsn: int, until_lsn: int
) -> list[tuple[SegmentScan, int]]:
    """The segments with the records in between, and where the last of these ends in each."""
    wanted: list[tuple[SegmentScan, int]] = []
    expected = 0
    for scan in scans:
        if scan.header is None or scan.first_lsn > until_lsn + 1:
            continue
        if not wanted or scan.first_lsn <= store_lsn + 1:
            # What the store has is needed no more, save by the segment in which the log goes on.
            wanted, expected = [], scan.first_lsn
        elif scan.first_lsn != expected:
            reason = f"it begins at LSN {scan.first_lsn}, and {expected} must come"
            raise Damage(scan.path, 0, reason)
        end = HEADER_BYTES
        for frame in scan.frames:
            if frame.offset != end or frame.first_lsn != expected or frame.last_lsn > until_lsn:
                break
            end, expected = frame.end, frame.last_lsn + 1
        wanted.append((scan, end))
    if not wanted or wanted[0][0].first_lsn > store_lsn + 1 or expected <= until_lsn:
        reason = f"it lacks records of LSN {store_lsn + 1} to {until_lsn}"
        raise Damage(source, 0, reason)
    return wanted


def _copy_front(disk: Disk, source: str, target: str, size_bytes: int) -> None:
    reader = disk.open(source, read_only=True)
    try:
        writer = disk.open(target, create=True)
        try:
            for at in range(0, size_bytes, COPY_BYTES):
                part = disk.pread(reader, min(COPY_BYTES, size_bytes - at), at)
                disk.pwrite(writer, (part,), at)
            disk.fdatasync(writer)
        finally:
            disk.close(writer)
    finally:
        disk.close(reader)


def sync_file(path: str) -> None:
    """On return the file survives a power cut. Raises `WriteFailed`."""
    try:
        descriptor = os.open(path, os.O_RDWR)
        try:
            os.fsync(descriptor)
        finally:
            os.close(descriptor)
    except OSError as error:
        raise WriteFailed(path, error.errno or 0) from error


def _write_error(path: str, error: OSError) -> NoRoom | WriteFailed:
    if error.errno in NO_ROOM_CODES:
        return NoRoom(path, 0)
    return WriteFailed(path, error.errno or 0)
