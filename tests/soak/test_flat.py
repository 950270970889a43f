"""What counts as growth, and a soak at its smallest: so that the long one works when it is run."""

import random
from pathlib import Path

from soak.__main__ import Life
from soak.flat import Bound, judge


def test_what_rises_all_the_time_grows() -> None:
    noise = random.Random(1)
    values = [100 + n + noise.uniform(-5, 5) for n in range(30)]
    assert judge(values, Bound(10)).grows
    assert not judge(values, Bound(40)).grows


def test_what_rises_once_or_swings_is_flat() -> None:
    once = [100.0] * 12 + [300.0] * 18
    assert not judge(once, Bound(10)).grows
    swings = [100.0 + 80 * (n % 3) for n in range(30)]
    assert not judge(swings, Bound(10)).grows
    assert not judge([1.0, 5.0], Bound(10)).grows


def test_a_soaked_engine_does_all_kinds_of_work_restarts_and_finishes(tmp_path: Path) -> None:
    life = Life(tmp_path / "data", "new", False)
    rounds = life.ask("round")
    assert min(rounds.values()) >= 1 and len(rounds) == 13
    assert life.ask("restart") == {"given_back": 0, "zombies": 0}
    sample = life.ask("sample")
    assert sample["held"]["objects of Lanes"] == 4 and sample["done"] > 0
    left = life.ask("finish")
    assert not left["left"] and not left["running"], left
    life.end()
