"""A disk in memory that can lose power: live bytes and durable bytes are kept apart.

What a program reads and writes is live. What a power cut leaves is durable: bytes that were
synced, and names in directories that were synced. Between the two lies what a cut may lose, may
keep, or may keep in part: whole 512-byte sectors of it, each on its own.

Every call is counted. A call can fail (before it did anything, after it did, or half-way), and
the power can go at any of them. A failed sync does what systems do: the bytes still read well,
count as clean, and are gone at the next power cut unless they are written again and synced.

Nothing here is random that a seed does not give.
"""

import errno
import os
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from hashlib import blake2b
from random import Random
from threading import RLock
from typing import Literal, NamedTuple

from kit.inodes import Entry, Folder, How, Inode, Write, copy_folder, walk
from parkade.store.disk import Disk, FileFacts, Handle, parent_of

Failure = Literal["before", "after", "short"]


class PowerLost(BaseException):
    """The power went. No code under test may catch this, and no later call is answered."""


class Call(NamedTuple):
    """One call of the disk: its number from 1, the method's name, the path it is about."""

    number: int
    name: str
    path: str


@dataclass
class Fault:
    """What goes wrong: at which calls, with what error, and how much of the call happens."""

    when: Callable[[Call], bool]
    code: int
    how: Failure
    times: int


@dataclass
class Opened:
    """An open file."""

    path: str
    inode: Inode
    read_only: bool


