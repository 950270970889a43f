"""The directory of many sleepers that several benches look at, filled once for all of them.

`python -m bench` hands it from bench to bench (`--kept`), and so may anybody who runs one of them
again and again; a bench that is given none fills one for itself. The ids of some of the sleepers
lie in a file beside it: nobody could look for them in there without reading all of it.
"""

import itertools
import shutil
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from bench.kit import Options
from bench.stage import SLICE, Stage
from parkade import Call

COUNT_SMALL, COUNT_USUAL, COUNT_FULL = 5_000, 1_000_000, 10_000_000
SAMPLE = 5_000  # ids that are written down: few, for they are in the memory that is measured


@dataclass(frozen=True)
class Garage:
    """Where so many tickets sleep."""

    directory: Path
    count: int

    @property
    def ids_file(self) -> Path:
        """Beside the directory, so that it counts for nothing that is measured there."""
        return self.directory.with_name(f"{self.directory.name}.ids")

    @property
    def is_filled(self) -> bool:
        """Whether all of them are in."""
        return self.ids_file.exists()

    def clear(self) -> None:
        """As if it had never been."""
        shutil.rmtree(self.directory, ignore_errors=True)
        self.ids_file.unlink(missing_ok=True)

    def ids(self) -> list[str]:
        """Of some of the sleepers, in the order in which they came."""
        return self.ids_file.read_text(encoding="ascii").split()

    def keep_ids(self, ids: list[str]) -> None:
        """Says that it is filled, and which of its sleepers are known."""
        self.ids_file.write_text("\n".join(ids), encoding="ascii")

    def submit(self, stage: Stage, calls: Iterator[Call[Any]], ids: list[str]) -> int:
        """Submits them, notes the ids of a few, and lets go of the rest; how many there were."""
        every, total = max(1, self.count // SAMPLE), 0
        while tickets := stage.engine.submit_many(itertools.islice(calls, SLICE)):
            ids += [ticket.id for ticket in tickets[::every]]
            total += len(tickets)
        return total


def garage_of(asked: Options, scratch: Path) -> Garage:
    """The one that was given, or one in the bench's own directory; filled or not."""
    count = asked.counted(COUNT_SMALL, COUNT_USUAL, COUNT_FULL)
    return Garage((asked.kept or scratch) / f"of-{count}", count)


def filled(asked: Options, scratch: Path) -> Garage:
    """The same, filled by a process of its own if nobody has filled it before."""
    garage = garage_of(asked, scratch)
    if not garage.is_filled:
        garage.clear()
        asked.apart(fill, garage)
    return garage


def fill(garage: Garage) -> None:
    """In a process of its own."""
    ids: list[str] = []
    with Stage(garage.directory) as stage:
        garage.submit(stage, stage.sleepers(garage.count), ids)
        stage.park()
    garage.keep_ids(ids)
