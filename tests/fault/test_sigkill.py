"""Fifty lives (or KILLS of them) over one directory, each ended by SIGKILL at a random moment.

What was acknowledged is there, what was cancelled stays so, every attempt that a kill ended is
accounted for, nothing is stuck, and the counters equal a recount.
"""

import functools
import os
import random
import select
import signal
import subprocess
import sys
from collections import Counter, defaultdict
from collections.abc import Iterator
from pathlib import Path

import pytest

from kit.engines import PATIENCE_S, recount, runtime_of, walk
from kit.killed import APART_EVERY, CHILDREN, FAR, KEYS, TASKS, apart, declare
from parkade import Engine, TicketInfo
from parkade.shard.states import PENDING, RUNNING

LIVES = int(os.environ.get("KILLS", "50"))  # make kills COUNT=1000
LIFE_S_MAX = 0.3
APART_S_MAX = 1.5  # a child process takes some 0.4 s to start
WORKERS = Path(__file__).parents[1]


class Told:
    """What the lives said, in the order they said it."""

    def __init__(self, path: Path) -> None:
        self.submitted: dict[str, str] = {}
        self.named: dict[str, set[str]] = defaultdict(set)
        self.tried: set[str] = set()
        self.revived: set[str] = set()
        self.cancels: dict[str, str] = {}
        self.begun: dict[str, list[int]] = defaultdict(list)
        self.ended: set[tuple[str, int]] = set()
        self.lives = self.opened = 0
        self.errors: list[str] = []
        self.alive: dict[str, int] = {}  # the handlers of this life that have not ended
        self.phases: Counter[str] = Counter()
        self.keys: dict[str, int] = {}  # in which life a handler of that key began that goes on
        self.phase = ""
        for line in path.read_text().splitlines():
            self.take(line)
        self.end_life()
        self.phases["before it began to open"] = LIVES - self.lives

    def take(self, line: str) -> None:
        what, *words = line.split(" ")
        if what == "S":
            self.submitted[words[0]] = words[1]
        elif what == "U":
            self.named[words[0]].add(words[1])
            self.submitted[words[1]] = "named"
        elif what == "T":
            self.tried.add(words[0])
        elif what == "R":
            self.revived.add(words[0])
        elif what == "C":
            self.cancels[words[0]] = words[1]
        elif what == "H":
            self.take_start(words[0], int(words[1]), words[2])
        elif what == "E":
            self.take_end(words[0], int(words[1]))
            self.keys.pop(words[2], None)
        elif what == "life":
            self.end_life()
            self.lives += 1
            self.phase = "while it opened"
        elif what == "open":
            self.opened += 1
            self.phase = "with no handler running"
        else:
            self.errors.append(line)

    def take_start(self, ticket: str, fence: int, key: str) -> None:
        if key != "-":
            assert self.keys.get(key) != self.lives, f"two at once of {key}"
            self.keys[key] = self.lives
        self.begun[ticket].append(fence)
        self.alive[ticket] = fence

    def take_end(self, ticket: str, fence: int) -> None:
        """A child process may end after its owner, and never after the next attempt has begun."""
        assert self.begun[ticket][-1] == fence, f"two attempts of {ticket} at a time"
        self.ended.add((ticket, fence))
        self.alive.pop(ticket, None)

    def end_life(self) -> None:
        if self.phase:
            self.phases["with handlers running" if self.alive else self.phase] += 1
        self.alive.clear()


