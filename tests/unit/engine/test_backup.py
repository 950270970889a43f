"""Backups of an engine that runs, of a directory that nobody runs, and what is restored of them."""

import json
import os
import shutil
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner, Result

from kit.engines import checkpoint, make, runtime_of, when
from kit.harm import first_key, harm_row, hide_rows
from kit.owners import OwnerProcess
from parkade import (
    ConfigError,
    Engine,
    Outcome,
    StorageDamaged,
    StorageFull,
    backing_up,
    compacting,
)
from parkade.apart import ChildDied
from parkade.backing_up import back_up, copied_directory
from parkade.cli.app import cli
from parkade.control import ControlError
from parkade.store.disk import RealDisk
from parkade.store.manifest import read_manifest
from parkade.verifying import verify_parts


def run(*args: object) -> Result:
    return CliRunner().invoke(cli, [str(arg) for arg in args], catch_exceptions=False)


def assert_sound(path: Path) -> None:
    manifest = read_manifest(RealDisk(), str(path))
    assert manifest is not None
    for part in verify_parts(RealDisk(), str(path), manifest, deep=True):
        assert part.is_sound, part.problems


def written(path: Path, **options: Any) -> list[str]:
    """Sleepers, some in the store and some in the journal alone."""
    with make(path, durability="process", run=False, **options) as engine:
        task = engine.task(name="note")(lambda n: n)
        later = task.options(delay="1h")
        ids = [ticket.id for ticket in engine.submit_many([later.call(n) for n in range(30)])]
        checkpoint(engine)
        ids += [ticket.id for ticket in engine.submit_many([later.call(n) for n in range(30)])]
        runtime_of(engine).abandon()
    return ids


def test_a_backup_of_a_running_engine_has_all_that_was_acknowledged_and_opens(
    tmp_path: Path,
) -> None:
    with make(tmp_path / "data", durability="process") as engine:
        task = engine.task(name="note")(lambda n: n)
        later = task.options(delay="1h")
        stored = engine.submit_many([later.call(n) for n in range(40)])
        checkpoint(engine)
        fresh = engine.submit_many([later.call(n) for n in range(40)])
        done = task.submit(7)
        assert done.result("20s") == 7
        engine.backup(tmp_path / "copy")
        after = later.submit(1)
        assert engine.ticket(after.id).info().state == "scheduled"
    assert_sound(tmp_path / "copy")
    with make(tmp_path / "copy", durability="process", run=False) as copy:
        for ticket in (*stored, *fresh):
            assert copy.ticket(ticket.id).info().state == "scheduled"
        assert copy.ticket(done.id).result() == 7
        assert copy.stats().scheduled == 80


def declare(engine: Engine) -> Any:
    """A task whose end makes a child, nearly always in the other shards."""

    @engine.task(name="child", unique="of-{outcome.ticket_id}")
    def child(outcome: Outcome[int]) -> int:
        return outcome.result()

    return engine.task(name="work", on_done=child)(lambda n: n)


def test_submits_attempts_and_hand_overs_go_on_while_a_backup_is_made(tmp_path: Path) -> None:
    acknowledged: list[str] = []
    is_over = threading.Event()
    with make(tmp_path / "data", shards=3, durability="process") as engine:
        work = declare(engine)

        def load() -> None:
            while not is_over.is_set():
                tickets = engine.submit_many([work.call(n) for n in range(20)])
                acknowledged.extend(ticket.id for ticket in tickets)

        thread = threading.Thread(target=load)
        thread.start()
        try:
            when(engine, lambda _: len(acknowledged) >= 100)
            want_checkpoints(engine)
            before = list(acknowledged)
            engine.backup(tmp_path / "copy")
        finally:
            is_over.set()
            thread.join()
        assert [shard.checkpointing._holds for shard in runtime_of(engine).shards] == [{}, {}, {}]
    assert_sound(tmp_path / "copy")
    with make(tmp_path / "copy", shards=None, durability="process") as copy:
        declare(copy)
        assert all(copy.ticket(each).result("20s") in range(20) for each in before)
        when(copy, lambda runtime: all(shard.is_settled for shard in runtime.shards))
        when(copy, lambda _: is_all_done(copy))


def want_checkpoints(engine: Engine) -> None:
    """Without waiting for them: under load there is always something dirty."""

    def want() -> None:
        for shard in runtime_of(engine).shards:
            shard.checkpointing.want()

    runtime_of(engine).host.call(want)


def is_all_done(engine: Engine) -> bool:
    """Every ticket is done, and has its one child."""
    by_task = engine.stats().by_task
    done = {task: counts.get("done", 0) for task, counts in by_task.items()}
    return by_task["work"] == by_task.get("child") == {"done": done["work"]}


