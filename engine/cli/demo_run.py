"""What `parkade demo` does: submit, kill -9, reopen, compare. It prints nothing.

The parent believes nobody: what must be there it knows from what the first process had told before
it died, and what was done from a log that the handlers wrote.
"""

import os
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import Any

import msgspec

from parkade.cli.demo_child import ACCEPTED, DUE_MARK, FACTS, HAS, PROGRESS, digest_of
from parkade.clock import SystemClock
from parkade.errors import ParkadeError

__all__ = ["Demo", "DemoFailed", "Findings"]

Told = Callable[[int, int, int], None]  # so many acknowledged or found, done, running or waiting


class DemoFailed(ParkadeError):
    """A process of the demonstration ended on its own."""

    code = "PK-000"


@dataclass(slots=True)
class Findings:
    """The numbers of a demonstration; ms and bytes."""

    acknowledged: int = 0
    submit_ms: int = 0
    killed_pid: int = 0
    done_before: int = 0
    running_at_kill: int = 0
    opened_ms: int = 0
    lost_found: int = 0
    there: int = 0
    unannounced: int = 0  # in the directory, though nobody was told
    missing: list[str] = field(default_factory=list[str])
    due: int = 0
    due_done: int = 0
    cut_off_done: int = 0  # of those that were running at the kill
    wrong_results: int = 0
    run_twice: int = 0
    asleep: int = 0
    reopened_ms: int = 0
    memory_bytes: int = 0
    store_bytes: int = 0
    journal_bytes: int = 0

    @property
    def is_kept(self) -> bool:
        """Whether every promise was kept."""
        return (
            self.acknowledged > 0
            and not self.missing
            and self.due_done == self.due
            and self.cut_off_done == self.running_at_kill
            and not self.wrong_results
        )


class Demo:
    """One demonstration in one place of its own; the stages are called in their order."""

    def __init__(self, place: str, tickets: int) -> None:
        self.place = place
        self.path = os.path.join(place, "data")
        self.findings = Findings()
        self._tickets = tickets
        self._log_path = os.path.join(place, "results.log")
        self._clock = SystemClock()
        self._acknowledged: set[str] = set()
        self._due: set[str] = set()
        self._at_kill: set[str] = set()
        self._child: subprocess.Popen[str] | None = None

    def run_and_kill(self, told: Told) -> None:
        """Lets a process submit and work, and kills it once enough was acknowledged, while it
        runs something and has done something."""
        found, begun_ms = self.findings, self._clock.monotonic_ms()
        child = self._start("run", self.path, self._log_path, str(self._tickets))
        found.killed_pid = child.pid
        is_killed = False
        for kind, text in self._lines(child):
            if kind == ACCEPTED:
                self._acknowledge(text)
                found.submit_ms = self._clock.monotonic_ms() - begun_ms
            elif kind == PROGRESS and not is_killed:
                done, running = map(int, text.split())
                told(len(self._acknowledged), done, running)
                if len(self._acknowledged) >= self._tickets and done and running:
                    child.send_signal(signal.SIGKILL)
                    is_killed = True
        self._end(child, expected=-signal.SIGKILL)
        found.acknowledged = len(self._acknowledged)
        starts, ends = self._read_log()
        self._at_kill = starts.keys() - ends.keys()
        found.done_before = len(ends)
        found.running_at_kill = len(self._at_kill)

    def resume(self, told: Told) -> None:
        """Has another process open the directory and finish what is due; compares."""
        found = self.findings
        child = self._start("resume", self.path, self._log_path)
        there: set[str] = set()
        for kind, text in self._lines(child):
            if kind == HAS:
                there.update(text.split())
            elif kind == PROGRESS:
                told(len(there), *map(int, text.split()))
            elif kind == FACTS:
                facts = msgspec.json.decode(text)
                found.opened_ms = facts.get("opened_ms", found.opened_ms)
                found.lost_found = facts.get("lost", found.lost_found)
        self._end(child, expected=0)
        found.there = len(self._acknowledged & there)
        found.unannounced = len(there - self._acknowledged)
        found.missing = sorted(self._acknowledged - there)
        starts, ends = self._read_log()
        found.due = len(self._due)
        found.due_done = len(self._due & ends.keys())
        found.cut_off_done = sum(
            ticket_id in ends and starts[ticket_id] >= 2 for ticket_id in self._at_kill
        )
        found.run_twice = sum(count > 1 for count in starts.values())
        found.wrong_results = sum(digest != digest_of(number) for number, digest in ends.values())

    def measure(self) -> None:
        """What the sleepers cost, in a process that has done nothing else."""
        found = self.findings
        child = self._start("measure", self.path)
        for kind, text in self._lines(child):
            if kind == FACTS:
                facts: dict[str, Any] = msgspec.json.decode(text)
                found.asleep, found.reopened_ms = facts["asleep"], facts["opened_ms"]
                found.memory_bytes = facts["memory_bytes"]
        self._end(child, expected=0)
        for folder, _, names in os.walk(self.path):
            size = sum(_disk_bytes(os.path.join(folder, name)) for name in names)
            if os.path.basename(folder) == "store":
                found.store_bytes += size
            else:
                found.journal_bytes += size

    def stop(self) -> None:
        """Leaves no process behind."""
        child, self._child = self._child, None
        if child is not None:
            child.kill()
            child.wait()
            for pipe in (child.stdin, child.stdout):
                if pipe is not None:
                    pipe.close()

    def _acknowledge(self, text: str) -> None:
        for ticket_id in text.split():
            if ticket_id.startswith(DUE_MARK):
                ticket_id = ticket_id[len(DUE_MARK) :]
                self._due.add(ticket_id)
            self._acknowledged.add(ticket_id)

    def _start(self, *args: str) -> "subprocess.Popen[str]":
        # -P: what lies in the working directory must not be imported.
        with open(self._error_path, "w", encoding="utf-8") as errors:
            self._child = subprocess.Popen(
                [sys.executable, "-P", "-m", "parkade.cli.demo_child", *args],
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=errors,
                text=True,
                start_new_session=True,
            )
        return self._child

    @property
    def _error_path(self) -> str:
        return os.path.join(self.place, "errors.log")

    def _lines(self, child: "subprocess.Popen[str]") -> Iterator[tuple[str, str]]:
        """What was said in full: a line that ends early was said to nobody."""
        assert child.stdout is not None
        for line in child.stdout:
            if line.endswith("\n"):
                kind, _, text = line.rstrip("\n").partition(" ")
                yield kind, text

    def _end(self, child: "subprocess.Popen[str]", *, expected: int) -> None:
        code = child.wait()
        self.stop()
        if code != expected:
            with open(self._error_path, encoding="utf-8", errors="replace") as file:
                last = file.read()[-2_000:].strip()
            raise DemoFailed(f"A process of the demonstration ended with {code}: {last}")

    def _read_log(self) -> tuple[dict[str, int], dict[str, tuple[int, str]]]:
        """How often each ticket was started; number and digest of those that came to an end."""
        starts: dict[str, int] = {}
        ends: dict[str, tuple[int, str]] = {}
        with open(self._log_path, encoding="ascii") as file:
            for line in file:
                match line.split():
                    case ["start", ticket_id, _]:
                        starts[ticket_id] = starts.get(ticket_id, 0) + 1
                    case ["end", ticket_id, number, digest]:
                        ends[ticket_id] = int(number), digest
                    case _:
                        continue  # the process was killed in the middle of a line
        return starts, ends


def _disk_bytes(path: str) -> int:
    """What a file takes on the disk."""
    return os.stat(path).st_blocks * 512
