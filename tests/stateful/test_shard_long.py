"""Long histories of a shard's core, by seed: what takes hundreds of steps to come about.

The steps are those of test_shard.py. Each seed draws its bounds, and how often each kind of step
occurs, some of them never: so queues grow long in some histories, and checkpoints are rare in
others. Replay one with --seed=N.
"""

import random
from collections.abc import Callable

from stateful.test_shard import ShardIsADict

from kit.rig import SMALL, Rig
from parkade.shard import DEAD, RUNNING
from parkade.store.record import Options

STEPS = 300
DELAYS = (0, 0, 0, 1, 5, 400, 499, 501, 999, 1_000, 1_001, 1_500, 9_000)
CLOCK = (0, 1, 5, 100, 100, 499, 501, 1_000, 1_001, 5_000, -1, -300, -1_100, -6_000)
KINDS = ("done", "transient", "failed", "ambiguous", "snooze", "drop", "timeout", "released")
WEIGHTS = (0, 1, 1, 3, 8)
# Without these nothing would happen at all.
NEEDED = ("submit", "start", "settle", "advance", "pass_time", "sweep", "load", "refill", "end")

Step = Callable[[], object]


class History:
    """One machine, driven by one seed."""

    def __init__(self, seed: int) -> None:
        self.random = random.Random(seed)
        self.machine = ShardIsADict()
        pick = self.random.choice
        self.machine.rig = Rig(
            SMALL._replace(
                window_max=pick((1, 2, 4, 8)),
                windows_max=pick((4, 10, 100)),
                wheel_max=pick((6, 12, 50)),
                lanes_max=pick((2, 4, 10)),
                sweep_limit=pick((1, 5, 50)),
                moves_max=pick((2, 8, 100)),
                aside_max=pick((1, 2, 10)),
                waits_window=pick((1, 2, 8)),
                queues_max=pick((0, 1, 3, 10)),
                waiting_max=pick((2, 20)),
            )
        )
        self.steps = {**self.of_callers(), **self.of_attempts(), **self.of_the_host()}
        self.weights = [max(pick(WEIGHTS), 2 * (name in NEEDED)) for name in self.steps]

    def of_callers(self) -> dict[str, Step]:
        machine, pick = self.machine, self.random.choice
        return {
            "submit": lambda: machine.submit(
                pick(DELAYS), pick(range(1, 8)), pick("tu"), self.options()
            ),
            "submit_key": lambda: machine.submit_with_key(
                pick(DELAYS), pick("kl"), self.options(), pick((1, 2, 3))
            ),
            "submit_unique": lambda: machine.submit_unique(
                pick(DELAYS), pick("ab"), pick((0, 1, 2)), pick((None, "k")), self.conflicts()
            ),
            "cancel": lambda: machine.cancel(self.any()),
            "reschedule": lambda: machine.reschedule(self.any(), pick(DELAYS)),
            "revive": lambda: (
                self.has(DEAD)
                and machine.revive(self.any(), pick(DELAYS), self.often(), self.often())
            ),
            "drop": lambda: self.has(DEAD) and machine.drop(self.any()),
            "resolve": lambda: self.has(DEAD) and machine.resolve(self.any()),
            "forget": lambda: machine.forget(self.any(), pick("tu"), pick((2, 3, 4, 5))),
        }

    def of_attempts(self) -> dict[str, Step]:
        machine, pick = self.machine, self.random.choice
        return {
            "start": lambda: machine.start(pick((1, 2, 3, 4)), pick((0, 0, 1))),
            "take": lambda: machine.take_in_hand(self.often()),
            "give_back": machine.give_back_what_is_in_hand,
            "settle": lambda: (
                self.has(RUNNING)
                and machine.settle(
                    self.any(),
                    pick(KINDS),
                    pick(DELAYS),
                    self.often(),
                    pick((None, 2)),
                    pick((1, 3)),
                )
            ),
            "late": lambda: machine.settle_what_was_given_up(
                self.any(), pick((0, 1, 2)), pick(("done", "transient"))
            ),
        }

    def of_the_host(self) -> dict[str, Step]:
        machine, pick = self.machine, self.random.choice
        rig = machine.rig
        return {
            "pass_time": lambda: machine.pass_time(pick(CLOCK), self.often()),
            "advance": lambda: machine.advance(pick((1, 3, 4_096))),
            "sweep": machine.begin_sweep,
            "scout": machine.begin_scout,
            "load": machine.begin_loads,
            "refill": machine.begin_refills,
            "end": machine.end_reads,
            "rest": machine.come_to_rest,
            "cut": lambda: self.is_idle() and machine.cut(),
            "slice": lambda: rig.building and machine.build_a_slice(pick((1, 2, 5))),
            "commit": lambda: rig.building and machine.commit(),
            "fail": lambda: rig.building and machine.fail_to_commit(),
            "complete": lambda: rig.committed and machine.complete(),
            "checkpoint": lambda: self.is_idle() and machine.checkpoint(),
            "crash": lambda: pick((0, 0, 1)) and machine.crash(self.often(), pick(DELAYS)),
        }

    def options(self) -> Options | None:
        pick = self.random.choice
        if self.often():
            return None
        return Options(
            target=pick((None, "x")),
            priority=pick((0, 1)),
            expires_ms=pick((None, None, 5, 600)),
            max_attempts=pick((None, 1, 2, -1)),
            max_elapsed_ms=pick((None, None, 2_000)),
        )

    def conflicts(self) -> list[int]:
        return [self.random.choice((0, 1, 2)) for _ in range(self.random.choice((1, 2, 3)))]

    def any(self) -> int:
        return self.random.randrange(1_000_000)

    def often(self) -> bool:
        return self.random.random() < 0.6

    def has(self, state: int) -> bool:
        return any(entry.state == state for entry in self.machine.model.tickets.values())

    def is_idle(self) -> bool:
        return self.machine.rig.building is None and self.machine.rig.committed is None

    def step(self) -> str:
        """Take one step; its name."""
        (name,) = self.random.choices(list(self.steps), self.weights)
        self.steps[name]()
        return name


def test_a_long_history_keeps_every_invariant_and_leaves_nothing_stuck(seed: int) -> None:
    history = History(seed)
    names: list[str] = []
    try:
        for nth in range(STEPS):
            names.append(history.step())
            history.machine.every_invariant_holds()
            if nth % 5 == 0:
                history.machine.the_core_is_the_model()
        history.machine.teardown()
    except Exception as error:
        error.add_note(f"after {len(names)} steps, the last of them {names[-3:]}")
        error.add_note(f"replay: pytest tests/stateful/test_shard_long.py --seed={seed}")
        raise
