"""The Makefile and the build machine's script: every suite runs, and the time adds up."""

import os
import re
import subprocess
from pathlib import Path

from house.import_tree import ROOT

MAKEFILE = (ROOT / "Makefile").read_text(encoding="utf-8")
TEST_S_MAX = 720
# Run by a target of its own: real disk, many tickets, no part of every change.
APART = {"load"}


def made(*arguments: str) -> str:
    """What make would do, set-up left out; nothing is run."""
    command = ["make", "--dry-run", "--old-file=.venv/.ready", *arguments]
    # A make above this one hands its flags and its VENV on; the answer must not depend on them.
    settings = {k: v for k, v in os.environ.items() if k not in {"MAKEFLAGS", "MFLAGS", "VENV"}}
    done = subprocess.run(
        command, cwd=ROOT, capture_output=True, text=True, check=True, env=settings
    )
    return done.stdout


def test_two_at_a_time_the_suites_end_within_twelve_minutes() -> None:
    budgets = {name: int(s) for name, s in re.findall(r"^([A-Z]+)_S := (\d+)$", MAKEFILE, re.M)}
    listed = re.search(r"^suites: (.+)$", MAKEFILE, re.M)
    assert listed is not None
    suites = listed[1].split()
    assert {suite.upper() for suite in suites} == set(budgets) and len(suites) >= 10
    ends = [0, 0]
    for suite in suites:  # as make does: the next begins where one has ended
        ends[ends.index(min(ends))] += budgets[suite.upper()]
    assert max(ends) < TEST_S_MAX


def test_every_folder_with_tests_is_run_by_the_test_command() -> None:
    plan = made("test")
    for folder in sorted({path.relative_to(ROOT / "tests").parts[0] for path in files_of_tests()}):
        assert (f"tests/{folder}" in plan) is (folder not in APART), folder


def files_of_tests() -> list[Path]:
    """Every file of tests."""
    return list((ROOT / "tests").rglob("test_*.py"))


def test_every_suite_of_the_test_command_is_held_to_its_time() -> None:
    runs = [line for line in made("test", "TIMEOUT=timeout").splitlines() if "/pytest " in line]
    assert len(runs) >= 8
    assert all(re.search(r"timeout --kill-after=10 \d+ ", line) for line in runs)


def test_the_default_target_only_lists_the_targets() -> None:
    assert made() == made("help")


def test_the_build_machine_runs_the_command_of_the_readme() -> None:
    script = ROOT / ".ci" / "run"
    assert os.access(script, os.X_OK)
    command = "make test"
    assert command in (ROOT / "README.md").read_text(encoding="utf-8")
    assert command in script.read_text(encoding="utf-8")