def test_a_directory_that_nobody_runs_is_backed_up_journal_and_all(tmp_path: Path) -> None:
    ids = written(tmp_path / "data")
    before = {path: path.read_bytes() for path in (tmp_path / "data").rglob("*.segment")}
    copied = back_up(str(tmp_path / "data"), str(tmp_path / "copy"), None)
    assert copied.tickets == len(ids)
    assert {path: path.read_bytes() for path in before} == before
    assert sorted(os.listdir(tmp_path / "copy")) == [
        "house", "lock", "manifest.json", "shard-000", "shard-001",
    ]  # fmt: skip
    assert_sound(tmp_path / "copy")
    with make(tmp_path / "copy", durability="process", run=False) as copy:
        assert all(copy.ticket(each).info() for each in ids)


def test_a_copy_has_no_free_pages(tmp_path: Path) -> None:
    with make(tmp_path / "data", shards=1, durability="process", run=False) as engine:
        task = engine.task(name="note")(lambda text: text)
        tickets = engine.submit_many([task.call("x" * 2_000) for _ in range(2_000)])
        checkpoint(engine)
        for ticket in tickets:
            ticket.cancel()
        checkpoint(engine)
        engine.backup(tmp_path / "copy")
    sizes = [
        (tmp_path / name / "shard-000/store/data.mdb").stat().st_size for name in ("data", "copy")
    ]
    assert sizes[1] * 4 < sizes[0]
    assert_sound(tmp_path / "copy")


def test_what_is_restored_gives_out_no_id_that_its_origin_gave_out(tmp_path: Path) -> None:
    with make(tmp_path / "data", durability="process", run=False) as engine:
        task = engine.task(name="note")(lambda n: n)
        task.options(delay="1h").submit(1)
        engine.backup(tmp_path / "copy")
        later = {task.options(delay="1h").submit(n).id for n in range(50)}
    for _ in range(3):  # each open goes on a block further, whatever its clock says
        with make(tmp_path / "data", durability="process", run=False) as engine:
            task = engine.task(name="note")(lambda n: n)
            later |= {task.options(delay="1h").submit(n).id for n in range(50)}
    done = run("restore", tmp_path / "copy", tmp_path / "back")
    assert done.exit_code == 0, done.output
    assert "run again" in done.stdout
    assert_sound(tmp_path / "back")
    with make(tmp_path / "back", durability="process", run=False) as engine:
        task = engine.task(name="note")(lambda n: n)
        fresh = [task.options(delay="1h").submit(n).id for n in range(50)]
    assert min(fresh) > max(later)


def test_a_backup_goes_nowhere_where_something_is(tmp_path: Path) -> None:
    written(tmp_path / "data")
    (tmp_path / "there").mkdir()
    for target in ("there", "data", "missing/below"):
        with pytest.raises(ConfigError):
            back_up(str(tmp_path / "data"), str(tmp_path / target), None)
    assert sorted(os.listdir(tmp_path)) == ["data", "there"]


@pytest.mark.parametrize("place", ["shard-001/journal", "shard-000/store", "house/store"])
def test_a_backup_of_what_is_damaged_fails_and_leaves_nothing(tmp_path: Path, place: str) -> None:
    written(tmp_path / "data")
    shutil.rmtree(tmp_path / "data" / place)
    with pytest.raises(Exception) as caught:
        back_up(str(tmp_path / "data"), str(tmp_path / "copy"), None)
    assert vars(caught.value)["code"] == "PK-105"
    assert os.listdir(tmp_path) == ["data"]


def test_a_backup_does_not_go_into_what_it_is_a_copy_of(tmp_path: Path) -> None:
    written(tmp_path / "data")
    before = sorted(os.listdir(tmp_path / "data"))
    with pytest.raises(ConfigError, match="Give a path outside of it"):
        back_up(str(tmp_path / "data"), str(tmp_path / "data/monday"), None)
    assert sorted(os.listdir(tmp_path / "data")) == before


def test_a_backup_of_a_damaged_shard_names_that_shard(tmp_path: Path) -> None:
    written(tmp_path / "data")
    shutil.rmtree(tmp_path / "data/shard-001/journal")
    with pytest.raises(ControlError, match=r"^Shard 01 of .*Next: parkade .* verify --deep"):
        back_up(str(tmp_path / "data"), str(tmp_path / "copy"), None)


