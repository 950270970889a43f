"""What does the number of shards change, when much is under way at once?

Engines of 1, 2, 4 and 8 shards are open at once and are asked in turns. 4,096 are outstanding:

tasks     4,096 asyncio tasks, each awaiting its own submit
many      submit_many of 4,096 sleepers in one chunk, again and again, until all are parked
lives     4,096 at a time: submitted, run and ended, each on disk

`..._share_times_N` is the rate with N shards over the rate with one.
"""

import asyncio
import itertools
import sys
from collections.abc import Callable, Sequence
from itertools import repeat as again
from pathlib import Path
from statistics import median

from bench.floor import beside
from bench.kit import (
    Options,
    Timer,
    at_least,
    medians,
    options,
    repeat,
    report_runs,
)
from bench.plot import Plot
from bench.stage import BODY, Stage

QUESTION = "What does the number of shards change, when much is under way at once?"

SHARDS = (1, 2, 4, 8)
OUTSTANDING_SMALL, OUTSTANDING_USUAL = 64, 4_096
ROUNDS_SMALL, ROUNDS_USUAL = 1, 2  # of so many, in a turn
TURNS_SMALL, TURNS_USUAL, TURNS_FULL = 1, 5, 15


def tasks_per_s(stage: Stage, outstanding: int, rounds: int) -> float:
    """Submits a second of so many tasks of one loop."""
    task = stage.sleeper.options(delay="30d")

    async def submit() -> None:
        for _ in range(rounds):
            await task.asubmit(BODY)

    async def all_of_them() -> None:
        await asyncio.gather(*(submit() for _ in range(outstanding)))

    with Timer() as timer:
        asyncio.run(all_of_them())
    return timer.rate(outstanding * rounds)


def many_per_s(stage: Stage, outstanding: int, rounds: int) -> float:
    """Sleepers a second that leave memory."""
    calls = stage.sleepers(outstanding * rounds)
    with Timer() as timer:
        while stage.engine.submit_many(itertools.islice(calls, outstanding), chunk=outstanding):
            pass
        stage.park()
    return timer.rate(outstanding * rounds)


def lives_per_s(stage: Stage, outstanding: int, rounds: int) -> float:
    """Whole lives a second."""
    done = stage.done()
    with Timer() as timer:
        for _ in range(rounds):
            calls = again(stage.anoop.call(), outstanding)
            done += len(stage.engine.submit_many(calls, chunk=outstanding))
            stage.await_done(done)
    return timer.rate(outstanding * rounds)


WAYS: dict[str, Callable[[Stage, int, int], float]] = {
    "tasks": tasks_per_s,
    "many": many_per_s,
    "lives": lives_per_s,
}


def run(asked: Options) -> dict[str, float]:
    """All numbers of shards, each in a fresh directory."""
    with asked.scratch() as directory:
        taken = beside(asked, directory)
        return taken | asked.apart(measured, asked, directory)


def measured(asked: Options, directory: Path) -> dict[str, float]:
    """In a process of its own: the medians of all turns."""
    outstanding = asked.pick(OUTSTANDING_SMALL, OUTSTANDING_USUAL)
    rounds = asked.pick(ROUNDS_SMALL, ROUNDS_USUAL)
    stages = {n: Stage(directory / f"of-{n}", shards=n).__enter__() for n in SHARDS}
    rates: dict[tuple[str, int], list[float]] = {}
    for turn in range(asked.pick(TURNS_SMALL, TURNS_USUAL, TURNS_FULL)):
        for way, rate in WAYS.items():
            # Whoever comes first in one turn comes last in the next.
            for shards in SHARDS[:: 1 if turn % 2 == 0 else -1]:
                per_s = rate(stages[shards], outstanding, rounds)
                rates.setdefault((way, shards), []).append(per_s)
    for stage in stages.values():
        stage.__exit__(None, None, None)
    taken = {f"{way}_per_s_{shards}": median(values) for (way, shards), values in rates.items()}
    for way, shards in rates:
        if shards > 1:
            share = taken[f"{way}_per_s_{shards}"] / taken[f"{way}_per_s_1"]
            taken[f"{way}_share_times_{shards}"] = share
    return taken


def main(argv: Sequence[str] | None = None) -> int:
    """Measure and report."""
    asked = options("shards", QUESTION, argv, runs_usual=1)
    taken = repeat(asked, run)
    marks = {f"{way}_share_times_{n}": at_least(0.8, 1) for way in WAYS for n in SHARDS[1:]}
    outstanding = asked.pick(OUTSTANDING_SMALL, OUTSTANDING_USUAL)
    found = medians(taken, "")
    lines = {way: [(float(n), found[f"{way}_per_s_{n}"]) for n in SHARDS] for way in WAYS}
    title = f"Rates by the number of shards, {outstanding:,} outstanding"
    report_runs(
        asked,
        taken,
        marks,
        done=(SHARDS, outstanding),
        notes={"outstanding": outstanding},
        plots=[Plot("shards", title, "shards", "a second", lines)],
    )
    return 0


if __name__ == "__main__":
    sys.exit(main())
