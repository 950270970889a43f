"""The pytest plugin, as a project meets it that has parkade installed."""

import os
import subprocess
import sys
from importlib.metadata import entry_points
from pathlib import Path

from parkade.testing import ManualClock, TestEngine

CONFTEST = """
from datetime import UTC, datetime
import pytest
from parkade.testing import ManualClock

@pytest.fixture
def parkade_clock():
    return ManualClock(datetime(2031, 5, 1, tzinfo=UTC))
"""
TESTS = """
from parkade.testing import TestEngine

def test_month(parkade_engine, parkade_clock):
    @parkade_engine.task
    def note() -> None: ...

    assert parkade_engine.clock is parkade_clock
    note.options(delay="31d").submit()
    assert parkade_engine.run_until_idle(skip_time=True).done == 1
    assert parkade_clock.now().month == 6

def test_other(parkade_engine):
    assert parkade_engine.stats().done_total == 0
    assert parkade_engine.clock.now().month == 5
"""


def test_the_plugin_is_registered_under_the_name_of_the_package() -> None:
    (found,) = entry_points(group="pytest11", name="parkade")
    assert found.value == "parkade.testing.plugin"


def test_the_fixtures_are_one_engine_on_a_new_directory_and_its_clock(
    parkade_engine: TestEngine, parkade_clock: ManualClock, tmp_path: Path
) -> None:
    assert parkade_engine.clock is parkade_clock
    assert Path(parkade_engine.path) == tmp_path / "parkade"
    assert (tmp_path / "parkade" / "manifest.json").exists()
    assert not (tmp_path / "parkade" / "control.sock").exists()


def test_a_project_sets_the_clock_in_its_conftest_and_no_class_is_collected(
    tmp_path: Path,
) -> None:
    (tmp_path / "conftest.py").write_text(CONFTEST)
    (tmp_path / "test_it.py").write_text(TESTS)
    done = subprocess.run(
        [sys.executable, "-W", "error", "-m", "pytest", "-q", "-p", "parkade.testing.plugin"],
        cwd=tmp_path,
        env=os.environ | {"PYTEST_DISABLE_PLUGIN_AUTOLOAD": "1"},
        capture_output=True,
        text=True,
        timeout=50,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    assert "2 passed" in done.stdout
