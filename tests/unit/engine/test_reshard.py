"""Another number of shards: the same tickets, with all that can be seen of them."""

import errno
import json
import os
import shutil
from pathlib import Path
from typing import Any

import lmdb
import pytest
from click.testing import CliRunner

from kit.clock import ManualClock
from kit.engines import make
from kit.every_state import Town, live_on, look, resident
from kit.harm import blank_page, hide_rows
from parkade import ConfigError, Engine, EngineInUse, StorageDamaged, StorageFull, open_readonly
from parkade.cli.app import cli
from parkade.reader import existing_manifest
from parkade.resharding import Tools, plan_reshard, reshard
from parkade.shard.ticket import parse_id
from parkade.store.disk import RealDisk
from parkade.store.manifest import Manifest
from parkade.store.moving import begin_move, shard_directory
from parkade.store.parked import Parked
from parkade.verifying import verify_parts


@pytest.fixture(scope="module")
def town(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Tickets in every state, three shards, as a crash left them. Not to be changed."""
    path = tmp_path_factory.mktemp("town") / "data"
    Town(path, shards=3).settle()
    return path


@pytest.fixture
def copied(town: Path, tmp_path: Path) -> Path:
    return Path(shutil.copytree(town, tmp_path / "data"))


def tools(**more: Any) -> Tools:
    return Tools(RealDisk(), ManualClock(), os.urandom, **more)


def unheard(what: str, done: int, of: int) -> None:
    return


def to(path: Path, shards: int, **more: Any) -> None:
    reshard(tools(**more), str(path), shards, unheard)


def manifest_of(path: Path) -> Manifest:
    return existing_manifest(RealDisk(), str(path), 0)


def problems(path: Path) -> list[str]:
    parts = verify_parts(RealDisk(), str(path), manifest_of(path), deep=True)
    return [f"{part.name}: {problem.text}" for part in parts for problem in part.problems]


def shards_in(path: Path) -> list[str]:
    return sorted(name for name in os.listdir(path) if name.startswith("shard-"))


def test_all_that_can_be_seen_is_the_same_in_any_number_of_shards(town: Path, copied: Path) -> None:
    seen, known, salt = look(town), resident(town), manifest_of(town).salt
    assert known["outbox"], "something is on its way"
    states = {ticket["state"] for ticket in seen["tickets"].values()}
    assert states == {"ready", "scheduled", "running", "done", "dead", "cancelled", "expired"}
    for shards in (5, 2, 1):
        to(copied, shards)
        assert look(copied) == seen
        assert resident(copied) == known
        assert problems(copied) == []
        assert (manifest_of(copied).shards, manifest_of(copied).salt) == (shards, salt)
        assert shards_in(copied) == [f"shard-{number:03d}" for number in range(shards)]


def test_what_is_still_to_come_comes_as_it_would_have(town: Path, copied: Path) -> None:
    other = Path(shutil.copytree(town, copied.with_name("other")))
    to(copied, 5)
    end = live_on(copied)
    assert end == live_on(other)
    assert len(end["starts"]) > 10, "of tickets with a key, in their order"
    to(copied, 2)
    to(other, 2)
    assert problems(copied) == problems(other) == []
    assert look(copied)["by_task"] == look(other)["by_task"]


def test_each_ticket_is_where_its_id_says(copied: Path) -> None:
    to(copied, 4)
    with open_readonly(copied) as reader:
        for info in reader.find(limit=1000):
            known = parse_id(info.id)
            assert known is not None and info.shard == known.part % 4


def test_new_records_get_numbers_that_none_has_had(copied: Path) -> None:
    def ends() -> list[tuple[int, int]]:
        found: list[tuple[int, int]] = []
        manifest = manifest_of(copied)
        for number in range(manifest.shards):
            place = f"{shard_directory(str(copied), number)}/store"
            store = Parked.open(place, salt=manifest.salt, shard=number, is_new=False)
            found.append((store.epoch, store.lsn))
            store.close()
        return found

    before = ends()
    to(copied, 2)
    after = ends()
    assert len(set(after)) == 1
    assert after[0][0] > max(epoch for epoch, _ in before)
    assert after[0][1] >= max(lsn for _, lsn in before)


def test_a_directory_that_has_that_number_is_left_as_it_is(copied: Path) -> None:
    def image() -> dict[str, bytes]:
        files = (file for file in copied.rglob("*") if file.is_file() and file.name != "lock")
        return {str(file): file.read_bytes() for file in files if file.name != "lock.mdb"}

    before = image()
    to(copied, 3)
    assert image() == before


def test_an_empty_directory_and_one_of_many_small_commits(
    tmp_path: Path, copied: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    make(tmp_path / "empty").start().stop()
    to(tmp_path / "empty", 3)
    assert problems(tmp_path / "empty") == []
    seen = look(copied)
    monkeypatch.setattr("parkade.dealing.RESHARD_BATCH_BYTES", 1_500)
    to(copied, 4)
    assert look(copied) == seen
    assert problems(copied) == []


def test_a_running_engine_keeps_its_directory(tmp_path: Path) -> None:
    with make(tmp_path / "data") as engine:
        with pytest.raises(EngineInUse):
            to(tmp_path / "data", 3)
        engine.task(name="plain")(lambda: None)
        assert engine.submit("plain", {}).info().shard in (0, 1)


def test_what_is_no_directory_of_ours_is_not_made_one(tmp_path: Path) -> None:
    for name in ("missing", "empty"):
        path = tmp_path / name
        if name == "empty":
            path.mkdir()
        with pytest.raises(ConfigError) as refused:
            to(path, 3)
        assert refused.value.code == "PK-111"
    assert os.listdir(tmp_path / "empty") == []
    assert not (tmp_path / "missing").exists()


class SmallDisk(RealDisk):
    """Says that little is free."""

    free_bytes = 1_000_000

    def free_space(self, path: str) -> int:
        return self.free_bytes


def test_room_is_looked_for_first_and_the_need_is_told(copied: Path) -> None:
    seen = look(copied)
    poor = Tools(SmallDisk(), ManualClock(), os.urandom)
    plan = plan_reshard(poor, str(copied), manifest_of(copied), 5)
    assert (plan.shards, plan.to, plan.tickets) == (3, 5, len(seen["tickets"]))
    assert not plan.has_room
    with pytest.raises(StorageFull, match=r"needs .* MiB beside .* 977 KiB free") as refused:
        reshard(poor, str(copied), 5, unheard)
    assert refused.value.free_bytes == 1_000_000
    assert shards_in(copied) == ["shard-000", "shard-001", "shard-002"]
    assert look(copied) == seen


@pytest.mark.parametrize("point", ["begin", "before_commit"])
def test_a_disk_that_fills_up_meanwhile_leaves_the_old_shards(copied: Path, point: str) -> None:
    seen = look(copied)

    def open_store(directory: str, **options: Any) -> Parked:
        def at(reached: str) -> None:
            if reached == point and ".new" in directory:
                raise OSError(errno.ENOSPC, "full")

        return Parked.open(directory, **options, commit_hook=at)

    with pytest.raises(StorageFull, match="Nothing was changed"):
        to(copied, 5, open_store=open_store)
    assert shards_in(copied) == ["shard-000", "shard-001", "shard-002"]
    assert look(copied) == seen
    to(copied, 5)
    assert look(copied) == seen


@pytest.mark.parametrize("table", ["heads", "bodies", "history", "uniques", "lane_names"])
def test_a_row_that_cannot_be_read_is_damage_of_its_shard_and_nothing_is_changed(
    copied: Path, table: str
) -> None:
    place = str(copied / "shard-001" / "store")
    with lmdb.open(place, max_dbs=32, lib_version=0) as store:
        rows = store.open_db(table.encode(), create=False)
        with store.begin(write=True) as transaction:
            cursor = transaction.cursor(rows)
            assert cursor.last()
            key, row = cursor.item()
            cursor.put(key, row[:-1] + bytes([row[-1] ^ 1]))
    with pytest.raises(StorageDamaged) as refused:
        to(copied, 2)
    assert "Shard 01" in str(refused.value)
    assert shards_in(copied) == ["shard-000", "shard-001", "shard-002"]


@pytest.mark.parametrize("table", ["heads", "bodies", "history", "uniques"])
def test_rows_that_a_damaged_page_hides_are_damage_and_nothing_is_changed(
    copied: Path, table: str
) -> None:
    assert hide_rows(copied, 1, table) > 0
    before = shards_in(copied)
    with pytest.raises(StorageDamaged, match=f"table {table} counts"):
        to(copied, 7)
    assert shards_in(copied) == before


def test_a_page_that_would_end_the_process_is_told_before_it_is_read(copied: Path) -> None:
    blank_page(copied, 1, "heads")
    done = run("-d", copied, "reshard", "--to", 7)
    assert done.exit_code == 5
    assert "Shard 01" in done.stderr
    assert "verify --deep" in done.stderr


def test_the_manifest_of_another_number_of_shards_is_no_manifest_of_these(copied: Path) -> None:
    old = (copied / "manifest.json").read_bytes()
    to(copied, 5)
    (copied / "manifest.json").write_bytes(old)
    with pytest.raises(StorageDamaged, match="names 3 shards, and there are 5"):
        make(copied, shards=None).start()


def test_what_is_left_of_one_is_told_and_removed(
    copied: Path, caplog: pytest.LogCaptureFixture
) -> None:
    seen = look(copied)
    shutil.copytree(copied / "shard-000", copied / "shard-007.new")
    assert look(copied) == seen, "who only looks passes it by"
    with make(copied, shards=None):
        pass
    assert "left of a reshard that was cut short" in caplog.text
    assert "keeps its 3 shards" in caplog.text
    assert shards_in(copied) == ["shard-000", "shard-001", "shard-002"]


def test_who_only_looks_waits_until_the_new_shards_have_moved_in(copied: Path) -> None:
    seen = look(copied)
    for number in range(3):
        shutil.copytree(copied / f"shard-{number:03d}", copied / f"shard-{number:03d}.new")
    begin_move(RealDisk(), str(copied), manifest_of(copied), 3)
    with pytest.raises(ConfigError, match="being changed to 3 shards") as refused:
        open_readonly(copied)
    assert refused.value.code == "PK-111"
    to(copied, 3)
    assert shards_in(copied) == ["shard-000", "shard-001", "shard-002"]
    assert look(copied) == seen


# ----------------------------------------------------------------------------------- command


def run(*args: object) -> Any:
    return CliRunner().invoke(cli, [str(arg) for arg in args], catch_exceptions=False)


def test_the_command_tells_what_it_takes_does_it_and_is_refused_by_an_owner(copied: Path) -> None:
    count = len(look(copied)["tickets"])
    done = run("reshard", copied, "--to", 2, "--dry-run")
    assert done.exit_code == 0
    assert f"{count} tickets, from 3 shards to 2" in done.stdout
    assert manifest_of(copied).shards == 3
    told = json.loads(run("-d", copied, "reshard", "--to", 2, "--dry-run", "--json").stdout)
    assert (told["from"], told["to"], told["tickets"], told["dry_run"]) == (3, 2, count, True)
    done = run("reshard", copied, "--to", 2)
    assert done.exit_code == 0
    assert done.stdout.splitlines() == [
        "reading the journals …", "dealing …", "switching …",
        f"{copied} has 2 shards now, {count} tickets",
    ]  # fmt: skip
    assert run("reshard", copied, "--to", 2).stdout == f"{copied} has 2 shards already\n"
    assert json.loads(run("reshard", copied, "--to", 1, "--json").stdout)["from"] == 2
    with make(copied, shards=1):
        assert run("reshard", copied, "--to", 2).exit_code == 4
    assert run("reshard", copied, "--to", 0).exit_code == 2
    assert run("reshard", copied).exit_code == 2


def test_an_engine_asked_for_another_number_names_the_command(copied: Path) -> None:
    with pytest.raises(Exception, match=f"parkade reshard {copied} --to 8"):
        Engine(copied, shards=8).start()
