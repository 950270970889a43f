"""A reader: what somebody sees of a directory who does not own it, whoever does."""

import errno
import shutil
import threading
from pathlib import Path

import pytest

from kit.owners import OwnerProcess
from parkade import Engine
from parkade.clock import SystemClock
from parkade.errors import (
    ConfigError,
    EngineClosed,
    FormatTooNew,
    ParkadeError,
    StorageDamaged,
    UnknownTicket,
)
from parkade.exporting import export_tickets
from parkade.reader import Reader, existing_manifest, open_readonly
from parkade.store.disk import RealDisk
from parkade.store.manifest import Manifest
from parkade.verifying import verify_parts

DAY_MS = 86_400_000


class Earlier(SystemClock):
    """The clock of this machine as it was some days ago."""

    def __init__(self, days: float) -> None:
        self._days = days

    def now_ms(self) -> int:
        return super().now_ms() - round(self._days * DAY_MS)


def nothing(number: int) -> int:
    return number


def content(path: Path) -> dict[str, bytes]:
    """Every file below `path`, save the slots of who reads a store."""
    return {
        str(file.relative_to(path)): file.read_bytes()
        for file in path.rglob("*")
        if file.is_file() and file.name != "lock.mdb"
    }


@pytest.fixture(scope="module")
def template(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, list[str], str]:
    """A directory that an engine left: 30 sleepers, and a ticket that died."""
    path = tmp_path_factory.mktemp("template") / "data"
    with OwnerProcess(path) as owner:
        sleepers = owner.submit("note", 30, "3d")
        (dead,) = owner.submit("break", 1, "0s")
        owner.stop()
    return path, sleepers, dead


@pytest.fixture
def left(template: tuple[Path, list[str], str], tmp_path: Path) -> tuple[Path, list[str], str]:
    """A copy of it, to be read and damaged."""
    shutil.copytree(template[0], tmp_path / "data")
    return tmp_path / "data", template[1], template[2]


def test_a_reader_tells_what_a_stopped_engine_left(left: tuple[Path, list[str], str]) -> None:
    path, sleepers, dead = left
    with open_readonly(path) as reader:
        stats = reader.stats()
        assert (stats.scheduled, stats.ready, stats.running, stats.dead) == (30, 0, 0, 1)
        assert [shard.status for shard in stats.shards] == ["open", "open"]
        info = reader.info(sleepers[7])
        assert (info.state, info.task, info.attempts) == ("scheduled", "note", 0)
        assert reader.info(dead).error == "ValueError: number 0"
        (attempt,) = reader.attempts(dead)
        assert (attempt.number, attempt.outcome, attempt.error_type) == (1, "error", "ValueError")
        assert attempt.traceback is not None and "break_down" in attempt.traceback
        assert [found.id for found in reader.dead.find()] == [dead]
        assert reader.dead.count() == 1


def test_a_reader_pages_through_every_ticket_once(left: tuple[Path, list[str], str]) -> None:
    path, sleepers, dead = left
    found: list[str] = []
    with open_readonly(path) as reader:
        cursor: str | None = None
        while True:
            page = reader.find(limit=7, cursor=cursor)
            found += [info.id for info in page]
            cursor = page.next
            if cursor is None:
                break
    assert found == sorted([*sleepers, dead], reverse=True)


def test_a_reader_sees_what_only_the_journal_holds(tmp_path: Path) -> None:
    path = tmp_path / "data"
    with OwnerProcess(path) as owner:
        sleepers = owner.submit("note", 40, "3d")
        (dead,) = owner.submit("break", 1, "0s")
        owner.kill()
    with open_readonly(path) as reader:
        assert all(shard.lsn > 0 for shard in reader.stats().shards)
        assert reader.stats().scheduled == 40
        assert {info.id for info in reader.find()} == {*sleepers, dead}
        assert reader.info(dead).dead_reason == "exhausted"
        assert [one.error for one in reader.attempts(dead)] == ["number 0"]
    with open_readonly(path) as reader:
        exported = [facts["id"] for facts in export_tickets(RealDisk(), reader, [])]
        assert sorted(exported) == sorted([*sleepers, dead])


