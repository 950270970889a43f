"""Repair of directories that are damaged in every way: what is whole is kept, and what is not is
told. The source is never changed, and what is made opens and runs to its end."""

import errno
import hashlib
import json
import os
import random
import shutil
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any
from unittest import mock

import pytest
from click.testing import CliRunner, Result
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from kit.engines import checkpoint, make, runtime_of, when
from kit.harm import delete_row, harm_row, keys_of
from parkade import ConfigError, Engine, PayloadError, StorageFull, salvaging
from parkade.cli.app import cli
from parkade.repairing import Repair, repair
from parkade.shard.ticket import parse_id
from parkade.shards_told import shards_told

TICKETS = 60


def declare(engine: Engine) -> Any:
    return engine.task(name="note")(lambda n: n)


@pytest.fixture(scope="module")
def template(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, list[str]]:
    """Two shards: half of the tickets in the stores, half in the journals alone."""
    path = tmp_path_factory.mktemp("template") / "data"
    with make(path, durability="process", run=False) as engine:
        later = declare(engine).options(delay="1h")
        calls = [later.call(n) for n in range(30)]
        ids = [ticket.id for ticket in engine.submit_many(calls, chunk=5)]
        checkpoint(engine)
        for n in range(30, TICKETS):
            ids.append(later.options(unique=f"u-{n}").submit(n).id)
        runtime_of(engine).abandon()
    return path, ids


@pytest.fixture
def left(template: tuple[Path, list[str]], tmp_path: Path) -> tuple[Path, list[str]]:
    shutil.copytree(template[0], tmp_path / "data")
    return tmp_path / "data", template[1]


def digest(path: Path) -> str:
    whole = hashlib.blake2b()
    for file in sorted(path.rglob("*")):
        whole.update(str(file.relative_to(path)).encode())
        whole.update(file.read_bytes() if file.is_file() else b"")
    return whole.hexdigest()


def repaired(path: Path, **options: Any) -> Repair:
    before = digest(path)
    report = repair(str(path), f"{path}.new", **options)
    assert digest(path) == before
    return report


def ids_in(path: Path) -> set[str]:
    with make(Path(f"{path}.new"), shards=None, durability="process", run=False) as engine:
        return {info.id for info in engine.find(limit=1000)}


def serial_of(ticket_id: str) -> int:
    found = parse_id(ticket_id)
    assert found is not None
    return found.serial


def lost_serials(report: Repair, *what: str) -> set[int]:
    return {
        lost.serial
        for part in report.parts
        for lost in part.lost
        if lost.what in what and lost.serial is not None
    }


def test_of_a_sound_directory_nothing_is_lost(left: tuple[Path, list[str]]) -> None:
    path, ids = left
    report = repaired(path)
    assert not report.has_losses, report
    assert sum(part.tickets for part in report.parts) == TICKETS
    assert ids_in(path) == set(ids)


def test_what_is_repaired_runs_to_its_end(left: tuple[Path, list[str]]) -> None:
    path, ids = left
    harm_row(path, 0, "heads", keys_of(path, 0, "heads")[3])
    report = repaired(path)
    with make(Path(f"{path}.new"), durability="process") as engine:
        declare(engine)
        for info in engine.find(limit=1000):
            engine.ticket(info.id).reschedule(delay=0)
        when(engine, lambda _: engine.stats().by_task["note"] == {"done": TICKETS - 1})
        fresh = engine.submit("note", {"n": 1})
        assert serial_of(fresh.id) > max(map(serial_of, ids))
    assert len(lost_serials(report, "ticket")) == 1


