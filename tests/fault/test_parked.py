"""The store under real faults: killed, cut short, out of room, changed on disk, read from outside.

Whatever might kill the process that meets it runs in a child, so that a death is a failed test.
"""

import os
import subprocess
import sys
from pathlib import Path

import lmdb
import pytest

from kit.parking import SALT, Content, check_content, diff, open_parked, pending, problems
from parkade.store import environment as environment_module
from parkade.store.entry import pack_entry
from parkade.store.errors import Damage, ReadFailed
from parkade.store.parked import Parked, ParkedReader
from parkade.store.rows import RowDamaged

NOW = 5 << 26
DATA = "data.mdb"

CHILD = """
import os, signal, sys
from kit.parking import SALT, Content, check_content, diff, open_parked, pending, problems
from parkade.store.errors import NoRoom, StoreError, WriteFailed
from parkade.store.parked import ParkedReader
NOW = 5 << 26
directory = sys.argv[1]

def grown(old, count=50, size=2000):
    now = old.copy()
    now.lsn += 1
    first = 1000 * now.lsn
    now.cars |= {first + n: pending(NOW + n, body=b"P" + b"x" * size) for n in range(count)}
    return now
"""


def start(directory: Path, code: str) -> "subprocess.Popen[str]":
    return subprocess.Popen(
        [sys.executable, "-c", CHILD + code, str(directory)],
        env={**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)},
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    )


def run(directory: Path, code: str) -> tuple[int, list[str]]:
    child = start(directory, code)
    out, _ = child.communicate(timeout=60)
    return child.returncode, out.splitlines()


def filled(directory: Path, count: int = 300) -> Content:
    now = Content(lsn=1, now_ms=NOW, settled_ms=NOW)
    now.cars |= {serial: pending(NOW + serial, body=b"P%099d" % serial) for serial in range(count)}
    parked = open_parked(directory)
    parked.commit(diff(Content(), now))
    parked.close()
    return now


@pytest.mark.parametrize("point", ["begin", "tickets", "agenda", "before_commit"])
def test_a_process_killed_in_a_commit_leaves_the_one_before(tmp_path: Path, point: str) -> None:
    code = f"""
def hook(point):
    if point == {point!r} and parked.lsn == 3:
        os.kill(os.getpid(), signal.SIGKILL)

parked = open_parked(directory, commit_hook=hook, sync=True)
old = Content()
while True:
    now = grown(old)
    parked.commit(diff(old, now))
    old = now
"""
    returncode, _ = run(tmp_path, code)
    assert returncode == -9
    parked = open_parked(tmp_path, is_new=False)
    assert parked.lsn == 3
    assert len(parked.counters) == 1
    assert parked.counters["mail", 0] == 150
    assert problems(parked) == []


