"""How long does one durable submit take, and what do many callers at once gain?

single          one thread, one ticket after another: each on disk before the next
threads_64      64 threads, each as above
tasks_1/64/256  asyncio tasks on one loop, each awaiting its own ticket

A lone thread writes a sleeper itself; whoever is not alone goes through the core thread, and so
does every coroutine. So the times of one thread fall as that gets quicker, and
tasks_256_over_1_times says what many coroutines gain over one.

The tickets are sleepers, so that nothing but submitting is measured.
"""

import asyncio
import sys
import threading
from collections.abc import Sequence

from bench.floor import beside
from bench.kit import (
    Options,
    Timer,
    WorkHash,
    at_least,
    at_most,
    figures_of,
    medians,
    options,
    quantile,
    repeat,
    report,
)
from bench.stage import BODY, Stage

QUESTION = "How long does one durable submit take, and what do many callers at once gain?"

THREADS = 64
TASKS = (1, 64, 256)
SIZES_SMALL, SIZES_USUAL = (30, 2), (1_500, 40)  # of the single thread; of each of many


def run(asked: Options) -> dict[str, float]:
    """All measures once, on a fresh directory."""
    singles, each = asked.pick(SIZES_SMALL, SIZES_USUAL)
    with asked.scratch() as directory:
        taken = beside(asked, directory)
        with Stage(directory / "garage") as stage:
            micros = one_by_one(stage, singles)
            single_per_s = 1e6 * len(micros) / sum(micros)
            threads_per_s = threaded(stage, each)
            counts = [singles if tasks == 1 else each for tasks in TASKS]
            tasks_per_s = [
                asyncio.run(awaited(stage, *sizes)) for sizes in zip(TASKS, counts, strict=True)
            ]
            stage.park()
            held = stage.engine.stats().scheduled
    assert held == 2 * singles + each * (THREADS + sum(TASKS) - 1), held
    taken["single_us_p50"] = quantile(micros, 0.5)
    taken["single_us_p99"] = quantile(micros, 0.99)
    taken["single_syncs"] = taken["single_us_p50"] / taken["floor_sync_us_p50"]
    taken["single_per_s"] = single_per_s
    taken["threads_64_per_s"] = threads_per_s
    taken["threads_64_times"] = threads_per_s / single_per_s
    for tasks, per_s in zip(TASKS, tasks_per_s, strict=True):
        taken[f"tasks_{tasks}_per_s"] = per_s
        taken[f"tasks_{tasks}_times"] = per_s / single_per_s
    taken["tasks_256_over_1_times"] = tasks_per_s[-1] / tasks_per_s[0]
    return taken


def one_by_one(stage: Stage, count: int) -> list[float]:
    """The microseconds of each submit of one thread."""
    task = stage.sleeper.options(delay="30d")
    micros: list[float] = []
    for _ in range(count):
        with Timer() as timer:
            task.submit(BODY)
        micros.append(timer.micros)
    return micros


def threaded(stage: Stage, each: int) -> float:
    """Submits a second, of 64 threads together."""
    task = stage.sleeper.options(delay="30d")
    begin = threading.Barrier(THREADS + 1)

    def submit() -> None:
        begin.wait()
        for _ in range(each):
            task.submit(BODY)

    threads = [threading.Thread(target=submit) for _ in range(THREADS)]
    for thread in threads:
        thread.start()
    begin.wait()
    with Timer() as timer:
        for thread in threads:
            thread.join()
    return timer.rate(THREADS * each)


async def awaited(stage: Stage, tasks: int, each: int) -> float:
    """Submits a second, of so many tasks of one loop together."""
    task = stage.sleeper.options(delay="30d")

    async def submit() -> None:
        for _ in range(each):
            await task.asubmit(BODY)

    with Timer() as timer:
        await asyncio.gather(*(submit() for _ in range(tasks)))
    return timer.rate(tasks * each)


def main(argv: Sequence[str] | None = None) -> int:
    """Measure and report."""
    asked = options("submit", QUESTION, argv)
    taken = repeat(asked, run)
    floor = medians(taken, "floor_")
    sync_us = floor["sync_us_p50"]
    marks = {
        "single_us_p50": at_most(1.5 * sync_us + 150, 1.3 * sync_us + 50),
        "threads_64_times": at_least(3, 5),
        "tasks_256_times": at_least(15, 30),
    }
    work = WorkHash()
    work.add(THREADS, TASKS, asked.pick(SIZES_SMALL, SIZES_USUAL))
    report(asked, figures_of(taken, marks), work=work, floor=floor)
    return 0


if __name__ == "__main__":
    sys.exit(main())
