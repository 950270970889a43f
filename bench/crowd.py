"""What does a parked crowd that is due in one second do to memory, and to those who are no part?

The crowd sleeps on disk and is due over one second. Tickets of another task are due one after the
other all the while: `bystander_late` is how late those of them began that came due before the
crowd was done. `grown_mb` is the most that the process held above what it held before, looked at
every 20 ms, without mapped files. `share_times` is the crowd's rate over that of lives that are
submitted and run in the same engine.
"""

import sys
import threading
import time
from collections.abc import Sequence
from datetime import UTC, datetime
from itertools import islice, repeat
from itertools import repeat as again
from pathlib import Path
from typing import Any

from bench.floor import beside
from bench.kit import (
    Options,
    Timer,
    at_least,
    at_most,
    options,
    quantile,
    report_runs,
    rss_anon_bytes,
)
from bench.kit import repeat as repeated
from bench.stage import SLICE, Stage
from parkade import Call

QUESTION = "What does a parked crowd that is due in one second do to memory and to others?"

COUNT_SMALL, COUNT_USUAL, COUNT_FULL = 1_000, 100_000, 1_000_000
LIVES_SMALL, LIVES_USUAL = 200, 50_000
STEP_S = 0.1  # between two bystanders
BYSTANDERS_SMALL, BYSTANDERS_USUAL, BYSTANDERS_FULL = 10, 300, 3_000
FIRST = 1  # ticket that is done before the crowd is looked at
LOOK_S = 0.02
LEAD_S_SMALL, LEAD_S_USUAL = 0.5, 3.0  # to close and to open before they are due
MB = 1e6
DUES = 1_000  # moments within the second


class Square(Stage):
    """A stage with a crowd's task, and a bystander's that notes how late it is."""

    def __init__(self, directory: Path, *, run: bool = True) -> None:
        super().__init__(directory, run=run)
        self.began_s: list[tuple[float, float]] = []

        @self.engine.task(name="crowd")
        async def crowd() -> None: ...

        @self.engine.task(name="bystander")
        async def bystander(due_s: float) -> None:
            self.began_s.append((due_s, time.time()))

        self.crowd, self.bystander = crowd, bystander

    def crowd_calls(self, due_s: float) -> list[Call[None]]:
        """One for each moment of the second."""
        return [self.crowd.options(at=moment(due_s + n / DUES)).call() for n in range(DUES)]

    def bystanders(self, due_s: float, count: int) -> list[Call[None]]:
        """One after the other, from that time on."""
        dues = [round(due_s + STEP_S * n, 3) for n in range(count)]
        return [self.bystander.options(at=moment(due)).call(due) for due in dues]


def moment(due_s: float) -> datetime:
    """A time of seconds since the epoch, to the millisecond."""
    return datetime.fromtimestamp(round(due_s, 3), UTC)


class Watch:
    """The most memory that the process held between `with` and its end."""

    def __init__(self) -> None:
        self.most_bytes = 0
        self._is_over = threading.Event()
        self._thread = threading.Thread(target=self._look)

    def _look(self) -> None:
        while not self._is_over.wait(LOOK_S):
            self.most_bytes = max(self.most_bytes, rss_anon_bytes())

    def __enter__(self) -> "Watch":
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._is_over.set()
        self._thread.join()
        self.most_bytes = max(self.most_bytes, rss_anon_bytes())


def run(asked: Options) -> dict[str, float]:
    """Once, on a fresh directory."""
    count = asked.counted(COUNT_SMALL, COUNT_USUAL, COUNT_FULL)
    with asked.scratch() as directory:
        taken = beside(asked, directory)
        lead_s = asked.pick(LEAD_S_SMALL, LEAD_S_USUAL)
        due_s = asked.apart(parked, directory / "square", count, lead_s)
        others = asked.pick(BYSTANDERS_SMALL, BYSTANDERS_USUAL, BYSTANDERS_FULL)
        lives = asked.pick(LIVES_SMALL, LIVES_USUAL)
        return taken | asked.apart(woken, directory / "square", due_s, count, others, lives)


def parked(directory: Path, count: int, lead_s: float) -> float:
    """In a process of its own: parks the crowd, and closes; when it is due. A trial tells how long
    it takes."""
    square = Square(directory, run=False)
    with square:
        trial = min(count, 20_000)
        with Timer() as timer:
            square.submit_all(again(square.sleeper.options(delay="1y").call("x"), trial))
            square.park()
        due_s = round(time.time() + lead_s + 1.5 * timer.seconds * count / trial, 3)
        calls = square.crowd_calls(due_s)
        total = 0
        while total < count:
            more = min(SLICE, count - total)
            total += len(square.engine.submit_many(islice(cycled(calls), more)))
        square.park()
    return due_s


def cycled(calls: Sequence[Call[None]]) -> Any:
    """Without end."""
    return (call for calls_again in repeat(calls) for call in calls_again)


def woken(directory: Path, due_s: float, count: int, others: int, lives: int) -> dict[str, float]:
    """In a process of its own: opened before they are due, or a little later if they took longer to
    park."""
    with Square(directory) as square:
        square.engine.submit("noop", {}).result("30s")
        held_bytes = rss_anon_bytes()
        since_s = max(due_s, time.time())
        square.engine.submit_many(square.bystanders(since_s + STEP_S, others))
        with Watch() as watch:
            time.sleep(max(0.0, since_s - time.time()))
            await_crowd(square, count)
        ended_s = time.time()
        late_ms = [1e3 * (began - due) for due, began in square.began_s if due <= ended_s]
        done = square.done()
        with Timer() as living:
            square.submit_all(again(square.anoop.call(), lives))
            square.await_done(done + lives)
    taken_s = ended_s - since_s
    return {
        "woken_per_s": count / taken_s,
        "all_done_s": taken_s,
        "share_times": (count / taken_s) / living.rate(lives),
        "grown_mb": max(0, watch.most_bytes - held_bytes) / MB,
        "bystander_late_ms_p50": quantile(late_ms, 0.5),
        "bystander_late_ms_max": max(late_ms, default=0.0),
        "bystander_count": len(late_ms),
    }


def await_crowd(square: Square, count: int) -> None:
    """Returns when the whole crowd is done, be it that a part was so before anybody looked. What is
    done is counted with what is forgotten, which is told of no single task: the others are taken
    off, those of them that have begun."""
    while square.done() - len(square.began_s) - FIRST < count:
        time.sleep(LOOK_S)


def main(argv: Sequence[str] | None = None) -> int:
    """Measure and report."""
    asked = options("crowd", QUESTION, argv, runs_usual=1)
    taken = repeated(asked, run)
    marks = {
        "share_times": at_least(0.6, 0.8),
        "grown_mb": at_most(200, 100),
        "bystander_late_ms_max": at_most(250, 50),
    }
    count = asked.counted(COUNT_SMALL, COUNT_USUAL, COUNT_FULL)
    report_runs(
        asked,
        taken,
        marks,
        done=(count,),
        notes={"tickets": count},
    )
    return 0


if __name__ == "__main__":
    sys.exit(main())