def test_a_file_that_lost_its_end_is_damage_and_kills_nobody(tmp_path: Path) -> None:
    filled(tmp_path)
    whole = (tmp_path / DATA).read_bytes()
    code = """
from pathlib import Path
from shutil import rmtree
whole = Path(directory, "data.mdb").read_bytes()
copy = Path(directory, "copy")
for pages in range(len(whole) // 4096):
    for reader in ("owner", "reader"):
        rmtree(copy, ignore_errors=True)
        copy.mkdir()
        (copy / "data.mdb").write_bytes(whole[: pages * 4096 + 100 * (pages % 2)])
        try:
            if reader == "owner":
                parked = open_parked(copy, is_new=False)
            else:
                parked = ParkedReader.open_readonly(str(copy), salt=SALT, shard=0)
            found = len(problems(parked))
            parked.close()
            print(pages, reader, found)
        except StoreError as error:
            print(pages, reader, type(error).__name__)
"""
    returncode, lines = run(tmp_path, code)
    assert returncode == 0, lines[-1:]
    assert len(lines) == 2 * (len(whole) // 4096)
    # The walk compares every ticket with the counters, so a cut that it does not notice has taken
    # nothing but a page that was free.
    unnoticed = [line.split()[0] for line in lines if line.endswith(" 0")]
    assert len(unnoticed) <= 2
    assert all(int(pages) >= len(whole) // 4096 - 2 for pages in unnoticed)
    assert (tmp_path / DATA).read_bytes() == whole


def test_pages_that_were_taken_and_freed_at_once_are_no_lost_end(tmp_path: Path) -> None:
    """LMDB never writes them, so a file may be shorter than its pages until it is filled up."""
    now = filled(tmp_path)
    with lmdb.open(str(tmp_path), max_dbs=32, map_size=1 << 26) as opened:
        bodies = opened.open_db(b"bodies")
        with opened.begin(write=True) as transaction:
            transaction.put(b"large", bytes(1_000_000), db=bodies)
            transaction.delete(b"large", db=bodies)
        need = environment_module.used_bytes(opened)
    assert (tmp_path / DATA).stat().st_size < need
    with pytest.raises(Damage, match="too short"):
        ParkedReader.open_readonly(str(tmp_path), salt=SALT, shard=0)
    parked = open_parked(tmp_path, is_new=False)
    assert (tmp_path / DATA).stat().st_size == need
    with parked.snapshot() as snapshot:
        check_content(snapshot, now)
    parked.close()
    ParkedReader.open_readonly(str(tmp_path), salt=SALT, shard=0).close()


def test_a_commit_leaves_no_file_that_is_shorter_than_its_pages(tmp_path: Path) -> None:
    parked = open_parked(tmp_path)
    old = Content(now_ms=NOW)
    for lsn in range(1, 40):
        now = old.copy()
        now.lsn = lsn
        if lsn % 3:
            now.cars |= {lsn * 100 + n: pending(NOW + n) for n in range(lsn * 7 % 90)}
        else:
            now.cars.clear()
        parked.commit(diff(old, now))
        assert (tmp_path / DATA).stat().st_size >= parked.stat().used_bytes
        old = now


def swap(directory: Path, old: bytes, new: bytes) -> None:
    """Changes bytes of the file where they stand, as a disk might."""
    path = directory / DATA
    content = path.read_bytes()
    assert old in content
    path.write_bytes(content.replace(old, new))


def test_a_byte_changed_on_disk_in_a_ticket_costs_that_ticket(tmp_path: Path) -> None:
    filled(tmp_path)
    swap(tmp_path, b"P%099d" % 77, b"P%099d" % 78)
    parked = open_parked(tmp_path, is_new=False)
    with parked.snapshot() as snapshot:
        with pytest.raises(RowDamaged) as caught:
            snapshot.body(77)
        rows = snapshot.bodies(range(300))
    assert caught.value.serial == 77
    assert (len(rows.found), rows.damaged) == (299, [77])
    assert [(found.table, found.serial) for found in problems(parked)] == [("bodies", 77)]


def test_a_byte_changed_on_disk_in_the_agenda_refuses_its_sweeps(tmp_path: Path) -> None:
    filled(tmp_path)
    swap(tmp_path, pack_entry(NOW + 77, 77, NOW + 77, 1), pack_entry(NOW + 78, 77, NOW + 77, 1))
    parked = open_parked(tmp_path, is_new=False)
    with parked.snapshot() as snapshot, pytest.raises(Damage, match="agenda"):
        snapshot.sweep((0, 0), NOW + 1_000, 1_000)
    assert ("agenda", None) in [(found.table, found.serial) for found in problems(parked)]


@pytest.mark.parametrize("junk", [b"", b"junk", b"junk" * 5_000, bytes(100_000)])
def test_a_file_that_is_no_store_is_damage(tmp_path: Path, junk: bytes) -> None:
    (tmp_path / DATA).write_bytes(junk)
    with pytest.raises(Damage):
        open_parked(tmp_path, is_new=False)
    assert (tmp_path / DATA).read_bytes() == junk


def test_a_file_that_may_not_grow_fails_the_commit_and_nothing_else(tmp_path: Path) -> None:
    """The system refuses a write in the middle of LMDB's commit, as a full disk would."""
    code = """
import resource
signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
parked = open_parked(directory, sync=True)
old = Content()
for _ in range(5):
    now = grown(old)
    parked.commit(diff(old, now))
    old = now
hard = resource.getrlimit(resource.RLIMIT_FSIZE)[1]
size = os.stat(directory + "/data.mdb").st_size
resource.setrlimit(resource.RLIMIT_FSIZE, (size + 8192, hard))
now = grown(old)
for _ in range(3):
    try:
        parked.commit(diff(old, now))
        print("committed")
    except (WriteFailed, NoRoom) as error:
        print("failed at", parked.lsn)
    with parked.snapshot() as snapshot:
        check_content(snapshot, old)
print(problems(parked))
resource.setrlimit(resource.RLIMIT_FSIZE, (hard, hard))
parked.reopen()
parked.commit(diff(old, now))
with parked.snapshot() as snapshot:
    check_content(snapshot, now)
print(problems(parked), parked.lsn)
"""
    returncode, lines = run(tmp_path, code)
    assert returncode == 0
    assert lines == ["failed at 5"] * 3 + ["[]", "[] 6"]


def test_another_process_reads_while_the_owner_commits_and_grows(tmp_path: Path) -> None:
    parked = open_parked(tmp_path, map_bytes=1 << 20)
    old = Content(now_ms=NOW)
    child = start(
        tmp_path,
        """
reader = ParkedReader.open_readonly(directory, salt=SALT, shard=0)
for line in sys.stdin:
    with reader.snapshot() as snapshot:
        counted = sum(snapshot.counters().values())
        print(snapshot.lsn, counted, len(snapshot.heads(range(100000)).found), flush=True)
""",
    )
    assert child.stdin is not None
    assert child.stdout is not None
    try:
        has_grown = 0
        for lsn in range(1, 12):
            now = old.copy()
            now.lsn = lsn
            body = b"P" + b"x" * 3_000
            now.cars |= {lsn * 100 + n: pending(NOW, body=body) for n in range(100)}
            has_grown += parked.commit(diff(old, now)).has_grown
            old = now
            child.stdin.write("look\n")
            child.stdin.flush()
            assert child.stdout.readline().split() == [str(lsn), str(lsn * 100), str(lsn * 100)]
        assert has_grown >= 2
        assert parked.stat().readers == 0
    finally:
        child.stdin.close()
        child.stdout.close()
        child.wait(timeout=30)


def test_reading_from_outside_writes_nothing_and_needs_no_lock_when_nobody_is_there(
    tmp_path: Path,
) -> None:
    now = filled(tmp_path)
    (tmp_path / "lock.mdb").unlink()
    before = (tmp_path / DATA).read_bytes()
    reader = ParkedReader.open_readonly(str(tmp_path), salt=SALT, shard=0, is_live=False)
    with reader.snapshot() as snapshot:
        check_content(snapshot, now)
    assert problems(reader) == []
    reader.close()
    assert [path.name for path in tmp_path.iterdir()] == [DATA]
    assert (tmp_path / DATA).read_bytes() == before
    with pytest.raises(Damage, match="missing"):
        ParkedReader.open_readonly(str(tmp_path / "nowhere"), salt=SALT, shard=0)
    with pytest.raises(Damage, match="salt"):
        ParkedReader.open_readonly(str(tmp_path), salt=b"other", shard=0, is_live=False)


def test_readers_that_were_killed_do_not_keep_their_slots(tmp_path: Path) -> None:
    filled(tmp_path)
    parked = open_parked(tmp_path, is_new=False)
    code = """
import lmdb
environment = lmdb.open(directory, readonly=True, max_readers=126, max_dbs=32)
held = []
try:
    while True:
        held.append(environment.begin())
except lmdb.ReadersFullError:
    os.kill(os.getpid(), signal.SIGKILL)
"""
    assert run(tmp_path, code)[0] == -9
    with parked.snapshot() as snapshot:
        assert snapshot.lsn == 1


def test_a_store_cannot_be_opened_twice_in_one_process(tmp_path: Path) -> None:
    filled(tmp_path)
    parked = open_parked(tmp_path, is_new=False)
    with pytest.raises(ReadFailed, match="already open"):
        Parked.open(str(tmp_path), salt=SALT, shard=0, is_new=False)
    with parked.snapshot() as snapshot:
        assert snapshot.lsn == 1
