"""docs/states.md says what is: every cell of it is observed again."""

from pathlib import Path

from kit.state_table import document

PAGE = Path(__file__).parents[2] / "docs" / "states.md"


def test_the_table_of_states_is_what_is_observed() -> None:
    written = PAGE.read_text(encoding="utf-8")
    assert written.splitlines() == document().splitlines(), "it changed: make table, and look why"
