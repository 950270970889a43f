"""Tools that die before a step of theirs: run as a file, it forks one for each line of its input.

    python killed_tools.py SOURCE

A line `TOOL STEP TARGET` runs the tool until it is about to take that step, 0 for none, and is
answered with how many steps it took and how it ended: 0, or minus the number of the signal. A step
is a call that changes the disk, a table that is copied, a file that is synced, a commit.
"""

import io
import os
import shutil
import signal
import subprocess
import sys
import threading
from collections.abc import Callable, Generator, Sequence
from contextlib import ExitStack, contextmanager, redirect_stdout
from pathlib import Path
from types import SimpleNamespace
from typing import Any
from unittest import mock

from kit.faulty import StepDisk
from kit.forked import ForkedPopen
from kit.one_life import small_limits
from kit.tool_life import SMALL_SIZING
from parkade import backing_up, compacting, repairing
from parkade.cli.app import cli
from parkade.store import copying
from parkade.store.journal import Sizing
from parkade.store.parked import Parked

__all__ = ["KILLED_TOOLS", "ToolRunner"]

KILLED_TOOLS = ("backup", "restore", "repair", "compact", "export")
DISKS = ("backing_up", "compacting", "repairing", "reader", "cli.compact")


class ToolRunner:
    """The process that forks them."""

    def __init__(self, source: Path) -> None:
        path = os.pathsep.join(part for part in sys.path if part)
        self._process = subprocess.Popen(
            [sys.executable, "-P", __file__, str(source)],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
            env=os.environ | {"PYTHONPATH": path},
        )

    def run(self, tool: str, target: Path, *, die_at: int = 0) -> tuple[int, int]:
        """(steps, code) of one run; a shared step counter is told even by one that died."""
        assert self._process.stdin is not None and self._process.stdout is not None
        self._process.stdin.write(f"{tool} {die_at} {target}\n")
        self._process.stdin.flush()
        steps, code = map(int, self._process.stdout.readline().split())
        return steps, code

    def close(self) -> None:
        assert self._process.stdin is not None and self._process.stdout is not None
        self._process.stdin.close()
        self._process.wait()
        self._process.stdout.close()


class _Steps:
    def __init__(self, die_at: int, told: int) -> None:
        self.count = 0
        self._die_at = die_at
        self._told = told
        self._lock = threading.Lock()

    def take(self, *_: Any) -> None:
        with self._lock:
            self.count += 1
            os.write(self._told, b".")
            if self.count == self._die_at:
                os.kill(os.getpid(), signal.SIGKILL)

    def before(self, call: Callable[..., Any]) -> Callable[..., Any]:
        def stepped(*args: Any, **named: Any) -> Any:
            self.take()
            return call(*args, **named)

        return stepped


@contextmanager
def stepping(steps: _Steps) -> Generator[None, None, None]:
    patches: list[Any] = [
        mock.patch(f"parkade.{name}.RealDisk", lambda: StepDisk(steps.take)) for name in DISKS
    ]
    patches += [
        mock.patch.object(copying, "_copy_table", steps.before(copying._copy_table)),
        mock.patch.object(copying, "sync_file", steps.before(copying.sync_file)),
        mock.patch.object(Parked, "commit", steps.before(Parked.commit)),
        mock.patch.object(Sizing.__init__, "__defaults__", SMALL_SIZING),
        mock.patch("parkade.apart.subprocess", SimpleNamespace(PIPE=-1, Popen=ForkedPopen)),
    ]
    with ExitStack() as stack:
        for patch in patches:
            stack.enter_context(patch)
        yield


def run_tool(tool: str, source: Path, target: Path) -> None:
    """What a child of the tool does, in this process."""
    asked = {"source": str(source), "target": str(target), "is_live": False, "verb": tool}
    if tool in ("backup", "restore"):
        list(backing_up._say(asked))
    elif tool == "repair":
        assert not repairing.repair(str(source), str(target)).has_losses
    elif tool == "compact":
        if not target.exists():
            shutil.copytree(source, target)
        list(compacting._say({"path": str(target)}))
    else:
        with open(target, "w", encoding="utf-8") as file, redirect_stdout(file):
            cli(["--dir", str(source), "export"], standalone_mode=False)


def main(words: Sequence[str]) -> None:
    source = Path(words[0])
    for line in sys.stdin:
        tool, die_at, target = line.split()
        reader, writer = os.pipe()
        pid = os.fork()
        if pid == 0:
            code = 1
            try:
                os.close(reader)
                os.dup2(os.open(os.devnull, os.O_WRONLY), 1)
                sys.stdout = io.TextIOWrapper(open(1, "wb", closefd=False))  # noqa: SIM115
                with small_limits(), stepping(_Steps(int(die_at), writer)):
                    run_tool(tool, source, Path(target))
                code = 0
            finally:
                if code:
                    sys.excepthook(*sys.exc_info())
                os._exit(code)
        os.close(writer)
        steps = 0
        while chunk := os.read(reader, 4_096):
            steps += len(chunk)
        os.close(reader)
        _, status = os.waitpid(pid, 0)
        print(steps, os.waitstatus_to_exitcode(status), flush=True)


if __name__ == "__main__":
    main(sys.argv[1:])
