"""What `parkade doctor` looks at, one function a check: how it is, and what to do about it.

Each takes what it judges as plain values where that can be had, so that a test can give it others.
"""

import os
import platform
import subprocess
import sys
import sysconfig
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import NamedTuple

import lmdb
import msgspec

from parkade.clock import Clock
from parkade.directory import FILES_BESIDE, FILES_PER_SHARD
from parkade.store.disk import Disk, let_go
from parkade.version import VERSION
from parkade.wording import bytes_text, count_text, span_text

__all__ = [
    "BAD", "OK", "WARN", "Check", "check_clock", "check_descriptors", "check_file_system",
    "check_free_space", "check_gil", "check_retention", "check_sync", "check_versions",
    "file_system_of", "time_syncs",
]  # fmt: skip

OK, WARN, BAD = "ok", "warn", "bad"
SYNCS = 100
SYNC_US_MIN = 20  # no device writes a block and says so in less
FREE_BYTES_MIN = 256 << 20
SETTLED_AHEAD_MS = 60_000
SETTLED_BEHIND_MS = 86_400_000

REMOTE = ("nfs", "nfs4", "cifs", "smb3", "smbfs", "9p", "afs", "ceph", "glusterfs", "fuse.sshfs")
PASSING = ("tmpfs", "ramfs")
LAYERED = ("overlay", "aufs")


class Check(NamedTuple):
    """`text` is what was found, `advice` what to do; empty where nothing is."""

    name: str
    status: str
    text: str
    advice: str = ""


def time_syncs(disk: Disk, directory: str, clock: Clock) -> int:
    """How long one durable write of a block takes, us. The file is gone afterwards.

    Raises OSError.
    """
    path = f"{directory}/doctor.{os.getpid()}"
    handle = disk.open(path, create=True)
    try:
        disk.preallocate(handle, 1 << 16)
        disk.fdatasync(handle)
        began_ms = clock.monotonic_ms()
        for number in range(SYNCS):
            disk.pwrite_durable(handle, (number.to_bytes(512, "little"),), 512 * number)
        return (clock.monotonic_ms() - began_ms) * 1_000 // SYNCS
    finally:
        let_go(disk, handle)
        disk.unlink(path)


def check_sync(sync_us: int, file_system: str | None) -> Check:
    """Whether a sync may be believed."""
    text = f"a durable write takes {sync_us / 1_000:.2f} ms"
    if sync_us < SYNC_US_MIN:
        on = f" ({file_system})" if file_system else ""
        advice = "what is synced may be lost with the power: use a disk that is one"
        return Check("sync", WARN, f"{text}{on}: no disk is that fast", advice)
    if sync_us > 100_000:
        return Check("sync", WARN, text, "every submit waits for one: use a faster disk")
    return Check("sync", OK, text)


def file_system_of(path: str) -> str | None:
    """The type of the file system that `path` is on; None where the system does not tell."""
    best: tuple[int, str] | None = None
    for mount, kind in _mounts():
        inside = path == mount or path.startswith(mount.rstrip("/") + "/")
        if inside and (best is None or len(mount) >= best[0]):
            best = len(mount), kind
    return None if best is None else best[1]


def _mounts() -> Iterator[tuple[str, str]]:
    mounts = Path("/proc/self/mounts")
    if mounts.exists():
        for line in mounts.read_text(errors="replace").splitlines():
            fields = line.split()
            if len(fields) > 2:
                yield fields[1].encode().decode("unicode_escape"), fields[2]
        return
    try:
        told = subprocess.run(["mount"], capture_output=True, text=True, timeout=10, check=False)
    except (OSError, subprocess.TimeoutExpired):
        return
    for line in told.stdout.splitlines():
        place, _, rest = line.partition(" on ")[2].partition(" (")
        if place and rest:
            yield place, rest.split(",")[0].rstrip(")")


