"""The command line, asked of files and of a running engine."""

import dataclasses
import json
import os
import shutil
import subprocess
import sys
import threading
from pathlib import Path
from typing import Annotated, Any

import pytest
from click.testing import CliRunner, Result

from kit.engines import Gate
from kit.owners import OwnerProcess
from parkade import Ambiguous, Engine, ResultTimeout, Secret, TicketFailed
from parkade.cli import exits, source
from parkade.cli.app import cli
from parkade.control import ControlServer
from parkade.store.disk import RealDisk
from parkade.store.lock import read_owner
from parkade.store.manifest import FORMAT, Manifest


def run(*args: object, **variables: str) -> Result:
    """The command in this process; what it raises beyond its own exits comes out."""
    return CliRunner().invoke(
        cli, [str(arg) for arg in args], env=variables, catch_exceptions=False
    )


def answer(*args: object) -> Any:
    done = run(*args, "--json")
    assert done.exit_code == 0, done.output
    return json.loads(done.stdout)


@pytest.fixture(scope="module")
def template(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, list[str], str]:
    """A directory that an engine left: 12 sleepers, and a ticket that died."""
    path = tmp_path_factory.mktemp("template") / "data"
    with OwnerProcess(path) as owner:
        sleepers = owner.submit("note", 12, "3d")
        (dead,) = owner.submit("break", 1, "0s")
        owner.stop()
    return path, sleepers, dead


@pytest.fixture
def left(template: tuple[Path, list[str], str], tmp_path: Path) -> Path:
    """A copy of it, to be damaged."""
    shutil.copytree(template[0], tmp_path / "data")
    return tmp_path / "data"


# ------------------------------------------------------------------------------------- files


def test_status_counts_states_and_says_that_no_engine_answers(
    template: tuple[Path, list[str], str],
) -> None:
    done = run("-d", template[0], "status")
    assert done.exit_code == 0
    assert "no engine answers" in done.stdout
    words = [line.split() for line in done.stdout.splitlines()]
    assert ["scheduled", "12"] in words and ["note", "12", "0", "0", "0"] in words
    assert ["break_down", "0", "0", "0", "1"] in words
    facts = answer("-d", template[0], "status")
    assert facts["states"] == {
        "ready": 0, "scheduled": 12, "running": 0, "done": 0, "dead": 1, "cancelled": 0,
        "expired": 0,
    }  # fmt: skip
    assert facts["owner"] is None and facts["shards"] == 2


def test_ls_lists_newest_first_and_goes_on_at_its_cursor(
    template: tuple[Path, list[str], str],
) -> None:
    path, sleepers, dead = template
    page = answer("-d", path, "ls", "-n", 5)
    rest = answer("-d", path, "ls", "--cursor", page["next"])
    ids = [item["id"] for item in page["items"] + rest["items"]]
    assert ids == sorted([*sleepers, dead], reverse=True)
    lines = run("-d", path, "ls", "--state", "dead", "--jsonl").stdout.splitlines()
    assert [json.loads(line)["id"] for line in lines] == [dead]


def test_a_table_for_people_holds_whole_ids_and_errors(
    template: tuple[Path, list[str], str],
) -> None:
    path, _, dead = template
    (head, row) = run("-d", path, "ls", "--state", "dead").stdout.splitlines()
    assert head.split() == ["id", "task", "state", "when", "attempts", "key", "note"]
    assert row.startswith(dead) and "exhausted · ValueError: number 0" in row


def test_ls_of_nothing_is_no_error_unless_asked_to_be(
    template: tuple[Path, list[str], str],
) -> None:
    done = run("-d", template[0], "ls", "--task", "nobody")
    assert (done.exit_code, done.stdout) == (0, "no tickets\n")
    assert run("-d", template[0], "ls", "--task", "nobody", "--fail-empty").exit_code == 3


def test_show_tells_payload_attempts_and_traceback(
    template: tuple[Path, list[str], str],
) -> None:
    path, sleepers, dead = template
    facts = answer("-d", path, "show", dead)
    assert facts["content"] == {"number": 0} and facts["content_is"] == "payload"
    assert [one["error"] for one in facts["attempts"]] == ["number 0"]
    shown = run("-d", path, "show", dead).stdout
    assert 'payload  {"number":0}' in shown
    assert "ValueError: number 0" in shown and "Traceback" in shown
    assert "attempts" in answer("-d", path, "show", sleepers[3])


