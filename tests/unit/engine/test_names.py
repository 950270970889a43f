"""Names that are met once and never again cost no memory: keys, targets, tags, uniques, errors.

An application may make a key of each customer and a target of each host. Two equal stretches of
work with names of their own are compared: no container of the engine has more entries after the
second than after the first (`kit.sizes` finds them all), and no table of a store has more rows.
"""

import gc
import logging
from collections import Counter
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from datetime import timedelta
from typing import Any
from unittest import mock

import pytest

from kit.engines import runtime_of
from kit.sizes import grown, sizes
from parkade import Attempt, Breaker, Fail, Limit, Outcome, RetryPolicy
from parkade.testing import TestEngine

ROUNDS, NAMES = 4, 4
BOUNDS = {  # caches whose ends would not be met in a test
    "parkade.feed.BLOCK_EVENTS": 1,
    "parkade.feed.RING_EVENTS": 20,
    "parkade.levers.HOUSE_JOURNAL_BYTES": 2_000,
    "parkade.shard.lanes.DROPPED_MAX": 0,
    "parkade.store.agenda.TALLIES_MAX": 0,
    "parkade.guards.PLANS_MAX": 8,
    "parkade.guards.IDLE_METERS_MIN": 8,
    "parkade.progress_events.REMEMBERED_MAX": 8,
}


@contextmanager
def small_caches() -> Iterator[None]:
    with ExitStack() as stack:
        for name, bound in BOUNDS.items():
            stack.enter_context(mock.patch(name, bound))
        logging.disable(logging.CRITICAL)
        stack.callback(logging.disable, logging.NOTSET)
        yield


class Application:
    """One engine, and work of every kind with names that somebody else gives."""

    def __init__(self, engine: TestEngine, has_levers: bool) -> None:
        self.engine = engine
        self.has_levers = has_levers
        self.count = 0

        @engine.task(keep="5m")
        def quick(n: int) -> int:
            return n

        @engine.task
        def told(outcome: Outcome[Any]) -> None:
            return None

        @engine.task(
            limits=[
                Limit(concurrency=2, rate=(5, "1s"), per="target"),
                Limit(concurrency=2, rate=(3, "1s"), per="key"),
            ]
        )
        def limited(n: int) -> int:
            return n

        @engine.task(
            target="host-{host}",
            retry=RetryPolicy(2, backoff=["1s"]),
            breaker=Breaker(failures=2, open_for="2s", max_open_for="8s"),
            on_dead=told,
        )
        def shaky(host: str) -> None:
            raise type(f"Down{host}", (Exception,), {})(f"no answer of {host}")

        @engine.task(target="web-{host}", breaker=Breaker(rate=0.5, open_for="2s"))
        def steady(host: str) -> int:
            return 1

        @engine.task(on_done=told)
        def parent(attempt: Attempt, name: str) -> None:
            attempt.submit(quick.options(key=f"ck{name}", unique=f"cu{name}").call(1))
            attempt.submit(quick.options(target=f"ct{name}").call(2))
            attempt.progress(1, 2, name)
            attempt.save_checkpoint({"name": name})
            raise Fail(f"it is {name}")

        self.quick, self.limited = quick, limited
        self.shaky, self.steady, self.parent = shaky, steady, parent

    def work(self, name: str) -> None:
        """All that one name is used for."""
        engine, quick = self.engine, self.quick
        tags = {"campaign": name, f"tag{name}": "1"}
        options: dict[str, Any] = {"key": f"k{name}", "unique": f"u{name}", "tags": tags}
        quick.options(target=f"t{name}", **options).submit(1)
        assert not quick.options(target=f"t{name}", **options).submit(1).created
        for n in range(3):
            self.limited.options(key=f"lk{name}", target=f"lt{name}", priority=n % 2).submit(n)
            self.shaky.submit(name)
        self.steady.submit(name)
        self.parent.submit(name)
        far = quick.options(delay="5m", key=f"fk{name}", target=f"ft{name}").submit(1)
        far.reschedule(delay="6m")
        quick.options(delay="4m", key=f"sk{name}", target=f"st{name}").submit(1)
        quick.options(delay="1h", key=f"xk{name}", target=f"xt{name}").submit(1).cancel()
        assert list(engine.find(key=f"k{name}")) and list(engine.find(tag=("campaign", name)))
        if self.has_levers:
            self._pull_levers(name)

    def _pull_levers(self, name: str) -> None:
        engine = self.engine
        engine.limits.set(f"key:lk{name}", concurrency=1)
        engine.pause(target=f"pt{name}", until=engine.clock.now() + timedelta(minutes=1))
        engine.pause(target=f"lt{name}")
        engine.resume(target=f"lt{name}")
        engine.breakers.force_open(f"web-{name}", for_="1s")

    def stretch(self, fixed: bool) -> Counter[str]:
        """Some rounds, until nothing of them is kept any more; what the engine holds then."""
        for _ in range(ROUNDS):
            for n in range(NAMES):
                self.count += 1
                self.work(str(n if fixed else self.count))
            self.engine.run_until_idle()
            for name in range(self.count - NAMES + 1, self.count + 1) if self.has_levers else ():
                self.engine.limits.set(f"key:lk{name}")
            self._pass("5s")
            for group in self.engine.dead.groups():
                if self.count % 2:
                    self.engine.dead.revive(group=group.key)
            self.engine.run_until_idle(skip_time=True)
        for group in self.engine.dead.groups(limit=1_000):
            self.engine.dead.drop(group=group.key)
        for _ in range(12):
            self._pass("1m")
            self.steady.submit("last")  # with each outcome breakers and meters are looked at
        gc.collect()
        held = sizes(self.engine)
        for shard in runtime_of(self.engine).shards:
            for table, rows in shard.store.stat().entries.items():
                held[f"rows of {table}"] += rows
        return held

    def _pass(self, span: str) -> None:
        self.engine.clock.advance(span)
        self.engine.run_until_idle()


@pytest.mark.parametrize(
    ("fixed", "has_levers"),
    [(True, True), (False, True), (False, False)],
    ids=["the same names", "ever new names", "ever new names, and no operator"],
)
def test_an_engine_holds_no_more_after_twice_the_work(fixed: bool, has_levers: bool) -> None:
    with small_caches(), TestEngine(keep_done="5m", index_tags=["campaign"]) as engine:
        application = Application(engine, has_levers)
        application.stretch(fixed)
        once = application.stretch(fixed)
        twice = application.stretch(fixed)
        names = ROUNDS * NAMES
        more = {
            place: counts
            for place, counts in grown(once, twice).items()
            if counts[1] - counts[0] >= names // 2
        }
        assert not more, more
        assert engine.stats().dead == 0
