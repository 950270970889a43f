"""A file system of 64 MB that fills up and empties, under an engine with all its defaults.

What is asserted is in kit/small_disk.py, which runs in a mount namespace of its own: as root, or as
the root of a user namespace.
"""

import os
import shutil
import subprocess
import sys
from functools import cache
from pathlib import Path

import pytest

TESTS = Path(__file__).parents[1]
NAMESPACE = ["unshare", "--mount", *([] if os.geteuid() == 0 else ["--map-root-user"])]


@cache
def why_not() -> str | None:
    """Why no tmpfs can be mounted here; None: it can."""
    if sys.platform != "linux" or shutil.which("unshare") is None:
        return "there are no mount namespaces here, and so no tmpfs of its own"
    tried = subprocess.run(
        [*NAMESPACE, "mount", "-t", "tmpfs", "none", "/mnt"], capture_output=True, text=True
    )
    return None if tried.returncode == 0 else f"no tmpfs can be mounted: {tried.stderr.strip()}"


@pytest.mark.parametrize(
    "scenario", ["fills_and_empties", "is_killed_when_full"], ids=lambda name: name
)
def test_a_disk_of_64_mb_refuses_submits_settles_work_and_goes_on_by_itself(
    tmp_path: Path, scenario: str
) -> None:
    if reason := why_not():
        pytest.skip(reason)
    point = tmp_path / "disk"
    point.mkdir()
    done = subprocess.run(
        [*NAMESPACE, sys.executable, "-m", "kit.small_disk", scenario, str(point)],
        cwd=TESTS, capture_output=True, text=True, timeout=100,
    )  # fmt: skip
    assert done.stdout == "fine\n", done.stderr[-4_000:]
