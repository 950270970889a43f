"""Every call of the file layer, told apart by the line of the source that makes it.

`SiteDisk` and `SiteFiles` are this machine's disk and files: they count which lines call what, and
make the calls of one line fail, or end the process there. `sites_in_source` reads the same lines
off the syntax trees, so that a test knows whether it has met them all.
"""

import ast
import errno
import os
import signal
import sys
import threading
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from functools import cache
from pathlib import Path
from typing import Any, NamedTuple

import lmdb

from parkade.store.disk import Handle, RealDisk
from parkade.store.environment import StoreFiles, reading

__all__ = [
    "CHANGES",
    "CODES",
    "Fault",
    "Kill",
    "Ledger",
    "Line",
    "Site",
    "SiteDisk",
    "SiteFiles",
    "places_of",
    "sites_in_source",
]

ROOT = Path(__file__).parents[2]
HERE = os.path.abspath(__file__)
DOOR = str(ROOT / "store" / "disk.py")

EIO, ENOSPC = errno.EIO, errno.ENOSPC
# What a call can meet. `exists` is not here: it has an answer for every error.
CODES: dict[str, tuple[int, ...]] = {
    "open": (EIO, ENOSPC),
    "close": (EIO,),
    "pread": (EIO,),
    "pwrite": (EIO, ENOSPC),
    "pwrite_durable": (EIO, ENOSPC),
    "fdatasync": (EIO, ENOSPC),
    "fsync_directory": (EIO, ENOSPC),
    "preallocate": (EIO, ENOSPC),
    "ftruncate": (EIO, ENOSPC),
    "size": (EIO,),
    "stat": (EIO,),
    "listdir": (EIO,),
    "mkdir": (EIO, ENOSPC),
    "rename": (EIO, ENOSPC),
    "unlink": (EIO,),
    "remove_tree": (EIO,),
    "free_space": (EIO,),
    "flock": (EIO,),
    # of the store's files
    "open_environment": (EIO, ENOSPC),
    "file_bytes": (EIO,),
    "fill_up": (EIO, ENOSPC),
    "make_directory": (EIO, ENOSPC),
    "sync_directory": (EIO, ENOSPC),
    "free_bytes": (EIO,),
    "commit": (EIO, ENOSPC),
}
# What a call leaves behind it, so that a kill after it finds something else than one before it.
CHANGES = {
    "open", "pwrite", "pwrite_durable", "preallocate", "ftruncate", "mkdir", "rename", "unlink",
    "remove_tree",
}  # fmt: skip
WHOLE = ("read_file", "replace_file", "make_directories")  # built on the others, in the door itself


class Line(NamedTuple):
    """A line of ours that asks the file layer for something."""

    file: str
    number: int


class Site(NamedTuple):
    """A call, the line it comes from, and the way it took through the door."""

    line: Line
    way: tuple[str, ...]

    @property
    def call(self) -> str:
        return self.way[-1]

    def __str__(self) -> str:
        return f"{self.line.file}:{self.line.number} {' > '.join(self.way)}"


@dataclass
class Fault:
    """The calls of one site fail: the one after `skip` others, or with `lasts` all from there."""

    site: Site
    code: int
    skip: int = 0
    lasts: bool = False


@dataclass(frozen=True)
class Kill:
    """The process is killed at the call of a site that comes after `skip` others: before it, in the
    middle of what it writes, or after it."""

    site: Site
    skip: int = 0
    when: str = "before"  # "half", "after"


