"""Where the answers come from: the running engine, else the files. One that hangs has some seconds.

What changes something is done by the running engine; where none runs, by one that is opened for it
and starts nothing.
"""

import os
from collections.abc import Callable, Generator
from contextlib import ExitStack, contextmanager
from typing import Any, cast

import click

from parkade.changing import plan_cancel
from parkade.clock import SystemClock
from parkade.control import ControlClient, ControlError
from parkade.control_desk import control_handlers
from parkade.dead_facts import DEAD_ANSWERS
from parkade.engine import Engine
from parkade.errors import ConfigError
from parkade.facts import list_facts, show_facts, why_facts
from parkade.reader import Reader, existing_manifest, open_readonly
from parkade.status_facts import files_status
from parkade.store.disk import RealDisk
from parkade.store.lock import read_owner

__all__ = ["ask", "ask_owner", "changing", "client_of", "is_engine_there"]

SOCKET_NAME = "control.sock"
LOOK_MS_MAX = 5_000  # to wait for what the files tell as well
CHANGE_MS_MAX = 30_000
NOBODY = object()
_HANGING = "parkade.hanging"  # of a command: its engine has not answered in time


def ask(directory: str, name: str, **args: Any) -> Any:
    """Plain values, the same from both. Raises what the engine or the reader raises."""
    path = os.path.abspath(directory)
    answer = _look(path, name, args)
    if answer is not NOBODY:
        return answer
    with open_readonly(path) as reader:
        return _ask_files(reader, name, args)


@contextmanager
def changing(directory: str) -> Generator[Callable[..., Any], None, None]:
    """Gives `change(name, **args)`, which has something done: by the engine that runs, else by one
    of its own, which is opened at the first call and closed at the end.

    That one forgets nothing by age, since how long things are kept is the application's to say.
    Raises what the engine raises, `EngineInUse` where one has the directory and does not answer.
    """
    path = os.path.abspath(directory)
    with ExitStack() as stack:
        own: list[Engine] = []

        def change(name: str, **args: Any) -> Any:
            if not own:
                answer = _ask_engine(path, name, args, timeout_ms=CHANGE_MS_MAX)
                if answer is not NOBODY:
                    return answer
                # An engine would make the directory where there is none.
                existing_manifest(RealDisk(), path, SystemClock().now_ms())
                if args.get("tag") is not None:
                    with open_readonly(path) as reader:
                        _check_tag(reader, name, args)
                own.append(stack.enter_context(_own_engine(path, args)))
            return control_handlers(own[0])[name](args)

        yield change


def ask_owner(directory: str, name: str, **args: Any) -> Any:
    """The answer of the engine that runs on it. Raises what it raises, and `ControlError`."""
    return client_of(directory, timeout_ms=CHANGE_MS_MAX).call(name, **args)


def is_engine_there(directory: str) -> bool:
    """Whether one answers. Raises `ControlError` where one hangs."""
    path = os.path.abspath(directory)
    try:
        return _ask_engine(path, "status", {}, timeout_ms=LOOK_MS_MAX) is not NOBODY
    except ControlError as error:
        if error.code != "timeout":
            raise
        text = (
            f"{_silent(path)}: nothing was changed. Commands that only look, like status, ls, show "
            "and why, read the files without it"
        )
        raise ControlError(error.code, text) from error


def client_of(directory: str, *, timeout_ms: int) -> ControlClient:
    """Who asks the engine that runs on it."""
    path = os.path.abspath(directory)
    socket = os.path.join(path, SOCKET_NAME)
    return ControlClient(socket, timeout_ms=timeout_ms, who=lambda: _engine_on(path))


def _silent(path: str) -> str:
    return f"{_engine_on(path)} has not answered within {LOOK_MS_MAX / 1_000:g} s"


def _engine_on(path: str) -> str:
    owner = read_owner(RealDisk(), path)
    who = "" if owner is None else f", pid {owner.pid} ({owner.title}),"
    return f"The engine on {path}{who}"


def _own_engine(path: str, args: dict[str, Any]) -> Engine:
    # Which tags may be asked for is the application's to say, and it is not here: any may.
    tag = args.get("tag")
    index_tags = () if tag is None else (tag[0],)
    return Engine(path, run=False, keep_done=None, lock_wait="1s", index_tags=index_tags)


def _look(path: str, name: str, args: dict[str, Any]) -> Any:
    """`NOBODY` also where one hangs: that is said, and a command does not ask it again."""
    said = click.get_current_context().meta
    if path in said.get(_HANGING, ()):
        return NOBODY
    try:
        return _ask_engine(path, name, args, timeout_ms=LOOK_MS_MAX)
    except ControlError as error:
        if error.code != "timeout":
            raise
        said.setdefault(_HANGING, []).append(path)
        click.echo(f"parkade: {_silent(path)}: what follows is read from the files", err=True)
    return NOBODY


def _ask_engine(path: str, name: str, args: dict[str, Any], *, timeout_ms: int) -> Any:
    """`NOBODY` where none answers."""
    if os.path.lexists(os.path.join(path, SOCKET_NAME)):
        try:
            return client_of(path, timeout_ms=timeout_ms).call(name, **args)
        except ControlError as error:
            if error.code != "unreachable":
                raise
        except ConfigError:
            pass  # no name of it is short enough for this system
    return NOBODY


def _check_tag(reader: Reader, name: str, args: dict[str, Any]) -> None:
    """Which tags are indexed is the application's to say; of files one that no ticket is found by
    would be an empty answer."""
    tag = args.get("tag")
    if tag is not None and not reader.is_tag_indexed(tag[0]):
        advice = (
            f'no ticket here is found by the tag "{tag[0]}". Name it to the engine, '
            f'Engine(index_tags=("{tag[0]}",)): tickets that are submitted from then on are'
        )
        call = "ls" if name == "ls" else "cancel"
        raise ConfigError.option(call, "tag", tuple(tag), advice)


def _ask_files(reader: Reader, name: str, args: dict[str, Any]) -> Any:
    _check_tag(reader, name, args)
    if name == "status":
        return files_status(RealDisk(), reader)
    if name == "ls":
        return list_facts(reader.desk(name), args)
    if name == "why":
        return why_facts(reader.desk(name), args["id"])
    if name == "plan_cancel":
        return plan_cancel(reader.desk(name), args)
    answers = DEAD_ANSWERS.get(name)
    if answers is not None:
        return answers(cast("Engine", reader), args)
    assert name == "show", name
    return show_facts(reader.desk(name), args["id"])
