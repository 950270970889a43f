"""A long mixed load on a real engine: nothing that it holds may grow.

    python -m soak [MINUTES] [--only fixed|new] [--directory DIR] [--diagnose]

Two engines side by side, each in a process of its own: one whose names (keys, targets, tags,
uniques, hosts) come again, and one that never sees a name twice. Each is killed and opened again a
few times; then it lives on to the end, is stopped and opened again meanwhile, and is read at even
times. What grows in the last two thirds of that life is told, and the exit code is 1. In the end it
is killed once more, opened, run until nothing is left, and verified.
"""

import argparse
import json
import os
import subprocess
import sys
import tempfile
import threading
import time
from collections import defaultdict
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from soak.flat import Verdict, judge
from soak.readings import BOUNDS, HELD_BOUND, read_directory, read_process

SHORT_LIVES = 3
SHORT_SHARE = 0.04  # of the time, for each of them
SAMPLES_MAX, SAMPLE_S_MIN = 60, 4.0
RESTARTS = 5
WARM_UP_SHARE = 1 / 3
TESTS = Path(__file__).resolve().parents[1]
PATHS = [path for path in (os.environ.get("PYTHONPATH"),) if path]
ALLOCATOR = {"MALLOC_ARENA_MAX": "2"}  # each thread with its own would take long to fill
_pause = threading.Event()


class Life:
    """One process on the directory."""

    def __init__(self, path: Path, names: str, is_diagnosed: bool) -> None:
        words = [str(path), names, *(["diagnose"] if is_diagnosed else [])]
        self._process = subprocess.Popen(
            [sys.executable, "-m", "soak.process", *words],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
            cwd=TESTS,
            env=os.environ | ALLOCATOR | {"PYTHONPATH": os.pathsep.join([str(TESTS), *PATHS])},
        )
        self.pid = self._process.pid
        self._read()

    def ask(self, word: str) -> dict[str, Any]:
        assert self._process.stdin is not None
        self._process.stdin.write(f"{word}\n")
        self._process.stdin.flush()
        return self._read()

    def _read(self) -> dict[str, Any]:
        assert self._process.stdout is not None
        line = self._process.stdout.readline()
        if not line:
            raise AssertionError(f"the engine's process ended with {self._process.wait()}")
        answer: dict[str, Any] = json.loads(line)
        return answer

    def is_there(self) -> bool:
        return self._process.poll() is None

    def kill(self) -> None:
        self._process.kill()
        self._process.communicate()

    def end(self) -> None:
        self._process.communicate(timeout=60)
        assert self._process.returncode == 0, self._process.returncode


@dataclass
class Soak:
    """One variant over the whole time."""

    names: str
    path: Path
    seconds: float
    is_diagnosed: bool
    readings: dict[str, list[float]] = field(default_factory=lambda: defaultdict(list))
    held: dict[str, list[float]] = field(default_factory=lambda: defaultdict(list))
    notes: list[str] = field(default_factory=list)

    @property
    def samples(self) -> int:
        """How often it is read: no more than so often, or the reading is all that it does."""
        return max(12, min(SAMPLES_MAX, int(self.seconds / SAMPLE_S_MIN)))

    def run(self) -> "Soak":
        for _ in range(SHORT_LIVES):
            life = self._begin()
            self._live(life, self.seconds * SHORT_SHARE)
            life.kill()
        life = self._begin()
        self._long_life(life, self.seconds * (1 - SHORT_LIVES * SHORT_SHARE))
        life.kill()
        life = self._begin()
        left = life.ask("finish")
        assert not left["left"] and not left["running"], ("left over", left)
        life.end()
        self._verify()
        return self

    def _begin(self) -> Life:
        return Life(self.path, self.names, self.is_diagnosed)

    def _live(self, life: Life, seconds: float) -> None:
        end = time.monotonic() + seconds
        while time.monotonic() < end:
            if not life.is_there():
                raise AssertionError(f"{self.names} names: the engine's process ended by itself")
            _pause.wait(min(1.0, max(0.0, end - time.monotonic())))

    def _long_life(self, life: Life, seconds: float) -> None:
        begin, samples = time.monotonic(), self.samples
        for number in range(1, samples + 1):
            self._live(life, begin + seconds * number / samples - time.monotonic())
            if number % (samples // (RESTARTS + 1)) == 0 and number < samples:
                life.ask("restart")
            sample = life.ask("sample")
            outside = read_process(life.pid) | read_directory(self.path)
            for name, value in (outside | {"blocks of Python": sample["blocks"]}).items():
                self.readings[name].append(value)
            for place in self.held.keys() | sample["held"].keys():
                series = self.held[place]
                series += [0.0] * (number - 1 - len(series)) + [sample["held"].get(place, 0)]
            self.notes += [f"  {number}: {line}" for line in sample.get("top", ())]
        self.notes.append(f"  {sample['rounds']} rounds of load, {sample['done']} tickets done")

    def _verify(self) -> None:
        command = [sys.executable, "-c", "from parkade.cli import main; main()"]
        done = subprocess.run(
            [*command, "--dir", str(self.path), "verify", "--deep"], capture_output=True, text=True
        )
        assert done.returncode == 0, done.stdout + done.stderr

    def verdicts(self) -> dict[str, Verdict]:
        """Every reading; of the containers those that grow."""
        warm = int(self.samples * WARM_UP_SHARE)
        found = {name: judge(self.readings[name][warm:], BOUNDS[name]) for name in BOUNDS}
        for place, values in sorted(self.held.items()):
            verdict = judge(values[warm:], HELD_BOUND)
            if verdict.grows:
                found[place] = verdict
        return found


def report(soak: Soak) -> int:
    """Prints the table; how many things grow."""
    print(f"\n{soak.names} names, {soak.seconds / 60:g} min; medians of three thirds after warm-up")
    growing = 0
    for name, verdict in soak.verdicts().items():
        growing += verdict.grows
        mark = "GROWS" if verdict.grows else "flat"
        thirds = "".join(f"{value:>12,.1f}" for value in verdict.thirds)
        print(f"  {name:<40}{thirds}   may grow by {verdict.bound:>9,.1f}   {mark}")
    print("\n".join(soak.notes), flush=True)
    return growing


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m soak", description=__doc__)
    parser.add_argument("minutes", nargs="?", type=float, default=10.0)
    parser.add_argument("--only", choices=("fixed", "new"))
    parser.add_argument("--directory", help="where the two directories are made")
    parser.add_argument("--series", help="a file for all readings, as JSON")
    parser.add_argument("--diagnose", action="store_true", help="trace allocations: far slower")
    given = parser.parse_args()
    names = [given.only] if given.only else ["fixed", "new"]
    with (
        tempfile.TemporaryDirectory(prefix="parkade-soak-", dir=given.directory) as folder,
        ThreadPoolExecutor(len(names)) as pool,
    ):
        soaks = [
            Soak(each, Path(folder) / each, given.minutes * 60, given.diagnose) for each in names
        ]
        growing = sum(report(done) for done in pool.map(Soak.run, soaks))
    if given.series:
        series = {soak.names: {"readings": soak.readings, "held": soak.held} for soak in soaks}
        Path(given.series).write_text(json.dumps(series), encoding="utf-8")
    print("flat" if not growing else f"{growing} things grow")
    return 1 if growing else 0


if __name__ == "__main__":
    sys.exit(main())
