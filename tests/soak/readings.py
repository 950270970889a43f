"""What is read of a soaked process, from outside, and of its directory."""

import os
from pathlib import Path
from typing import Any

from parkade.clock import SystemClock
from parkade.reader import existing_manifest
from parkade.storage_facts import storage_facts
from parkade.store.disk import RealDisk
from soak.flat import Bound

__all__ = ["BOUNDS", "HELD_BOUND", "read_directory", "read_process"]

MB = 1_000_000
BOUNDS = {
    "own memory, MB": Bound(8, 0.05),
    "blocks of Python": Bound(10_000, 0.04),
    "descriptors": Bound(6),
    "threads": Bound(3),
    "child processes": Bound(1),
    "journal in use, MB": Bound(6, 0.25),
    "journal files, MB": Bound(12, 0.25),
    "segments": Bound(4),
    "pages in use": Bound(300, 0.15),
    "store files, MB": Bound(8, 0.25),
}
HELD_BOUND = Bound(400, 0.25)  # of each container of the engine


def read_process(pid: int) -> dict[str, float]:
    """From /proc: memory of its own, without files that it maps. Of its children only how many."""
    status = Path(f"/proc/{pid}/status").read_text(encoding="ascii")
    fields = dict(line.split(":", 1) for line in status.splitlines() if ":" in line)
    children = Path(f"/proc/{pid}/task/{pid}/children")
    kin = children.read_text(encoding="ascii").split() if children.exists() else []
    for task in os.listdir(f"/proc/{pid}/task"):
        other = Path(f"/proc/{pid}/task/{task}/children")
        if task != str(pid) and other.exists():
            kin += other.read_text(encoding="ascii").split()
    return {
        "own memory, MB": int(fields["RssAnon"].split()[0]) * 1_024 / MB,
        "descriptors": len(os.listdir(f"/proc/{pid}/fd")),
        "threads": int(fields["Threads"]),
        "child processes": len(kin),
    }


def read_directory(path: Path) -> dict[str, float]:
    """Of all shards and the house together, as `parkade stat` sees them."""
    disk = RealDisk()
    manifest = existing_manifest(disk, str(path), SystemClock().now_ms())
    parts: list[dict[str, Any]] = list(storage_facts(disk, str(path), manifest))
    wrong = [part["error"] or part["journal_damage"] for part in parts]
    assert not any(wrong), wrong

    def total(name: str) -> float:
        return sum(float(part[name]) for part in parts)

    return {
        "journal in use, MB": total("journal_bytes") / MB,
        "journal files, MB": total("journal_file_bytes") / MB,
        "segments": total("journal_segments"),
        "pages in use": total("used_pages"),
        "store files, MB": total("file_bytes") / MB,
    }
