"""Eight limits of different scopes over four shards, with failures and kills, for as many tickets
as a test likes.

At every moment no limit is exceeded and no key is overtaken; at the end nothing is held by anybody;
and within one priority nobody waits much longer than the work before it takes.
"""

import random
from pathlib import Path
from typing import Any

from kit.floor import Floor, Name, Rate
from parkade import Breaker, Limit, RetryPolicy
from parkade.testing import TestEngine

__all__ = ["check", "check_waits", "run_by_ticks", "run_with_failures_and_kills"]

SHARDS = 4
PLACES = 40
TICK_MS = 10
RETRY = RetryPolicy(None, backoff=["20ms"])
CONCURRENCY: dict[Name, int] = {
    ("task", "pay"): 6,
    ("target", "psp"): 9,
    ("target", "bank"): 4,
    **{("target", f"host-{n}"): 2 for n in range(5)},
}
RATES: dict[Name, Rate] = {
    ("task", "mail"): Rate(2_000, 1_000, 15),
    **{("target", f"api-{n}"): Rate(400, 1_000, 5) for n in range(3)},
    **{("key", f"poll-{n}"): Rate(100, 1_000, 3) for n in range(10)},
}
KEY_PLACES = {"merge": 2}


def declare(engine: TestEngine) -> None:
    """The tasks; the limit of the bank is set by an operator, in `opened`."""

    def add(name: str, *limits: Limit, **options: Any) -> None:
        async def handler(n: int) -> None: ...

        engine.task(name=name, limits=limits, retry=RETRY, **options)(handler)

    add("pay", Limit(concurrency=6), target="psp")
    add("refund", Limit(concurrency=9, per="target"), target="psp", key="account-{n}")
    add("fetch", Limit(concurrency=2, per="target"), target="host-{n}")
    add("mail", Limit(rate=(2_000, "1s"), burst=15))
    add("call", Limit(rate=(400, "1s"), burst=5, per="target"), target="api-{n}")
    add("poll", Limit(rate=(100, "1s"), burst=3, per="key"), key="poll-{n}")
    add("merge", Limit(concurrency=2, per="key"), key="merge-{n}")
    add("wire", target="bank", breaker=Breaker(failures=3, open_for="50ms", max_open_for="1s"))
    add("note")


SPREAD = {"pay": 1, "refund": 40, "fetch": 5, "mail": 1, "call": 3, "poll": 10, "merge": 12}


def calls_of(engine: TestEngine, count: int, rng: random.Random, priorities: int) -> list[Any]:
    tasks = [engine.lookup(name) for name in (*SPREAD, "wire", "note")]
    calls = []
    for _ in range(count):
        task = rng.choice(tasks)
        priority = rng.randrange(priorities)
        calls.append(task.options(priority=priority).call(rng.randrange(SPREAD.get(task.name, 1))))
    return calls


def opened(path: Path, seed: int) -> Floor:
    floor = Floor(path, SHARDS, PLACES, declare, CONCURRENCY, RATES, KEY_PLACES, seed)
    floor.open()
    floor.engine.limits.set("target:bank", concurrency=4)
    return floor


def run_with_failures_and_kills(path: Path, count: int, kills: int, seed: int) -> Floor:
    """Submits in bursts, ends attempts in any order and any way, kills the process now and then."""
    floor = opened(path, seed)
    rng, left_to_submit = floor.rng, count
    kill_at = sorted(rng.sample(range(count), kills))
    while True:
        if left_to_submit and len(floor.seen) < floor.total + 2_000:
            burst = min(left_to_submit, rng.choice((50, 500)))
            floor.submit(calls_of(floor.engine, burst, rng, 2))
            left_to_submit -= burst
        floor.look()
        if kill_at and floor.total >= kill_at[0]:
            kill_at.pop(0)
            floor.crash()
            continue
        jobs = list(floor.running.values())
        for job in rng.sample(jobs, rng.randint(0, len(jobs))):
            kind = rng.choices(("done", "transient", "timeout", "unsafe"), (85, 12, 2, 1))[0]
            floor.end(job, kind, wait_ms=rng.choice((0, TICK_MS, 50)))
        floor.pass_ms(TICK_MS)
        if not left_to_submit and not floor.running and not floor.left():
            return floor


def run_by_ticks(path: Path, count: int, seed: int) -> Floor:
    """All is due at once, and each attempt takes one tick of the clock."""
    floor = opened(path, seed)
    floor.submit(calls_of(floor.engine, count, floor.rng, 1))
    while floor.left():
        jobs = floor.look()
        floor.pass_ms(TICK_MS)
        for job in jobs:
            kind = floor.rng.choices(("done", "transient"), (95, 5))[0]
            floor.end(job, kind, wait_ms=TICK_MS)
    return floor


def check_waits(floor: Floor) -> None:
    """Nobody waited longer than three times as long as its limits need for all of their work."""
    all_ms = floor.total * TICK_MS / PLACES
    for seen in floor.seen.values():
        assert seen.started_ms is not None
        names: list[Name] = [("task", seen.task)]
        if seen.lane[1] is not None:
            names.append(("target", seen.lane[1]))
        needed_ms = all_ms
        for name in names:
            if name in CONCURRENCY:
                needed_ms = max(needed_ms, floor.attempts[name] * TICK_MS / CONCURRENCY[name])
            if name in RATES:
                rate = RATES[name]
                needed_ms = max(needed_ms, floor.attempts[name] * rate.span_ms / rate.starts)
        if seen.key is not None:
            of_key = floor.attempts["key", seen.key]
            needed_ms = max(needed_ms, of_key * TICK_MS)
        assert seen.started_ms - seen.due_ms <= 3 * needed_ms + 20 * TICK_MS, (seen, needed_ms)


def check(floor: Floor) -> None:
    floor.check_nothing_is_left()
    # What may be used is used: a limit that is never reached has held something back for nothing.
    reached = {name for name, allowed in CONCURRENCY.items() if floor.most[name] == allowed}
    assert reached == set(CONCURRENCY)
    floor.engine.stop()
