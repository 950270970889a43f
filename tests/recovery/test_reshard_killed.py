"""Resharding 4 -> 7 -> 2, killed at random points and begun again: a tenth of `make load`'s."""

from pathlib import Path

from kit.resharded import KEYS, Crowd

COUNT = 20_000


def test_twenty_thousand_tickets_are_all_there_and_keys_in_order(tmp_path: Path) -> None:
    crowd = Crowd(tmp_path / "data", COUNT, seed=5)
    crowd.reshard(7, kills=2)
    crowd.reshard(2, kills=2)
    assert crowd.problems() == []
    order = crowd.wake_all()
    assert len(order) == KEYS
    assert all(numbers == sorted(numbers) for numbers in order.values())
