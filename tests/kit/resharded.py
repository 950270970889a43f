"""Many tickets dealt to other numbers of shards by processes that are killed: run as a file, it is
such a process.

    python resharded.py DIRECTORY SHARDS

It prints a line for each call that changes the disk, and for each thousand tickets that it dealt;
at the end `done`, and how much memory of its own it took at most, in bytes (Linux; else 0).
"""

import os
import random
import shutil
import subprocess
import sys
import threading
from collections.abc import Iterator
from hashlib import blake2b
from pathlib import Path
from typing import Any

from kit.engines import make, when
from kit.faulty import StepDisk
from parkade import Attempt, Call, Engine, open_readonly
from parkade.clock import SystemClock
from parkade.reader import existing_manifest
from parkade.resharding import Tools, reshard
from parkade.store.disk import RealDisk
from parkade.store.parked import Parked
from parkade.verifying import verify_parts

__all__ = ["Crowd"]

KEYS = 40
KEYED_SHARE = 100  # one ticket of so many has a key and is due
PAGE = 1_000
KEPT: dict[str, Any] = {"keep_done": None, "index_tags": ("kind",)}


class Crowd:
    """So many tickets in four shards: most sleep, some have ended, some wait with a key."""

    def __init__(self, path: Path, count: int, seed: int) -> None:
        self.path = path
        self.count = count
        self.dice = random.Random(seed)
        self.own_bytes_max = 0
        self.kills = 0
        self._lines = 0  # that one of these processes prints when nobody kills it
        with make(path, shards=4, durability="process", run=False, **KEPT) as engine:
            declare(engine, [])
            for _ in engine.submit_many(self._calls(engine)):
                pass
            engine.cancel_many(tag=("kind", "gone"), reason="not needed")
        self.seen = see(path)
        assert self.seen[0] == count

    def _calls(self, engine: Engine) -> Iterator[Call[Any]]:
        sleep, wake = engine.lookup("sleep"), engine.lookup("wake")
        for n in range(self.count):
            if n % KEYED_SHARE == 0:
                yield wake.options(key=f"k{n // KEYED_SHARE % KEYS}").call(n)
            elif n % KEYED_SHARE == 1:
                yield sleep.options(delay="1d", tags={"kind": "gone"}).call(n)
            else:
                delay = self.dice.randrange(86_400, 40_000_000)
                unique = f"u{n}" if n % 7 == 0 else None
                yield sleep.options(delay=delay, unique=unique, priority=n % 3).call(n)

    def reshard(self, to: int, kills: int) -> None:
        """Deals it to so many shards; killed so many times, and looked at by an engine between."""
        before = existing_manifest(RealDisk(), str(self.path), 0).shards
        self._count_lines(to)
        for nth in range(kills):
            self._run(self.path, to, self.dice.randrange(self._lines))
            if nth % 2:
                with make(self.path, shards=None, durability="process", run=False) as engine:
                    stats = engine.stats()
                    assert [shard.status for shard in stats.shards] == ["open"] * len(stats.shards)
                    assert len(stats.shards) in (before, to)
        assert self._run(self.path, to, None)
        assert existing_manifest(RealDisk(), str(self.path), 0).shards == to
        assert see(self.path) == self.seen

    def _count_lines(self, to: int) -> None:
        copy = self.path.with_name("copy")
        shutil.copytree(self.path, copy, ignore=shutil.ignore_patterns("*.sock"))
        assert self._run(copy, to, None)
        shutil.rmtree(copy)

    def _run(self, path: Path, to: int, kill_after: int | None) -> bool:
        """Whether it came to its end."""
        command = [sys.executable, "-P", __file__, str(path), str(to)]
        imports = os.pathsep.join(part for part in sys.path if part)
        with subprocess.Popen(
            command, stdout=subprocess.PIPE, text=True, env=os.environ | {"PYTHONPATH": imports}
        ) as child:
            assert child.stdout is not None
            for lines, line in enumerate(child.stdout, 1):
                if line.startswith("done"):
                    self._lines = lines
                    self.own_bytes_max = max(self.own_bytes_max, int(line.split()[1]))
                    return True
                if kill_after is not None and lines > kill_after:
                    child.kill()
                    self.kills += 1
                    return False
        raise AssertionError("it ended by itself, and was not done")

    def problems(self) -> list[str]:
        """What a walk over all of it finds."""
        disk, path = RealDisk(), str(self.path)
        parts = verify_parts(disk, path, existing_manifest(disk, path, 0), deep=True)
        return [problem.text for part in parts for problem in part.problems]

    def wake_all(self) -> dict[str, list[int]]:
        """Runs what is due; the order of each key."""
        starts: list[tuple[str, int]] = []
        with make(self.path, shards=None, durability="process", **KEPT) as engine:
            declare(engine, starts)
            when(engine, lambda _: len(starts) == self.count // KEYED_SHARE)
        order: dict[str, list[int]] = {}
        for key, n in starts:
            order.setdefault(key, []).append(n)
        return order


def declare(engine: Engine, starts: list[tuple[str, int]]) -> None:
    lock = threading.Lock()

    @engine.task
    def sleep(n: int) -> None: ...

    @engine.task
    def wake(attempt: Attempt, n: int) -> None:
        with lock:
            starts.append((attempt.key or "", n))


def see(path: Path) -> tuple[int, bytes]:
    """How many tickets there are, and a digest of all that a listing tells of them."""
    digest = blake2b(digest_size=16)
    count = 0
    with open_readonly(path) as reader:
        cursor: str | None = None
        while True:
            page = reader.find(limit=PAGE, cursor=cursor)
            for info in page:
                state = "pending" if info.state in ("scheduled", "ready") else info.state
                known = (
                    info.id, info.task, state, info.key, info.unique, info.priority,
                    info.due_at.isoformat(), info.created_at.isoformat(), sorted(info.tags.items()),
                )  # fmt: skip
                digest.update(repr(known).encode())
                count += 1
            cursor = page.next
            if cursor is None:
                return count, digest.digest()


def main(directory: str, to: int) -> None:
    """Reshards, and says so."""

    own: list[int] = [0]

    def say(*words: object) -> None:
        own[0] = max(own[0], own_bytes())
        print(*words, flush=True)

    def open_store(place: str, **options: Any) -> Parked:
        return Parked.open(place, **options, commit_hook=say)

    disk = StepDisk(lambda _, name: say(name.split()[0]))
    reshard(Tools(disk, SystemClock(), os.urandom, open_store), directory, to, say)
    say("done", own[0])


def own_bytes() -> int:
    """Memory of this process, without mapped files; 0 where the system does not say."""
    try:
        status = Path("/proc/self/status").read_text(encoding="ascii")
    except OSError:
        return 0
    (line,) = (line for line in status.splitlines() if line.startswith("RssAnon:"))
    return int(line.split()[1]) * 1024


if __name__ == "__main__":
    main(sys.argv[1], int(sys.argv[2]))
