"""The user stories beside this file, run as they were written.

A story is a promise about the public surface: not a character of it is changed to make it pass.
The table says which are kept yet, and what each of the others awaits.
"""

import subprocess
import sys
from pathlib import Path

import pytest

HERE = Path(__file__).parent

RUN = ["s1_first_minute.py"]

# Shaped like tests: pytest collects them beside this file, as it does those of an application.
COLLECTED = ["test_s8_tests_without_waiting.py"]

AWAITED = {
    "s2_paid_api.py": "FastAPI and httpx among the test tools",
    "s3_long_import.py": "attempts that track, save checkpoints and hear of a cancel",
    "s4_routes_and_dead_letters.py": "routes, and the dead letter office",
    "s5_cron.py": "schedules",
    "s6_workflow.py": "workflows",
    "s7_campaign.py": "tags, events and bulk cancelling",
    "s9_small_ones.py": "snoozing, task collections, event callbacks; httpx among the test tools",
}


@pytest.mark.parametrize("story", RUN)
def test_the_story_runs_as_it_was_written(story: str, tmp_path: Path) -> None:
    done = subprocess.run(
        [sys.executable, "-W", "error", HERE / story],
        cwd=tmp_path,
        capture_output=True,
        text=True,
        timeout=25,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    assert done.stderr == ""


def test_the_first_minute_prints_its_typed_result(tmp_path: Path) -> None:
    done = subprocess.run(
        [sys.executable, HERE / "s1_first_minute.py"],
        cwd=tmp_path,
        capture_output=True,
        text=True,
        timeout=25,
    )
    ticket_id, _, result = done.stdout.strip().partition(" ")
    assert result == "cat.png@320", done.stderr
    assert len(ticket_id) == 24
    assert (tmp_path / "data").is_dir()


def test_every_story_is_either_run_or_awaits_something() -> None:
    stories = [path.name for path in HERE.glob("*s[0-9]_*.py")]
    listed = RUN + COLLECTED + list(AWAITED)
    assert sorted(listed) == sorted(stories)
