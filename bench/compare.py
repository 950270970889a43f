"""Two results side by side: did it change, or is it noise?

Medians, and the change between them. A change is called one only where the two ranges of runs do
not touch; and figures compare only where both benches did the same work (`work`). Figures with a
floor in them compare best: machines and hours differ.
"""

import argparse
import json
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

from bench.kit import shown

HEAD = ("figure", "before", "after", "change", "")


def main(argv: Sequence[str] | None = None) -> int:
    """Print the comparison."""
    parser = argparse.ArgumentParser(prog="python -m bench.compare", description="Two results.")
    parser.add_argument("before", type=Path, help="a JSON file of python -m bench")
    parser.add_argument("after", type=Path, help="another")
    given = parser.parse_args(argv)
    try:
        before, after = read(given.before), read(given.after)
    except (OSError, ValueError) as error:
        parser.error(str(error))
    rows = [HEAD, *compared(before, after)]
    widths = [max(len(row[column]) for row in rows) for column in range(len(HEAD))]
    for name, *numbers, verdict in rows:
        cells = [n.rjust(w) for n, w in zip(numbers, widths[1:-1], strict=True)]
        print("  ".join([name.ljust(widths[0]), *cells, verdict]).rstrip())
    return 0


def read(file: Path) -> dict[str, dict[str, Any]]:
    """The reports of a result by their bench. Raises OSError, and ValueError for another file."""
    try:
        reports = json.loads(file.read_text(encoding="utf-8"))["reports"]
        return {report["bench"]: report for report in reports}
    except (ValueError, KeyError, TypeError) as error:
        raise ValueError(f"{file} is no result of python -m bench") from error


def compared(
    before: dict[str, dict[str, Any]], after: dict[str, dict[str, Any]]
) -> Iterator[tuple[str, ...]]:
    """A row for every figure that both have."""
    for bench, old in before.items():
        new = after.get(bench)
        if new is None:
            continue
        if old.get("work") != new.get("work"):
            yield (bench, "", "", "", "not the same work")
            continue
        figures = {figure["name"]: figure for figure in new["figures"]}
        for figure in old["figures"]:
            if figure["name"] in figures:
                yield row(f"{bench}.{figure['name']}", figure, figures[figure["name"]])


def row(name: str, old: dict[str, Any], new: dict[str, Any]) -> tuple[str, ...]:
    """One figure, before and after."""
    was, now = old["median"], new["median"]
    change = f"{(now - was) / was:+.0%}" if was else "-"
    is_apart = old["low"] > new["high"] or new["low"] > old["high"]
    few = min(old["runs"], new["runs"]) < 3
    verdict = "too few runs" if few else "changed" if is_apart else "within the spread"
    return name, shown(was), shown(now), change, verdict


if __name__ == "__main__":
    sys.exit(main())
