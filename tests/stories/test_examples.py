"""The examples, run as they are, and killed on the way."""

import subprocess
import sys
from pathlib import Path

from house.import_tree import ROOT

REMINDERS = ROOT / "examples" / "reminders"
SOON = {"tea", "oven", "stretch", "laundry"}


def start(folder: Path) -> "subprocess.Popen[str]":
    return subprocess.Popen(
        [sys.executable, "-P", REMINDERS / "reminders.py", REMINDERS / "reminders.csv"],
        cwd=folder,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
    )


def test_reminders_that_were_parked_come_after_a_kill_and_none_is_forgotten(
    tmp_path: Path,
) -> None:
    parked: dict[str, str] = {}
    reminded: list[str] = []
    with start(tmp_path) as first:
        assert first.stdout is not None
        for line in first.stdout:
            word, *rest = line.split()
            if word == "parked":
                parked[rest[1]] = rest[0]
            elif word == "reminder":
                reminded.append(rest[0].rstrip(":"))
                first.kill()
    assert set(parked) == {*SOON, "dentist", "passport"}
    assert 1 <= len(reminded) < len(SOON)

    with start(tmp_path) as second:
        output = second.communicate(timeout=60)[0]
    assert second.returncode == 0, output
    lines = [line.split() for line in output.splitlines()]
    assert {words[2]: words[1] for words in lines if words[0] == "known"} == parked
    assert not [words for words in lines if words[0] == "parked"]
    reminded += [words[1].rstrip(":") for words in lines if words[0] == "reminder"]
    assert set(reminded) == SOON
    # The one that was on its way when the kill came may have been sent twice, and no other.
    assert len(reminded) - len(SOON) <= 1
