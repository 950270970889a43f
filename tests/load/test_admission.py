"""Eight limits over four shards, 20,000 tickets, failures and kills; see `kit.eight_limits`."""

from pathlib import Path

import pytest

from kit.eight_limits import check, check_waits, run_by_ticks, run_with_failures_and_kills


@pytest.mark.load
def test_limits_hold_over_failures_and_kills(tmp_path: Path) -> None:
    floor = run_with_failures_and_kills(tmp_path / "data", 20_000, kills=8, seed=1)
    assert floor.crashes == 8
    check(floor)


@pytest.mark.load
def test_nobody_waits_longer_than_the_work_before_it_takes(tmp_path: Path) -> None:
    floor = run_by_ticks(tmp_path / "data", 20_000, seed=2)
    check_waits(floor)
    check(floor)