@pytest.mark.parametrize("table", ["heads", "bodies"])
def test_a_bad_row_costs_its_ticket_and_is_named(left: tuple[Path, list[str]], table: str) -> None:
    path, ids = left
    key = keys_of(path, 1, table)[2]
    harm_row(path, 1, table, key)
    report = repaired(path)
    serial = int.from_bytes(key, "big")
    if table == "heads":
        assert lost_serials(report, "ticket") == {serial}
        assert {serial_of(each) for each in set(ids) - ids_in(path)} == {serial}
        return
    (lost,) = (lost for part in report.parts for lost in part.lost)
    assert (lost.what, lost.serial, lost.task) == ("payload", serial, "note")
    assert ids_in(path) == set(ids)
    with make(Path(f"{path}.new"), durability="process", run=False) as engine:
        assert lost.ticket is not None
        declare(engine)
        info = engine.ticket(lost.ticket).info()
        assert (info.state, info.dead_reason) == ("dead", "bad_payload")
        assert engine.dead.revive(lost.ticket, payload={"n": 5}).changed == 1


@pytest.mark.parametrize("is_listing_whole", [True, False])
def test_a_ticket_of_which_nothing_else_is_left_is_known_from_its_listing(
    left: tuple[Path, list[str]], is_listing_whole: bool
) -> None:
    path, _ = left
    key = keys_of(path, 1, "heads")[2]
    for table in ("heads", "bodies"):
        delete_row(path, 1, table, key)
    if not is_listing_whole:
        harm_row(path, 1, "listings", keys_of(path, 1, "listings")[0])
    report = repaired(path)
    told = {int.from_bytes(key, "big")} if is_listing_whole else set[int]()
    assert lost_serials(report, "ticket") == told
    notes = [note for part in report.parts for note in part.notes]
    assert any("table listings" in note for note in notes) is not is_listing_whole
    assert report.has_losses


def test_a_lost_result_is_told_and_its_ticket_stays_done(tmp_path: Path) -> None:
    path = tmp_path / "data"
    with make(path, durability="process") as engine:
        for ticket in engine.submit_many([declare(engine).call(7)]):
            ticket.result(timeout=20)
    key, shard = next((key, shard) for shard in (0, 1) for key in keys_of(path, shard, "bodies"))
    harm_row(path, shard, "bodies", key)
    report = repaired(path)
    (lost,) = (lost for part in report.parts for lost in part.lost)
    assert (lost.what, lost.serial) == ("result", int.from_bytes(key, "big"))
    assert lost.ticket is not None
    with make(Path(f"{path}.new"), durability="process") as engine:
        ticket = declare(engine).ticket(lost.ticket)
        assert ticket.info().state == "done"
        with pytest.raises(PayloadError):
            ticket.result(timeout=20)


def test_a_body_in_several_rows_is_kept_whole_or_told_to_be_lost(tmp_path: Path) -> None:
    path = tmp_path / "data"
    with make(path, shards=1, durability="process", run=False) as engine:
        later = declare(engine).options(delay="1h")
        bodies = [f"{number} " * 400 for number in range(40)]
        tickets = engine.submit_many([later.call(each) for each in bodies])
        texts = {ticket.id: each for ticket, each in zip(tickets, bodies, strict=True)}
    keys = keys_of(path, 0, "bodies")
    pieces = [key for key in keys if len(key) > 8]
    harmed = pieces[1], pieces[3][:8]
    for key in harmed:
        harm_row(path, 0, "bodies", key)
    report = repaired(path)
    serials = {int.from_bytes(key[:8], "big") for key in harmed}
    lost = [(one.what, one.serial) for part in report.parts for one in part.lost]
    assert sorted(lost) == [("payload", serial) for serial in sorted(serials)]
    with make(Path(f"{path}.new"), shards=None, durability="process") as engine:
        task = declare(engine)
        whole = {each for each in texts if serial_of(each) not in serials}
        for each in whole:
            engine.ticket(each).reschedule(delay=0)
        assert {each: task.ticket(each).result(timeout=20) for each in whole} == {
            each: texts[each] for each in whole
        }


