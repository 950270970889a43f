"""The one door to the file system: what a disk can be asked, and the disk of this machine.

Everything here raises `OSError`, as the system does; what that means for a journal or a manifest
is decided by whoever asked. Nothing here knows a format.
"""

import contextlib
import errno
import fcntl
import os
import resource
import stat
import sys
from collections.abc import Sequence
from typing import NamedTuple, Protocol

from parkade.store.direct import APPEND_BYTES_MAX, DirectAppends

Handle = int
"""An open file. Handles are small integers and are not shared between disks."""

ZERO_BYTES = 64 << 10  # a large buffer for a moment would stay with the process for good
ZERO_FILL_BYTES = 16 * ZERO_BYTES
# Kernels and file systems without a way of writing answer so before writing anything.
_NO_SUCH_WAY = (errno.EOPNOTSUPP, errno.ENOSYS, errno.EINVAL)


class FileFacts(NamedTuple):
    """What the file system says about a path: bytes, owner, permission bits, kind."""

    size_bytes: int
    uid: int
    mode: int
    is_directory: bool


class Disk(Protocol):
    """All that the store asks of a file system. Subclass it: some methods are built on the rest.

    A write that raises may have written any part of what it was given. A write that returns has
    written all of it. Paths use "/" between their parts.
    """

    def open(self, path: str, *, create: bool = False, read_only: bool = False) -> Handle:
        """Opens a file for reading and writing, made empty (0600) if `create` and not there."""
        ...

    def close(self, handle: Handle) -> None:
        """Gives a handle back, and the lock it may hold."""
        ...

    def pread(self, handle: Handle, length: int, offset: int) -> bytes:
        """Reads `length` bytes at `offset`, fewer only where the file ends."""
        ...

    def pwrite(self, handle: Handle, buffers: Sequence[bytes], offset: int) -> None:
        """Writes all buffers one behind the other at `offset`. Not durable."""
        ...

    def pwrite_durable(self, handle: Handle, buffers: Sequence[bytes], offset: int) -> None:
        """Writes all buffers at `offset`; on return these bytes survive a power cut."""
        ...

    def fdatasync(self, handle: Handle) -> None:
        """On return, the bytes and the size of the file survive a power cut."""
        ...

    def fsync_directory(self, path: str) -> None:
        """On return, names made, renamed and removed in it survive a power cut."""
        ...

    def preallocate(self, handle: Handle, size_bytes: int) -> None:
        """Makes an empty file `size_bytes` of written zeros. Not durable. May raise ENOSPC."""
        ...

    def ftruncate(self, handle: Handle, size_bytes: int) -> None:
        """Sets the size; bytes beyond it are gone, bytes gained are zeros. Not durable."""
        ...

    def size(self, handle: Handle) -> int:
        """The size in bytes of an open file."""
        ...

    def stat(self, path: str) -> FileFacts:
        """Facts about a path; raises FileNotFoundError."""
        ...

    def exists(self, path: str) -> bool:
        """Whether anything has this name."""
        ...

    def listdir(self, path: str) -> list[str]:
        """The names in a directory, sorted."""
        ...

    def mkdir(self, path: str) -> None:
        """Makes one directory (0700); its parent must be there. Not durable."""
        ...

    def rename(self, old: str, new: str) -> None:
        """Gives a file another name at once, in place of what had it. Not durable."""
        ...

    def unlink(self, path: str) -> None:
        """Takes a name away. Not durable."""
        ...

    def remove_tree(self, path: str) -> None:
        """Removes a directory with all it holds, of a link the link alone; not there is fine."""
        ...

    def free_space(self, path: str) -> int:
        """Bytes that this user may still write on the file system of `path`."""
        ...

    def flock(self, handle: Handle) -> bool:
        """Takes the exclusive lock of an open file without waiting; False if another has it."""
        ...

    def is_at(self, handle: Handle, path: str) -> bool:
        """Whether the open file is the one that has this name. A disk whose files nobody else can
        move need not look."""
        return True

    def read_file(self, path: str) -> bytes:
        """The whole of a file; raises FileNotFoundError."""
        handle = self.open(path, read_only=True)
        try:
            return self.pread(handle, self.size(handle), 0)
        finally:
            self.close(handle)

    def replace_file(self, path: str, content: bytes) -> None:
        """Makes `path` hold `content`, durably, or leaves it as it was. For small files."""
        fresh = f"{path}.new"
        handle = self.open(fresh, create=True)
        try:
            self.ftruncate(handle, 0)
            self.pwrite(handle, (content,), 0)
            self.fdatasync(handle)
        finally:
            self.close(handle)
        self.rename(fresh, path)
        self.fsync_directory(parent_of(path))

    def make_directories(self, path: str) -> None:
        """Makes a directory and its missing parents, each one durable."""
        parent = parent_of(path)
        if self.exists(path):
            # It may be there because an earlier call failed between making and syncing it; one
            # that we may not even list is not one that we made.
            with contextlib.suppress(PermissionError):
                self.fsync_directory(parent)
            return
        self.make_directories(parent)
        with contextlib.suppress(FileExistsError):
            self.mkdir(path)
        self.fsync_directory(parent)


