"""Queues asked for one stage: in which process, in which directory, and what came of it."""

import contextlib
import json
import subprocess
import threading
import time
from collections.abc import Generator, Iterable
from concurrent.futures import ThreadPoolExecutor, as_completed
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from bench.kit import disk_bytes
from bench.peers.environments import Peer, Unavailable
from bench.peers.server import Server
from bench.peers.sizes import KILLS, Sizes
from bench.running import kill_whole, scratch, started

KILL_S_MAX = 60
KILLS_ABREAST = 6  # of which one runs to be killed, and the others wait for what was lost


@dataclass(frozen=True)
class Answer:
    """What came of one stage of one queue; figures, or why there are none."""

    peer: Peer
    figures: dict[str, Any]
    seconds: float


class Asking:
    """Asks queues for stages, each in a fresh process on a fresh directory or database."""

    def __init__(self, sizes: Sizes, directory: str) -> None:
        self.sizes = sizes
        self.directory = directory
        self.server: Server | None = None
        self.pythons: dict[str, Path] = {}
        self._door = threading.Lock()
        self._killing = threading.Lock()
        self._running: set[subprocess.Popen[str]] = set()
        self._is_over = False

    def answers(self, peers: Iterable[Peer], stage: str) -> Generator[Answer, None, None]:
        """Of one queue after the other; where they are killed, the next one's turn begins when one
        is dead. Closed before its end, it ends all that it has started."""
        if stage not in KILLS:
            for peer in peers:
                yield self.answer(peer, stage)
            return
        with ThreadPoolExecutor(KILLS_ABREAST) as pool:
            asked = [pool.submit(self.answer, peer, stage) for peer in peers]
            try:
                for told in as_completed(asked):
                    yield told.result()
            except BaseException:
                self._end()
                pool.shutdown(wait=False, cancel_futures=True)
                raise

    def answer(self, peer: Peer, stage: str) -> Answer:
        """One stage of one queue, once."""
        began_s = time.monotonic()
        try:
            with self._fresh(peer) as asked:
                if stage in KILLS:
                    figures = self._kill(peer, stage, asked)
                elif stage == "sleepers":
                    figures = self._sleepers(peer, asked)
                else:
                    figures = self._play(peer, stage, asked)
        except (subprocess.SubprocessError, TimeoutError) as failure:
            figures = {"failed": f"{stage}: {why(failure)}"}
        return Answer(peer, figures, time.monotonic() - began_s)

    @contextlib.contextmanager
    def _fresh(self, peer: Peer) -> Generator[dict[str, Any], None, None]:
        """What a stage is asked: a directory, or a database, of its own and the sizes."""
        with scratch("parkade-peer-", self.directory) as path:
            asked = {**self.sizes.as_json(), "directory": str(path), "address": "", "server": 0}
            if peer.is_embedded or self.server is None:
                yield asked
                return
            asked |= {"address": self.server.create(peer.name), "server": self.server.pid}
            try:
                yield asked
            finally:
                self.server.drop(peer.name)

    def _sleepers(self, peer: Peer, asked: dict[str, Any]) -> dict[str, Any]:
        """Loaded by one process, weighed, and opened by another."""
        figures = self._play(peer, "load", asked)
        if "lacks" in figures:
            return figures
        if peer.is_embedded or self.server is None:
            taken_bytes = disk_bytes(Path(asked["directory"]))
        else:
            taken_bytes = self.server.disk_bytes(peer.name)
        figures["disk_bytes"] = taken_bytes / figures["asleep"]
        return figures | self._play(peer, "rest", {**asked, "seconds": self.sizes.idle_s})

    def _kill(self, peer: Peer, stage: str, asked: dict[str, Any]) -> dict[str, Any]:
        """Killed once half have run; the next process runs what it knows of."""
        log = Path(asked["directory"], "ended.log")
        asked |= {"crowd": self.sizes.killed, "is_crowd": stage == "kill_crowd", "log": str(log)}
        with self._killing, self._started(peer, "crash", asked) as process:
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
        figures = self._play(peer, "after", {**asked, "patience": self.sizes.after_s})
        return {f"{stage}_{name}": value for name, value in figures.items() if name != "settings"}

    def _play(self, peer: Peer, stage: str, asked: dict[str, Any]) -> dict[str, Any]:
        """What the stage prints. Raises `CalledProcessError`, `TimeoutExpired`."""
        with self._started(peer, stage, asked) as process:
            said, errors = process.communicate(timeout=self.sizes.stage_s)
        if process.returncode != 0:
            raise subprocess.CalledProcessError(process.returncode, stage, said, errors)
        return dict(json.loads(said.splitlines()[-1]))

    @contextlib.contextmanager
    def _started(
        self, peer: Peer, stage: str, asked: dict[str, Any]
    ) -> Generator["subprocess.Popen[str]", None, None]:
        """The process of a stage, which does not outlive the block."""
        command = [str(self.pythons[peer.name]), "-m", "bench.peers.play", peer.name, stage]
        with contextlib.ExitStack() as stack:
            with self._door:
                if self._is_over:
                    raise Unavailable("the bench was told to end")
                process = stack.enter_context(
                    started(
                        [*command, json.dumps(asked)],
                        stdout=subprocess.PIPE,
                        stderr=subprocess.PIPE,
                    )
                )
                self._running.add(process)
            try:
                yield process
            finally:
                self._running.discard(process)

    def _end(self) -> None:
        """Ends the stages that threads are waiting for, and lets none begin."""
        with self._door:
            self._is_over = True
            for process in list(self._running):
                kill_whole(process)


def why(failure: Exception) -> str:
    """A line of what a process said as it failed."""
    if isinstance(failure, subprocess.TimeoutExpired):
        return f"not done within {failure.timeout:.0f} s"
    lines = str(getattr(failure, "stderr", "") or failure).strip().splitlines()
    return lines[-1][:200] if lines else str(failure)
