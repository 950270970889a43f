"""A ticket that kills its process, in the middle of a thousand others: it is buried at the third
death that is surely its own, and each of the others ends well."""

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
engine = make(sys.argv[1], durability="process", threads=4, run=sys.argv[2] == "work")

@engine.task(retry=again)
def pill() -> None:
    os._exit(1)

@engine.task(retry=again)
def innocent(n: int) -> int:
    return n

engine.start()
if sys.argv[2] == "submit":
    engine.submit_many([innocent.call(n) for n in range(500)])
    pill.submit()
    engine.submit_many([innocent.call(n) for n in range(500, 1000)])
    engine.stop()
    sys.exit()
runtime = runtime_of(engine)
idle = runtime.host.when(lambda: not any(
    state in (0, 1) for shard in runtime.shards for _, state in shard.core.counters
))
assert idle.wait(20)
assert engine.stop().clean
"""


def live(path: Path, what: str) -> int:
    done = subprocess.run(
        [sys.executable, "-c", LIFE, str(path), what],
        env=os.environ | {"PYTHONPATH": str(TESTS)},
        capture_output=True, text=True, timeout=40,
    )  # fmt: skip
    assert done.returncode in (0, 1) and not done.stderr, done.stderr
    return done.returncode


def test_a_pill_ends_and_the_thousand_beside_it_do_not(tmp_path: Path) -> None:
    path = tmp_path / "data"
    assert live(path, "submit") == 0
    codes = [live(path, "work")]
    while codes[-1] and len(codes) < 10:
        codes.append(live(path, "work"))
    # The first death tells nothing of whose it was; the next three are its own.
    assert codes == [1, 1, 1, 1, 0]
    with make(path, durability="process", run=False) as engine:
        infos = walk(engine.find, limit=1000)
        (pill,) = [info for info in infos if info.task == "pill"]
        assert (pill.state, pill.dead_reason, pill.maybe_applied) == ("dead", "crashed", True)
        outcomes = [attempt.outcome for attempt in engine.ticket(pill.id).attempts()]
        assert outcomes == ["lost"] * 4
        assert engine.stats().by_task == {"innocent": {"done": 1000}, "pill": {"dead": 1}}
        assert engine.dead.revive(pill.id).skipped == {"ambiguous": 1}
