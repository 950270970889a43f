"""A test engine whose attempts a test holds in its hands: it sees them start and says how they end.

No handler runs. Every start is held against the limits as a list of what runs tells them, and
against those that should have gone before.
"""

import random
from collections import Counter, defaultdict, deque
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from parkade.job import Job
from parkade.shard.commands import Outcome
from parkade.shard.ticket import Ticket
from parkade.store.record import ErrorText
from parkade.testing import TestEngine

__all__ = ["Floor", "Rate", "Seen"]

Name = tuple[str, str]  # what a limit counts: "task", "target" or "key", and which


@dataclass(frozen=True)
class Rate:
    """So many starts in a span of ms, `burst` of them together."""

    starts: int
    span_ms: int
    burst: int

    def check(self, started_ms: list[int], since_ms: int) -> None:
        """No span between two starts has more of them than the rate allows, nor has the first one
        since it began empty."""
        begun = [since_ms, *started_ms]
        for first in range(len(begun)):
            span = self.span_ms
            for last in range(max(first, 1), len(begun)):
                gained = (begun[last] - begun[first]) * self.starts
                held = 0 if first == 0 else self.burst * span
                count = last - first + (first > 0)
                assert count * span <= held + gained, (self, begun[first], begun[last], count)


@dataclass
class Seen:
    """What is known of one ticket: when it was due first, and when its first attempt began."""

    task: str
    key: str | None
    lane: tuple[str, str | None, int]
    due_ms: int
    started_ms: int | None = None


