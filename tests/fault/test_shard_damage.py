"""Damage found at open, or in a row: which shard or ticket it costs, and that the others run."""

import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import lmdb
import pytest

from kit.clock import ManualClock
from kit.engines import (
    checkpoint,
    make,
    runtime_of,
)
from kit.failing import key_of, keyed, statuses
from parkade import (
    Engine,
    StorageDamaged,
    TicketFailed,
)
from parkade.store.rows import seal, unseal


@pytest.fixture
def clock() -> ManualClock:
    return ManualClock()


def written(path: Path) -> list[str]:
    """A directory with tickets in both shards; their ids."""
    with make(path, durability="process", run=False) as engine:
        task = engine.task(name="note")(lambda n: n)
        later = task.options(delay="1h")
        ids = [later.options(key=key_of(n % 2)).submit(n).id for n in range(6)]
        checkpoint(engine)
        ids += [later.options(key=key_of(n % 2)).submit(n).id for n in range(6)]
        runtime_of(engine).abandon()  # no last checkpoint: the journals have records
    return ids


def cut_store(path: Path) -> None:
    with open(path / "shard-000/store/data.mdb", "r+b") as file:
        file.truncate(8192)


def remove(name: str) -> Callable[[Path], None]:
    return lambda path: shutil.rmtree(path / "shard-000" / name)


@pytest.mark.parametrize(
    ("harm", "place"),
    [
        (remove("journal"), "journal"),
        (remove("store"), "store"),
        (cut_store, "data.mdb"),
        (lambda path: shutil.rmtree(path / "shard-000"), "shard-000"),
    ],
    ids=["journal missing", "store missing", "store cut", "all missing"],
)
def test_a_damaged_shard_is_refused_with_its_place_and_the_others_run(
    tmp_path: Path, harm: Callable[[Path], None], place: str
) -> None:
    path = tmp_path / "data"
    ids = written(path)
    harm(path)
    for _ in range(2):
        with make(path, durability="process") as engine:
            task = engine.task(name="note")(lambda n: n)
            stats = engine.stats()
            assert [shard.status for shard in stats.shards] == ["refused", "open"]
            with pytest.raises(StorageDamaged) as caught:
                engine.ticket(ids[0]).info()
            error = caught.value
            assert (error.code, error.shard) == ("PK-105", 0)
            assert place in error.where
            assert error.reason
            assert "verify" in str(error)
            assert "keeps running" in str(error)
            assert engine.ticket(ids[1]).info().state == "scheduled"
            assert keyed(task, 1).submit(5).result("20s") == 5
            with pytest.raises(StorageDamaged):
                keyed(task, 0).submit(5)
            assert not engine.stop().clean


def test_shards_that_were_swapped_are_told_from_damage(tmp_path: Path) -> None:
    path = tmp_path / "data"
    ids = written(path)
    (path / "shard-000").rename(path / "x")
    (path / "shard-001").rename(path / "shard-000")
    (path / "x").rename(path / "shard-001")
    with make(path, durability="process") as engine:
        assert statuses(engine) == ["refused", "refused"]
        with pytest.raises(StorageDamaged, match="belongs to shard 1, not to shard 0"):
            engine.ticket(ids[0]).info()
    (path / "shard-000").rename(path / "x")
    (path / "shard-001").rename(path / "shard-000")
    (path / "x").rename(path / "shard-001")
    with make(path, durability="process") as engine:
        assert all(engine.ticket(each).info() for each in ids)


@pytest.mark.parametrize("name", ["journal", "store"])
def test_without_its_house_an_engine_does_not_open(tmp_path: Path, name: str) -> None:
    path = tmp_path / "data"
    written(path)
    shutil.move(path / "house" / name, tmp_path / "aside")
    with pytest.raises(StorageDamaged, match="The house") as caught:
        make(path, durability="process").start()
    assert caught.value.shard is None
    shutil.move(tmp_path / "aside", path / "house" / name)
    with make(path, durability="process") as engine:
        assert statuses(engine) == ["open", "open"]


# ------------------------------------------------------------------------------- damaged rows


def harm_row(path: Path, shard: int, table: bytes, serial: int) -> None:
    """Changes a byte of one row, with an engine that is closed."""
    with lmdb.open(str(path / f"shard-{shard:03d}/store"), max_dbs=32, lib_version=0) as store:
        rows = store.open_db(table)
        key = serial.to_bytes(8, "big")
        with store.begin(write=True) as transaction:
            stored = bytes(transaction.get(key, db=rows) or b"")
            harmed = bytes([stored[0] ^ 1]) + stored[1:]
            transaction.put(key, harmed, db=rows)
            assert unseal(key, harmed) is None
            assert unseal(key, seal(key, b"x")) == b"x"


def serial_of(engine: Engine, ticket_id: str) -> int:
    return engine.desk("test").parse(ticket_id).serial


def test_a_damaged_head_costs_one_ticket(tmp_path: Path, clock: ManualClock) -> None:
    path = tmp_path / "data"
    options: dict[str, Any] = {"durability": "process", "clock": clock}
    with make(path, run=False, **options) as engine:
        task = engine.task(name="note")(lambda n: n)
        later = task.options(delay="1h", key=key_of(0))
        ids = [later.submit(n).id for n in range(5)]
        serial = serial_of(engine, ids[2])
    harm_row(path, 0, b"heads", serial)
    with make(path, **options) as engine:
        engine.task(name="note")(lambda n: n)
        bad = engine.ticket(ids[2])
        for ask in (bad.info, bad.cancel, bad.attempts):
            with pytest.raises(StorageDamaged, match=f"serial {serial}"):
                ask()
        clock.advance(3_600_000)
        good = [engine.ticket(each).result("20s") for each in ids if each != ids[2]]
        assert good == [0, 1, 3, 4]
        assert engine.stats().shards[0].quarantined == 1
        assert statuses(engine) == ["open", "open"]


def test_a_damaged_payload_is_never_run_and_keeps_nobody_of_its_key_waiting(
    tmp_path: Path, clock: ManualClock
) -> None:
    path = tmp_path / "data"
    options: dict[str, Any] = {"durability": "process", "clock": clock}
    with make(path, run=False, **options) as engine:
        task = engine.task(name="note")(lambda n: n)
        later = task.options(delay="1h", key=key_of(0))
        ids = [later.submit(n).id for n in range(4)]
        serial = serial_of(engine, ids[0])
    harm_row(path, 0, b"bodies", serial)
    with make(path, **options) as engine:
        ran: list[int] = []
        engine.task(name="note")(lambda n: ran.append(n))
        clock.advance(3_600_000)
        for each in ids[1:]:
            engine.ticket(each).result("20s")
        assert ran == [1, 2, 3]
        info = engine.ticket(ids[0]).info()
        assert (info.attempts, info.fence) == (0, 0)
        assert runtime_of(engine).attempts.running == 0


def test_a_damaged_result_is_told_and_not_taken_for_forgotten(tmp_path: Path) -> None:
    path = tmp_path / "data"
    with make(path, durability="process") as engine:
        task = engine.task(name="note", retry=None)(lambda n: 1 // n)
        done = task.options(key=key_of(0)).submit(1)
        assert done.result("20s") == 1
        with pytest.raises(TicketFailed):
            task.options(key=key_of(0)).submit(0).result("20s")
        serial = serial_of(engine, done.id)
    harm_row(path, 0, b"bodies", serial)
    with make(path, durability="process") as engine:
        with pytest.raises(StorageDamaged):
            engine.ticket(done.id).result()
        assert engine.ticket(done.id).info().state == "done"
