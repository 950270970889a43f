"""Commands that change tickets: through the engine that runs, or in a directory that nobody has."""

import json
import threading
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner, Result

from kit.engines import PATIENCE_S, make
from parkade import Engine, changing
from parkade.cli import many
from parkade.cli.app import cli


def run(path: Path, *args: object, answers: str = "") -> Result:
    words = ["-d", str(path), *map(str, args)]
    return CliRunner().invoke(cli, words, input=answers, catch_exceptions=False)


def answer(path: Path, *args: object) -> Any:
    done = run(path, *args, "--json")
    assert done.exit_code == 0, done.output
    return json.loads(done.stdout)


def fill(engine: Engine) -> list[str]:
    """Six sleepers: of two tasks, with a tag that is indexed."""
    a = engine.task(name="a", tags={"campaign": "may"}, target="psp")(lambda n: n)
    b = engine.task(name="b")(lambda n: n)
    calls = [a.options(delay="1d", key="k").call(n) for n in range(4)]
    calls += [b.options(delay="2d").call(n) for n in range(2)]
    return [ticket.id for ticket in engine.submit_many(calls)]


@pytest.fixture(params=["running", "left"])
def place(tmp_path: Path, request: pytest.FixtureRequest) -> Any:
    """A directory with an engine that answers, and one without; and its tickets."""
    path = tmp_path / "data"
    engine = make(path, durability="process", run=False, index_tags=("campaign",))
    with engine:
        ids = fill(engine)
        if request.param == "running":
            yield path, ids
            return
    yield path, ids


def state_of(path: Path, ticket_id: str) -> Any:
    return answer(path, "show", ticket_id)["ticket"]["state"]


def test_ls_narrows_by_target_tag_and_due(place: tuple[Path, list[str]]) -> None:
    path, ids = place

    def listed(*args: object) -> list[str]:
        return [item["id"] for item in answer(path, "ls", *args)["items"]]

    assert listed("--target", "psp") == listed("--tag", "campaign=may") == ids[:4][::-1]
    assert listed("--tag", "campaign=june") == listed("--target", "bank") == []
    due = answer(path, "show", ids[5])["ticket"]["due_at"]
    assert listed("--due-before", due) == ids[:4][::-1]
    assert listed("--due-before", "9000-01-01T00:00:00+00:00", "--task", "b") == ids[4:][::-1]
    assert run(path, "ls", "--tag", "campaign").exit_code == 2
    for words in (("ls",), ("cancel", "--dry-run"), ("cancel", "--yes")):
        unknown = run(path, *words, "--tag", "campain=may")
        assert unknown.exit_code == 2, words
        assert 'Engine(index_tags=("campain",))' in unknown.stderr and "PK-107" in unknown.stderr
    bad = run(path, "ls", "--due-before", "soon")
    assert bad.exit_code == 2 and "ISO 8601" in bad.stderr
    bad = run(path, "ls", "--due-before", "2030-01-01")
    assert bad.exit_code == 2 and "no time zone. Add it, like 2030-01-01T00:00+" in bad.stderr


def test_tickets_are_cancelled_by_their_ids(place: tuple[Path, list[str]]) -> None:
    path, ids = place
    done = run(path, "cancel", ids[0], "--reason", "typo")
    assert (done.exit_code, done.stdout) == (0, f"{ids[0]}  cancelled\n")
    assert "  cancelled: typo\n" in run(path, "show", ids[0]).stdout
    refused = run(path, "cancel", ids[1], ids[2])
    assert refused.exit_code == 7 and "--yes" in refused.stderr
    assert answer(path, "cancel", ids[1], ids[2], "--dry-run")["states"] == {
        ids[1]: "scheduled", ids[2]: "scheduled",
    }  # fmt: skip
    assert state_of(path, ids[1]) == "scheduled"
    late = run(path, "cancel", ids[0], ids[1], "--yes", "--json")
    assert late.exit_code == 1
    assert json.loads(late.stdout)["outcomes"] == {ids[0]: "too_late", ids[1]: "cancelled"}
    unknown = run(path, "cancel", "nobody")
    assert unknown.exit_code == 3 and "no such ticket" in unknown.stdout