@dataclass
class Floor:
    """`concurrency` and `rates` are what the engine's tasks say, or an operator, by what they
    count; `key_places` how many of a key run at once, by task (one, unless it is named)."""

    path: Path
    shards: int
    places: int
    declare: Callable[[TestEngine], None]
    concurrency: Mapping[Name, int]
    rates: Mapping[Name, Rate]
    key_places: Mapping[str, int]
    seed: int = 0
    running: dict[int, Job] = field(default_factory=dict[int, Job])
    seen: dict[int, Seen] = field(default_factory=dict[int, Seen])
    attempts: Counter[Name] = field(default_factory=Counter[Name])
    most: Counter[Name] = field(default_factory=Counter[Name])
    total: int = 0
    crashes: int = 0

    def __post_init__(self) -> None:
        self.rng = random.Random(self.seed)
        self._used: Counter[Name] = Counter()
        self._of_key: defaultdict[str, dict[int, str]] = defaultdict(dict)
        self._started_ms: defaultdict[Name, list[int]] = defaultdict(list)
        self._waiting: defaultdict[Any, deque[int]] = defaultdict(deque)
        self.engine = TestEngine(
            self.path, shards=self.shards, async_limit=self.places, seed=self.seed
        )
        self.declare(self.engine)

    def open(self) -> None:
        self.engine.start()
        self._opened()

    def _opened(self) -> None:
        drive = self.engine._drive
        assert drive is not None
        self._drive = drive
        self._since_ms = self.engine.clock.now_ms()
        # Only a run opens the places of a test engine; here they are open all the time.
        drive._open_places(True)

    # ------------------------------------------------------------------------------- attempts

    def look(self) -> list[Job]:
        """Lets the engine start what it will, and checks that it might; what it has started."""
        self._drive.stir()
        jobs, self._drive.executor._jobs = list(self._drive.executor._jobs), deque()
        for job in jobs:
            self._begin(job)
        assert len(self.running) <= self.places
        return jobs

    def _begin(self, job: Job) -> None:
        ticket, now_ms = job.ticket, self.engine.clock.now_ms()
        assert ticket.serial not in self.running, "one attempt of a ticket at a time"
        self.running[ticket.serial] = job
        self.total += 1
        for name in names_of(ticket):
            self._used[name] += 1
            self.attempts[name] += 1
            self.most[name] = max(self.most[name], self._used[name])
            allowed = self.concurrency.get(name)
            assert allowed is None or self._used[name] <= allowed, (name, self._used[name])
            if name in self.rates:
                self._started_ms[name].append(now_ms)
        if ticket.key is not None:
            self._take_key(ticket, ticket.key)
        seen = self.seen.get(ticket.serial)
        if seen is not None and seen.started_ms is None:
            seen.started_ms = now_ms
            self._check_turn(ticket)

    def _take_key(self, ticket: Ticket, key: str) -> None:
        holders = self._of_key[key]
        holders[ticket.serial] = ticket.task
        bound = min(self.key_places.get(task, 1) for task in holders.values())
        assert len(holders) <= bound, (key, holders)

    def _check_turn(self, ticket: Ticket) -> None:
        """Of one key and lane, those that never ran begin in the order of their submits."""
        if ticket.key is None:
            return
        waiting = self._waiting[ticket.key, ticket.lane]
        if self.key_places.get(ticket.task, 1) == 1:
            assert waiting[0] == ticket.serial, (waiting[0], ticket)
        waiting.remove(ticket.serial)

    def end(self, job: Job, kind: str = "done", *, wait_ms: int = 0) -> None:
        """An attempt has ended."""
        self._forget(job)
        error = None if kind == "done" else ErrorText("Down", "no answer")
        outcome = Outcome(
            job.serial, job.fence, kind, b"\xc0" if kind == "done" else b"", error, wait_ms,
            strikes=kind != "done",
        )  # fmt: skip
        self._drive.executor._pass_on([outcome])

    def _forget(self, job: Job) -> None:
        ticket = job.ticket
        del self.running[ticket.serial]
        for name in names_of(ticket):
            self._used[name] -= 1
        if ticket.key is not None:
            del self._of_key[ticket.key][ticket.serial]

    def crash(self) -> None:
        """The process is killed; the directory is opened by the next one."""
        self._check_rates()
        for job in list(self.running.values()):
            self._forget(job)
        self.engine.crash()
        self.crashes += 1
        self._opened()

    # ---------------------------------------------------------------------------------- tickets

    def submit(self, calls: list[Any]) -> None:
        """Submits, and expects those of a key in their order."""
        due_ms = self.engine.clock.now_ms()
        for ticket, call in zip(self.engine.submit_many(calls), calls, strict=True):
            serial = self.engine.desk("test").parse(ticket.id).serial
            options = call.stored
            target = None if options is None else options.target
            priority = 0 if options is None else options.priority
            lane = (call.task, target, priority)
            self.seen[serial] = Seen(call.task, call.key, lane, due_ms)
            if call.key is not None:
                self._waiting[call.key, lane].append(serial)

    def pass_ms(self, ms: int) -> None:
        self.engine.clock.advance(ms / 1_000)

    def left(self) -> int:
        """Tickets that have not ended."""
        counts = self.engine.stats().by_task.values()
        return sum(c.get("scheduled", 0) + c.get("running", 0) for c in counts)

    # ------------------------------------------------------------------------------- at the end

    def _check_rates(self) -> None:
        for name, started_ms in self._started_ms.items():
            self.rates[name].check(started_ms, self._since_ms)
        self._started_ms.clear()

    def check_nothing_is_left(self) -> None:
        """No permit, key, place or meter of anything that has ended."""
        self._check_rates()
        runtime = self.engine.desk("test").runtime
        admission = runtime.attempts.admission
        assert set(admission.used.values()) == {0}, admission.used
        meters = {**admission.guards.meters, **admission.guards.key_meters}
        assert {name: m.running for name, m in meters.items() if m.running} == {}
        assert admission.guards.on_trial == {} and admission.suspect_running is None
        for shard in runtime.shards:
            lanes = shard.placement.lanes
            assert (lanes.keys.running, lanes.keys.claims, lanes.seats) == ({}, {}, {})
        assert all(not owner.posts for owner in admission.owners.values())
        assert admission._queues == {}
        assert all(not serials for serials in self._waiting.values())


def names_of(ticket: Ticket) -> list[Name]:
    """What the limits may count a ticket under."""
    named = [("task", ticket.task), ("target", ticket.target), ("key", ticket.key)]
    return [(kind, name) for kind, name in named if name is not None]
