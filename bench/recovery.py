"""How long does an open take after a crash, with a tail in the journal that no checkpoint has?

A process submits, runs what is due, and is gone without a word once all of it is on disk; the next
one opens the directory. Two tails: `sleepers`, a record for each; `lives`, two records for each and
one for every batch that started. They lie over a directory of many sleepers (`bench.garage`), whose
checkpoints are done. The rates are of the whole open. `beside_replay_ms` is what the open took
while no shard replayed: looking for the tail, settling, letting in; `clean_open_ms` is the open
after an orderly stop, which has nothing to replay. Checkpoints are held back while the tail is
written: they would come before it is as long as that.
"""

import json
import os
import sys
from collections.abc import Sequence
from itertools import repeat as again
from pathlib import Path
from time import perf_counter
from typing import Any
from unittest import mock

from bench.floor import beside
from bench.garage import Garage, filled, garage_of
from bench.kit import (
    Options,
    Timer,
    at_least,
    at_most,
    options,
    repeat,
    report_runs,
)
from bench.stage import Stage
from parkade import limits, opening

QUESTION = "How long does an open take after a crash, with a tail that no checkpoint has?"

COUNTS_SMALL = {"sleepers": 1_000, "lives": 100}
COUNTS_USUAL = {"sleepers": 200_000, "lives": 60_000}
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
    """Both tails, one after the other over the same sleepers."""
    with asked.scratch() as directory:
        taken = beside(asked, directory)
        garage = filled(asked, directory)
        left = directory / "left.json"
        for kind, count in asked.pick(COUNTS_SMALL, COUNTS_USUAL).items():
            asked.apart(crash, garage, kind, count, left)
            taken |= asked.apart(open_again, garage, kind, left)
    return taken


def crash(garage: Garage, kind: str, count: int, left: Path) -> None:
    """In a process of its own: leaves a tail, writes down what there is, and dies."""
    if os.fork() == 0:
        for name in HELD_BACK:
            mock.patch.object(limits, name, NEVER).start()
        stage = Stage(garage.directory)
        stage.engine.start()
        if kind == "sleepers":
            stage.submit_all(stage.sleepers(count))
        else:
            before = stage.done()
            stage.submit_all(again(stage.noop.call(), count))
            stage.await_done(before + count)
        left.write_text(json.dumps(counted(stage)), encoding="ascii")
        os._exit(0)
    _, status = os.wait()
    assert status == 0, status


def open_again(garage: Garage, kind: str, left: Path) -> dict[str, float]:
    """In a process of its own: the open after the crash, and one after an orderly stop."""
    stage = Stage(garage.directory, run=False)
    spans: list[tuple[float, float]] = []
    with mock.patch.object(opening, "replay", timed(opening.replay, spans)), Timer() as recovering:
        stage.engine.start()
    shards = stage.host.shards
    lsns = sum(shard.core.lsn for shard in shards)
    replayed = lsns - sum(shard.store.lsn for shard in shards)
    assert counted(stage) == json.loads(left.read_text(encoding="ascii"))
    stage.engine.stop()
    with Timer() as opened:
        stage.engine.start()
    stage.engine.stop()
    replaying_s = max(end for _, end in spans) - min(start for start, _ in spans)
    return {
        f"{kind}_replayed_count": replayed,
        f"{kind}_open_ms": recovering.seconds * 1e3,
        f"{kind}_beside_replay_ms": (recovering.seconds - replaying_s) * 1e3,
        f"{kind}_clean_open_ms": opened.seconds * 1e3,
        f"{kind}_records_per_s": recovering.rate(replayed),
    }


def counted(stage: Stage) -> list[int]:
    """How many sleep, and how many are done."""
    stats = stage.engine.stats()
    return [stats.scheduled, stats.done_total]


def timed(replay: Any, spans: list[tuple[float, float]]) -> Any:
    """The same function, which notes when it ran: the shards replay side by side."""

    def replay_and_note(*given: Any) -> None:
        start = perf_counter()
        replay(*given)
        spans.append((start, perf_counter()))

    return replay_and_note


def main(argv: Sequence[str] | None = None) -> int:
    """Measure and report."""
    asked = options("recovery", QUESTION, argv, runs_usual=3)
    taken = repeat(asked, run)
    rates = {f"{kind}_records_per_s": at_least(150_000, 200_000) for kind in COUNTS_USUAL}
    beside_ms = {f"{kind}_beside_replay_ms": at_most(1_000, 250) for kind in COUNTS_USUAL}
    parked = garage_of(asked, Path()).count
    report_runs(
        asked,
        taken,
        rates | beside_ms,
        done=(asked.pick(COUNTS_SMALL, COUNTS_USUAL), parked),
        notes={"parked": parked},
    )
    return 0


if __name__ == "__main__":
    sys.exit(main())
