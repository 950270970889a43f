"""How much of a core does an engine take that has nothing to do?

empty      nothing has ever been submitted
parked     sleepers on disk, none due for a day
waiting    tickets due in a minute or more: they are in memory, in the wheel

Each engine's processor time over some seconds, after everything has come to rest. They rest side by
side: each counts what its own process takes.
"""

import sys
import time
from collections.abc import Iterator, Sequence
from itertools import repeat as again
from pathlib import Path
from typing import Any

from bench.kit import (
    Options,
    WorkHash,
    at_most,
    figures_of,
    options,
    repeat,
    report,
)
from bench.stage import BODY, Stage
from parkade import Call

QUESTION = "How much of a core does an engine take that has nothing to do?"

COUNTS_SMALL = {"empty": 0, "parked": 1_000, "waiting": 1_000}
COUNTS_USUAL = {"empty": 0, "parked": 100_000, "waiting": 20_000}
WINDOW_S_SMALL, WINDOW_S_USUAL = 0.2, 3.0
REST_S = 1.5  # past a second the journal's last frame has been covered, and nothing more comes


def run(asked: Options) -> dict[str, float]:
    """Each engine in a process and a directory of its own."""
    window_s = asked.pick(WINDOW_S_SMALL, WINDOW_S_USUAL)
    rest_s = asked.pick(0.0, REST_S)
    taken: dict[str, float] = {}
    counts = asked.pick(COUNTS_SMALL, COUNTS_USUAL)
    with asked.scratch() as directory:
        calls = [
            (directory / kind, kind, count, rest_s, window_s) for kind, count in counts.items()
        ]
        for kind, (cpu_s, passes) in zip(counts, asked.abreast(rest, calls), strict=True):
            taken[f"{kind}_cpu_percent"] = 100 * cpu_s / window_s
            taken[f"{kind}_passes_per_s"] = passes / window_s
    return taken


def rest(garage: Path, kind: str, count: int, rest_s: float, window_s: float) -> tuple[float, int]:
    """In a process of its own: the processor seconds, and the core thread's passes, of a window."""
    with Stage(garage) as stage:
        sleepers: Iterator[Call[Any]] = stage.sleepers(count)
        if kind == "waiting":
            sleepers = again(stage.sleeper.options(delay="60s").call(BODY), count)
        stage.submit_all(sleepers)
        stage.park()
        time.sleep(rest_s)
        passes, cpu_s = stage.host.steps, time.process_time()
        time.sleep(window_s)
        return time.process_time() - cpu_s, stage.host.steps - passes


def main(argv: Sequence[str] | None = None) -> int:
    """Measure and report."""
    asked = options("idle", QUESTION, argv, runs_usual=3)
    taken = repeat(asked, run)
    marks = {f"{kind}_cpu_percent": at_most(1, 1) for kind in COUNTS_USUAL}
    work = WorkHash()
    work.add(asked.pick(COUNTS_SMALL, COUNTS_USUAL))
    report(asked, figures_of(taken, marks), work=work)
    return 0


if __name__ == "__main__":
    sys.exit(main())