@dataclass
class Ledger:
    """What a run has called, and what is to fail in it. Threads may share one."""

    fault: Fault | None = None
    kill: Kill | None = None
    counts: Counter[Site] = field(default_factory=Counter)
    failed: Counter[Site] = field(default_factory=Counter)
    is_full: bool = False
    _planned: list[tuple[str, str, int]] = field(default_factory=list)
    _dying: str = ""
    _lock: Any = field(default_factory=threading.Lock)

    def break_next(self, call: str, file: str = "", code: int = EIO, times: int = 1) -> None:
        """The next such calls of a file fail: a part of the life, and no site's fault."""
        self._planned += [(call, file, code)] * times

    def heal(self) -> None:
        """The disk is sound, and has room."""
        self.fault, self.is_full = None, False
        self._planned.clear()

    def meet(self, call: str, takes_room: bool = True) -> None:
        """Counts a call; raises where the fault is. Called by the methods of the doubles."""
        site = _site_of(call)
        with self._lock:
            self.counts[site] += 1
            self._dying = self._is_last(site)
            if self._dying == "before":
                die()
            for planned in self._planned:
                if planned[0] == call and planned[1] in site.line.file:
                    self._planned.remove(planned)
                    self.leave()
                    if self.fault is not None and site == self.fault.site:
                        self.failed[site] += 1
                    raise OSError(planned[2], os.strerror(planned[2]), str(site))
            fault = self.fault
            if fault is None or not self._is_hit(fault, site, takes_room):
                return
            self.failed[site] += 1
            self.is_full = fault.code == ENOSPC and fault.lasts
        raise OSError(fault.code, os.strerror(fault.code), str(site))

    def _is_last(self, site: Site) -> str:
        """When the process is to be killed, if this is the call."""
        kill = self.kill
        is_there = kill is not None and site == kill.site and self.counts[site] == kill.skip + 1
        return kill.when if kill is not None and is_there else ""

    @property
    def stops_half(self) -> bool:
        return self._dying == "half"

    def leave(self) -> None:
        """A call that changes something has returned."""
        if self._dying:
            die()

    def _is_hit(self, fault: Fault, site: Site, takes_room: bool) -> bool:
        if self.is_full:
            return ENOSPC in CODES[site.call] and takes_room
        if site != fault.site:
            return False
        at = self.counts[site] - 1
        return at >= fault.skip if fault.lasts else at == fault.skip


def die() -> None:
    os.kill(os.getpid(), signal.SIGKILL)