def test_many_are_cancelled_by_what_they_have_in_common(
    place: tuple[Path, list[str]], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("parkade.cancelling.PAGE", 1)
    monkeypatch.setattr(changing, "ROUNDS", 1)
    path, ids = place
    plan = {"matched": 4, "changed": 4, "skipped": {}}
    assert answer(path, "cancel", "--tag", "campaign=may", "--dry-run") == plan
    refused = run(path, "cancel", "--tag", "campaign=may")
    assert refused.exit_code == 7 and "more than one ticket" in refused.stderr
    assert state_of(path, ids[0]) == "scheduled"
    monkeypatch.setattr(many, "is_terminal", lambda: True)
    asked = run(path, "cancel", "--tag", "campaign=may", answers="n\n")
    assert asked.exit_code == 7 and "would cancel 4" in asked.stderr
    asked = run(path, "cancel", "--tag", "campaign=may", answers="y\n")
    assert asked.exit_code == 0 and asked.stdout == "cancelled 4\n"
    assert state_of(path, ids[0]) == "cancelled"
    assert answer(path, "cancel", "--task", "b", "--yes")["changed"] == 2
    assert answer(path, "cancel", "--key", "k", "--yes")["matched"] == 0


def test_what_to_cancel_is_said_in_one_way(place: tuple[Path, list[str]]) -> None:
    path, ids = place
    assert run(path, "cancel").exit_code == 2
    assert run(path, "cancel", ids[0], "--task", "a").exit_code == 2
    assert run(path, "cancel", "--tag", "campaign").exit_code == 2


def test_a_ticket_is_moved_and_one_that_has_ended_is_not(place: tuple[Path, list[str]]) -> None:
    path, ids = place
    assert "due in 3 h" in run(path, "reschedule", ids[0], "--in", "3h1m").stdout
    at = "2100-01-01T00:00:00+00:00"
    moved = answer(path, "reschedule", ids[0], "--at", at)
    assert moved["is_changed"] and moved["ticket"]["due_at"].startswith("2100-01-01T00:00:00")
    assert answer(path, "run-now", ids[0])["ticket"]["state"] == "ready"
    assert run(path, "reschedule", ids[0]).exit_code == 2
    assert run(path, "reschedule", ids[0], "--in", "1h", "--at", at).exit_code == 2
    bad = run(path, "reschedule", ids[0], "--in", "soon")
    assert bad.exit_code == 2 and "--in='soon'" in bad.stderr
    assert run(path, "run-now", "0" * 24).exit_code == 3
    run(path, "cancel", ids[0])
    late = run(path, "run-now", ids[0])
    assert late.exit_code == 1 and "is cancelled" in late.stdout


def test_who_pauses_a_task_that_has_no_ticket_is_told(place: tuple[Path, list[str]]) -> None:
    path, _ = place
    paused = run(path, "pause", "--task", "aa")
    assert (paused.exit_code, paused.stdout) == (0, "paused task aa\n")
    assert "nobody knows a task of this name" in paused.stderr


def test_a_task_is_paused_and_resumed(place: tuple[Path, list[str]]) -> None:
    path, _ = place
    paused = run(path, "pause", "--task", "a", "--reason", "wrong prices")
    assert (paused.exit_code, paused.stdout, paused.stderr) == (0, "paused task a\n", "")
    assert run(path, "resume", "--task", "a").stdout == "resumed task a\n"
    again = run(path, "resume", "--task", "a")
    assert (again.exit_code, again.stdout) == (0, "task a was not paused\n")
    assert run(path, "pause", "--target", "psp", "--until", "2100-01-01T00:00:00Z").exit_code == 0
    assert run(path, "pause").exit_code == 2
    assert run(path, "resume", "--task", "a", "--target", "psp").exit_code == 2


def test_a_running_engine_takes_submits_and_its_results_are_printed(tmp_path: Path) -> None:
    path = tmp_path / "data"
    gate = threading.Event()
    with make(path, durability="process") as engine:

        @engine.task(name="double", retry=None)
        def double(number: int, times: int = 1) -> dict[str, int]:
            if number < 0:
                raise ValueError("below zero")
            if number == 7:
                assert gate.wait(PATIENCE_S)
            return {"is": 2 * number * times}

        done = run(path, "submit", "double", '{"number": 4, "times": 3}', "--wait", "20s")
        assert (done.exit_code, json.loads(done.stdout)) == (0, {"is": 24})
        failed = run(path, "submit", "double", '{"number": -1}', "--wait", "20s")
        assert failed.exit_code == 1 and "below zero" in failed.stderr
        slow = run(path, "submit", "double", '{"number": 7}', "--wait", "50ms")
        assert slow.exit_code == 6 and "no result in time" in slow.stderr
        gate.set()
        asleep = answer(path, "submit", "double", '{"number": 1}', "--in", "1h", "--unique", "one")
        again = run(path, "submit", "double", '{"number": 1}', "--unique", "one")
        assert again.stdout == f"{asleep['id']}  was there already\n"
        assert state_of(path, asleep["id"]) == "scheduled"
        for args, code in (
            (["duble", '{"number": 1}'], 3),
            (["double", '{"number": "four"}'], 2),
            (["double", "{number}"], 2),
            (["double", "[1]"], 2),
            (["double", '{"number": 1}', "--in", "1h", "--at", "2100-01-01T00:00:00Z"], 2),
            (["double", '{"number": 1}', "--at", "2100-01-01"], 2),
        ):
            bad = run(path, "submit", *args)
            assert bad.exit_code == code, (args, bad.output)


def test_without_an_engine_there_is_nobody_who_knows_the_tasks(tmp_path: Path) -> None:
    with make(tmp_path / "data", run=False) as engine:
        fill(engine)
    refused = run(tmp_path / "data", "submit", "a", "{}")
    assert refused.exit_code == 7 and "no engine runs" in refused.stderr
    assert run(tmp_path / "nothing", "cancel", "0" * 24).exit_code == 3
    assert not (tmp_path / "nothing").exists()


def test_the_directory_behind_the_command_is_told_where_it_stands(tmp_path: Path) -> None:
    asked = CliRunner().invoke(cli, ["dead", "ls", "--dir", str(tmp_path)], prog_name="parkade")
    assert asked.exit_code == 2
    assert "--dir stands before the command: parkade --dir DIR dead ls" in asked.stderr
