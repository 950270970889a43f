"""A data directory, owned: checked, locked, and made where it is missing."""

import logging
import os
import resource
import socket
import sys
import threading
from collections.abc import Callable
from dataclasses import dataclass

from parkade.clock import Clock
from parkade.errors import ConfigError, ShardMismatch
from parkade.limits import SHARDS_DEFAULT
from parkade.opening import Identity
from parkade.orphans import end_children
from parkade.store.disk import Disk
from parkade.store.errors import LockedByOther, StoreError
from parkade.store.lock import DirectoryLock, Owner
from parkade.store.manifest import Manifest, begin_directory, finish_directory, read_manifest
from parkade.store.moving import check_no_more, finish_move, is_half_built, remove_half_built
from parkade.telling import tell
from parkade.translating import opening_error
from parkade.version import VERSION

__all__ = ["Directory", "own_directory"]

_log = logging.getLogger("parkade.storage")

LOCK_RETRY_MS = 50
FILES_PER_SHARD = 8  # journal: active, dropped, spare; store: data, lock; a folder being synced
FILES_BESIDE = 64  # the house, the socket, the event loop, what the application has open


@dataclass(slots=True)
class Directory:
    """An owned directory. `finish` once everything in a new one is there."""

    disk: Disk
    path: str
    lock: DirectoryLock
    manifest: Manifest
    is_new: bool

    def identity(self, durability: str) -> Identity:
        return Identity(
            self.path,
            self.manifest.salt,
            durability,
            self.is_new,
            self.manifest.shards,
            self.lock.check_in_place,
        )

    def finish(self) -> None:
        if self.is_new:
            finish_directory(self.disk, self.path)

    def release(self) -> None:
        self.lock.release()


def own_directory(
    disk: Disk,
    path: str,
    *,
    shards: int | None,
    clock: Clock,
    lock_wait_ms: int,
    entropy: Callable[[int], bytes],
) -> Directory:
    """Locks a directory, reads or begins its manifest, and ends what its last owner left behind.

    Raises `EngineInUse`, `ShardMismatch`, `FormatTooNew`, `StorageDamaged`, `ConfigError` (PK-111
    for a directory that cannot be used, PK-112 for too few file descriptors).
    """
    _check_place(disk, path)
    try:
        found = read_manifest(disk, path)
        if found is None:
            _make(disk, path)
        _check_shards(path, shards, found)
        _check_descriptors(found.shards if found else shards or SHARDS_DEFAULT)
        lock = _acquire(disk, path, clock, lock_wait_ms)
    except StoreError as error:
        raise opening_error(path, error, clock.now_ms()) from error
    try:
        manifest = read_manifest(disk, path)
        is_new = manifest is None
        if manifest is None:
            manifest = begin_directory(
                disk,
                path,
                shards=shards or SHARDS_DEFAULT,
                created_by=VERSION,
                created_at_ms=clock.now_ms(),
                entropy=entropy,
            )
        _check_shards(path, shards, manifest)
        end_children(lock)
        if not is_new:
            manifest = _settle_shards(disk, path, manifest)
    except StoreError as error:
        lock.release()
        raise opening_error(path, error, clock.now_ms()) from error
    except BaseException:
        lock.release()
        raise
    return Directory(disk, path, lock, manifest, is_new)


def _settle_shards(disk: Disk, path: str, manifest: Manifest) -> Manifest:
    """Ends a change of the number of shards that was cut short: before it counted it never was,
    and after that it is carried on."""
    if is_half_built(disk, path, manifest):
        text = (
            f"{path} has what is left of a reshard that was cut short; it keeps its "
            f"{manifest.shards} shards, and nothing of them was changed. What is left is removed. "
            "To change the number, run parkade reshard again"
        )
        tell(_log, logging.WARNING, text)
        remove_half_built(disk, path)
    manifest = finish_move(disk, path, manifest)
    check_no_more(disk, path, manifest)
    return manifest


def _check_place(disk: Disk, path: str) -> None:
    parent = os.path.dirname(path)
    if disk.exists(path):
        try:
            is_directory = disk.stat(path).is_directory
        except OSError as error:  # a link to nowhere, a loop of links
            raise ConfigError(
                f"{path} cannot be looked at ({error.strerror}). Give the path of a directory",
                code="PK-111",
            ) from error
        if not is_directory:
            raise ConfigError(
                f"{path} is a file, not a directory. Give the path of a directory", code="PK-111"
            )
    elif not disk.exists(parent):
        raise ConfigError(
            f"{parent} does not exist, so {path} cannot be made in it. Make the parent directory "
            "first, or give another path",
            code="PK-111",
        )


def _make(disk: Disk, path: str) -> None:
    try:
        disk.make_directories(path)
    except OSError as error:
        raise ConfigError(
            f"{path} cannot be made ({error.strerror}). Give a directory that this user may write",
            code="PK-111",
        ) from error


def _check_shards(path: str, asked: int | None, found: Manifest | None) -> None:
    if asked is not None and found is not None and asked != found.shards:
        raise ShardMismatch(path, asked=asked, found=found.shards)


def _check_descriptors(shards: int) -> None:
    need = FILES_PER_SHARD * shards + FILES_BESIDE
    soft, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
    if soft != resource.RLIM_INFINITY and soft < need:
        raise ConfigError(
            f"This process may open {soft} files, and {shards} shards need {need}. Raise the "
            f"limit (ulimit -n {need}), or make the directory with fewer shards",
            code="PK-112",
        )


def _acquire(disk: Disk, path: str, clock: Clock, wait_ms: int) -> DirectoryLock:
    """Waits for an owner that is leaving, as a reloader's old process does."""
    owner = Owner(os.getpid(), socket.gethostname(), clock.now_ms(), _title())
    until_ms = clock.monotonic_ms() + wait_ms
    never = threading.Event()
    while True:
        try:
            return DirectoryLock.try_acquire(disk, path, owner)
        except LockedByOther:
            left_ms = until_ms - clock.monotonic_ms()
            if left_ms <= 0:
                raise
            clock.wait(never, min(left_ms, LOCK_RETRY_MS))


def _title() -> str:
    """The command line of this process, shortened."""
    name = os.path.basename(sys.argv[0]) if sys.argv and sys.argv[0] else "python"
    return " ".join([name, *sys.argv[1:4]])[:100]
