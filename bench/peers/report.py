"""What came of it, as JSON and as a table for a page."""

import statistics
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime
from typing import Any

from bench.kit import rounded
from bench.peers.environments import OURS, PEERS


@dataclass
class Results:
    """Every stage's figures, once per run, by queue; and who was not there."""

    taken: dict[str, dict[str, list[dict[str, Any]]]] = field(
        default_factory=dict[str, dict[str, list[dict[str, Any]]]]
    )
    skipped: dict[str, str] = field(default_factory=dict[str, str])
    slow: set[tuple[str, str]] = field(default_factory=set[tuple[str, str]])
    floors: list[dict[str, float]] = field(default_factory=list[dict[str, float]])
    machine: Mapping[str, Any] = field(default_factory=dict[str, Any])
    server: str = ""

    def add(self, queue: str, stage: str, figures: dict[str, Any]) -> None:
        """One stage of one run."""
        self.taken.setdefault(queue, {}).setdefault(stage, []).append(figures)

    def as_json(
        self,
        started_at: datetime,
        sizes: Mapping[str, Any],
        small: bool,
    ) -> dict[str, Any]:
        """Everything, with medians beside the single values."""
        return {
            "at": started_at.isoformat(),
            "machine": dict(self.machine),
            "runs": len(self.floors),
            "server": self.server,
            "sizes": dict(sizes),
            "small": small,
            "floor": {
                name: statistics.median(floor[name] for floor in self.floors)
                for name in self.floors[0]
            },
            "skipped": self.skipped,
            "medians": {queue: medians(stages) for queue, stages in self.taken.items()},
            "taken": self.taken,
        }


def medians(stages: Mapping[str, Sequence[Mapping[str, Any]]]) -> dict[str, Any]:
    """A queue's figures by name; texts are the last that were said."""
    found: dict[str, Any] = {"lacks": {}, "failed": {}}
    for stage, runs in stages.items():
        for name in {name: None for run in runs for name in run}:
            values = [run[name] for run in runs if name in run]
            if name in ("lacks", "failed"):
                found[name][stage] = values[-1]
            elif isinstance(values[-1], str):
                found[name] = values[-1]
            else:
                found[name] = statistics.median(values)
    return found


Found = Mapping[str, Any]


@dataclass(frozen=True)
class Row:
    """A line of the table: one thing that all were asked to do."""

    title: str
    stage: str
    cell: Callable[[Found], str]
    order: Callable[[Found], tuple[float, ...]]
    """The least is the best."""
    is_in_readme: bool = True


def rate(title: str, stage: str, name: str) -> Row:
    """A line of so many a second."""
    return Row(title, stage, lambda found: f"{rounded(found[name]):,.0f}", most(name))


def number(title: str, name: str, unit: str, digits: int, *, is_in_readme: bool = True) -> Row:
    """A line about the sleepers, with a figure of some digits."""

    def cell(found: Found) -> str:
        few = "" if is_loaded(found) else f" ({found['asleep']:,.0f} asleep)"
        return f"{found[name]:,.{digits}f} {unit}{few}"

    return Row(title, "sleepers", cell, least(name), is_in_readme)


def losses(title: str, stage: str) -> Row:
    """A line of lost and repeated jobs; to repeat one is better than to lose one."""
    lost, twice = f"{stage}_lost", f"{stage}_twice"
    return Row(
        title,
        stage,
        lambda found: f"{found[lost]:.0f} / {found[twice]:.0f}",
        least(lost, twice),
        is_in_readme=False,
    )


def least(*names: str) -> Callable[[Found], tuple[float, ...]]:
    """The order in which the smallest is the best."""
    return lambda found: tuple(found[name] for name in names)


def most(name: str) -> Callable[[Found], tuple[float, ...]]:
    """The order in which the greatest is the best."""
    return lambda found: (-found[name],)


def start(found: Found) -> str:
    """A median and a tail."""
    return f"{found['start_ms_p50']:.1f} / {found['start_ms_p99']:.1f} ms"


def crowd(found: Found) -> str:
    """How long the crowd took, and how many of it ran where not all did."""
    took = f"{found['wake_s']:.1f} s"
    return took if is_awake(found) else f"{found['wake_ran']:,.0f} in {took}"