def places_of(calls: int) -> tuple[int, ...]:
    """How many calls of a site are skipped to get at its first, one in the middle, and its last."""
    return tuple(dict.fromkeys((0, calls // 2, calls - 1)))


@cache
def _shown(file: str) -> str:
    return str(Path(os.path.abspath(file)).relative_to(ROOT))


@cache
def _is_ours(file: str) -> bool:
    path = os.path.abspath(file)
    return path.startswith(str(ROOT)) and path not in (HERE, DOOR)


def _site_of(call: str) -> Site:
    way = [call]
    frame = sys._getframe(2)
    while not _is_ours(frame.f_code.co_filename):
        name = frame.f_code.co_name
        if os.path.abspath(frame.f_code.co_filename) == DOOR and name != way[-1]:
            way.append(name)
        assert frame.f_back is not None
        frame = frame.f_back
    return Site(Line(_shown(frame.f_code.co_filename), frame.f_lineno), tuple(reversed(way)))


class SiteDisk(RealDisk):
    """This machine's disk, never waited for."""

    def __init__(self, ledger: Ledger) -> None:
        super().__init__()
        self._ledger = ledger

    def open(self, path: str, *, create: bool = False, read_only: bool = False) -> Handle:
        self._ledger.meet("open", takes_room=create)
        try:
            return super().open(path, create=create, read_only=read_only)
        finally:
            self._ledger.leave()

    def close(self, handle: Handle) -> None:
        super().close(handle)  # the system gives a descriptor back whatever it answers
        self._ledger.meet("close")

    def pread(self, handle: Handle, length: int, offset: int) -> bytes:
        self._ledger.meet("pread")
        return super().pread(handle, length, offset)

    def pwrite(self, handle: Handle, buffers: Sequence[bytes], offset: int) -> None:
        self._write("pwrite", handle, buffers, offset)

    def pwrite_durable(self, handle: Handle, buffers: Sequence[bytes], offset: int) -> None:
        self._write("pwrite_durable", handle, buffers, offset)

    def _write(self, call: str, handle: Handle, buffers: Sequence[bytes], offset: int) -> None:
        whole = b"".join(buffers)
        is_new = offset + len(whole) > super().size(handle)
        try:
            self._ledger.meet(call, takes_room=is_new)
        except OSError:
            super().pwrite(handle, (whole[: len(whole) // 2],), offset)
            raise
        if self._ledger.stops_half:
            super().pwrite(handle, (whole[: len(whole) // 2],), offset)
        else:
            super().pwrite(handle, (whole,), offset)
        self._ledger.leave()

    def fdatasync(self, handle: Handle) -> None:
        self._ledger.meet("fdatasync", takes_room=False)

    def fsync_directory(self, path: str) -> None:
        self._ledger.meet("fsync_directory", takes_room=False)

    def preallocate(self, handle: Handle, size_bytes: int) -> None:
        try:
            self._ledger.meet("preallocate")
        except OSError:
            super().ftruncate(handle, size_bytes // 2)
            raise
        if self._ledger.stops_half:
            super().ftruncate(handle, size_bytes // 2)
        else:
            super().preallocate(handle, size_bytes)
        self._ledger.leave()

    def ftruncate(self, handle: Handle, size_bytes: int) -> None:
        self._ledger.meet("ftruncate", takes_room=False)
        super().ftruncate(handle, size_bytes)
        self._ledger.leave()

    def size(self, handle: Handle) -> int:
        self._ledger.meet("size")
        return super().size(handle)

    def stat(self, path: str) -> Any:
        self._ledger.meet("stat")
        return super().stat(path)

    def listdir(self, path: str) -> list[str]:
        self._ledger.meet("listdir")
        return super().listdir(path)

    def mkdir(self, path: str) -> None:
        self._ledger.meet("mkdir")
        try:
            super().mkdir(path)
        finally:
            self._ledger.leave()

    def rename(self, old: str, new: str) -> None:
        self._ledger.meet("rename", takes_room=False)
        super().rename(old, new)
        self._ledger.leave()

    def unlink(self, path: str) -> None:
        self._ledger.meet("unlink")
        try:
            super().unlink(path)
        finally:
            self._ledger.leave()

    def remove_tree(self, path: str) -> None:
        self._ledger.meet("remove_tree")
        try:
            super().remove_tree(path)
        finally:
            self._ledger.leave()

    def free_space(self, path: str) -> int:
        self._ledger.meet("free_space")
        return super().free_space(path)

    def flock(self, handle: Handle) -> bool:
        self._ledger.meet("flock")
        return super().flock(handle)


class SiteFiles(StoreFiles):
    """This machine's files of a store, never waited for; `commit` is the hook of its commits."""

    def __init__(self, ledger: Ledger) -> None:
        self._ledger = ledger

    def open(self, directory: str, *, map_bytes: int, is_new: bool, sync: bool) -> lmdb.Environment:
        with reading(directory):
            self._ledger.meet("open_environment", takes_room=is_new)
        return super().open(directory, map_bytes=map_bytes, is_new=is_new, sync=False)

    def file_bytes(self, path: str) -> int:
        with reading(path):
            self._ledger.meet("file_bytes")
        return super().file_bytes(path)

    def fill_up(self, environment: lmdb.Environment, path: str) -> None:
        self._ledger.meet("fill_up")
        super().fill_up(environment, path)

    def make_directory(self, path: str) -> None:
        self._ledger.meet("make_directory")
        super().make_directory(path)

    def sync_directory(self, path: str) -> None:
        self._ledger.meet("sync_directory", takes_room=False)

    def free_bytes(self, path: str) -> int:
        self._ledger.meet("free_bytes")
        return 0 if self._ledger.is_full else super().free_bytes(path)

    def commit(self, point: str) -> None:
        self._ledger.meet("commit")


def sites_in_source() -> Iterator[tuple[str, range, str]]:
    """(file, lines, call) for every place in engine/ and store/ that asks the file layer."""
    asked = set(CODES) | set(WHOLE) | {"exists"}
    for folder in ("engine", "store"):
        for path in sorted((ROOT / folder).rglob("*.py")):
            if str(path) == DOOR:
                continue
            for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
                call = _call_of(node)
                if call in asked:
                    assert isinstance(node, ast.Call)
                    lines = range(node.lineno, (node.end_lineno or node.lineno) + 1)
                    yield str(path.relative_to(ROOT)), lines, call


def _call_of(node: ast.AST) -> str | None:
    """What is asked, where it is a disk, the files of a store, or their hook."""
    if not isinstance(node, ast.Call) or not isinstance(node.func, ast.Attribute):
        return None
    owner, call = node.func.value, node.func.attr
    name = owner.attr if isinstance(owner, ast.Attribute) else getattr(owner, "id", "")
    if name in ("disk", "_disk"):
        return call
    if name in ("files", "_files"):
        return {"open": "open_environment"}.get(call, call)
    return {"_at": "commit", "_free_bytes": "free_bytes"}.get(call) if name == "self" else None
