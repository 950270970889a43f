"""The real disk, and the fake one held against it."""

import errno
import os
from collections.abc import Callable, Sequence
from pathlib import Path

import pytest

from kit.disk import FakeDisk, PowerLost
from parkade.store.disk import Disk, RealDisk, parent_of


@pytest.fixture(params=["real", "fake"])
def place(request: pytest.FixtureRequest, tmp_path: Path) -> tuple[Disk, str]:
    """A disk and a directory on it: every test of these runs on both."""
    if request.param == "real":
        return RealDisk(), str(tmp_path)
    disk = FakeDisk()
    disk.make_directories("/somewhere")
    return disk, "/somewhere"


def test_bytes_are_read_where_they_were_written(place: tuple[Disk, str]) -> None:
    disk, root = place
    handle = disk.open(f"{root}/a", create=True)
    disk.pwrite(handle, (b"ab", b"", b"cd"), 2)
    disk.pwrite_durable(handle, (b"EF",), 6)
    disk.fdatasync(handle)
    assert disk.size(handle) == 8
    assert disk.pread(handle, 100, 0) == b"\0\0abcdEF"
    assert disk.pread(handle, 2, 3) == b"bc"
    assert disk.pread(handle, 2, 50) == b""
    disk.close(handle)
    assert disk.read_file(f"{root}/a") == b"\0\0abcdEF"


def test_a_file_is_truncated_grown_and_allocated_with_zeros(place: tuple[Disk, str]) -> None:
    disk, root = place
    handle = disk.open(f"{root}/a", create=True)
    disk.pwrite(handle, (b"abcdef",), 0)
    disk.ftruncate(handle, 2)
    disk.ftruncate(handle, 4)
    assert disk.read_file(f"{root}/a") == b"ab\0\0"
    other = disk.open(f"{root}/b", create=True)
    disk.preallocate(other, (1 << 20) + 5)
    assert disk.read_file(f"{root}/b") == bytes((1 << 20) + 5)


def test_names_come_and_go(place: tuple[Disk, str]) -> None:
    disk, root = place
    disk.make_directories(f"{root}/x/y")
    disk.make_directories(f"{root}/x/y")
    disk.close(disk.open(f"{root}/x/b", create=True))
    disk.close(disk.open(f"{root}/x/a", create=True))
    assert disk.listdir(f"{root}/x") == ["a", "b", "y"]
    disk.rename(f"{root}/x/a", f"{root}/x/b")
    disk.fsync_directory(f"{root}/x")
    assert disk.listdir(f"{root}/x") == ["b", "y"]
    assert disk.exists(f"{root}/x/b") and not disk.exists(f"{root}/x/a")
    assert not disk.stat(f"{root}/x/b").is_directory and disk.stat(f"{root}/x").is_directory
    disk.unlink(f"{root}/x/b")
    disk.remove_tree(f"{root}/x")
    disk.remove_tree(f"{root}/x")
    assert not disk.exists(f"{root}/x")


def test_what_is_not_there_says_so(place: tuple[Disk, str]) -> None:
    disk, root = place
    for call in (disk.open, disk.stat, disk.unlink, disk.listdir, disk.read_file):
        with pytest.raises(FileNotFoundError):
            call(f"{root}/nothing")
    with pytest.raises(FileNotFoundError):
        disk.rename(f"{root}/nothing", f"{root}/else")
    with pytest.raises(FileExistsError):
        disk.mkdir(root)


def test_a_file_opened_for_reading_takes_no_write(place: tuple[Disk, str]) -> None:
    disk, root = place
    disk.replace_file(f"{root}/a", b"abc")
    handle = disk.open(f"{root}/a", read_only=True)
    with pytest.raises(OSError) as caught:
        disk.pwrite(handle, (b"x",), 0)
    assert caught.value.errno == errno.EBADF


def test_a_lock_is_taken_once_even_in_one_process(place: tuple[Disk, str]) -> None:
    disk, root = place
    first = disk.open(f"{root}/lock", create=True)
    second = disk.open(f"{root}/lock")
    assert disk.flock(first) and disk.flock(first)
    assert not disk.flock(second)
    disk.close(first)
    assert disk.flock(second)


def test_a_file_is_replaced_whole_and_free_space_is_known(place: tuple[Disk, str]) -> None:
    disk, root = place
    disk.replace_file(f"{root}/a", b"a longer content")
    disk.replace_file(f"{root}/a", b"short")
    assert disk.read_file(f"{root}/a") == b"short"
    assert disk.listdir(root) == ["a"]
    assert disk.free_space(root) > 0


@pytest.mark.parametrize(
    ("path", "parent"),
    [("/a/b", "/a"), ("/a", "/"), ("/", "/"), ("a", "."), ("a/b/", "a"), (".", ".")],
)
def test_the_parent_of_a_path_is_its_directory(path: str, parent: str) -> None:
    assert parent_of(path) == parent


