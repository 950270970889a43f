"""A handful of the deliberate faults of `make sabotage`: the simulator catches each within few
seeds."""

from pathlib import Path

import pytest

from simulation.sabotage import FAULTS, caught_within

SEEDS_MAX = 30
SOON = (
    "answered_at_once (sabotage)",
    "the_dirty_evicted (sabotage_store)",
    "a_permit_freed_before_the_attempt_ends",
    "an_entry_dropped_when_it_is_sent",
    "the_wall_clock_for_the_settled_one",
)


@pytest.mark.parametrize("name", SOON)
def test_a_deliberate_fault_is_caught(name: str) -> None:
    count, _ = caught_within(name, SEEDS_MAX)
    assert count is not None, f"{SEEDS_MAX} histories and nobody noticed"


def test_each_fault_names_a_test_that_is_there() -> None:
    root = Path(__file__).parents[2]
    for fault in FAULTS:
        file, _, test = fault.caught_by.partition("::")
        name = test.partition("[")[0]
        assert f"def {name}" in (root / file).read_text(), fault


def test_each_fault_has_a_name_of_its_own_and_there_are_many() -> None:
    names = [fault.name for fault in FAULTS]
    assert len(set(names)) == len(names) >= 35
