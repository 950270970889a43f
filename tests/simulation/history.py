"""A run of the simulation: made from a seed, replayed, and shrunk when it fails."""

from collections import Counter
from collections.abc import Callable, Sequence
from concurrent.futures import ProcessPoolExecutor
from random import Random
from typing import Any, NamedTuple

from kit.disk import PowerLost
from simulation.actions import Action, draw, perform, swarm
from simulation.application import MIXES
from simulation.world import World, simulated

__all__ = ["History", "Ran", "fails", "history_of", "run", "shrink", "survey"]

ACTIONS_PER_RUN = 140
STEPS_MIN = 500
TRIES_MAX = 400


class History(NamedTuple):
    """All that decides a run."""

    seed: int
    options: dict[str, Any]
    actions: Sequence[Action]
    steps_min: int = 0  # it goes on until it has taken so many


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
        "keep_max": random.choice((None, None, 6)),
        "durability": random.choice(("disk", "disk", "disk", "process")),
        "mix": random.randrange(MIXES),
        "has_breaker": random.random() < 0.4,
        "has_leases": random.random() < 0.4,
        "actions_per_check": random.choice((1, 3, 6)),
    }
    return History(seed, options, draw(random, swarm(random), ACTIONS_PER_RUN), STEPS_MIN)


def run(history: History) -> Ran:
    """Raises `AssertionError` where something does not hold."""
    with simulated(history.seed, **history.options) as world:
        for action in history.actions:
            _one(world, action)
        while world.counts["steps"] < history.steps_min:
            _one(world, Action("run", world.random.getrandbits(32)))
        world.finish()
        world.counts["actions"] += len(history.actions)
        world.counts.update({f"disk {name}": n for name, n in world.shelf.counts.items()})
        return Ran(world.counts, world.digest())


def fails(history: History) -> bool:
    """Whether something does not hold; what else goes wrong rises."""
    try:
        run(history)
    except AssertionError:
        return True
    return False


def survey(seeds: Sequence[int], workers: int = 1) -> tuple[Counter[str], int | None]:
    """What the histories of these seeds come to, and the first found that fails: in as many
    processes as said. Each history is one process's from start to end."""
    totals: Counter[str] = Counter()
    if workers == 1:
        for seed in seeds:
            counts = _counts_of(seed)
            if counts is None:
                return totals, seed
            totals += counts
        return totals, None
    with ProcessPoolExecutor(workers) as pool:
        for seed, counts in zip(seeds, pool.map(_counts_of, seeds, chunksize=4), strict=True):
            if counts is None:
                pool.shutdown(wait=False, cancel_futures=True)
                return totals, seed
            totals += counts
    return totals, None


def _counts_of(seed: int) -> Counter[str] | None:
    try:
        counts = run(history_of(seed)).counts
    except AssertionError:
        return None
    assert counts["steps"] >= STEPS_MIN
    return counts


def _one(world: World, action: Action) -> None:
    if not world.is_open and not world.open():
        if action.name == "heal":
            world.heal()
        return
    try:
        perform(world, action)
    except PowerLost:
        world.crash("torn")
    world.look()


def shrink(history: History, fails: Callable[[History], bool]) -> History:
    """A shorter history that fails: chunks of actions are taken out while it still does (Zeller's
    delta debugging)."""
    history = history._replace(steps_min=0) if fails(history._replace(steps_min=0)) else history
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
