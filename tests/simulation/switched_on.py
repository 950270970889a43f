"""A plugin of pytest: `-p simulation.switched_on --fault=NAME` breaks a rule for the whole run."""

import pytest

from simulation.faults import FAULTS

PATCH = pytest.MonkeyPatch()


def pytest_addoption(parser: pytest.Parser) -> None:
    """Add --fault."""
    parser.addoption("--fault", required=True, help="the deliberate fault to switch on")


def pytest_collection_finish(session: pytest.Session) -> None:
    """All is imported: what is broken from here on is broken for everybody."""
    name = session.config.getoption("--fault")
    next(fault for fault in FAULTS if fault.name == name).broken(PATCH)


def pytest_unconfigure() -> None:
    """Mend it."""
    PATCH.undo()
