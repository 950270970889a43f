"""What a queue's processes hold and burn: its own, and its server's. Linux tells; elsewhere the
own process alone is counted."""

import os
import resource
import sys
import time
from pathlib import Path

PROC = Path("/proc")


def own_bytes(server: int = 0) -> int:
    """Memory without mapped files and without what a server's processes share."""
    if not (PROC / "self" / "status").exists():
        peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
        return peak if sys.platform == "darwin" else peak * 1024
    return sum(anonymous_bytes(pid) for pid in (os.getpid(), *family(server)))


def cpu_seconds(server: int = 0) -> float:
    """Processor time so far."""
    return time.process_time() + sum(process_seconds(pid) for pid in family(server))


def anonymous_bytes(pid: int) -> int:
    """One process's `RssAnon`; 0 when it has gone."""
    try:
        status = (PROC / str(pid) / "status").read_text(encoding="ascii", errors="replace")
    except OSError:
        return 0
    found = [line.split()[1] for line in status.splitlines() if line.startswith("RssAnon:")]
    return int(found[0]) * 1024 if found else 0


def process_seconds(pid: int) -> float:
    """One process's processor time; 0 when it has gone."""
    fields = stat_fields(pid)
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK") if fields else 0.0


def family(pid: int) -> list[int]:
    """A process and its children."""
    if not pid or not PROC.exists():
        return []
    pids = (int(entry.name) for entry in PROC.iterdir() if entry.name.isdigit())
    return [pid, *(child for child in pids if (stat_fields(child) or ["", "0"])[1] == str(pid))]


def stat_fields(pid: int) -> list[str]:
    """What the kernel says of it after its name: its state, its parent, and so on."""
    try:
        stat = (PROC / str(pid) / "stat").read_text(encoding="ascii", errors="replace")
    except OSError:
        return []
    return stat.rpartition(")")[2].split()
