"""Rescheduling: earlier, later, now; and what is not pending stays as it is."""

import asyncio
from datetime import datetime, timedelta
from pathlib import Path
from typing import Any

import pytest

from kit.engines import checkpoint, hold_handlers, make
from parkade import BlockingInEventLoop, ConfigError, NaiveDatetime, UnknownTicket
from parkade.testing import ManualClock, TestEngine


@pytest.mark.parametrize("is_parked", [False, True], ids=["hot", "parked"])
def test_a_sleeper_is_due_when_it_was_told(tmp_path: Path, is_parked: bool) -> None:
    clock = ManualClock()
    with make(tmp_path / "data", run=False, clock=clock) as engine:
        task = engine.task(name="note")(lambda n: n)
        ticket = task.options(delay="30d").submit(1)
        if is_parked:
            checkpoint(engine)
        assert ticket.reschedule(delay="1h")
        assert ticket.info().due_at == clock.now() + timedelta(hours=1)
        assert ticket.reschedule(at=clock.now() + timedelta(days=400))
        assert ticket.info().due_at == clock.now() + timedelta(days=400)
        assert ticket.reschedule(at=clock.now() - timedelta(days=1))
        assert (ticket.info().due_at, ticket.info().state) == (clock.now(), "ready")
        if is_parked:
            checkpoint(engine)
        assert ticket.reschedule(delay="1h")
        assert ticket.info().state == "scheduled"


def test_to_run_a_ticket_now_is_to_reschedule_it_to_now(tmp_path: Path) -> None:
    with make(tmp_path / "data") as engine:
        task = engine.task(name="note")(lambda n: n + 1)
        ticket = task.options(delay="30d").submit(1)
        checkpoint(engine)
        assert ticket.reschedule(delay=0)
        assert ticket.result("20s") == 2
        assert not ticket.reschedule(delay=0), "it has ended"


def test_what_runs_is_not_rescheduled_and_what_is_held_is(tmp_path: Path) -> None:
    with make(tmp_path / "data", threads=1) as engine, hold_handlers() as gate:

        @engine.task(name="hold", key="k")
        def hold(n: int) -> int:
            gate.enter()
            return n

        running = hold.submit(1)
        gate.wait()
        held, next_one = hold.submit(2), hold.submit(3)
        assert not running.reschedule(delay="1h")
        assert held.reschedule(delay="1h")
        assert held.info().state == "scheduled"
        gate.open()
        assert next_one.result("20s") == 3
        assert held.info().attempts == 0
        assert held.reschedule(delay=0)
        assert held.result("20s") == 2


def test_a_ticket_in_backoff_runs_when_it_is_told_to(parkade_engine: TestEngine) -> None:
    engine = parkade_engine
    runs: list[datetime] = []

    @engine.task(retry=["10h", "10h"])
    def flaky() -> str:
        runs.append(engine.clock.now())
        if len(runs) < 3:
            raise OSError("down")
        return "up"

    ticket = flaky.submit()
    engine.run_until_idle()
    assert ticket.reschedule(delay="1m")
    engine.clock.advance("1m")
    engine.run_until_idle()
    assert ticket.reschedule(at=engine.clock.now())
    engine.run_until_idle()
    assert ticket.result() == "up"
    assert runs[-1] - runs[0] == timedelta(minutes=1)
    assert [attempt.number for attempt in ticket.attempts()] == [1, 2, 3]


def test_the_expiry_goes_along_while_it_never_started(parkade_engine: TestEngine) -> None:
    engine = parkade_engine
    task = engine.task(name="note", expires="1h")(lambda: "done")
    ticket = task.options(delay="1d").submit()
    assert ticket.reschedule(delay="2d")
    engine.clock.advance("26h")
    engine.run_until_idle()
    assert ticket.info().state == "scheduled"
    engine.clock.advance("23h")
    engine.run_until_idle()
    assert ticket.info().state in ("expired", "done")


@pytest.mark.parametrize(
    "given",
    [{}, {"delay": 1, "at": datetime(2030, 1, 1).astimezone()}, {"delay": -1}, {"at": "noon"}],
    ids=str,
)
def test_exactly_one_of_delay_and_at_is_given(tmp_path: Path, given: Any) -> None:
    with make(tmp_path / "data", run=False) as engine:
        ticket = engine.task(name="note")(lambda: 1).options(delay="1h").submit()
        with pytest.raises(ConfigError):
            ticket.reschedule(**given)
        with pytest.raises(NaiveDatetime):
            ticket.reschedule(at=datetime(2030, 1, 1))
        assert ticket.cancel() == "cancelled"
        assert not ticket.reschedule(delay=1)
        unknown = engine.ticket(ticket.id[:-8] + "00000000")
        with pytest.raises(UnknownTicket):
            unknown.reschedule(delay=1)


def test_coroutines_ask_a_ticket_everything_that_threads_do(tmp_path: Path) -> None:
    engine = make(tmp_path / "data", run=False)
    task = engine.task(name="note")(lambda: 1)

    async def main() -> None:
        async with engine:
            ticket = await task.options(delay="1h").asubmit()
            for blocking in (
                ticket.info, ticket.why, ticket.attempts, ticket.cancel, ticket.result,
                lambda: ticket.reschedule(delay=1),
            ):  # fmt: skip
                with pytest.raises(BlockingInEventLoop):
                    blocking()
            assert await ticket.areschedule(delay="2h")
            assert (await ticket.ainfo()).state == "scheduled"
            assert (await ticket.awhy()).state == "scheduled"
            assert await ticket.aattempts() == []
            assert await ticket.acancel() == "cancelled"
            assert not await ticket.areschedule(delay=0)

    asyncio.run(main())