@pytest.fixture(scope="module")
def directory(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    path = tmp_path_factory.mktemp("sigkill")
    live(path)
    yield path


def live(path: Path) -> None:
    """All lives, one after the other."""
    dice = random.Random(4)
    environment = os.environ | {"PYTHONPATH": str(WORKERS)}
    command = [sys.executable, "-m", "kit.killed", str(path / "data"), str(path / "log")]
    with subprocess.Popen(
        command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, env=environment
    ) as workers:
        assert workers.stdin is not None
        assert workers.stdout is not None
        for seed in range(LIVES):
            durability = "disk" if seed % 4 else "process"
            workers.stdin.write(f"go {seed} {durability}\n")
            workers.stdin.flush()
            pid = int(workers.stdout.readline())
            said = workers.stdout.readline() if seed % 3 else ""  # the others may die opening
            is_apart = said == "open\n" and seed % APART_EVERY == 0
            select.select([], [], [], dice.uniform(0.0, APART_S_MAX if is_apart else LIFE_S_MAX))
            os.kill(pid, signal.SIGKILL)
            while not said.startswith("died"):
                said = workers.stdout.readline()
            assert said == "died -9\n", Told(path / "log").errors
            if (seed + 1) % 100 == 0:
                print(f"{seed + 1} lives", flush=True)
        workers.stdin.close()


def test_fifty_kills_lose_nothing_that_was_acknowledged(directory: Path) -> None:
    told = Told(directory / "log")
    assert told.errors == []
    assert told.opened > LIVES // 2
    assert len(told.submitted) > 500
    engine = Engine(str(directory / "data"), threads=16, processes=2, include=[apart])
    declare(engine)
    with engine:
        runtime = runtime_of(engine)

        def left() -> int:
            counts = (shard.core.counters for shard in runtime.shards)
            return sum(
                count
                for counted in counts
                for (task, state), count in counted.items()
                if (state == PENDING and task != FAR) or state == RUNNING
            )

        # However many the lives have left: as long as they become fewer.
        before = runtime.host.call(left)
        while before:
            fewer = runtime.host.when(functools.partial(lambda before: left() < before, before))
            assert fewer.wait(PATIENCE_S), engine.stats()
            before = runtime.host.call(left)
        infos = {info.id: info for info in walk(engine.find, limit=1000)}
        check_tickets(told, infos)
        check_families(infos)
        lost = check_attempts(told, infos, engine)
        print(totals_of(told, infos, lost), flush=True)
        stats = engine.stats()
        assert stats.by_task == recount(engine)
        assert [shard.status for shard in stats.shards] == ["open"] * 3
        assert sum(shard.recoveries + shard.quarantined for shard in stats.shards) == 0
        assert sum(shard.journal_segments for shard in stats.shards) <= 3 * 20
    assert engine.stop().clean


def check_tickets(told: Told, infos: dict[str, TicketInfo]) -> None:
    lost = [each for each in told.submitted if each not in infos]
    assert lost == [], "an acknowledged submit was lost"
    assert {each: infos[each].task for each in told.submitted} == told.submitted
    many = {name: ids for name, ids in told.named.items() if len(ids) > 1}
    assert many == {}, "a unique named two tickets"
    states = Counter((told.cancels.get(each), infos[each].state) for each in told.cancels)
    assert {state for answer, state in states if answer == "cancelled"} == {"cancelled"}
    assert {state for answer, state in states if answer == "requested"} <= {"cancelled", "done"}
    assert {info.state for info in infos.values() if info.task == FAR} <= {"scheduled", "cancelled"}
    for info in infos.values():
        if info.task != FAR and info.id not in told.tried:
            assert info.state in ("done", "dead"), info
        if info.state == "dead" and not (info.task == "doomed" and info.id not in told.revived):
            assert info.dead_reason == "crashed", info
    assert {info.task for info in infos.values()} <= set(TASKS)
    keyed = {info.key for info in infos.values() if info.task == "keyed"}
    assert keyed <= {f"k{n}" for n in range(KEYS)}


def check_families(infos: dict[str, TicketInfo]) -> None:
    """Each recorded success has its children and its route, once, and nothing else has any."""
    done = {i.id for i in infos.values() if i.task == "parent" and i.state == "done"}
    for task, count in (("child", CHILDREN), ("receipt", 1)):
        born = Counter(info.summary for info in infos.values() if info.task == task)
        assert born == dict.fromkeys(done, count), task
    assert len(done) > LIVES // 2


def check_attempts(told: Told, infos: dict[str, TicketInfo], engine: Engine) -> int:
    """Each start has one outcome: its own, or that it was lost."""
    lost = 0
    for ticket, fences in told.begun.items():
        info = infos[ticket]
        assert fences == sorted(set(fences)), "a fence began twice, or after a later one"
        assert fences[-1] <= info.fence
        if info.fence == 1 and (ticket, 1) in told.ended and info.state == "done":
            continue
        rows = engine.ticket(ticket).attempts()
        assert [row.fence for row in rows] == list(range(1, info.fence + 1)), (ticket, rows)
        outcomes = {row.fence: row.outcome for row in rows}
        assert set(outcomes.values()) <= {"done", "error", "lost", "cancelled"}, outcomes
        assert info.attempts == info.fence or info.task == "doomed"
        for fence in fences:
            if (ticket, fence) not in told.ended:
                lost += 1
                assert outcomes[fence] in ("lost", "cancelled"), (ticket, fence, outcomes)
        if "lost" in outcomes.values():
            assert info.maybe_applied
    assert lost > 10, "kills met running handlers"
    return lost


def totals_of(told: Told, infos: dict[str, TicketInfo], lost: int) -> str:
    """What the lives came to, in lines."""
    states = Counter(info.state for info in infos.values())
    crashed = sum(info.dead_reason == "crashed" for info in infos.values())
    apart_count = sum(info.task == "crunch" for info in infos.values())
    lines = [
        f"{LIVES} lives, {told.opened} of them opened; killed "
        + ", ".join(f"{count} {phase}" for phase, count in sorted(told.phases.items())),
        f"{len(told.submitted)} submits, {len(told.cancels)} cancels and {len(told.revived)} "
        f"revivals acknowledged, {len(infos)} tickets, {apart_count} of them for child processes",
        f"{sum(map(len, told.begun.values()))} handlers begun, {len(told.ended)} ended, {lost} "
        f"lost; {sum(info.maybe_applied for info in infos.values())} tickets may have been applied",
        ", ".join(f"{count} {state}" for state, count in sorted(states.items()))
        + f"; {crashed} crashed as suspects",
    ]
    return "\n".join(lines)
