"""Where a child process finds a task: in its module, in a main program, or not."""

import subprocess
import sys
import types
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from kit import process_tasks as work
from parkade import ConfigError, Tasks
from parkade.finder import Finder
from parkade.handlers import Handler
from parkade.reachable import check_reachable, main_program, modules_of

SCRIPT = """
import sys
from parkade import Engine

print("imported as", __name__, flush=True)
engine = Engine(sys.argv[1], shards=1, durability="memory", processes=1, default_retry=1)

@engine.task(where="process")
def double(n: int) -> int:
    return 2 * n

def main() -> None:
    with engine:
        print(double.submit(21).result(timeout="30s"))

if __name__ == "__main__":
    main()
"""


def run(*words: object) -> "subprocess.CompletedProcess[str]":
    command = [sys.executable, *map(str, words)]
    return subprocess.run(command, capture_output=True, text=True, timeout=60, check=False)


def test_a_script_has_its_tasks_run_in_children_that_do_not_run_its_main_part(
    tmp_path: Path,
) -> None:
    script = tmp_path / "app.py"
    script.write_text(SCRIPT, encoding="utf-8")
    done = run(script, tmp_path / "data")
    assert done.returncode == 0, done.stderr
    assert done.stdout.split("\n")[:3] == [
        "imported as __main__", "imported as __mp_main__", "42",
    ]  # fmt: skip


def test_what_was_typed_into_a_prompt_is_refused_with_the_way_out(tmp_path: Path) -> None:
    done = run("-c", SCRIPT, tmp_path / "data")
    assert "ConfigError: @engine.task: double() cannot run with where" in done.stderr
    assert "Put it at the top level of a module [PK-306]" in done.stderr


@pytest.mark.parametrize(
    ("spec", "path", "found"),
    [
        (types.SimpleNamespace(name="app.serve"), "/srv/app/serve.py", ("app.serve", None)),
        (types.SimpleNamespace(name="app.__main__"), "/srv/app/__main__.py", (None, None)),
        (types.SimpleNamespace(name="__main__"), "/srv/app.zip/__main__.py", (None, None)),
        (None, "/srv/app.py", (None, "/srv/app.py")),
        (None, None, (None, None)),
    ],
)
def test_the_main_program_is_known_by_its_name_or_its_path(
    monkeypatch: pytest.MonkeyPatch, spec: Any, path: str | None, found: tuple[str | None, ...]
) -> None:
    main = types.ModuleType("__main__")
    main.__spec__ = spec
    if path is not None:
        main.__file__ = path
    monkeypatch.setitem(sys.modules, "__main__", main)
    assert main_program() == found

    def typed() -> None: ...

    typed.__module__, typed.__qualname__ = "__main__", "typed"
    handler = Handler(typed, call="@engine.task")
    assert modules_of(handler, "__main__") == ["__main__"]
    if found == (None, None):
        with pytest.raises(ConfigError, match="typed\\(\\) cannot run with where"):
            check_reachable(handler)
    else:
        check_reachable(handler)


def test_a_task_is_found_by_its_name_where_its_module_or_that_of_its_decorator_has_it() -> None:
    finder = Finder(None, None)
    assert finder.find("add", ["kit.process_tasks"]) is work.add
    assert finder.find("add", ["nowhere.to.be.found"]) is work.add, "it is known by now"
    other = Tasks()
    other.task(name="borrowed", where="process")(work.not_decorated)
    assert work.not_decorated.__module__ == "kit.process_tasks"
    borrowed = other.lookup("borrowed")
    assert borrowed.registered_in == __name__
    assert modules_of(borrowed.handler, borrowed.registered_in) == ["kit.process_tasks", __name__]
    assert finder.find("borrowed", ["kit.process_tasks", __name__]) is borrowed


def test_of_two_tasks_with_one_name_the_one_of_the_module_is_taken() -> None:
    other = Tasks()
    here: Callable[..., Any] = lambda: None  # noqa: E731
    other.task(name="add")(here)
    assert Finder(None, None).find("add", ["kit.process_tasks"]) is work.add


def test_what_cannot_be_imported_is_raised_or_told(monkeypatch: pytest.MonkeyPatch) -> None:
    finder = Finder("no.such.main", None)
    with pytest.raises(ModuleNotFoundError):
        finder.find("unknown", ["nowhere.to.be.found", "kit.process_tasks"])
    with pytest.raises(ConfigError) as missing:
        finder.find("unknown", ["kit.process_tasks", "nowhere.to.be.found"])
    text = str(missing.value)
    assert "importing kit.process_tasks and nowhere.to.be.found did not register it" in text
    assert "nowhere.to.be.found cannot be imported: ModuleNotFoundError" in text
    assert "__main__ cannot be imported" in text
