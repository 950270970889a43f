"""Every bench, one after the other, each in a process of its own; one table, one JSON file.

The file goes to build/bench/, which `make clean` empties, or to where --to says, and the plots go
beside it. Two files compare with `python -m bench.compare`. With --write the table and the plots go
into the documentation too. All scratch directories lie in one, which goes with the command, also
when it is told to end: ten million sleepers take gigabytes. The benches that ask the same sleepers
find them there (`bench.garage`).
"""

import argparse
import json
import subprocess
import sys
import time
from collections.abc import Sequence
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from bench.kit import lines, machine, remarks
from bench.pages import BENCHMARKS, put
from bench.plot import Plot, from_json, svg
from bench.running import ended_by_signals, scratch, started

BENCHES = (
    "floor",
    "submit",
    "submit_many",
    "life_cycle",
    "lateness",
    "mass_wake",
    "crowd",
    "campaign",
    "sleepers",
    "growth",
    "recovery",
    "held",
    "shards",
    "idle",
)
ON_SLEEPERS = ("sleepers", "growth", "recovery")  # of one directory
RESULTS = Path("build", "bench")


def main(argv: Sequence[str] | None = None) -> int:
    """Run them, print the table, write the file."""
    parser = argparse.ArgumentParser(prog="python -m bench", description="Every bench in turn.")
    parser.add_argument("directory", nargs="?", default=".", help="the disk to use (default: here)")
    parser.add_argument("--small", action="store_true", help="the smallest sizes that work")
    parser.add_argument("--full", action="store_true", help="the greatest sizes: 20 minutes")
    parser.add_argument("--share", type=float, help="of the greatest counts, to try them out")
    parser.add_argument("--runs", type=int, help="runs per figure (default: each bench's own)")
    parser.add_argument("--only", nargs="+", choices=BENCHES, default=BENCHES, metavar="BENCH")
    parser.add_argument("--to", type=Path, help="the JSON file to write")
    parser.add_argument("--write", action="store_true", help="into docs/benchmarks.md as well")
    given = parser.parse_args(argv)
    if given.write and (given.small or given.share or given.only != BENCHES):
        parser.error("--write is for figures to quote: every bench, neither --small nor --share")
    passed = [*(["--small"] if given.small else []), *(["--full"] if given.full else [])]
    passed += [f"--{name}={vars(given)[name]}" for name in ("runs", "share") if vars(given)[name]]
    started_at = datetime.now(UTC)
    reports: list[dict[str, Any]] = []
    with (
        ended_by_signals(),
        scratch("parkade-bench-", given.directory) as directory,
    ):
        for bench in given.only:
            reports.append(measured(bench, str(directory), passed))
    result: dict[str, Any] = {
        "at": started_at.isoformat(),
        "machine": machine(),
        "reports": reports,
    }
    print("\n".join([table(reports), *remarks(result["machine"], given.small)]))
    file = given.to or kept(started_at)
    file.write_text(json.dumps(result, indent=1) + "\n", encoding="utf-8")
    print(f"\n{file}")
    for plot in plots(reports):
        drawn = file.with_name(f"{file.stem}-{plot.name}.svg")
        drawn.write_text(svg(plot), encoding="utf-8")
        print(drawn)
    if given.write:
        written(result, "full" if given.full else "usual")
    return 0


def measured(bench: str, directory: str, passed: Sequence[str]) -> dict[str, Any]:
    """One bench's report. Raises `CalledProcessError` when it fails; it has said why."""
    command = [sys.executable, "-m", f"bench.{bench}", directory, "--json", *passed]
    command += [f"--kept={directory}"] if bench in ON_SLEEPERS else []
    began_s = time.monotonic()
    with started(command, stdout=subprocess.PIPE) as process:
        said, _ = process.communicate()
    if process.returncode != 0:
        raise subprocess.CalledProcessError(process.returncode, command)
    print(f"{bench} took {time.monotonic() - began_s:.0f} s", file=sys.stderr, flush=True)
    report: dict[str, Any] = json.loads(said)
    return report


def plots(reports: Sequence[dict[str, Any]]) -> list[Plot]:
    """What the benches have to show."""
    return [from_json(plot) for report in reports for plot in report.get("plots", ())]


def figures(reports: Sequence[dict[str, Any]]) -> list[dict[str, Any]]:
    """All figures, a bench's name in front of each."""
    return [
        {**figure, "name": f"{report['bench']}.{figure['name']}"}
        for report in reports
        for figure in report["figures"]
    ]


def table(reports: Sequence[dict[str, Any]]) -> str:
    """All figures, for a reader."""
    return "\n".join(lines(figures(reports)))


def written(result: dict[str, Any], sizes: str) -> None:
    """The table and the plots into the documentation."""
    reports, about = result["reports"], result["machine"]
    head = (
        f"Measured {result['at'][:10]} on {about['cpus']} cores ({about['arch']}, "
        f"{about['system']}, Python {about['python']}; load {about['load_1m']} and noise "
        f"{about['noise_percent']:.0f} % at the end), the {sizes} sizes."
    )
    put(BENCHMARKS, f"{sizes} sizes", f"{head}\n\n```text\n{table(reports)}\n```")
    for plot in plots(reports):
        (BENCHMARKS.parent / f"{plot.name}.svg").write_text(svg(plot), encoding="utf-8")


def kept(started_at: datetime) -> Path:
    """Where the result goes when nothing else is said."""
    RESULTS.mkdir(parents=True, exist_ok=True)
    return RESULTS / f"{started_at:%Y%m%d-%H%M%S}.json"


if __name__ == "__main__":
    sys.exit(main())
