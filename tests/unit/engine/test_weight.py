"""What an engine that only runs tickets brings into its process: modules, threads, buffers."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from parkade.store import disk as disk_module
from parkade.store.disk import RealDisk

LIFE = """
import json, sys, threading
import parkade
imported = set(sys.modules)
engine = parkade.Engine(sys.argv[1])

@engine.task
async def double(number: int) -> int:
    return 2 * number

with engine:
    assert double.submit(4).result("20s") == 8
    threads = sorted(thread.name for thread in threading.enumerate())
print(json.dumps([sorted(imported), sorted(sys.modules), threads]))
"""

FOR_OPERATORS = {
    "parkade.backing_up", "parkade.compacting", "parkade.control_desk", "parkade.exporting",
    "parkade.onlooker", "parkade.reader", "parkade.rebuilding", "parkade.repairing",
    "parkade.resharding", "parkade.salvaging", "parkade.shard.check", "parkade.status_facts",
    "parkade.store.copying", "parkade.store.page_walk", "parkade.store.salvage",
    "parkade.store.verify", "parkade.testing", "parkade.verifying",
}  # fmt: skip
HARDLY_EVER = {"difflib", "multiprocessing", "shutil", "subprocess", "tempfile"}
OF_ASYNCIO = {"subprocess"}  # it imports that itself
EXTRAS = {"click", "cronsim", "html", "http", "pytest", "sqlite3", "unittest"}


@pytest.fixture(scope="module")
def life(tmp_path_factory: pytest.TempPathFactory) -> list[list[str]]:
    """What there was after the import, and after a ticket; and the threads while it ran."""
    place = tmp_path_factory.mktemp("weight")
    done = subprocess.run(
        [sys.executable, "-c", LIFE, os.fspath(place / "data")],
        cwd=place,
        capture_output=True, text=True, timeout=55, check=True,
    )  # fmt: skip
    found: list[list[str]] = json.loads(done.stdout)
    return found


def test_an_engine_that_runs_tickets_imports_nothing_that_operators_want(
    life: list[list[str]],
) -> None:
    imported, used, _ = map(set, life)
    unwanted = FOR_OPERATORS | HARDLY_EVER - OF_ASYNCIO | EXTRAS
    assert not imported & unwanted
    assert not used & unwanted


def test_no_thread_is_there_before_somebody_needs_it(life: list[list[str]]) -> None:
    *_, threads = life
    assert len(threads) == 15
    assert not [name for name in threads if name.startswith("parkade-thread")]


def test_zeros_are_written_from_a_small_buffer(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A large one would be of the process's memory for good."""
    largest = 0

    def write(handle: int, buffers: list[bytes], offset: int, flags: int) -> None:
        nonlocal largest
        largest = max([largest, *map(len, buffers)])
        assert os.pwritev(handle, buffers, offset) == sum(map(len, buffers))

    disk = RealDisk()
    monkeypatch.setattr(disk, "_write_all", write)
    size = 3 * disk_module.ZERO_FILL_BYTES + 5 * disk_module.ZERO_BYTES + 7
    handle = disk.open(os.fspath(tmp_path / "zeros"), create=True)
    try:
        disk.preallocate(handle, size)
    finally:
        disk.close(handle)
    assert (tmp_path / "zeros").read_bytes() == bytes(size)
    assert largest == disk_module.ZERO_BYTES
