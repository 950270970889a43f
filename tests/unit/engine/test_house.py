"""The house: what belongs to no shard, in a journal and a store of its own."""

import errno
import os
from collections.abc import Sequence
from pathlib import Path

import pytest

from kit.clock import START_MS, ManualClock
from kit.engines import make, rig, runtime_of, when
from kit.faulty import FaultyDisk
from parkade.guards import Pause
from parkade.house import House, HouseState
from parkade.limits import SERIAL_LEASE
from parkade.opening import Identity
from parkade.store.disk import Handle, RealDisk
from parkade.store.errors import Damage, WriteFailed
from parkade.store.journal import Sizing
from parkade.store.record import BreakerSet, Leased, LimitSet, Paused, Resumed

SALT = b"house"
SIZING = Sizing(segment_bytes_first=64 << 10, frame_bytes_max=8 << 10, reserve_bytes=1 << 10)


def entropy(count: int) -> bytes:
    entropy.calls += 1  # type: ignore[attr-defined]
    return entropy.calls.to_bytes(count, "big")  # type: ignore[attr-defined, no-any-return]


entropy.calls = 0  # type: ignore[attr-defined]


def open_house(path: Path, *, is_new: bool = False, salt: bytes = SALT) -> House:
    identity = Identity(str(path), salt, "memory", is_new)
    return House.open(RealDisk(), identity, sizing=SIZING, entropy=entropy)


def test_a_lease_outlives_the_process_and_the_checkpoint(tmp_path: Path) -> None:
    house = open_house(tmp_path, is_new=True)
    assert house.state.lease_until == 0
    house.append([Leased(100)])
    house.append([Leased(50)])
    assert house.state.lease_until == 100, "it only grows"
    house.close(is_clean=False)
    house = open_house(tmp_path)
    assert house.state.lease_until == 100
    house.checkpoint(now_ms=1, settled_ms=1)
    house.append([Leased(200)])
    house.close(is_clean=True)
    house = open_house(tmp_path)
    assert (house.state.lease_until, house.lsn) == (200, 3)
    house.checkpoint(now_ms=1, settled_ms=1)
    assert house.journal.segments == 1
    house.close(is_clean=True)
    house = open_house(tmp_path)
    assert house.state.lease_until == 200
    house.close(is_clean=True)


def test_another_directorys_house_is_no_house(tmp_path: Path) -> None:
    open_house(tmp_path, is_new=True).close(is_clean=True)
    with pytest.raises(Damage, match="belongs to another directory"):
        open_house(tmp_path, salt=b"other")


def test_being_killed_again_and_again_piles_up_no_journal(tmp_path: Path) -> None:
    for _ in range(15):
        with make(tmp_path / "data", run=False) as engine:
            runtime_of(engine).abandon()
    with make(tmp_path / "data", run=False) as engine:
        runtime = runtime_of(engine)
        assert runtime.house.journal.segments <= 6
        assert runtime.house.state.lease_until > 0


def test_every_life_begins_behind_the_lease_of_the_one_before(tmp_path: Path) -> None:
    clock = ManualClock()
    ids: list[str] = []
    for _ in range(4):
        with make(tmp_path / "data", clock=clock, run=False) as engine:
            task = engine.task(name="note")(lambda n: n)
            ids += [task.submit(n).id for n in range(3)]
            runtime_of(engine).abandon()
        clock.set_wall_ms(START_MS - 86_400_000)
    assert ids == sorted(set(ids)), "whatever the clock does, no id comes twice"


def test_a_lease_is_renewed_in_the_background_and_again_after_a_failure(tmp_path: Path) -> None:
    clock, disk = ManualClock(), FaultyDisk()
    engine = make(tmp_path / "data", clock=clock, run=False)
    vars(engine)["_options"].disk = disk
    with engine:
        task = engine.task(name="note")(lambda n: n)
        later = task.options(delay="3d")
        house = runtime_of(engine).house
        first = house.state.lease_until
        when(engine, lambda runtime: all(shard.room.is_there for shard in runtime.shards))
        disk.is_full = True
        disk.break_next("preallocate", "house")
        assert not house.journal.has_room(1 << 20), "it wants a spare from now on"
        clock.advance((SERIAL_LEASE >> 20) // 2)
        later.submit(1)
        assert disk.met.acquire(timeout=20)
        when(engine, lambda runtime: not runtime.host._posted)
        assert house.state.lease_until == first
        disk.is_full = False
        for _ in range(100):
            clock.advance(70_000)
            later.submit(2)
            if house.state.lease_until > first:
                break
            when(engine, lambda runtime: True)
        assert house.state.lease_until > first


def test_a_full_disk_keeps_no_change_of_an_operator_out_of_the_house(tmp_path: Path) -> None:
    disk = FaultyDisk()
    engine = rig(make(tmp_path / "data"), disk=disk)
    with engine:
        assert not runtime_of(engine).house.journal.has_room(1 << 20), "it wants a spare"
        disk.is_full = True
        engine.pause(task="note", reason="the disk is full")
        assert disk.met.acquire(blocking=False), "a spare was refused"
        disk.is_full = False
    with make(tmp_path / "data", run=False) as engine:
        [pause] = runtime_of(engine).house.state.pauses.values()
        assert pause.reason == "the disk is full"


def test_a_change_that_failed_and_is_in_the_file_all_the_same_is_taken_back(tmp_path: Path) -> None:
    """Its caller was told that it is not made."""

    class Late(RealDisk):
        fails = False

        def pwrite_durable(self, handle: Handle, buffers: Sequence[bytes], offset: int) -> None:
            super().pwrite_durable(handle, buffers, offset)
            if self.fails:
                raise OSError(errno.EIO, os.strerror(errno.EIO))

    disk = Late()
    identity = Identity(str(tmp_path), SALT, "process", is_new=True)
    house = House.open(disk, identity, sizing=SIZING, entropy=entropy)
    house.append([Leased(10), Paused("task:kept", None, ""), LimitSet("task:kept", b"1")])
    was = [Paused("task:new", None, ""), Resumed("task:kept"), LimitSet("task:kept", b"2")]
    disk.fails = True
    with pytest.raises(WriteFailed):
        house.append([*was, BreakerSet("psp", b"tripped"), Leased(30)])
    disk.fails = False
    house.recover()
    house.append([LimitSet("task:other", b"3")])
    kept = HouseState(
        30, {}, {"task:kept": Pause(None, "")}, {"task:kept": b"1", "task:other": b"3"}
    )
    assert house.state == kept
    house.close(is_clean=False)
    assert open_house(tmp_path).state == kept
