"""What do sleepers cost while they sleep: memory, disk, and the next open?

Each step has a process of its own, so that nothing of the step before is in its memory:

empty    an engine opened on a directory without tickets: what any engine holds
parked   the same, and then all sleepers submitted and their checkpoints done
opened   the directory of `parked`, opened again

Memory is counted above the empty engine, without mapped files (`RssAnon`); the mapped store
is shown apart, for the system takes it back when it likes. The disk is what the directory has
allocated, journal and spare segments included. Each ticket has 100 bytes of arguments.
`last_over_first_times` is the rate of the last tenth over that of the first, each until it is
parked. `due_late` is how late a ticket begins that becomes due among the sleepers, or in the empty
engine.
"""

import gc
import itertools
import sys
import time
from collections.abc import Sequence
from pathlib import Path

from bench.floor import beside
from bench.garage import Garage, garage_of
from bench.kit import (
    Options,
    Timer,
    at_least,
    at_most,
    disk_bytes,
    options,
    quantile,
    repeat,
    report_runs,
    rss_anon_bytes,
    rss_file_bytes,
)
from bench.stage import Stage
from parkade import Attempt

QUESTION = "What do sleepers cost while they sleep: memory, disk, and the next open?"

PARTS = 10
DUES_SMALL, DUES_USUAL = 5, 60  # tickets that become due among the sleepers, one after the other
AHEAD_S = 0.03
IDLE_S_SMALL, IDLE_S_USUAL = 0.2, 4.0
MB = 1e6


def run(asked: Options) -> dict[str, float]:
    """All steps once, on a fresh directory, which other benches find filled."""
    dues, idle_s = asked.pick(DUES_SMALL, DUES_USUAL), asked.pick(IDLE_S_SMALL, IDLE_S_USUAL)
    with asked.scratch() as directory:
        taken = beside(asked, directory)
        garage = garage_of(asked, directory)
        garage.clear()
        for place in (garage.directory, directory / "empty"):
            asked.apart(empty, place, 0)  # makes it
        taken |= asked.apart(parked, garage)
        taken["disk_per_sleeper_bytes"] = disk_bytes(garage.directory) / garage.count
        stores = sum(disk_bytes(store) for store in garage.directory.glob("*/store"))
        taken["store_per_sleeper_bytes"] = stores / garage.count
        taken |= asked.apart(opened, garage.directory, garage.count, dues, idle_s)
        empty_bytes, late_ms = asked.apart(empty, directory / "empty", dues)
        taken["opened_mb"] = max(0.0, taken["opened_mb"] - empty_bytes / MB)
        taken["due_late_empty_ms_p50"] = late_ms
    return taken


def parked(garage: Garage) -> dict[str, float]:
    """In a process of its own: the sleepers' way to the store."""
    count, ids = garage.count, list[str]()
    with Stage(garage.directory) as stage:
        stage.engine.submit("noop", {}).result("30s")
        before_bytes = held_bytes()
        parts: list[Timer] = []
        calls = stage.sleepers(count)
        with Timer() as timer:
            for _ in range(PARTS):
                with Timer() as part:
                    part_calls = itertools.islice(calls, count // PARTS)
                    submitted = garage.submit(stage, part_calls, ids)
                    stage.park()
                assert submitted == count // PARTS
                parts.append(part)
        after_bytes = held_bytes()
        stats = stage.engine.stats()
        mapped_mb = rss_file_bytes() / MB
    assert stats.scheduled == count, stats
    assert sum(shard.hot for shard in stats.shards) == 0, stats
    garage.keep_ids(ids)
    return {
        "parked_mb": max(0, after_bytes - before_bytes) / MB,
        "parked_mapped_mb": mapped_mb,
        "parked_per_s": timer.rate(count),
        "first_tenth_per_s": parts[0].rate(count // PARTS),
        "last_tenth_per_s": parts[-1].rate(count // PARTS),
        "last_over_first_times": parts[0].seconds / parts[-1].seconds,
        "segments_count": sum(shard.journal_segments for shard in stats.shards),
    }


def opened(garage: Path, count: int, dues: int, idle_s: float) -> dict[str, float]:
    """In a process of its own: an open, some seconds in which nothing is due, and then some tickets
    that are."""
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
        late_ms = due_late_ms(stage, dues)
    return {
        "open_s": timer.seconds,
        "opened_mb": opened_bytes / MB,
        "idle_cpu_percent": 100 * cpu_s / idle_s,
        "due_late_ms_p50": late_ms,
    }


def empty(garage: Path, dues: int) -> tuple[int, float]:
    """In a process of its own: what an engine holds without sleepers, and how late it is."""
    with Stage(garage) as stage:
        stage.engine.submit("noop", {}).result("30s")
        return held_bytes(), due_late_ms(stage, dues)


def due_late_ms(stage: Stage, count: int) -> float:
    """How late a ticket begins that slept a moment, each after the one before: the median."""
    begun_s: list[float] = []

    @stage.engine.task(name="prompt")
    async def prompt(attempt: Attempt) -> None:
        begun_s.append(time.time() - attempt.scheduled_for.timestamp())

    for _ in range(count):
        prompt.options(delay=AHEAD_S).submit().result("30s")
    return 1e3 * quantile(begun_s, 0.5)


def held_bytes() -> int:
    """The process's own memory, once garbage is collected."""
    gc.collect()
    return rss_anon_bytes()


def main(argv: Sequence[str] | None = None) -> int:
    """Measure and report."""
    asked = options("sleepers", QUESTION, argv, runs_usual=1)
    taken = repeat(asked, run)
    is_full = asked.is_full
    marks = {
        "parked_mb": at_most(150, 60) if is_full else at_most(60, 30),
        "opened_mb": at_most(80, 40) if is_full else at_most(60, 30),
        "disk_per_sleeper_bytes": at_most(320, 260),
        "last_over_first_times": at_least(0.667, 0.9),
        "open_s": at_most(1, 0.5) if is_full else at_most(0.5, 0.5),
        "idle_cpu_percent": at_most(1, 1),
    }
    count = garage_of(asked, Path()).count
    report_runs(
        asked,
        taken,
        marks,
        done=(count,),
        notes={"sleepers": count},
    )
    return 0


if __name__ == "__main__":
    sys.exit(main())
