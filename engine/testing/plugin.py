"""The pytest plugin: it registers itself where parkade is installed, and is called `parkade`.

It brings two fixtures, `parkade_engine` and `parkade_clock`. A project may have its own of either
in its conftest.py.
"""

from collections.abc import Iterator
from pathlib import Path

import pytest

from parkade.testing.clock import ManualClock
from parkade.testing.engine import TestEngine

__all__ = ["parkade_clock", "parkade_engine"]


@pytest.fixture
def parkade_clock() -> ManualClock:
    """The clock of `parkade_engine`: it stands until a test moves it."""
    return ManualClock()


@pytest.fixture
def parkade_engine(tmp_path: Path, parkade_clock: ManualClock) -> Iterator[TestEngine]:
    """An open `TestEngine` on a new directory: no handler runs before `run_until_idle`."""
    with TestEngine(tmp_path / "parkade", clock=parkade_clock) as engine:
        yield engine
