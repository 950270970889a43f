"""Many tickets asleep, measured by a process of its own: run as a file, it prints one JSON line.

    python sleeping.py park DIRECTORY COUNT     submits so many sleepers, a few at once
    python sleeping.py look DIRECTORY           opens, runs a ticket among them, and looks

Memory counts as `RssAnon` above an engine that has been opened and has run one ticket. A process of
its own, because what others have freed in this one would hide what is held.
"""

import gc
import itertools
import json
import random
import subprocess
import sys
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from unittest import mock

from parkade import Call, Engine
from parkade.reading import Read, StoreReader, SweepRead
from parkade.shard.placement import SweepAsk

DAY_S, YEAR_S = 86_400, 31_536_000
BODY = "x" * 92  # 100 bytes of arguments
SLICE = 10_000  # tickets whose handles are held at a time
WAIT_S = 120
APART_S_MAX = 3_600  # ten million take some minutes
VISITED_MAX = 20  # of those that an open comes by: what is due, and not what sleeps
SHARDS = 4
SEGMENTS_MAX = SHARDS * 8  # segments double in size as the journal grows, and go with checkpoints
JOURNAL_BYTES_MAX = SHARDS * 64_000_000  # at which a shard writes its checkpoint


class Garage:
    """An engine whose sleepers sleep for days, and whose one waking task tells that it ran."""

    def __init__(self, directory: str) -> None:
        self.engine = Engine(directory, shards=SHARDS)

        @self.engine.task(name="sleep")
        def sleep(body: str) -> None: ...

        @self.engine.task(name="wake")
        def wake() -> str:
            return "awake"

        self.sleep, self.wake = sleep, wake

    def sleepers(self, count: int) -> Iterator[Call[None]]:
        """Due over a year, in no order."""
        dues = random.Random(5)
        calls = [
            self.sleep.options(delay=dues.uniform(DAY_S, YEAR_S)).call(BODY) for _ in range(1_000)
        ]
        return itertools.islice(itertools.cycle(calls), count)

    def held_bytes(self) -> int:
        """The process's own memory; the engine has run what was due, garbage is collected."""
        assert self.wake.submit().result(timeout=WAIT_S) == "awake"
        gc.collect()
        status = Path("/proc/self/status").read_text(encoding="ascii")
        (line,) = (line for line in status.splitlines() if line.startswith("RssAnon:"))
        return int(line.split()[1]) * 1024

    def checkpoint(self) -> None:
        """Returns when all that has been accepted is in the stores."""
        host = self.engine.desk("sleeping").runtime.host

        def want() -> None:
            for shard in host.open_shards():
                shard.checkpointing.is_wanted = not shard.core.dirty.is_empty

        host.post(want)
        assert host.when(lambda: all(shard.is_quiet for shard in host.shards)).wait(WAIT_S)

    def facts(self) -> dict[str, int]:
        """What the engine says of itself."""
        stats = self.engine.stats()
        return {
            "scheduled": stats.scheduled,
            "done": stats.done_total,
            "hot": sum(shard.hot for shard in stats.shards),
            "segments": sum(shard.journal_segments for shard in stats.shards),
            "journal_bytes": sum(shard.journal_bytes for shard in stats.shards),
        }


def park(directory: str, count: int) -> dict[str, int]:
    """Submits the sleepers, and amid them one ticket that is due in 10 ms."""
    garage = Garage(directory)
    segments = journal_bytes = submitted = 0
    with garage.engine as engine:
        before_bytes = garage.held_bytes()
        calls, early = garage.sleepers(count), None
        while submitted < count:
            submitted += len(engine.submit_many(itertools.islice(calls, SLICE)))
            facts = garage.facts()
            segments = max(segments, facts["segments"])
            journal_bytes = max(journal_bytes, facts["journal_bytes"])
            if early is None and submitted >= count // 2:
                early = garage.wake.options(delay=0.01).submit()
        assert early is not None
        assert early.result(timeout=WAIT_S) == "awake"
        garage.checkpoint()
        facts = garage.facts()
        held_bytes = garage.held_bytes() - before_bytes
    files = [file for file in Path(directory).rglob("*") if file.is_file()]
    return facts | {
        "held_bytes": held_bytes,
        "disk_bytes": sum(file.stat().st_blocks * 512 for file in files),
        "segments_max": segments,
        "journal_bytes_max": journal_bytes,
    }


class Visits:
    """Counts what is read of the stores: entries of agendas, and tickets."""

    def __init__(self) -> None:
        self.count = 0
        sweep, load = StoreReader.sweep, StoreReader.load

        def counted_sweep(reader: StoreReader, ask: SweepAsk) -> SweepRead:
            read = sweep(reader, ask)
            self.count += len(read.swept.entries)
            return read

        def counted_load(
            reader: StoreReader, serials: Iterable[int], *rest: Any, **how: Any
        ) -> Read:
            wanted = list(serials)
            self.count += len(wanted)
            return load(reader, wanted, *rest, **how)

        mock.patch.multiple(StoreReader, sweep=counted_sweep, load=counted_load).start()


def look(directory: str) -> dict[str, int]:
    """Opens them again; `opened_bytes` is all that this process holds, for its like to compare."""
    visits = Visits()
    garage = Garage(directory)
    with garage.engine:
        early = garage.wake.options(delay=0.01).submit()
        assert early.result(timeout=WAIT_S) == "awake"
        opened_bytes = garage.held_bytes()
        return garage.facts() | {"opened_bytes": opened_bytes, "visited": visits.count}


def apart(step: str, directory: Path, *arguments: int) -> dict[str, int]:
    """A step in a process of its own."""
    done = subprocess.run(
        [sys.executable, __file__, step, str(directory), *map(str, arguments)],
        capture_output=True,
        text=True,
        timeout=APART_S_MAX,
    )
    assert done.returncode == 0, done.stderr
    found: dict[str, int] = json.loads(done.stdout)
    return found


@dataclass(frozen=True)
class Measured:
    """So many sleepers: what parking them left, and what the next open holds above an empty one."""

    count: int
    parked: dict[str, int]
    opened: dict[str, int]
    opened_bytes: int

    def check(self) -> None:
        """All are there and none is in memory; the ticket that was due in 10 ms amid them has run,
        in both processes; the journal was bounded all the while."""
        assert self.parked["scheduled"] == self.opened["scheduled"] == self.count
        assert self.parked["hot"] == 0
        assert self.parked["done"] == 2  # it, and one that the measuring ran
        assert self.opened["done"] == 5  # after another of these: the same two again
        assert self.parked["segments_max"] <= SEGMENTS_MAX, self.parked
        assert self.parked["journal_bytes_max"] <= JOURNAL_BYTES_MAX, self.parked
        assert self.opened["visited"] <= VISITED_MAX, self.opened


def measure(directory: Path, count: int) -> Measured:
    """Parks and opens them, each in a process of its own."""
    for _ in range(2):  # the first one makes it; the other opens it, like the directory below
        empty = apart("look", directory / "empty")
    parked = apart("park", directory / "full", count)
    opened = apart("look", directory / "full")
    return Measured(count, parked, opened, opened["opened_bytes"] - empty["opened_bytes"])


def main(argv: list[str]) -> None:
    """The step that the command line names."""
    step, directory, *counts = argv
    steps: dict[str, Any] = {"park": park, "look": look}
    print(json.dumps(steps[step](directory, *map(int, counts))))


if __name__ == "__main__":
    main(sys.argv[1:])