def is_awake(found: Found) -> bool:
    """Whether the whole crowd ran."""
    return bool(found["wake_ran"] >= found["crowd"])


def is_loaded(found: Found) -> bool:
    """Whether there was time for all of the sleepers."""
    return bool(found["asleep"] >= found["sleepers"])


ROWS = (
    rate("submit, one by one, 1/s", "submit", "submit_per_s"),
    rate("submit in bulk, 1/s", "bulk", "bulk_per_s"),
    rate("end to end, no-op, 1/s", "lives", "lives_per_s"),
    Row("submit to start, idle, p50 / p99", "start", start, least("start_ms_p50", "start_ms_p99")),
    Row("{crowd:,} due at one moment", "wake", crowd, least("wake_s")),
    number("disk for each job asleep", "disk_bytes", "B", 0),
    number("opened, until it runs a job", "ready_s", "s", 2, is_in_readme=False),
    number("memory with {sleepers:,} asleep", "held_mb", "MB", 0),
    number("processor when idle", "idle_cpu_percent", "%", 1, is_in_readme=False),
    losses("`kill -9`, {killed:,} ready: lost or stuck / twice", "kill_queue"),
    losses("`kill -9`, {killed:,} waking: lost or stuck / twice", "kill_crowd"),
)
ABREAST = 5  # queues beside parkade in one table


def page(result: Mapping[str, Any]) -> str:
    """Everything that a reader needs to judge the figures."""
    return "\n\n".join(
        part for part in (*tables(result), circumstances(result), settings(result)) if part
    )


def excerpt(result: Mapping[str, Any]) -> str:
    """Parkade, and of the others the best in each line; the better of the two is marked."""
    rows: list[tuple[str, ...]] = [("", OURS, "the best of the others", "")]
    others = [queue for queue in result["medians"] if queue != OURS]
    for row in ROWS:
        best = best_of(row, result, others)
        if best and row.is_in_readme:
            pair = [OURS, best[0]]
            winners = best_of(row, result, pair)
            cells = [marked(row, queue, result, winners) for queue in pair]
            rows.append((title(row, result), *cells, titles()[best[0]]))
    head = (
        f"Medians of one run of `python -m bench.peers` on {machine_line(result)}; jobs of 1,000 "
        "bytes, each durable (a sync before the answer); the better in bold. "
        "[All of it](docs/benchmarks.md), with what was set and what the others cannot do."
    )
    return f"{head}\n\n{table(rows)}"


def best_of(row: Row, result: Mapping[str, Any], queues: Iterable[str]) -> list[str]:
    """Those of the queues that did best in the line, as far as its figures tell; nobody where
    less than two have one. A crowd has to have run; with fewer asleep a queue is let in: what it
    holds and burns hardly depends on that, and the cell says so."""
    ranked: list[tuple[tuple[float, ...], str]] = []
    for queue in queues:
        found = found_of(queue, result)
        if reason(row, found) is None and (row.stage != "wake" or is_awake(found)):
            ranked.append((row.order(found), queue))
    ranked.sort()
    cells = [cell(row, queue, result) for _, queue in ranked]
    ties = [queue for (_, queue), text in zip(ranked, cells, strict=True) if text == cells[0]]
    return ties if len(ranked) > 1 else []


def titles() -> dict[str, str]:
    """Each queue's name and version."""
    return {peer.name: peer.title for peer in PEERS}


def tables(result: Mapping[str, Any]) -> list[str]:
    """A few queues at a time, parkade in front of each few."""
    others = [peer.name for peer in PEERS if peer.name in result["medians"] and peer.name != OURS]
    groups = [others[first : first + ABREAST] for first in range(0, len(others), ABREAST)]
    return [table(grid([OURS, *group], result)) for group in groups or [[]]]


def grid(queues: Sequence[str], result: Mapping[str, Any]) -> list[tuple[str, ...]]:
    """A column for each queue; the best of each line among all that were measured is marked."""
    lines = [("", *(titles()[queue] for queue in queues))]
    for row in ROWS:
        winners = best_of(row, result, result["medians"])
        cells = (marked(row, queue, result, winners) for queue in queues)
        lines.append((title(row, result), *cells))
    return lines


