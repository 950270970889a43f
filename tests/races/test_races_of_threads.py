"""The same races with real threads over a real engine: a hundred of each.

In most of them both sides go off at once, and who comes first is the machine's affair; in one of
ten the one side has done all that it does before the other begins, so each of them does win.
"""

import threading
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from typing import Any, ClassVar

import pytest

from kit.clock import ManualClock
from kit.engines import PATIENCE_S, make, recount, when
from kit.races import LEFT, RIGHT, Tally
from parkade import Engine, Ticket, TicketCancelled
from parkade.runtime import Runtime

RUNS = 100
ALONE_EVERY = 10


class Handlers:
    """An engine with one task, whose attempts stay at a gate of their own until it is opened."""

    def __init__(self, engine: Engine) -> None:
        self.engine = engine
        self.gates: dict[int, tuple[threading.Event, threading.Event]] = {}
        self.begun: list[int] = []
        self.live: set[int] = set()

        @engine.task(retry=["1ms", "1ms"])
        def work(n: int, fails: int) -> int:
            assert n not in self.live, "two attempts of one ticket at a time"
            self.live.add(n)
            self.begun.append(n)
            came, gate = self.gates[n]
            came.set()
            assert gate.wait(PATIENCE_S)
            self.live.discard(n)
            if self.begun.count(n) <= fails:
                raise ConnectionError
            return n

        @engine.task(retry=1)
        def die(n: int) -> int:
            raise ConnectionError

        self.work, self.die = work, die

    def make(self, n: int, is_open: bool = False) -> None:
        self.gates[n] = threading.Event(), threading.Event()
        if is_open:
            self.gates[n][1].set()

    def open(self, n: int) -> None:
        self.gates[n][1].set()

    def wait_for(self, n: int) -> None:
        assert self.gates[n][0].wait(PATIENCE_S)


class ThreadRace:
    """One of them: the two sides, and afterwards who won. `n` is its number."""

    name: str
    sides: tuple[str, str]
    ticket: Ticket[Any]

    def __init__(self, handlers: Handlers, n: int) -> None:
        self.handlers, self.engine, self.n = handlers, handlers.engine, n
        self.answer: Any = None

    def prepare(self) -> None:
        self.handlers.make(self.n)
        self.ticket = self.handlers.work.submit(self.n, 0)
        self.handlers.wait_for(self.n)

    def left(self) -> None:
        self.answer = self.ticket.cancel("enough")

    def right(self) -> None:
        self.handlers.open(self.n)

    def is_right_through(self) -> None:
        """Returns when all that the right side leads to has happened."""
        self.ticket.result()

    def judge(self) -> str:
        raise NotImplementedError


class CancelAndStart(ThreadRace):
    name, sides = "cancel against start", ("cancel", "start")

    def prepare(self) -> None:
        self.handlers.make(self.n, is_open=True)
        self.engine.pause(task="work")
        self.ticket = self.handlers.work.submit(self.n, 0)

    def right(self) -> None:
        self.engine.resume(task="work")

    def judge(self) -> str:
        if self.answer == "cancelled":
            assert self.ticket.info().state == "cancelled"
            assert self.n not in self.handlers.begun, "a cancelled ticket was started"
            return LEFT
        try:
            assert self.ticket.result() == self.n
        except TicketCancelled:
            # Asked for between the start and the handler, which is not called any more.
            assert self.answer == "requested"
            assert self.n not in self.handlers.begun
        return RIGHT


class CancelAndCompletion(ThreadRace):
    name, sides = "cancel against completion", ("cancel", "completion")

    def judge(self) -> str:
        assert self.ticket.result() == self.n
        assert self.answer in ("requested", "too_late")
        return LEFT if self.answer == "requested" else RIGHT


class CancelAndRetry(ThreadRace):
    name, sides = "cancel against retry", ("cancel", "retry")

    def prepare(self) -> None:
        self.handlers.make(self.n)
        self.ticket = self.handlers.work.submit(self.n, 1)
        self.handlers.wait_for(self.n)

    def judge(self) -> str:
        """Asked in the first attempt there is no second; in the wait, or in the second, too late
        to prevent it or not."""
        tries = self.handlers.begun.count(self.n)
        if self.answer == "too_late" or tries == 2:
            assert self.ticket.result() == self.n
            return RIGHT
        with pytest.raises(Exception, match="cancelled"):
            self.ticket.result()
        assert tries == 1
        return LEFT if self.answer == "requested" else RIGHT


class ReviveAndDrop(ThreadRace):
    name, sides = "revive against drop", ("revive", "drop")

    def prepare(self) -> None:
        self.ticket = self.handlers.die.submit(self.n)
        with pytest.raises(Exception, match="died"):
            self.ticket.result()

    def left(self) -> None:
        self.answer = self.engine.dead.revive(self.ticket.id).changed

    def right(self) -> None:
        self.dropped = self.engine.dead.drop(self.ticket.id).changed

    def is_right_through(self) -> None:
        return

    def judge(self) -> str:
        if not self.answer:
            assert self.dropped == 1
            return RIGHT
        # Revived first, it may have died again before the drop came.
        assert self.ticket.id not in {i.id for i in self.engine.dead.find()} or not self.dropped
        return LEFT


class UniqueAndCompletion(ThreadRace):
    name, sides = "unique submit against completion", ("submit", "completion")

    def prepare(self) -> None:
        self.handlers.make(self.n)
        self.named = self.handlers.work.options(unique=f"u{self.n}", unique_for="active")
        self.ticket = self.named.submit(self.n, 0)
        self.handlers.wait_for(self.n)

    def left(self) -> None:
        self.answer = self.named.submit(self.n, 0)

    def judge(self) -> str:
        assert self.ticket.result() == self.n
        assert self.answer.result() == self.n
        assert self.answer.created is (self.answer.id != self.ticket.id)
        assert self.handlers.begun.count(self.n) == 1 + self.answer.created
        return RIGHT if self.answer.created else LEFT


