"""What is told of a breaker outlives the process, also when nobody knows of its outcome yet."""

import shutil
import threading
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

import pytest

from kit.engines import PATIENCE_S, Gate, hold_handlers, make, rig, runtime_of
from kit.faulty import FaultyDisk
from parkade import Breaker, Engine, StorageError
from parkade.store.disk import Handle

BREAKER = Breaker("psp", failures=1, open_for="1h", max_open_for="1h")


class SlowDisk(FaultyDisk):
    """While it is slow, what a shard writes waits."""

    def __init__(self) -> None:
        super().__init__()
        self.waits = threading.Semaphore(0)
        self._goes_on = threading.Event()
        self._goes_on.set()

    @contextmanager
    def slow(self) -> Iterator[None]:
        self._goes_on.clear()
        try:
            yield
        finally:
            self._goes_on.set()

    def pwrite(self, handle: Handle, buffers: Sequence[bytes], offset: int) -> None:
        if "/shard-" in self._paths[handle] and not self._goes_on.is_set():
            self.waits.release()
            assert self._goes_on.wait(PATIENCE_S)
        super().pwrite(handle, buffers, offset)


def fail_at(engine: Engine, gate: Gate) -> None:
    """Submits a ticket that fails as soon as the gate is open; returns when it is there."""

    @engine.task(target="psp", breaker=BREAKER, retry=3)
    def charge() -> None:
        gate.enter()
        raise ConnectionError("no answer")

    charge.submit()
    gate.wait()


def state_after_a_kill(path: Path) -> str:
    """As the next process finds it, if this one is killed now."""
    copy = path.with_name("copy")
    shutil.copytree(path, copy, ignore=shutil.ignore_patterns("control.sock", "lock"))
    with make(copy, run=False) as engine:
        return engine.breakers["psp"].state


def test_a_trip_that_is_told_outlives_a_kill_though_its_outcome_is_not_durable_yet(
    tmp_path: Path,
) -> None:
    disk = SlowDisk()
    with rig(make(tmp_path / "data"), disk=disk) as engine, hold_handlers() as gate:
        runtime_of(engine).host.lone_frames.is_allowed = False  # or the core would wait itself
        fail_at(engine, gate)
        with disk.slow():
            gate.open()
            assert disk.waits.acquire(timeout=PATIENCE_S)
            assert [breaker.state for breaker in engine.breakers.list()] == ["open"]
            assert state_after_a_kill(tmp_path / "data") == "open"


def test_a_turn_that_could_not_be_written_is_written_before_anybody_sees_it(
    tmp_path: Path,
) -> None:
    disk = FaultyDisk()
    with rig(make(tmp_path / "data", run=False), disk=disk) as engine:
        disk.break_next("write", "/house/")
        disk.break_next("write", "/house/")  # and once more, when it is tried again
        with pytest.raises(StorageError):
            engine.breakers.force_open("psp")
        assert engine.breakers["psp"].state == state_after_a_kill(tmp_path / "data")
