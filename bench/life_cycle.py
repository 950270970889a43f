"""How many whole lives a second: submitted, started, run, ended, each step on disk?

The handlers do nothing, and the tickets are due at once; the clock stops when all are done and the
last record is on disk. A life is three records; `times` is how many lives pass in the time that the
floor needs for three appends, one after the other.
"""

import sys
from collections.abc import Iterator, Sequence
from itertools import repeat as again
from typing import Any

from bench.floor import beside
from bench.kit import (
    Options,
    Timer,
    at_least,
    options,
    repeat,
    report_runs,
)
from bench.stage import Stage
from parkade import Call

QUESTION = "How many whole lives a second: submitted, started, run, ended, each step on disk?"

COUNT_SMALL, COUNT_USUAL = 300, 20_000
PEER_PER_S = 950  # the best of the embedded queues of others, end to end, on two cores


def run(asked: Options) -> dict[str, float]:
    """Once for plain functions, once for coroutines, each on a fresh directory."""
    with asked.scratch() as directory:
        taken = beside(asked, directory)
    for kind in ("sync", "async"):
        with asked.scratch() as directory, Stage(directory / "garage") as stage:
            task = stage.noop if kind == "sync" else stage.anoop
            per_s = lives_per_s(stage, task.call(), asked.pick(COUNT_SMALL, COUNT_USUAL))
        taken[f"{kind}_per_s"] = per_s
        taken[f"{kind}_times"] = per_s * taken["floor_triple_us_p50"] / 1e6
    return taken


def lives_per_s(stage: Stage, call: Call[Any], count: int) -> float:
    """Lives a second, from the first submit to the last end on disk."""
    calls: Iterator[Call[Any]] = again(call, count)
    with Timer() as timer:
        stage.submit_all(calls)
        stage.await_done(count)
    assert stage.engine.stats().done_total == count
    return timer.rate(count)


def main(argv: Sequence[str] | None = None) -> int:
    """Measure and report."""
    asked = options("life_cycle", QUESTION, argv, runs_usual=3)
    taken = repeat(asked, run)
    mark = at_least(40 * PEER_PER_S, 80 * PEER_PER_S)
    marks = {f"{kind}_per_s": mark for kind in ("sync", "async")}
    count = asked.pick(COUNT_SMALL, COUNT_USUAL)
    report_runs(
        asked,
        taken,
        marks,
        done=(count,),
        notes={"lives": count},
    )
    return 0


if __name__ == "__main__":
    sys.exit(main())
