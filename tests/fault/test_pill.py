"""A ticket that kills its process: it is buried at the third death that is surely its own, and the
innocents beside it end."""

import os
import subprocess
import sys
from pathlib import Path

from kit.engines import make, walk

TESTS = Path(__file__).parents[1]

LIFE = """
import os, sys
from kit.engines import make, runtime_of
from parkade import Backoff, RetryPolicy
again = RetryPolicy(1000, backoff=Backoff("1ms", cap="5ms", jitter="none"))
engine = make(sys.argv[1], durability="process", threads=4)

@engine.task(retry=again)
def pill() -> None:
    os._exit(7)

@engine.task(retry=again)
def innocent(n: int) -> int:
    return n

engine.start()
if sys.argv[2] == "first":
    # All in one breath, so that some run beside it.
    engine.submit_many([innocent.call(n) for n in range(3)])
    print(pill.submit().id, flush=True)
    engine.submit_many([innocent.call(n) for n in range(3, 20)])
runtime = runtime_of(engine)
idle = runtime.host.when(lambda: not any(
    state in (0, 1) for shard in runtime.shards for _, state in shard.core.counters
))
assert idle.wait(20)
assert engine.stop().clean
"""


def live(path: Path, which: str) -> tuple[int, str]:
    done = subprocess.run(
        [sys.executable, "-c", LIFE, str(path), which],
        env=os.environ | {"PYTHONPATH": str(TESTS)},
        capture_output=True, text=True, timeout=40,
    )  # fmt: skip
    assert done.returncode in (0, 7), done.stderr
    return done.returncode, done.stdout.strip()


def test_a_pill_ends_and_the_innocents_beside_it_do_not(tmp_path: Path) -> None:
    path = tmp_path / "data"
    codes = [live(path, "first")[0]]
    while codes[-1] == 7 and len(codes) < 10:
        codes.append(live(path, "again")[0])
    # The first death tells nothing of whose it was; the next three are its own.
    assert codes == [7, 7, 7, 7, 0]
    with make(path, durability="process", run=False) as engine:
        infos = walk(engine.find)
        (pill,) = [info for info in infos if info.task == "pill"]
        assert (pill.state, pill.dead_reason, pill.maybe_applied) == ("dead", "crashed", True)
        outcomes = [attempt.outcome for attempt in engine.ticket(pill.id).attempts()]
        assert outcomes == ["lost"] * 4
        others = [info for info in infos if info.task == "innocent"]
        assert {info.state for info in others} == {"done"}
        assert len(others) >= 3
        assert engine.dead.revive(pill.id).skipped == {"ambiguous": 1}
