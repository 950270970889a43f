"""The same work on other queues, at the same durability, beside parkade: one table.

    python -m bench.peers                     all that can be had here; 25 minutes
    python -m bench.peers --small             the same at its smallest; two or three minutes
    python -m bench.peers --only huey dbos    these, and parkade beside them
    python -m bench.peers --result FILE       the tables of a run of before, whole or cut short

Each queue gets an environment of its own and is asked through its public API. Each stage is a
fresh process on a fresh directory; for each stage the queues take their turns, parkade among them,
so that whatever else the machine does meets all. Rates and times are medians of three runs; what is
counted or weighed is asked once. The file is written after each stage of each queue: a run that is
told to end leaves what it has, and no directory.
"""

import argparse
import contextlib
import json
import sys
from collections.abc import Callable, Sequence
from dataclasses import replace
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from bench.floor import BRIEF, SMALLEST, measure
from bench.kit import machine
from bench.pages import BENCHMARKS, README, put
from bench.peers.asking import Answer, Asking
from bench.peers.environments import OURS, PEERS, Peer, Unavailable, python_of
from bench.peers.report import Results, excerpt, page
from bench.peers.server import running
from bench.peers.sizes import ONCE, STAGES, Sizes
from bench.running import ended_by_signals, scratch

RESULTS = Path("build", "bench")


def main(argv: Sequence[str] | None = None) -> int:
    """Measure, print, keep."""
    given = options(argv)
    if given.result is not None:
        return told(json.loads(given.result.read_text(encoding="utf-8")), is_written=given.write)
    sizes = Sizes.small() if given.small else Sizes.usual()
    sizes = replace(sizes, runs=given.runs or sizes.runs)
    peers = [peer for peer in PEERS if peer.name == OURS or peer.name in given.only]
    started_at = datetime.now(UTC)
    file: Path = given.to or RESULTS / f"{started_at:%Y%m%d-%H%M%S}-peers.json"
    file.parent.mkdir(parents=True, exist_ok=True)
    asking, results = Asking(sizes, given.directory), Results()

    def keep() -> dict[str, Any]:
        result = results.as_json(started_at, sizes.as_json(), given.small)
        # A signal may come at any time: what is there is whole.
        unfinished = file.with_suffix(".unfinished")
        unfinished.write_text(json.dumps(result, indent=1) + "\n", encoding="utf-8")
        unfinished.replace(file)
        return result

    with ended_by_signals(), contextlib.ExitStack() as stack:
        prepare(asking, results, peers, stack, is_small=given.small)
        print(f"writing {file}", file=sys.stderr, flush=True)
        effort = SMALLEST if given.small else BRIEF
        for run in range(sizes.runs):
            print(
                f"run {run + 1} of {sizes.runs}: how long each stage took, waits included",
                file=sys.stderr,
                flush=True,
            )
            results.floors.append(measure(given.directory, effort))
            results.machine = machine()
            stages = [stage for stage in given.stages if run == 0 or stage not in ONCE]
            # Whoever goes first in one run goes last in the next.
            measured(asking, results, stages, peers[:: 1 if run % 2 == 0 else -1], keep)
    results.machine = machine()
    result = keep()
    print(f"{file}\n")
    return told(result, is_written=given.write)


def measured(
    asking: Asking,
    results: Results,
    stages: Sequence[str],
    peers: Sequence[Peer],
    keep: Callable[[], object],
) -> None:
    """One run: each stage of each queue that is there and was not too slow at it before."""
    for stage in stages:
        asked = [
            peer
            for peer in peers
            if peer.name in asking.pythons and (peer.name, stage) not in results.slow
        ]
        with contextlib.closing(asking.answers(asked, stage)) as answers:
            for answer in answers:
                results.add(answer.peer.name, stage, answer.figures)
                if answer.seconds > asking.sizes.slow_s:
                    results.slow.add((answer.peer.name, stage))
                keep()
                say(answer, stage)


def say(answer: Answer, stage: str) -> None:
    """How far it is."""
    said = answer.figures.get("failed") or answer.figures.get("lacks") or ""
    took = f"{answer.seconds:.1f} s"
    print(f"  {stage:11} {answer.peer.name:14} {took:>7}  {said}", file=sys.stderr, flush=True)


def options(argv: Sequence[str] | None) -> argparse.Namespace:
    """The command line; exits with the usage on a wrong one."""
    names = [peer.name for peer in PEERS if peer.name != OURS]
    parser = argparse.ArgumentParser(prog="python -m bench.peers", description=__doc__)
    parser.formatter_class = argparse.RawDescriptionHelpFormatter
    parser.add_argument("directory", nargs="?", default=".", help="the disk to use (default: here)")
    parser.add_argument("--small", action="store_true", help="the smallest sizes that work")
    parser.add_argument("--runs", type=int, help="runs per rate and time (default: 3)")
    parser.add_argument("--only", nargs="*", default=names, metavar="PEER")
    parser.add_argument("--stages", nargs="+", choices=STAGES, default=STAGES, metavar="STAGE")
    parser.add_argument("--to", type=Path, help="the JSON file to write")
    parser.add_argument("--result", type=Path, help="a JSON file of before, and measure nothing")
    parser.add_argument("--write", action="store_true", help="the tables into the documentation")
    given = parser.parse_args(argv)
    given.only = [name.replace("-", "_") for name in given.only]  # as it is called on PyPI
    if unknown := set(given.only) - set(names):
        parser.error(f"no such queue: {', '.join(sorted(unknown))}; there are {', '.join(names)}")
    return given


def prepare(
    asking: Asking,
    results: Results,
    peers: Sequence[Peer],
    stack: contextlib.ExitStack,
    *,
    is_small: bool,
) -> None:
    """Makes the environments, and the server if somebody needs it; says whom it cannot have.
    `is_small`: parkade is not installed anew for what nobody quotes."""
    reason = ""
    if any(not peer.is_embedded for peer in peers):
        try:
            home = stack.enter_context(scratch("parkade-pg-", asking.directory))
            asking.server = stack.enter_context(running(home.absolute()))
            results.server = f"PostgreSQL {asking.server.version()}"
        except (Unavailable, OSError) as lack:
            reason = str(lack)
    for peer in peers:
        try:
            if not peer.is_embedded and asking.server is None:
                raise Unavailable(reason)
            is_here = is_small and peer.name == OURS
            asking.pythons[peer.name] = Path(sys.executable) if is_here else python_of(peer)
        except Unavailable as lack:
            results.skipped[peer.name] = str(lack)
            print(f"  skipped {peer.name}: {lack}", file=sys.stderr, flush=True)


def told(result: dict[str, Any], *, is_written: bool) -> int:
    """Prints the tables, and puts them into docs/benchmarks.md and the README if they should be."""
    print(page(result))
    if is_written:
        put(BENCHMARKS, "peers", page(result))
        put(README, "peers", excerpt(result))
    return 0


if __name__ == "__main__":
    sys.exit(main())
