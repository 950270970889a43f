"""`stat`, `doctor`, `compact`, `export`, `Engine.health`: what they tell, and what they change."""

import contextlib
import errno
import json
import os
import shutil
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner, Result

from kit.engines import checkpoint, make, rig
from kit.faulty import FaultyDisk
from kit.harm import first_key, harm_row, hide_rows, keys_of
from parkade import ParkadeError
from parkade.cli import checkup
from parkade.cli.app import cli
from parkade.cli.checkup import BAD, OK, WARN
from parkade.clock import SystemClock
from parkade.compacting import compact
from parkade.store.disk import RealDisk
from parkade.store.manifest import read_manifest
from parkade.verifying import verify_parts


def run(*args: object) -> Result:
    return CliRunner().invoke(cli, [str(arg) for arg in args], catch_exceptions=False)


@pytest.fixture(scope="module")
def template(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Sleepers, done and dead tickets, in stores and journals."""
    path = tmp_path_factory.mktemp("template") / "data"
    with make(path, durability="process") as engine:
        task = engine.task(name="note", retry=None)(lambda n: 12 // n)
        later = task.options(delay="1h")
        engine.submit_many([later.call(n) for n in range(20)], chunk=10)  # both shards have some
        for ticket in engine.submit_many([later.call(n) for n in range(200)], chunk=100):
            ticket.cancel()
        assert task.submit(4).result("20s") == 3
        assert task.submit(0).info().task == "note"
        checkpoint(engine)
        engine.submit_many([later.call(n) for n in range(20)])
        engine.stop()
    return path


@pytest.fixture
def left(template: Path, tmp_path: Path) -> Path:
    shutil.copytree(template, tmp_path / "data")
    return tmp_path / "data"


# ------------------------------------------------------------------------------------ stat


def test_stat_counts_what_verify_counts(left: Path) -> None:
    facts = json.loads(run("-d", left, "stat", "--json").stdout)
    names = [part["part"] for part in facts["parts"]]
    assert names == ["house", "shard 00", "shard 01"]
    assert sum(part["tickets"] for part in facts["parts"]) == 242
    for part in facts["parts"]:
        assert part["journal_lsn"] >= part["store_lsn"]
        assert part["file_bytes"] >= part["used_pages"] * part["page_bytes"]
    lines = run("-d", left, "stat").stdout.splitlines()
    assert [line.split()[0] for line in lines] == ["part", "house", "shard", "shard"]


def test_stat_tells_a_part_that_cannot_be_read(left: Path) -> None:
    shutil.rmtree(left / "shard-001/store")
    done = run("-d", left, "stat")
    assert done.exit_code == 5
    assert "shard 01 DAMAGED" in done.stdout and "shard 00" in done.stdout


# ---------------------------------------------------------------------------------- doctor


def test_doctor_finds_a_sound_directory_well(left: Path) -> None:
    done = run("-d", left, "doctor", "--json")
    checks = {check["name"]: check for check in json.loads(done.stdout)["checks"]}
    assert {"file system", "sync", "ulimit", "clock", "space", "directory", "gil"} <= set(checks)
    assert checks["directory"]["status"] == OK
    assert done.exit_code == (1 if BAD in {one["status"] for one in checks.values()} else 0)
    assert not [name for name in os.listdir(left) if "doctor" in name]


def test_doctor_sends_to_verify_where_a_part_cannot_be_read(left: Path) -> None:
    shutil.rmtree(left / "shard-000/journal")
    done = run("-d", left, "doctor")
    assert done.exit_code == 1
    assert "bad   directory" in done.stdout and "verify --deep" in done.stdout


def test_doctor_asks_for_room_where_a_write_finds_none(
    left: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def full(*_: object) -> int:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    monkeypatch.setattr("parkade.cli.doctor.time_syncs", full)
    checks = json.loads(run("-d", left, "doctor", "--json").stdout)["checks"]
    (sync,) = (check for check in checks if check["name"] == "sync")
    assert (sync["status"], sync["advice"][:9]) == (BAD, "free some")


def test_doctor_names_tasks_that_the_application_lacks(
    left: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "shop_of_doctor.py").write_text(
        "from parkade import Engine\nengine = Engine('elsewhere')\n"
    )
    monkeypatch.syspath_prepend(tmp_path)
    done = run("-d", left, "doctor", "--app", "shop_of_doctor:engine")
    assert done.exit_code == 1
    assert "lacks note" in done.stdout


@pytest.mark.parametrize(
    ("check", "status"),
    [
        (checkup.check_sync(4, "ext4"), WARN),
        (checkup.check_sync(900, "ext4"), OK),
        (checkup.check_sync(300_000, "ext4"), WARN),
        (checkup.check_file_system("nfs4"), BAD),
        (checkup.check_file_system("tmpfs"), WARN),
        (checkup.check_file_system("overlay"), WARN),
        (checkup.check_file_system("ext4"), OK),
        (checkup.check_file_system(None), OK),
        (checkup.check_clock(10_000_000, 11_000_000, True), BAD),
        (checkup.check_clock(10_000_000, 9_000_000, False), WARN),
        (checkup.check_clock(10_000_000, 9_000_000, True), OK),
        (checkup.check_clock(10_000_000, 0, None), OK),
        (checkup.check_descriptors(90, 4), BAD),
        (checkup.check_descriptors(120, 4), WARN),
        (checkup.check_descriptors(-1, 256), OK),
        (checkup.check_free_space(1 << 20, 0, 0), BAD),
        (checkup.check_free_space(1 << 30, 8 << 30, 4 << 30), WARN),
        (checkup.check_free_space(8 << 30, 8 << 30, 4 << 30), OK),
        (checkup.check_retention(80, 100, 1 << 20, 1 << 30), WARN),
        (checkup.check_retention(20, 100, 1 << 20, 1 << 30), OK),
    ],
)
def test_each_check_says_how_it_is_and_what_to_do(check: checkup.Check, status: str) -> None:
    assert check.status == status
    assert check.text
    assert bool(check.advice) or status == OK


def test_the_file_system_of_a_path_is_that_of_its_innermost_mount(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    mounts = [("/", "ext4"), ("/srv", "nfs4"), ("/srv/app", "xfs"), ("/srv/apple", "tmpfs")]
    monkeypatch.setattr(checkup, "_mounts", lambda: iter(mounts))
    found = [checkup.file_system_of(path) for path in ("/srv/app/data", "/srv", "/var", "/srvx")]
    assert found == ["xfs", "nfs4", "ext4", "ext4"]


def test_the_file_that_is_synced_is_taken_away(tmp_path: Path) -> None:
    assert checkup.time_syncs(RealDisk(), str(tmp_path), SystemClock()) >= 0
    assert os.listdir(tmp_path) == []


# --------------------------------------------------------------------------------- compact


def tickets_of(path: Path) -> list[dict[str, Any]]:
    lines = run("-d", path, "export").stdout.splitlines()
    facts = [json.loads(line) for line in lines]
    for one in facts:
        one.pop("as_of")
    return facts


def test_compact_makes_stores_smaller_and_changes_nothing_else(left: Path) -> None:
    before = tickets_of(left)
    done = run("-d", left, "compact", "--json")
    assert done.exit_code == 0, done.output
    parts = json.loads(done.stdout)["parts"]
    assert sum(part["after_bytes"] for part in parts) < sum(part["before_bytes"] for part in parts)
    manifest = read_manifest(RealDisk(), str(left))
    assert manifest is not None
    reports = list(verify_parts(RealDisk(), str(left), manifest, deep=True))
    assert all(report.is_sound for report in reports), reports
    assert tickets_of(left) == before
    with make(left, durability="process", run=False) as engine:
        assert engine.stats().scheduled == 40


def test_what_a_killed_compact_left_is_taken_away(left: Path) -> None:
    fresh = left / "shard-000/store.fresh"
    fresh.mkdir()
    (fresh / "data.mdb").write_bytes(b"half of a store")
    with make(left, durability="process", run=False) as engine:
        assert engine.stats().shards[0].status == "open"
    assert len(list(compact(str(left)))) == 3
    assert not fresh.exists()


def test_a_directory_that_is_owned_is_not_compacted(left: Path) -> None:
    with make(left, durability="process", run=False):
        done = run("-d", left, "compact")
        assert done.exit_code == 4
        assert "already open" in done.stderr


@pytest.mark.parametrize("table", ["heads", "bodies", "listings"])
def test_rows_that_a_damaged_page_hides_end_a_compact_with_the_store_as_it_was(
    left: Path, table: str
) -> None:
    assert hide_rows(left, 1, table) > 0
    before = (left / "shard-001/store/data.mdb").read_bytes()
    done = run("-d", left, "compact")
    assert done.exit_code == 5
    assert f"table {table} counts" in done.stderr
    assert "PK-105" in done.stderr
    assert (left / "shard-001/store/data.mdb").read_bytes() == before


# ---------------------------------------------------------------------------------- export


def test_export_writes_every_ticket_once_with_its_payload_or_result(left: Path) -> None:
    facts = tickets_of(left)
    assert len({one["id"] for one in facts}) == len(facts) == 242
    (done,) = (one for one in facts if one["state"] == "done")
    assert (done["content_is"], done["content"]) == ("result", 3)
    sleepers = [one for one in facts if one["state"] == "scheduled"]
    assert sorted(one["content"]["n"] for one in sleepers) == sorted([*range(20)] * 2)
    lines = run("-d", left, "export", "--state", "dead", "--task", "note").stdout.splitlines()
    assert len(lines) == 1
    assert run("-d", left, "export", "--task", "other").stdout == ""


def test_export_marks_a_damaged_ticket_and_goes_on(left: Path) -> None:
    harm_row(left, 0, "heads", first_key(left, 0, "heads"))
    done = run("-d", left, "export")
    assert done.exit_code == 1
    facts = [json.loads(line) for line in done.stdout.splitlines()]
    assert len(facts) == 242
    assert sum("damaged" in one for one in facts) == 1


def test_export_tells_of_tickets_that_a_damaged_page_hides(left: Path) -> None:
    hidden = hide_rows(left, 0, "heads")
    done = run("-d", left, "export")
    assert done.exit_code == 5
    assert "table heads counts" in done.stderr
    assert len(done.stdout.splitlines()) >= 242 - hidden - len(keys_of(left, 1, "heads"))


def test_export_of_a_shard_that_cannot_be_read_names_it_and_writes_the_others(left: Path) -> None:
    shutil.rmtree(left / "shard-000" / "journal")
    done = run("-d", left, "export")
    assert done.exit_code == 5
    assert done.stderr.startswith("parkade: Shard 00 of")
    assert len(done.stdout.splitlines()) == len(keys_of(left, 1, "heads"))


def test_export_marks_a_ticket_that_has_no_payload_any_more(left: Path) -> None:
    hidden = hide_rows(left, 0, "bodies")
    done = run("-d", left, "export")
    assert done.exit_code == 1
    facts = [json.loads(line) for line in done.stdout.splitlines()]
    assert len(facts) == 242
    assert 0 < sum("damaged" in one for one in facts) <= hidden


# ---------------------------------------------------------------------------------- health


def test_health_tells_of_an_engine_that_is_well(tmp_path: Path) -> None:
    engine = make(tmp_path / "data")
    assert engine.health()["status"] == "down"
    with engine:
        health = engine.health()
        assert (health["status"], health["ready"], health["storage_writable"]) == ("ok", True, True)
        assert [shard["status"] for shard in health["shards"]] == ["open", "open"]
        assert health["oldest_ready_age_ms"] == 0 and health["loop_lag_ms"] >= 0
        json.dumps(health)
    assert not engine.health()["ready"]


def test_health_tells_of_a_shard_that_is_refused_and_of_a_full_disk(left: Path) -> None:
    shutil.rmtree(left / "shard-001/store")
    disk = FaultyDisk()
    with rig(make(left, durability="process", run=False), disk=disk) as engine:
        health = engine.health()
        assert (health["status"], health["ready"]) == ("degraded", True)
        assert [shard["writable"] for shard in health["shards"]] == [True, False]
        assert "missing" in health["shards"][1]["reason"]
        later = engine.task(name="note")(lambda text: text).options(delay="1h")
        disk.is_full = True
        while health["shards"][0]["writable"]:
            with contextlib.suppress(ParkadeError):
                later.submit("x" * 100_000)
            health = engine.health()
        assert not health["storage_writable"]
