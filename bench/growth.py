"""Does an operation cost more when more tickets sleep?

Engines with so many sleepers each are open at once, and are asked in turns, so that whatever else
the machine does meets all of them:

submit     one ticket, on disk when it returns
bulk       a thousand with one submit_many, until they are parked; the figure is for one
info       all about one parked ticket, by its id
page       a hundred of the sleepers, going on where the last page ended
cancel     one parked ticket, its end on disk
life       submitted, run and ended, each on disk, a thousand at a time; the figure is for one

`..._growth_times` is the cost at the most sleepers over the cost at the fewest.
"""

import itertools
import random
import sys
from collections.abc import Callable, Sequence
from itertools import repeat as again
from pathlib import Path
from statistics import median

from bench.floor import beside
from bench.kit import (
    Options,
    Timer,
    at_most,
    medians,
    options,
    repeat,
    report_runs,
)
from bench.plot import Plot
from bench.stage import BODY, SLICE, Stage

QUESTION = "Does an operation cost more when more tickets sleep?"

SIZES_SMALL, SIZES_USUAL = (300, 2_000), (10_000, 300_000)
SIZES_FULL = (10_000, 100_000, 1_000_000, 10_000_000)
TURNS_SMALL, TURNS_USUAL, TURNS_FULL = 2, 12, 40
EACH_SMALL, EACH_USUAL = 5, 40  # operations in a turn
BATCH_SMALL, BATCH_USUAL = 100, 1_000  # of bulk and of lives
SAMPLE = 20_000  # ids to ask for and to cancel

OPERATIONS = ("submit", "bulk", "info", "page", "cancel", "life")


class Grown:
    """An engine with so many sleepers, of which some are known by their ids."""

    def __init__(self, directory: Path, count: int, each: int, batch: int) -> None:
        self._stage = Stage(directory).__enter__()
        self._each, self._batch = each, batch
        self._cursor: str | None = None
        self._dice = random.Random(3)
        self.ids = self._filled(count)
        self._stage.park()

    def _filled(self, count: int) -> list[str]:
        """Submits them; the ids of some, in no order."""
        engine, calls, ids = self._stage.engine, self._stage.sleepers(count), list[str]()
        step = max(1, count // SAMPLE)
        while tickets := engine.submit_many(itertools.islice(calls, SLICE)):
            ids += [ticket.id for ticket in tickets[::step]]
        self._dice.shuffle(ids)
        return ids

    def submit(self) -> float:
        """Microseconds, like all of these."""
        task = self._stage.sleeper.options(delay="300d")
        return median(micros(lambda: task.submit(BODY)) for _ in range(self._each))

    def bulk(self) -> float:
        """Until they have left memory."""
        calls = list(self._stage.sleepers(self._batch))
        with Timer() as timer:
            self._stage.engine.submit_many(calls)
            self._stage.park()
        return timer.micros / self._batch

    def info(self) -> float:
        """Of tickets anywhere in the store."""
        tickets = [
            self._stage.engine.ticket(self._dice.choice(self.ids)) for _ in range(self._each)
        ]
        return median(micros(ticket.info) for ticket in tickets)

    def page(self) -> float:
        """Goes round when it has seen all."""

        def look() -> None:
            found = self._stage.engine.find(state="scheduled", limit=100, cursor=self._cursor)
            self._cursor = found.next

        return median(micros(look) for _ in range(self._each))

    def cancel(self) -> float:
        """Each once."""
        tickets = [self._stage.engine.ticket(self.ids.pop()) for _ in range(self._each)]
        return median(micros(ticket.cancel) for ticket in tickets)

    def life(self) -> float:
        """No-ops, in batches."""
        stage, before = self._stage, self._stage.done()
        with Timer() as timer:
            stage.submit_all(again(stage.anoop.call(), self._batch))
            stage.await_done(before + self._batch)
        return timer.micros / self._batch

    def close(self) -> None:
        """Stops the engine."""
        self._stage.__exit__(None, None, None)


def micros(operation: Callable[[], object]) -> float:
    """What one call takes."""
    with Timer() as timer:
        operation()
    return timer.micros


def run(asked: Options) -> dict[str, float]:
    """All sizes, each in a fresh directory."""
    with asked.scratch() as directory:
        taken = beside(asked, directory)
        return taken | asked.apart(measured, asked, directory)


def measured(asked: Options, directory: Path) -> dict[str, float]:
    """In a process of its own: the medians of all turns."""
    sizes = asked.pick(SIZES_SMALL, SIZES_USUAL, SIZES_FULL)
    each, batch = asked.pick(EACH_SMALL, EACH_USUAL), asked.pick(BATCH_SMALL, BATCH_USUAL)
    grown = {size: Grown(directory / f"of-{size}", size, each, batch) for size in sizes}
    costs: dict[tuple[str, int], list[float]] = {}
    for _ in range(asked.pick(TURNS_SMALL, TURNS_USUAL, TURNS_FULL)):
        for name in OPERATIONS:
            for size, engine in grown.items():
                costs.setdefault((name, size), []).append(getattr(engine, name)())
    for engine in grown.values():
        engine.close()
    taken = {f"{name}_us_{size}": median(values) for (name, size), values in costs.items()}
    fewest, most = min(sizes), max(sizes)
    for name in OPERATIONS:
        growth = taken[f"{name}_us_{most}"] / taken[f"{name}_us_{fewest}"]
        taken[f"{name}_growth_times"] = growth
    return taken


def plot_of(sizes: Sequence[int], found: dict[str, float]) -> Plot:
    """The costs over the number of sleepers."""
    lines = {
        name: [(float(size), found[f"{name}_us_{size}"]) for size in sizes] for name in OPERATIONS
    }
    return Plot(
        "growth",
        "What an operation costs, by the tickets that sleep",
        "tickets asleep",
        "µs for one",
        lines,
    )


def main(argv: Sequence[str] | None = None) -> int:
    """Measure and report."""
    asked = options("growth", QUESTION, argv, runs_usual=1)
    taken = repeat(asked, run)
    sizes = asked.pick(SIZES_SMALL, SIZES_USUAL, SIZES_FULL)
    report_runs(
        asked,
        taken,
        {f"{name}_growth_times": at_most(1.5, 1.2) for name in OPERATIONS},
        done=(sizes,),
        notes={"sizes": sizes},
        plots=[plot_of(sizes, medians(taken, ""))],
    )
    return 0


if __name__ == "__main__":
    sys.exit(main())
