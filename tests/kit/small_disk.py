"""An engine on a file system of 64 MB that really fills up, and empties.

    unshare --mount python -m kit.small_disk SCENARIO MOUNT_POINT

A scenario runs in a mount namespace of its own, where it mounts a tmpfs: when it ends, however it
does, that is gone. It says `fine` at its end. The process that is killed says `full` before:

    python -m kit.small_disk fill DIRECTORY LOG
"""

import asyncio
import os
import signal
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

from kit.engines import PATIENCE_S, Gate, checkpoint, recount, when
from parkade import Attempt, Engine, PartialSubmit, StorageFull, Task
from parkade.runtime import Runtime
from parkade.store.disk import RealDisk
from parkade.store.manifest import read_manifest
from parkade.verifying import verify_parts

__all__ = ["main"]

DISK_BYTES = 64 << 20
LEFT_BYTES = 6 << 20  # what the ballast leaves of it
PAYLOAD = "x" * 20_000
REFUSED_IN_A_ROW = 40  # then no shard takes any
ROUNDS = 2
KEPT = 40  # of what a round has taken; the rest is cancelled, which gives its room to the next
KILLS = 2
CHILDREN = 3
RUNNING = 4  # of each kind: asyncio.to_thread has places for as many on any machine


class Tasks:
    """What there is to do; handlers of `work`, `awork` and `parent` wait at the gate."""

    def __init__(self, engine: Engine) -> None:
        self.gate = Gate()

        @engine.task
        def later(text: str) -> int:
            return len(text)

        @engine.task
        def work(n: int) -> int:
            self.gate.enter()
            return n

        @engine.task
        async def awork(n: int) -> int:
            await asyncio.to_thread(self.gate.enter)
            return n

        @engine.task
        def parent(attempt: Attempt, n: int) -> int:
            self.gate.enter()
            for _ in range(CHILDREN):
                attempt.submit(later.options(delay="1h").call("child"))
            return n

        self.soon = later
        self.later = later.options(delay="1h")
        self.held: list[Task[..., Any]] = [work, awork, parent]


class Ballast:
    """A file that takes what is free on the disk, but for some bytes."""

    def __init__(self, directory: Path) -> None:
        self._path = directory / "ballast"

    def take(self, left_bytes: int = LEFT_BYTES) -> None:
        facts = os.statvfs(self._path.parent)
        size = facts.f_bavail * facts.f_frsize - left_bytes
        assert size > 8 << 20, "the engine has filled the disk by itself"
        with self._path.open("wb") as file:
            os.posix_fallocate(file.fileno(), 0, size)

    def drop(self) -> None:
        self._path.unlink()


def fill(submit: Callable[[], Any]) -> list[str]:
    """Submits until no shard takes any more; the ids of what was taken."""
    taken: list[str] = []
    refused = 0
    while refused < REFUSED_IN_A_ROW:
        try:
            taken.append(submit().id)
        except StorageFull as error:
            assert error.code == "PK-106", error
            refused += 1
        else:
            refused = 0
    return taken


def is_writable(runtime: Runtime) -> bool:
    return all(
        shard.is_open
        and shard.room.is_there
        and not shard.room.is_full
        and not shard.checkpointing.lacks_room
        for shard in runtime.shards
    )


def check_whole(engine: Engine) -> None:
    shards = engine.stats().shards
    assert [shard.status for shard in shards] == ["open"] * len(shards), shards
    assert sum(shard.recoveries + shard.quarantined for shard in shards) == 0, shards
    assert engine.stats().by_task == recount(engine)


def check_files(path: Path) -> None:
    manifest = read_manifest(RealDisk(), str(path))
    assert manifest is not None
    for part in verify_parts(RealDisk(), str(path), manifest, deep=True):
        assert part.is_sound, part


# ------------------------------------------------------------------------------- scenarios


def fills_and_empties(disk: Path) -> None:
    """With all defaults of an engine, several times."""
    ballast = Ballast(disk)
    engine = Engine(str(disk / "data"))
    tasks = Tasks(engine)
    taken: list[str] = []
    with engine:
        for _ in range(ROUNDS):
            ballast.take()
            taken += one_round(engine, tasks, ballast)
        check_whole(engine)
        assert len(taken) == ROUNDS * KEPT
    assert engine.stop().clean
    check_files(disk / "data")
    with Engine(str(disk / "data")) as again:
        check_whole(again)
        assert {again.ticket(each).info().state for each in taken} == {"scheduled"}


