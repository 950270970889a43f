"""Many short histories of eight limits over four shards; see `kit.eight_limits`.

The same at its full size is in tests/load.
"""

from pathlib import Path

from kit.eight_limits import check, check_waits, run_by_ticks, run_with_failures_and_kills

COUNT = 1_200


def test_limits_hold_over_failures_and_kills(tmp_path: Path, seed: int) -> None:
    check(run_with_failures_and_kills(tmp_path / "data", COUNT, kills=3, seed=seed))


def test_nobody_waits_longer_than_the_work_before_it_takes(tmp_path: Path, seed: int) -> None:
    floor = run_by_ticks(tmp_path / "data", COUNT, seed)
    check_waits(floor)
    check(floor)
