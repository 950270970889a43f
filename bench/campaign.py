"""What does it take to stop a campaign: one tag's tickets, parked among as many others?

page      one page of 100 by the tag
count     a dry run: every ticket of the tag is looked at
cancel    cancel_many by the tag: every one of them has its end on disk
"""

import itertools
import sys
from collections.abc import Iterator, Sequence

from bench.floor import beside
from bench.kit import (
    Options,
    Timer,
    at_most,
    options,
    repeat,
    report_runs,
)
from bench.stage import BODY, DAY_S, Stage
from parkade import Call

QUESTION = "What does it take to stop a campaign: one tag's tickets, parked among as many others?"

COUNT_SMALL, COUNT_USUAL = 500, 50_000
PAGES = 50


def tagged(stage: Stage, count: int) -> Iterator[Call[None]]:
    """Every other one is of the campaign."""
    calls = [
        stage.sleeper.options(delay=DAY_S, tags={"campaign": campaign}).call(BODY)
        for campaign in ("may", "june")
    ]
    return itertools.islice(itertools.cycle(calls), 2 * count)


def run(asked: Options) -> dict[str, float]:
    """Once, on a fresh directory."""
    count = asked.pick(COUNT_SMALL, COUNT_USUAL)
    tag = ("campaign", "may")
    with asked.scratch() as directory:
        taken = beside(asked, directory)
        with Stage(directory / "mail", index_tags=("campaign",)) as stage:
            engine = stage.engine
            stage.submit_all(tagged(stage, count))
            stage.park()
            with Timer() as finding:
                for _ in range(PAGES):
                    assert len(engine.find(tag=tag, state="scheduled").items) == 100
            with Timer() as counting:
                assert engine.cancel_many(tag=tag, dry_run=True).matched == count
            with Timer() as cancelling:
                assert engine.cancel_many(tag=tag, reason="typo").changed == count
            assert engine.stats().scheduled == count
    taken["page_us"] = finding.micros / PAGES
    taken["count_s"] = counting.micros / 1e6
    taken["cancel_s"] = cancelling.micros / 1e6
    taken["cancel_per_s"] = cancelling.rate(count)
    return taken


def main(argv: Sequence[str] | None = None) -> int:
    """Measure and report."""
    asked = options("campaign", QUESTION, argv, runs_usual=3)
    taken = repeat(asked, run)
    count = asked.pick(COUNT_SMALL, COUNT_USUAL)
    report_runs(
        asked,
        taken,
        {"cancel_s": at_most(5, 2)},
        done=(count, len(BODY)),
        notes={"tickets": count},
    )
    return 0


if __name__ == "__main__":
    sys.exit(main())