def check_file_system(kind: str | None) -> Check:
    """Whether locks and maps can be relied on there."""
    name = "file system"
    if kind is None:
        return Check(name, OK, "the system does not tell of which type it is")
    if kind in REMOTE:
        advice = "locks and mapped files cannot be relied on over a network: use a local disk"
        return Check(name, BAD, kind, advice)
    if kind in PASSING:
        return Check(name, WARN, f"{kind}: memory", "all of it is gone with the power: use a disk")
    if kind in LAYERED:
        advice = "it is gone with the container: mount a volume for the directory"
        return Check(name, WARN, kind, advice)
    return Check(name, OK, kind)


def check_clock(now_ms: int, settled_ms: int, is_synced: bool | None) -> Check:
    """`settled_ms`: the latest in the stores, 0 where there is none; `is_synced` None: not told."""
    name = "clock"
    if settled_ms and now_ms < settled_ms - SETTLED_AHEAD_MS:
        text = f"it is {span_text(settled_ms - now_ms)} behind what the stores have seen"
        return Check(name, BAD, text, "set it right before an engine is started")
    if settled_ms and now_ms > settled_ms + SETTLED_BEHIND_MS:
        text = f"the stores have seen nothing for {span_text(now_ms - settled_ms)}"
        advice = "if it is right all is well: nothing is forgotten for the first ten minutes"
        return Check(name, OK, text, advice)
    if is_synced is False:
        return Check(name, WARN, "nothing sets it right", "have it synchronised (NTP)")
    return Check(name, OK, "synchronised" if is_synced else "the system does not tell who sets it")


def check_descriptors(soft: int, shards: int) -> Check:
    """`soft`: how many files a process may open; negative: any number."""
    need = FILES_PER_SHARD * shards + FILES_BESIDE
    text = f"{'any number' if soft < 0 else count_text(soft)} of open files, {need} are needed"
    if 0 <= soft < need:
        return Check("ulimit", BAD, text, f"ulimit -n {4 * need}")
    if 0 <= soft < 2 * need:
        return Check("ulimit", WARN, text, f"leave room for the application: ulimit -n {4 * need}")
    return Check("ulimit", OK, text)


def check_free_space(free_bytes: int, stored_bytes: int, store_bytes_max: int) -> Check:
    """`stored_bytes`: of all files of the directory; `store_bytes_max`: of the greatest store."""
    text = (
        f"{bytes_text(free_bytes, binary=True)} free, the directory has "
        f"{bytes_text(stored_bytes, binary=True)}"
    )
    if free_bytes < FREE_BYTES_MIN:
        return Check("space", BAD, text, "free some: submits are refused when there is none")
    if free_bytes < store_bytes_max:
        advice = "compact needs as much as the greatest store: free some before it must"
        return Check("space", WARN, text, advice)
    return Check("space", OK, text)


def check_retention(ended: int, tickets: int, free_bytes: int, stored_bytes: int) -> Check:
    """`ended`: tickets that are done, cancelled or expired, of all."""
    share = 100 * ended // tickets if tickets else 0
    text = f"{count_text(ended)} of {count_text(tickets)} tickets have ended and are kept"
    if share >= 50 and stored_bytes > free_bytes:
        advice = "keep them for less long (keep_done=, keep_done_max=), then compact"
        return Check("retention", WARN, text, advice)
    return Check("retention", OK, text)


def check_gil() -> Check:
    """Whether threads of Python run one at a time, and why."""
    is_on = getattr(sys, "_is_gil_enabled", lambda: True)()
    if not sysconfig.get_config_var("Py_GIL_DISABLED"):
        return Check("gil", OK, "on: this Python has no other way")
    if not is_on:
        return Check("gil", OK, "off")
    return Check(
        "gil", OK, "on: a library that was imported, most likely lmdb, switched it back on"
    )


def check_versions() -> Check:
    """What runs here."""
    versions: Mapping[str, str] = {
        "parkade": VERSION,
        "python": platform.python_version(),
        "lmdb": f"{lmdb.__version__} (LMDB {'.'.join(map(str, lmdb.version()))})",
        "msgspec": msgspec.__version__,
        platform.system(): platform.release(),
    }
    return Check("versions", OK, ", ".join(f"{name} {one}" for name, one in versions.items()))