def parent_of(path: str) -> str:
    """The directory that holds `path`: "/" for the top, "." for a bare name."""
    return os.path.dirname(path.rstrip("/")) or ("/" if path.startswith("/") else ".")


def let_go(disk: Disk, handle: Handle) -> None:
    """Closes a file of which nothing more is wanted: it is given up whatever `close` answers."""
    with contextlib.suppress(OSError):
        disk.close(handle)


class RealDisk(Disk):
    """The disk of this machine. One system call a method wherever the system allows it."""

    def __init__(self) -> None:
        self._has_pwritev = hasattr(os, "pwritev")
        self._has_dsync = self._has_pwritev and hasattr(os, "RWF_DSYNC")
        self._has_direct = self._has_dsync and hasattr(os, "O_DIRECT")
        self._direct: dict[Handle, DirectAppends] = {}

    def open(self, path: str, *, create: bool = False, read_only: bool = False) -> Handle:
        # Of no account for a file; a pipe in the place of one would keep us waiting for ever.
        flags = os.O_CLOEXEC | os.O_NONBLOCK | (os.O_RDONLY if read_only else os.O_RDWR)
        return os.open(path, flags | (os.O_CREAT if create else 0), 0o600)

    def close(self, handle: Handle) -> None:
        self._direct.pop(handle, None)
        os.close(handle)

    def pread(self, handle: Handle, length: int, offset: int) -> bytes:
        self._leave_direct(handle)
        found = os.pread(handle, length, offset)
        if len(found) == length or not found:
            return found
        parts = [found]
        got = len(found)
        while got < length:
            found = os.pread(handle, length - got, offset + got)
            if not found:
                break
            parts.append(found)
            got += len(found)
        return b"".join(parts)

    def pwrite(self, handle: Handle, buffers: Sequence[bytes], offset: int) -> None:
        self._leave_direct(handle)
        self._write_all(handle, buffers, offset, 0)

    def pwrite_durable(self, handle: Handle, buffers: Sequence[bytes], offset: int) -> None:
        if self._has_direct and sum(map(len, buffers)) <= APPEND_BYTES_MAX:
            try:
                appends = self._direct.get(handle)
                if appends is None:
                    appends = self._begin_direct(handle, offset)
                if appends is not None and appends.write(buffers, offset):
                    return
            except OSError as error:
                if error.errno not in _NO_SUCH_WAY:
                    raise
                self._has_direct = False
        self._leave_direct(handle)
        if self._has_dsync:
            try:
                self._write_all(handle, buffers, offset, os.RWF_DSYNC)
                return
            except OSError as error:
                if error.errno not in _NO_SUCH_WAY:
                    raise
                self._has_dsync = False
        self._write_all(handle, buffers, offset, 0)
        self.fdatasync(handle)

    def _begin_direct(self, handle: Handle, offset: int) -> DirectAppends | None:
        """None: it lacks something that the cache does without, and nothing was written."""
        try:
            appends = DirectAppends(handle, offset)
        except OSError as error:
            self._has_direct = error.errno not in _NO_SUCH_WAY
            return None
        self._direct[handle] = appends
        return appends

    def _leave_direct(self, handle: Handle) -> None:
        """It takes writes of any kind, and nothing is known of what they write."""
        if handle in self._direct:
            self._direct[handle].stop()
            del self._direct[handle]

    def _write_all(self, handle: Handle, buffers: Sequence[bytes], offset: int, flags: int) -> None:
        length = sum(map(len, buffers))
        if not self._has_pwritev:
            self._write_rest(handle, memoryview(b"".join(buffers)), offset, 0)
            return
        written = os.pwritev(handle, buffers, offset, flags)
        if written < length:
            rest = memoryview(b"".join(buffers))[written:]
            self._write_rest(handle, rest, offset + written, flags)

    def _write_rest(self, handle: Handle, rest: memoryview, offset: int, flags: int) -> None:
        while rest:
            if flags:
                written = os.pwritev(handle, (rest,), offset, flags)
            else:
                written = os.pwrite(handle, rest, offset)
            if written == 0:
                raise OSError(errno.EIO, "the disk took none of the bytes")
            rest = rest[written:]
            offset += written

    def fdatasync(self, handle: Handle) -> None:
        _sync(handle)

    def fsync_directory(self, path: str) -> None:
        handle = os.open(path, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
        try:
            os.fsync(handle)
        finally:
            os.close(handle)

    def preallocate(self, handle: Handle, size_bytes: int) -> None:
        if hasattr(os, "posix_fallocate"):
            try:
                os.posix_fallocate(handle, 0, size_bytes)
            except OSError as error:
                if error.errno not in (errno.EOPNOTSUPP, errno.ENOSYS, errno.EINVAL):
                    raise
        # Written zeros, not only reserved blocks: the first write into a reserved block changes
        # metadata, which costs every sync about half as much again.
        zeros = bytes(ZERO_BYTES)
        for offset in range(0, size_bytes, ZERO_FILL_BYTES):
            pieces, rest = divmod(min(size_bytes - offset, ZERO_FILL_BYTES), ZERO_BYTES)
            self._write_all(handle, [zeros] * pieces + [zeros[:rest]], offset, 0)

    def ftruncate(self, handle: Handle, size_bytes: int) -> None:
        self._leave_direct(handle)
        os.ftruncate(handle, size_bytes)

    def size(self, handle: Handle) -> int:
        return os.fstat(handle).st_size

    def stat(self, path: str) -> FileFacts:
        found = os.stat(path)
        return FileFacts(
            found.st_size, found.st_uid, stat.S_IMODE(found.st_mode), stat.S_ISDIR(found.st_mode)
        )

    def exists(self, path: str) -> bool:
        return os.path.lexists(path)

    def is_at(self, handle: Handle, path: str) -> bool:
        try:
            return os.path.samestat(os.fstat(handle), os.stat(path))
        except FileNotFoundError:
            return False

    def listdir(self, path: str) -> list[str]:
        return sorted(os.listdir(path))

    def mkdir(self, path: str) -> None:
        os.mkdir(path, 0o700)

    def rename(self, old: str, new: str) -> None:
        os.rename(old, new)

    def unlink(self, path: str) -> None:
        os.unlink(path)

    def remove_tree(self, path: str) -> None:
        with contextlib.suppress(FileNotFoundError):
            if os.path.islink(path):
                os.unlink(path)  # what it leads to is not of this tree
            else:
                import shutil

                shutil.rmtree(path)

    def free_space(self, path: str) -> int:
        facts = os.statvfs(path)
        return facts.f_bavail * facts.f_frsize

    def flock(self, handle: Handle) -> bool:
        try:
            fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            return False
        return True


def file_bytes_max() -> int | None:
    """How long this process may make a file (`ulimit -f`); None: as long as it likes."""
    soft, _ = resource.getrlimit(resource.RLIMIT_FSIZE)
    return None if soft == resource.RLIM_INFINITY else soft


if sys.platform == "darwin":

    def _sync(handle: Handle) -> None:
        # fsync on this system stops at the drive's cache.
        try:
            fcntl.fcntl(handle, fcntl.F_FULLFSYNC)
        except OSError as error:
            if error.errno not in (errno.ENOTSUP, errno.EINVAL, errno.ENOTTY):
                raise
            os.fsync(handle)

else:

    def _sync(handle: Handle) -> None:
        os.fdatasync(handle)
