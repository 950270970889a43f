"""What came of it, as JSON and as a table for a page."""

import statistics
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime
from typing import Any

from bench.kit import rounded
from bench.peers.environments import OURS, PEERS

NONE = "-"


@dataclass
class Results:
    """Every stage's figures, once per run, by queue; and who was not there."""

    taken: dict[str, dict[str, list[dict[str, Any]]]] = field(default_factory=dict)
    skipped: dict[str, str] = field(default_factory=dict)
    floors: list[dict[str, float]] = field(default_factory=list)
    server: str = ""

    def add(self, queue: str, stage: str, figures: dict[str, Any]) -> None:
        """One stage of one run."""
        self.taken.setdefault(queue, {}).setdefault(stage, []).append(figures)

    def as_json(
        self,
        started_at: datetime,
        machine: Mapping[str, Any],
        sizes: Mapping[str, Any],
        small: bool,
    ) -> dict[str, Any]:
        """Everything, with medians beside the single values."""
        return {
            "at": started_at.isoformat(),
            "machine": dict(machine),
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


@dataclass(frozen=True)
class Row:
    """A line of the table: one thing that all were asked to do."""

    title: str
    stage: str
    cell: Callable[[Mapping[str, Any]], str]


def rate(name: str) -> Callable[[Mapping[str, Any]], str]:
    """A cell with so many a second."""
    return lambda found: f"{rounded(found[name]):,.0f}"


def number(name: str, unit: str, digits: int = 1) -> Callable[[Mapping[str, Any]], str]:
    """A cell with a figure of some digits."""
    return lambda found: f"{found[name]:,.{digits}f} {unit}"


def pair(first: str, second: str, unit: str) -> Callable[[Mapping[str, Any]], str]:
    """A cell with two figures, as a median and a tail."""
    return lambda found: f"{found[first]:.1f} / {found[second]:.1f} {unit}"


def crowd(found: Mapping[str, Any]) -> str:
    """How long the crowd took, and how many of it ran where not all did."""
    took = f"{found['wake_s']:.1f} s"
    all_there = found["wake_ran"] >= found["crowd"]
    return took if all_there else f"{found['wake_ran']:,.0f} in {took}"


def losses(stage: str) -> Callable[[Mapping[str, Any]], str]:
    """Lost and repeated jobs."""
    return lambda found: f"{found[f'{stage}_lost']:.0f} / {found[f'{stage}_twice']:.0f}"


ROWS = (
    Row("submit, one by one, 1/s", "submit", rate("submit_per_s")),
    Row("submit in bulk, 1/s", "bulk", rate("bulk_per_s")),
    Row("end to end, no-op, 1/s", "lives", rate("lives_per_s")),
    Row("submit to start, idle, p50 / p99", "start", pair("start_ms_p50", "start_ms_p99", "ms")),
    Row("{crowd:,} due at one moment", "wake", crowd),
    Row("disk for each job asleep", "sleepers", number("disk_bytes", "B", 0)),
    Row("opened, until it runs a job", "sleepers", number("ready_s", "s", 2)),
    Row("memory with {sleepers:,} asleep", "sleepers", number("held_mb", "MB", 0)),
    Row("processor when idle", "sleepers", number("idle_cpu_percent", "%", 1)),
    Row("`kill -9`, {killed:,} ready: lost or stuck / twice", "kill_queue", losses("kill_queue")),
    Row("`kill -9`, {killed:,} waking: lost or stuck / twice", "kill_crowd", losses("kill_crowd")),
)
ABREAST = 5  # queues beside parkade in one table


def page(result: Mapping[str, Any]) -> str:
    """Everything that a reader needs to judge the figures."""
    return "\n\n".join(
        part for part in (*tables(result), circumstances(result), settings(result)) if part
    )


def excerpt(result: Mapping[str, Any]) -> str:
    """Parkade, and of the others the best in each line."""
    ours = result["medians"].get(OURS, {})
    rows = [("", OURS, "the best of the others", "")]
    for row in ROWS:
        best = best_of(row, result)
        if best is not None:
            rows.append((title(row, result), cell(row, OURS, ours, result), *best))
    head = (
        f"Medians of one run of `python -m bench.peers` on {machine_line(result)}; jobs of 1,000 "
        "bytes, each durable (a sync before the answer). [All of it](docs/benchmarks.md), with "
        "what was set and what the others cannot do."
    )
    return f"{head}\n\n{table(rows)}"


BETTER_IF_MORE = {"submit_per_s", "bulk_per_s", "lives_per_s"}
BEST_BY = {
    "submit": "submit_per_s",
    "bulk": "bulk_per_s",
    "lives": "lives_per_s",
    "start": "start_ms_p50",
    "wake": "wake_s",
}


def best_of(row: Row, result: Mapping[str, Any]) -> tuple[str, str] | None:
    """The best other queue's cell and its name; None for a line without an order."""
    name = BEST_BY.get(row.stage)
    if row.title.startswith("disk"):
        name = "disk_bytes"
    elif row.title.startswith("memory"):
        name = "held_mb"
    elif name is None:
        return None
    others = {
        queue: found
        for queue, found in result["medians"].items()
        if queue != OURS and name in found and is_whole(row, found, result)
    }
    if not others:
        return None
    pick = max if name in BETTER_IF_MORE else min
    best = pick(others, key=lambda queue: others[queue][name])
    return cell(row, best, others[best], result), titles()[best]


def is_whole(row: Row, found: Mapping[str, Any], result: Mapping[str, Any]) -> bool:
    """Whether a queue did all that the line asks for."""
    return row.stage != "wake" or found["wake_ran"] >= result["sizes"]["crowd"]


def titles() -> dict[str, str]:
    """Each queue's name and version."""
    return {peer.name: peer.title for peer in PEERS}


def tables(result: Mapping[str, Any]) -> list[str]:
    """A few queues at a time, parkade in front of each few."""
    others = [peer.name for peer in PEERS if peer.name in result["medians"] and peer.name != OURS]
    groups = [others[first : first + ABREAST] for first in range(0, len(others), ABREAST)]
    return [table(grid([OURS, *group], result)) for group in groups or [[]]]


def grid(queues: Sequence[str], result: Mapping[str, Any]) -> list[tuple[str, ...]]:
    """A column for each queue."""
    head = ("", *(titles()[queue] for queue in queues))
    lines = [
        (
            title(row, result),
            *(cell(row, queue, result["medians"][queue], result) for queue in queues),
        )
        for row in ROWS
    ]
    return [head, *lines]


def title(row: Row, result: Mapping[str, Any]) -> str:
    """With the counts of this run in it."""
    return row.title.format(**result["sizes"])


def cell(row: Row, queue: str, found: Mapping[str, Any], result: Mapping[str, Any]) -> str:
    """A figure, or why there is none."""
    if row.stage in found.get("lacks", {}):
        return str(found["lacks"][row.stage])
    if row.stage in found.get("failed", {}):
        return "failed"
    try:
        return row.cell({**found, "crowd": result["sizes"]["crowd"]})
    except KeyError:
        return NONE


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
        if (result["small"])
        else ""
    )
    return (
        f"{small}Measured {result['at'][:10]} on {machine_line(result)}; {sizes['runs']} runs, "
        f"medians, the queues taking turns. The floor of the same run: a sync of 4 KiB "
        f"{floor['sync_us_p50']:.0f} µs (p99 {floor['sync_us_p99']:.0f}), three in a row "
        f"{floor['triple_us_p50']:.0f} µs. Jobs have 1,000 bytes and a handler that does nothing "
        f"(1 ms where it is killed). End to end counts from the first submit to the last handler's "
        f"return, submitter and worker in one process; parkade's to the last end on disk. A crowd "
        f"counts from its due time; sleepers are due over a year. Disk is all that is allocated "
        f"after an orderly close, memory is `RssAnon` with the worker running, and a server's "
        f"processes count for its queues, its shared buffers and its write-ahead log do not. "
        f"*Lost or stuck* is what had not run {sizes['after_s']:.0f} s after the next start."
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
