"""A whole engine through crashes, torn writes, failed syncs, full disks and clocks that jump.

Every seed is a history: what the application asks, how handlers end, which thread gets on, and what
the machine does to it all. docs/testing.md, Simulation. `make simulate` runs more of them, or one
again.
"""

import os
import subprocess
import sys
from collections import Counter
from pathlib import Path

import pytest

from simulation.survey import few, survey, tell, text_of

PART = 20
TOTALS: Counter[str] = Counter()  # of the histories that this process has run
RUN: list[int] = []


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    """Histories in parts, so that a run shows how far it is."""
    if "histories" in metafunc.fixturenames:
        only, count = metafunc.config.getoption("--seed"), metafunc.config.getoption("--seeds")
        seeds = list(range(count)) if only is None else [only]
        part = PART * metafunc.config.getoption("--workers")
        parts = [seeds[at : at + part] for at in range(0, len(seeds), part)]
        metafunc.parametrize("histories", parts, ids=lambda part: f"from-{part[0]}")


def test_nothing_told_is_lost_whatever_the_machine_does(
    histories: list[int], pytestconfig: pytest.Config
) -> None:
    totals, failing = survey(histories, pytestconfig.getoption("--workers"))
    TOTALS.update(totals)
    RUN.extend(histories)
    assert failing is None, tell(failing)


def test_the_histories_have_met_all_that_a_machine_does() -> None:
    assert RUN
    print(f"\n{text_of(TOTALS, len(RUN))}")
    assert not few(TOTALS, len(RUN)), "met too seldom: what, how often, how often at least"


def test_a_seed_is_the_same_history_in_every_process() -> None:
    code = "from simulation.history import *; print(run(history_of(3)).digest)"
    folder = str(Path(__file__).parents[1])
    digests = {
        subprocess.run(
            [sys.executable, "-c", code],
            env=os.environ | {"PYTHONPATH": folder, "PYTHONHASHSEED": hash_seed},
            capture_output=True,
            check=True,
            text=True,
        ).stdout
        for hash_seed in ("1", "2")
    }
    assert len(digests) == 1
