"""Does an operation cost more when more tickets sleep?

Engines with so many sleepers each are open at once, and are asked in turns, so that whatever else
the machine does meets all of them:

submit     one ticket, on disk when it returns
bulk       a thousand with one submit_many, until they are parked; the figure is for one
info       all about one parked ticket, by its id
page       a hundred of the sleepers, going on where the last page ended
cancel     one parked ticket, its end on disk
life       submitted, run and ended, each on disk, a thousand at a time; the figure is for one

`..._growth_times` is the cost at the most sleepers over the cost at the fewest. The most are those
of `bench.garage`.
"""

import random
import sys
from collections.abc import Callable, Sequence
from itertools import repeat as again
from pathlib import Path
from statistics import median

from bench.floor import beside
from bench.garage import Garage, fill, filled, garage_of
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
from bench.stage import BODY, Stage

QUESTION = "Does an operation cost more when more tickets sleep?"

FEWER_SMALL, FEWER_USUAL = (300,), (10_000,)  # beside the most
FEWER_FULL = (10_000, 1_000_000)
TURNS_SMALL, TURNS_USUAL, TURNS_FULL = 2, 12, 40
EACH_SMALL, EACH_USUAL = 5, 40  # operations in a turn
PAGES_SMALL, PAGES_USUAL = 2, 10
BATCH_SMALL, BATCH_USUAL = 100, 1_000  # of bulk and of lives

OPERATIONS = ("submit", "bulk", "info", "page", "cancel", "life")


class Grown:
    """An engine with so many sleepers, of which some are known by their ids."""

    def __init__(self, garage: Garage, asked: Options) -> None:
        self._garage = garage
        self._stage = Stage(garage.directory).__enter__()
        self._each = asked.pick(EACH_SMALL, EACH_USUAL)
        self._pages = asked.pick(PAGES_SMALL, PAGES_USUAL)
        self._batch = asked.pick(BATCH_SMALL, BATCH_USUAL)
        self._cursor: str | None = None
        self._dice = random.Random(3)
        self._ids = garage.ids()
        self._dice.shuffle(self._ids)

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
            self._stage.engine.ticket(self._dice.choice(self._ids)) for _ in range(self._each)
        ]
        return median(micros(ticket.info) for ticket in tickets)

    def page(self) -> float:
        """Goes round when it has seen all."""

        def look() -> None:
            found = self._stage.engine.find(state="scheduled", limit=100, cursor=self._cursor)
            self._cursor = found.next

        return median(micros(look) for _ in range(self._pages))

    def cancel(self) -> float:
        """Each once."""
        tickets = [self._stage.engine.ticket(self._ids.pop()) for _ in range(self._each)]
        return median(micros(ticket.cancel) for ticket in tickets)

    def life(self) -> float:
        """No-ops, in batches."""
        stage, before = self._stage, self._stage.done()
        with Timer() as timer:
            stage.submit_all(again(stage.anoop.call(), self._batch))
            stage.await_done(before + self._batch)
        return timer.micros / self._batch

    def close(self) -> None:
        """Stops the engine; who comes next asks for none that was cancelled here."""
        self._stage.__exit__(None, None, None)
        self._garage.keep_ids(self._ids)


def micros(operation: Callable[[], object]) -> float:
    """What one call takes."""
    with Timer() as timer:
        operation()
    return timer.micros


def run(asked: Options) -> dict[str, float]:
    """All sizes, each in a directory of its own."""
    with asked.scratch() as directory:
        taken = beside(asked, directory)
        garages = [Garage(directory / f"of-{count}", count) for count in fewer(asked)]
        for garage in garages:
            asked.apart(fill, garage)
        return taken | asked.apart(measured, asked, [*garages, filled(asked, directory)])


def fewer(asked: Options) -> list[int]:
    """How many sleep where it is not the most."""
    sizes = asked.pick(FEWER_SMALL, FEWER_USUAL, FEWER_FULL)
    return [size for size in sizes if size < most(asked)]


def most(asked: Options) -> int:
    """How many sleep in the directory that several benches look at."""
    return garage_of(asked, Path()).count


def measured(asked: Options, garages: Sequence[Garage]) -> dict[str, float]:
    """In a process of its own: the medians of all turns."""
    grown = {garage.count: Grown(garage, asked) for garage in garages}
    costs: dict[tuple[str, int], list[float]] = {}
    for _ in range(asked.pick(TURNS_SMALL, TURNS_USUAL, TURNS_FULL)):
        for name in OPERATIONS:
            for size, engine in grown.items():
                costs.setdefault((name, size), []).append(getattr(engine, name)())
    for engine in grown.values():
        engine.close()
    taken = {f"{name}_us_{size}": median(values) for (name, size), values in costs.items()}
    for name in OPERATIONS:
        growth = taken[f"{name}_us_{max(grown)}"] / taken[f"{name}_us_{min(grown)}"]
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
    sizes = [*fewer(asked), most(asked)]
    report_runs(
        asked,
        taken,
        {f"{name}_growth_times": at_most(1.5, 1.2) for name in OPERATIONS},
        done=(sizes,),
        notes={"sizes": sizes},
        plots=[plot_of(sizes, medians(taken, ""))] if len(sizes) > 2 else (),
    )
    return 0


if __name__ == "__main__":
    sys.exit(main())
