"""A whole engine through crashes, torn writes, failed syncs, full disks and clocks that jump.

    make simulate SEEDS=2000        many histories
    make simulate SEED=17           the one of this seed, shrunk to a short script if it fails

Every seed is a history: what the application asks, how handlers end, which thread gets on, and what
the machine does to it all. docs/testing.md, Simulation.
"""

import os
import subprocess
import sys
from collections import Counter
from pathlib import Path

import pytest

from simulation.history import History, fails, history_of, run, shrink, survey

PART = 20
TOTALS: Counter[str] = Counter()  # of the histories that this process has run
RUN: list[int] = []
# What a hundred histories must have met at least, or they show little.
MINIMA_PER_100 = {
    "steps": 80_000,
    "steps during passes": 4_000,
    "answers": 1_800,
    "attempts": 2_000,
    "crashes": 90,
    "torn writes": 150,
    "lost writes": 70,
    "failed flushes": 10,
    "disk commits": 2_400,
    "disk failed commits": 35,
    "completions during sweeps": 120,
    "completions during checkpoints": 100,
    "recovered shards": 600,
    "steps back": 10,
    "clocks set while away": 20,
    "disk map growths": 20,
    "full disks": 20,
    "damaged shards": 10,
    "listings": 20,
    "rests where all is well": 800,
}


def tell(history: History) -> str:
    shorter = shrink(history, fails)
    listed = "\n".join(f"    {action.name} {action.number}" for action in shorter.actions)
    return (
        f"seed {history.seed} fails; replay it: make simulate SEED={history.seed}\n"
        f"{history.options}, shrunk to {len(shorter.actions)} actions:\n{listed}"
    )


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    """Histories in parts, so that none takes as long as a test that hangs."""
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
    if failing is not None:
        history = history_of(failing)
        try:
            run(history)
        except AssertionError as error:
            raise AssertionError(tell(history)) from error
        raise AssertionError(f"seed {failing} fails in another process, and not in this one")


def test_the_histories_have_met_all_that_a_machine_does() -> None:
    listed = ", ".join(f"{count} {name}" for name, count in sorted(TOTALS.items()))
    print(f"\n{len(RUN)} histories: {listed}")
    if len(RUN) >= 100:
        few = {
            name: (TOTALS[name], minimum * len(RUN) // 100)
            for name, minimum in MINIMA_PER_100.items()
            if TOTALS[name] < minimum * len(RUN) // 100
        }
        assert not few, ("met too seldom: what, how often, how often at least", few)


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