def test_a_unique_whose_row_is_lost_is_held_by_its_ticket_all_the_same(tmp_path: Path) -> None:
    path = tmp_path / "data"
    with make(path, shards=1, durability="process", run=False) as engine:
        ticket = declare(engine).options(delay="1h", unique="once").submit(1)
    (key,) = keys_of(path, 0, "uniques")
    harm_row(path, 0, "uniques", key)
    report = repaired(path)
    assert [lost.what for part in report.parts for lost in part.lost] == ["unique"]
    with make(Path(f"{path}.new"), shards=1, durability="process", run=False) as engine:
        again = declare(engine).options(delay="1h", unique="once").submit(1)
        assert (again.id, again.created) == (ticket.id, False)


def only_segment(path: Path, shard: int) -> Path:
    segments = sorted((path / f"shard-{shard:03d}/journal").glob("*.segment"))
    return max(segments, key=lambda each: each.stat().st_mtime_ns)


def test_records_behind_a_hole_are_left_and_told_and_can_be_asked_for(
    left: tuple[Path, list[str]], tmp_path: Path
) -> None:
    path, ids = left
    segment = only_segment(path, 0)
    content = bytearray(segment.read_bytes())
    places = [at for at in range(64, len(content), 8) if content[at : at + 4] == b"PKFR"]
    middle = places[len(places) // 2]
    content[middle + 44] ^= 1
    segment.write_bytes(content)
    report = repaired(path)
    part = report.parts[1]
    ((first, last),) = part.holes
    ((left_first, _),) = part.left
    assert left_first == last + 1
    kept = ids_in(path)
    shutil.rmtree(f"{path}.new")
    more = repaired(path, is_past_holes=True)
    assert not more.parts[1].left
    assert set(ids) > ids_in(path) > kept
    assert len(set(ids) - ids_in(path)) == last - first + 1


def cut_store(path: Path) -> None:
    with open(path / "shard-000/store/data.mdb", "r+b") as file:
        file.truncate(file.seek(0, 2) // 2)


def swap_shards(path: Path) -> None:
    (path / "shard-000").rename(path / "x")
    (path / "shard-001").rename(path / "shard-000")
    (path / "x").rename(path / "shard-001")


HARMS: dict[str, Callable[[Path], Any]] = {
    "store gone": lambda path: shutil.rmtree(path / "shard-000/store"),
    "store empty": lambda path: (path / "shard-000/store/data.mdb").write_bytes(b""),
    "store cut": cut_store,
    "store of noise": lambda path: (path / "shard-000/store/data.mdb").write_bytes(b"x" * 99_999),
    "journal gone": lambda path: shutil.rmtree(path / "shard-000/journal"),
    "shard gone": lambda path: shutil.rmtree(path / "shard-000"),
    "house gone": lambda path: shutil.rmtree(path / "house"),
    "manifest gone": lambda path: (path / "manifest.json").unlink(),
    "manifest of noise": lambda path: (path / "manifest.json").write_text("noise"),
    "shards swapped": swap_shards,
}


@pytest.mark.parametrize("harm", HARMS.values(), ids=HARMS.keys())
def test_of_every_damage_something_is_told_and_the_rest_opens(
    left: tuple[Path, list[str]], harm: Callable[[Path], Any]
) -> None:
    path, ids = left
    harm(path)
    report = repaired(path)
    assert report.has_losses
    kept = ids_in(path)
    assert kept <= set(ids)
    if harm not in (HARMS["shards swapped"],):
        of_sound_shard = {each for each in ids if parts_of(each) % 2}
        assert of_sound_shard <= kept


def parts_of(ticket_id: str) -> int:
    found = parse_id(ticket_id)
    assert found is not None
    return found.part


def test_without_manifest_and_last_shard_the_tickets_tell_how_many_there_were(
    left: tuple[Path, list[str]],
) -> None:
    path, ids = left
    (path / "manifest.json").unlink()
    shutil.rmtree(path / "shard-001")
    report = repaired(path)
    assert [part.name for part in report.parts] == ["house", "shard 00", "shard 01"]
    assert any("the last 1 are missing" in note for note in report.notes)
    assert ids_in(path) == {each for each in ids if parts_of(each) % 2 == 0}


@pytest.mark.parametrize(("shards", "there"), [(1, 1), (4, 3), (6, 1), (256, 2)])
def test_parts_tell_the_number_of_shards(shards: int, there: int) -> None:
    parts = [set(range(at, 65_536, shards)) for at in range(there)]
    assert shards_told(parts, there) == shards
    few = [{at, at + 60} for at in range(there)]
    told = shards_told(few, there)
    assert all(part % told == at for at, found in enumerate(few) for part in found)
    assert shards_told([{1}], 1) == 1 and shards_told([{1}, {2}], 2) == 2


@given(seed=st.integers(0, 1 << 32), flips=st.integers(1, 6))
@settings(
    max_examples=4, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture]
)
def test_whatever_bits_are_flipped_every_ticket_is_there_or_told(
    template: tuple[Path, list[str]], tmp_path_factory: pytest.TempPathFactory, seed: int,
    flips: int,
) -> None:  # fmt: skip
    path = tmp_path_factory.mktemp("flips") / "data"
    shutil.copytree(template[0], path)
    ids = template[1]
    dice = random.Random(seed)
    files = sorted(path.glob("shard-*/store/data.mdb")) + sorted(path.rglob("*.segment"))
    for _ in range(flips):
        file = dice.choice(files)
        content = bytearray(file.read_bytes())
        used = len(content.rstrip(b"\0"))
        at = dice.randrange(used)
        content[at] ^= 1 << dice.randrange(8)
        file.write_bytes(content)
    report = repaired(path)
    kept = ids_in(path)
    assert kept <= set(ids)
    gone = {serial_of(each) for each in set(ids) - kept}
    told = lost_serials(report, "ticket")
    in_journal = sum(
        last - first + 1 for part in report.parts for first, last in (*part.holes, *part.left)
    )
    unnamed = [note for part in report.parts for note in part.notes]
    assert len(gone - told) <= in_journal or unnamed


def run(*args: object) -> Result:
    return CliRunner().invoke(cli, [str(arg) for arg in args], catch_exceptions=False)


def test_the_command_lists_what_was_lost(left: tuple[Path, list[str]]) -> None:
    path, _ = left
    harm_row(path, 0, "heads", keys_of(path, 0, "heads")[0])
    done = run("repair", path, f"{path}.new")
    assert done.exit_code == 1
    assert "lost: ticket" in done.stdout and "its head is damaged" in done.stdout
    again = run("repair", path, f"{path}.other", "--json")
    facts = json.loads(again.stdout)
    assert not facts["whole"] and len(facts["parts"][1]["lost"]) == 1
    assert run("repair", path, f"{path}.other").exit_code == 2


def test_what_is_no_directory_of_ours_is_not_repaired(tmp_path: Path) -> None:
    (tmp_path / "foreign").mkdir()
    (tmp_path / "foreign/letter.txt").write_text("dear")
    with pytest.raises(ConfigError, match="no directory of parkade"):
        repair(str(tmp_path / "foreign"), str(tmp_path / "new"))
    assert not (tmp_path / "new").exists()


def test_a_repair_that_has_no_room_for_what_it_reads_says_so_and_leaves_nothing(
    left: tuple[Path, list[str]], tmp_path: Path
) -> None:
    """No room for the copy is not damage of what is copied."""

    def no_room(*_: object) -> int:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    def lines_here(_: str, asked: dict[str, Any]) -> Iterator[dict[str, Any]]:
        with mock.patch("parkade.store.salvage.os.write", no_room):
            yield from salvaging._say(asked)

    path = left[0]
    target = tmp_path / "repaired"
    with (
        mock.patch("parkade.salvaging.lines_apart", lines_here),
        pytest.raises(StorageFull, match="could not be repaired"),
    ):
        repair(str(path), str(target))
    assert list(tmp_path.glob("repaired*")) == []
