"""A run of the simulation: made from a seed, replayed, and shrunk when it fails."""

from collections import Counter
from collections.abc import Callable, Sequence
from random import Random
from typing import Any, NamedTuple

from kit.disk import PowerLost
from simulation.actions import Action, draw, perform, swarm
from simulation.world import World, simulated

__all__ = ["History", "Ran", "history_of", "run", "shrink"]

ACTIONS_PER_RUN = 140
TRIES_MAX = 400


class History(NamedTuple):
    """All that decides a run."""

    seed: int
    options: dict[str, Any]
    actions: Sequence[Action]


class Ran(NamedTuple):
    """What a run came to."""

    counts: Counter[str]
    digest: str


def history_of(seed: int) -> History:
    random = Random(seed)
    options = {
        "shards": random.choice((1, 2, 3)),
        "keep_ms": random.choice((None, 2_000)),
        "bounds": random.choice((0, 0, 1, 2, 3)),
    }
    return History(seed, options, draw(random, swarm(random), ACTIONS_PER_RUN))


def run(history: History) -> Ran:
    """Raises `AssertionError` where something does not hold."""
    with simulated(history.seed, **history.options) as world:
        for action in history.actions:
            _one(world, action)
        world.finish()
        world.counts["actions"] += len(history.actions)
        world.counts.update({f"disk {name}": n for name, n in world.shelf.counts.items()})
        return Ran(world.counts, world.digest())


def _one(world: World, action: Action) -> None:
    if not world.is_open and not world.open():
        if action.name == "heal":
            world.heal()
        return
    try:
        perform(world, action)
    except PowerLost:
        world.crash("torn")
    world.check()


def shrink(history: History, fails: Callable[[History], bool]) -> History:
    """A shorter history that fails: chunks of actions are taken out while it still does (Zeller's
    delta debugging)."""
    actions, size, tries = list(history.actions), len(history.actions) // 2, 0
    while size and tries < TRIES_MAX:
        at = 0
        while at < len(actions) and tries < TRIES_MAX:
            shorter = actions[:at] + actions[at + size :]
            tries += 1
            if fails(history._replace(actions=shorter)):
                actions = shorter
            else:
                at += size
        size //= 2
    return history._replace(actions=actions)
