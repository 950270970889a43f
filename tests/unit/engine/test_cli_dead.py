"""`parkade dead`: beside a running engine, and where none runs."""

import json
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner, Result

from kit.engines import make
from parkade import Ambiguous, Engine, EngineInUse, TicketFailed
from parkade.cli import many
from parkade.cli.app import cli


def run(path: Path, *args: object, answers: str = "") -> Result:
    words = ["-d", str(path), "dead", *map(str, args)]
    return CliRunner().invoke(cli, words, input=answers, catch_exceptions=False)


def answer(path: Path, *args: object) -> Any:
    done = run(path, *args, "--json")
    assert done.exit_code == 0, done.output
    return json.loads(done.stdout)


def bury(engine: Engine) -> list[str]:
    """Three that died alike, and one that may have happened."""

    @engine.task(name="billing.charge", retry=None)
    def charge(order: int) -> str:
        if order == 4:
            raise Ambiguous("no answer to order 4")
        raise OSError(f"no route for order {order}")

    tickets = [charge.submit(order) for order in (1, 2, 3, 4)]
    for ticket in tickets:
        with pytest.raises(TicketFailed):
            ticket.result("20s")
    return [ticket.id for ticket in tickets]


@pytest.fixture
def left(tmp_path: Path) -> tuple[Path, list[str]]:
    """A directory without an engine, and its four dead tickets."""
    with make(tmp_path / "data", durability="process") as engine:
        ids = bury(engine)
    return tmp_path / "data", ids


def test_groups_are_told_by_their_shape_and_doubt_is_marked(left: tuple[Path, list[str]]) -> None:
    path, _ = left
    first, second = answer(path, "groups")["groups"]
    assert (first["count"], first["task"], first["error_type"]) == (3, "billing.charge", "OSError")
    lines = run(path, "groups").stdout.splitlines()
    assert len(lines) == 3
    assert "no route for order #" in lines[1] and first["key"] in lines[1]
    assert "may have happened: no answer to order #" in lines[2] and second["key"] in lines[2]
    assert len(run(path, "groups", "-n", 1, "--jsonl").stdout.splitlines()) == 1


def test_lists_go_by_group_reason_and_time(left: tuple[Path, list[str]]) -> None:
    path, ids = left

    def listed(*args: object) -> list[str]:
        return [item["id"] for item in answer(path, "ls", *args)["items"]]

    key = answer(path, "groups")["groups"][0]["key"]
    assert listed() == ids[::-1]
    assert listed("--group", key) == listed("-g", key[:6]) == ids[2::-1]
    assert listed("--reason", "ambiguous") == listed("--error-type", "Ambiguous") == ids[3:]
    assert listed("--since", "2100-01-01T00:00:00Z") == []
    assert listed("--until", "2100-01-01T00:00:00Z", "--task", "billing.charge") == ids[::-1]
    assert run(path, "ls", "--task", "x", "--fail-empty").exit_code == 3
    assert run(path, "ls", "--since", "soon").exit_code == 2
    assert run(path, "ls", "--since", "2100-01-01").exit_code != 0, "without a zone"
    text = run(path, "ls").stdout
    assert "ambiguous · may have happened" in text and all(each in text for each in ids)


@pytest.mark.parametrize("wrong", ["ffff", "x", "0" * 17])
def test_a_key_that_no_group_has_is_a_usage_error(left: tuple[Path, list[str]], wrong: str) -> None:
    assert run(left[0], "ls", "--group", wrong).exit_code == 2


def test_a_plan_says_what_would_be_done_and_changes_nothing(left: tuple[Path, list[str]]) -> None:
    path, _ = left
    done = run(path, "revive", "--task", "billing.charge", "--rate", "2/s", "--dry-run")
    assert done.exit_code == 0
    assert done.stdout == (
        "would revive 3, skip 1 (1 ambiguous), about 2 s at 2/s. Run again without --dry-run.\n"
    )
    assert answer(path, "drop", "-t", "billing.charge", "--dry-run")["changed"] == 4
    assert len(answer(path, "ls")["items"]) == 4


