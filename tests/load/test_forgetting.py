"""Two hundred thousand short tickets at full load, kept for a second: forgetting keeps pace."""

from pathlib import Path

import pytest

from kit.forgetting import run

SEGMENTS_MAX = 4


@pytest.mark.load
def test_forgetting_keeps_pace_with_two_hundred_thousand_tickets(tmp_path: Path) -> None:
    alone = run(tmp_path / "alone", 2_000)
    many = run(tmp_path / "many", 200_000, 2_000)
    assert many.done_total == 202_000
    assert many.pages <= 3 * alone.pages, (many, alone)
    assert many.segments <= SEGMENTS_MAX
    # What is there at one time does not depend on how many there were in all.
    assert many.left_max <= 30_000, many
    assert many.high_pages <= 10_000, many
