"""How long does an open take after a crash, with a tail in the journal that no checkpoint has?

A process submits, runs what is due, and is gone without a word once all of it is on disk; the next
one opens the directory. Two tails: `sleepers`, a record for each; `lives`, two records for each and
one for every batch that started. The rates are of the whole open; `clean_open_ms` is the open after
an orderly stop, which has nothing to replay.
"""

import os
import sys
from collections.abc import Sequence
from itertools import repeat as again
from pathlib import Path

from bench.floor import beside
from bench.kit import (
    Options,
    Timer,
    WorkHash,
    figures_of,
    medians,
    options,
    repeat,
    report,
)
from bench.stage import Stage

QUESTION = "How long does an open take after a crash, with a tail that no checkpoint has?"

# The fewer of the lives, for they take their time, and after five seconds a checkpoint comes.
COUNTS_SMALL, COUNTS_FULL = {"sleepers": 1_000, "lives": 100}, {"sleepers": 60_000, "lives": 6_000}


def run(asked: Options) -> dict[str, float]:
    """Both tails, each in a fresh directory."""
    with asked.scratch() as directory:
        taken = beside(asked, directory)
        for kind, count in asked.pick(COUNTS_SMALL, COUNTS_FULL).items():
            garage = directory / kind
            asked.apart(crash, garage, kind, count)
            taken |= asked.apart(open_again, garage, kind, count)
    return taken


def crash(garage: Path, kind: str, count: int) -> None:
    """In a process of its own: leaves a tail, and dies."""
    if os.fork() == 0:
        stage = Stage(garage)
        stage.engine.start()
        if kind == "sleepers":
            stage.submit_all(stage.sleepers(count))
        else:
            stage.submit_all(again(stage.noop.call(), count))
            stage.await_done(count)
        os._exit(0)
    _, status = os.wait()
    assert status == 0, status


def open_again(garage: Path, kind: str, count: int) -> dict[str, float]:
    """In a process of its own: the open after the crash, and one after an orderly stop."""
    stage = Stage(garage, run=False)
    with Timer() as recovering:
        stage.engine.start()
    shards = stage.host.shards
    lsns = sum(shard.core.lsn for shard in shards)
    replayed = lsns - sum(shard.store.lsn for shard in shards)
    stats = stage.engine.stats()
    assert (stats.scheduled if kind == "sleepers" else stats.done_total) == count, stats
    stage.engine.stop()
    with Timer() as opening:
        stage.engine.start()
    stage.engine.stop()
    return {
        f"{kind}_replayed_count": replayed,
        f"{kind}_open_ms": recovering.seconds * 1e3,
        f"{kind}_clean_open_ms": opening.seconds * 1e3,
        f"{kind}_records_per_s": recovering.rate(replayed),
    }


def main(argv: Sequence[str] | None = None) -> int:
    """Measure and report."""
    asked = options("recovery", QUESTION, argv, runs_full=3)
    taken = repeat(asked.runs, lambda: run(asked))
    work = WorkHash()
    work.add(asked.pick(COUNTS_SMALL, COUNTS_FULL))
    report(asked, figures_of(taken), work=work, floor=medians(taken, "floor_"))
    return 0


if __name__ == "__main__":
    sys.exit(main())
