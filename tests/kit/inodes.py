"""Files and directories in memory, each with what a power cut leaves of it.

Live is what a program reads; durable is what was synced. What lies between is kept change by
change, for a cut to lose it, keep it, or keep parts: a sector of a write, a name among several.
"""

from collections.abc import Iterator
from dataclasses import dataclass, field
from random import Random
from typing import Literal, NamedTuple

SECTOR_BYTES = 512

How = Literal["lost", "landed", "torn"]


class Write(NamedTuple):
    """Bytes of whole sectors as they were after a write, not yet durable."""

    offset: int
    content: bytes


class Resize(NamedTuple):
    """A new size, not yet durable."""

    size: int


@dataclass
class Inode:
    """A file: what is read, what a power cut leaves, and what lies between."""

    live: bytearray = field(default_factory=bytearray)
    durable: bytearray = field(default_factory=bytearray)
    pending: list[Write | Resize] = field(default_factory=list)

    def write(self, content: bytes, offset: int) -> Write:
        end = offset + len(content)
        if end > len(self.live):
            self.resize(end)
        self.live[offset:end] = content
        first = offset // SECTOR_BYTES * SECTOR_BYTES
        last = min(-(-end // SECTOR_BYTES) * SECTOR_BYTES, len(self.live))
        write = Write(first, bytes(self.live[first:last]))
        self.pending.append(write)
        return write

    def resize(self, size: int) -> None:
        del self.live[size:]
        self.live.extend(bytes(size - len(self.live)))
        self.pending.append(Resize(size))

    def sync(self) -> None:
        for change in self.pending:
            _apply(self.durable, change)
        self.pending.clear()

    def sync_range(self, write: Write) -> None:
        """What a durable write does: its own bytes and the size; older ones stay unsynced."""
        end = write.offset + len(write.content)
        kept: list[Write | Resize] = []
        for change in self.pending:
            if isinstance(change, Write) and (
                change.offset + len(change.content) <= write.offset or change.offset >= end
            ):
                kept.append(change)
            else:
                _apply(self.durable, change)
        self.pending = kept

    def survivor(self, how: How, random: Random) -> "Inode":
        """The file after a power cut."""
        durable = bytearray(self.durable)
        for change in self.pending:
            if how == "landed":
                _apply(durable, change)
            elif how == "torn":
                _apply_torn(durable, change, random)
        return Inode(bytearray(durable), durable)

    def copy(self) -> "Inode":
        return Inode(bytearray(self.live), bytearray(self.durable), list(self.pending))


def _apply(durable: bytearray, change: Write | Resize) -> None:
    if isinstance(change, Resize):
        del durable[change.size :]
        durable.extend(bytes(change.size - len(durable)))
    else:
        content = change.content[: max(0, len(durable) - change.offset)]
        durable[change.offset : change.offset + len(content)] = content


def _apply_torn(durable: bytearray, change: Write | Resize, random: Random) -> None:
    if isinstance(change, Resize):
        if random.random() < 0.5:
            _apply(durable, change)
        return
    for start in range(0, len(change.content), SECTOR_BYTES):
        if random.random() < 0.5:
            sector = change.content[start : start + SECTOR_BYTES]
            _apply(durable, Write(change.offset + start, sector))


class Entry(NamedTuple):
    """A change of a directory: names taken away, and one given, in one step."""

    removed: str
    added: str
    node: "Inode | Folder | None"


@dataclass
class Folder:
    """A directory: the names that are seen, and those that a power cut leaves."""

    live: "dict[str, Inode | Folder]" = field(default_factory=dict)
    durable: "dict[str, Inode | Folder]" = field(default_factory=dict)
    pending: list[Entry] = field(default_factory=list)

    def change(self, entry: Entry) -> None:
        _enter(self.live, entry)
        self.pending.append(entry)

    def sync(self) -> None:
        for entry in self.pending:
            _enter(self.durable, entry)
        self.pending.clear()

    def survivor(self, how: How, random: Random, seen: "dict[int, Inode | Folder]") -> "Folder":
        """The directory after a power cut, with all that is in it."""
        durable = dict(self.durable)
        for entry in self.pending:
            if how == "landed" or (how == "torn" and random.random() < 0.5):
                _enter(durable, entry)
        names = {name: _survivor(durable[name], how, random, seen) for name in sorted(durable)}
        return Folder(names, dict(names))


def _enter(names: "dict[str, Inode | Folder]", entry: Entry) -> None:
    if entry.removed:
        names.pop(entry.removed, None)
    if entry.added and entry.node is not None:
        names[entry.added] = entry.node


def _survivor(
    node: "Inode | Folder", how: How, random: Random, seen: "dict[int, Inode | Folder]"
) -> "Inode | Folder":
    found = seen.get(id(node))
    if found is None:
        if isinstance(node, Inode):
            found = node.survivor(how, random)
        else:
            found = node.survivor(how, random, seen)
        seen[id(node)] = found
    return found


def walk(prefix: str, folder: Folder) -> Iterator[tuple[str, Inode]]:
    for name in sorted(folder.live):
        node = folder.live[name]
        path = f"{prefix}/{name}"
        if isinstance(node, Folder):
            yield from walk(path, node)
        else:
            yield path, node


def copy_folder(folder: Folder, seen: dict[int, Inode | Folder]) -> Folder:
    def again(node: Inode | Folder) -> Inode | Folder:
        if id(node) not in seen:
            seen[id(node)] = node.copy() if isinstance(node, Inode) else copy_folder(node, seen)
        return seen[id(node)]

    return Folder(
        {name: again(node) for name, node in folder.live.items()},
        {name: again(node) for name, node in folder.durable.items()},
        [
            entry if entry.node is None else entry._replace(node=again(entry.node))
            for entry in folder.pending
        ],
    )
