"""One ticket, watched: how it stands, what happens to it, and its end; whatever comes between."""

import asyncio
import errno
import threading
from collections.abc import Iterator, Sequence
from pathlib import Path

import pytest

from kit.engines import PATIENCE_S, hold_handlers, make, rig, runtime_of, when
from kit.failing import recovered
from parkade import Attempt, Engine, Event, Fail, UnknownTicket, current_attempt
from parkade.store.disk import Handle, RealDisk
from parkade.testing import TestEngine


@pytest.fixture
def engine(tmp_path: Path) -> Iterator[Engine]:
    with make(tmp_path / "data") as engine:
        yield engine


def kinds(events: "list[Event]") -> list[str]:
    return [event.kind for event in events]


def test_a_watch_tells_how_a_ticket_stands_and_then_what_happens_to_it(
    parkade_engine: TestEngine,
) -> None:
    engine = parkade_engine

    @engine.task(retry=["1h"])
    def flaky(n: int) -> None:
        raise OSError("no route")

    ticket = flaky.options(delay="1d").submit(1)
    watch = ticket.watch()
    assert next(watch).kind == "submitted"
    other = flaky.submit(2)
    engine.clock.advance("1d")
    engine.run_until_idle()
    assert [next(watch).kind for _ in range(2)] == ["started", "retrying"]
    engine.clock.advance("1h")
    engine.run_until_idle()
    events = list(watch)
    assert kinds(events) == ["started", "dead"]
    assert {event.ticket_id for event in events} == {ticket.id}
    assert kinds(list(other.watch())) == ["dead"], "the end alone, of what has ended"
    with pytest.raises(StopIteration):
        next(watch)


def test_the_first_event_says_what_is_known_of_how_it_came_to_stand_there(
    parkade_engine: TestEngine,
) -> None:
    engine = parkade_engine
    begun = engine.clock.now()

    @engine.task(retry=["1h"])
    def flaky(how: str) -> None:
        raise OSError("no route") if how == "retry" else Fail("gone")

    waiting, retried, dead = (
        flaky.options(delay="1d").submit("retry"), flaky.submit("retry"), flaky.submit("fail"),
    )  # fmt: skip
    engine.run_until_idle()
    first = next(waiting.watch())
    assert (first.kind, first.at) == ("submitted", begun)
    assert first.data["due_at"] == waiting.info().due_at
    first = next(retried.watch())
    assert (first.kind, first.data["error"], first.data["attempt"]) == ("retrying", "no route", 1)
    first = next(dead.watch())
    assert (first.kind, first.data["reason"], first.data["error"]) == ("dead", "failed", "gone")
    with engine.events(since=first.seq) as events:
        assert list(events) == [], "its number is that of the latest event"
    waiting.cancel("not needed")
    assert [(event.kind, event.data) for event in waiting.watch()] == [
        ("cancelled", {"reason": "not needed"})
    ]


@pytest.mark.parametrize("turn", range(5))
def test_no_event_is_missed_or_told_twice_between_the_look_and_the_rest(
    engine: Engine, turn: int
) -> None:
    """Many watch from when they have submitted, while their tickets run."""
    task = engine.task(name="note", retry=["1ms"] * 3)(flaky)
    told: list[list[Event]] = []

    def submit_and_watch(n: int) -> None:
        told.append(list(task.submit(n).watch("20s")))

    async def asubmit_and_watch(n: int) -> None:
        told.append([event async for event in (await task.asubmit(n)).awatch("20s")])

    async def many() -> None:
        await asyncio.gather(*(asubmit_and_watch(n) for n in range(20)))

    threads = [threading.Thread(target=submit_and_watch, args=(n,)) for n in range(20)]
    threads.append(threading.Thread(target=lambda: asyncio.run(many())))
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(PATIENCE_S)
    assert len(told) == 40
    whole = ["submitted", "started", "retrying", "started", "retrying", "started", "done"]
    for events in told:
        assert kinds(events) == whole[-len(events) :], "without a gap, from where it stood"
        numbers = [event.seq for event in events]
        assert numbers == sorted(set(numbers))
    assert not vars(runtime_of(engine).host.feed)["_watching"], "nobody is left behind"


def flaky(n: int) -> int:
    if current_attempt().number < 3:
        raise OSError("not yet")
    return n


