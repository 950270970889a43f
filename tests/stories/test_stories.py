"""The user stories beside this file, run as they were written.

A story is a promise about the public surface: not a character of it is changed to make it pass.
The table says which are kept yet, and what each of the others awaits.
"""

import signal
import subprocess
import sys
from pathlib import Path

import pytest

HERE = Path(__file__).parent

RUN = ["s1_first_minute.py"]

# Shaped like tests: pytest collects them beside this file, as it does those of an application.
COLLECTED = ["test_s8_tests_without_waiting.py"]

# Run by a test of their own, which does what they leave to their reader.
DRIVEN = [
    "s2_paid_api.py",
    "s3_long_import.py",
    "s4_routes_and_dead_letters.py",
    "s7_campaign.py",
    "s9_small_ones.py",
]

AWAITED = {
    "s5_cron.py": "schedules",
    "s6_workflow.py": "workflows",
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


def test_an_import_goes_on_after_a_kill_and_ends_when_it_is_cancelled(tmp_path: Path) -> None:
    def night(part: str) -> "subprocess.CompletedProcess[str]":
        return subprocess.run(
            [sys.executable, "-W", "error", HERE / "night.py", part],
            cwd=tmp_path,
            capture_output=True,
            text=True,
            timeout=50,
        )

    killed = night("until it is killed")
    assert killed.returncode == -signal.SIGKILL, killed.stderr
    gone_on = night("to the end")
    assert gone_on.returncode == 0, gone_on.stdout + gone_on.stderr
    resumed, attempts, result = gone_on.stdout.splitlines()
    line = int(resumed.removeprefix("began at line "))
    assert line >= 1_000
    assert line % 500 == 0
    assert (attempts, result) == ("lost, done", "30000 rows")
    cancelled = night("until it is cancelled")
    assert cancelled.returncode == 0, cancelled.stdout + cancelled.stderr
    assert cancelled.stdout.splitlines() == ["requested", "cancelled: enough"]


def test_monday_morning_clears_the_dead_letter_office(tmp_path: Path) -> None:
    done = subprocess.run(
        [sys.executable, "-W", "error", HERE / "monday.py"],
        cwd=tmp_path,
        capture_output=True,
        text=True,
        timeout=50,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    lines = done.stdout.splitlines()
    assert lines[0].startswith("     4  billing.charge  OSError: no route for order ")
    assert lines[1] == "     1  billing.charge  Ambiguous: no answer to order 5"
    plans = [line for line in lines if "would be revived" in line]
    assert plans == ["5 would be revived, {'ambiguous': 1}"]
    receipts = [line for line in lines if line.startswith("mail receipt")]
    assert sorted(receipts) == [f"mail receipt for ch-{order}-100" for order in (1, 2, 3, 4, 9)]


def test_a_campaign_is_stopped_when_its_first_mail_fails(tmp_path: Path) -> None:
    done = subprocess.run(
        [sys.executable, "-W", "error", HERE / "may.py"],
        cwd=tmp_path,
        capture_output=True,
        text=True,
        timeout=50,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    accepted, stopped, left = done.stdout.splitlines()
    assert (accepted, left) == ("2001 accepted", "0 left")
    ticket_id, _, rest = stopped.partition(" failed; cancelled ")
    assert len(ticket_id) == 24
    assert 1_000 < int(rest) <= 2_000


def test_the_small_ones_poll_without_attempts_and_page_someone(tmp_path: Path) -> None:
    pytest.importorskip("httpx")
    done = subprocess.run(
        [sys.executable, "-W", "error", HERE / "small.py"],
        cwd=tmp_path,
        capture_output=True,
        text=True,
        timeout=50,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    assert done.stdout.splitlines() == [
        "http://127.0.0.1:8099/exports/7.csv after 0:00:45",
        "['snoozed', 'snoozed', 'snoozed', 'done'] attempts spent: 1",
        "billing.refund True",
        "breaker {'breaker': 'exports', 'reason': 'their maintenance', 'until': None}",
    ]


def test_a_shop_charges_once_and_is_told_what_holds_the_rest(tmp_path: Path) -> None:
    pytest.importorskip("fastapi")
    done = subprocess.run(
        [sys.executable, "-W", "error", HERE / "payments.py"],
        cwd=tmp_path,
        capture_output=True,
        text=True,
        timeout=50,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    *lines, held, charged = done.stdout.splitlines()
    assert lines == [
        "one ticket: True Charge(charge_id='ch_1')",
        "too many at first: Charge(charge_id='ch_2')",
        "declined: failed: Fail",
        "wired: TicketFailed ambiguous True",
    ]
    assert held.startswith("held: ready, ready, held: ")
    assert 'breaker "psp" is open (5 failures in a row: httpx.RemoteProtocolError)' in held
    assert charged == "charged: ['ch_1', 'ch_2']"


def test_every_story_is_either_run_or_awaits_something() -> None:
    stories = [path.name for path in HERE.glob("*s[0-9]_*.py")]
    listed = RUN + COLLECTED + DRIVEN + list(AWAITED)
    assert sorted(listed) == sorted(stories)
