"""One file of a journal: its name, its header, reading it, and writing frames into it.

The name repeats the first LSN, the epoch and the salt of the header. A damaged header can so be
told from one that was never written: if frames stand in the file under the salt of its name, the
header was there once, for it is synced before the first frame.
"""

import re
import struct
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from enum import IntEnum
from typing import NamedTuple
from zlib import crc32

from parkade.store.disk import Disk, Handle
from parkade.store.errors import Damage, FormatTooNew, ReadFailed
from parkade.store.frame import (
    ALIGN_BYTES,
    HEAD_BYTES,
    Frame,
    FrameHead,
    decode_head,
    encode_frame,
    salt_crc,
    scan_frames,
)

FORMAT = 1
MAGIC = b"PARKADEJ"
SALT_BYTES = 8
DIRECTORY_SALT_BYTES = 5
HOUSE_SHARD = 0xFFFF_FFFF
"""The shard number of the engine-wide journal."""

_HEADER = struct.Struct("<8sHBBI8sQ8sQQII")
HEADER_BYTES = 64
assert _HEADER.size == HEADER_BYTES

SUFFIX = ".segment"
_NAME = re.compile(r"([0-9a-f]{16})-([0-9a-f]{8})-([0-9a-f]{16})\.segment")


class Mode(IntEnum):
    """What a segment's frames survive: a power cut, the end of the process, nothing."""

    DISK = 1
    PROCESS = 2
    MEMORY = 3


class SegmentName(NamedTuple):
    """What a file's name says; sorts as segments do."""

    first_lsn: int
    epoch: int
    salt: bytes

    @classmethod
    def parse(cls, name: str) -> "SegmentName | None":
        """None if this is not the name of a segment."""
        found = _NAME.fullmatch(name)
        if found is None:
            return None
        return cls(int(found[1], 16), int(found[2], 16), bytes.fromhex(found[3]))

    def __str__(self) -> str:
        return f"{self.first_lsn:016x}-{self.epoch:08x}-{self.salt.hex()}.segment"


@dataclass(frozen=True, slots=True)
class SegmentHeader:
    """The first 64 bytes of a segment.

    `prior_end` is where the last segment before it that holds frames ended, in bytes, 0 if there
    was none: it finds a lost frame that held no record.
    """

    directory_salt: bytes
    shard: int
    epoch: int
    salt: bytes
    first_lsn: int
    synced_lsn: int
    mode: Mode
    prior_end: int

    def encode(self) -> bytes:
        """The 64 bytes; the last four are the crc32 of the others."""
        front = _HEADER.pack(
            MAGIC,
            FORMAT,
            self.mode,
            0,
            self.shard,
            self.directory_salt,
            self.epoch,
            self.salt,
            self.first_lsn,
            self.synced_lsn,
            self.prior_end,
            0,
        )[:-4]
        return front + struct.pack("<I", crc32(front))

    @classmethod
    def decode(cls, content: bytes, path: str) -> "SegmentHeader | None":
        """None if no whole and unchanged header stands there; raises FormatTooNew."""
        if len(content) < HEADER_BYTES:
            return None
        (
            magic,
            format_,
            mode,
            _,
            shard,
            directory_salt,
            epoch,
            salt,
            first_lsn,
            synced_lsn,
            prior_end,
            crc,
        ) = _HEADER.unpack_from(content)
        if magic != MAGIC or crc != crc32(content[: HEADER_BYTES - 4]):
            return None
        if format_ > FORMAT:
            raise FormatTooNew(path, format_, FORMAT)
        if mode not in iter(Mode):
            raise Damage(path, 10, f"its header names a durability that there is none of: {mode}")
        return cls(
            directory_salt[:DIRECTORY_SALT_BYTES],
            shard,
            epoch,
            salt,
            first_lsn,
            synced_lsn,
            Mode(mode),
            prior_end,
        )


@dataclass(frozen=True, slots=True)
class SegmentScan:
    """A segment as it was found. `header` is None if no valid one stands there.

    `frames` are all valid ones, in order of offset; `end` is the first place where none stands.
    """

    path: str
    name: SegmentName
    header: SegmentHeader | None
    frames: tuple[FrameHead, ...]
    end: int
    size_bytes: int

    @property
    def goes_on(self) -> bool:
        """Whether it says that there is a file behind it."""
        return any(frame.goes_on for frame in self.frames)

    @property
    def first_lsn(self) -> int:
        """The LSN of the first record it may hold."""
        return self.name.first_lsn


