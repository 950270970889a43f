"""What do tickets cost that one open breaker holds: memory, and the lives of others beside them?

All held tickets are due, of one task and target. `visited_count` is how many lanes admission looked
at for each life of another task; it is taken beside many held tickets and beside none, and so is
the number of lives a second. Memory is counted above the engine before its submits, without mapped
files, once checkpoints have taken what is past the windows.
"""

import gc
import sys
from collections.abc import Iterator, Sequence
from itertools import repeat as again
from pathlib import Path
from statistics import median
from time import perf_counter_ns, sleep
from typing import Any
from unittest import mock

from bench.floor import beside
from bench.kit import (
    Options,
    Timer,
    at_least,
    at_most,
    options,
    repeat,
    report_runs,
    rss_anon_bytes,
)
from bench.stage import BODY, Stage
from parkade import Breaker, Call, queues

Post: Any = vars(queues)["Post"]  # looked into: how many heads a pass visits
QUESTION = "What do tickets cost that one open breaker holds: memory, and the lives of others?"

COUNT_SMALL, COUNT_USUAL, COUNT_FULL = 6_000, 300_000, 1_000_000
LIVES_SMALL, LIVES_USUAL = 200, 5_000
TURNS_SMALL, TURNS_USUAL = 2, 5
MB = 1e6


def run(asked: Options) -> dict[str, float]:
    """An engine that holds so many, and one that holds none, in one process: they live in turns,
    so that whatever else the machine does meets both."""
    count, lives = held_count(asked), asked.pick(LIVES_SMALL, LIVES_USUAL)
    turns = asked.pick(TURNS_SMALL, TURNS_USUAL)
    with asked.scratch() as directory:
        taken = beside(asked, directory)
        return taken | asked.apart(measured, directory, count, lives, turns)


def held_count(asked: Options) -> int:
    """How many the breaker holds."""
    return asked.counted(COUNT_SMALL, COUNT_USUAL, COUNT_FULL)


def measured(directory: Path, count: int, lives: int, turns: int) -> dict[str, float]:
    """Holds so many, lets others live beside them, and lets the first of them go."""
    began_ns: list[int] = []
    with Stage(directory / "held") as stage:
        engine = stage.engine

        @engine.task(name="held", target="psp", breaker=Breaker("psp"))
        def held(body: str) -> None:
            began_ns.append(perf_counter_ns())

        engine.breakers.force_open("psp")
        engine.submit("noop", {}).result("30s")
        before_bytes = held_bytes()
        calls: Iterator[Call[Any]] = again(held.call(BODY), count)
        assert stage.submit_all(calls) == count
        stage.park()
        hot = sum(shard.hot for shard in engine.stats().shards)
        visited = visited_by(stage, lives)
        held_mb = max(0, held_bytes() - before_bytes) / MB
        assert engine.breakers["psp"].held >= count * 0.99
        with Stage(directory / "alone") as alone:
            visited_alone = visited_by(alone, lives)
            pairs = [(lived(alone, lives), lived(stage, lives)) for _ in range(turns)]
        closed_ns = perf_counter_ns()
        engine.breakers.close("psp")
        while not began_ns:
            sleep(0.001)
        first_ms = (began_ns[0] - closed_ns) / 1e6
        engine.pause(task="held")
    alone_per_s = median(rate for rate, _ in pairs)
    lives_per_s = median(rate for _, rate in pairs)
    return {
        "held_mb": held_mb,
        "hot_count": hot,
        "visited_count": visited,
        "visited_alone_count": visited_alone,
        "lives_alone_per_s": alone_per_s,
        "lives_per_s": lives_per_s,
        "lives_share_times": lives_per_s / alone_per_s,
        "first_start_ms": first_ms,
    }


def lived(stage: Stage, lives: int) -> float:
    """How many no-ops a second live from their submit to their end."""
    before = stage.done()
    with Timer() as timer:
        stage.submit_all(again(stage.noop.call(), lives))
        stage.await_done(before + lives)
    return timer.rate(lives)


def visited_by(stage: Stage, lives: int) -> float:
    """How many heads of lanes are looked at for each of them."""
    visited, before = 0, stage.done()

    def head(post: Any, look: Any = Post.head) -> Any:
        nonlocal visited
        visited += 1
        return look(post)

    with mock.patch.object(Post, "head", head):
        stage.submit_all(again(stage.noop.call(), lives))
        stage.await_done(before + lives)
    return visited / lives


def held_bytes() -> int:
    """The process's own memory, once garbage is collected."""
    gc.collect()
    return rss_anon_bytes()


def main(argv: Sequence[str] | None = None) -> int:
    """Measure and report."""
    asked = options("held", QUESTION, argv, runs_usual=1)
    taken = repeat(asked, run)
    marks = {
        "held_mb": at_most(60, 30),
        "hot_count": at_most(5_000, 4_200),
        "lives_share_times": at_least(0.85, 0.95),
        "first_start_ms": at_most(50, 10),
    }
    count = held_count(asked)
    report_runs(asked, taken, marks, done=(count,), notes={"held": count})
    return 0


if __name__ == "__main__":
    sys.exit(main())