def test_verify_finds_a_sound_directory_sound(template: tuple[Path, list[str], str]) -> None:
    done = run("-d", template[0], "verify", "--deep")
    assert done.exit_code == 0
    assert [line.split()[0] for line in done.stdout.splitlines()] == ["house", "shard", "shard"]
    facts = answer("-d", template[0], "verify")
    assert facts["sound"] and sum(part["tickets"] for part in facts["parts"]) == 13


def test_verify_names_the_row_that_is_damaged_and_changes_nothing(
    template: tuple[Path, list[str], str], left: Path
) -> None:
    head = next((left / "shard-000" / "store").glob("data.mdb"))
    content = head.read_bytes()
    place = content.index(b"\xa4note")
    head.write_bytes(content[:place] + b"\xa4nope" + content[place + 5 :])
    damaged = head.read_bytes()
    done = run("-d", left, "verify", "--deep", "--jsonl")
    assert done.exit_code == 1
    parts = {part["part"]: part for part in map(json.loads, done.stdout.splitlines())}
    assert parts["shard 01"]["sound"] and parts["house"]["sound"]
    assert any("checksum" in problem["text"] for problem in parts["shard 00"]["problems"])
    assert head.read_bytes() == damaged
    for_people = run("-d", left, "verify", "--deep")
    assert for_people.exit_code == 1
    assert "DAMAGED" in for_people.stdout and "nothing was changed" in for_people.stdout


def test_a_shard_that_cannot_be_read_is_shown_and_decides_the_exit_code(left: Path) -> None:
    shutil.rmtree(left / "shard-001" / "journal")
    done = run("-d", left, "status")
    assert done.exit_code == 5
    assert "shard 01 REFUSED" in done.stdout
    assert run("-d", left, "ls").exit_code == 5
    verified = run("-d", left, "verify")
    assert verified.exit_code == 1
    assert "journal is missing" in verified.stdout


# ----------------------------------------------------------------------------------- hostile


@pytest.mark.parametrize(
    "ticket_id", ["", "x", "0" * 24, "Z" * 24, "--", "../../etc", "🅿" * 24, "a" * 5_000]
)
def test_an_id_that_is_none_is_not_found(
    template: tuple[Path, list[str], str], ticket_id: str
) -> None:
    done = run("-d", template[0], "show", "--", ticket_id)
    assert done.exit_code == 3
    assert done.stdout == "" and "[PK-406]" in done.stderr


@pytest.mark.parametrize(
    "args",
    [
        ("ls", "--cursor", "no number"),
        ("ls", "-n", "0"),
        ("ls", "-n", "100000000"),
        ("ls", "--state", "asleep"),
        ("ls", "--json", "--jsonl"),
        ("show",),
        ("launch",),
        ("status", "--depth"),
    ],
)
def test_what_cannot_be_asked_is_a_usage_error(
    template: tuple[Path, list[str], str], args: tuple[str, ...]
) -> None:
    done = run("-d", template[0], *args)
    assert done.exit_code == 2
    assert done.stdout == "" and done.stderr


@pytest.mark.parametrize("command", ["status", "ls", "verify"])
def test_where_there_is_no_directory_of_ours_the_place_is_named(
    tmp_path: Path, command: str
) -> None:
    (tmp_path / "foreign").mkdir()
    (tmp_path / "foreign" / "letter.txt").write_text("dear")
    (tmp_path / "file").write_text("")
    for name in ("foreign", "file", "missing", "missing/below", "line\nbreak"):
        done = run("-d", tmp_path / name, command)
        assert done.exit_code == 3
        assert "[PK-111]" in done.stderr and not done.stdout
    assert sorted(path.name for path in tmp_path.iterdir()) == ["file", "foreign"]


@pytest.mark.parametrize(
    "content", [b"", b"{}", b"\xff\x00", b'{"format": 1, "shards": 2}', b"[1]"]
)
def test_a_damaged_manifest_is_damage_for_every_command(left: Path, content: bytes) -> None:
    (left / "manifest.json").write_bytes(content)
    for command in ("status", "ls", "verify"):
        done = run("-d", left, command)
        assert done.exit_code == 5
        assert "[PK-105]" in done.stderr and "manifest.json" in done.stderr


