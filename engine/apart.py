"""Work on files that may be damaged, done in a process of its own.

A map of damaged pages can end the process that reads it: a signal, where an error was meant. So
such files are read by a child, which writes a line of JSON for each thing that it has found; how
the child ended is told to whoever reads the lines.
"""

import json
import os
import resource
import signal
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator, Mapping
from contextlib import suppress
from typing import Any, cast

from parkade.control import ControlError
from parkade.errors import ParkadeError

__all__ = ["ChildDied", "ask_back", "lines_apart", "serve_lines"]

STDERR_CHARS_MAX = 400


class ChildDied(Exception):
    """The child did not end by itself; `reason` says by what it ended."""

    def __init__(self, reason: str) -> None:
        super().__init__(reason)
        self.reason = reason


def lines_apart(
    module: str, asked: Mapping[str, Any], reply: Callable[[str], Any] | None = None
) -> Iterator[dict[str, Any]]:
    """What `module`, run as a program, says to `asked`, line by line. `reply` answers what the
    child asks meanwhile (`ask_back`).

    Raises what `reply` raises, `ControlError` for an error of parkade's that it met, and
    `ChildDied`. The child ends when nobody wants its next line.
    """
    # A file, for nobody reads it before the end, and a pipe that is full would stop the child.
    with tempfile.TemporaryFile() as errors:
        child = subprocess.Popen(
            [sys.executable, "-m", module, json.dumps(asked)],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=errors,
            env=os.environ | {"PYTHONPATH": os.pathsep.join(filter(None, sys.path))},
        )
        try:
            yield from _said_by(child, reply)
            code = child.wait()
            if code:
                errors.seek(0)
                raise ChildDied(_reason(code, errors.read().decode(errors="replace")))
        finally:
            child.kill()
            child.wait()
            for pipe in (child.stdin, child.stdout):
                with suppress(BrokenPipeError):
                    if pipe is not None:
                        pipe.close()


def _said_by(
    child: "subprocess.Popen[bytes]", reply: Callable[[str], Any] | None
) -> Iterator[dict[str, Any]]:
    assert child.stdin is not None and child.stdout is not None
    for line in child.stdout:
        said = cast(dict[str, Any], json.loads(line))
        if "ask" in said:
            assert reply is not None, said
            child.stdin.write(json.dumps(reply(said["ask"])).encode() + b"\n")
            child.stdin.flush()
        elif "error" in said:
            raise ControlError(said["error"]["code"], said["error"]["text"])
        else:
            yield said


def serve_lines(say: Callable[[dict[str, Any]], Iterator[dict[str, Any]]]) -> None:
    """The other side: answers the question of the command line."""
    asked = cast(dict[str, Any], json.loads(sys.argv[1]))
    # That it may die is known, and a map of gigabytes is no use in a core file.
    resource.setrlimit(resource.RLIMIT_CORE, (0, resource.getrlimit(resource.RLIMIT_CORE)[1]))
    try:
        for said in say(asked):
            _write(said)
    except ParkadeError as error:
        _write({"error": {"code": error.code, "text": str(error)}})


def ask_back(what: str) -> Any:
    """In the child: asks whoever reads its lines, and returns the answer."""
    _write({"ask": what})
    line = sys.stdin.readline()
    if not line:
        raise EOFError("whoever was asked has gone")
    return json.loads(line)


def _write(said: dict[str, Any]) -> None:
    # At once: what is still in a buffer when the process dies was found for nothing.
    sys.stdout.write(json.dumps(said) + "\n")
    sys.stdout.flush()


def _reason(code: int, stderr: str) -> str:
    if code >= 0:
        lines = stderr.strip().splitlines()
        return f"exit code {code}: {lines[-1][:STDERR_CHARS_MAX] if lines else 'it said nothing'}"
    try:
        name = signal.Signals(-code).name
    except ValueError:
        name = f"signal {-code}"
    return name
