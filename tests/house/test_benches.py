"""Every bench runs at its smallest, so that none rots between two measurements."""

import ast
import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from house.import_tree import ROOT
from house.source import Source, sources

# What the benches share, the command that runs all of them, and the one that compares two runs.
BESIDE = {"kit", "stage", "__main__", "compare"}


def is_bench(source: Source) -> bool:
    """Whether a module asks a question of its own."""
    is_there = source.folder == "bench" and source.path.count("/") == 1
    return is_there and source.name not in BESIDE


BENCHES = {source.name: source for source in sources() if is_bench(source)}


@pytest.mark.parametrize("bench", BENCHES)
def test_the_bench_runs_small_and_reports_in_one_line(bench: str) -> None:
    done = subprocess.run(
        [sys.executable, "-m", f"bench.{bench}", "--small", "--json"],
        cwd=ROOT,
        capture_output=True,
        text=True,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    (line,) = done.stdout.splitlines()
    report = json.loads(line)
    assert report["bench"] == bench
    assert report["small"] is True
    assert all(figure["median"] >= 0 for figure in report["figures"])


def test_one_command_runs_every_bench() -> None:
    (source,) = (s for s in sources() if s.path == "bench/__main__.py")
    (listed,) = (
        node.value
        for node in source.tree.body
        if isinstance(node, ast.Assign) and ast.unparse(node.targets[0]) == "BENCHES"
    )
    assert sorted(ast.literal_eval(listed)) == sorted(BENCHES)


@pytest.mark.parametrize(
    ("work", "low", "high", "verdict"),
    [
        ("other", 1, 2, "not the same work"),
        ("same", 11, 13, "within the spread"),
        ("same", 20, 24, "+100%  changed"),
    ],
)
def test_two_results_compare_where_the_work_is_the_same_and_the_ranges_part(
    work: str, low: float, high: float, verdict: str, tmp_path: Path
) -> None:
    for name, report in (("old", result("same", 10, 12)), ("new", result(work, low, high))):
        (tmp_path / name).write_text(json.dumps(report), encoding="utf-8")
    done = subprocess.run(
        [sys.executable, "-m", "bench.compare", tmp_path / "old", tmp_path / "new"],
        cwd=ROOT,
        capture_output=True,
        text=True,
        check=True,
    )
    _, row = done.stdout.splitlines()
    assert row.startswith("submit")
    assert row.endswith(verdict)


def result(work: str, low: float, high: float) -> dict[str, Any]:
    """What a run of one bench with one figure leaves."""
    figure = {"name": "x_us", "median": (low + high) / 2, "low": low, "high": high, "runs": 3}
    return {"reports": [{"bench": "submit", "work": work, "figures": [figure]}]}


def test_the_readme_of_the_benches_tells_of_each() -> None:
    text = (ROOT / "bench" / "README.md").read_text(encoding="utf-8")
    missing = [name for name in BENCHES if f"`{name}`" not in text]
    assert not missing
