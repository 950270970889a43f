"""What can go wrong below the engine, as facts: a path, a place, a reason.

These carry no codes and give no advice: whoever opened the store knows which shard it is and what
an operator can do about it, and says so in an error of its own.

    StoreError
    ├── Damage            bytes that were once known to be there are gone or changed
    ├── NotOurs           files where ours should be, and nothing says we made them
    ├── FormatTooNew      written by a later version
    ├── NoRoom            no space, found out before anything was written
    ├── WriteFailed       a write or a sync failed: what it carried may or may not be there
    ├── ReadFailed        the disk could not be read, which says nothing about what is on it
    ├── LockedByOther     the directory has an owner
    └── UsedAfterFork     the owner is another process, this one is its fork
"""

import errno
import os
from collections.abc import Mapping

NO_ROOM_CODES = (errno.ENOSPC, errno.EDQUOT, errno.EFBIG)
"""No space on the disk, none for this user, or a limit on the size of files (`ulimit -f`)."""


class StoreError(Exception):
    """The root of every error that the store raises on purpose."""


class Damage(StoreError):
    """Bytes that must be there are missing or changed. Nothing was written by whoever found it.

    `path` is the file, or the directory when a whole file is missing; `offset` is in bytes.
    """

    def __init__(self, path: str, offset: int, reason: str) -> None:
        super().__init__(f"{path} is damaged at byte {offset}: {reason}")
        self.path = path
        self.offset = offset
        self.reason = reason


class NotOurs(StoreError):
    """A directory that holds files but no manifest: it is somebody else's, or it lost its own."""

    def __init__(self, path: str, found: str) -> None:
        super().__init__(
            f"{path} holds {found} but no manifest.json: it is not a parkade directory, or lost "
            f"its manifest. Give the engine's directory or an empty one. A lost manifest is made "
            f"anew by: parkade repair {path} {path}.new"
        )
        self.path = path
        self.found = found


class FormatTooNew(StoreError):
    """Files of a later format than this version reads. `written_by` is '' where unknown."""

    def __init__(self, path: str, found: int, supported: int, written_by: str = "") -> None:
        by = f" by parkade {written_by}" if written_by else ""
        super().__init__(
            f"{path} was written{by} in format {found}; this version reads up to {supported}"
        )
        self.path = path
        self.found = found
        self.supported = supported
        self.written_by = written_by


class NoRoom(StoreError):
    """There is no space for `need_bytes`, or the file may not become as long. Nothing was written,
    and it may be asked again."""

    def __init__(self, path: str, need_bytes: int) -> None:
        super().__init__(f"no room for {need_bytes} bytes in {path}")
        self.path = path
        self.need_bytes = need_bytes


class _CallFailed(StoreError):
    verb = ""

    def __init__(self, path: str, code: int, detail: str = "") -> None:
        why = os.strerror(code) if code else "closed"
        more = f" ({detail})" if detail else ""
        super().__init__(f"could not {self.verb} {path}: {why}{more}")
        self.path = path
        self.code = code
        self.detail = detail


class WriteFailed(_CallFailed):
    """A write, a sync or a change of the directory failed; `code` is the errno (0: closed).

    What it carried may be there after a crash, and may not be.
    """

    verb = "write"


class ReadFailed(_CallFailed):
    """The disk refused a read; `code` is the errno. Refuse, and never cut, on this."""

    verb = "read"


def write_error(path: str, error: OSError, need_bytes: int = 4096) -> NoRoom | WriteFailed:
    """What a refused write or change of a directory is: without room, or for another reason."""
    if error.errno in NO_ROOM_CODES:
        return NoRoom(path, need_bytes)
    return WriteFailed(path, error.errno or 0)


def is_out_of_handles(error: BaseException | None) -> bool:
    """Whether a call failed only for want of a file descriptor, in this process or on this
    machine: nothing is wrong with the files, and it passes."""
    if not isinstance(error, WriteFailed | ReadFailed):
        return False
    return error.code in (errno.EMFILE, errno.ENFILE)


class LockedByOther(StoreError):
    """The directory is held. `owner` is what its lock file says, {} where that is unreadable."""

    def __init__(self, directory: str, owner: Mapping[str, object]) -> None:
        super().__init__(f"{directory} is already open in process {owner.get('pid', '(unknown)')}")
        self.directory = directory
        self.owner = dict(owner)


class UsedAfterFork(StoreError):
    """Opened in process `opened_pid`, used in its fork `used_pid`, which owns nothing."""

    def __init__(self, opened_pid: int, used_pid: int) -> None:
        super().__init__(f"opened in process {opened_pid} and used in its fork {used_pid}")
        self.opened_pid = opened_pid
        self.used_pid = used_pid
