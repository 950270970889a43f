"""A journal of sixty records over three segments, cut at every byte: what was whole is kept.

A cut takes everything behind it, later files too. What then stands behind it is nothing (a short
file), zeros, or an older life of a recycled file; the journal is opened, appended to, cut again
at every byte of what was appended, and opened again.
"""

from collections.abc import Iterator

import pytest

from kit.disk import FakeDisk
from kit.journals import (
    PLACE,
    SALT,
    SHARD,
    Script,
    body,
    open_journal,
    replayed,
    segment_paths,
    write_script,
)
from parkade.store.errors import Damage
from parkade.store.frame import HEAD_BYTES, frame_bytes
from parkade.store.journal import inspect, read_only_frames
from parkade.store.segment import HEADER_BYTES

BODIES = [body(number) for number in range(1, 61)]
OLDER_BODIES = [body(number) for number in range(31, 91)]
APPENDED = b"appended"

SCRIPT = write_script(BODIES)
CLEAN = write_script(BODIES, is_clean=True)
OLDER = write_script(OLDER_BODIES, seed=1)

BEHIND = ("short", "zeros", "older")


def cut_content(content: bytes, at: int, behind: str, older: bytes) -> bytes:
    """A file cut at a byte, with what then stands behind the cut."""
    if behind == "short":
        return content[:at]
    if behind == "zeros":
        return content[:at] + bytes(len(content) - at)
    return content[:at] + older[at : len(content)]


def cut_images(script: Script, path: str, at: int, behind: str) -> dict[str, bytes]:
    """All files of a script up to a cut."""
    older = list(OLDER.images.values())
    images: dict[str, bytes] = {}
    for number, (each, content) in enumerate(script.images.items()):
        if each == path:
            images[each] = cut_content(content, at, behind, older[number])
            return images
        images[each] = content
    raise AssertionError(path)


def whole_bodies(script: Script, images: dict[str, bytes]) -> list[bytes]:
    """What the frames hold that a cut left as they were; the zeros of a frame may be its own."""
    kept = []
    for frame in script.frames:
        found = images.get(frame.path, b"")[frame.start : frame.end]
        if found != script.images[frame.path][frame.start : frame.end]:
            break
        header = images[frame.path][:HEADER_BYTES]
        if header != script.images[frame.path][:HEADER_BYTES]:
            break
        if frame.body:
            kept.append(frame.body)
    return kept


def cuts(script: Script) -> Iterator[tuple[str, int]]:
    """Every byte of every segment, up to the end of its last frame."""
    for path in script.images:
        for at in range(script.used_end(path) + 1):
            yield path, at


def has_its_header(images: dict[str, bytes], path: str) -> bool:
    """A file has it, durably, before it has its name: no crash takes it away."""
    return images[path][:HEADER_BYTES] == SCRIPT.images[path][:HEADER_BYTES]


def disk_of(images: dict[str, bytes]) -> FakeDisk:
    disk = FakeDisk()
    for path, content in images.items():
        disk.install(path, content)
    disk.keeps_calls = False
    return disk


def test_a_cut_at_any_byte_keeps_the_whole_frames_and_what_is_appended_behind_it() -> None:
    seen: set[bytes] = set()
    for behind in BEHIND:
        for path, at in cuts(SCRIPT):
            images = cut_images(SCRIPT, path, at, behind)
            kept = whole_bodies(SCRIPT, images)
            disk = disk_of(images)
            if not has_its_header(images, path):
                assert_refused(disk, path, 0)
                continue
            journal = open_journal(disk, seed=2)
            assert replayed(journal) == kept, (path, at, behind)
            assert journal.append(APPENDED, 1) == len(kept) + 1
            after = disk.power_cut("lost")
            # Disks with the same bytes have the same future: each is cut again once.
            if after.digest() not in seen:
                seen.add(after.digest())
                cut_the_new_frame(after, kept)
    # Where a file ends it may have said already that the log goes on; a first one that is cut
    # behind its header may come back.
    assert len(seen) == len(BODIES) + 1 + len(SCRIPT.images) - 1 + 1


