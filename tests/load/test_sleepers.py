"""A million tickets asleep for days: what they hold is on disk, not in memory."""

import sys
from pathlib import Path

import pytest

from kit.sleeping import measure

BYTES_MAX = 60_000_000


@pytest.mark.load
@pytest.mark.skipif(sys.platform != "linux", reason="tells own memory from mapped files")
def test_a_million_sleepers_are_not_in_memory_and_one_among_them_runs(tmp_path: Path) -> None:
    measured = measure(tmp_path, 1_000_000)
    measured.check()
    assert measured.opened_bytes <= BYTES_MAX, measured
    assert measured.parked["held_bytes"] <= BYTES_MAX, measured
