"""`parkade demo`, at its smallest: the numbers it tells are true, and it can say no."""

import json
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
from click.testing import CliRunner

from parkade.cli import demo as telling
from parkade.cli.app import cli
from parkade.cli.demo_run import Demo, Findings

PROGRAM = [sys.executable, "-P", "-c", "from parkade.cli import main; main()"]


def nobody(acknowledged: int, done: int, running: int) -> None:
    """Takes no notice of progress."""


def test_the_demonstration_kills_its_process_and_finds_everything_again(tmp_path: Path) -> None:
    done = subprocess.run(
        [*PROGRAM, "demo", "--tickets", "500", "--json", "--keep"],
        capture_output=True,
        text=True,
        timeout=60,
        env={"TMPDIR": str(tmp_path), "PATH": ""},
    )
    assert (done.returncode, done.stderr) == (0, "")
    facts = json.loads(done.stdout)
    assert facts["kept"] is True and facts["missing"] == []
    assert facts["acknowledged"] == facts["there"] >= 500
    assert facts["running_at_kill"] == facts["cut_off_done"]
    assert facts["due"] == facts["due_done"] >= 10
    assert facts["asleep"] >= 490
    log = Path(facts["directory"], "results.log").read_text()
    assert len({line.split()[1] for line in log.splitlines() if line[:3] == "end"}) >= 10


def test_the_story_is_told_for_people_and_leaves_nothing_behind(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
    done = CliRunner().invoke(cli, ["demo", "--tickets", "100"], catch_exceptions=False)
    assert done.exit_code == 0, done.output
    for words in ("kill -9", "are there", "ran again", "bytes each", "Nothing that was"):
        assert words in done.stdout
    assert list(tmp_path.iterdir()) == []


def test_a_ticket_that_is_missing_is_told_and_decides_the_exit_code(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    class Forgetful(Demo):
        def run_and_kill(self, told: object) -> None:
            self.findings.acknowledged = 2

        def resume(self, told: object) -> None:
            self.findings.there = 1
            self.findings.missing = ["0" * 24]

        def measure(self) -> None:
            self.findings.asleep = 1

    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
    monkeypatch.setattr(telling, "Demo", Forgetful)
    done = CliRunner().invoke(cli, ["demo", "--tickets", "100"], catch_exceptions=False)
    assert done.exit_code == 1
    assert "1 of 2 are there, 1 MISSING" in done.stdout and "BROKEN" in done.stdout


def test_a_process_that_cannot_open_what_is_left_ends_the_demonstration(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    class Robbed(Demo):
        def resume(self, told: object) -> None:
            shutil.rmtree(Path(self.path, "shard-000"))
            super().resume(nobody)

    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
    monkeypatch.setattr(telling, "Demo", Robbed)
    done = CliRunner().invoke(cli, ["demo", "--tickets", "100"], catch_exceptions=False)
    assert done.exit_code == 1
    assert "shard-000" in done.stderr
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize(
    "change",
    [
        {"missing": ["x"]},
        {"due_done": 3},
        {"cut_off_done": 0},
        {"wrong_results": 1},
        {"acknowledged": 0},
    ],
)
def test_no_promise_may_be_broken_for_the_verdict_to_be_good(change: dict[str, object]) -> None:
    good = {"acknowledged": 9, "due": 4, "due_done": 4, "running_at_kill": 1, "cut_off_done": 1}
    assert Findings(**good).is_kept  # type: ignore[arg-type]
    assert not Findings(**good | change).is_kept  # type: ignore[arg-type]
