"""`parkade tail` and `parkade run`: an engine followed, and an engine in the foreground."""

import json
import os
import signal
import subprocess
import sys
import threading
from pathlib import Path

import pytest
from click.testing import CliRunner, Result

from kit.engines import PATIENCE_S, make
from parkade import ConfigError, Engine, Fail
from parkade.cli.app import cli
from parkade.cli.run import load_engine
from parkade.event_facts import tail_facts

APPLICATION = """
from parkade import Engine

engine = Engine("data", shards=1)
other = "no engine"


@engine.task
def note(n: int) -> int:
    print("note", n, flush=True)
    return n
"""


def run(*args: object) -> Result:
    return CliRunner().invoke(cli, [str(arg) for arg in args], catch_exceptions=False)


def lived(path: Path) -> Engine:
    """An engine that is open, with two tickets that have ended."""
    engine = make(path).start()

    @engine.task
    def note(n: int) -> int:
        if n:
            raise Fail("gone\x1b[2J")
        return n

    note.submit(0).result("20s")
    *_, end = note.submit(1).watch("20s")
    assert end.kind == "dead"
    return engine


def follow(engine: Engine, *args: object) -> Result:
    """What `tail` shows of an engine until that stops."""
    done: list[Result] = []
    asked = threading.Semaphore(0)
    desk = engine.desk("test")
    server = vars(desk)["_server"]
    handlers = vars(server)["_handlers"]

    def answer(args: dict[str, object]) -> object:
        facts = handlers["tail"](args)
        asked.release()
        return facts

    vars(server)["_handlers"] = {**handlers, "tail": answer}
    following = threading.Thread(target=lambda: done.append(run("-d", engine.path, "tail", *args)))
    following.start()
    # When it asks for the third time, it has shown what was there at the first.
    for _ in range(3):
        assert asked.acquire(timeout=PATIENCE_S)
    engine.stop()
    following.join(PATIENCE_S)
    return done[0]


def test_tail_follows_an_engine_until_it_stops(tmp_path: Path) -> None:
    done = follow(lived(tmp_path / "data"), "--since", 0, "--kind", "dead,done")
    assert done.exit_code == 0, done.output
    first, second = done.stdout.splitlines()
    assert " done " in first and "attempt=1" in first
    assert " dead " in second and "reason=failed" in second and "\\x1b[2J" in second
    assert "\x1b" not in done.stdout
    assert "the engine has stopped" in done.stderr


def test_tail_gives_a_document_for_each_event_where_machines_read(tmp_path: Path) -> None:
    done = follow(lived(tmp_path / "data"), "--since", 2, "--task", "note", "--jsonl")
    events = [json.loads(line) for line in done.stdout.splitlines()]
    assert [event["seq"] for event in events] == [3, 4, 5, 6]
    assert {event["task"] for event in events} == {"note"}
    assert events[-1]["data"]["reason"] == "failed"


def test_tail_begins_with_what_comes_and_ends_at_once_where_no_engine_is(tmp_path: Path) -> None:
    engine = lived(tmp_path / "data")
    assert follow(engine).stdout == ""
    done = run("-d", tmp_path / "data", "tail")
    assert (done.exit_code, done.stdout) == (4, "")
    assert "No engine answers" in done.stderr and "start it" in done.stderr


def test_tail_refuses_a_kind_that_does_not_exist(tmp_path: Path) -> None:
    engine = lived(tmp_path / "data")
    done = run("-d", tmp_path / "data", "tail", "--kind", "deed")
    assert done.exit_code == 2
    assert '"dead"' in done.stderr
    engine.stop()


def test_a_page_of_events_goes_on_where_the_one_before_ended(tmp_path: Path) -> None:
    with make(tmp_path / "data") as engine:
        task = engine.task(name="note")(lambda n: n)
        engine.submit_many([task.options(delay="1h").call(n) for n in range(2_300)])
        since, seen = 0, list[int]()
        while True:
            page = tail_facts(engine, {"since": since, "kinds": ["submitted"]})
            if not page["events"]:
                break
            seen += [event["seq"] for event in page["events"]]
            since = page["next"]
        assert seen == list(range(1, 2_301))
        assert tail_facts(engine, {})["next"] == 2_300
        page = tail_facts(engine, {"since": 0, "kinds": ["dead"]})
        assert (page["events"], page["next"]) == ([], 2_300)


@pytest.fixture
def application(tmp_path: Path) -> Path:
    (tmp_path / "jobs_of_a_test.py").write_text(APPLICATION)
    return tmp_path


def test_run_serves_an_application_s_engine_until_a_signal(application: Path) -> None:
    program = "from parkade.cli import main; main()"
    with subprocess.Popen(
        [sys.executable, "-c", program, "run", "jobs_of_a_test:engine"],
        cwd=application,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    ) as process:  # fmt: skip
        assert process.stdout is not None and process.stderr is not None
        assert process.stdout.readline().startswith("running jobs_of_a_test:engine on ")
        submitted = run("-d", application / "data", "submit", "note", '{"n": 7}')
        assert submitted.exit_code == 0, submitted.output
        assert process.stdout.readline() == "note 7\n"
        process.send_signal(signal.SIGTERM)
        assert process.stdout.read().startswith("stopped: ")
        assert process.wait(PATIENCE_S) == 0, process.stderr.read()


@pytest.mark.parametrize(
    ("app", "text"),
    [
        ("jobs_of_a_test", "give a module and the engine in it"),
        ("jobs_of_nobody:engine", "there is no module jobs_of_nobody"),
        ("jobs_of_a_test:missing", "is missing"),
        ("jobs_of_a_test:other", "is no Engine"),
    ],
)
def test_what_names_no_engine_is_refused(
    application: Path, monkeypatch: pytest.MonkeyPatch, app: str, text: str
) -> None:
    monkeypatch.chdir(application)
    monkeypatch.syspath_prepend(os.fspath(application))
    with pytest.raises(ConfigError, match=text):
        load_engine(app)
    assert not (application / "data").exists()