def test_a_pipe_in_the_place_of_a_file_keeps_nobody_waiting(tmp_path: Path) -> None:
    path = str(tmp_path / "pipe")
    os.mkfifo(path)
    with pytest.raises(OSError):
        RealDisk().read_file(path)


def test_of_a_link_the_link_is_removed_and_not_what_it_leads_to(tmp_path: Path) -> None:
    (tmp_path / "far").mkdir()
    (tmp_path / "near").symlink_to(tmp_path / "far")
    RealDisk().remove_tree(str(tmp_path / "near"))
    assert [each.name for each in tmp_path.iterdir()] == ["far"]


def test_a_short_write_is_finished(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    disk = RealDisk()
    handle = disk.open(str(tmp_path / "a"), create=True)
    real = os.pwritev

    def short(fd: int, buffers: Sequence[bytes], offset: int, flags: int = 0) -> int:
        return real(fd, [b"".join(buffers)[:3]], offset, 0)

    monkeypatch.setattr(os, "pwritev", short)
    disk.pwrite_durable(handle, (b"hello ", b"world"), 1)
    assert disk.read_file(str(tmp_path / "a")) == b"\0hello world"
    disk.close(handle)


@pytest.mark.skipif(not hasattr(os, "RWF_DSYNC"), reason="this system has no RWF_DSYNC")
def test_a_durable_write_is_one_system_call_where_the_system_has_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    disk = RealDisk()
    handle = disk.open(str(tmp_path / "a"), create=True)
    calls: list[tuple[str, int]] = []
    real = os.pwritev

    def counted(fd: int, buffers: Sequence[bytes], offset: int, flags: int = 0) -> int:
        calls.append(("pwritev", flags))
        return real(fd, buffers, offset, flags)

    monkeypatch.setattr(os, "pwritev", counted)
    monkeypatch.setattr(os, "fdatasync", lambda fd: calls.append(("fdatasync", fd)))
    disk.pwrite_durable(handle, (b"a", b"b"), 0)
    assert calls == [("pwritev", os.RWF_DSYNC)]
    disk.close(handle)


@pytest.mark.skipif(not hasattr(os, "RWF_DSYNC"), reason="this system has no RWF_DSYNC")
@pytest.mark.parametrize("code", [errno.EOPNOTSUPP, errno.ENOSYS, errno.EINVAL])
def test_a_system_that_refuses_the_flag_gets_a_write_and_a_sync(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, code: int
) -> None:
    disk = RealDisk()
    handle = disk.open(str(tmp_path / "a"), create=True)
    calls: list[str] = []
    real = os.pwritev

    def refusing(fd: int, buffers: Sequence[bytes], offset: int, flags: int = 0) -> int:
        calls.append("flagged" if flags else "plain")
        if flags:
            raise OSError(code, "no such flag")
        return real(fd, buffers, offset)

    monkeypatch.setattr(os, "pwritev", refusing)
    monkeypatch.setattr(os, "fdatasync", lambda fd: calls.append("sync"))
    disk.pwrite_durable(handle, (b"a",), 0)
    disk.pwrite_durable(handle, (b"b",), 1)
    assert calls == ["flagged", "plain", "sync", "plain", "sync"]
    assert disk.read_file(str(tmp_path / "a")) == b"ab"
    disk.close(handle)


# The fake disk alone


def fake(content: bytes = b"") -> tuple[FakeDisk, int]:
    disk = FakeDisk()
    disk.install("/d/a", content)
    return disk, disk.open("/d/a")


def test_bytes_that_were_not_synced_are_lost_with_the_power() -> None:
    disk, handle = fake(b"old bytes")
    disk.pwrite(handle, (b"new",), 0)
    assert disk.image()["/d/a"] == b"new bytes"
    assert disk.crash().image()["/d/a"] == b"new bytes"
    assert disk.power_cut("landed").image()["/d/a"] == b"new bytes"
    assert disk.power_cut("lost").image()["/d/a"] == b"old bytes"


def test_bytes_that_were_synced_survive_by_either_way_of_syncing() -> None:
    disk, handle = fake()
    disk.pwrite(handle, (b"ab",), 0)
    disk.fdatasync(handle)
    disk.pwrite_durable(handle, (b"cd",), 2)
    assert disk.power_cut().image()["/d/a"] == b"abcd"


def test_a_durable_write_does_not_sync_other_sectors() -> None:
    disk, handle = fake(bytes(2048))
    disk.pwrite(handle, (b"early",), 0)
    disk.pwrite_durable(handle, (b"late",), 1024)
    image = disk.power_cut("lost").image()["/d/a"]
    assert image[:5] == bytes(5) and image[1024:1028] == b"late"


def test_names_that_were_not_synced_are_lost_with_the_power() -> None:
    disk = FakeDisk()
    disk.install("/d/kept", b"k")
    disk.install("/d/gone", b"g")
    disk.close(disk.open("/d/made", create=True))
    disk.unlink("/d/gone")
    disk.rename("/d/kept", "/d/renamed")
    assert disk.paths() == ["/d/made", "/d/renamed"]
    left = disk.copy()
    assert disk.power_cut("lost").paths() == ["/d/gone", "/d/kept"]
    left.fsync_directory("/d")
    assert left.power_cut("lost").paths() == ["/d/made", "/d/renamed"]


def test_a_torn_write_lands_sector_by_sector_as_the_seed_says() -> None:
    disk, handle = fake(bytes(4096))
    disk.pwrite(handle, (b"\xff" * 4096,), 0)
    images = [disk.copy().power_cut("torn", seed).image()["/d/a"] for seed in range(20)]
    again = [disk.copy().power_cut("torn", seed).image()["/d/a"] for seed in range(20)]
    assert images == again
    assert len(set(images)) > 10
    for image in images:
        sectors = {image[start : start + 512] for start in range(0, 4096, 512)}
        assert sectors <= {bytes(512), b"\xff" * 512}


def test_after_a_failed_sync_bytes_read_well_and_are_lost_unless_written_again() -> None:
    disk, handle = fake(b"old")
    disk.pwrite(handle, (b"new",), 0)
    disk.fail(lambda call: call.name == "fdatasync")
    with pytest.raises(OSError):
        disk.fdatasync(handle)
    disk.fdatasync(handle)
    assert disk.read_file("/d/a") == b"new"
    copy = disk.copy()
    assert disk.power_cut("landed").image()["/d/a"] == b"old"
    handle = copy.open("/d/a")
    copy.pwrite(handle, (b"new",), 0)
    copy.fdatasync(handle)
    assert copy.power_cut("lost").image()["/d/a"] == b"new"


@pytest.mark.parametrize(
    ("how", "left"), [("before", b"...."), ("short", b"ab.."), ("after", b"abcd")]
)
def test_a_write_fails_before_after_or_half_way(how: str, left: bytes) -> None:
    disk, handle = fake(b"....")
    disk.fail(disk.number + 1, errno.ENOSPC, how)  # type: ignore[arg-type]
    with pytest.raises(OSError) as caught:
        disk.pwrite_durable(handle, (b"ab", b"cd"), 0)
    assert caught.value.errno == errno.ENOSPC
    assert disk.read_file("/d/a") == left
    assert disk.power_cut("lost").image()["/d/a"] == b"...."


def test_the_power_goes_at_the_call_that_was_named_and_nothing_answers_after() -> None:
    disk, handle = fake(b"old")
    disk.cut_at(disk.number + 1)
    with pytest.raises(PowerLost):
        disk.pwrite_durable(handle, (b"new",), 0)
    with pytest.raises(PowerLost):
        disk.size(handle)
    assert disk.power_cut("lost").image()["/d/a"] == b"old"


def test_calls_are_counted_by_name_and_in_order() -> None:
    disk, handle = fake()
    disk.pwrite(handle, (b"a",), 0)
    disk.fdatasync(handle)
    assert disk.counts == {"open": 1, "pwrite": 1, "fdatasync": 1}
    assert [call.name for call in disk.calls] == ["open", "pwrite", "fdatasync"]
    assert [call.number for call in disk.calls] == [1, 2, 3]


def test_a_full_disk_refuses_to_grow_and_takes_what_needs_no_room() -> None:
    disk = FakeDisk(capacity_bytes=8)
    disk.install("/d/a", b"12345678")
    handle = disk.open("/d/a")
    disk.pwrite(handle, (b"8765",), 0)
    growing: list[Callable[[], None]] = [
        lambda: disk.pwrite(handle, (b"x",), 8),
        lambda: disk.ftruncate(handle, 9),
        lambda: disk.preallocate(disk.open("/d/b", create=True), 1),
    ]
    for call in growing:
        with pytest.raises(OSError) as caught:
            call()
        assert caught.value.errno == errno.ENOSPC
    assert disk.free_space("/d") == 0


def test_an_open_file_outlives_its_name_and_a_lock_ends_with_the_process() -> None:
    disk, handle = fake(b"abc")
    assert disk.flock(handle)
    disk.unlink("/d/a")
    assert disk.pread(handle, 3, 0) == b"abc"
    disk = FakeDisk()
    disk.install("/d/lock", b"")
    assert disk.flock(disk.open("/d/lock"))
    after = disk.crash()
    assert after.flock(after.open("/d/lock"))
