"""Twenty thousand short tickets at full load, kept for a second: a tenth of `make load`."""

from pathlib import Path

import pytest

from kit.forgetting import run
from parkade import limits

SEGMENTS_MAX = 4


def test_forgetting_keeps_pace_at_full_load(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    # A few tickets alone wait that long for a checkpoint, and are forgotten only then.
    monkeypatch.setattr(limits, "CHECKPOINT_AGE_MS", 500)
    alone = run(tmp_path / "alone", 2_000)
    many = run(tmp_path / "many", 20_000, 2_000)
    assert many.done_total == 22_000
    assert many.pages <= 3 * alone.pages, (many, alone)
    assert many.segments <= SEGMENTS_MAX
