"""A process that forks while its engine is open: the child gets errors, the parent notices nothing.

What is asserted is in kit/forking.py, which runs in a process of its own: a fork of the test runner
would be its copy.
"""

import os
import subprocess
import sys
from pathlib import Path

TESTS = Path(__file__).parents[1]


def test_forks_in_the_middle_of_work_are_refused_and_leave_the_engine_and_its_files_alone(
    tmp_path: Path,
) -> None:
    done = subprocess.run(
        [sys.executable, "-W", "ignore", "-m", "kit.forking", os.fspath(tmp_path / "data")],
        cwd=TESTS, stdin=subprocess.PIPE, capture_output=True, text=True, timeout=55,
    )  # fmt: skip
    assert done.stdout == "fine\n", done.stderr[-4_000:]
