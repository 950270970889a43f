"""What happens when a crowd is due at one moment?

hot      the tickets were submitted a moment before: they wait in memory
parked   the engine was closed until after their time: they wait on disk, behind an open

`all_done_s` runs from the due time (or the open) to the last end on disk, `late` from the same
moment to each handler.
"""

import sys
import time
from collections.abc import Sequence
from datetime import UTC, datetime, timedelta
from pathlib import Path

from bench.floor import beside
from bench.kit import (
    Options,
    at_most,
    options,
    quantile,
    repeat,
    report_runs,
)
from bench.stage import Stage
from parkade import Call

QUESTION = "What happens when a crowd is due at one moment?"

COUNT_SMALL, COUNT_USUAL = 200, 20_000
AHEAD_S_SMALL, AHEAD_S_USUAL = 0.3, 1.2  # in which all are submitted
PAST_S = 0.05  # closed until so long after the due time


class Crowd(Stage):
    """A stage with a handler that notes when it begins."""

    def __init__(self, directory: Path, *, run: bool = True) -> None:
        super().__init__(directory, run=run)
        self.began: list[float] = []

        @self.engine.task(name="wake")
        def wake() -> None:
            self.began.append(time.time())

        self.wake = wake

    def call_at(self, due: float) -> Call[None]:
        """A call that is due then, in seconds since the epoch, to the millisecond."""
        return self.wake.options(at=datetime.fromtimestamp(due, UTC)).call()

    def figures(self, kind: str, since: float, count: int) -> dict[str, float]:
        """Waits for all of them."""
        self.await_done(count)
        seconds = time.time() - since
        assert len(self.began) == count
        late = [began - since for began in self.began]
        return {
            f"{kind}_all_done_s": seconds,
            f"{kind}_done_per_s": count / seconds,
            f"{kind}_late_p50_s": quantile(late, 0.5),
            f"{kind}_late_p99_s": quantile(late, 0.99),
        }


def run(asked: Options) -> dict[str, float]:
    """Both crowds, each in a fresh directory."""
    count = asked.pick(COUNT_SMALL, COUNT_USUAL)
    ahead_s = asked.pick(AHEAD_S_SMALL, AHEAD_S_USUAL)
    with asked.scratch() as directory:
        taken = beside(asked, directory)
        with Crowd(directory / "hot") as crowd:
            due = moment(ahead_s)
            crowd.engine.submit_many([crowd.call_at(due)] * count)
            taken |= crowd.figures("hot", max(due, time.time()), count)
        due = submit_and_close(directory / "parked", count, ahead_s)
        time.sleep(max(0.0, due + PAST_S - time.time()))
        since = time.time()
        with Crowd(directory / "parked") as crowd:
            taken |= crowd.figures("parked", since, count)
    return taken


def submit_and_close(directory: Path, count: int, ahead_s: float) -> float:
    """Leaves a closed directory with so many tickets; their due time. The engine runs nothing."""
    stage = Crowd(directory, run=False)
    due = moment(ahead_s)
    with stage:
        stage.engine.submit_many([stage.call_at(due)] * count)
        stage.engine.stop()
    return due


def moment(ahead_s: float) -> float:
    """A whole millisecond in the future, in seconds since the epoch."""
    now = datetime.now(UTC) + timedelta(seconds=ahead_s)
    return now.replace(microsecond=now.microsecond // 1000 * 1000).timestamp()


def main(argv: Sequence[str] | None = None) -> int:
    """Measure and report."""
    asked = options("mass_wake", QUESTION, argv, runs_usual=3)
    taken = repeat(asked, run)
    marks = {"hot_all_done_s": at_most(1, 0.5), "hot_late_p50_s": at_most(0.5, 0.5)}
    count = asked.pick(COUNT_SMALL, COUNT_USUAL)
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
