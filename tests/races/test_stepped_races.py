"""Two events meet over one ticket, in every order of their steps and in many random ones.

Whoever comes first, the ticket has one fate, both are answered as it is, a recovery finds the same,
and each side has won: a race that always ends one way is none.
"""

import random

import pytest

from kit.races import LEFT, RACES, RIGHT, Race, Tally, orders, shuffled
from kit.stepped import STEPS, Stepped, stepped

SEEDS = 1_000
IN_ONE_SHARD = 8  # one after another
AT_ONCE = 3  # races in the same shard, as many as it has places


def run(race: Race, order: list[str]) -> None:
    steps = {LEFT: iter(race.left()), RIGHT: iter(race.right())}
    for side in order:
        race.take(next(steps[side]))


def judge(races: list[Race], how: str, tally: Tally) -> list[str]:
    """Who won, after everything that follows from it was looked at."""
    shard = races[0].shard
    shard.run()
    winners = [race.winner() for race in races]
    for race, winner in zip(races, winners, strict=True):
        race.check(winner)
        race.check_one_fate()
        tally.add(how, race.name, race.sides, winner)
    for race in races:
        race.lift()
    shard.finish()
    for race, winner in zip(races, winners, strict=True):
        assert race.state == race.end(winner), (race.name, race.state)
        race.check_one_fate()
    return winners


@pytest.mark.parametrize("kind", RACES, ids=lambda kind: kind.name)
def test_every_order_of_the_steps_gives_one_fate(kind: type[Race], tally: Tally) -> None:
    won = set[str]()
    sizes = len(kind(None).left()), len(kind(None).right())  # type: ignore[arg-type]
    rows = list(orders(*sizes))
    for first in range(0, len(rows), IN_ONE_SHARD):
        with stepped() as shard:
            for order in rows[first : first + IN_ONE_SHARD]:
                race = kind(shard)
                race.prepare()
                run(race, order)
                won.update(judge([race], "every order", tally))
            shard.kill()
    assert won == {LEFT, RIGHT}


def test_a_thousand_seeds_of_several_races_at_once(tally: Tally) -> None:
    won: dict[str, set[str]] = {kind.name: set() for kind in RACES}
    for seed in range(SEEDS):
        dice = random.Random(seed)
        with stepped() as shard:
            races = prepared(shard, dice)
            interleave(races, dice)
            for race, winner in zip(races, judge(races, "seeds", tally), strict=True):
                won[race.name].add(winner)
            shard.kill()
    assert won == {kind.name: {LEFT, RIGHT} for kind in RACES}


def prepared(shard: Stepped, dice: random.Random) -> list[Race]:
    races = [kind(shard) for kind in dice.sample(RACES, AT_ONCE)]
    for race in races:
        race.prepare()
    return races


def interleave(races: list[Race], dice: random.Random) -> None:
    """All steps of all of them in one random row, with steps of nobody in between."""
    rows = []
    for race in races:
        steps = {LEFT: iter(race.left()), RIGHT: iter(race.right())}
        order = shuffled(len(race.left()), len(race.right()), dice)
        rows.append((race, [next(steps[side]) for side in order]))
    shard = races[0].shard
    while rows:
        race, left_over = dice.choice(rows)
        race.take(left_over.pop(0))
        if not left_over:
            rows.remove((race, left_over))
        if dice.random() < 0.3:
            shard.step(dice.choice(STEPS))
            shard.check()
