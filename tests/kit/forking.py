"""An application that forks while its engine is open and busy, and prints what came of it.

    python -W ignore -m kit.forking DIRECTORY

Children are made by `multiprocessing` and by `os.fork`, from several threads that submit. Each
tries what can be called, and ends in one of the ways that a child can: the last line is `fine`.
"""

import asyncio
import gc
import multiprocessing
import os
import sys
import threading
from collections.abc import Callable
from typing import Any

from kit.engines import make, recount
from kit.process_tasks import add, tasks
from parkade import Engine, EngineInUse, ForkedEngine, Ticket

__all__ = ["main"]

FORKS = 2
SUBMITTERS = 3
PATIENCE_S = 20


class Application:
    def __init__(self, path: str) -> None:
        self.path = path
        self.engine = make(path, durability="process", processes=1, include=[tasks])
        self.double = self.engine.task(name="double")(lambda n: 2 * n)
        self.count = 0
        self.is_over = threading.Event()
        self.lock = threading.Lock()
        self.failed: list[BaseException] = []

    def run(self) -> None:
        with self.engine:
            assert self.engine.submit(add, 1, 2).result(PATIENCE_S) == 3  # a child process is there
            self.ticket = self.double.submit(1)
            self.events = self.engine.events()
            submitters = [threading.Thread(target=self.submit) for _ in range(SUBMITTERS)]
            for each in submitters:
                each.start()
            for number in range(FORKS):
                self.fork_by_multiprocessing(number)
                self.fork(number)
            self.is_over.set()
            for each in submitters:
                each.join(PATIENCE_S)
            assert self.failed == [], self.failed
            assert self.count > SUBMITTERS
            assert self.engine.submit(add, 3, 4).result(PATIENCE_S) == 7
            assert recount(self.engine) == self.engine.stats().by_task
            shards = self.engine.stats().shards
            assert [shard.recoveries + shard.refused_outcomes for shard in shards] == [0, 0]
            self.leave_one_behind()
            end_beside_an_engine_in_memory()
        with make(self.path, durability="process", include=[tasks]) as again:
            assert again.stats().by_task["double"] == {"done": self.count + 1}
        os.kill(self.left, 9)

    def submit(self) -> None:
        """Without a pause, so that a fork meets every lock held by somebody."""
        try:
            while not self.is_over.is_set():
                assert self.double.submit(3).result(PATIENCE_S) == 6
                with self.lock:
                    self.count += 1
        except BaseException as error:
            self.failed.append(error)

    def fork_by_multiprocessing(self, number: int) -> None:
        context = multiprocessing.get_context("fork")
        child = context.Process(target=self.be_child, args=(number,))
        child.start()
        child.join(PATIENCE_S)
        assert child.exitcode == 0, child.exitcode

    def fork(self, number: int) -> None:
        child = os.fork()
        if child == 0:
            try:
                self.be_child(number)
            except BaseException as error:
                os.write(2, repr(error).encode())
                os._exit(1)
            if number % 2:
                sys.exit(0)  # out of the block of the engine, with all that runs at the end
            os._exit(0)
        assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0

    def be_child(self, number: int) -> None:
        for name, call in enumerate(self.calls()):
            try:
                call()
            except ForkedEngine as error:
                assert error.code == "PK-102", error
                assert str(os.getppid()) in str(error), error
            else:
                raise AssertionError(f"call {name} was let through")
        with make(f"{self.path}-{os.getpid()}", include=[]) as own:
            assert own.task(name="own")(lambda: 5).submit().result(PATIENCE_S) == 5
        try:
            make(self.path).start()
        except EngineInUse as error:
            assert error.pid == os.getppid(), error
        else:
            raise AssertionError("the directory has an owner")
        if number == 0:
            del self.engine, self.double, self.ticket, self.events
            gc.collect()

    def calls(self) -> list[Callable[[], Any]]:
        engine: Engine = self.engine
        ticket: Ticket[int] = self.ticket
        return [
            lambda: self.double.submit(1),
            lambda: engine.submit_many([self.double.call(1)]),
            lambda: asyncio.run(self.double.asubmit(1)),
            ticket.result,
            ticket.info,
            ticket.why,
            ticket.attempts,
            ticket.cancel,
            lambda: ticket.reschedule(delay="1h"),
            lambda: asyncio.run(ticket.ainfo()),
            lambda: next(ticket.watch()),
            lambda: next(iter(self.events)),
            engine.events,
            engine.find,
            engine.stats,
            engine.health,
            lambda: engine.pause(task="double"),
            lambda: engine.dead.revive("x"),
            engine.start,
            engine.stop,
        ]

    def leave_one_behind(self) -> None:
        """A child that goes on when the engine is stopped keeps nothing of it."""
        self.left = os.fork()
        if self.left == 0:
            os.read(0, 1)
            os._exit(0)


def end_beside_an_engine_in_memory() -> None:
    """Its directory goes with it, and with no fork of its process."""
    with Engine(durability="memory", shards=1) as engine:
        task = engine.task(name="one")(lambda: 1)
        child = os.fork()
        if child == 0:
            sys.exit(0)
        assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
        place = engine.desk("fork").runtime.directory.path
        assert os.path.exists(f"{place}/manifest.json")
        assert task.submit().result(PATIENCE_S) == 1
    assert not os.path.exists(place)


def main() -> None:
    Application(sys.argv[1]).run()
    print("fine", flush=True)


if __name__ == "__main__":
    main()