class PauseAndDue(ThreadRace):
    name, sides = "pause against due", ("pause", "due")

    def prepare(self) -> None:
        self.handlers.make(self.n, is_open=True)

    def left(self) -> None:
        self.engine.pause(task="work")

    def right(self) -> None:
        self.ticket = self.handlers.work.submit(self.n, 0)

    def judge(self) -> str:
        """Held and not running, or through."""
        info = self.ticket.info()
        is_held = info.state == "ready"
        self.engine.resume(task="work")
        assert self.ticket.result() == self.n
        assert self.handlers.begun.count(self.n) == 1
        return LEFT if is_held else RIGHT


class TimeoutAndCompletion(ThreadRace):
    """By a clock that stands until the one side moves it."""

    name, sides = "timeout against completion", ("timeout", "completion")
    settings: ClassVar[dict[str, Any]] = {"timeout": "2s"}
    outcome = "timeout"

    def __init__(self, handlers: Handlers, n: int, clock: ManualClock) -> None:
        super().__init__(handlers, n)
        self.clock = clock

    def prepare(self) -> None:
        self.handlers.make(self.n)
        self.ticket = self.handlers.engine.lookup("timed").submit(self.n, 0)
        self.handlers.wait_for(self.n)

    def left(self) -> None:
        self.clock.advance(2_000)

    def is_right_through(self) -> None:
        self.ticket.result()

    def judge(self) -> str:
        serial = self.engine.desk("test").parse(self.ticket.id).serial
        when(
            self.engine,
            lambda runtime: (
                runtime.attempts.running == 0 and not runtime.attempts.is_outlived(serial)
            ),
        )
        tries = [attempt.outcome for attempt in self.ticket.attempts()]
        assert tries in (["done"], [self.outcome])
        if tries == ["done"]:
            assert not self.ticket.info().maybe_applied
            return RIGHT
        assert self.ticket.info().maybe_applied
        self.clock.advance(1_000)
        assert self.ticket.result() == self.n
        assert self.handlers.begun.count(self.n) == 2
        return LEFT


class LeaseLossAndCompletion(TimeoutAndCompletion):
    name, sides = "lease loss against completion", ("lease loss", "completion")
    settings: ClassVar[dict[str, Any]] = {"lease": "2s"}
    outcome = "lost"


RACES = (
    CancelAndStart, CancelAndCompletion, CancelAndRetry, ReviveAndDrop, UniqueAndCompletion,
    PauseAndDue,
)  # fmt: skip


@pytest.fixture
def handlers(tmp_path: Path) -> Iterator[Handlers]:
    engine = make(tmp_path, threads=4)
    handlers = Handlers(engine)
    with engine:
        yield handlers
        assert engine.stats().by_task == recount(engine)
        assert not handlers.live


@pytest.mark.parametrize("kind", RACES, ids=lambda kind: kind.name)
def test_a_hundred_races_of_threads(
    kind: type[ThreadRace], handlers: Handlers, tally: Tally
) -> None:
    won = set()
    for n in range(RUNS):
        race = kind(handlers, n)
        race.prepare()
        if n % ALONE_EVERY == 0:
            race.left()
            race.right()
        elif n % ALONE_EVERY == 1:
            race.right()
            race.is_right_through()
            race.left()
        else:
            at_once(race.left, race.right)
        winner = race.judge()
        won.add(winner)
        tally.add("threads", kind.name, kind.sides, winner)
    assert won == {LEFT, RIGHT}


@pytest.mark.parametrize(
    "kind", [TimeoutAndCompletion, LeaseLossAndCompletion], ids=lambda kind: kind.name
)
def test_a_hundred_races_against_the_clock(
    kind: type[TimeoutAndCompletion], tmp_path: Path, tally: Tally
) -> None:
    clock = ManualClock()
    engine = make(tmp_path, threads=4, clock=clock)
    handlers = Handlers(engine)
    work = handlers.work.handler.fn
    engine.task(name="timed", retry=["1s"], **kind.settings)(work)
    won = set()
    with engine:
        for n in range(RUNS):
            race = kind(handlers, n, clock)
            race.prepare()
            if n % ALONE_EVERY == 1:
                race.right()
                race.is_right_through()
                race.left()
            elif n % ALONE_EVERY == 0:
                race.left()
                serial = engine.desk("test").parse(race.ticket.id).serial
                when(engine, partial(is_outlived, serial))
                race.right()
            else:
                at_once(race.left, race.right)
            winner = race.judge()
            won.add(winner)
            tally.add("threads", kind.name, kind.sides, winner)
        assert engine.stats().by_task == {"timed": {"done": RUNS}}
    assert won == {LEFT, RIGHT}


def is_through(serial: int, runtime: Runtime) -> bool:
    """Whether nobody makes an attempt of it, and no older one goes on."""
    attempts = runtime.attempts
    return attempts.running == 0 and not attempts.is_outlived(serial)


def is_outlived(serial: int, runtime: Runtime) -> bool:
    return runtime.attempts.is_outlived(serial)


def at_once(*sides: Callable[[], None]) -> None:
    """Each in a thread of its own, all from the same moment."""
    barrier = threading.Barrier(len(sides))
    errors: list[BaseException] = []

    def go(side: Callable[[], None]) -> None:
        barrier.wait(PATIENCE_S)
        try:
            side()
        except BaseException as error:
            errors.append(error)

    threads = [threading.Thread(target=go, args=(side,)) for side in sides]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(PATIENCE_S)
    assert not errors, errors
    assert not any(thread.is_alive() for thread in threads)