@pytest.mark.parametrize(
    ("free_bytes", "says"), [(0, "Free space, and run the same command"), (1 << 30, "is damaged")]
)
def test_a_copy_that_a_signal_ends_is_told_as_a_full_disk_where_it_is_full(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, free_bytes: int, says: str
) -> None:
    def die(*_: object) -> Iterator[dict[str, Any]]:
        raise ChildDied("SIGBUS")
        yield

    written(tmp_path / "data")
    for module in (backing_up, compacting):
        monkeypatch.setattr(module, "lines_apart", die)
    monkeypatch.setattr(RealDisk, "free_space", lambda *_: free_bytes)
    with pytest.raises(StorageFull if not free_bytes else StorageDamaged, match=says):
        back_up(str(tmp_path / "data"), str(tmp_path / "copy"), None)
    with pytest.raises(StorageFull if not free_bytes else StorageDamaged, match=says):
        list(compacting.compact(str(tmp_path / "data")))


def test_what_a_killed_backup_left_opens_as_nothing_and_makes_room_for_the_next(
    tmp_path: Path,
) -> None:
    written(tmp_path / "data")
    back_up(str(tmp_path / "data"), str(tmp_path / "copy"), None)
    (tmp_path / "copy").rename(tmp_path / "copy.partial")
    (tmp_path / "copy.partial" / "manifest.json").unlink()
    with pytest.raises(ConfigError, match="no manifest"):
        Engine(tmp_path / "copy.partial").start()
    back_up(str(tmp_path / "data"), str(tmp_path / "copy"), None)
    assert sorted(os.listdir(tmp_path)) == ["copy", "data"]
    (tmp_path / "mine.partial").mkdir()
    (tmp_path / "mine.partial" / "letter.txt").write_text("dear")
    with pytest.raises(ControlError, match=r"letter\.txt"):
        back_up(str(tmp_path / "data"), str(tmp_path / "mine"), None)


def test_two_copies_to_one_place_do_not_meet(tmp_path: Path) -> None:
    written(tmp_path / "data")
    with copied_directory(RealDisk(), str(tmp_path / "copy")) as partial:
        with pytest.raises(ControlError, match="is being made"):
            back_up(str(tmp_path / "data"), str(tmp_path / "copy"), None)
        assert os.listdir(partial) == ["lock"]
    back_up(str(tmp_path / "data"), str(tmp_path / "other"), None)


def test_a_backup_whose_rows_are_damaged_is_not_restored(tmp_path: Path) -> None:
    written(tmp_path / "data")
    back_up(str(tmp_path / "data"), str(tmp_path / "copy"), None)
    harm_row(tmp_path / "copy", 0, "heads", first_key(tmp_path / "copy", 0, "heads"))
    done = run("restore", tmp_path / "copy", tmp_path / "back")
    assert done.exit_code == 5
    assert "checksum" in done.stderr
    assert sorted(os.listdir(tmp_path)) == ["copy", "data"]


@pytest.mark.parametrize("table", ["heads", "bodies"])
def test_rows_that_a_damaged_page_hides_are_not_missing_in_a_backup_without_a_word(
    tmp_path: Path, table: str
) -> None:
    written(tmp_path / "data")
    assert hide_rows(tmp_path / "data", 0, table) > 0
    done = run("-d", tmp_path / "data", "backup", tmp_path / "copy")
    assert done.exit_code == 5
    assert f"table {table} counts" in done.stderr
    assert os.listdir(tmp_path) == ["data"]


def test_the_command_asks_the_engine_that_runs(tmp_path: Path) -> None:
    path = tmp_path / "data"
    with OwnerProcess(path) as owner:
        ids = owner.submit("note", 12, "3d")
        done = run("-d", path, "backup", tmp_path / "copy", "--json")
        assert done.exit_code == 0, done.output
        facts = json.loads(done.stdout)
        assert facts["tickets"] == len(ids)
        owner.kill()
    assert_sound(tmp_path / "copy")
    with make(tmp_path / "copy", run=False) as copy:
        assert all(copy.ticket(each).info().state == "scheduled" for each in ids)


def test_a_command_that_needs_the_directory_says_to_stop_who_has_it(tmp_path: Path) -> None:
    with make(tmp_path / "data", durability="process", run=False):
        for command in (["compact"], ["reshard", "--to", "3"]):
            done = run("-d", tmp_path / "data", *command)
            assert done.exit_code == 4
            assert "stop that process, and run it again" in done.stderr


def test_a_directory_whose_engine_does_not_answer_is_in_use(tmp_path: Path) -> None:
    with make(tmp_path / "data", durability="process", run=False):
        with pytest.raises(Exception, match="already open") as caught:
            back_up(str(tmp_path / "data"), str(tmp_path / "copy"), None)
        assert vars(caught.value)["code"] == "PK-101"
