"""The first open of a directory is killed before each of its steps; the next open completes it."""

import json
import os
import subprocess
import sys
from pathlib import Path

from kit.engines import make, recount

TESTS = Path(__file__).parents[1]

# One process that never opens an engine forks all the others.
SCRIPT = """
import json, os, sys
from kit.engines import make, rig
from kit.faulty import StepDisk

def child(work):
    pid = os.fork()
    if pid == 0:
        try:
            work()
        except BaseException as error:
            os.write(2, repr(error).encode())
            os._exit(1)
        os._exit(0)
    return os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])

def first(path, number, names):
    def at(step, name):
        if step == number:
            with open(names, "a") as file:
                file.write(name.replace(path, "") + "\\n")
            os._exit(9)
    engine = rig(make(path, shards=1), disk=StepDisk(at))
    engine.task(name="note")(lambda n: n)
    with engine:
        ticket = engine.submit("note", {"n": number})
        with open(names, "a") as file:
            file.write("ACK " + ticket.id + "\\n")
        assert ticket.result("20s") == number

def second(path, number, names):
    with open(names) as file:
        acked = [line.split()[1] for line in file if line.startswith("ACK")]
    engine = make(path, shards=1)
    engine.task(name="note")(lambda n: n)
    with engine:
        for each in acked:
            assert engine.ticket(each).result("20s") == number, each
        assert [shard.status for shard in engine.stats().shards] == ["open"]
        assert engine.submit("note", {"n": 7}).result("20s") == 7
    with make(path, shards=1, run=False) as engine:
        assert engine.stats().by_task["note"]["done"] >= 1 + len(acked)

base = sys.argv[1]
for number in range(1, 1000):
    path, names = f"{base}/data-{number}", f"{base}/names-{number}"
    open(names, "w").close()
    died = child(lambda: first(path, number, names))
    then = child(lambda: second(path, number, names))
    with open(names) as file:
        print(json.dumps([number, died, then, file.read().split("\\n")[0]]), flush=True)
    if died != 9:
        break
"""


def test_killed_before_any_step_it_is_completed_by_the_next_open(tmp_path: Path) -> None:
    done = subprocess.run(
        [sys.executable, "-c", SCRIPT, str(tmp_path)],
        env=os.environ | {"PYTHONPATH": str(TESTS)},
        capture_output=True, text=True, timeout=55,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    rounds = [json.loads(line) for line in done.stdout.splitlines()]
    bad = [each for each in rounds if each[2] != 0]
    assert bad == [], done.stderr
    assert rounds[-1][1] == 0, "the last one met no more steps"
    assert {each[1] for each in rounds[:-1]} == {9}
    steps = [each[3] for each in rounds]
    assert len(steps) > 30
    for name in ("mkdir ", "create /lock", "rename /manifest.json", "preallocate", "pwrite"):
        assert any(step.startswith(name) for step in steps), name
    path = tmp_path / f"data-{len(rounds) // 2}"
    with make(path, shards=1, run=False) as engine:
        assert engine.stats().by_task == recount(engine)
