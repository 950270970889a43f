"""Other processes: told from a later one of the same number, and ended.

A number (pid) is given out again after its process has ended. When a process began tells the two
apart, so nothing here ever ends a stranger.
"""

import contextlib
import os
import signal
import subprocess
import sys

from parkade.store.lock import Child

__all__ = ["identify", "is_alive", "kill"]

_START_FIELD = 19  # of /proc/PID/stat, counted from the one behind the name: since boot, in ticks
_BOOT_ID = "/proc/sys/kernel/random/boot_id"


def identify(pid: int) -> Child | None:
    """A process with what tells it from others; None when it has ended, reaped or not."""
    started = _started_linux(pid) if sys.platform == "linux" else _started_elsewhere(pid)
    return None if started is None else Child(pid, started)


def is_alive(child: Child) -> bool:
    """Whether it still runs. One of which nobody noted when it began counts as ended: the number
    alone may be a stranger's."""
    return child.pid > 0 and bool(child.started) and identify(child.pid) == child


def kill(child: Child) -> None:
    """Ends it at once, if it still runs and this user may; it takes a moment to be gone."""
    if is_alive(child):
        with contextlib.suppress(ProcessLookupError, PermissionError):
            os.kill(child.pid, signal.SIGKILL)


def _started_linux(pid: int) -> str | None:
    stat = _read(f"/proc/{pid}/stat")
    # The name stands in brackets and may hold anything, brackets too.
    fields = stat.rpartition(")")[2].split()
    if len(fields) <= _START_FIELD or fields[0] in "ZX":
        return None
    return f"{_read(_BOOT_ID).strip()}/{fields[_START_FIELD]}"


def _started_elsewhere(pid: int) -> str | None:
    told = subprocess.run(
        ["ps", "-o", "state=,lstart=", "-p", str(pid)],
        env={"LC_ALL": "C", "PATH": "/bin:/usr/bin"},
        capture_output=True,
        text=True,
        check=False,
    )
    state, _, started = told.stdout.strip().partition(" ")
    return started.strip() if started and not state.startswith("Z") else None


def _read(path: str) -> str:
    try:
        with open(path, encoding="utf-8", errors="replace") as file:
            return file.read()
    except OSError:
        return ""
