"""A run of the simulation: made from a seed, replayed, and shrunk when it fails."""

import faulthandler
import signal
from collections import Counter
from collections.abc import Callable, Generator, Mapping, Sequence
from contextlib import contextmanager
from random import Random
from typing import Any, Final, NamedTuple

from kit.disk import PowerLost
from simulation.actions import ACTIONS, Action, draw, swarm
from simulation.application import MIXES
from simulation.leaned import LEANED
from simulation.world import World, simulated

__all__ = ["EVEN", "STEPS_MIN", "History", "Lean", "Ran", "fails", "history_of", "run", "shrink"]

KNOWN: Final = ACTIONS | LEANED
CPU_MAX_S = 20.0  # what a history takes is half a second
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


class Lean(NamedTuple):
    """What the histories of some seeds have in common: how many times as often as by its weight an
    action comes (0: never), and options of the world."""

    weights: Mapping[str, int] = {}
    options: Mapping[str, Any] = {}


EVEN: Final = Lean()


def history_of(seed: int, lean: Lean = EVEN) -> History:
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
        "max_ready": random.choice((None, None, 3)),
        "has_lone_frames": random.random() < 0.5,
        "has_caller_frames": random.random() < 0.5,
    }
    weights = swarm(random)
    weights |= {name: KNOWN[name][0] * times for name, times in lean.weights.items()}
    actions = draw(random, weights, ACTIONS_PER_RUN)
    return History(seed, options | dict(lean.options), actions, STEPS_MIN)


def run(history: History) -> Ran:
    """Raises `AssertionError` where something does not hold, also where it does not end."""
    with _ending(CPU_MAX_S), simulated(history.seed, **history.options) as world:
        for action in history.actions:
            _one(world, action)
        while world.counts["steps"] < history.steps_min:
            # A disk that stays full may refuse every open.
            name = "run" if world.is_open else "heal"
            _one(world, Action(name, world.random.getrandbits(32)))
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


@contextmanager
def _ending(cpu_s: float) -> Generator[None, None, None]:
    """What takes more of the processor than that has failed, and goes on failing until it ends."""

    def end(*_: Any) -> None:
        raise AssertionError(f"it does not end within {cpu_s:g} s of the processor's time")

    # pytest's watch would dump the stacks of running threads, and CPython may crash while it does.
    faulthandler.cancel_dump_traceback_later()
    before = signal.signal(signal.SIGVTALRM, end)
    signal.setitimer(signal.ITIMER_VIRTUAL, cpu_s, 1.0)
    try:
        yield
    finally:
        signal.setitimer(signal.ITIMER_VIRTUAL, 0)
        signal.signal(signal.SIGVTALRM, before)


def _one(world: World, action: Action) -> None:
    if not world.is_open and not world.open():
        if action.name == "heal":
            world.heal()
        return
    try:
        KNOWN[action.name][1](world, Random(action.number))
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
