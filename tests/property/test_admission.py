"""Admission against a list: whoever may start is started, in order, and nobody else.

The model walks all due tickets in order of priority, first due and serial, and lets each start for
which there is everything it needs. It does so at every step, however many wait; admission, which
looks only at what has changed, must come to the same starts in the same order.
"""

import random
from collections import Counter
from dataclasses import dataclass, field
from fractions import Fraction
from typing import Any

import pytest

from kit.rig import NOW_MS, Rig
from parkade import Breaker, Limit, Tasks, admission
from parkade.admission import Admission
from parkade.guards import Guards, Pause, Permit
from parkade.shard import Bounds, Placement
from parkade.shard.breaker import CLOSED, Circuit
from parkade.shard.commands import Cancel, Outcome
from parkade.shard.ticket import Ticket
from parkade.store.record import Options

SHARDS = 2
PLACES = {"thread": 5, "loop": 5}
TASKS = ("plain", "wide", "slow", "nobody", "coro")
TARGETS = (None, "x", "y")
KEYS = (None, None, "k", "l")
MONO_MS = 1_000


def registry() -> Tasks:
    tasks = Tasks()
    tasks.task(
        name="plain", target="x", limits=[Limit(concurrency=3), Limit(rate=(4, 1), burst=2)]
    )(lambda: None)
    tasks.task(
        name="wide",
        breaker=Breaker(failures=2, window=1, open_for=0.05, max_open_for=0.1),
        limits=[Limit(concurrency=2, per="key"), Limit(concurrency=2, per="target")],
    )(lambda: None)
    tasks.task(
        name="slow", limits=[Limit(concurrency=1, per="target"), Limit(rate=(5, 1), per="key")]
    )(lambda: None)

    async def coro() -> None: ...

    tasks.task(name="coro")(coro)
    return tasks


class Kinds:
    def kinds(self) -> dict[str, str]:
        return {"plain": "thread", "wide": "thread", "slow": "thread", "coro": "loop"}


@dataclass
class ShardOf:
    number: int
    rig: Rig

    @property
    def placement(self) -> Placement:
        return self.rig.core.placement


@dataclass
class Rate:
    starts: int
    span_ms: int
    burst: int
    level: Fraction = Fraction(0)
    at_ms: int = MONO_MS

    def has_token(self, now_ms: int) -> bool:
        gained = Fraction((now_ms - self.at_ms) * self.starts, self.span_ms)
        self.level = min(Fraction(self.burst), self.level + gained)
        self.at_ms = now_ms
        return self.level >= 1


@dataclass
class Model:
    """What runs, and what the limits of `registry` say about one more."""

    running: dict[int, Ticket] = field(default_factory=dict[int, Ticket])
    places: Counter[str] = field(default_factory=Counter[str])
    paused: set[str] = field(default_factory=set[str])
    plain_rate: Rate = field(default_factory=lambda: Rate(4, 1_000, 2))
    key_rates: dict[str, Rate] = field(default_factory=dict[str, Rate])
    circuits: dict[str, Circuit] = field(default_factory=dict[str, Circuit])
    probed: set[str] = field(default_factory=set[str])

    def may_start(self, ticket: Ticket, now_ms: int, mono_ms: int) -> bool:
        task, target, key = ticket.task, ticket.target, ticket.key
        kind = Kinds().kinds().get(task)
        if kind is None or self.places[kind] >= PLACES[kind]:
            return False
        if f"task:{task}" in self.paused or f"target:{target}" in self.paused:
            return False
        if ticket.is_suspect and any(other.is_suspect for other in self.running.values()):
            return False
        of_task = sum(other.task == task for other in self.running.values())
        of_target = sum(other.target == target for other in self.running.values())
        if task == "plain" and (of_task >= 3 or not self.plain_rate.has_token(mono_ms)):
            return False
        if target is not None and of_target >= {"wide": 2, "slow": 1}.get(task, 99):
            return False
        if key is not None:
            holders = [other for other in self.running.values() if other.key == key]
            bound = min(2 if each.task == "wide" else 1 for each in [*holders, ticket])
            if len(holders) >= bound:
                return False
            if task == "slow" and not self.rate_of(key).has_token(mono_ms):
                return False
        circuit = self.circuits.get(target or task)
        if circuit is None or not circuit.admits(RULES, now_ms):
            return circuit is None
        # In a model's round probes are not out yet: one of them is enough, by the rules.
        return circuit.state == CLOSED or (target or task) not in self.probed

    def rate_of(self, key: str) -> Rate:
        return self.key_rates.setdefault(key, Rate(5, 1_000, 5))

    def start(self, ticket: Ticket) -> None:
        self.running[ticket.serial] = ticket
        self.places[Kinds().kinds()[ticket.task]] += 1
        self.probed.add(ticket.target or ticket.task)
        if ticket.task == "plain":
            self.plain_rate.level -= 1
        if ticket.task == "slow" and ticket.key is not None:
            self.rate_of(ticket.key).level -= 1


RULES: Any = None