class FakeDisk(Disk):
    """A disk of `capacity_bytes`, unbounded if None. See the module for what it can do."""

    def __init__(self, capacity_bytes: int | None = None) -> None:
        self.capacity_bytes = capacity_bytes
        self.calls: list[Call] = []
        self.counts: Counter[str] = Counter()
        self.number = 0
        self.keeps_calls = True
        self._root = Folder()
        self._handles: dict[Handle, Opened] = {}
        self._next_handle = 3
        self._locks: dict[int, Handle] = {}
        self._faults: list[Fault] = []
        self._cut_at = 0
        self._is_dark = False
        self._mutex = RLock()

    @property
    def is_dark(self) -> bool:
        """Whether the power is gone, or the process that used it."""
        return self._is_dark

    # What a test arranges

    def fail(
        self,
        at: int | Callable[[Call], bool],
        code: int = errno.EIO,
        how: Failure = "before",
        times: int = 1,
    ) -> None:
        """Makes call number `at`, or the next `times` calls that it is true of, fail with `code`.

        "before": nothing happened. "after": bytes were written, and a sync did not reach the
        disk. "short": half of the bytes were written.
        """
        when = at if callable(at) else (lambda call: call.number == at)
        self._faults.append(Fault(when, code, how, times))

    def heal(self) -> None:
        """No call fails any more."""
        self._faults.clear()

    @property
    def is_failing(self) -> bool:
        """Whether a call may fail yet."""
        return any(fault.times for fault in self._faults)

    def cut_at(self, number: int) -> None:
        """The power goes at call `number`: its effect is live and not durable, PowerLost rises."""
        self._cut_at = number

    def power_cut(self, how: How = "lost", seed: int = 0) -> "FakeDisk":
        """The disk as it is found when the power is back. This one answers no call any more."""
        self._is_dark = True
        random = Random(seed)
        fresh = FakeDisk(self.capacity_bytes)
        fresh._root = self._root.survivor(how, random, {})
        return fresh

    def crash(self) -> "FakeDisk":
        """The disk as the next process finds it: all that was written is there, synced or not."""
        self._is_dark = True
        return self.copy()

    def copy(self) -> "FakeDisk":
        """A disk of its own with the same bytes, live and durable; no open file, no lock."""
        fresh = FakeDisk(self.capacity_bytes)
        fresh._root = copy_folder(self._root, {})
        return fresh

    def used_bytes(self) -> int:
        """The live sizes of all files."""
        return sum(len(inode.live) for _, inode in self.files())

    def open_handles(self) -> list[str]:
        """The paths of the files that were opened and not closed."""
        return sorted(opened.path for opened in self._handles.values())

    def files(self) -> Iterator[tuple[str, Inode]]:
        """Every file that has a live name, in order of paths."""
        yield from walk("", self._root)

    def paths(self, under: str = "/") -> list[str]:
        """The paths of all files below a directory."""
        prefix = under.rstrip("/") + "/"
        return [path for path, _ in self.files() if path.startswith(prefix)]

    def image(self, under: str = "/") -> dict[str, bytes]:
        """The live bytes of all files below a directory."""
        prefix = under.rstrip("/") + "/"
        return {path: bytes(i.live) for path, i in self.files() if path.startswith(prefix)}

    def digest(self) -> bytes:
        """Equal for disks with equal names and equal bytes, live and durable."""
        total = blake2b(digest_size=16)
        for path, inode in self.files():
            total.update(f"{path} {len(inode.live)} {len(inode.durable)}\0".encode())
            total.update(inode.live)
            total.update(inode.durable)
        return total.digest()

    def tamper(self, path: str, offset: int, content: bytes) -> None:
        """Changes bytes behind everybody's back, live and durable."""
        inode = self._inode(path)
        for each in (inode.live, inode.durable):
            each[offset : offset + len(content)] = content[: max(0, len(each) - offset)]

    def flip(self, path: str, offset: int, bit: int = 0) -> None:
        """Flips one bit behind everybody's back."""
        self.tamper(path, offset, bytes([self._inode(path).live[offset] ^ (1 << bit)]))

    def install(self, path: str, content: bytes) -> None:
        """Puts a file there, in place of what has its name, live and durable; makes its folders."""
        folder = self._root
        *parents, name = _parts(path)
        for parent in parents:
            inner = folder.live.get(parent)
            if not isinstance(inner, Folder):
                inner = Folder()
                folder.live[parent] = folder.durable[parent] = inner
            folder = inner
        folder.live[name] = folder.durable[name] = Inode(bytearray(content), bytearray(content))

    def discard(self, path: str) -> None:
        """Takes a file away, live and durable."""
        folder, name = self._place(path)
        folder.live.pop(name, None)
        folder.durable.pop(name, None)

    # What a program asks

    def open(self, path: str, *, create: bool = False, read_only: bool = False) -> Handle:
        with self._mutex:
            cut = self._call("open", path)
            folder, name = self._place(path)
            node = folder.live.get(name)
            if node is None:
                if not create:
                    raise _error(errno.ENOENT, path)
                node = Inode()
                folder.change(Entry("", name, node))
            if isinstance(node, Folder):
                raise _error(errno.EISDIR, path)
            handle = self._next_handle
            self._next_handle += 1
            self._handles[handle] = Opened(path, node, read_only)
            self._go_dark(cut)
            return handle

    def close(self, handle: Handle) -> None:
        with self._mutex:
            opened = self._opened(handle)
            del self._handles[handle]
            if self._locks.get(id(opened.inode)) == handle:
                del self._locks[id(opened.inode)]
            self._go_dark(self._call("close", opened.path))

    def pread(self, handle: Handle, length: int, offset: int) -> bytes:
        with self._mutex:
            opened = self._opened(handle)
            self._go_dark(self._call("pread", opened.path))
            return bytes(opened.inode.live[offset : offset + length])

    def pwrite(self, handle: Handle, buffers: Sequence[bytes], offset: int) -> None:
        with self._mutex:
            self._write("pwrite", handle, buffers, offset)

    def pwrite_durable(self, handle: Handle, buffers: Sequence[bytes], offset: int) -> None:
        with self._mutex:
            inode, write = self._write("pwrite_durable", handle, buffers, offset)
            inode.sync_range(write)

    def _write(
        self, name: str, handle: Handle, buffers: Sequence[bytes], offset: int
    ) -> tuple[Inode, Write]:
        opened = self._opened(handle)
        if opened.read_only:
            raise _error(errno.EBADF, opened.path)
        content = b"".join(buffers)
        inode = opened.inode
        fault, cut = self._count(name, opened.path)
        if fault is not None:
            if fault.how == "short":
                inode.write(content[: len(content) // 2], offset)
            elif fault.how == "after":
                inode.write(content, offset)
                if name == "pwrite_durable":
                    inode.pending.pop()
            raise _error(fault.code, opened.path)
        self._check_space(offset + len(content) - len(inode.live), opened.path)
        write = inode.write(content, offset)
        self._go_dark(cut)
        return inode, write

    def fdatasync(self, handle: Handle) -> None:
        with self._mutex:
            opened = self._opened(handle)
            fault, cut = self._count("fdatasync", opened.path)
            if fault is not None:
                opened.inode.pending.clear()
                raise _error(fault.code, opened.path)
            self._go_dark(cut)
            opened.inode.sync()

    def fsync_directory(self, path: str) -> None:
        with self._mutex:
            cut = self._call("fsync_directory", path)
            folder = self._folder(path)
            self._go_dark(cut)
            folder.sync()

    def preallocate(self, handle: Handle, size_bytes: int) -> None:
        with self._mutex:
            opened = self._opened(handle)
            inode = opened.inode
            fault, cut = self._count("preallocate", opened.path)
            if fault is not None:
                if fault.how != "before":
                    inode.resize(size_bytes // 2)
                raise _error(fault.code, opened.path)
            self._check_space(size_bytes - len(inode.live), opened.path)
            inode.resize(size_bytes)
            self._go_dark(cut)

    def ftruncate(self, handle: Handle, size_bytes: int) -> None:
        with self._mutex:
            opened = self._opened(handle)
            cut = self._call("ftruncate", opened.path)
            self._check_space(size_bytes - len(opened.inode.live), opened.path)
            opened.inode.resize(size_bytes)
            self._go_dark(cut)

    def size(self, handle: Handle) -> int:
        with self._mutex:
            opened = self._opened(handle)
            self._go_dark(self._call("size", opened.path))
            return len(opened.inode.live)

    def stat(self, path: str) -> FileFacts:
        with self._mutex:
            self._go_dark(self._call("stat", path))
            node = self._node(path)
            if isinstance(node, Folder):
                return FileFacts(0, os.getuid(), 0o700, True)
            return FileFacts(len(node.live), os.getuid(), 0o600, False)

    def exists(self, path: str) -> bool:
        with self._mutex:
            self._go_dark(self._call("exists", path))
            try:
                self._node(path)
            except OSError:
                return False
            return True

    def listdir(self, path: str) -> list[str]:
        with self._mutex:
            self._go_dark(self._call("listdir", path))
            return sorted(self._folder(path).live)

    def mkdir(self, path: str) -> None:
        with self._mutex:
            cut = self._call("mkdir", path)
            folder, name = self._place(path)
            if name in folder.live:
                raise _error(errno.EEXIST, path)
            folder.change(Entry("", name, Folder()))
            self._go_dark(cut)

    def rename(self, old: str, new: str) -> None:
        with self._mutex:
            cut = self._call("rename", old)
            folder, name = self._place(old)
            other, new_name = self._place(new)
            if folder is not other:
                raise NotImplementedError("renames stay within a directory")
            if name not in folder.live:
                raise _error(errno.ENOENT, old)
            folder.change(Entry(name, new_name, folder.live[name]))
            self._go_dark(cut)

    def unlink(self, path: str) -> None:
        with self._mutex:
            cut = self._call("unlink", path)
            folder, name = self._place(path)
            if not isinstance(folder.live.get(name), Inode):
                raise _error(errno.ENOENT, path)
            folder.change(Entry(name, "", None))
            self._go_dark(cut)

    def remove_tree(self, path: str) -> None:
        with self._mutex:
            cut = self._call("remove_tree", path)
            folder, name = self._place(path)
            if name in folder.live:
                folder.change(Entry(name, "", None))
            self._go_dark(cut)

    def free_space(self, path: str) -> int:
        with self._mutex:
            self._go_dark(self._call("free_space", path))
            if self.capacity_bytes is None:
                return 1 << 40
            return max(0, self.capacity_bytes - self.used_bytes())

    def flock(self, handle: Handle) -> bool:
        with self._mutex:
            opened = self._opened(handle)
            self._go_dark(self._call("flock", opened.path))
            return self._locks.setdefault(id(opened.inode), handle) == handle

    # Counting and failing

    def _call(self, name: str, path: str) -> bool:
        """Counts a call and fails it if a fault says so; whether the power goes at it."""
        fault, cut = self._count(name, path)
        if fault is not None:
            raise _error(fault.code, path)
        return cut

    def _count(self, name: str, path: str) -> tuple[Fault | None, bool]:
        if self._is_dark or 0 < self._cut_at <= self.number:
            # The call that the power goes at may have ended in an error of its own.
            self._is_dark = True
            raise PowerLost
        self.number += 1
        self.counts[name] += 1
        call = Call(self.number, name, path)
        if self.keeps_calls:
            self.calls.append(call)
        for fault in self._faults:
            if fault.times and fault.when(call):
                fault.times -= 1
                return fault, False
        return None, self.number == self._cut_at

    def _go_dark(self, cut: bool) -> None:
        if cut:
            self._is_dark = True
            raise PowerLost

    def _check_space(self, more_bytes: int, path: str) -> None:
        if self.capacity_bytes is None or more_bytes <= 0:
            return
        if self.used_bytes() + more_bytes > self.capacity_bytes:
            raise _error(errno.ENOSPC, path)

    # Finding

    def _opened(self, handle: Handle) -> Opened:
        try:
            return self._handles[handle]
        except KeyError:
            raise _error(errno.EBADF, str(handle)) from None

    def _place(self, path: str) -> tuple[Folder, str]:
        return self._folder(parent_of(path)), path.rstrip("/").rpartition("/")[2]

    def _folder(self, path: str) -> Folder:
        node = self._node(path)
        if not isinstance(node, Folder):
            raise _error(errno.ENOTDIR, path)
        return node

    def _inode(self, path: str) -> Inode:
        node = self._node(path)
        assert isinstance(node, Inode), path
        return node

    def _node(self, path: str) -> Inode | Folder:
        node: Inode | Folder = self._root
        for part in _parts(path):
            found = node.live.get(part) if isinstance(node, Folder) else None
            if found is None:
                raise _error(errno.ENOENT, path)
            node = found
        return node


def _error(code: int, path: str) -> OSError:
    return OSError(code, os.strerror(code), path)


def _parts(path: str) -> list[str]:
    return [part for part in path.split("/") if part and part != "."]
