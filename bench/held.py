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
from typing import Any
from unittest import mock

from bench.floor import beside
from bench.kit import (
    Options,
    Timer,
    WorkHash,
    at_least,
    at_most,
    figures_of,
    medians,
    options,
    repeat,
    report,
    rss_anon_bytes,
)
from bench.stage import BODY, Stage
from parkade import Breaker, Call, admission

Post: Any = vars(admission)["_Post"]  # looked into: how many heads a pass visits
QUESTION = "What do tickets cost that one open breaker holds: memory, and the lives of others?"

COUNT_SMALL, COUNT_FULL = 6_000, 1_000_000
LIVES_SMALL, LIVES_FULL = 200, 5_000
MB = 1e6


def run(asked: Options) -> dict[str, float]:
    """Beside none, and beside all of them, each in a process and a directory of its own."""
    count, lives = asked.pick(COUNT_SMALL, COUNT_FULL), asked.pick(LIVES_SMALL, LIVES_FULL)
    with asked.scratch() as directory:
        taken = beside(asked, directory)
        alone = asked.apart(measured, directory / "alone", 0, lives)
        taken |= asked.apart(measured, directory / "held", count, lives)
    taken["visited_alone_count"] = alone["visited_count"]
    taken["lives_alone_per_s"] = alone["lives_per_s"]
    taken["lives_share_times"] = taken["lives_per_s"] / alone["lives_per_s"]
    return taken


def measured(garage: Path, count: int, lives: int) -> dict[str, float]:
    """Holds so many, and lets others live beside them."""
    with Stage(garage) as stage:
        engine = stage.engine

        @engine.task(name="held", target="psp", breaker=Breaker("psp"))
        def held(body: str) -> None: ...

        engine.breakers.force_open("psp")
        engine.submit("noop", {}).result("30s")
        before_bytes = held_bytes()
        calls: Iterator[Call[Any]] = again(held.call(BODY), count)
        assert stage.submit_all(calls) == count
        stage.park()
        hot = sum(shard.hot for shard in engine.stats().shards)
        visited = 0

        def head(post: Any, look: Any = Post.head) -> Any:
            nonlocal visited
            visited += 1
            return look(post)

        with mock.patch.object(Post, "head", head):
            stage.submit_all(again(stage.noop.call(), lives))
            stage.await_done(lives + 1)
        with Timer() as timer:
            stage.submit_all(again(stage.noop.call(), lives))
            stage.await_done(2 * lives + 1)
        held_mb = max(0, held_bytes() - before_bytes) / MB
        assert engine.breakers["psp"].held >= count * 0.99
        return {
            "held_mb": held_mb,
            "hot_count": hot,
            "visited_count": visited / lives,
            "lives_per_s": timer.rate(lives),
        }


def held_bytes() -> int:
    """The process's own memory, once garbage is collected."""
    gc.collect()
    return rss_anon_bytes()


def main(argv: Sequence[str] | None = None) -> int:
    """Measure and report."""
    asked = options("held", QUESTION, argv, runs_full=1)
    taken = repeat(asked.runs, lambda: run(asked))
    marks = {
        "held_mb": at_most(60, 30),
        "hot_count": at_most(5_000, 4_200),
        "lives_share_times": at_least(0.6, 0.9),
    }
    work = WorkHash()
    work.add(asked.pick(COUNT_SMALL, COUNT_FULL))
    report(
        asked,
        figures_of(taken, marks),
        work=work,
        floor=medians(taken, "floor_"),
        notes={"held": asked.pick(COUNT_SMALL, COUNT_FULL)},
    )
    return 0


if __name__ == "__main__":
    sys.exit(main())
