"""What every bench shares: its options, its clock, figures with their spread, and the report.

A bench asks one question. It reads `options(argv)`, picks its sizes with `Options.pick`, takes each
figure from several runs with `repeat`, and ends in `report`: a table for people, one JSON line for
comparing. Absolute figures mean little on shared machines, so each report carries the machine and,
where a bench measured it, the floor of the same run; a mark is mostly a multiple of that floor.
"""

import argparse
import json
import os
import platform
import resource
import statistics
import sys
import zlib
from collections.abc import Callable, Generator, Iterable, Mapping, Sequence
from concurrent.futures import ProcessPoolExecutor
from contextlib import contextmanager
from dataclasses import asdict, dataclass, field, replace
from importlib.metadata import version
from multiprocessing import get_context
from pathlib import Path
from time import perf_counter_ns
from typing import Any, ParamSpec, TypeVar

from bench.plot import Plot
from bench.running import scratch

P = ParamSpec("P")
T = TypeVar("T")

RUNS_USUAL, RUNS_SMALL = 5, 1
NOISE_PIECES, NOISE_WORK = 30, bytes(1 << 22)
LIBRARIES = ("msgspec", "lmdb")

# A figure's unit is in its name, as everywhere here.
UNITS = {
    "per_s": "1/s",
    "us": "us",
    "ms": "ms",
    "s": "s",
    "bytes": "B",
    "mb": "MB",
    "percent": "%",
    "times": "x",
    "syncs": "syncs",
    "count": "",
}


@dataclass(frozen=True)
class Options:
    """What the caller of a bench asked for."""

    bench: str
    is_small: bool
    is_json: bool
    runs: int
    directory: str
    is_full: bool = False
    kept: Path | None = None  # a directory of sleepers that benches share (`bench.garage`)
    share: float = 1.0  # of the greatest counts

    def pick(self, small: T, usual: T, full: T | None = None) -> T:
        """A size: `small` shows in a second that the bench works, `usual` measures in seconds, and
        `full`, where a bench has it, what takes minutes and gigabytes."""
        if self.is_small:
            return small
        return full if self.is_full and full is not None else usual

    def counted(self, small: int, usual: int, full: int) -> int:
        """A number of tickets, like `pick`; of the greatest, the share that was asked for."""
        return self.pick(small, usual, max(small, round(full * self.share)))

    @contextmanager
    def scratch(self) -> Generator[Path, None, None]:
        """A fresh directory on the disk under measurement, removed afterwards."""
        with scratch(f"parkade-{self.bench}-", self.directory) as path:
            yield path

    def apart(self, function: Callable[P, T], *args: P.args, **kwargs: P.kwargs) -> T:
        """What `function` returns in a fresh process, whose memory and threads are its own; a small
        run saves the time and calls it here."""
        if self.is_small:
            return function(*args, **kwargs)
        with ProcessPoolExecutor(1, mp_context=get_context("spawn")) as pool:
            return pool.submit(function, *args, **kwargs).result()

    def abreast(self, function: Callable[..., T], calls: Sequence[Sequence[Any]]) -> list[T]:
        """The same for several calls at once, each in a process of its own; for what is not held
        against the clock."""
        if self.is_small:
            return [function(*args) for args in calls]
        with ProcessPoolExecutor(len(calls), mp_context=get_context("spawn")) as pool:
            return [told.result() for told in [pool.submit(function, *args) for args in calls]]