def test_a_change_of_many_needs_a_yes_and_where_no_engine_runs_opens_one(
    left: tuple[Path, list[str]], monkeypatch: pytest.MonkeyPatch
) -> None:
    path, ids = left
    refused = run(path, "revive", "--task", "billing.charge")
    assert (refused.exit_code, refused.stdout) == (7, "")
    assert "add --yes" in refused.stderr
    monkeypatch.setattr(many, "is_terminal", lambda: True)
    declined = run(path, "revive", "--task", "billing.charge", answers="n\n")
    assert declined.exit_code == 7 and "would revive 3, skip 1" in declined.stderr
    assert len(answer(path, "ls")["items"]) == 4
    done = run(path, "revive", "--task", "billing.charge", "--in", "1h", answers="y\n")
    assert (done.exit_code, done.stdout) == (0, "revived 3, skip 1 (1 ambiguous)\n")
    assert "--accept-ambiguous" in done.stderr
    assert [item["id"] for item in answer(path, "ls")["items"]] == ids[3:]
    assert run(path, "revive", ids[3]).exit_code == 1, "nothing was changed"
    assert answer(path, "revive", ids[3], "--accept-ambiguous", "--in", "1h")["changed"] == 1
    assert answer(path, "groups") == {"groups": []}
    assert run(path, "groups").stdout == "nothing is dead\n"


def test_one_ticket_is_dropped_without_asking(left: tuple[Path, list[str]]) -> None:
    path, ids = left
    assert run(path, "drop", ids[0]).stdout == "dropped 1\n"
    assert run(path, "drop", ids[0]).stdout == "dropped 0, skip 1 (1 unknown)\n"
    assert answer(path, "drop", ids[1], ids[2], "--yes")["changed"] == 2


def test_somebody_who_checked_says_so(left: tuple[Path, list[str]]) -> None:
    path, ids = left
    assert run(path, "resolve", ids[3]).exit_code == 2, "without a note"
    assert run(path, "resolve", ids[3], "--note", "x", "--result", "{").exit_code == 2
    done = run(path, "resolve", ids[3], "--result", '"ch-4"', "--note", "asked the bank")
    assert done.exit_code == 0 and "no code was there to check" in done.stdout
    shown = CliRunner().invoke(cli, ["-d", str(path), "show", ids[3]]).stdout
    assert "  resolved: asked the bank\n" in shown
    again = run(path, "resolve", ids[3], "--note", "x")
    assert again.exit_code == 1 and "[PK-407]" in again.stderr
    assert run(path, "resolve", "0" * 24, "--note", "x").exit_code == 3
    with make(path, durability="process", run=False) as engine:
        assert engine.ticket(ids[3]).result("20s") == "ch-4"
        assert "asked the bank" in engine.ticket(ids[3]).why().text


def test_a_running_engine_does_it_and_checks_the_result(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("parkade.dead_bulk.BULK_PAGE", 2)
    path = tmp_path / "data"
    with make(path, durability="process") as engine:
        ids = bury(engine)
        key = engine.dead.groups()[0].key
        assert answer(path, "groups")["groups"][0]["key"] == key
        bad = run(path, "resolve", ids[3], "--result", "7", "--note", "x")
        assert bad.exit_code == 2 and "[PK-202]" in bad.stderr
        good = run(path, "resolve", ids[3], "--result", '"ch-4"', "--note", "x")
        assert good.stdout == f"resolved {ids[3]}\n"
        facts = answer(path, "revive", "-g", key, "--yes", "--in", "1h", "--rate", "1/m")
        assert facts == {"matched": 3, "changed": 3, "skipped": {}}, "page by page"
        dues = [engine.ticket(each).info().due_at for each in ids[:3]]
        assert [(due - dues[0]).total_seconds() for due in dues] == [0, 60, 120]
        assert engine.dead.count() == 0


def test_what_cannot_be_meant_is_a_usage_error(left: tuple[Path, list[str]]) -> None:
    path, ids = left
    for args in (
        ("revive",),
        ("revive", ids[0], "--task", "x"),
        ("drop", "--task", "x", "--group", "0" * 16),
        ("revive", ids[0], "--rate", "fast"),
        ("revive", ids[0], "--rate", "0/s"),
        ("revive", ids[0], "--rate", "5/0s"),
    ):
        assert run(path, *args).exit_code == 2, args


def test_where_an_engine_has_the_directory_and_does_not_answer_nothing_is_done(
    tmp_path: Path,
) -> None:
    path = tmp_path / "data"
    with make(path, durability="process") as engine:
        ids = bury(engine)
        (path / "control.sock").unlink()
        done = run(path, "drop", ids[0])
        assert done.exit_code == 4 and EngineInUse.code in done.stderr
        assert engine.dead.count() == 4
    assert run(tmp_path / "none", "drop", ids[0]).exit_code == 3
    assert not (tmp_path / "none").exists()
