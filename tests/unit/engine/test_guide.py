"""The program that docs/guide.md tells in pieces, run as it stands there."""

import re
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from parkade import open_readonly
from parkade.testing import TestEngine

GUIDE = (Path(__file__).parents[3] / "docs" / "guide.md").read_text("utf-8")
README = (Path(__file__).parents[3] / "README.md").read_text("utf-8")
BLOCK = re.compile(r"^```python\n(.*?)^```", re.MULTILINE | re.DOTALL)


def run(blocks: list[str], name: str) -> dict[str, Any]:
    names: dict[str, Any] = {"__name__": "example"}
    exec(compile("\n".join(blocks), name, "exec"), names)
    return names


def test_the_program_of_the_guide_runs_from_top_to_bottom(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    run(BLOCK.findall(GUIDE), "guide.md")
    said = capsys.readouterr().out
    assert "paid 950 as pk-" in said
    assert "failed Fail\n" in said
    assert "changed=1" in said
    assert "['hello cem', 'hello dora']" in said
    with open_readonly("shop-data") as reader:
        stats = reader.stats()
    # the last one waits for its limit's next permit, which may come after the program's end
    by_task = dict(stats.by_task)
    captured = by_task.pop("capture")
    assert sum(captured.values()) == 1
    assert sum(task.get("done", 0) for task in by_task.values()) == 1_012
    assert (stats.scheduled, stats.dead) == (101, 0)


def test_the_first_program_of_the_readme_runs(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    run(BLOCK.findall(README)[:1], "README.md")
    assert capsys.readouterr().out == "cat.png@320\n"


class Bank:
    """It answers each order in another way."""

    def charge(self, order: int) -> SimpleNamespace | None:
        if order == 1:
            return None
        return SimpleNamespace(is_busy=order == 2, is_declined=order == 3, reference="ch-7")


def test_the_handler_of_the_readme_fails_in_its_three_ways(parkade_engine: TestEngine) -> None:
    names = run(BLOCK.findall(README)[1:2], "README.md")
    names["bank"] = Bank()
    charge = parkade_engine.task(retry=2)(names["charge"])
    tickets = [charge.submit(order) for order in range(4)]
    report = parkade_engine.run_until_idle()
    assert (report.done, report.retried, report.dead) == (1, 1, 2)
    assert tickets[0].result() == "ch-7"
    assert [ticket.info().dead_reason for ticket in tickets] == [None, "ambiguous", None, "failed"]
