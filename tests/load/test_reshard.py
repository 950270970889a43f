"""Resharding 200,000 tickets 4 -> 7 -> 2, killed at random points and begun again."""

from pathlib import Path

import pytest

from kit.resharded import KEYS, Crowd

COUNT = 200_000
OWN_BYTES_MAX = 250_000_000  # of the process, an interpreter with all of parkade among it


@pytest.mark.load
@pytest.mark.parametrize("seed", [1])
def test_nothing_is_lost_keys_keep_their_order_and_memory_is_bounded(
    tmp_path: Path, seed: int
) -> None:
    crowd = Crowd(tmp_path / "data", COUNT, seed)
    crowd.reshard(7, kills=5)
    crowd.reshard(2, kills=5)
    assert crowd.kills >= 6
    assert crowd.own_bytes_max <= OWN_BYTES_MAX
    assert crowd.problems() == []
    order = crowd.wake_all()
    assert len(order) == KEYS
    assert all(numbers == sorted(numbers) for numbers in order.values())