class Setting:
    def __init__(self) -> None:
        global RULES
        self.shards = [ShardOf(number, Rig(Bounds())) for number in range(SHARDS)]
        self.guards = Guards(registry(), MONO_MS)
        self.admission = Admission(dict(PLACES), Kinds(), self.guards)
        self.guards.renew()
        RULES = self.guards.plan_of("wide", "x").rules
        self.model = Model()
        self.picks: dict[int, Permit] = {}
        self.passed_ms = 0
        self.last_serial = NOW_MS << 20

    @property
    def now_ms(self) -> int:
        return NOW_MS + self.passed_ms

    @property
    def mono_ms(self) -> int:
        return MONO_MS + self.passed_ms

    def submit(self, task: str, target: str | None, priority: int, key: str | None) -> None:
        self.last_serial += 1
        # As in life, tickets of one key share a shard.
        shard = self.shards[0 if key == "k" else 1 if key == "l" else self.last_serial % SHARDS]
        shard.rig.last_serial = self.last_serial - 1
        options = Options(target=target, priority=priority)
        shard.rig.submit(task=task, key=key, options=options)

    def due(self) -> list[tuple[ShardOf, Ticket]]:
        found = [
            (shard, ticket)
            for shard in self.shards
            for ticket in shard.rig.core.hot.values()
            if ticket.state == 0 and ticket.due_ms <= self.now_ms
        ]
        return sorted(
            found, key=lambda each: (-each[1].priority, each[1].first_due_ms, each[1].serial)
        )

    def take(self) -> None:
        for shard in self.shards:
            shard.rig.settle_down()
        expected: list[int] = []
        self.model.probed.clear()
        for _, ticket in self.due():
            if self.model.may_start(ticket, self.now_ms, self.mono_ms):
                self.model.start(ticket)
                expected.append(ticket.serial)
        picks = list(self.admission.take(self.shards, self.now_ms, self.mono_ms))
        assert [pick.serial for pick in picks] == expected
        for pick in picks:
            rig = self.shards[pick.shard].rig
            assert rig.start(pick.serial)[0].code == "started"
            self.model.running[pick.serial] = rig.core.hot[pick.serial]
            self.picks[pick.serial] = pick

    def end(self, place: int, kind: str) -> None:
        if not self.picks:
            return
        serial = sorted(self.picks)[place % len(self.picks)]
        pick = self.picks.pop(serial)
        rig = self.shards[pick.shard].rig
        ticket = self.model.running.pop(serial)
        self.model.places[pick.kind] -= 1
        strikes = kind in ("transient", "unsafe")
        outcome = Outcome(serial, ticket.fence, kind, wait_ms=20, strikes=strikes)
        rig.settle(serial, kind, wait_ms=20)
        self.guards.report(pick, outcome, self.now_ms)
        self.admission.release(pick, self.now_ms)
        self.model.circuits = self.guards.circuits
        assert self.admission.used == {k: self.model.places[k] for k in PLACES}

    def cancel(self, place: int) -> None:
        due = self.due()
        if due:
            shard, ticket = due[place % len(due)]
            shard.rig.do(Cancel(ticket.serial))

    def pause(self, scope: str) -> None:
        if scope in self.model.paused:
            self.model.paused.remove(scope)
            del self.guards.pauses[scope]
            self.admission.wake("pause", scope)
        else:
            self.model.paused.add(scope)
            self.guards.pauses[scope] = Pause()


KINDS = ("done", "done", "done", "transient", "transient", "unsafe", "failed")
STEPS = 300


def step(setting: Setting, rng: random.Random, weights: list[int]) -> None:
    (name,) = rng.choices(("submit", "pass", "end", "cancel", "pause", "suspect"), weights)
    if name == "submit":
        for _ in range(rng.randrange(1, 6)):
            key = rng.choice(KEYS)
            setting.submit(rng.choice(TASKS), rng.choice(TARGETS), rng.randrange(2), key)
    elif name == "pass":
        step_ms = rng.choice((1, 20, 50, 249, 250, 1_000))
        setting.passed_ms += step_ms
        for shard in setting.shards:
            shard.rig.pass_ms(step_ms)
    elif name == "end":
        for _ in range(rng.randrange(1, 4)):
            setting.end(rng.randrange(9), rng.choice(KINDS))
    elif name == "cancel":
        setting.cancel(rng.randrange(9))
    elif name == "pause":
        setting.pause(rng.choice(("task:plain", "target:x")))
    elif due := setting.due():
        rng.choice(due)[1].is_suspect = True


def test_admission_starts_exactly_those_that_may_start_and_in_their_order(
    seed: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    setting, rng = Setting(), random.Random(seed)
    # Plain ones are taken together, as if they were a crowd, in half of the runs.
    monkeypatch.setattr(admission, "CROWD_MIN", rng.choice((1, 4)))
    weights = [
        rng.choice((4, 8)),
        4,
        rng.choice((6, 12)),
        1,
        rng.choice((0, 1)),
        rng.choice((0, 1)),
    ]
    for _ in range(STEPS):
        step(setting, rng, weights)
        setting.take()
        for shard in setting.shards:
            shard.rig.checked()
        wait_ms = setting.admission.wait_ms(setting.now_ms, setting.mono_ms)
        assert wait_ms != 0, "nothing is left to be started now"
    # Once nothing fails any more, everything that has a handler comes to its end.
    for scope in list(setting.model.paused):
        setting.pause(scope)
    for _ in range(400):
        setting.take()
        if not setting.picks and all(ticket.task == "nobody" for _, ticket in setting.due()):
            break
        while setting.picks:
            setting.end(0, "done")
        setting.passed_ms += 100
        for shard in setting.shards:
            shard.rig.pass_ms(100)
    assert all(ticket.task == "nobody" for _, ticket in setting.due())
