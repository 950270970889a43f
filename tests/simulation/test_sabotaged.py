"""A sample of the deliberate faults of `make sabotage`: the simulator catches each within few
seeds."""

import ast
from itertools import chain
from pathlib import Path

import pytest

from simulation.faults import FAULTS
from simulation.sabotage import catch, listed, recorded

SEEDS_MAX = 20
SAMPLE = (  # of each subject some that are caught soon
    "answered_at_once",
    "NeverSyncsItsDirectory",
    "KnowsNoProof",
    "the_next_lsn_of_the_journal_alone",
    "the_dirty_evicted",
    "no_tombstones",
    "the_overlay_emptied_at_the_cut",
    "a_horizon_that_is_a_time",
    "a_key_that_is_not_handed_on",
    "any_fence_will_do",
    "suspects_side_by_side",
    "a_permit_freed_before_the_attempt_ends",
    "an_entry_dropped_when_it_is_sent",
    "what_was_taken_is_forgotten",
    "serials_given_out_without_a_lease",
    "the_wall_clock_for_the_settled_one",
)


@pytest.mark.parametrize("name", SAMPLE)
def test_a_deliberate_fault_is_caught(name: str) -> None:
    fault = next(fault for fault in FAULTS if fault.name == name)
    caught = catch(fault, chain([recorded().get(name, 0)], range(SEEDS_MAX)))
    assert caught is not None, (
        f"neither the seed that docs/testing.md records nor {SEEDS_MAX} others: a law is missing, "
        f"or catching it takes more now (make sabotage FAULT={name}; make sabotage RECORD=1)"
    )


def test_each_fault_can_be_switched_on(monkeypatch: pytest.MonkeyPatch) -> None:
    """What it breaks is where it says."""
    for fault in FAULTS:
        with monkeypatch.context() as patch:
            fault.broken(patch)


def test_each_fault_names_a_test_that_is_there() -> None:
    root = Path(__file__).parents[2]
    for fault in FAULTS:
        file, _, test = fault.test.partition("::")
        tree = ast.parse((root / file).read_text(encoding="utf-8"))
        defined = {node.name for node in ast.walk(tree) if isinstance(node, ast.FunctionDef)}
        assert test.partition("[")[0] in defined, fault
        assert "tests/simulation/" not in file, "a test of its own"


def test_each_fault_has_a_name_of_its_own_and_its_row_in_the_table() -> None:
    names = [fault.name for fault in FAULTS]
    assert len(set(names)) == len(names) >= 60
    assert set(names) == listed(), "make sabotage RECORD=1"
