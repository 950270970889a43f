"""Millions of tickets asleep for days: what they hold is on disk, not in memory.

`make load` parks a million; `make load SLEEPERS=10000000` ten, which takes some minutes and 3 GB.
"""

import os
import sys
from pathlib import Path

import pytest

from kit.sleeping import measure

COUNT = int(os.environ.get("SLEEPERS", 1_000_000))
MILLION = 1_000_000
# What parking takes for itself, and what each million may add to it.
PARKED_BYTES_MAX = 50_000_000 + COUNT // MILLION * 10_000_000
OPENED_BYTES_MAX = 57_000_000 + COUNT // MILLION * 2_300_000
# Segments that are allocated ahead included, which are most of it where there are few tickets.
DISK_BYTES_MAX = max(COUNT * 320, 20_000_000)


@pytest.mark.load
@pytest.mark.skipif(sys.platform != "linux", reason="tells own memory from mapped files")
def test_millions_of_sleepers_are_not_in_memory_and_one_among_them_runs(tmp_path: Path) -> None:
    measured = measure(tmp_path, COUNT)
    measured.check()
    assert measured.opened_bytes <= OPENED_BYTES_MAX, measured
    assert measured.parked["held_bytes"] <= PARKED_BYTES_MAX, measured
    assert measured.parked["disk_bytes"] <= DISK_BYTES_MAX, measured