def test_a_reader_changes_no_byte_of_a_directory(tmp_path: Path) -> None:
    path = tmp_path / "data"
    with OwnerProcess(path) as owner:
        ids = owner.submit("note", 20, "3d")
        owner.kill()
    before = content(path)
    with open_readonly(path) as reader:
        reader.stats()
        reader.attempts(ids[0])
        reader.find(state="scheduled")
    assert content(path) == before


def test_a_directory_without_readers_files_can_be_read_and_gets_none(
    left: tuple[Path, list[str], str],
) -> None:
    path, sleepers, _ = left
    readers_files = list(path.rglob("lock.mdb"))
    assert readers_files
    for file in readers_files:
        file.unlink()
    with open_readonly(path) as reader:
        assert reader.info(sleepers[0]).state == "scheduled"
    assert not list(path.rglob("lock.mdb"))


def test_a_reader_beside_the_owner_sees_what_was_acknowledged_since(tmp_path: Path) -> None:
    path = tmp_path / "data"
    with OwnerProcess(path) as owner:
        owner.submit("note", 10, "3d")
        with open_readonly(path) as reader:
            assert reader.stats().scheduled == 10
            (late,) = owner.submit("note", 1, "1y")
            assert reader.info(late).state == "scheduled"
            owner.submit("note", 5, "0s")
            assert (reader.stats().scheduled, reader.stats().done_total) == (11, 5)


def test_later_pages_go_on_where_the_first_ended_while_tickets_come_in(tmp_path: Path) -> None:
    path = tmp_path / "data"
    with OwnerProcess(path) as owner:
        first = owner.submit("note", 20, "3d")
        with open_readonly(path) as reader:
            page = reader.find(limit=10)
            owner.submit("note", 20, "3d")
            rest = reader.find(limit=10, cursor=page.next)
            assert {info.id for info in [*page, *rest]} == set(first)


def test_who_has_the_engine_open_is_sent_to_it(tmp_path: Path) -> None:
    with (
        Engine(tmp_path / "data", shards=1),
        open_readonly(tmp_path / "data") as reader,
        pytest.raises(ConfigError, match="already open in this process"),
    ):
        reader.find()


def test_a_reader_refuses_to_change_anything(left: tuple[Path, list[str], str]) -> None:
    path, _, dead = left
    with open_readonly(path) as reader, pytest.raises(ConfigError, match="changes nothing"):
        reader.dead.revive(dead)


def test_a_closed_reader_says_so(left: tuple[Path, list[str], str]) -> None:
    reader = open_readonly(left[0])
    reader.close()
    reader.close()
    for ask in (reader.stats, reader.find, lambda: reader.info(left[2])):
        with pytest.raises(EngineClosed):
            ask()


def test_an_id_of_nobody_is_an_unknown_ticket(left: tuple[Path, list[str], str]) -> None:
    path, sleepers, _ = left
    with open_readonly(path) as reader:
        for ticket_id in ("", "x", sleepers[0][:-1], sleepers[0].upper(), "0" * 24):
            with pytest.raises(UnknownTicket):
                reader.info(ticket_id)


def test_what_is_no_parkade_directory_is_refused_by_name(tmp_path: Path) -> None:
    empty, foreign, file = tmp_path / "empty", tmp_path / "foreign", tmp_path / "file"
    empty.mkdir()
    foreign.mkdir()
    (foreign / "letter.txt").write_text("dear")
    file.write_text("x")
    for path in (empty, foreign, file, tmp_path / "missing"):
        with pytest.raises(ConfigError) as caught:
            open_readonly(path)
        assert caught.value.code == "PK-111"
        assert str(path) in str(caught.value)
    assert list(empty.iterdir()) == []


def test_a_damaged_manifest_is_damage_and_a_newer_one_is_not(
    left: tuple[Path, list[str], str],
) -> None:
    manifest = left[0] / "manifest.json"
    sound = manifest.read_bytes()
    manifest.write_bytes(sound.replace(b'"shards": 2', b'"shards": 3'))
    with pytest.raises(StorageDamaged):
        open_readonly(left[0])
    decoded = Manifest.decode(sound, "")
    newer = Manifest(99, decoded.salt, 2, "crc32", "9.9", 0)
    manifest.write_bytes(newer.encode())
    with pytest.raises(FormatTooNew):
        open_readonly(left[0])


