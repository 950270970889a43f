"""The same work on other queues, at the same durability, beside parkade: one table.

    python -m bench.peers                     all that can be had here; half an hour
    python -m bench.peers --small             the same at its smallest; two or three minutes
    python -m bench.peers --only huey dbos    these, and parkade beside them

Each queue gets an environment of its own and is asked through its public API. Each stage is a
fresh process on a fresh directory; for each stage the queues take their turns, parkade among them,
so that whatever else the machine does meets all. Medians over the runs.
"""

import argparse
import contextlib
import json
import subprocess
import sys
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

from bench.floor import BRIEF, SMALLEST, measure
from bench.kit import disk_bytes, machine
from bench.pages import BENCHMARKS, README, put
from bench.peers.environments import OURS, PEERS, Peer, Unavailable, python_of
from bench.peers.report import Results, excerpt, page
from bench.peers.server import Server, running
from bench.peers.sizes import Sizes

RESULTS = Path("build", "bench")
STAGES = ("submit", "bulk", "lives", "start", "wake", "sleepers", "kill_queue", "kill_crowd")
KILL_S_MAX = 60


@dataclass
class Bench:
    """One run of the program: what is measured where, and what came of it."""

    sizes: Sizes
    directory: str
    server: Server | None
    pythons: dict[str, Path]
    results: Results = field(default_factory=Results)

    def stage(self, peer: Peer, stage: str) -> None:
        """One stage of one queue, once; its figures, or why there are none, go to the results."""
        began_s = time.monotonic()
        try:
            with self.fresh(peer) as asked:
                steps = {
                    "sleepers": self.sleepers,
                    "kill_queue": self.kill,
                    "kill_crowd": self.kill,
                }
                step = steps.get(stage, self.plain)
                figures = step(peer, stage, asked)
        except (subprocess.SubprocessError, TimeoutError) as failure:
            figures = {"failed": f"{stage}: {why(failure)}"}
        self.results.add(peer.name, stage, figures)
        said = figures.get("failed") or figures.get("lacks") or ""
        took = f"{time.monotonic() - began_s:.1f} s"
        print(f"  {stage:11} {peer.name:14} {took:>7}  {said}", file=sys.stderr, flush=True)

    @contextlib.contextmanager
    def fresh(self, peer: Peer) -> Iterator[dict[str, Any]]:
        """What a stage is asked: a directory, or a database, of its own and the sizes."""
        with TemporaryDirectory(prefix="parkade-peer-", dir=self.directory) as path:
            asked = {**self.sizes.as_json(), "directory": path, "address": "", "server": 0}
            if peer.is_embedded or self.server is None:
                yield asked
                return
            database = "bench"
            asked |= {"address": self.server.create(database), "server": self.server.pid}
            try:
                yield asked
            finally:
                self.server.drop(database)

    def plain(self, peer: Peer, stage: str, asked: dict[str, Any]) -> dict[str, Any]:
        """A stage of one process."""
        return self.play(peer, stage, asked)

    def sleepers(self, peer: Peer, _: str, asked: dict[str, Any]) -> dict[str, Any]:
        """Loaded by one process, weighed, and opened by another."""
        figures = self.play(peer, "load", asked)
        if "lacks" in figures:
            return figures
        if peer.is_embedded or self.server is None:
            taken_bytes = disk_bytes(Path(asked["directory"]))
        else:
            taken_bytes = self.server.disk_bytes("bench")
        figures["disk_bytes"] = taken_bytes / figures["sleepers"]
        return figures | self.play(peer, "rest", {**asked, "seconds": self.sizes.idle_s})

    def kill(self, peer: Peer, stage: str, asked: dict[str, Any]) -> dict[str, Any]:
        """Killed once half have run; the next process runs what it knows of."""
        log = Path(asked["directory"], "ended.log")
        asked |= {"crowd": self.sizes.killed, "is_crowd": stage == "kill_crowd", "log": str(log)}
        with self.started(peer, "crash", asked) as process:
            deadline_s = time.monotonic() + KILL_S_MAX
            half = self.sizes.killed // 2
            while process.poll() is None and time.monotonic() < deadline_s:
                if log.exists() and log.read_bytes().count(b"\n") > half:
                    break
                time.sleep(0.002)
            ended = process.poll() is not None
            process.kill()
            said, errors = process.communicate()
        if ended:
            if process.returncode == 0:
                return dict(json.loads(said))
            raise subprocess.CalledProcessError(process.returncode, "crash", said, errors)
        figures = self.play(peer, "after", {**asked, "patience": self.sizes.after_s})
        return {f"{stage}_{name}": value for name, value in figures.items() if name != "settings"}

    def play(self, peer: Peer, stage: str, asked: dict[str, Any]) -> dict[str, Any]:
        """What the stage prints. Raises `CalledProcessError`, `TimeoutExpired`."""
        with self.started(peer, stage, asked) as process:
            try:
                said, errors = process.communicate(timeout=self.sizes.stage_s)
            except subprocess.TimeoutExpired:
                process.kill()
                raise
        if process.returncode != 0:
            raise subprocess.CalledProcessError(process.returncode, stage, said, errors)
        return dict(json.loads(said.splitlines()[-1]))

    def started(self, peer: Peer, stage: str, asked: dict[str, Any]) -> "subprocess.Popen[str]":
        """The process of a stage."""
        command = [str(self.pythons[peer.name]), "-m", "bench.peers.play", peer.name, stage]
        return subprocess.Popen(
            [*command, json.dumps(asked)],
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )


