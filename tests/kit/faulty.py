"""This machine's disk, and the moments at which it fails."""

import errno
import os
import threading
from collections.abc import Callable, Sequence
from typing import Any

from parkade.store.disk import Handle, RealDisk
from parkade.store.parked import Parked

__all__ = ["FaultyDisk", "StepDisk"]


class FaultyDisk(RealDisk):
    """`break_next` makes calls fail; `is_full` makes everything fail that takes space, commits of
    the stores that `open_store` opens too."""

    def __init__(self) -> None:
        super().__init__()
        self._lock = threading.Lock()
        self._paths: dict[Handle, str] = {}
        self._faults: list[list[Any]] = []
        self.is_full = False
        self.met = threading.Semaphore(0)  # one for each failure

    def break_next(
        self, call: str, place: str = "", *, code: int = errno.EIO, skip: int = 0
    ) -> None:
        """The next such call on a path with `place` in it fails, after `skip` that do not."""
        with self._lock:
            self._faults.append([call, place, code, skip])

    def _meet(self, call: str, path: str) -> None:
        with self._lock:
            for fault in self._faults:
                if fault[0] == call and fault[1] in path:
                    fault[3] -= 1
                    if fault[3] >= 0:
                        continue
                    self._faults.remove(fault)
                    self.met.release()
                    raise OSError(fault[2], os.strerror(fault[2]), path)
        if call == "preallocate":
            self._find_room(path)

    def _find_room(self, where: str) -> None:
        if self.is_full:
            self.met.release()
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC), where)

    def open_store(self, directory: str, **given: Any) -> Parked:
        """`Parked.open`, on this disk."""
        return Parked.open(directory, commit_hook=self._find_room, **given)

    def open(self, path: str, *, create: bool = False, read_only: bool = False) -> Handle:
        self._meet("open", path)
        handle = super().open(path, create=create, read_only=read_only)
        self._paths[handle] = path
        return handle

    def pread(self, handle: Handle, length: int, offset: int) -> bytes:
        self._meet("pread", self._paths[handle])
        return super().pread(handle, length, offset)

    def pwrite(self, handle: Handle, buffers: Sequence[bytes], offset: int) -> None:
        self._meet("write", self._paths[handle])
        super().pwrite(handle, buffers, offset)

    def pwrite_durable(self, handle: Handle, buffers: Sequence[bytes], offset: int) -> None:
        self._meet("write", self._paths[handle])
        super().pwrite_durable(handle, buffers, offset)

    def fdatasync(self, handle: Handle) -> None:
        self._meet("fdatasync", self._paths[handle])
        super().fdatasync(handle)

    def preallocate(self, handle: Handle, size_bytes: int) -> None:
        self._meet("preallocate", self._paths[handle])
        super().preallocate(handle, size_bytes)


class StepDisk(RealDisk):
    """Calls `at` with a number and a name before each call that changes the disk."""

    def __init__(self, at: Callable[[int, str], None]) -> None:
        super().__init__()
        self._at = at
        self._lock = threading.Lock()
        self._count = 0

    def _step(self, name: str) -> None:
        with self._lock:
            self._count += 1
            number = self._count
        self._at(number, name)

    def open(self, path: str, *, create: bool = False, read_only: bool = False) -> Handle:
        if create:
            self._step(f"create {path}")
        return super().open(path, create=create, read_only=read_only)

    def pwrite(self, handle: Handle, buffers: Sequence[bytes], offset: int) -> None:
        self._step("pwrite")
        super().pwrite(handle, buffers, offset)

    def pwrite_durable(self, handle: Handle, buffers: Sequence[bytes], offset: int) -> None:
        self._step("pwrite_durable")
        super().pwrite_durable(handle, buffers, offset)

    def fdatasync(self, handle: Handle) -> None:
        self._step("fdatasync")
        super().fdatasync(handle)

    def fsync_directory(self, path: str) -> None:
        self._step(f"fsync_directory {path}")
        super().fsync_directory(path)

    def preallocate(self, handle: Handle, size_bytes: int) -> None:
        self._step("preallocate")
        super().preallocate(handle, size_bytes)

    def ftruncate(self, handle: Handle, size_bytes: int) -> None:
        self._step("ftruncate")
        super().ftruncate(handle, size_bytes)

    def mkdir(self, path: str) -> None:
        self._step(f"mkdir {path}")
        super().mkdir(path)

    def rename(self, old: str, new: str) -> None:
        self._step(f"rename {new}")
        super().rename(old, new)

    def unlink(self, path: str) -> None:
        self._step(f"unlink {path}")
        super().unlink(path)

    def remove_tree(self, path: str) -> None:
        if self.exists(path):
            self._step(f"remove_tree {path}")
        super().remove_tree(path)
