"""A frame: the records of whole turns as one run of bytes that is there or is not.

Pure. A frame knows nothing of what its body says, of files, or of what a torn one means; it can
only be told from everything else: its checksums cover the salt of its segment and its own
offset, so that neither an older life of a recycled file nor a copy elsewhere passes for it.

    0   4  magic "PKFR"
    4   4  length of the body, bytes
    8   4  count of records, 0 for a covering frame
    12  4  crc32 of salt, offset, and this header's bytes 0-12 and 16-32
    16  8  first LSN
    24  8  synced: the last LSN known durable when this was written
    32  4  1: the log goes on in another file, which was there when this was written; else 0
    36  4  crc32 of salt, offset, bytes 0-36, body and padding
    40     body, then zeros up to a multiple of 8

The header has a checksum of its own so that a search for the next frame behind a damaged one
costs the same whatever the bodies hold: they are bytes that users choose.
"""

import struct
from collections.abc import Sequence
from typing import NamedTuple
from zlib import crc32

from msgspec import Struct

MAGIC = b"PKFR"
ALIGN_BYTES = 8
BODY_BYTES_MAX = 0xFFFF_FFFF

_HEAD = struct.Struct("<4sIIIQQII")
_OFFSET = struct.Struct("<Q")
_CRC = struct.Struct("<I")
# What the checksum of the header covers, and what that of all covers of it: behind the offset.
_CHECKED = struct.Struct("<Q4sIIQQ")
_FRONT = struct.Struct("<Q4sIIIQQI")
_PADS = tuple(bytes(n) for n in range(ALIGN_BYTES))

HEAD_BYTES = 40
assert _HEAD.size == HEAD_BYTES


class Frame(Struct, frozen=True, gc=False):
    """A frame as it was found: its LSNs, its body, and where it stands."""

    first_lsn: int
    count: int
    body: bytes
    synced_lsn: int
    epoch: int
    path: str
    offset: int

    @property
    def last_lsn(self) -> int:
        """The LSN of its last record; `first_lsn - 1` if it holds none."""
        return self.first_lsn + self.count - 1


class FrameHead(Struct, frozen=True, gc=False):
    """What is known of a valid frame without its body. `offset` and `size` are bytes; `goes_on`:
    it is the last of its file, and says that the log goes on in another."""

    offset: int
    size: int
    length: int
    count: int
    first_lsn: int
    synced_lsn: int
    goes_on: bool = False

    @property
    def last_lsn(self) -> int:
        """The LSN of its last record; `first_lsn - 1` if it holds none."""
        return self.first_lsn + self.count - 1

    @property
    def end(self) -> int:
        """The offset behind it."""
        return self.offset + self.size


class Scan(NamedTuple):
    """The valid frames of a file in order of offset, and the first place where none stands."""

    frames: Sequence[FrameHead]
    end: int


def frame_bytes(body_bytes: int) -> int:
    """How many bytes a frame with such a body takes, padding included."""
    return HEAD_BYTES + body_bytes + (-body_bytes % ALIGN_BYTES)


def salt_crc(salt: bytes) -> int:
    """Where the checksums of a segment start; worked out once a segment."""
    return crc32(salt)


def encode_frame(
    body: bytes,
    *,
    count: int,
    first_lsn: int,
    synced_lsn: int,
    offset: int,
    salted: int,
    goes_on: bool = False,
) -> tuple[bytes, bytes, bytes]:
    """A frame as the three buffers to write one behind the other; the body is not copied.

    `salted` is `salt_crc` of the segment, `offset` where the frame will stand. A body past
    4 GiB raises struct.error.
    """
    length = len(body)
    checked = _CHECKED.pack(offset, MAGIC, length, count, first_lsn, synced_lsn)
    head_crc = crc32(checked, salted)
    front = _FRONT.pack(offset, MAGIC, length, count, head_crc, first_lsn, synced_lsn, goes_on)
    pad = _PADS[-length % ALIGN_BYTES]
    crc = crc32(body, crc32(front, salted))
    if pad:
        crc = crc32(pad, crc)
    return front[_OFFSET.size :] + _CRC.pack(crc), body, pad


def decode_head(content: memoryview, offset: int, salted: int) -> FrameHead | None:
    """The frame that stands at `offset`, or None if no whole and unchanged one does."""
    if len(content) - offset < HEAD_BYTES:
        return None
    magic, length, count, head_crc, first_lsn, synced_lsn, flag, crc = _HEAD.unpack_from(
        content, offset
    )
    if magic != MAGIC:
        return None
    seed = crc32(_OFFSET.pack(offset), salted)
    if head_crc != crc32(
        content[offset + 16 : offset + 32], crc32(content[offset : offset + 12], seed)
    ):
        return None
    size = HEAD_BYTES + length + (-length % ALIGN_BYTES)
    end = offset + size
    if end > len(content):
        return None
    seed = crc32(content[offset : offset + 36], seed)
    if crc != crc32(content[offset + HEAD_BYTES : end], seed):
        return None
    return FrameHead(offset, size, length, count, first_lsn, synced_lsn, flag == 1)


def scan_frames(content: bytes, start: int, salted: int) -> Scan:
    """Every valid frame from `start` on, those behind a damaged stretch included.

    Frames stand at multiples of 8 from the start of the file.
    """
    view = memoryview(content)
    frames: list[FrameHead] = []
    end = -1
    at = start
    while True:
        head = decode_head(view, at, salted)
        if head is not None:
            frames.append(head)
            at += head.size
            continue
        if end < 0:
            end = at
        at = _next_candidate(content, at + 1)
        if at < 0:
            return Scan(frames, end)


def _next_candidate(content: bytes, at: int) -> int:
    at = content.find(MAGIC, at)
    while at >= 0 and at % ALIGN_BYTES:
        at = content.find(MAGIC, at + 1)
    return at
