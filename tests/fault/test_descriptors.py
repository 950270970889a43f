"""The process runs out of file descriptors: shards wait for one, and close for nobody."""

import errno
import os
import subprocess
import sys
import threading
from pathlib import Path

import pytest

from kit.clock import ManualClock
from kit.engines import PATIENCE_S, make, rig, when
from kit.faulty import FaultyDisk
from parkade import Engine, StorageError
from parkade.shard.ticket import part_of_key

TESTS = Path(__file__).parents[1]
KEYS = [next(f"k{n}" for n in range(100) if part_of_key(f"k{n}") % 2 == shard) for shard in (0, 1)]


def recovered(engine: Engine, count: int) -> None:
    when(
        engine, lambda runtime: runtime.shards[0].recoveries == count and runtime.shards[0].is_open
    )


@pytest.fixture
def clock() -> ManualClock:
    return ManualClock()


@pytest.fixture
def disk() -> FaultyDisk:
    return FaultyDisk()


def test_without_a_descriptor_a_shard_waits_for_one_and_closes_for_nobody(
    tmp_path: Path, disk: FaultyDisk, clock: ManualClock
) -> None:
    engine = rig(make(tmp_path / "data", durability="process", clock=clock), disk=disk)
    with engine:
        task = engine.task(name="note")(lambda n: n)
        kept = task.options(key=KEYS[0]).options(delay="1h").submit(1)
        for count in (1, 2, 3):
            disk.break_next("write", "shard-000/journal", code=errno.EMFILE)
            disk.break_next("pread", "shard-000/journal", code=errno.ENFILE)
            with pytest.raises(StorageError, match="may or may not have been accepted"):
                task.options(key=KEYS[0]).submit(2)
            assert task.options(key=KEYS[1]).submit(3).result("20s") == 3
            for _ in range(2):
                assert disk.met.acquire(timeout=PATIENCE_S)
                when(engine, lambda runtime: runtime.shards[0].recover_at_ms is not None)
                clock.advance(1_000)
            recovered(engine, count)
        assert [shard.status for shard in engine.stats().shards] == ["open", "open"]
        assert kept.info().state == "scheduled"
        assert task.options(key=KEYS[0]).submit(4).result("20s") == 4


def test_a_spare_that_finds_no_descriptor_is_made_when_there_is_one(
    tmp_path: Path, disk: FaultyDisk, clock: ManualClock
) -> None:
    engine = rig(make(tmp_path / "data", durability="process", clock=clock, shards=1), disk=disk)
    with engine:
        task = engine.task(name="note")(lambda text: len(text))
        later = task.options(delay="1h")
        assert task.submit("x" * 100_000).result("20s") == 100_000
        when(engine, lambda runtime: runtime.shards[0].journal.has_spare)
        disk.break_next("preallocate", "shard-000/journal", code=errno.EMFILE)
        many = [later.submit("x" * 100_000) for _ in range(8)]
        waiting = threading.Thread(
            target=lambda: many.extend(later.submit("x" * 100_000) for _ in range(32))
        )
        waiting.start()
        assert disk.met.acquire(timeout=PATIENCE_S)
        when(engine, lambda runtime: not runtime.shards[0].room.spare_in_flight)
        clock.advance(1_000)
        waiting.join(PATIENCE_S)
        assert not waiting.is_alive()
        assert len(many) == 40
        assert [shard.recoveries for shard in engine.stats().shards] == [0]


def test_a_process_that_has_no_descriptor_left_goes_on_when_it_has(tmp_path: Path) -> None:
    done = subprocess.run(
        [sys.executable, "-m", "kit.starved", os.fspath(tmp_path / "data")],
        cwd=TESTS, capture_output=True, text=True, timeout=55,
    )  # fmt: skip
    assert done.stdout == "fine\n", done.stderr[-4_000:]
