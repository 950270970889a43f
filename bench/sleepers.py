"""What do sleepers cost while they sleep: memory, disk, and the next open?

Each step has a process of its own, so that nothing of the step before is in its memory:

empty    an engine opened on a directory without tickets: what any engine holds
parked   the same, and then all sleepers submitted and their checkpoints done
opened   the directory of `parked`, opened again

Memory is counted above the empty engine, without mapped files (`RssAnon`); the mapped store
is shown apart, for the system takes it back when it likes. The disk is what the directory has
allocated, journal and spare segments included. Each ticket has 100 bytes of arguments.
"""

import gc
import sys
import time
from collections.abc import Sequence
from pathlib import Path

from bench.floor import beside
from bench.kit import (
    Options,
    Timer,
    WorkHash,
    at_most,
    disk_bytes,
    figures_of,
    medians,
    options,
    repeat,
    report,
    rss_anon_bytes,
    rss_file_bytes,
)
from bench.stage import Stage

QUESTION = "What do sleepers cost while they sleep: memory, disk, and the next open?"

COUNT_SMALL, COUNT_FULL = 20_000, 1_000_000
IDLE_S_SMALL, IDLE_S_FULL = 0.2, 5.0
MB = 1e6


def run(asked: Options) -> dict[str, float]:
    """All steps once, on a fresh directory."""
    count = asked.pick(COUNT_SMALL, COUNT_FULL)
    with asked.scratch() as directory:
        taken = beside(asked, directory)
        garage = directory / "garage"
        for place in (garage, directory / "empty"):
            asked.apart(empty, place)  # makes it
        taken |= asked.apart(parked, garage, count)
        taken["disk_per_sleeper_bytes"] = disk_bytes(garage) / count
        stores = sum(disk_bytes(store) for store in garage.glob("*/store"))
        taken["store_per_sleeper_bytes"] = stores / count
        taken |= asked.apart(opened, garage, count, asked.pick(IDLE_S_SMALL, IDLE_S_FULL))
        empty_bytes = asked.apart(empty, directory / "empty")
        taken["opened_mb"] = max(0.0, taken["opened_mb"] - empty_bytes / MB)
    return taken


def parked(garage: Path, count: int) -> dict[str, float]:
    """In a process of its own: the sleepers' way to the store."""
    with Stage(garage) as stage:
        stage.engine.submit("noop", {}).result("30s")
        before_bytes = held_bytes()
        with Timer() as timer:
            assert stage.submit_all(stage.sleepers(count)) == count
            stage.park()
        after_bytes = held_bytes()
        stats = stage.engine.stats()
        mapped_mb = rss_file_bytes() / MB
    assert stats.scheduled == count, stats
    assert sum(shard.hot for shard in stats.shards) == 0, stats
    return {
        "parked_mb": max(0, after_bytes - before_bytes) / MB,
        "parked_mapped_mb": mapped_mb,
        "parked_per_s": timer.rate(count),
        "segments_count": sum(shard.journal_segments for shard in stats.shards),
    }


def opened(garage: Path, count: int, idle_s: float) -> dict[str, float]:
    """In a process of its own: an open, and some seconds in which nothing is due."""
    stage = Stage(garage)
    with Timer() as timer:
        stage.engine.start()
    with stage:
        stage.engine.submit("noop", {}).result("30s")
        opened_bytes = held_bytes()
        assert stage.engine.stats().scheduled == count
        stage.park()
        cpu_s = time.process_time()
        time.sleep(idle_s)
        cpu_s = time.process_time() - cpu_s
    return {
        "open_s": timer.seconds,
        "opened_mb": opened_bytes / MB,
        "idle_cpu_percent": 100 * cpu_s / idle_s,
    }


def empty(garage: Path) -> int:
    """In a process of its own: what an engine holds without sleepers."""
    with Stage(garage) as stage:
        stage.engine.submit("noop", {}).result("30s")
        return held_bytes()


def held_bytes() -> int:
    """The process's own memory, once garbage is collected."""
    gc.collect()
    return rss_anon_bytes()


def main(argv: Sequence[str] | None = None) -> int:
    """Measure and report."""
    asked = options("sleepers", QUESTION, argv, runs_full=1)
    taken = repeat(asked.runs, lambda: run(asked))
    marks = {
        "parked_mb": at_most(60, 30),
        "opened_mb": at_most(60, 30),
        "disk_per_sleeper_bytes": at_most(320, 260),
        "open_s": at_most(0.5, 0.5),
        "idle_cpu_percent": at_most(1, 1),
    }
    count = asked.pick(COUNT_SMALL, COUNT_FULL)
    work = WorkHash()
    work.add(count)
    report(
        asked,
        figures_of(taken, marks),
        work=work,
        floor=medians(taken, "floor_"),
        notes={"sleepers": count},
    )
    return 0


if __name__ == "__main__":
    sys.exit(main())