def test_a_damaged_shard_does_not_hide_the_others(left: tuple[Path, list[str], str]) -> None:
    path, sleepers, _ = left
    with open_readonly(path) as reader:
        shard_of = {ticket_id: reader.info(ticket_id).shard for ticket_id in sleepers}
    (segment, *_) = sorted((path / "shard-001" / "journal").glob("*.segment"))
    segment.unlink()
    with open_readonly(path) as reader:
        stats = reader.stats()
        assert [shard.status for shard in stats.shards] == ["open", "refused"]
        assert stats.shards[1].reason is not None and "Shard 01" in stats.shards[1].reason
        for ticket_id, shard in shard_of.items():
            if shard == 0:
                assert reader.info(ticket_id).state == "scheduled"
            else:
                with pytest.raises(StorageDamaged):
                    reader.info(ticket_id)


def test_what_is_due_is_told_from_what_sleeps(tmp_path: Path) -> None:
    path = tmp_path / "data"
    engine = Engine(path, shards=2, run=False)
    task = engine.task(name="note")(nothing)
    with engine:
        engine.submit_many([task.options(delay="3d").call(n) for n in range(20)])
        engine.submit_many([task.call(n) for n in range(15)])
    with open_readonly(path) as reader:
        stats = reader.stats()
        assert (stats.ready, stats.scheduled) == (15, 20)
        assert len(reader.find(state="ready").items) == 15


@pytest.mark.parametrize("days", [0.5, 30, 800])
def test_what_became_due_while_nobody_ran_is_ready(tmp_path: Path, days: float) -> None:
    path = tmp_path / "data"
    engine = Engine(path, shards=1, run=False, clock=Earlier(days))
    task = engine.task(name="note")(nothing)
    with engine:
        for delay in ("1h", "6h", "1100d"):
            engine.submit_many([task.options(delay=delay).call(n) for n in range(50)])
    with open_readonly(path) as reader:
        stats = reader.stats()
        assert (stats.ready, stats.scheduled) == (100, 50)
        age_days = stats.oldest_ready_age.total_seconds() / 86_400
        assert days - 0.1 < age_days <= days


def test_many_threads_may_ask_one_reader(left: tuple[Path, list[str], str]) -> None:
    path, sleepers, _ = left
    wrong: list[object] = []
    with open_readonly(path) as reader:

        def ask(ids: list[str]) -> None:
            try:
                wrong.extend(i for i in ids if reader.info(i).id != i)
            except ParkadeError as error:
                wrong.append(error)

        threads = [threading.Thread(target=ask, args=(sleepers[n::4],)) for n in range(4)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
    assert wrong == []


def test_what_the_system_does_not_let_be_read_is_not_called_damage(
    left: tuple[Path, list[str], str],
) -> None:
    class Refusing(RealDisk):
        def listdir(self, path: str) -> list[str]:
            if path.endswith("shard-001/journal"):
                raise OSError(errno.EACCES, "no", path)
            return super().listdir(path)

    path, sleepers, _ = left
    disk = Refusing()
    states: list[str] = []
    with Reader(disk, str(path), SystemClock()) as reader:
        with pytest.raises(ConfigError, match="cannot be read"):
            reader.stats()
        for ticket_id in sleepers:
            try:
                states.append(reader.info(ticket_id).state)
            except ConfigError as error:
                states.append(error.code)
    assert set(states) == {"scheduled", "PK-111"}
    manifest = existing_manifest(disk, str(path), 0)
    parts = list(verify_parts(disk, str(path), manifest, deep=True))
    assert [part.is_unread for part in parts] == [False, False, True]
    assert [part.is_sound for part in parts] == [True, True, False]


def test_a_tag_is_indexed_where_a_ticket_is_found_by_it(tmp_path: Path) -> None:
    path = tmp_path / "data"
    with Engine(path, run=False, index_tags=("campaign",)) as engine:
        task = engine.task(name="note", tags={"campaign": "may", "colour": "red"})(nothing)
        task.options(delay="1d").submit(1)
        # Of what is copied here the ticket is in a journal alone.
        shutil.copytree(path, tmp_path / "behind", ignore=shutil.ignore_patterns("*.sock"))
    for directory in (path, tmp_path / "behind"):
        with open_readonly(directory) as reader:
            assert reader.is_tag_indexed("campaign")
            assert not reader.is_tag_indexed("colour")
