"""How soon does a handler begin, in an engine that has nothing else to do?

start   from before `submit` to the handler: two durable records and the hand-overs between them
life    from before `submit` to `result`: submitted, started, run, ended, each step on disk
due     how long after its due time a sleeping ticket's handler begins; due in 10 to 500 ms
rested  three appends in a row, each durable before the next, after the pause that each life has
        before it: a disk that was left alone takes longer over the first

`life_p99_times` is the p99 of a life over what it may be: one and a half times the p99 of three
appends in a row, each durable before the next, and a millisecond; both from as many samples of the
same run.

Both for plain functions (`sync`) and for coroutines (`async`).
"""

import random
import sys
import time
from collections.abc import Sequence
from pathlib import Path
from time import perf_counter_ns

from bench.floor import BRIEF, SMALLEST, Strip, appended, beside
from bench.kit import (
    Options,
    WorkHash,
    at_most,
    figures_of,
    medians,
    options,
    quantile,
    repeat,
    report,
)
from parkade import Attempt, Engine
from parkade.tasks import Task

QUESTION = "How soon does a handler begin, in an engine that has nothing else to do?"

STARTS_SMALL, STARTS_USUAL = 10, 150
DUES_SMALL, DUES_USUAL = 10, 200
DUE_MS_MIN, DUE_MS_MAX = 10, 500
PAUSE_S = 0.005  # long enough for the engine to fall asleep


class Watched:
    """An engine whose handlers note when they begin."""

    def __init__(self, directory: Path) -> None:
        self.began_ns: list[int] = []
        self.late_ms: list[float] = []
        engine = self.engine = Engine(directory)

        def note(attempt: Attempt) -> None:
            self.began_ns.append(perf_counter_ns())
            self.late_ms.append(1e3 * (time.time() - attempt.scheduled_for.timestamp()))

        @engine.task(name="plain")
        def plain(attempt: Attempt) -> None:
            note(attempt)

        @engine.task(name="awaited")
        async def awaited(attempt: Attempt) -> None:
            note(attempt)

        self.tasks: dict[str, Task[[], None]] = {"sync": plain, "async": awaited}


def run(asked: Options) -> dict[str, float]:
    """All measures once, on a fresh directory."""
    with asked.scratch() as directory:
        taken = beside(asked, directory)
        rested = rested_us(asked, directory / "rested.strip")
        taken["rested_triple_us_p50"] = quantile(rested, 0.5)
        taken["rested_triple_us_p99"] = quantile(rested, 0.99)
        watched = Watched(directory / "garage")
        with watched.engine:
            for kind, task in watched.tasks.items():
                task.submit().result("30s")  # the thread or the loop is there from now on
                starts, lives = idle_us(watched, task, asked.pick(STARTS_SMALL, STARTS_USUAL))
                for name, micros in (("start", starts), ("life", lives)):
                    taken[f"{kind}_{name}_us_p50"] = quantile(micros, 0.5)
                    taken[f"{kind}_{name}_us_p99"] = quantile(micros, 0.99)
                allowed_us = 1.5 * taken["floor_triple_us_p99"] + 1_000
                taken[f"{kind}_life_p99_times"] = taken[f"{kind}_life_us_p99"] / allowed_us
            for kind, task in watched.tasks.items():
                late = due_late_ms(watched, task, asked.pick(DUES_SMALL, DUES_USUAL))
                taken[f"{kind}_due_late_ms_p50"] = quantile(late, 0.5)
                taken[f"{kind}_due_late_ms_p99"] = quantile(late, 0.99)
    return taken


def rested_us(asked: Options, path: Path) -> list[float]:
    """The microseconds of three durable appends in a row, with a pause before each three."""
    strip = Strip(path, asked.pick(SMALLEST, BRIEF).file_bytes)
    taken: list[float] = []
    for _ in range(asked.pick(STARTS_SMALL, STARTS_USUAL)):
        time.sleep(PAUSE_S)
        taken.append(appended(strip, 3))
    strip.close()
    path.unlink()
    return taken


def idle_us(watched: Watched, task: Task[[], None], count: int) -> tuple[list[float], list[float]]:
    """The microseconds from before each submit to its handler, and to its end."""
    starts: list[float] = []
    lives: list[float] = []
    for _ in range(count):
        time.sleep(PAUSE_S)
        before_ns = perf_counter_ns()
        task.submit().result("30s")
        lives.append((perf_counter_ns() - before_ns) / 1e3)
        starts.append((watched.began_ns[-1] - before_ns) / 1e3)
    return starts, lives


def due_late_ms(watched: Watched, task: Task[[], None], count: int) -> list[float]:
    """How many milliseconds late each handler began."""
    watched.late_ms.clear()
    spans = random.Random(11)
    calls = [
        task.options(delay=spans.randint(DUE_MS_MIN, DUE_MS_MAX) / 1e3).call() for _ in range(count)
    ]
    for ticket in watched.engine.submit_many(calls):
        ticket.result("30s")
    assert len(watched.late_ms) == count
    return watched.late_ms


def main(argv: Sequence[str] | None = None) -> int:
    """Measure and report."""
    asked = options("lateness", QUESTION, argv)
    taken = repeat(asked, run)
    floor = medians(taken, "floor_")
    two_syncs_us = 2 * floor["sync_us_p50"]
    mark = at_most(two_syncs_us + 1_000, two_syncs_us + 300)
    marks = {f"{kind}_start_us_p50": mark for kind in ("sync", "async")}
    marks |= {f"{kind}_life_p99_times": at_most(1, 0.75) for kind in ("sync", "async")}
    work = WorkHash()
    work.add(asked.pick(STARTS_SMALL, STARTS_USUAL), asked.pick(DUES_SMALL, DUES_USUAL))
    report(asked, figures_of(taken, marks), work=work, floor=floor)
    return 0


if __name__ == "__main__":
    sys.exit(main())