def title(row: Row, result: Mapping[str, Any]) -> str:
    """With the counts of this run in it."""
    return row.title.format(**result["sizes"])


def found_of(queue: str, result: Mapping[str, Any]) -> Found:
    """A queue's figures beside the sizes; none if it was not reached."""
    return {"lacks": {}, "failed": {}, **result["sizes"], **result["medians"].get(queue, {})}


def reason(row: Row, found: Found) -> str | None:
    """Why a line has no figure of a queue; None if it has."""
    if row.stage in found["lacks"]:
        return str(found["lacks"][row.stage])
    if row.stage in found["failed"]:
        return "failed"
    try:
        row.order(found)
    except KeyError:
        return "not measured"
    return None


def cell(row: Row, queue: str, result: Mapping[str, Any]) -> str:
    """A figure, or why there is none."""
    found = found_of(queue, result)
    return reason(row, found) or row.cell(found)


def marked(row: Row, queue: str, result: Mapping[str, Any], winners: Sequence[str]) -> str:
    """The same, in bold for who did best."""
    text = cell(row, queue, result)
    return f"**{text}**" if queue in winners else text


def table(rows: Iterable[Sequence[str]]) -> str:
    """As Markdown, its columns aligned in the source too."""
    rows = [tuple(row) for row in rows]
    widths = [max(3, *(len(row[column]) for row in rows)) for column in range(len(rows[0]))]
    lines = [
        "| " + " | ".join(text.ljust(w) for text, w in zip(row, widths, strict=True)) + " |"
        for row in rows
    ]
    rule = "|" + "|".join("-" * (width + 2) for width in widths) + "|"
    return "\n".join([lines[0], rule, *lines[1:]])


def machine_line(result: Mapping[str, Any]) -> str:
    """What it ran on, and how busy that was."""
    about = result["machine"]
    return (
        f"{about['cpus']} cores ({about['arch']}, {about['system']}, Python {about['python']}, "
        f"load {about['load_1m']} at the end)"
    )


def circumstances(result: Mapping[str, Any]) -> str:
    """The machine, its floor, and what was counted."""
    floor, sizes = result["floor"], result["sizes"]
    small = (
        "**The smallest sizes: these show that it works, not how fast it is.** "
        if result["small"]
        else ""
    )
    runs = f"{result['runs']} run{'s' if result['runs'] > 1 else ''}"
    return (
        f"{small}Measured {result['at'][:10]} on {machine_line(result)}. In bold: the best of a "
        f"line, in all tables. Rates and times are medians of {runs}, the queues taking turns; "
        f"sleepers and kills were measured once, and a stage that took a queue more "
        f"than {sizes['slow_s']:.0f} s was not repeated for it. The floor of the same run: a sync "
        f"of 4 KiB {floor['sync_us_p50']:.0f} µs (p99 {floor['sync_us_p99']:.0f}), three in a row "
        f"{floor['triple_us_p50']:.0f} µs. Jobs have 1,000 bytes and a handler that does nothing "
        f"(1 ms where it is killed). End to end counts from the first submit to the last handler's "
        f"return, submitter and worker in one process; parkade's to the last end on disk. A crowd "
        f"counts from its due time; sleepers are due over a year, and were submitted for "
        f"{sizes['load_s']:.0f} s at most. Disk is all that is allocated after an orderly close, "
        f"memory is `RssAnon` with the worker running, and a server's processes count for its "
        f"queues, its shared buffers and its write-ahead log do not. *Lost or stuck* is what had "
        f"not run {sizes['after_s']:.0f} s after the next start."
    )


def settings(result: Mapping[str, Any]) -> str:
    """What was set for each, what it does with a job, and who was skipped."""
    lines: list[str] = []
    for peer in PEERS:
        found = result["medians"].get(peer.name)
        if peer.name in result["skipped"]:
            lines.append(f"* {peer.title}: skipped, {result['skipped'][peer.name]}")
        elif found is not None:
            server = f" ({result['server']})" if not peer.is_embedded else ""
            remark = f"; {peer.remark}" if peer.remark else ""
            lines.append(f"* {peer.title}{server}: {found.get('settings', '')}{remark}.")
            lines += [f"  * failed: {said}" for said in found["failed"].values()]
    return "\n".join(lines)
