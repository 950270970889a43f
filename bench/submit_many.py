"""How fast do sleepers get out of the way: from `submit_many` to the last checkpoint?

made      a call is built: options, and 100 bytes of arguments encoded
durable   submit_many returns: every ticket is on disk, in the journal
parked    every checkpoint is done: the tickets are in the store, and none is in memory

The calls are made beforehand; the tickets are due over a year, in no order.
"""

import sys
from collections.abc import Sequence

from bench.floor import beside
from bench.kit import (
    Options,
    Timer,
    at_least,
    options,
    repeat,
    report_runs,
)
from bench.stage import BODY, Stage

QUESTION = "How fast do sleepers get out of the way: from submit_many to the last checkpoint?"

COUNT_SMALL, COUNT_USUAL = 2_000, 200_000
MADE_COUNT = 2_000


def run(asked: Options) -> dict[str, float]:
    """Once, on a fresh directory."""
    count = asked.pick(COUNT_SMALL, COUNT_USUAL)
    with asked.scratch() as directory:
        taken = beside(asked, directory)
        with Stage(directory / "garage") as stage:
            taken["made_us"] = made_us(stage)
            calls = stage.sleepers(count)
            with Timer() as parking:
                with Timer() as submitting:
                    stage.submit_all(calls)
                stage.park()
            stats = stage.engine.stats()
    assert stats.scheduled == count, stats
    assert all(shard.hot == shard.dirty == 0 for shard in stats.shards), stats
    floor_per_s = taken["floor_records_per_s"]
    taken["durable_per_s"] = submitting.rate(count)
    taken["parked_per_s"] = parking.rate(count)
    taken["durable_floor_percent"] = 100 * submitting.rate(count) / floor_per_s
    taken["parked_floor_percent"] = 100 * parking.rate(count) / floor_per_s
    return taken


def made_us(stage: Stage) -> float:
    """The microseconds to build one call."""
    task = stage.sleeper
    with Timer() as timer:
        for _ in range(MADE_COUNT):
            task.options(delay=86_400).call(BODY)
    return timer.micros / MADE_COUNT


def main(argv: Sequence[str] | None = None) -> int:
    """Measure and report."""
    asked = options("submit_many", QUESTION, argv, runs_usual=3)
    taken = repeat(asked, run)
    marks = {"parked_floor_percent": at_least(10, 20)}
    count = asked.pick(COUNT_SMALL, COUNT_USUAL)
    report_runs(
        asked,
        taken,
        marks,
        done=(count, len(BODY)),
        notes={"tickets": count},
    )
    return 0


if __name__ == "__main__":
    sys.exit(main())
