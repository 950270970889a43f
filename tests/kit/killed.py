"""A process that works on a directory until it is killed, and says what it was told.

    python -m kit.killed DIRECTORY LOG

A line `go SEED DURABILITY` on its input makes it fork a worker and print the worker's pid. The
worker prints `open` once it is; when it has died `died` is printed, and how. Forking saves the
start of an interpreter a round; the parent of the forks never opens an engine. What the workers
write to LOG is one line a write, so that a kill leaves whole lines:

    life WHO                a worker begins to open
    open WHO                it has opened
    S ID TASK               a submit was acknowledged
    U NAME ID               a submit with a unique was acknowledged with this ticket
    T ID                    it is about to be cancelled
    C ID ANSWER             its cancel was acknowledged
    R ID                    its revival was acknowledged
    H ID FENCE KEY          a handler begins, here or in a child process
    E ID FENCE KEY          it ends
    !                       an error that should not be
"""

import os
import random
import signal
import sys
import threading
import traceback
from collections.abc import Callable
from contextlib import suppress
from typing import Any

from parkade import (
    Attempt,
    Backoff,
    Engine,
    Fail,
    Outcome,
    RetryPolicy,
    Task,
    Tasks,
    TicketFailed,
    limits,
)

__all__ = ["APART_EVERY", "CHILDREN", "FAR", "KEYS", "TASKS", "apart", "declare"]

KEYS = 6
FAR = "far"  # due in hours to years: never in a test
TASKS = (
    "quick", "flaky", "slow", "keyed", "named", "parent", "child", "receipt", "doomed", "crunch",
    FAR,
)  # fmt: skip
CHILDREN = 2  # of each parent, in shards of their own keys
APART_EVERY = 8  # of so many lives one has child processes: each takes an interpreter's start
AGAIN = RetryPolicy(1000, backoff=Backoff("5ms", factor=1.5, cap="40ms"))


Run = Callable[[Attempt, Callable[[], int]], int]


class Log:
    """Lines that are in the kernel's hands when `tell` returns."""

    def __init__(self, path: str) -> None:
        self.path = path
        self._file = os.open(path, os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o600)

    def tell(self, *words: object) -> None:
        os.write(self._file, (" ".join(map(str, words)) + "\n").encode())


apart = Tasks()


@apart.task(where="process", retry=AGAIN)
def crunch(attempt: Attempt, log_path: str, n: int) -> int:
    """In a child process, which may outlive its owner by a moment."""
    log = Log(log_path)
    log.tell("H", attempt.ticket_id, attempt.fence, "-")
    threading.Event().wait(n % 5 / 50)
    log.tell("E", attempt.ticket_id, attempt.fence, "-")
    return n


def declare(engine: Engine, log: Log | None = None) -> "dict[str, Task[Any, Any]]":
    """The tasks of all lives. With a log their handlers tell it of themselves and dawdle."""
    dawdle = threading.Event()

    def run(attempt: Attempt, work: Callable[[], int]) -> int:
        if log is None:
            return 0
        about = (attempt.ticket_id, attempt.fence, attempt.key or "-")
        log.tell("H", *about)
        try:
            return work()
        finally:
            log.tell("E", *about)

    @engine.task(retry=AGAIN)
    def quick(attempt: Attempt, n: int) -> int:
        return run(attempt, lambda: n)

    @engine.task(retry=AGAIN)
    def flaky(attempt: Attempt, n: int) -> int:
        def work() -> int:
            if attempt.number % 3:
                raise OSError(f"attempt {attempt.number}")
            return n

        return run(attempt, work)

    @engine.task(retry=AGAIN)
    def slow(attempt: Attempt, n: int) -> int:
        return run(attempt, lambda: n + dawdle.wait(0.02 + n % 10 / 40))

    @engine.task(retry=AGAIN, key="k{n}")
    def keyed(attempt: Attempt, n: int) -> int:
        return run(attempt, lambda: n + dawdle.wait(0.002))

    @engine.task(retry=AGAIN)
    def named(attempt: Attempt, n: int) -> int:
        return run(attempt, lambda: n)

    @engine.task
    def far(n: int) -> int:
        raise AssertionError("it is not due for hours")

    tasks = (quick, flaky, slow, keyed, named, far)
    return {task.name: task for task in tasks} | declare_family(engine, run)


def declare_family(engine: Engine, run: Run) -> "dict[str, Task[Any, Any]]":
    """Those that have children and a route, and one that dies until somebody revives it."""

    @engine.task(retry=AGAIN, key="c{n}", summary="{parent}")
    def child(attempt: Attempt, parent: str, n: int) -> int:
        return run(attempt, lambda: n)

    @engine.task(retry=AGAIN, key="r{outcome.attempts}", summary="{outcome.ticket_id}")
    def receipt(attempt: Attempt, outcome: Outcome[int]) -> int:
        return run(attempt, lambda: outcome.attempts)

    @engine.task(retry=AGAIN, on_done=receipt)
    def parent(attempt: Attempt, n: int) -> int:
        for number in range(CHILDREN):
            attempt.submit(child.call(attempt.ticket_id, n + number))
        return run(attempt, lambda: n)

    @engine.task(retry=AGAIN)
    def doomed(attempt: Attempt, n: int) -> int:
        def work() -> int:
            if attempt.number == attempt.fence:  # as long as nobody revived it
                raise Fail("not yet")
            return n

        return run(attempt, work)

    return {task.name: task for task in (child, receipt, parent, doomed)}


