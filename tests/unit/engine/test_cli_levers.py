"""`parkade breaker` and `parkade limit`."""

import json
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner, Result

from kit.engines import make
from parkade import Breaker, Engine, Limit
from parkade.cli.app import cli


def run(path: Path, *args: object) -> Result:
    words = ["-d", str(path), *map(str, args)]
    return CliRunner().invoke(cli, words, catch_exceptions=False)


def answer(path: Path, *args: object) -> Any:
    return json.loads(run(path, *args, "--json").stdout)


def shop(path: Path) -> Engine:
    engine = make(path)

    @engine.task(target="psp", breaker=Breaker("psp"), limits=[Limit(concurrency=8, per="target")])
    def charge(n: int) -> None: ...

    return engine


def test_a_breaker_is_opened_and_closed_in_a_running_engine(tmp_path: Path) -> None:
    path = tmp_path / "data"
    with shop(path) as engine:
        assert run(path, "breaker", "ls").stdout == "no breaker is known\n"
        done = run(path, "breaker", "open", "psp", "--for", "1h", "--reason", "maintenance")
        assert (done.exit_code, done.stdout) == (0, "opened breaker psp\n")
        assert engine.breakers["psp"].state == "forced_open"
        ticket = engine.task_of("charge").submit(1)  # type: ignore[union-attr]
        assert "maintenance" in ticket.why().text
        text = run(path, "breaker", "ls").stdout
        assert text.startswith("psp FORCED OPEN since") and "(maintenance), probe in" in text
        assert run(path, "breaker", "close", "psp").stdout == "closed breaker psp\n"
        again = run(path, "breaker", "close", "psp")
        assert (again.exit_code, again.stdout) == (0, "breaker psp was not open\n")
        ticket.result("20s")
        assert run(path, "breaker", "ls").stdout == "psp closed\n"
        assert answer(path, "breaker", "ls")["breakers"] == [{"name": "psp", "state": "closed"}]


def test_a_breaker_is_turned_without_an_engine_and_stays_so(tmp_path: Path) -> None:
    path = tmp_path / "data"
    with shop(path):
        pass
    assert run(path, "breaker", "open", "psp").exit_code == 0
    assert [one["state"] for one in answer(path, "breaker", "ls")["breakers"]] == ["forced_open"]
    with shop(path) as engine:
        assert engine.breakers["psp"].state == "forced_open"
    assert run(path, "breaker", "close", "psp").exit_code == 0
    assert run(path, "breaker", "ls").stdout == "no breaker is open\n"


def test_a_limit_is_set_and_taken_back(tmp_path: Path) -> None:
    path = tmp_path / "data"
    with shop(path) as engine:
        assert [one["concurrency"] for one in answer(path, "limit", "ls")["limits"]] == [8]
        done = run(path, "limit", "set", "target:psp", "--concurrency", 2, "--rate", "50/1m")
        assert (done.exit_code, done.stdout) == (0, "set target:psp\n")
        (limit,) = engine.limits.list()
        assert (limit.concurrency, limit.rate, limit.is_overridden) == (2, (50, 60_000), True)
        row = run(path, "limit", "ls").stdout.splitlines()[1]
        assert row.split() == [
            "target:psp",
            "0",
            "2",
            "50",
            "in",
            "1",
            "min",
            "by",
            "an",
            "operator",
        ]
    with shop(path) as engine:
        assert [one.concurrency for one in engine.limits.list()] == [2]
        assert run(path, "limit", "reset", "target:psp").exit_code == 0
        assert [one.concurrency for one in engine.limits.list()] == [8]


@pytest.mark.parametrize(
    "words", [("limit", "ls"), ("limit", "set", "task:a", "--concurrency", "1")], ids=lambda w: w[1]
)
def test_limits_need_the_engine_whose_code_has_them(tmp_path: Path, words: tuple[str, ...]) -> None:
    path = tmp_path / "data"
    with shop(path):
        pass
    done = run(path, *words)
    assert done.exit_code == 7
    assert "no engine runs on" in done.stderr


@pytest.mark.parametrize(
    "words",
    [
        ("limit", "set", "target:psp"),
        ("limit", "set", "psp", "--concurrency", "1"),
        ("limit", "set", "target:psp", "--rate", "fast"),
        ("limit", "set", "target:psp", "--concurrency", "0"),
        ("breaker", "open", ""),
        ("breaker", "open", "psp", "--for", "soon"),
    ],
)
def test_what_cannot_be_meant_is_a_usage_error(tmp_path: Path, words: tuple[str, ...]) -> None:
    path = tmp_path / "data"
    with shop(path) as engine:
        assert run(path, *words).exit_code == 2
        assert [one.concurrency for one in engine.limits.list()] == [8]
