"""Every bench runs at its smallest, so that none rots between two measurements."""

import json
import subprocess
import sys

import pytest
from house.import_tree import ROOT
from house.source import Source, sources


def declares_main(source: Source) -> bool:
    """Whether a bench module is a command that knows --small."""
    is_bench = source.folder == "bench" and source.path.count("/") == 1
    return is_bench and "\ndef main(argv" in source.text


BENCHES = [source.name for source in sources() if declares_main(source)]


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


def test_every_bench_but_the_kit_is_a_command() -> None:
    modules = {s.name for s in sources() if s.folder == "bench" and s.path.count("/") == 1}
    assert modules - {"kit", "compare"} == set(BENCHES)