def one_round(engine: Engine, tasks: Tasks, ballast: Ballast) -> list[str]:
    """The disk fills while handlers run; they end, and all goes on when there is room. Some of what
    was taken."""
    before = engine.stats().by_task.get("later", {}).get("scheduled", 0)
    gate = tasks.gate = Gate()
    kept = [tasks.later.submit("kept") for _ in range(RUNNING)]
    running = [task.submit(number) for task in tasks.held for number in range(RUNNING)]
    gate.wait(len(running))
    taken = fill(lambda: tasks.later.submit(PAYLOAD))
    taken += [ticket.id for ticket in submit_many(engine, tasks)]
    taken += fill(lambda: asyncio.run(asubmit(tasks)))
    assert not engine.health()["storage_writable"]
    assert [ticket.cancel("to make room") for ticket in kept] == ["cancelled"] * RUNNING
    gate.open()
    results = [ticket.result(PATIENCE_S) for ticket in running]
    assert results == [*range(RUNNING)] * len(tasks.held), results
    # Of what was refused nothing is there; of what ended everything is.
    scheduled = engine.stats().by_task["later"]["scheduled"]
    assert scheduled == before + len(taken) + RUNNING * CHILDREN, (before, scheduled, len(taken))
    ballast.drop()
    when(engine, is_writable)
    assert tasks.soon.submit("again").result(PATIENCE_S) == 5
    assert engine.health()["storage_writable"]
    check_whole(engine)
    assert {engine.ticket(each).info().state for each in taken} == {"scheduled"}
    assert len(set(taken)) == len(taken) > 2 * KEPT
    for each in taken[KEPT:]:
        assert engine.ticket(each).cancel() == "cancelled"
    checkpoint(engine)
    return taken[:KEPT]


def submit_many(engine: Engine, tasks: Tasks) -> "list[Any]":
    try:
        engine.submit_many([tasks.later.call(PAYLOAD) for _ in range(3_000)])
    except PartialSubmit as error:
        return list(error.accepted)
    except StorageFull:
        return []
    raise AssertionError("60 MB were taken by a full disk")


async def asubmit(tasks: Tasks) -> Any:
    return await tasks.later.asubmit(PAYLOAD)


def is_killed_when_full(disk: Path) -> None:
    """The process is killed on a full disk, and the next one opens there. It may say that there is
    no room, or serve; what was acknowledged is there when there is room."""
    ballast, log = Ballast(disk), disk.parent / "log"
    with Engine(str(disk / "data")):
        pass
    ballast.take()
    for _ in range(KILLS):
        die_when_full(disk / "data", log)
        engine = Engine(str(disk / "data"))
        tasks = Tasks(engine)
        tasks.gate.open()
        try:
            with engine:
                check_taken(engine, log)
        except StorageFull:
            continue
    ballast.drop()
    engine = Engine(str(disk / "data"))
    tasks = Tasks(engine)
    tasks.gate.open()
    with engine:
        check_taken(engine, log)
        when(engine, is_writable)
        assert tasks.soon.submit("again").result(PATIENCE_S) == 5
        check_whole(engine)
    assert engine.stop().clean
    check_files(disk / "data")


def die_when_full(path: Path, log: Path) -> None:
    with subprocess.Popen(
        [sys.executable, "-m", "kit.small_disk", "fill", str(path), str(log)],
        stdout=subprocess.PIPE, text=True,
    ) as process:  # fmt: skip
        assert process.stdout is not None
        assert process.stdout.readline() in ("full\n", "no room\n")
        os.kill(process.pid, signal.SIGKILL)


def check_taken(engine: Engine, log: Path) -> None:
    for each in log.read_text(encoding="ascii").split() if log.exists() else ():
        assert engine.ticket(each).info().state == "scheduled", each


def fill_until_killed(path: Path, log: Path) -> None:
    engine = Engine(str(path))
    tasks = Tasks(engine)
    noted = os.open(log, os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o600)

    def submit() -> Any:
        ticket = tasks.later.submit(PAYLOAD)
        os.write(noted, f"{ticket.id}\n".encode())
        return ticket

    try:
        engine.start()
        for task in tasks.held:
            task.submit(1)
    except StorageFull:
        print("no room", flush=True)
        signal.pause()
    fill(submit)
    print("full", flush=True)
    signal.pause()


SCENARIOS = {each.__name__: each for each in (fills_and_empties, is_killed_when_full)}


def main() -> None:
    name, path, *more = sys.argv[1:]
    if name == "fill":
        fill_until_killed(Path(path), Path(more[0]))
    point = Path(path)
    options = f"size={DISK_BYTES},mode=700"
    subprocess.run(["mount", "-t", "tmpfs", "-o", options, "none", str(point)], check=True)
    SCENARIOS[name](point)
    print("fine")


if __name__ == "__main__":
    main()