def scan_segment(
    disk: Disk, directory: str, name: SegmentName, *, directory_salt: bytes, shard: int
) -> SegmentScan:
    """Reads a segment whole and judges every byte of it; changes nothing.

    Raises Damage if it is of another directory or shard, FormatTooNew, and ReadFailed where the
    disk does not answer.
    """
    path = f"{directory}/{name}"
    content = read_whole(disk, path)
    header = SegmentHeader.decode(content, path)
    if header is not None and (header.first_lsn, header.epoch, header.salt) != name:
        # A header of the file's older life, from before it was recycled under this name.
        header = None
    if header is not None:
        if header.directory_salt != directory_salt:
            raise Damage(path, 0, "it belongs to another directory (its salt differs)")
        if header.shard != shard:
            raise Damage(path, 0, f"it belongs to shard {header.shard}, not to {shard}")
    scan = scan_frames(content, HEADER_BYTES, salt_crc(name.salt))
    end = scan.end if header is not None else 0
    return SegmentScan(path, name, header, tuple(scan.frames), end, len(content))


def scan_directory(disk: Disk, directory: str, *, salt: bytes, shard: int) -> list[SegmentScan]:
    """Every segment of a journal, in order of (first LSN, epoch); changes nothing.

    Raises what `scan_segment` raises, and Damage if the directory is not there or holds a
    segment under a name that no journal gave it.
    """
    try:
        names = disk.listdir(directory)
    except FileNotFoundError as error:
        raise Damage(directory, 0, "the journal is missing: there is no such directory") from error
    except OSError as error:
        raise ReadFailed(directory, error.errno or 0) from error
    found: list[SegmentName] = []
    for name in names:
        parsed = SegmentName.parse(name)
        if parsed is not None:
            found.append(parsed)
        elif name.endswith(SUFFIX):
            raise Damage(f"{directory}/{name}", 0, "no journal names a segment like that")
    found.sort()
    return [scan_segment(disk, directory, name, directory_salt=salt, shard=shard) for name in found]


def read_whole(disk: Disk, path: str) -> bytes:
    """The bytes of a file; ReadFailed where the disk does not answer."""
    try:
        return disk.read_file(path)
    except OSError as error:
        raise ReadFailed(path, error.errno or 0) from error


def read_frames(disk: Disk, scan: SegmentScan, heads: Sequence[FrameHead]) -> Iterator[Frame]:
    """The frames of a segment with their bodies, read and checked again, in order.

    Raises Damage if one has changed since the scan, ReadFailed where the disk does not answer.
    """
    content = read_whole(disk, scan.path)
    view = memoryview(content)
    salted = salt_crc(scan.name.salt)
    for head in heads:
        if decode_head(view, head.offset, salted) != head:
            raise Damage(scan.path, head.offset, "the frame changed while it was being read")
        start = head.offset + HEAD_BYTES
        yield Frame(
            head.first_lsn,
            head.count,
            content[start : start + head.length],
            head.synced_lsn,
            scan.name.epoch,
            scan.path,
            head.offset,
        )


class SegmentWriter:
    """The segment that frames are written into. Its file is full-size from the start.

    `end` is where its last frame ends, `body_bytes_max` the largest body that fits behind that,
    with a covering frame after it; below 0: none.
    """

    __slots__ = (
        "_salted",
        "body_bytes_max",
        "disk",
        "end",
        "handle",
        "header",
        "path",
        "size_bytes",
    )

    def __init__(
        self,
        disk: Disk,
        handle: Handle,
        path: str,
        header: SegmentHeader,
        size_bytes: int,
        end: int = HEADER_BYTES,
    ) -> None:
        self.disk = disk
        self.handle = handle
        self.path = path
        self.header = header
        self.size_bytes = size_bytes
        self.end = end
        self.body_bytes_max = size_bytes - size_bytes % ALIGN_BYTES - end - 2 * HEAD_BYTES
        self._salted = salt_crc(header.salt)

    @property
    def left_bytes(self) -> int:
        """The room behind its last frame."""
        return self.size_bytes - self.end

    def write(
        self, body: bytes, *, count: int, first_lsn: int, synced_lsn: int, goes_on: bool = False
    ) -> int:
        """Writes one frame, one call to the disk, and returns the bytes it took.

        It is durable on return if the segment's mode is DISK. Raises OSError.
        """
        buffers = encode_frame(
            body,
            count=count,
            first_lsn=first_lsn,
            synced_lsn=synced_lsn,
            offset=self.end,
            salted=self._salted,
            goes_on=goes_on,
        )
        if self.header.mode is Mode.DISK:
            self.disk.pwrite_durable(self.handle, buffers, self.end)
        else:
            self.disk.pwrite(self.handle, buffers, self.end)
        size = HEAD_BYTES + len(body) + len(buffers[-1])
        self.end += size
        self.body_bytes_max -= size
        return size

    def write_goes_on(self, next_lsn: int, synced_lsn: int) -> None:
        """Says that the log goes on in another file, which must be there durably. Raises OSError.

        In mode DISK alone: elsewhere what follows may be lost with the power.
        """
        if self.header.mode is Mode.DISK:
            self.write(b"", count=0, first_lsn=next_lsn, synced_lsn=synced_lsn, goes_on=True)
