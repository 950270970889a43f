"""Resharding, killed before each call that changes the disk: the old shards count, or the new."""

import os
import shutil
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest

from kit.clock import ManualClock
from kit.engines import make, rig
from kit.every_state import SMALL, look
from kit.faulty import StepDisk
from parkade import Fail
from parkade.reader import existing_manifest
from parkade.resharding import Tools, reshard
from parkade.store.disk import Handle, RealDisk
from parkade.store.parked import Parked
from parkade.verifying import verify_parts

BEFORE, AFTER = 2, 3
NEVER = 1_000_000


def unheard(what: str, done: int, of: int) -> None:
    return


class Killed(BaseException):
    """The process is gone: nothing that it does after this reaches the disk."""


class Unsynced(StepDisk):
    """What a process has written outlives it, synced or not."""

    def pwrite_durable(self, handle: Handle, buffers: Sequence[bytes], offset: int) -> None:
        self.pwrite(handle, buffers, offset)

    def fdatasync(self, handle: Handle) -> None:
        self._step("fdatasync")

    def fsync_directory(self, path: str) -> None:
        self._step(f"fsync_directory {path}")


class Mortal:
    """A process that dies before one call of those that change the disk, commits among them."""

    def __init__(self, steps: int) -> None:
        self.steps_left = steps
        self.disk = Unsynced(lambda _, name: self.step(name))
        self.last = ""

    def step(self, name: str) -> None:
        self.steps_left -= 1
        if self.steps_left < 0:
            self.last = self.last or name
            raise Killed

    def open_store(self, directory: str, **options: object) -> Parked:
        self.step(f"open {directory}")
        settings: dict[str, Any] = options | {"sync": False}
        return Parked.open(directory, commit_hook=self.step, **settings)

    def reshard(self, path: Path) -> bool:
        """Whether it lived to the end."""
        tools = Tools(self.disk, ManualClock(), os.urandom, self.open_store, SMALL)
        try:
            reshard(tools, str(path), AFTER, unheard)
        except Killed:
            return False
        return True


@pytest.fixture(scope="module")
def left(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A few tickets in the stores, a few in the journals alone."""
    path = tmp_path_factory.mktemp("left") / "data"
    for life in range(2):
        engine = rig(make(path, shards=BEFORE, durability="process"), sizing=SMALL)

        @engine.task
        def plain(n: int) -> int:
            if n % 3 == 0:
                raise Fail(f"card {n}")
            return n

        with engine:
            for n in range(6):
                plain.options(key=f"k{n % 2}", unique=f"u{life}{n}").submit(n)
                plain.options(delay="30d", tags={"n": str(n)}).submit(n)
            tickets = [plain.submit(n) for n in range(3)]
            assert tickets[1].result(20) == 1
    return path


def problems(path: Path) -> list[str]:
    disk = RealDisk()
    manifest = existing_manifest(disk, str(path), 0)
    parts = verify_parts(disk, str(path), manifest, deep=True)
    return [problem.text for part in parts for problem in part.problems]


def shards_of(path: Path) -> list[str]:
    return sorted(name for name in os.listdir(path) if "shard" in name)


def open_and_look(path: Path, steps: int) -> int:
    """An engine is opened, whatever the steps before; how many shards it found."""
    with make(path, shards=None, run=False) as engine:
        shards = len(engine.stats().shards)
    assert shards_of(path) == [f"shard-{number:03d}" for number in range(shards)]
    return shards


def kill_and_finish(path: Path, steps: int) -> int:
    """It is begun again, killed once more, and comes to its end."""
    assert Mortal(steps // 2).reshard(path) or Mortal(NEVER).reshard(path)
    return AFTER


def finish_and_verify(path: Path, steps: int) -> int:
    """It is begun again, and all that it left agrees."""
    assert Mortal(NEVER).reshard(path)
    assert steps % 2 or problems(path) == []
    return AFTER


AFTERWARDS = (open_and_look, kill_and_finish, finish_and_verify)


@pytest.mark.parametrize("first", range(len(AFTERWARDS)))
def test_killed_before_any_call_it_is_as_before_or_done_and_goes_on(
    left: Path, tmp_path: Path, first: int
) -> None:
    seen, path = look(left), tmp_path / "data"
    ends: set[int] = set()
    steps, is_over = first, False
    while not is_over:
        shutil.copytree(left, path)
        mortal = Mortal(steps)
        is_over = mortal.reshard(path)
        shards = AFTERWARDS[first](path, steps)
        ends.add(shards)
        assert look(path) == seen, (steps, mortal.last)
        assert shards_of(path) == [f"shard-{number:03d}" for number in range(shards)]
        shutil.rmtree(path)
        steps += len(AFTERWARDS)
    assert ends == ({BEFORE, AFTER} if first == 0 else {AFTER})
    assert steps > 60