def cut_the_new_frame(disk: FakeDisk, kept: list[bytes]) -> None:
    newest = segment_paths(disk)[-1]
    content = disk.image()[newest]
    end = HEADER_BYTES + frame_bytes(len(APPENDED))
    older = next(iter(OLDER.images.values()))
    for at in range(HEADER_BYTES, end + 1):
        for behind in BEHIND:
            cut = cut_content(content, at, behind, older)
            again = disk.copy()
            again.install(newest, cut)
            again.keeps_calls = False
            expected = [*kept, APPENDED] if cut[:end] == content[:end] else kept
            assert replayed(open_journal(again, seed=3)) == expected, (newest, at, behind)


def test_the_second_append_survives_a_tail_that_was_torn_twice() -> None:
    first = SCRIPT.frames[30]
    disk = disk_of(cut_images(SCRIPT, first.path, first.end - 9, "older"))
    journal = open_journal(disk, seed=2)
    assert journal.append(b"after the first", 1) == 31
    disk = disk.power_cut("lost")
    newest = segment_paths(disk)[-1]
    disk.tamper(newest, HEADER_BYTES + frame_bytes(15), b"PKFR\xff\xff\xff\xff garbage")
    journal = open_journal(disk, seed=3)
    assert journal.append(b"after the second", 1) == 32
    journal = open_journal(disk.power_cut("lost"), seed=4)
    assert replayed(journal) == [*BODIES[:30], b"after the first", b"after the second"]


@pytest.mark.parametrize("behind", BEHIND)
def test_a_cut_below_the_stores_lsn_refuses_with_the_place_and_changes_nothing(
    behind: str,
) -> None:
    for frame in SCRIPT.frames:
        images = cut_images(SCRIPT, frame.path, frame.start + 1, behind)
        kept = len(whole_bodies(SCRIPT, images))
        disk = disk_of(images)
        with pytest.raises(Damage) as caught:
            open_journal(disk, store_lsn=kept + 1, seed=2)
        assert (caught.value.path, caught.value.offset) == (frame.path, frame.start)
        assert f"LSN {kept}," in caught.value.reason
        assert disk.image() == images
        assert replayed(open_journal(disk, store_lsn=kept, seed=2)) == []


def test_a_cut_that_leaves_later_frames_in_its_file_refuses_the_shard() -> None:
    # The last frame of each segment has none behind it in its file.
    for frame, following in zip(SCRIPT.frames, SCRIPT.frames[1:], strict=False):
        if frame.path != following.path:
            continue
        for start, end in ((frame.start, frame.end), (frame.end - 17, frame.end)):
            disk = SCRIPT.disk()
            disk.tamper(frame.path, start, bytes(end - start))
            assert_refused(disk, frame.path, frame.start)


def test_a_cut_that_leaves_later_files_refuses_the_shard() -> None:
    for path in list(SCRIPT.images)[:-1]:
        for at in range(0, SCRIPT.used_end(path), 7):
            disk = SCRIPT.disk()
            content = SCRIPT.images[path]
            disk.install(path, content[:at] + bytes(len(content) - at))
            end = SCRIPT.used_end(path)
            if disk.image()[path][:end] != content[:end]:
                with pytest.raises(Damage) as caught:
                    open_journal(disk, seed=2)
                assert caught.value.path == path
    middle = list(SCRIPT.images)[1]
    disk = SCRIPT.disk()
    disk.discard(middle)
    with pytest.raises(Damage, match="the log ends at LSN 20, and LSN 5"):
        open_journal(disk, seed=2)