def options(
    bench: str, question: str, argv: Sequence[str] | None = None, *, runs_usual: int = RUNS_USUAL
) -> Options:
    """Read a bench's command line; exits with the usage on a wrong one."""
    parser = argparse.ArgumentParser(prog=f"python -m bench.{bench}", description=question)
    parser.add_argument("directory", nargs="?", default=".", help="the disk to use (default: here)")
    parser.add_argument("--small", action="store_true", help="the smallest size that works")
    parser.add_argument("--full", action="store_true", help="the greatest sizes, where it has any")
    parser.add_argument("--json", action="store_true", help="one JSON line and no table")
    parser.add_argument("--runs", type=int, help=f"runs per figure (default: {runs_usual})")
    parser.add_argument("--kept", type=Path, help="sleepers that are there already, or will be")
    parser.add_argument("--share", type=float, default=1.0, help="of the greatest counts")
    given = parser.parse_args(argv)
    runs = given.runs or (RUNS_SMALL if given.small else runs_usual)
    return Options(
        bench,
        given.small,
        given.json,
        runs,
        given.directory,
        given.full,
        given.kept,
        given.share,
    )


class Timer:
    """The time between `with` and its end, on the monotonic clock."""

    def __init__(self) -> None:
        self._start_ns = 0
        self._elapsed_ns = 0

    def __enter__(self) -> "Timer":
        self._start_ns = perf_counter_ns()
        return self

    def __exit__(self, *_: object) -> None:
        self._elapsed_ns = perf_counter_ns() - self._start_ns

    @property
    def seconds(self) -> float:
        """The time taken, in seconds."""
        return self._elapsed_ns / 1e9

    @property
    def micros(self) -> float:
        """The time taken, in microseconds."""
        return self._elapsed_ns / 1e3

    def rate(self, count: int) -> float:
        """`count` things per second over the time taken."""
        return count / max(self.seconds, 1e-9)


@dataclass(frozen=True)
class Mark:
    """What a figure has to come to (`bound`), and what it is meant to (`aim`)."""

    bound: float
    aim: float
    is_most: bool  # the figure may not be above it; else not below it

    def standing(self, value: float) -> str:
        """How a figure stands to it: "aim", "mark" or "missed"."""
        for limit, name in ((self.aim, "aim"), (self.bound, "mark")):
            if value <= limit if self.is_most else value >= limit:
                return name
        return "missed"

    def cells(self, value: float) -> tuple[str, str, str]:
        """Mark, aim and standing for a table."""
        sign = "<=" if self.is_most else ">="
        return f"{sign} {shown(self.bound)}", f"{sign} {shown(self.aim)}", self.standing(value)


def at_most(bound: float, aim: float) -> Mark:
    """A mark for what should be small."""
    return Mark(bound, aim, is_most=True)


def at_least(bound: float, aim: float) -> Mark:
    """A mark for what should be great."""
    return Mark(bound, aim, is_most=False)


@dataclass(frozen=True)
class Figure:
    """One measured thing, once per run: its values, in `unit`."""

    name: str
    unit: str
    values: tuple[float, ...]
    mark: Mark | None = None

    @property
    def median(self) -> float:
        """The value to quote."""
        return statistics.median(self.values)

    @property
    def spread(self) -> float:
        """How far apart the runs lie: (highest - lowest) / median; 0 for a single run."""
        if self.median == 0:
            return 0.0
        return (max(self.values) - min(self.values)) / self.median

    def as_json(self) -> dict[str, Any]:
        """The figure as a part of the report's line."""
        mark = self.mark
        marked: dict[str, Any] = {}
        if mark is not None:
            marked = {
                "mark": rounded(mark.bound),
                "aim": rounded(mark.aim),
                "is_most": mark.is_most,
                "standing": mark.standing(self.median),
            }
        return {
            "name": self.name,
            "unit": self.unit,
            "median": rounded(self.median),
            "low": rounded(min(self.values)),
            "high": rounded(max(self.values)),
            "spread": round(self.spread, 3),
            "runs": len(self.values),
            **marked,
        }


def repeat(
    asked: Options, run: Callable[[Options], Mapping[str, float]]
) -> dict[str, tuple[float, ...]]:
    """The figures of several runs by name. Every run returns the same names. The smallest run goes
    before and counts for nothing: it imports, compiles and wakes what the first would else pay."""
    if not asked.is_small:
        run(replace(asked, is_small=True, kept=None))
    taken = [dict(run(asked)) for _ in range(asked.runs)]
    return {name: tuple(one[name] for one in taken) for name in taken[0]}


