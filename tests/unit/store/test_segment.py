"""Segments: the name, the header, and what is read of a file."""

import struct
from zlib import crc32

import pytest

from kit.disk import FakeDisk
from parkade.store.errors import Damage, FormatTooNew, ReadFailed
from parkade.store.frame import ALIGN_BYTES
from parkade.store.segment import (
    FORMAT,
    HEADER_BYTES,
    HOUSE_SHARD,
    Mode,
    SegmentHeader,
    SegmentName,
    SegmentWriter,
    read_frames,
    scan_directory,
    scan_segment,
)

SALT = b"\x01\x02\x03\x04\x05"
HEADER = SegmentHeader(SALT, 3, 9, b"saltsalt", 41, 40, Mode.DISK, 1224)
NAME = SegmentName(41, 9, b"saltsalt")


def disk_with(content: bytes, name: object = NAME) -> FakeDisk:
    disk = FakeDisk()
    disk.install(f"/j/{name}", content)
    return disk


@pytest.mark.parametrize("mode", list(Mode))
@pytest.mark.parametrize("shard", [0, 3, HOUSE_SHARD])
def test_a_header_reads_back_as_it_was_written(mode: Mode, shard: int) -> None:
    header = SegmentHeader(SALT, shard, 1 << 31, b"12345678", 1 << 60, 1 << 59, mode, 0)
    assert len(header.encode()) == HEADER_BYTES
    assert SegmentHeader.decode(header.encode() + b"frames", "x") == header


def test_every_flipped_bit_of_a_header_is_found() -> None:
    for bit in range(HEADER_BYTES * 8):
        flipped = bytearray(HEADER.encode())
        flipped[bit // 8] ^= 1 << bit % 8
        assert SegmentHeader.decode(bytes(flipped), "x") is None


def test_a_header_cut_at_any_byte_is_no_header() -> None:
    for end in range(HEADER_BYTES):
        assert SegmentHeader.decode(HEADER.encode()[:end], "x") is None


def test_the_bytes_of_a_header_are_those_of_the_format() -> None:
    front = (
        b"PARKADEJ"
        + struct.pack("<HBBI", 1, 1, 0, 3)
        + SALT
        + bytes(3)
        + struct.pack("<Q", 9)
        + b"saltsalt"
        + struct.pack("<QQI", 41, 40, 1224)
    )
    assert HEADER.encode() == front + struct.pack("<I", crc32(front))


def test_a_header_of_a_later_format_is_refused_by_its_number() -> None:
    front = bytearray(HEADER.encode()[:-4])
    front[8:10] = struct.pack("<H", FORMAT + 1)
    content = bytes(front) + struct.pack("<I", crc32(front))
    with pytest.raises(FormatTooNew) as caught:
        SegmentHeader.decode(content, "/j/x")
    assert (caught.value.found, caught.value.supported) == (FORMAT + 1, FORMAT)


def test_names_sort_as_first_lsn_and_epoch_and_parse_back() -> None:
    names = [SegmentName(n, e, b"\xff" * 8) for n in (0, 1, 15, 16, 1 << 60) for e in (1, 2, 300)]
    assert sorted(map(str, names)) == list(map(str, names))
    assert [SegmentName.parse(str(name)) for name in names] == names
    assert SegmentName.parse("lock") is None
    assert SegmentName.parse(f"{NAME}.new") is None


def test_a_segment_of_another_directory_or_shard_is_damage() -> None:
    disk = disk_with(HEADER.encode())
    with pytest.raises(Damage, match="another directory"):
        scan_segment(disk, "/j", NAME, directory_salt=b"other", shard=3)
    with pytest.raises(Damage, match="shard 3, not to 4"):
        scan_segment(disk, "/j", NAME, directory_salt=SALT, shard=4)


def test_a_header_of_an_older_life_is_no_header_of_this_one() -> None:
    disk = disk_with(HEADER.encode(), SegmentName(99, 10, b"newsalts"))
    scan = scan_segment(disk, "/j", SegmentName(99, 10, b"newsalts"), directory_salt=SALT, shard=3)
    assert scan.header is None and scan.frames == ()


def test_what_a_writer_writes_is_what_a_scan_finds() -> None:
    disk = disk_with(HEADER.encode() + bytes(400))
    path = f"/j/{NAME}"
    writer = SegmentWriter(disk, disk.open(path), path, HEADER, HEADER_BYTES + 400)
    bodies = [b"one", b"twelve bytes", b""]
    for number, body in enumerate(bodies):
        writer.write(body, count=1, first_lsn=41 + number, synced_lsn=40 + number)
    scan = scan_segment(disk, "/j", NAME, directory_salt=SALT, shard=3)
    assert [frame.body for frame in read_frames(disk, scan, scan.frames)] == bodies
    assert scan.end == writer.end
    assert disk.counts["pwrite_durable"] == 3 and disk.counts["fdatasync"] == 0


@pytest.mark.parametrize("more", range(ALIGN_BYTES))
def test_a_writer_keeps_room_for_a_covering_frame(more: int) -> None:
    """Also where the size of the file is no multiple of what frames stand at."""
    disk, path = disk_with(b""), f"/j/{NAME}"
    writer = SegmentWriter(disk, disk.open(path), path, HEADER, HEADER_BYTES + 152 + more)
    assert writer.body_bytes_max == 72
    writer.write(bytes(9), count=1, first_lsn=1, synced_lsn=0)
    assert writer.body_bytes_max == 16
    writer.write(bytes(16), count=1, first_lsn=2, synced_lsn=1)
    assert writer.body_bytes_max < 0
    writer.write(b"", count=0, first_lsn=3, synced_lsn=2)
    assert writer.left_bytes == more


def test_frames_that_change_between_two_reads_are_damage() -> None:
    disk = disk_with(HEADER.encode() + bytes(200))
    path = f"/j/{NAME}"
    writer = SegmentWriter(disk, disk.open(path), path, HEADER, HEADER_BYTES + 200)
    writer.write(b"one", count=1, first_lsn=41, synced_lsn=40)
    scan = scan_segment(disk, "/j", NAME, directory_salt=SALT, shard=3)
    disk.flip(path, HEADER_BYTES + 41)
    with pytest.raises(Damage, match="changed while it was being read"):
        list(read_frames(disk, scan, scan.frames))


def test_a_directory_is_read_in_order_and_other_files_are_passed_by() -> None:
    disk = FakeDisk()
    names = [SegmentName(n, 1, bytes([n]) * 8) for n in (3, 1, 2)]
    for name in names:
        disk.install(f"/j/{name}", b"")
    disk.install("/j/0011.spare", b"x")
    disk.install("/j/notes.txt", b"x")
    scans = scan_directory(disk, "/j", salt=SALT, shard=3)
    assert [scan.first_lsn for scan in scans] == [1, 2, 3]


def test_a_segment_under_a_strange_name_and_a_missing_directory_are_damage() -> None:
    disk = FakeDisk()
    with pytest.raises(Damage, match="no such directory"):
        scan_directory(disk, "/j", salt=SALT, shard=3)
    disk.install("/j/copy of 1.segment", b"x")
    with pytest.raises(Damage, match="no journal names a segment like that"):
        scan_directory(disk, "/j", salt=SALT, shard=3)


def test_a_read_error_is_told_from_damage() -> None:
    disk = disk_with(HEADER.encode())
    disk.fail(lambda call: call.name == "pread")
    with pytest.raises(ReadFailed) as caught:
        scan_directory(disk, "/j", salt=SALT, shard=3)
    assert caught.value.path == f"/j/{NAME}"
