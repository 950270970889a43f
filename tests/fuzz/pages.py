"""Damage below the rows: pages of data.mdb. LMDB keeps no checksum of them, and may end the process
that reads one; so both who verifies and who opens is a process of its own here."""

import os
import subprocess
import sys
from pathlib import Path

from fuzz.mutations import mutate_bytes
from fuzz.tape import Tape
from fuzz.towns import SHARDS, harmed_copy, part_directory
from parkade.store.disk import RealDisk
from parkade.store.manifest import read_manifest
from parkade.verifying import verify_apart

__all__ = ["target"]

PAGE_BYTES = 4_096
WAIT_S = 120.0  # a hang; ten times what a slow machine takes
MEMORY_BYTES_MAX = 2 << 30
OPEN = """
import resource, sys
resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
resource.setrlimit(resource.RLIMIT_AS, (int(sys.argv[2]),) * 2)
from parkade import ParkadeError
from parkade.testing import ManualClock, TestEngine
from kit.every_state import LEFT_AT, OPTIONS
try:
    with TestEngine(sys.argv[1], clock=ManualClock(LEFT_AT), **OPTIONS) as engine:
        try:
            for info in engine.find(limit=1000):
                engine.ticket(info.id).info()
        except ParkadeError as error:
            print(error.code)
except ParkadeError as error:
    print(error.code)
print("ended")
"""


def target(data: bytes) -> None:
    """Both end, in one way or the other; `verify` always answers, for every part."""
    tape = Tape(data)
    part = tape.pick((0, 1, SHARDS))
    with harmed_copy() as path:
        _harm(tape, part_directory(path, part) / "store" / "data.mdb")
        manifest = read_manifest(RealDisk(), str(path))
        assert manifest is not None
        reports = list(verify_apart(str(path), manifest, deep=True))
        assert len(reports) == SHARDS + 1
        _open(path, is_sound=all(report.is_sound for report in reports))


def _harm(tape: Tape, store: Path) -> None:
    content = store.read_bytes()
    for _ in range(1 + tape.below(4)):
        page = tape.below(len(content) // PAGE_BYTES) * PAGE_BYTES
        front = page + tape.pick((0, 0, 0, 16, 1_024))  # its header and its list of places
        changed = mutate_bytes(tape, content[front : front + 48])[:48].ljust(48, b"\0")
        content = content[:front] + changed + content[front + 48 :]
    if not tape.below(8):
        content = content[: tape.below(len(content))]
    store.write_bytes(content)


def _open(path: Path, *, is_sound: bool) -> None:
    tests = str(Path(__file__).parents[1])
    done = subprocess.run(
        [sys.executable, "-c", OPEN, str(path), str(MEMORY_BYTES_MAX)],
        env=os.environ | {"PYTHONPATH": tests},
        capture_output=True,
        text=True,
        timeout=WAIT_S,
        check=False,
    )
    if done.returncode == 0:
        assert done.stdout.endswith("ended\n"), done.stdout
        return
    # Ended by the system: that is what damaged pages may do, and what `verify` is there to tell.
    assert done.returncode < 0, done.stderr
    assert not is_sound, f"verify finds nothing, and an engine is ended by {-done.returncode}"