def noise_percent() -> float:
    """How much longer than the fastest the median of equal pieces of work takes: what others do on
    this machine. Some 60 ms."""
    taken: list[float] = []
    for _ in range(NOISE_PIECES):
        with Timer() as timer:
            zlib.crc32(NOISE_WORK)
        taken.append(timer.micros)
    return 100 * (statistics.median(taken) / min(taken) - 1)


def unit_of(name: str) -> str:
    """The unit that a figure's name tells: of the first of `UNITS` among its parts."""
    padded = f"_{name}_"
    return next(unit for part, unit in UNITS.items() if f"_{part}_" in padded)


def figures_of(
    taken: Mapping[str, Sequence[float]], marks: Mapping[str, Mark] | None = None
) -> list[Figure]:
    """What several runs measured, as figures; the floor's are left out."""
    marks = marks or {}
    assert marks.keys() <= taken.keys(), marks.keys() - taken.keys()
    return [
        Figure(name, unit_of(name), tuple(values), marks.get(name))
        for name, values in taken.items()
        if not name.startswith("floor_")
    ]


def medians(taken: Mapping[str, Sequence[float]], prefix: str) -> dict[str, float]:
    """The medians of the figures that begin with `prefix`, which their names then lose."""
    return {
        name.removeprefix(prefix): statistics.median(values)
        for name, values in taken.items()
        if name.startswith(prefix)
    }


def quantile(values: Iterable[float], share: float) -> float:
    """The value below which `share` (0 to 1) of all lie; 0 when there are none."""
    ranked = sorted(values)
    return ranked[min(int(len(ranked) * share), len(ranked) - 1)] if ranked else 0.0


@dataclass
class WorkHash:
    """A checksum over what a bench did: two commits compare only when theirs are equal."""

    value: int = field(default=0)

    def add(self, *facts: object) -> None:
        """Take in facts that every correct run agrees on: counts, orders, results."""
        self.value = zlib.crc32(repr(facts).encode(), self.value)

    def __str__(self) -> str:
        return f"{self.value:08x}"


def rss_anon_bytes() -> int:
    """The process's own memory, without mapped files; on macOS the peak of all resident memory."""
    found = _resident_bytes("RssAnon")
    if found is not None:
        return found
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    return peak if sys.platform == "darwin" else peak * 1024


def rss_file_bytes() -> int:
    """The mapped files' part of the resident memory, which the system takes back when it likes; 0
    where it is not told apart."""
    return _resident_bytes("RssFile") or 0


def _resident_bytes(field_name: str) -> int | None:
    status = Path("/proc/self/status")
    if status.exists():
        for line in status.read_text(encoding="ascii", errors="replace").splitlines():
            if line.startswith(f"{field_name}:"):
                return int(line.split()[1]) * 1024
    return None


def disk_bytes(directory: Path) -> int:
    """What a directory takes on the disk: allocated blocks, so that holes count nothing."""
    return sum(path.stat().st_blocks * 512 for path in directory.rglob("*") if path.is_file())


def machine() -> dict[str, Any]:
    """The facts that a figure depends on; nothing that names the machine or its owner."""
    return {
        "cpus": len(os.sched_getaffinity(0)) if sys.platform == "linux" else os.cpu_count(),
        "arch": platform.machine(),
        "system": platform.system(),
        "python": platform.python_version(),
        "gil": bool(getattr(sys, "_is_gil_enabled", lambda: True)()),
        "load_1m": round(os.getloadavg()[0], 2),
        "noise_percent": rounded(noise_percent()),
        **{name: version(name) for name in LIBRARIES},
    }


