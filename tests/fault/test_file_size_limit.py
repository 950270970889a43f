"""A limit on the size of files (`ulimit -f`), met by journals and stores: it is a full disk."""

import os
import subprocess
import sys
from pathlib import Path

CHILD = """
import os, resource, signal, sys
from kit.engines import hold_handlers, make, when
from parkade import StorageFull

path = sys.argv[1]
_, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
told = []

def limit(size_bytes):
    resource.setrlimit(resource.RLIMIT_FSIZE, (size_bytes, hard))

limit(1_500_000)

def is_writable(runtime):
    return not any(s.room.is_full or s.checkpointing.lacks_room for s in runtime.shards)

def opened(gate):
    engine = make(path, shards=1, durability="process")

    @engine.task
    def sleeps(text: str) -> None: ...

    @engine.task
    def waits() -> str:
        gate.enter()
        return "done"

    return engine, sleeps.options(delay="1h"), waits

def fill(sleeps):
    # Whether it is refused in the end.
    for _ in range(1_000):
        try:
            told.append(sleeps.submit("x" * 100_000).id)
        except StorageFull:
            return True
    return False

def are_there(engine):
    return {engine.ticket(id).info().state for id in told} == {"scheduled"}
"""

FILLED = """
with hold_handlers() as gate:
    engine, sleeps, waits = opened(gate)
    with engine:
        ticket = waits.submit()
        gate.wait()
        print(fill(sleeps), engine.health()["storage_writable"])
        gate.open()
        limit(hard)
        when(engine, is_writable)
        told.append(sleeps.submit("one more").id)
        print(ticket.result(), are_there(engine))
"""

KILLED = """
engine, sleeps, _ = opened(None)
engine.start()
print(fill(sleeps), *told, flush=True)
os.kill(os.getpid(), signal.SIGKILL)
"""

AFTER = """
told += sys.argv[2:]
engine, sleeps, _ = opened(None)
with engine:
    print(are_there(engine))
    limit(hard)
    when(engine, is_writable)
    told.append(sleeps.submit("one more").id)
    print(are_there(engine))
"""


def run(path: Path, code: str, *more: str) -> list[str]:
    ran = subprocess.run(
        [sys.executable, "-c", CHILD + code, str(path), *more],
        env={**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)},
        stdout=subprocess.PIPE,
        text=True,
        timeout=60,
    )
    return ran.stdout.split()


def test_what_has_no_room_is_refused_and_all_goes_on_when_the_limit_is_raised(
    tmp_path: Path,
) -> None:
    told = run(tmp_path / "data", FILLED)
    assert told == ["True", "False", "done", "True"]


def test_what_was_told_outlives_a_kill_at_the_limit_and_an_open_under_it(tmp_path: Path) -> None:
    is_refused, *told = run(tmp_path / "data", KILLED)
    assert is_refused == "True" and told
    assert run(tmp_path / "data", AFTER, *told) == ["True", "True"]
