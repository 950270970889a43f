"""An attempt is given up in the moment in which its handler ends: it has one outcome all the same,
and what it has in hand is free once."""

import asyncio
import contextlib
import logging
import threading
from collections.abc import Iterator

import pytest

from kit.attempts import AttemptRig, released
from kit.stepped import Stepped, stepped
from parkade.deadlines import STOP_GRACE_MS
from parkade.shard.commands import Outcome


@pytest.fixture
def rig() -> Iterator[AttemptRig]:
    rig = AttemptRig()
    yield rig
    rig.executor.close()


@pytest.fixture
def shard() -> Iterator[Stepped]:
    with stepped() as shard:
        yield shard
        shard.finish()
        assert shard.attempts.running == 0, "a place was never freed"


def started(shard: Stepped) -> tuple[int, int]:
    """The serial and the fence of an attempt that has just begun."""
    shard.submit(shard.draft())
    shard.run()
    [job] = shard.handlers.alive.values()
    return job.serial, job.fence


class WhileItIsTold(logging.Handler):
    """Of the log line of an attempt that is given up: lets the handler end meanwhile."""

    def __init__(self, rig: AttemptRig, gate: threading.Event) -> None:
        super().__init__()
        self.rig, self.gate = rig, gate

    def emit(self, record: logging.LogRecord) -> None:
        self.gate.set()
        while self.rig.executor.zombies():
            continue


def test_what_a_zombie_says_does_not_overtake_that_it_is_one(rig: AttemptRig) -> None:
    @rig.tasks.task(timeout="2s")
    def slow() -> str:
        begun.set()
        released(gate)
        return "done after all"

    begun, gate = threading.Event(), threading.Event()
    rig.start(slow)
    released(begun)
    told = WhileItIsTold(rig, gate)
    logger = logging.getLogger("parkade.attempt")
    logger.addHandler(told)
    try:
        rig.pass_ms(2_000)
    finally:
        logger.removeHandler(told)
    outcomes = rig.await_count(2)
    assert [(each.kind, each.lives_on) for each in outcomes] == [("timeout", True), ("done", False)]


def test_given_up_and_ended_in_one_batch_it_holds_nothing_any_more(shard: Stepped) -> None:
    serial, fence = started(shard)
    del shard.handlers.alive[serial]
    given_up = Outcome(serial, fence, "timeout", wait_ms=5, lives_on=True)
    shard.attempts.settle_all([given_up, Outcome(serial, fence, "done")])
    shard.run()
    assert shard.attempts.running == 0
    shard.pass_ms(5)
    shard.run()
    assert [job.fence for job in shard.handlers.alive.values()] == [2], "its retry is held"


@pytest.mark.parametrize("lives_on", [True, False])
def test_what_is_said_of_an_older_attempt_takes_nothing_from_the_one_that_runs(
    shard: Stepped, lives_on: bool
) -> None:
    serial, fence = started(shard)
    shard.settle(shard.handlers.alive[serial], "transient")
    shard.run()
    assert shard.handlers.alive[serial].fence == 2
    shard.attempts.settle_all([Outcome(serial, fence, "timeout", lives_on=lives_on)])
    shard.run()
    assert shard.attempts.running == 1
    shard.settle(shard.handlers.alive[serial])
    shard.run()
    assert shard.witness.model.tickets[serial].state == 2


def test_a_zombie_whose_loop_is_closed_has_ended(rig: AttemptRig) -> None:
    """Nobody will step it again: its place and its ticket were held for ever."""
    loop = asyncio.new_event_loop()

    @rig.tasks.task(timeout="2s")
    async def stubborn() -> None:
        begun.set()
        while True:
            with contextlib.suppress(asyncio.CancelledError):
                await asyncio.Event().wait()

    begun = threading.Event()
    rig.executor.attach_loop(loop)
    rig.start(stubborn)
    loop.run_until_complete(asyncio.sleep(0))
    released(begun)
    rig.pass_ms(2_000)
    loop.run_until_complete(asyncio.sleep(0))
    rig.pass_ms(STOP_GRACE_MS)
    assert len(rig.executor.zombies()) == 1
    loop.run_until_complete(asyncio.sleep(0))
    loop.close()
    rig.executor.loop_lost()
    assert rig.executor.zombies() == []
    outcomes = rig.await_count(2)
    assert [(each.kind, each.lives_on) for each in outcomes] == [
        ("timeout", True),
        ("lease", False),
    ]
