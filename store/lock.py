"""One process owns a directory: a lock that ends with its owner, and says who that is.

The lock is the kernel's, on an open file: it is gone when the process is, however that ends. The
file is never deleted, for a deleted one could be locked by two. What stands in it is for people,
and for the next owner, who must wait for the children of the last.

A fork inherits the open file, and with it would keep the lock beyond its owner's end: the child
closes its copy at once.
"""

import errno
import json
import os
import weakref
from dataclasses import asdict, dataclass, field, replace
from typing import Any, cast

from parkade.store.disk import Disk, Handle, let_go
from parkade.store.errors import LockedByOther, ReadFailed, UsedAfterFork, WriteFailed

NAME = "lock"
# A body is padded to whole blocks and written by one call, so that a reader never sees half.
BLOCK_BYTES = 4096


@dataclass(frozen=True, slots=True)
class Child:
    """A process that the owner started. `started` tells it from a later one of the same pid."""

    pid: int
    started: str = ""


@dataclass(frozen=True, slots=True)
class Owner:
    """Who holds a directory. `started_at_ms` is wall-clock time; `boot` names the host's boot."""

    pid: int
    host: str
    started_at_ms: int
    title: str
    boot: str = ""
    children: tuple[Child, ...] = field(default=())

    def facts(self) -> dict[str, Any]:
        """As plain values, for JSON and for error texts."""
        return asdict(self) | {"children": [asdict(child) for child in self.children]}

    @classmethod
    def from_facts(cls, facts: dict[str, Any]) -> "Owner | None":
        """None if they are not those of an owner."""
        try:
            children = tuple(Child(int(c["pid"]), str(c["started"])) for c in facts["children"])
            return cls(
                int(facts["pid"]),
                str(facts["host"]),
                int(facts["started_at_ms"]),
                str(facts["title"]),
                str(facts["boot"]),
                children,
            )
        except (KeyError, TypeError, ValueError, OverflowError):
            return None


class DirectoryLock:
    """Ownership of a directory. Make one with `try_acquire`; the caller waits and tries again."""

    def __init__(
        self, disk: Disk, directory: str, handle: Handle, owner: Owner, previous: Owner | None
    ) -> None:
        self._disk = disk
        self._handle: Handle | None = handle
        self.directory = directory
        self.owner = owner
        self.previous = previous
        _held.add(self)

    @classmethod
    def try_acquire(cls, disk: Disk, directory: str, owner: Owner) -> "DirectoryLock":
        """Takes the lock without waiting and writes who holds it; the directory must be there.

        `previous` of what is returned is the last owner as it left the file. The children that it
        may have left alive are named on, as this owner's, until `set_children` says otherwise.
        Raises LockedByOther with the owner's facts, also when the other is this same process;
        ReadFailed and WriteFailed.
        """
        path = f"{directory}/{NAME}"
        try:
            handle = disk.open(path, create=True)
        except OSError as error:
            raise WriteFailed(path, error.errno or 0) from error
        try:
            is_ours = disk.flock(handle)
            facts = _read_facts(disk, handle, path)
            if not is_ours:
                raise LockedByOther(directory, facts)
            previous = Owner.from_facts(facts)
            if previous is not None:
                # Should this owner end before it has seen to them, the next one must.
                owner = replace(owner, children=(*owner.children, *previous.children))
            lock = cls(disk, directory, handle, owner, previous)
            lock._write(handle)
        except OSError as error:
            let_go(disk, handle)
            raise WriteFailed(path, error.errno or 0) from error
        except BaseException:
            let_go(disk, handle)
            raise
        return lock

    @property
    def is_held(self) -> bool:
        """Whether this object, in this process, holds the lock."""
        return self._handle is not None and self.owner.pid == os.getpid()

    def check_pid(self) -> None:
        """Raises UsedAfterFork in any process but the one that took the lock."""
        pid = os.getpid()
        if pid != self.owner.pid:
            raise UsedAfterFork(self.owner.pid, pid)

    def check_in_place(self) -> None:
        """Raises OSError, ESTALE, when the directory that has our name is not the one that is
        locked: it was moved, removed or exchanged, and what has its name now is another owner's.
        """
        path = f"{self.directory}/{NAME}"
        handle = self._handle
        if handle is None or not self._disk.is_at(handle, path):
            raise OSError(errno.ESTALE, os.strerror(errno.ESTALE), path)

    def set_children(self, children: tuple[Child, ...]) -> None:
        """Names the processes that the next owner must wait for. Raises WriteFailed."""
        self.check_pid()
        handle = self._handle
        if children == self.owner.children or handle is None:
            return
        self.owner = replace(self.owner, children=children)
        try:
            self._write(handle)
        except OSError as error:
            raise WriteFailed(f"{self.directory}/{NAME}", error.errno or 0) from error

    def release(self) -> None:
        """Gives the directory free. The file stays, and names its last owner. Never raises."""
        handle, self._handle = self._handle, None
        _held.discard(self)
        if handle is not None:
            let_go(self._disk, handle)

    def _write(self, handle: Handle) -> None:
        # Not synced: after a power cut there is no process left that it could name.
        body = json.dumps(self.owner.facts()).encode()
        body += b" " * (-len(body) % BLOCK_BYTES)
        self._disk.pwrite(handle, (body,), 0)
        if self._disk.size(handle) > len(body):
            self._disk.ftruncate(handle, len(body))

    def leave_to_parent(self) -> None:
        # Closing, not unlocking: the lock belongs to the open file, which the parent still has.
        handle, self._handle = self._handle, None
        if handle is not None:
            let_go(self._disk, handle)


def read_owner(disk: Disk, directory: str) -> Owner | None:
    """Who holds or last held a directory, as far as its lock file tells. Raises ReadFailed."""
    path = f"{directory}/{NAME}"
    try:
        handle = disk.open(path, read_only=True)
    except FileNotFoundError:
        return None
    except OSError as error:
        raise ReadFailed(path, error.errno or 0) from error
    try:
        return Owner.from_facts(_read_facts(disk, handle, path))
    finally:
        let_go(disk, handle)


def _read_facts(disk: Disk, handle: Handle, path: str) -> dict[str, Any]:
    try:
        content = disk.pread(handle, disk.size(handle), 0)
    except OSError as error:
        raise ReadFailed(path, error.errno or 0) from error
    try:
        # What a longer body leaves behind, between a write and its truncation, is passed over.
        facts, _ = json.JSONDecoder().raw_decode(content.decode())
    except (ValueError, RecursionError):
        return {}
    return cast(dict[str, Any], facts) if isinstance(facts, dict) else {}


_held: "weakref.WeakSet[DirectoryLock]" = weakref.WeakSet()


def _leave_all_to_parent() -> None:
    for lock in list(_held):
        lock.leave_to_parent()
    _held.clear()


os.register_at_fork(after_in_child=_leave_all_to_parent)
