"""Work on files that may be damaged, done in a process of its own.

A map of damaged pages can end the process that reads it: a signal, where an error was meant. So
such files are read by a child, which writes a line of JSON for each thing that it has found; how
the child ended is told to whoever reads the lines.
"""

import json
import os
import signal
import subprocess
import sys
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
    path = os.pathsep.join(part for part in sys.path if part)
    child = subprocess.Popen(
        [sys.executable, "-m", module, json.dumps(asked)],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        env=os.environ | {"PYTHONPATH": path},
    )
    assert child.stdin is not None and child.stdout is not None and child.stderr is not None
    try:
        for line in child.stdout:
            said = cast(dict[str, Any], json.loads(line))
            if "ask" in said:
                assert reply is not None, said
                child.stdin.write(json.dumps(reply(said["ask"])).encode() + b"\n")
                child.stdin.flush()
                continue
            if "error" in said:
                raise ControlError(said["error"]["code"], said["error"]["text"])
            yield said
        stderr = child.stderr.read().decode(errors="replace")
        code = child.wait()
        if code:
            raise ChildDied(_reason(code, stderr))
    finally:
        child.kill()
        child.wait()
        with suppress(BrokenPipeError):
            child.stdin.close()
        child.stdout.close()
        child.stderr.close()


def serve_lines(say: Callable[[dict[str, Any]], Iterator[dict[str, Any]]]) -> None:
    """The other side: answers the question of the command line."""
    asked = cast(dict[str, Any], json.loads(sys.argv[1]))
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
