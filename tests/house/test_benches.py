"""Every bench runs at its smallest, so that none rots between two measurements."""

import ast
import importlib.util
import json
import shutil
import signal
import subprocess
import sys
import tempfile
from pathlib import Path
from types import ModuleType
from typing import Any
from xml.etree import ElementTree

import pytest
from house.import_tree import ROOT
from house.source import Source, sources

# What the benches share, the command that runs all of them, and the one that compares two runs.
BESIDE = {"kit", "stage", "garage", "running", "plot", "pages", "__main__", "compare"}


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


@pytest.mark.parametrize(
    ("content", "text"), [(None, "No such file"), ("", "no result"), ("[1]", "no result")]
)
def test_a_file_that_is_no_result_is_said_in_one_line(
    content: str | None, text: str, tmp_path: Path
) -> None:
    file = tmp_path / "old"
    if content is not None:
        file.write_text(content, encoding="utf-8")
    done = subprocess.run(
        [sys.executable, "-m", "bench.compare", file, file],
        cwd=ROOT,
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 2
    last = done.stderr.splitlines()[-1]
    assert text in last and str(file) in last


def result(work: str, low: float, high: float) -> dict[str, Any]:
    """What a run of one bench with one figure leaves."""
    figure = {"name": "x_us", "median": (low + high) / 2, "low": low, "high": high, "runs": 3}
    return {"reports": [{"bench": "submit", "work": work, "figures": [figure]}]}


def test_the_readme_of_the_benches_tells_of_each() -> None:
    text = (ROOT / "bench" / "README.md").read_text(encoding="utf-8")
    missing = [name for name in BENCHES if f"`{name}`" not in text]
    assert not missing


def test_the_peers_are_asked_for_the_same_work_by_one_command(tmp_path: Path) -> None:
    file = tmp_path / "peers.json"
    command = [sys.executable, "-m", "bench.peers", str(tmp_path), "--small", "--to", str(file)]
    stages = ["--only", "--stages", "lives", "kill_queue"]
    done = subprocess.run([*command, *stages], cwd=ROOT, capture_output=True, text=True)
    assert done.returncode == 0, done.stdout + done.stderr
    found = json.loads(file.read_text(encoding="utf-8"))["medians"]["parkade"]
    assert found["failed"] == found["lacks"] == {}
    assert found["lives_per_s"] > 0
    assert found["kill_queue_lost"] == 0
    assert "end to end, no-op, 1/s" in done.stdout


@pytest.mark.parametrize(
    ("command", "said", "left"),
    [
        ("bench {0} --small --only growth recovery", "growth took", "parkade-bench-*/of-*.ids"),
        (
            "bench.peers {0} --small --to {0}/p.json --only --stages submit lives kill_queue",
            "submit ",
            "p.json",
        ),
    ],
)
def test_a_bench_that_is_told_to_end_takes_its_directories_away_and_leaves_what_it_has(
    command: str, said: str, left: str, tmp_path: Path
) -> None:
    module = [sys.executable, "-m", *command.format(tmp_path).split()]
    with subprocess.Popen(module, cwd=ROOT, stderr=subprocess.PIPE, text=True) as process:
        assert process.stderr is not None
        while (line := process.stderr.readline()) and said not in line:
            pass
        assert list(tmp_path.glob(left))
        process.send_signal(signal.SIGTERM)
        process.communicate()
    assert process.returncode == 128 + signal.SIGTERM
    assert [path.name for path in tmp_path.iterdir() if path.is_dir()] == []
    if left == "p.json":
        assert "submit, one by one" in told(tmp_path / left)


@pytest.mark.parametrize(("module", "name"), [(tempfile, "mkdtemp"), (shutil, "rmtree")])
def test_a_signal_leaves_no_scratch_directory_whenever_it_comes(
    module: ModuleType, name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    running, original = loaded("running"), getattr(module, name)

    def signalled(*args: Any, **given: Any) -> Any:
        if name == "rmtree":
            signal.raise_signal(signal.SIGTERM)
        got = original(*args, **given)
        if name == "mkdtemp":
            signal.raise_signal(signal.SIGTERM)
        return got

    entered = []
    with pytest.raises(SystemExit), running.ended_by_signals(), monkeypatch.context() as patch:
        patch.setattr(module, name, signalled)
        with running.scratch("parkade-", str(tmp_path)) as path:
            entered.append(path)
    assert list(tmp_path.iterdir()) == []
    assert len(entered) == (name == "rmtree"), "it is heeded at once"


def told(result: Path) -> str:
    """The tables of a run of the peers that is over."""
    command = [sys.executable, "-m", "bench.peers", "--result", str(result)]
    return subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=True).stdout


def test_the_tables_of_peers_mark_the_best_and_say_what_is_missing(tmp_path: Path) -> None:
    medians: dict[str, dict[str, Any]] = {
        "parkade": {"submit_per_s": 900, "wake_s": 1.0, "wake_ran": 50},
        "huey": {"submit_per_s": 1_000, "wake_s": 0.1, "wake_ran": 49},
        "dbos": {"lacks": {"submit": "no submit"}, "wake_s": 2.0, "wake_ran": 50},
    }
    for queue, lost in (("parkade", 0), ("huey", 3), ("dbos", 0)):
        medians[queue] = {"lacks": {}, "failed": {}, **medians[queue]}
        medians[queue] |= {"kill_queue_lost": lost, "kill_queue_twice": 2 if lost == 0 else 0}
    sizes = {"crowd": 50, "sleepers": 9, "killed": 7, "slow_s": 1, "load_s": 1, "after_s": 1}
    about = {"cpus": 2, "arch": "a", "system": "s", "python": "3", "load_1m": 0}
    result = {"at": "2026-11-30", "machine": about, "sizes": sizes, "small": False, "runs": 1}
    floor = dict.fromkeys(("sync_us_p50", "sync_us_p99", "triple_us_p50"), 1.0)
    result |= {"floor": floor, "medians": medians, "skipped": {}, "server": ""}
    file = tmp_path / "result.json"
    file.write_text(json.dumps(result), encoding="utf-8")
    lines = [line.strip("|").split("|") for line in told(file).splitlines() if line[:1] == "|"]
    table = {title.strip(): [cell.strip() for cell in cells] for title, *cells in lines}
    assert table["submit, one by one, 1/s"] == ["900", "**1,000**", "no submit"]
    assert table["50 due at one moment"] == ["**1.0 s**", "49 in 0.1 s", "2.0 s"]
    assert table["`kill -9`, 7 ready: lost or stuck / twice"] == ["**0 / 2**", "3 / 0", "**0 / 2**"]
    assert table["submit in bulk, 1/s"] == ["not measured"] * 3


def loaded(name: str) -> Any:
    """A module of the benches by its file: they are not on the path of the tests."""
    spec = importlib.util.spec_from_file_location(name, ROOT / "bench" / f"{name}.py")
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    # A dataclass looks its module up.
    sys.modules[spec.name] = module
    spec.loader.exec_module(module)
    return module


def test_every_peer_has_a_driver_and_a_pinned_version() -> None:
    peers = loaded("peers/environments").PEERS
    drivers = (ROOT / "bench" / "peers" / "drivers").glob("*.py")
    assert {peer.name for peer in peers} == {driver.stem for driver in drivers}
    assert all("==" in package for peer in peers for package in peer.packages)


def test_a_table_goes_into_its_own_place_of_a_page(tmp_path: Path) -> None:
    page, put = tmp_path / "page.md", loaded("pages").put
    other = "<!-- two: by y -->\nkept\n<!-- end of two -->\n"
    before = f"a\n<!-- one: by x -->\nold\n<!-- end of one -->\n{other}"
    page.write_text(before, encoding="utf-8")
    put(page, "one", "new \\1")
    assert page.read_text(encoding="utf-8") == before.replace("old", "\nnew \\1\n")
    with pytest.raises(LookupError):
        put(page, "three", "lost")


def test_a_plot_shows_every_point_of_every_line_inside_its_frame() -> None:
    plot = loaded("plot")
    lines = {"a<b": [(10.0, 0.5), (1e7, 3.2)], "c": [(10.0, 4.0), (1e7, 0.0)]}
    drawn = ElementTree.fromstring(plot.svg(plot.Plot("p", "title", "x", "y", lines)))
    circles = [element.attrib for element in drawn if element.tag.endswith("circle")]
    assert len(circles) == 4
    width, height = plot.WIDTH - plot.RIGHT, plot.HEIGHT - plot.BOTTOM
    assert all(plot.LEFT <= float(circle["cx"]) <= width for circle in circles)
    assert all(plot.TOP <= float(circle["cy"]) <= height for circle in circles)
    assert "a<b" in [element.text for element in drawn if element.tag.endswith("text")]
