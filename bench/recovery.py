"""How long does an open take after a crash, with a tail in the journal that no checkpoint has?

A process submits, runs what is due, and is gone without a word once all of it is on disk; the next
one opens the directory. Two tails: `sleepers`, a record for each; `lives`, two records for each and
one for every batch that started. `parked_count` sleepers lie beneath both, and their checkpoint
is done. The rates are of the whole open; `clean_open_ms` is the open after an orderly stop, which
has nothing to replay. Checkpoints are held back while the tail is written: they would come before
it is as long as that.
"""

import os
import shutil
import sys
from collections.abc import Sequence
from itertools import repeat as again
from pathlib import Path
from unittest import mock

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
from parkade import limits

QUESTION = "How long does an open take after a crash, with a tail that no checkpoint has?"

COUNTS_SMALL = {"sleepers": 1_000, "lives": 100}
COUNTS_USUAL = {"sleepers": 200_000, "lives": 60_000}
PARKED_SMALL, PARKED_USUAL, PARKED_FULL = 500, 20_000, 10_000_000
NEVER = 1 << 60
HELD_BACK = (  # what begins a checkpoint, and what bounds the memory of those without one
    "CHECKPOINT_AGE_MS",
    "CHECKPOINT_TICKETS_MAX",
    "CHECKPOINT_DIRTY_BYTES",
    "CHECKPOINT_JOURNAL_BYTES",
    "CHECKPOINT_SEGMENTS_MAX",
    "DIRTY_BYTES_MAX",
)


def run(asked: Options) -> dict[str, float]:
    """Both tails, each in a fresh directory."""
    with asked.scratch() as directory:
        taken = beside(asked, directory)
        parked_count = parked(asked)
        for kind, count in asked.pick(COUNTS_SMALL, COUNTS_USUAL).items():
            garage = directory / kind
            asked.apart(crash, garage, kind, count, parked_count)
            taken |= asked.apart(open_again, garage, kind, count, parked_count)
            shutil.rmtree(garage)
    return taken


def parked(asked: Options) -> int:
    """How many lie beneath the tail."""
    return asked.pick(PARKED_SMALL, PARKED_USUAL, PARKED_FULL)


def crash(garage: Path, kind: str, count: int, parked_count: int) -> None:
    """In a process of its own: leaves a tail, and dies."""
    if os.fork() == 0:
        with Stage(garage) as stage:
            stage.submit_all(stage.sleepers(parked_count))
            stage.park()
        for name in HELD_BACK:
            mock.patch.object(limits, name, NEVER).start()
        stage.engine.start()
        if kind == "sleepers":
            stage.submit_all(stage.sleepers(count))
        else:
            stage.submit_all(again(stage.noop.call(), count))
            stage.await_done(count)
        os._exit(0)
    _, status = os.wait()
    assert status == 0, status


def open_again(garage: Path, kind: str, count: int, parked_count: int) -> dict[str, float]:
    """In a process of its own: the open after the crash, and one after an orderly stop."""
    stage = Stage(garage, run=False)
    with Timer() as recovering:
        stage.engine.start()
    shards = stage.host.shards
    lsns = sum(shard.core.lsn for shard in shards)
    replayed = lsns - sum(shard.store.lsn for shard in shards)
    stats = stage.engine.stats()
    scheduled = parked_count + (count if kind == "sleepers" else 0)
    assert (stats.scheduled, stats.done_total) == (scheduled, total_done(kind, count)), stats
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


def total_done(kind: str, count: int) -> int:
    """How many have lived."""
    return count if kind == "lives" else 0


def main(argv: Sequence[str] | None = None) -> int:
    """Measure and report."""
    asked = options("recovery", QUESTION, argv, runs_usual=3)
    taken = repeat(asked, run)
    report_runs(
        asked,
        taken,
        {f"{kind}_records_per_s": at_least(150_000, 200_000) for kind in COUNTS_USUAL},
        done=(asked.pick(COUNTS_SMALL, COUNTS_USUAL),),
        notes={"parked": parked(asked)},
    )
    return 0


if __name__ == "__main__":
    sys.exit(main())
