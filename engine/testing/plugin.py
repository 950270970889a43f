"""The pytest plugin: it registers itself when parkade is installed, and is called `parkade`.

It brings two fixtures, `parkade_engine` and `parkade_clock`. A project overrides either in its
conftest.py. What they need is imported when the first test asks for them.
"""

from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

if TYPE_CHECKING:
    from parkade.testing.clock import ManualClock
    from parkade.testing.engine import TestEngine

__all__ = ["parkade_clock", "parkade_engine"]


@pytest.fixture
def parkade_clock() -> "ManualClock":
    """The clock of `parkade_engine`: it stands until a test moves it."""
    from parkade.testing.clock import ManualClock

    return ManualClock()


@pytest.fixture
def parkade_engine(tmp_path: Path, parkade_clock: "ManualClock") -> "Iterator[TestEngine]":
    """An open `TestEngine` on a new directory: nothing runs before `run_until_idle`."""
    from parkade.testing.engine import TestEngine

    with TestEngine(tmp_path / "parkade", clock=parkade_clock) as engine:
        yield engine
