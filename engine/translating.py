"""What the store raises, as the errors that people see: with a code, and with what to do."""

import errno
import os
import socket
from typing import Any

from parkade.errors import (
    ConfigError,
    EngineInUse,
    ForkedEngine,
    FormatTooNew,
    ParkadeError,
    StorageDamaged,
    StorageError,
    StorageFull,
)
from parkade.reading import DamagedTicket
from parkade.shard.lane import LaneLost
from parkade.store import errors as store
from parkade.store.manifest import NAME as MANIFEST_NAME
from parkade.store.rows import RowDamaged
from parkade.version import FORMAT_MAX, VERSION

__all__ = ["died_error", "opening_error", "shard_error", "work_error"]

FULL_BYTES_MAX = 1 << 20  # with less than that free a disk is as good as full
_NO_RIGHTS = (errno.EACCES, errno.EPERM, errno.EROFS)


def shard_error(
    directory: str, shard: int | None, error: BaseException, *, healthy: int = 0
) -> ParkadeError:
    """An error of one shard (None: the house); what is translated already stays as it is."""
    if isinstance(error, ParkadeError):
        return error
    if isinstance(error, store.Damage):
        return StorageDamaged(
            directory,
            shard=shard,
            where=f"{error.path} byte {error.offset}",
            reason=error.reason,
            healthy=healthy,
        )
    if isinstance(error, LaneLost):
        where = "table lane_names"
        return StorageDamaged(
            directory, shard=shard, where=where, reason=str(error), healthy=healthy
        )
    if isinstance(error, RowDamaged | DamagedTicket):
        where = f"serial {error.serial}"
        if isinstance(error, RowDamaged) and error.serial is None:
            where = f"{error.path} table {error.table}"
        return StorageDamaged(
            directory, shard=shard, where=where, reason=error.reason, healthy=healthy
        )
    if isinstance(error, store.FormatTooNew):
        return _too_new(directory, error)
    if isinstance(error, store.NoRoom):
        return StorageFull(shard=shard or 0)
    if isinstance(error, store.ReadFailed):
        return StorageError(shard=shard, what="read its files", reason=str(error))
    if isinstance(error, store.WriteFailed) and error.code == errno.ESTALE:
        return _moved(directory, shard)
    what = "write its files" if isinstance(error, store.WriteFailed) else "go on"
    return StorageError(shard=shard, what=what, reason=_reason(error))


def work_error(
    directory: str, shard: int | None, what: str, error: store.StoreError | OSError
) -> ParkadeError:
    """Why a tool that works on a closed directory could not go on; `what` it was to become, like
    "be compacted". Nothing that was there is lost by it, whatever the error is."""
    code = getattr(error, "code", None) or getattr(error, "errno", None)
    if isinstance(error, store.NoRoom) or code in store.NO_ROOM_CODES:
        failed: ParkadeError = StorageFull(shard=shard or 0)
        advice = "Free space, and run the same command again"
    elif code in _NO_RIGHTS:
        return ConfigError(
            f"{directory} could not {what}: {error}. Nothing of it was changed. Run this as a user "
            "who may read and write all that it takes",
            code="PK-111",
        )
    elif isinstance(error, store.WriteFailed | store.ReadFailed | OSError):
        failed = StorageError(shard=shard, what=what, reason=str(error))
        advice = "Look at the disk, and run the same command again"
    else:
        return shard_error(directory, shard, error)
    failed.args = (
        f"{directory} could not {what}: {error}. What was in it is as it was. {advice} "
        f"[{failed.code}]",
    )
    return failed


def died_error(directory: str, what: str, reason: str, *, free_bytes: int) -> ParkadeError:
    """Of a child that a signal ended at work on mapped files; `free_bytes`: where it wrote.

    A page that has no room on the disk ends a process just as a damaged one does.
    """
    if free_bytes < FULL_BYTES_MAX:
        return work_error(directory, None, what, OSError(errno.ENOSPC, os.strerror(errno.ENOSPC)))
    return StorageDamaged(
        directory,
        shard=None,
        where="its stores",
        reason=f"reading them ended the process that read them ({reason})",
    )


def _moved(directory: str, shard: int | None) -> StorageError:
    failed = StorageError(shard=shard, what="go on", reason="its directory was moved")
    failed.args = (
        f"{directory} is not the directory that this engine opened: it was moved, removed or "
        "exchanged meanwhile. What was asked just now may have been accepted by the one that was "
        "moved, and nothing more is written to either. Stop this engine, and open the directory "
        f"that is the right one [{failed.code}]",
    )
    return failed


def _reason(error: BaseException) -> str:
    return getattr(error, "reason", None) or str(error) or type(error).__name__


def opening_error(directory: str, error: store.StoreError, now_ms: int) -> ParkadeError:
    """Why a directory cannot be opened."""
    if isinstance(error, store.LockedByOther):
        return in_use(directory, dict(error.owner), now_ms)
    if isinstance(error, store.UsedAfterFork):
        return ForkedEngine(opened_in_pid=error.opened_pid, pid=error.used_pid)
    if isinstance(error, store.FormatTooNew):
        return _too_new(directory, error)
    if isinstance(error, store.NotOurs):
        return ConfigError(str(error), code="PK-111")
    if isinstance(error, store.WriteFailed | store.ReadFailed):
        return ConfigError(
            f"{directory} cannot be used: {error}. Give a directory on a local disk that this "
            "user may read and write",
            code="PK-111",
        )
    return shard_error(directory, None, error)


def _too_new(directory: str, error: store.FormatTooNew) -> FormatTooNew:
    is_whole = os.path.basename(error.path) == MANIFEST_NAME
    found = FormatTooNew(
        directory if is_whole else error.path,
        written_by=error.written_by or "a later version",
        written_format=error.found,
        version=VERSION,
        format_max=FORMAT_MAX,
    )
    found.directory = directory
    return found


def in_use(directory: str, owner: dict[str, Any], now_ms: int) -> EngineInUse:
    started_ms = owner.get("started_at_ms")
    pid, host = owner.get("pid"), str(owner.get("host", ""))
    return EngineInUse(
        directory,
        pid=pid,
        command=str(owner.get("title", "")),
        host=host,
        open_for_ms=max(0, now_ms - started_ms) if isinstance(started_ms, int) else None,
        is_here=pid == os.getpid() and host == socket.gethostname(),
    )
