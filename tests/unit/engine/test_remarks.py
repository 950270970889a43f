"""What an engine says when it opens a directory that was used before."""

import logging
import re
import shutil
import threading
from datetime import timedelta
from pathlib import Path

import pytest

from kit.engines import PATIENCE_S, make
from parkade.remarks import unclaimed_text
from parkade.views import Stats

ERRORS = Path(__file__).parents[3] / "docs" / "errors.md"


def warnings_of(log: pytest.LogCaptureFixture) -> list[str]:
    return [record.getMessage() for record in log.records if record.name == "parkade.engine"]


def test_tickets_of_a_task_that_was_renamed_are_told_of(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.WARNING, "parkade.engine")
    with make(tmp_path / "data", durability="process") as engine:

        @engine.task(name="old.resize")
        def resize(path: str) -> None:
            raise AssertionError("not due")

        resize.options(delay="1d").submit("cat.png")
    assert warnings_of(caplog) == []
    with make(tmp_path / "data", durability="process", run=False):
        assert warnings_of(caplog) == [], "an engine that only submits runs no task"
    with make(tmp_path / "data", durability="process") as engine:
        assert warnings_of(caplog) == [
            "1 ticket waits for 1 task that is not registered: old.resize (1). It is held, not "
            'lost. Import the module, or add aliases=["old.resize"] to its new name [PK-302]'
        ]
    caplog.clear()
    engine = make(tmp_path / "data", durability="process")
    engine.task(name="resize", aliases=["old.resize"])(lambda path: None)
    with engine:
        assert warnings_of(caplog) == []


def test_attempts_that_a_crash_cut_off_are_told_of(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.WARNING, "parkade.engine")
    gate, begun = threading.Event(), threading.Event()
    crashed = tmp_path / "crashed"
    with make(tmp_path / "data", durability="process") as engine:

        @engine.task(on_crash="ambiguous")
        def work() -> None:
            begun.set()
            assert gate.wait(PATIENCE_S)

        work.submit()
        assert begun.wait(PATIENCE_S)
        shutil.copytree(tmp_path / "data", crashed, ignore=shutil.ignore_patterns("control.sock"))
        gate.set()
    with make(crashed, durability="process"):
        assert warnings_of(caplog) == [
            f"1 attempt of {crashed} was cut off when the last process ended. Nobody knows what it "
            "did: its ticket is marked maybe_applied, and retried or dead as on_crash= and the "
            "retry policy say"
        ]


def test_the_document_of_errors_shows_the_warning_as_it_is() -> None:
    by_task = {"old.mail": {"scheduled": 4}, "old.resize": {"scheduled": 1_200, "done": 9}}
    counts = {**by_task, "gone": {"done": 5}, "dead": {"dead": 1}}
    text = unclaimed_text(stats_of(counts), make("never-made"))
    assert text is not None and re.search(rf"^{re.escape(text)}$", ERRORS.read_text("utf-8"), re.M)


def test_of_many_names_some_stand_for_all() -> None:
    counts = {f"t{n}": {"scheduled": n + 1} for n in range(8)}
    text = unclaimed_text(stats_of(counts), make("never-made"))
    assert text is not None and "t7 (8), t6 (7), t5 (6), t4 (5), t3 (4) and 3 more." in text


def stats_of(by_task: dict[str, dict[str, int]]) -> Stats:
    """Only `by_task` is looked at."""
    return Stats(0, 0, 0, 0, 0, timedelta(), by_task)  # type: ignore[arg-type]
