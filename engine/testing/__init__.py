"""The testing kit: engines without threads and waits, and attempts without an engine.

from parkade.testing import TestEngine

with TestEngine() as engine:
    ...
    engine.run_until_idle(skip_time=True)
"""

from parkade.testing.attempt import fake_attempt
from parkade.testing.clock import ManualClock
from parkade.testing.engine import TestEngine
from parkade.testing.report import Drained, Killed, Raised, StillBusy

__all__ = [
    "Drained",
    "Killed",
    "ManualClock",
    "Raised",
    "StillBusy",
    "TestEngine",
    "fake_attempt",
]