class Worker:
    """One life: opens, submits from several threads, and goes on until it is killed."""

    def __init__(self, path: str, log: Log, seed: int, durability: Any) -> None:
        self.log = log
        self.seed = seed
        # Otherwise no life is long enough to meet one.
        limits.CHECKPOINT_AGE_MS = 40 + seed % 5 * 30
        limits.RETENTION_PAUSE_MS_MAX = 100
        self.engine = Engine(path, threads=8, shards=3, processes=2, durability=durability)
        self.tasks = declare(self.engine, log)
        if seed % APART_EVERY == 0:
            self.engine.include(apart)

    def run(self) -> None:
        self.log.tell("life", self.seed)
        self.engine.start()
        self.log.tell("open", self.seed)
        print("open", flush=True)
        kinds: list[Callable[[random.Random], None]] = [
            self.one_by_one,
            self.one_by_one,
            self.many,
            self.unique,
            self.cancel,
            self.family,
            self.revive,
        ]
        if self.seed % APART_EVERY == 0:
            kinds.append(self.in_a_process)
        for number, kind in enumerate(kinds):
            dice = random.Random(self.seed * 100 + number)
            threading.Thread(target=self.for_ever, args=(kind, dice), daemon=True).start()
        signal.pause()

    def for_ever(self, kind: Callable[[random.Random], None], dice: random.Random) -> None:
        try:
            while True:
                kind(dice)
        except BaseException:
            self.log.tell("!", traceback.format_exc().replace("\n", "|"))
            os._exit(3)

    def one_by_one(self, dice: random.Random) -> None:
        name = dice.choice(("quick", "flaky", "slow", "keyed", "quick", FAR))
        task = self.tasks[name]
        if name == FAR:
            task = task.options(delay=dice.choice(("2h", "9h", "3d", "1y")))
        elif dice.random() < 0.2:
            task = task.options(delay=dice.choice(("1ms", "30ms", "200ms")))
        n = dice.randrange(KEYS) if name == "keyed" else dice.randrange(1000)
        self.log.tell("S", task.submit(n).id, name)

    def many(self, dice: random.Random) -> None:
        calls = [
            self.tasks[FAR].options(delay="5h").call(n) if n % 4 else self.tasks["quick"].call(n)
            for n in range(dice.randrange(1, 60))
        ]
        for ticket in self.engine.submit_many(calls):
            self.log.tell("S", ticket.id, ticket.task)

    def unique(self, dice: random.Random) -> None:
        name = f"u{dice.randrange(400)}"
        ticket = self.tasks["named"].options(unique=name).submit(1)
        self.log.tell("U", name, ticket.id)

    def family(self, dice: random.Random) -> None:
        self.log.tell("S", self.tasks["parent"].submit(dice.randrange(100)).id, "parent")

    def in_a_process(self, dice: random.Random) -> None:
        """One after the other, so that few are left to the lives that have no process for them."""
        ticket = self.engine.submit(crunch, self.log.path, dice.randrange(100))
        self.log.tell("S", ticket.id, "crunch")
        ticket.result()

    def revive(self, dice: random.Random) -> None:
        ticket = self.tasks["doomed"].submit(dice.randrange(100))
        self.log.tell("S", ticket.id, "doomed")
        with suppress(TicketFailed):
            ticket.result()
        if self.engine.dead.revive(ticket.id, accept_ambiguous=True).changed:
            self.log.tell("R", ticket.id)

    def cancel(self, dice: random.Random) -> None:
        task = self.tasks[dice.choice((FAR, FAR, "slow", "quick"))]
        if task.name == FAR:
            task = task.options(delay="3h")
        ticket = task.submit(dice.randrange(100))
        self.log.tell("S", ticket.id, ticket.task)
        self.log.tell("T", ticket.id)
        self.log.tell("C", ticket.id, ticket.cancel("no more"))


def main() -> None:
    path, log_path = sys.argv[1:]
    log = Log(log_path)
    for line in sys.stdin:
        _, seed, durability = line.split()
        pid = os.fork()
        if pid == 0:
            try:
                Worker(path, log, int(seed), durability).run()
            except BaseException:
                log.tell("!", traceback.format_exc().replace("\n", "|"))
            os._exit(4)
        print(pid, flush=True)
        _, status = os.waitpid(pid, 0)
        print("died", os.waitstatus_to_exitcode(status), flush=True)


if __name__ == "__main__":
    main()
