"""Where the answers come from: the running engine, else the files."""

import os
from typing import Any

from parkade.clock import SystemClock
from parkade.control import ControlClient, ControlError
from parkade.errors import ConfigError
from parkade.facts import list_facts, show_facts, status_facts, why_facts
from parkade.reader import Reader, open_readonly

__all__ = ["ask"]

SOCKET_NAME = "control.sock"


def ask(directory: str, name: str, **args: Any) -> Any:
    """Plain values, the same from both. Raises what the engine or the reader raises."""
    path = os.path.abspath(directory)
    socket_path = os.path.join(path, SOCKET_NAME)
    if os.path.lexists(socket_path):
        try:
            return ControlClient(socket_path).call(name, **args)
        except ControlError as error:
            if error.code != "unreachable":
                raise
        except ConfigError:
            pass  # no name of it is short enough for this system
    with open_readonly(path) as reader:
        return _ask_files(reader, name, args)


def _ask_files(reader: Reader, name: str, args: dict[str, Any]) -> Any:
    if name == "status":
        return status_facts(
            path=reader.path,
            manifest=reader.manifest,
            stats=reader.stats(),
            owner=None,
            now_ms=SystemClock().now_ms(),
        )
    if name == "ls":
        return list_facts(reader.desk(name), args)
    if name == "why":
        return why_facts(reader.desk(name), args["id"])
    assert name == "show", name
    return show_facts(reader.desk(name), args["id"])
