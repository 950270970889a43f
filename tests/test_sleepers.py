"""A hundred thousand tickets asleep: a tenth of what `make load` parks, with every change."""

import sys
from pathlib import Path

import pytest

from kit.sleeping import Measured, measure

# What parking takes for itself is the same for a million.
PARKED_BYTES_MAX = 60_000_000
# In memory they would take 50 MB and more.
OPENED_BYTES_MAX = 10_000_000

pytestmark = pytest.mark.skipif(
    sys.platform != "linux", reason="tells own memory from mapped files"
)


@pytest.fixture(scope="module")
def measured(tmp_path_factory: pytest.TempPathFactory) -> Measured:
    """Both steps, once for all tests."""
    directory: Path = tmp_path_factory.mktemp("sleepers")
    return measure(directory, 100_000)


def test_sleepers_leave_memory_and_one_among_them_runs(measured: Measured) -> None:
    measured.check()


def test_an_open_holds_no_more_for_all_the_sleepers_there_are(measured: Measured) -> None:
    assert measured.opened_bytes <= OPENED_BYTES_MAX, measured


def test_parking_gives_back_the_memory_that_it_took(measured: Measured) -> None:
    assert measured.parked["held_bytes"] <= PARKED_BYTES_MAX, measured
