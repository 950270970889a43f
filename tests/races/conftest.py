"""Tells at the end of a run how often each side of each race won."""

import pytest

from kit.races import Tally

_tally = Tally()


@pytest.fixture(scope="session")
def tally() -> Tally:
    return _tally


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter) -> None:
    """Print the tally."""
    if _tally.wins:
        terminalreporter.section("who won")
        for line in _tally.lines():
            terminalreporter.write_line(line)