def test_what_a_newer_version_wrote_has_an_exit_code_of_its_own(left: Path) -> None:
    known = Manifest.decode((left / "manifest.json").read_bytes(), "")
    later = dataclasses.replace(known, format=FORMAT + 1, created_by="9.9")
    (left / "manifest.json").write_bytes(later.encode())
    for command in ("status", "ls", "verify"):
        done = run("-d", left, command)
        assert done.exit_code == 8
        assert "Upgrade" in done.stderr and "[PK-104]" in done.stderr


def test_a_socket_that_nobody_listens_at_is_passed_by(left: Path) -> None:
    import socket

    with socket.socket(socket.AF_UNIX) as gone:
        gone.bind(str(left / "control.sock"))
    assert run("-d", left, "status").exit_code == 0
    (left / "control.sock").unlink()
    (left / "control.sock").write_text("no socket at all")
    assert run("-d", left, "status").exit_code == 0


def test_a_look_at_an_engine_that_hangs_says_who_it_is_and_reads_the_files(
    left: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(source, "LOOK_MS_MAX", 20)
    monkeypatch.setattr(source, "CHANGE_MS_MAX", 20)
    monkeypatch.setattr("parkade.cli.tail.LOOK_MS_MAX", 20)
    owner = read_owner(RealDisk(), str(left))
    assert owner is not None
    go_on, names = threading.Event(), ("status", "ls", "cancel", "tail")
    handlers = dict.fromkeys(names, lambda _: go_on.wait(10))
    with ControlServer(left / "control.sock", handlers):
        looked = run("-d", left, "ls", "--json")
        assert (looked.exit_code, len(json.loads(looked.stdout)["items"])) == (0, 13)
        assert f"pid {owner.pid} (" in looked.stderr
        assert "has not answered within 0.02 s: what follows is read" in looked.stderr
        for words in (("cancel", "0" * 24), ("submit", "t"), ("tail",)):
            asked_in_vain = run("-d", left, *words)
            assert asked_in_vain.exit_code == exits.TIMED_OUT
            assert f"pid {owner.pid} (" in asked_in_vain.stderr
            assert ("nothing was changed" in asked_in_vain.stderr) == (words[0] == "submit")
        go_on.set()


def test_text_of_tickets_cannot_command_a_terminal(tmp_path: Path) -> None:
    path = tmp_path / "data"
    engine = Engine(path, shards=1, run=False)
    task = engine.task(name="note")(lambda: None)
    evil = "\x1b[2J\x1b]0;owned\x07\r\n\u202egnp"
    with engine:
        ticket = task.options(key=evil, summary=evil, tags={"who": evil}).submit()
        for args in (("ls",), ("show", ticket.id)):
            shown = run("-d", path, *args).stdout
            assert "\\x1b" in shown
            assert not any(char in shown for char in "\x1b\x07\r\u202e")
        assert answer("-d", path, "ls", "--key", evil)["items"][0]["key"] == evil


# -------------------------------------------------------------------------------- an engine


def test_a_running_engine_answers_what_its_files_would(tmp_path: Path) -> None:
    path = tmp_path / "data"
    with OwnerProcess(path) as owner:
        owner.submit("note", 5, "3d")
        (done_id,) = owner.submit("note", 1, "0s")
        live, listed = answer("-d", path, "status"), answer("-d", path, "ls", "-n", 3)
        shown = answer("-d", path, "show", done_id)
        assert live["owner"]["pid"] == owner.pid
        assert f"owned by pid {owner.pid}" in run("-d", path, "status").stdout
        assert run("-d", path, "verify", "--deep").exit_code == 0
        owner.stop()
    cold = answer("-d", path, "status")
    assert cold["states"] == live["states"] and cold["tasks"] == live["tasks"]
    # How many attempts a task allows is known to the code alone.
    again, shown_again = answer("-d", path, "ls", "-n", 3), answer("-d", path, "show", done_id)
    for item in (*listed["items"], *again["items"], shown["ticket"], shown_again["ticket"]):
        del item["as_of"], item["max_attempts"]
    assert again["items"] == listed["items"]
    assert shown_again == shown
    assert shown["content_is"] == "result" and shown["content"] == 0


def test_an_engine_puts_dots_in_place_of_secrets(tmp_path: Path) -> None:
    path = tmp_path / "data"
    engine = Engine(path, shards=1, run=False)

    @engine.task
    def log_in(user: str, password: Annotated[str, Secret]) -> None: ...

    with engine:
        ticket = log_in.submit("ann", "hunter2")
        done = run("-d", path, "show", ticket.id)
        assert "ann" in done.stdout and "•••" in done.stdout
        assert "hunter2" not in done.stdout
        assert answer("-d", path, "show", ticket.id)["content"]["password"] == "•••"


def test_what_may_have_happened_is_said_in_lists_and_by_show(tmp_path: Path) -> None:
    path = tmp_path / "data"
    engine = Engine(path, shards=1)

    @engine.task
    def wire() -> None:
        raise Ambiguous("no answer after the order was sent")

    with engine:
        ticket = wire.submit()
        with pytest.raises(TicketFailed):
            ticket.result(timeout="20s")
        assert "ambiguous · may have happened" in run("-d", path, "ls").stdout
        assert "may have happened" in run("-d", path, "show", ticket.id).stdout


def test_show_says_what_holds_a_ready_ticket(tmp_path: Path) -> None:
    path = tmp_path / "data"
    engine = Engine(path, shards=1)
    gate = Gate()

    @engine.task(key="one")
    def work() -> None:
        gate.enter()

    with engine:
        first, second = work.submit(), work.submit()
        gate.wait()
        assert answer("-d", path, "show", first.id)["held"] is None
        assert f"held: ticket {first.id} has its key" in run("-d", path, "show", second.id).stdout
        gate.open()
        second.result("20s")
        assert answer("-d", path, "show", second.id)["held"] is None


def test_a_ready_ticket_without_a_handler_says_so(tmp_path: Path) -> None:
    path = tmp_path / "data"
    first = Engine(path, shards=1, run=False)

    @first.task
    def old() -> None: ...

    with first:
        ticket = old.submit()
        with pytest.raises(ResultTimeout, match="ready, held: this engine was opened with run=F"):
            ticket.result(timeout="1ms")
    with Engine(path, shards=1) as engine:
        assert 'held: no task "old" is registered' in run("-d", path, "show", ticket.id).stdout
        with pytest.raises(ResultTimeout, match='It is ready, held: no task "old" is registered'):
            engine.ticket(ticket.id).result(timeout="1ms")


def test_an_error_of_the_engine_keeps_its_code_and_exit(tmp_path: Path) -> None:
    path = tmp_path / "data"
    with Engine(path, shards=1, run=False):
        unknown = run("-d", path, "show", "0" * 24)
        assert (unknown.exit_code, unknown.stdout) == (3, "")
        assert unknown.stderr.startswith("parkade: No ticket")
        assert run("-d", path, "ls", "--cursor", "?").exit_code == 2


# ------------------------------------------------------------------------------ as a program


def test_the_directory_comes_from_the_option_then_the_variable_then_the_default(
    template: tuple[Path, list[str], str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    shutil.copytree(template[0], tmp_path / "parkade-data")
    assert run("status").exit_code == 0
    assert run("status", PARKADE_DIR=str(tmp_path / "missing")).exit_code == 3
    done = run("-d", template[0], "ls", PARKADE_DIR="missing", PARKADE_LS_LIMIT="2")
    assert done.exit_code == 0
    assert len(done.stdout.splitlines()) == 5


def test_the_installed_program_answers_and_exits_as_its_group_does(
    template: tuple[Path, list[str], str],
) -> None:
    def program(*args: str) -> "subprocess.CompletedProcess[str]":
        return subprocess.run(
            [sys.executable, "-P", "-c", "from parkade.cli import main; main()", *args],
            capture_output=True,
            text=True,
            env=os.environ | {"PARKADE_DIR": str(template[0]), "NO_COLOR": "1"},
        )

    done = program("status")
    assert (done.returncode, done.stderr) == (0, "")
    assert "\x1b" not in done.stdout
    assert program("show", "x").returncode == 3
