"""The lock: one owner, named, gone with its process, never kept by a fork."""

import os
from collections.abc import Callable
from pathlib import Path

import pytest

from kit.between import met_at_every_step
from kit.disk import FakeDisk
from parkade.store.disk import Disk, RealDisk
from parkade.store.errors import LockedByOther, UsedAfterFork, WriteFailed
from parkade.store.lock import Child, DirectoryLock, Owner, read_owner


def owner(**changes: object) -> Owner:
    facts: dict[str, object] = {
        "pid": os.getpid(),
        "host": "web-1",
        "started_at_ms": 1_790_000_000_000,
        "title": "uvicorn app:app",
        "boot": "b1",
    }
    return Owner(**(facts | changes))  # type: ignore[arg-type]


@pytest.fixture(params=["real", "fake"])
def place(request: pytest.FixtureRequest, tmp_path: Path) -> tuple[Disk, str]:
    if request.param == "real":
        return RealDisk(), str(tmp_path)
    disk = FakeDisk()
    disk.make_directories("/d")
    return disk, "/d"


def test_a_second_opener_in_the_same_process_is_refused_with_the_owners_facts(
    place: tuple[Disk, str],
) -> None:
    disk, root = place
    lock = DirectoryLock.try_acquire(disk, root, owner())
    with pytest.raises(LockedByOther) as caught:
        DirectoryLock.try_acquire(disk, root, owner(title="another"))
    assert caught.value.owner == owner().facts()
    assert caught.value.directory == root
    lock.release()
    lock.release()
    assert not lock.is_held
    DirectoryLock.try_acquire(disk, root, owner(title="another")).release()


def test_the_file_stays_and_names_the_last_owner(place: tuple[Disk, str]) -> None:
    disk, root = place
    assert read_owner(disk, root) is None
    lock = DirectoryLock.try_acquire(disk, root, owner())
    assert lock.previous is None
    lock.release()
    assert read_owner(disk, root) == owner()
    again = DirectoryLock.try_acquire(disk, root, owner(title="next"))
    assert again.previous == owner()
    again.release()


def test_children_are_kept_up_to_date_and_handed_to_the_next_owner(
    place: tuple[Disk, str],
) -> None:
    disk, root = place
    lock = DirectoryLock.try_acquire(disk, root, owner())
    many = tuple(Child(1_000 + n, f"started {n}") for n in range(300))
    lock.set_children(many)
    found = read_owner(disk, root)
    assert found is not None and found.children == many
    lock.set_children((Child(7, "x"),))
    lock.release()
    again = DirectoryLock.try_acquire(disk, root, owner())
    assert again.previous is not None and again.previous.children == (Child(7, "x"),)
    again.release()


def test_children_that_did_not_change_cost_no_write() -> None:
    disk = FakeDisk()
    disk.make_directories("/d")
    lock = DirectoryLock.try_acquire(disk, "/d", owner())
    lock.set_children((Child(7, "x"),))
    before = disk.number
    lock.set_children((Child(7, "x"),))
    assert disk.number == before


@pytest.mark.parametrize("content", [b"", b"\0" * 50, b"[1]", b'{"pid": 1}', b"\xff\xfe", b'{"p'])
def test_a_lock_file_that_says_nothing_readable_stops_nobody(content: bytes) -> None:
    disk = FakeDisk()
    disk.install("/d/lock", content)
    assert read_owner(disk, "/d") is None
    lock = DirectoryLock.try_acquire(disk, "/d", owner())
    assert lock.previous is None
    assert read_owner(disk, "/d") == owner()


def test_a_lock_is_free_again_when_its_process_is_gone() -> None:
    disk = FakeDisk()
    disk.make_directories("/d")
    DirectoryLock.try_acquire(disk, "/d", owner(pid=41, children=(Child(42, "x"),)))
    lock = DirectoryLock.try_acquire(disk.crash(), "/d", owner())
    assert lock.previous is not None
    assert (lock.previous.pid, lock.previous.children) == (41, (Child(42, "x"),))


def test_a_failing_disk_leaves_the_lock_free() -> None:
    disk = FakeDisk()
    disk.make_directories("/d")
    disk.fail(lambda call: call.name == "pwrite")
    with pytest.raises(WriteFailed):
        DirectoryLock.try_acquire(disk, "/d", owner())
    assert disk.open_handles() == []
    DirectoryLock.try_acquire(disk, "/d", owner())


def run_in_fork(answer: str) -> int:
    """Marks where a forked child ends: it must never return into the test runner."""
    os._exit(0 if answer == "ok" else 1)


def test_a_fork_closes_its_copy_and_may_not_use_the_lock(tmp_path: Path) -> None:
    disk = RealDisk()
    lock = DirectoryLock.try_acquire(disk, str(tmp_path), owner())
    lock.check_pid()
    pid = os.fork()
    if pid == 0:
        try:
            lock.check_pid()
        except UsedAfterFork as error:
            is_right = (error.opened_pid, error.used_pid) == (os.getppid(), os.getpid())
            run_in_fork("ok" if is_right and not lock.is_held else "wrong")
        run_in_fork("used the lock of its parent")
    assert os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) == 0
    assert lock.is_held
    with pytest.raises(LockedByOther):
        DirectoryLock.try_acquire(disk, str(tmp_path), owner())
    lock.release()


def test_a_fork_that_outlives_its_parents_lock_does_not_keep_it(tmp_path: Path) -> None:
    disk = RealDisk()
    lock = DirectoryLock.try_acquire(disk, str(tmp_path), owner())
    is_up, say_up = os.pipe()
    may_end, say_end = os.pipe()
    pid = os.fork()
    if pid == 0:
        os.write(say_up, b"u")
        os.read(may_end, 1)
        os._exit(0)
    os.read(is_up, 1)
    lock.release()
    # The child is alive and holds no copy: the lock is free.
    DirectoryLock.try_acquire(disk, str(tmp_path), owner()).release()
    os.write(say_end, b"e")
    assert os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) == 0
    for end in (is_up, say_up, may_end, say_end):
        os.close(end)


@pytest.mark.parametrize("call", ["check_in_place", "set_children"])
def test_a_lock_that_is_given_back_while_it_is_used_says_so_or_nothing(
    tmp_path: Path, call: str
) -> None:
    def prepare() -> tuple[Callable[[], str], Callable[[], object]]:
        lock = DirectoryLock.try_acquire(RealDisk(), str(tmp_path), owner())

        def use() -> str:
            try:
                if call == "check_in_place":
                    lock.check_in_place()
                else:
                    lock.set_children((Child(1),))
            except (OSError, WriteFailed):
                return "refused"
            finally:
                lock.release()
            return "done"

        return use, lock.release

    assert "done" in met_at_every_step(prepare)