def report(
    asked: Options,
    figures: Sequence[Figure],
    *,
    work: WorkHash | None = None,
    floor: Mapping[str, float] | None = None,
    notes: Mapping[str, Any] | None = None,
    plots: Sequence[Plot] = (),
) -> dict[str, Any]:
    """Print a bench's figures (a table, then one JSON line; with --json the line alone).

    `floor` is the machine's floor in the same run, `notes` are sizes and counts that a reader
    needs, `plots` what is better seen. Returns what the line says.
    """
    line: dict[str, Any] = {
        "bench": asked.bench,
        "small": asked.is_small,
        "figures": [figure.as_json() for figure in figures],
        "machine": machine(),
    }
    if work is not None:
        line["work"] = str(work)
    if floor is not None:
        line["floor"] = dict(floor)
    if notes is not None:
        line["notes"] = dict(notes)
    if plots:
        line["plots"] = [asdict(plot) for plot in plots]
    if not asked.is_json:
        print("\n".join([table(asked, figures), *remarks(line["machine"], asked.is_small)]))
    print(json.dumps(line, separators=(",", ":")))
    return line


def report_runs(
    asked: Options,
    taken: Mapping[str, Sequence[float]],
    marks: Mapping[str, Mark],
    *,
    done: Sequence[object],
    notes: Mapping[str, Any],
    plots: Sequence[Plot] = (),
) -> dict[str, Any]:
    """`report` of what several runs have `taken`, with the floor that was measured beside them.

    `done` are the facts about the work that every correct run agrees on.
    """
    work = WorkHash()
    work.add(*done)
    return report(
        asked,
        figures_of(taken, marks),
        work=work,
        floor=medians(taken, "floor_"),
        notes=notes,
        plots=plots,
    )


def table(asked: Options, figures: Sequence[Figure]) -> str:
    """The figures for a reader: median, lowest, highest, spread, and how they stand to marks."""
    title = f"{asked.bench}: {asked.runs} run{'s' if asked.runs > 1 else ''}"
    return "\n".join([title, *lines([figure.as_json() for figure in figures])])


def remarks(about: Mapping[str, Any], is_small: bool) -> list[str]:
    """What keeps the figures of a table from being worth much, for a reader; mostly nothing."""
    said: list[str] = []
    if is_small:
        said.append("  At --small the marks mean nothing: it shows that the benches work.")
    if about["load_1m"] > about["cpus"]:
        said.append(
            f"  The machine is busy (load {about['load_1m']} on {about['cpus']} cores): compare "
            "nothing with these figures."
        )
    return said


HEAD = ("figure", "median", "lowest", "highest", "spread", "unit", "mark", "aim", "")


def lines(figures: Iterable[Mapping[str, Any]]) -> list[str]:
    """Rows of a table, from figures as a report's line has them."""
    rows: list[tuple[str, ...]] = [HEAD]
    for figure in figures:
        cells = tuple(shown(figure[name]) for name in ("median", "low", "high"))
        marks = ("", "", "")
        if "mark" in figure:
            mark = Mark(figure["mark"], figure["aim"], figure["is_most"])
            marks = mark.cells(figure["median"])
        rows.append((figure["name"], *cells, f"{figure['spread']:.0%}", figure["unit"], *marks))
    widths = [max(len(row[column]) for row in rows) for column in range(len(HEAD))]
    return [layout(row, widths) for row in rows]


def layout(row: Sequence[str], widths: Sequence[int]) -> str:
    """One row: texts to the left, figures to the right."""
    cells = [
        cell.rjust(width) if 0 < column < 5 else cell.ljust(width)
        for column, (cell, width) in enumerate(zip(row, widths, strict=True))
    ]
    return "  ".join(["", *cells]).rstrip()


def rounded(value: float) -> float:
    """Four digits are more than any of these figures is worth."""
    return float(f"{value:.4g}")


def shown(value: float) -> str:
    """A figure for a table: grouped when large, with a few digits when small."""
    return f"{value:,.0f}" if abs(value) >= 100 else f"{value:.3g}"
