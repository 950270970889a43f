"""Processes that own a directory, for tests that look at it from outside or kill its owner."""

import subprocess
import sys
from pathlib import Path
from types import TracebackType
from typing import Self

PROGRAM = """
import sys
from parkade import Engine

engine = Engine(sys.argv[1], shards=2, threads=2)

@engine.task
def note(number: int) -> int:
    return number

@engine.task(retry=1)
def break_down(number: int) -> None:
    raise ValueError(f"number {number}")

with engine:
    print("open", flush=True)
    for line in sys.stdin:
        verb, count, delay = line.split()
        task = {"note": note, "break": break_down}[verb]
        calls = [task.options(delay=delay).call(n) for n in range(int(count))]
        tickets = engine.submit_many(calls, chunk=5)  # both shards have some
        if delay == "0s":
            for ticket in tickets:
                try:
                    ticket.result(timeout="20s")
                except Exception:
                    pass
        print(*[ticket.id for ticket in tickets], flush=True)
"""


class OwnerProcess:
    """An engine in a process of its own, with the tasks `note` and `break_down`."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self._process = subprocess.Popen(
            [sys.executable, "-P", "-c", PROGRAM, str(path)],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            text=True,
        )
        self._read("open")

    @property
    def pid(self) -> int:
        return self._process.pid

    def submit(self, verb: str, count: int, delay: str) -> list[str]:
        """Ids that were acknowledged; those due at once have ended."""
        assert self._process.stdin is not None
        self._process.stdin.write(f"{verb} {count} {delay}\n")
        self._process.stdin.flush()
        return self._read("").split()

    def kill(self) -> None:
        self._process.kill()
        self._close()

    def stop(self) -> None:
        """A clean stop."""
        assert self._process.stdin is not None
        self._process.stdin.close()
        self._close()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, et: type[BaseException] | None, e: BaseException | None, tb: TracebackType | None
    ) -> None:
        self.kill()

    def _read(self, expected: str) -> str:
        assert self._process.stdout is not None
        line = self._process.stdout.readline()
        assert line.endswith("\n") and line.startswith(expected), f"the owner said {line!r}"
        return line

    def _close(self) -> None:
        self._process.wait()
        for pipe in (self._process.stdin, self._process.stdout):
            if pipe is not None and not pipe.closed:
                pipe.close()