def why(failure: Exception) -> str:
    """A line of what a process said as it failed."""
    if isinstance(failure, subprocess.TimeoutExpired):
        return f"not done within {failure.timeout:.0f} s"
    lines = str(getattr(failure, "stderr", "") or failure).strip().splitlines()
    return lines[-1][:200] if lines else str(failure)


def main(argv: Sequence[str] | None = None) -> int:
    """Measure, print, keep."""
    given = options(argv)
    if given.result is not None:
        return told(json.loads(given.result.read_text(encoding="utf-8")), is_written=given.write)
    sizes = Sizes.small() if given.small else Sizes.usual()
    sizes = replace(sizes, runs=given.runs or sizes.runs)
    peers = [peer for peer in PEERS if peer.name == OURS or peer.name in given.only]
    started_at = datetime.now(UTC)
    with contextlib.ExitStack() as stack:
        bench = Bench(sizes, given.directory, None, {})
        prepare(bench, peers, stack)
        for run in range(sizes.runs):
            print(f"run {run + 1} of {sizes.runs}", file=sys.stderr, flush=True)
            effort = SMALLEST if given.small else BRIEF
            bench.results.floors.append(measure(given.directory, effort))
            for stage in given.stages:
                # Whoever goes first in one run goes last in the next.
                for peer in peers[:: 1 if run % 2 == 0 else -1]:
                    if peer.name in bench.pythons:
                        bench.stage(peer, stage)
    result = bench.results.as_json(started_at, machine(), sizes.as_json(), given.small)
    file = given.to or RESULTS / f"{started_at:%Y%m%d-%H%M%S}-peers.json"
    file.parent.mkdir(parents=True, exist_ok=True)
    file.write_text(json.dumps(result, indent=1) + "\n", encoding="utf-8")
    print(f"{file}\n")
    return told(result, is_written=given.write)


def options(argv: Sequence[str] | None) -> argparse.Namespace:
    """The command line; exits with the usage on a wrong one."""
    names = [peer.name for peer in PEERS if peer.name != OURS]
    parser = argparse.ArgumentParser(prog="python -m bench.peers", description=__doc__)
    parser.formatter_class = argparse.RawDescriptionHelpFormatter
    parser.add_argument("directory", nargs="?", default=".", help="the disk to use (default: here)")
    parser.add_argument("--small", action="store_true", help="the smallest sizes that work")
    parser.add_argument("--runs", type=int, help="runs per figure")
    parser.add_argument("--only", nargs="*", default=names, metavar="PEER")
    parser.add_argument("--stages", nargs="+", choices=STAGES, default=STAGES, metavar="STAGE")
    parser.add_argument("--to", type=Path, help="the JSON file to write")
    parser.add_argument("--result", type=Path, help="a JSON file of before, and measure nothing")
    parser.add_argument("--write", action="store_true", help="the tables into the documentation")
    given = parser.parse_args(argv)
    if unknown := set(given.only) - set(names):
        parser.error(f"no such queue: {', '.join(sorted(unknown))}; there are {', '.join(names)}")
    return given


def prepare(bench: Bench, peers: Sequence[Peer], stack: contextlib.ExitStack) -> None:
    """Makes the environments, and the server if somebody needs it; says whom it cannot have."""
    needs_server = any(not peer.is_embedded for peer in peers)
    reason = ""
    if needs_server:
        try:
            home = stack.enter_context(
                TemporaryDirectory(prefix="parkade-pg-", dir=bench.directory)
            )
            bench.server = stack.enter_context(running(Path(home).absolute()))
            bench.results.server = f"PostgreSQL {bench.server.version()}"
        except (Unavailable, OSError) as lack:
            reason = str(lack)
    for peer in peers:
        try:
            if not peer.is_embedded and bench.server is None:
                raise Unavailable(reason)
            bench.pythons[peer.name] = python_of(peer)
        except Unavailable as lack:
            bench.results.skipped[peer.name] = str(lack)
            print(f"  skipped {peer.name}: {lack}", file=sys.stderr, flush=True)


def told(result: dict[str, Any], *, is_written: bool) -> int:
    """Prints the tables, and puts them into docs/benchmarks.md and the README if they should be."""
    print(page(result))
    if is_written:
        put(BENCHMARKS, "peers", page(result))
        put(README, "peers", excerpt(result))
    return 0


if __name__ == "__main__":
    sys.exit(main())
