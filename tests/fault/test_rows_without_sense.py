"""Rows with the right checksum that say what no row says: told as damage, never as an error of the
interpreter, and the other shard runs."""

import dataclasses
from pathlib import Path
from typing import Any

import lmdb
import msgspec
import pytest

from kit.clock import ManualClock
from kit.engines import checkpoint, make
from kit.failing import key_of, statuses
from kit.harm import first_key, keys_of, write_row
from parkade import StorageDamaged, TicketFailed
from parkade.repairing import repair
from parkade.store.disk import RealDisk
from parkade.store.errors import Damage
from parkade.store.manifest import read_manifest
from parkade.store.record import RecordDamage, decode_records
from parkade.store.segment import Mode, SegmentHeader
from parkade.verifying import verify_parts

DEEP = b"\x91" * 100_000
META = ("identity", "state", "counters", "lane_rows", "memo", "taken")


@pytest.fixture
def left(tmp_path: Path) -> Path:
    """Two shards with a ticket each that is done, and one that waits."""
    path = tmp_path / "data"
    with make(path, durability="process") as engine:
        task = engine.task(name="note")(lambda n: n)
        for n in (0, 1):
            task.options(key=key_of(n), unique=f"u{n}").submit(n).result("20s")
            task.options(key=key_of(n), delay="1h").submit(n)
        checkpoint(engine)
    return path


def findings(path: Path) -> list[str]:
    manifest = read_manifest(RealDisk(), str(path))
    assert manifest is not None
    parts = verify_parts(RealDisk(), str(path), manifest, deep=True)
    return [finding.text for part in parts for finding in part.problems]


@pytest.mark.parametrize("row", [b"", b"\xa3abc", DEEP], ids=["none", "text", "deep"])
@pytest.mark.parametrize("key", META)
def test_a_row_of_meta_that_says_nothing_refuses_its_shard_alone(
    left: Path, key: str, row: bytes
) -> None:
    write_row(left, 0, "meta", key.encode(), row)
    assert findings(left)
    with make(left, durability="process") as engine:
        assert statuses(engine) == ["refused", "open"]
        task = engine.task(name="note")(lambda n: n)
        with pytest.raises(StorageDamaged):
            task.options(key=key_of(0)).submit(5)
        assert task.options(key=key_of(1)).submit(5).result("20s") == 5


def test_a_repair_reckons_anew_what_meta_cannot_tell(left: Path) -> None:
    for key in META[1:]:
        write_row(left, 0, "meta", key.encode(), b"\xa3abc")
    write_row(left, 0, "heads", b"a key that is none", b"\x90")
    repair(str(left), f"{left}.new")
    with make(Path(f"{left}.new"), durability="process", run=False) as engine:
        assert len(engine.find().items) == 4


def test_a_unique_that_cannot_be_read_costs_whoever_asks_for_it(left: Path) -> None:
    write_row(left, 0, "uniques", first_key(left, 0, "uniques"), bytes(8) + b"\x91\x01")
    assert findings(left)
    with make(left, durability="process", run=False) as engine:
        task = engine.task(name="note")(lambda n: n)
        with pytest.raises(StorageDamaged):
            task.options(key=key_of(0), unique="u0").submit(0)
        assert task.options(key=key_of(0), delay="1h").submit(7).info().state == "scheduled"
        assert statuses(engine) == ["open", "open"]


def test_an_attempt_that_cannot_be_read_costs_its_history(left: Path) -> None:
    with make(left, durability="process") as engine:
        fails = engine.task(name="fails", retry=None)(lambda: 1 // 0)
        with pytest.raises(TicketFailed):
            fails.options(key=key_of(0)).submit().result("20s")
    write_row(left, 0, "history", first_key(left, 0, "history"), b"\x91\x01")
    with make(left, durability="process", run=False) as engine:
        told = [ticket for ticket in engine.find().items if ticket.shard == 0]
        refused = 0
        for info in told:
            try:
                engine.ticket(info.id).attempts()
            except StorageDamaged:
                refused += 1
        assert refused == 1
        assert statuses(engine) == ["open", "open"]


def test_the_head_of_another_ticket_is_nobodys(left: Path) -> None:
    one, two = keys_of(left, 0, "heads")
    with make(left, durability="process", run=False) as engine:
        ids = [info.id for info in engine.find().items if info.shard == 0]
    with lmdb.open(str(left / "shard-000/store"), max_dbs=32, lib_version=0) as store:
        heads = store.open_db(b"heads")
        with store.begin() as transaction:
            other = bytes(transaction.get(two, db=heads) or b"")
    write_row(left, 0, "heads", one, other[:-4])
    assert findings(left)
    with make(left, durability="process", run=False) as engine:
        told = [outcome(engine, each) for each in ids]
    assert sorted(told) == ["as it is", "damaged"]


def outcome(engine: Any, ticket_id: str) -> str:
    try:
        return "as it is" if engine.ticket(ticket_id).info().id == ticket_id else "another"
    except StorageDamaged:
        return "damaged"


def test_a_lane_without_its_name_is_damage_of_the_shard(tmp_path: Path) -> None:
    path, clock = tmp_path / "data", ManualClock()
    with make(path, durability="process", clock=clock, run=False) as engine:
        task = engine.task(name="note")(lambda n: n)
        for n in (0, 1):
            task.options(key=key_of(n), delay="3h").submit(n)
    with lmdb.open(str(path / "shard-000/store"), max_dbs=32, lib_version=0) as store:
        names = store.open_db(b"lane_names")
        with store.begin(write=True) as transaction:
            transaction.drop(names, delete=False)
    with make(path, durability="process", clock=clock) as engine:
        engine.task(name="note")(lambda n: n)
        ids = {info.shard: info.id for info in engine.find().items}
        clock.advance(4 * 3_600_000)
        assert engine.ticket(ids[1]).result("20s") == 1
        with pytest.raises(StorageDamaged, match="lane"):
            engine.ticket(ids[0]).result("20s")


def test_what_a_ticket_was_to_do_is_missed(left: Path) -> None:
    with lmdb.open(str(left / "shard-001/store"), max_dbs=32, lib_version=0) as store:
        bodies = store.open_db(b"bodies")
        with store.begin(write=True) as transaction:
            transaction.drop(bodies, delete=False)
    assert len([text for text in findings(left) if "what it was to do, or gave" in text]) == 2


@pytest.mark.parametrize(
    "body",
    [
        msgspec.msgpack.encode([[[1], 2]]), b"\x91\x91" + DEEP, b"\x91\x93\x04" + DEEP,
        msgspec.msgpack.encode([[{"a": 1}]]), msgspec.msgpack.encode([[]]),
    ],
    ids=["a list as tag", "deep", "deep field", "a map as tag", "no tag"],
)  # fmt: skip
def test_bodies_that_are_no_records_are_told_as_such(body: bytes) -> None:
    with pytest.raises(RecordDamage):
        decode_records(body)


def test_a_header_of_no_known_durability_is_damage() -> None:
    header = SegmentHeader(b"salty", 0, 1, b"8 bytes.", 1, 0, Mode.DISK, 0)
    odd: Any = 9
    made = dataclasses.replace(header, mode=odd).encode()
    with pytest.raises(Damage, match="durability"):
        SegmentHeader.decode(made, "a.segment")
