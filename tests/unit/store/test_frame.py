"""Frames: there or not, whatever stands around them."""

import struct
from zlib import crc32

import pytest
from hypothesis import given
from hypothesis import strategies as st

from parkade.store.frame import (
    HEAD_BYTES,
    MAGIC,
    FrameHead,
    decode_head,
    encode_frame,
    frame_bytes,
    salt_crc,
    scan_frames,
)

SALT = b"saltsalt"
SALTED = salt_crc(SALT)


def encoded(body: bytes, offset: int = 64, *, count: int = 1, first_lsn: int = 7) -> bytes:
    return b"".join(
        encode_frame(
            body,
            count=count,
            first_lsn=first_lsn,
            synced_lsn=first_lsn - 1,
            offset=offset,
            salted=SALTED,
        )
    )


def at_offset(frame: bytes, offset: int = 64) -> bytes:
    return bytes(offset) + frame


@given(st.binary(max_size=100), st.integers(0, 50).map(lambda n: 8 * n), st.integers(1, 9))
def test_a_frame_reads_back_as_it_was_written(body: bytes, offset: int, count: int) -> None:
    frame = encoded(body, offset, count=count)
    assert len(frame) == frame_bytes(len(body))
    head = decode_head(memoryview(at_offset(frame, offset)), offset, SALTED)
    assert head == FrameHead(offset, len(frame), len(body), count, 7, 6)
    assert head.last_lsn == 6 + count
    assert head.end == offset + len(frame)


@given(st.binary(max_size=40))
def test_a_frame_is_read_whole_byte_by_byte_and_with_a_tail(body: bytes) -> None:
    content = at_offset(encoded(body))
    for end in range(len(content)):
        assert decode_head(memoryview(content[:end]), 64, SALTED) is None
    assert decode_head(memoryview(content), 64, SALTED) is not None
    assert decode_head(memoryview(content + b"tail" * 20), 64, SALTED) is not None


def test_every_flipped_bit_of_a_frame_is_found_padding_included() -> None:
    content = at_offset(encoded(b"thirteen byte"))
    for bit in range(64 * 8, len(content) * 8):
        flipped = bytearray(content)
        flipped[bit // 8] ^= 1 << bit % 8
        assert decode_head(memoryview(flipped), 64, SALTED) is None


def test_a_frame_passes_only_under_its_own_salt_and_at_its_own_offset() -> None:
    frame = encoded(b"body")
    assert decode_head(memoryview(at_offset(frame)), 64, salt_crc(b"othersal")) is None
    assert decode_head(memoryview(at_offset(frame, 72)), 72, SALTED) is None


def test_the_bytes_of_a_frame_are_those_of_the_format() -> None:
    frame = encoded(b"body", 128, count=3, first_lsn=9)
    seed = crc32(struct.pack("<Q", 128), crc32(SALT))
    front = b"PKFR" + struct.pack("<II", 4, 3)
    lsns = struct.pack("<QQ", 9, 8)
    head = front + struct.pack("<I", crc32(lsns, crc32(front, seed))) + lsns + bytes(4)
    crc = crc32(head + b"body" + bytes(4), seed)
    assert frame == head + struct.pack("<I", crc) + b"body" + bytes(4)


@pytest.mark.parametrize("length", [0xFFFFFFFF, 0x7FFFFFFF, 1 << 20])
def test_a_length_beyond_the_file_is_refused_before_anything_is_read(length: int) -> None:
    front = MAGIC + struct.pack("<II", length, 1)
    lsns = struct.pack("<QQ", 1, 0)
    seed = crc32(struct.pack("<Q", 64), SALTED)
    head = front + struct.pack("<I", crc32(lsns, crc32(front, seed))) + lsns + bytes(8)
    assert decode_head(memoryview(at_offset(head) + bytes(100)), 64, SALTED) is None


@pytest.mark.parametrize("body", [b"", b"\0", b"\xff" * 200])
def test_zeros_and_litter_hold_no_frame(body: bytes) -> None:
    scan = scan_frames(bytes(64) + body, 64, SALTED)
    assert (list(scan.frames), scan.end) == ([], 64)


def test_a_scan_finds_the_frames_behind_a_damaged_one() -> None:
    content = bytearray(64)
    starts = []
    for number in range(5):
        starts.append(len(content))
        content += encoded(b"x" * number, len(content), first_lsn=number + 1)
    content[starts[2] + 5] ^= 1
    scan = scan_frames(bytes(content), 64, SALTED)
    assert [frame.first_lsn for frame in scan.frames] == [1, 2, 4, 5]
    assert scan.end == starts[2]


def test_bodies_made_of_headers_do_not_make_a_scan_read_them_over_and_over() -> None:
    # Each of these would be a body of 64 KiB to check, were the header not checked first.
    bait = (MAGIC + struct.pack("<II", 1 << 16, 1) + bytes(4)) * (1 << 14)
    content = bytearray(at_offset(encoded(bait)))
    content[64 + 4] ^= 1
    behind = len(content)
    content += encoded(b"behind", behind, first_lsn=8)
    scan = scan_frames(bytes(content), 64, SALTED)
    assert [(frame.offset, frame.first_lsn) for frame in scan.frames] == [(behind, 8)]


def test_a_body_is_handed_on_and_not_copied() -> None:
    body = b"b" * 1000
    assert encode_frame(body, count=1, first_lsn=1, synced_lsn=0, offset=64, salted=SALTED)[1] is (
        body
    )
    assert HEAD_BYTES == 40