def test_a_flipped_bit_in_any_frame_of_a_cleanly_closed_journal_refuses_the_shard() -> None:
    for frame in CLEAN.frames:
        for offset in range(frame.start, frame.end):
            disk = CLEAN.disk()
            disk.flip(frame.path, offset, bit=offset % 8)
            if frame.body:
                assert_refused(disk, frame.path, frame.start)
            else:
                # The covering frame itself carries nothing that could be lost.
                assert replayed(open_journal(disk, seed=2)) == BODIES


def test_a_flipped_bit_in_any_frame_but_the_last_refuses_an_unclean_journal_too() -> None:
    for frame in SCRIPT.frames[:-1]:
        for offset in range(frame.start, frame.end, 5):
            disk = SCRIPT.disk()
            disk.flip(frame.path, offset, bit=offset % 8)
            assert_refused(disk, frame.path, frame.start)


def test_a_flipped_bit_in_any_header_refuses_the_shard() -> None:
    for path in CLEAN.images:
        for offset in range(HEADER_BYTES):
            disk = CLEAN.disk()
            disk.flip(path, offset, bit=offset % 8)
            assert_refused(disk, path, 0)


def test_a_flipped_bit_in_a_covering_frame_of_an_earlier_life_refuses_the_shard() -> None:
    disk = CLEAN.disk()
    open_journal(disk, seed=2).close(clean=True)
    covering = CLEAN.frames[-1]
    for offset in range(covering.start, covering.end):
        damaged = disk.copy()
        damaged.flip(covering.path, offset)
        assert_refused(damaged, covering.path, covering.start)


def test_a_flipped_bit_below_the_stores_lsn_refuses_the_shard_as_well() -> None:
    disk = CLEAN.disk()
    disk.flip(CLEAN.frames[2].path, CLEAN.frames[2].start + 44)
    assert_refused(disk, CLEAN.frames[2].path, CLEAN.frames[2].start, store_lsn=50)


def assert_refused(disk: FakeDisk, path: str, offset: int, *, store_lsn: int = 0) -> None:
    before = disk.digest()
    with pytest.raises(Damage) as caught:
        open_journal(disk, store_lsn=store_lsn, seed=2)
    assert (caught.value.path, caught.value.offset) == (path, offset), caught.value
    assert caught.value.reason
    assert disk.digest() == before
    assert not set(disk.counts) & {"pwrite", "pwrite_durable", "ftruncate", "rename", "unlink"}


def test_looking_at_a_cut_journal_finds_what_an_open_would_and_writes_nothing() -> None:
    for path, at in list(cuts(SCRIPT))[::11]:
        for behind in BEHIND:
            images = cut_images(SCRIPT, path, at, behind)
            kept = whole_bodies(SCRIPT, images)
            disk = disk_of(images)
            report = inspect(disk, PLACE, SALT, SHARD, 0)
            assert (report.damage is None) == has_its_header(images, path)
            if report.damage is not None:
                continue
            assert report.last_lsn == len(kept)
            frames = list(read_only_frames(disk, PLACE, salt=SALT, shard=SHARD, store_lsn=0))
            assert [frame.body for frame in frames] == kept
            assert [frame.first_lsn for frame in frames] == list(range(1, len(kept) + 1))
            assert set(disk.counts) == {"listdir", "open", "size", "pread", "close"}


def test_a_journal_that_lost_its_last_files_refuses_the_shard() -> None:
    paths = list(SCRIPT.images)
    for lost in range(1, len(paths)):
        disk = SCRIPT.disk()
        for path in paths[lost:]:
            disk.discard(path)
        assert_refused(disk, paths[lost - 1], SCRIPT.used_end(paths[lost - 1]) + HEAD_BYTES)


def test_a_journal_that_lost_the_file_of_its_latest_open_refuses_the_shard() -> None:
    disk = SCRIPT.disk()
    journal = open_journal(disk, seed=2)
    journal.append(APPENDED, 1)
    disk = disk.crash()
    last, newest = segment_paths(disk)[-2:]
    disk.discard(newest)
    assert_refused(disk, last, SCRIPT.used_end(last) + HEAD_BYTES)