def test_a_watch_ends_when_its_time_is_up_or_the_engine_stops(tmp_path: Path) -> None:
    engine = make(tmp_path / "data").start()
    task = engine.task(name="note")(lambda n: n)
    ticket = task.options(delay="1h").submit(1)
    assert kinds(list(ticket.watch(0))) == ["submitted"]

    async def aside() -> list[str]:
        return kinds([event async for event in ticket.awatch("10ms")])

    assert asyncio.run(aside()) == ["submitted"]
    ended: list[list[str]] = []
    threads = [
        threading.Thread(target=lambda: ended.append(kinds(list(ticket.watch())))) for _ in range(3)
    ]
    for thread in threads:
        thread.start()
    feed = runtime_of(engine).host.feed
    when(engine, lambda _: sum(map(len, vars(feed)["_watching"].values())) == 3)
    engine.stop()
    for thread in threads:
        thread.join(PATIENCE_S)
    assert ended == [["submitted"]] * 3


def test_progress_is_told_as_it_comes_and_not_too_often(parkade_engine: TestEngine) -> None:
    engine = parkade_engine

    @engine.task
    def load(attempt: Attempt) -> None:
        for done in range(4):
            attempt.progress(done, 10, f"row {done}")
            engine.clock.advance("125ms")
        attempt.progress(9, 10)
        attempt.progress(10, 10, "all of it")

    events = engine.events("started", "progress", "done")
    ticket = load.submit()
    watch = ticket.watch()
    assert next(watch).kind == "submitted"
    engine.run_until_idle()
    told = list(watch)
    assert kinds(told) == ["started", *["progress"] * 4, "done"]
    assert [event.data["done"] for event in told[1:-1]] == [0, 2, 9, 10]
    assert told[1].data == {"done": 0, "total": 10, "message": "row 0"}
    assert list(events) == told


def test_a_watch_that_is_broken_off_leaves_nothing_behind(engine: Engine) -> None:
    task = engine.task(name="note")(lambda n: n)
    ticket = task.options(delay="1h").submit(1)
    for event in ticket.watch():
        assert event.kind == "submitted"
        break

    async def break_off() -> None:
        async for event in ticket.awatch():
            assert event.kind == "submitted"
            break

    asyncio.run(break_off())
    feed = runtime_of(engine).host.feed
    when(engine, lambda _: not vars(feed)["_watching"])


def test_an_unknown_ticket_cannot_be_watched(engine: Engine) -> None:
    task = engine.task(name="note")(lambda n: n)
    known = task.options(delay="1h").submit(1).id
    missing = ("0" if known[0] != "0" else "1") + known[1:]
    for watch in (engine.ticket(missing).watch(), engine.ticket("nonsense").watch()):
        with pytest.raises(UnknownTicket):
            next(watch)
    assert not vars(runtime_of(engine).host.feed)["_watching"]


def test_a_handler_may_not_wait_by_watching_another_ticket(engine: Engine) -> None:
    @engine.task(retry=1)
    def watches(ticket_id: str) -> list[str]:
        return [event.kind for event in engine.ticket(ticket_id).watch()]

    waiting = watches.options(delay="1h").submit("")
    ticket = watches.submit(waiting.id)
    *_, end = ticket.watch("20s")
    assert (end.kind, end.data["error_type"]) == ("dead", "WaitInsideAttempt")


class UntoldDisk(RealDisk):
    """Writes, and then says that it could not, when it is told to `lie` the next time."""

    def __init__(self) -> None:
        super().__init__()
        self.lie = False

    def pwrite_durable(self, handle: Handle, buffers: Sequence[bytes], offset: int) -> None:
        super().pwrite_durable(handle, buffers, offset)
        if self.lie:
            self.lie = False
            raise OSError(errno.EIO, "the sync failed")


def test_an_end_that_came_through_a_failure_is_seen_all_the_same(tmp_path: Path) -> None:
    """The frame was written and its sync failed: no event tells of it, and it is there."""
    disk = UntoldDisk()
    with (
        hold_handlers() as gate,
        rig(make(tmp_path / "data", shards=1, durability="disk"), disk=disk) as engine,
    ):

        @engine.task
        def held(n: int) -> int:
            gate.enter()
            return n

        ticket = held.submit(1)
        gate.wait()
        told: list[str] = []
        watching = threading.Thread(target=lambda: told.extend(kinds(list(ticket.watch("20s")))))
        watching.start()
        feed = runtime_of(engine).host.feed
        when(engine, lambda _: bool(vars(feed)["_watching"]))
        disk.lie = True
        gate.open()
        watching.join(PATIENCE_S)
        assert told[-1] == "done"
        assert set(told) == {"started", "done"}
        recovered(engine)
