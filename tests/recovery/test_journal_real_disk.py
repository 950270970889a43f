"""The same cuts on the disk of this machine: at every frame's edge and every sector's, give or
take a byte. What the fake disk allows, a real file system must allow too."""

from collections.abc import Iterator
from pathlib import Path

import pytest

from kit.journals import Script, append_all, body, open_journal, replayed, segment_paths
from parkade.store.disk import RealDisk
from parkade.store.errors import Damage
from parkade.store.frame import frame_bytes
from parkade.store.segment import HEADER_BYTES, SegmentName

BODIES = [body(number) for number in range(1, 61)]
APPENDED = b"appended"
SECTOR_BYTES = 512


@pytest.fixture(scope="module")
def written(tmp_path_factory: pytest.TempPathFactory) -> list[tuple[str, bytes]]:
    """The segments of a journal of sixty records, names and bytes, as this disk holds them."""
    directory = str(tmp_path_factory.mktemp("written"))
    journal = open_journal(RealDisk(), directory=directory, is_new=True)
    append_all(journal, BODIES)
    journal.close(clean=False)
    paths = segment_paths(RealDisk(), directory)
    return [(Path(path).name, Path(path).read_bytes()) for path in paths]


@pytest.fixture(scope="module")
def older(tmp_path_factory: pytest.TempPathFactory) -> list[bytes]:
    """The same files in an older life, under other salts."""
    directory = str(tmp_path_factory.mktemp("older"))
    journal = open_journal(RealDisk(), directory=directory, is_new=True, seed=1)
    append_all(journal, [body(number) for number in range(31, 91)])
    journal.close(clean=False)
    return [Path(path).read_bytes() for path in segment_paths(RealDisk(), directory)]


def edges(size: int, first: int, step: int) -> list[int]:
    """Every frame's edge and every sector's in a file, a byte before and a byte behind."""
    lines = {*range(first, size + 1, step), *range(0, size + 1, SECTOR_BYTES), first}
    near = {line + more for line in lines for more in (-1, 0, 1)}
    return sorted(at for at in near if 0 <= at <= size)


def cut_files(
    written: list[tuple[str, bytes]], older: list[bytes], number: int, at: int, behind: str
) -> Iterator[tuple[str, bytes]]:
    yield from written[:number]
    name, content = written[number]
    rest = {"short": b"", "zeros": bytes(len(content) - at), "older": older[number][at:]}[behind]
    yield name, content[:at] + rest


def bodies_left(written: list[tuple[str, bytes]], files: dict[str, bytes]) -> list[bytes]:
    """What stands in the frames that are as they were written, all headers before them too."""
    left: list[bytes] = []
    for name, content in written:
        found = files.get(name, b"")
        if found[:HEADER_BYTES] != content[:HEADER_BYTES]:
            return left
        for start in range(HEADER_BYTES, HEADER_BYTES + 20 * 56, 56):
            if found[start : start + 56] != content[start : start + 56]:
                return left
            left.append(BODIES[len(left)])
    return left


@pytest.mark.parametrize("behind", ["short", "zeros", "older"])
def test_a_cut_at_any_edge_of_a_real_file_keeps_what_was_whole(
    tmp_path: Path, written: list[tuple[str, bytes]], older: list[bytes], behind: str
) -> None:
    disk = RealDisk()
    for number in range(len(written)):
        end = HEADER_BYTES + 20 * 56
        for at in edges(end, HEADER_BYTES, 56):
            directory = tmp_path / f"{number}-{at}"
            files = dict(cut_files(written, older, number, at, behind))
            lay(directory, files)
            left = bodies_left(written, files)
            name, content = written[number]
            if files[name][:HEADER_BYTES] != content[:HEADER_BYTES]:
                with pytest.raises(Damage, match="its header is gone"):
                    open_journal(disk, directory=str(directory), seed=2)
                continue
            journal = open_journal(disk, directory=str(directory), seed=2)
            assert replayed(journal) == left, (number, at)
            assert journal.append(APPENDED, 1) == len(left) + 1
            journal.close(clean=False)
            cut_again(disk, directory, left, at)


def lay(directory: Path, files: dict[str, bytes]) -> None:
    directory.mkdir()
    for name, content in files.items():
        (directory / name).write_bytes(content)


def cut_again(disk: RealDisk, directory: Path, left: list[bytes], chance: int) -> None:
    """Cuts the appended frame at one of its edges, another each time, and opens once more."""
    newest = Path(segment_paths(disk, str(directory))[-1])
    end = HEADER_BYTES + frame_bytes(len(APPENDED))
    choices = [HEADER_BYTES, HEADER_BYTES + 1, end - 1, end]
    at = choices[chance % len(choices)]
    newest.write_bytes(newest.read_bytes()[:at])
    journal = open_journal(disk, directory=str(directory), seed=3)
    assert replayed(journal) == ([*left, APPENDED] if at == end else left)
    journal.close(clean=True)


def test_a_flipped_bit_in_a_real_file_refuses_the_shard_and_changes_nothing(
    tmp_path: Path, written: list[tuple[str, bytes]]
) -> None:
    for number, (name, content) in enumerate(written):
        for start in range(HEADER_BYTES, HEADER_BYTES + (20 - (number == 2)) * 56, 56):
            directory = tmp_path / f"{number}-{start}"
            offset = start + (start * 7) % 56
            flipped = bytes([content[offset] ^ 4])
            files = dict(written) | {name: content[:offset] + flipped + content[offset + 1 :]}
            lay(directory, files)
            with pytest.raises(Damage) as caught:
                open_journal(RealDisk(), directory=str(directory), seed=2)
            assert (caught.value.path, caught.value.offset) == (f"{directory}/{name}", start)
            assert {p.name: p.read_bytes() for p in directory.iterdir()} == files


def test_a_real_and_a_fake_disk_hold_the_same_bytes_of_the_same_journal(
    written: list[tuple[str, bytes]], script: Script
) -> None:
    assert [content for _, content in written] == list(script.images.values())
    assert [SegmentName.parse(name) for name, _ in written] == [
        SegmentName.parse(path.rpartition("/")[2]) for path in script.images
    ]


@pytest.fixture(scope="module")
def script() -> Script:
    from kit.journals import write_script

    return write_script(BODIES)
