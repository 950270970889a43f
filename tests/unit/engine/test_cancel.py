"""Cancelling: before, while and after a ticket runs."""

import asyncio
from pathlib import Path

import pytest

from kit.clock import ManualClock
from kit.engines import hold_handlers, make, when
from parkade import TicketCancelled


def test_what_waits_is_cancelled_at_once_however_far_ahead(tmp_path: Path) -> None:
    ran: list[int] = []
    with make(tmp_path / "data", durability="process") as engine:
        task = engine.task(name="note")(lambda n: ran.append(n))
        soon = task.options(delay="1h").submit(1)
        far = task.options(delay="10y", unique="far", unique_for="active").submit(2)
        ids = [soon.id, far.id]
        assert soon.cancel("not needed") == "cancelled"
        assert soon.cancel() == "too_late"
    with make(tmp_path / "data", durability="process") as engine:
        task = engine.task(name="note")(lambda n: ran.append(n))
        assert engine.ticket(ids[1]).cancel() == "cancelled", "it had left memory"
        infos = [engine.ticket(each).info() for each in ids]
        assert [info.state for info in infos] == ["cancelled", "cancelled"]
        assert [info.attempts for info in infos] == [0, 0]
        assert all(info.finished_at for info in infos)
        with pytest.raises(TicketCancelled, match="not needed"):
            engine.ticket(ids[0]).result()
        assert task.options(unique="far").submit(3).created, "its name is free"
        assert engine.stats().by_task["note"]["cancelled"] == 2
    assert ran in ([], [3])


def test_a_running_ticket_is_asked_and_never_attempted_again(tmp_path: Path) -> None:
    with hold_handlers() as gate, make(tmp_path / "data") as engine:

        @engine.task(retry=5)
        def fails() -> None:
            gate.enter()
            raise OSError("down")

        @engine.task
        def succeeds() -> str:
            gate.enter()
            return "done after all"

        failing, succeeding = fails.submit(), succeeds.submit()
        gate.wait(2)
        assert failing.cancel("enough") == "requested"
        assert failing.cancel("again") == "requested"
        assert succeeding.cancel() == "requested"
        assert failing.info().cancel_requested
        assert failing.info().state == "running"
        gate.open()
        assert succeeding.result("20s") == "done after all", "what it reports is kept"
        with pytest.raises(TicketCancelled, match="enough"):
            failing.result("20s")
        info = failing.info()
        assert (info.state, info.attempts, info.error) == ("cancelled", 1, "OSError: down")
        assert failing.cancel() == "too_late"


def test_a_ticket_in_backoff_keeps_what_is_known_of_it(tmp_path: Path) -> None:
    clock = ManualClock()
    with make(tmp_path / "data", clock=clock) as engine:

        @engine.task(retry=["1h"])
        def fails() -> None:
            raise OSError("down")

        ticket = fails.submit()
        when(engine, lambda runtime: runtime.attempts.finished == 1)
        while ticket.info().state != "scheduled":
            when(engine, lambda runtime: True)
        assert ticket.cancel() == "cancelled"
        info = ticket.info()
        assert (info.state, info.attempts, info.error) == ("cancelled", 1, "OSError: down")
        assert [attempt.outcome for attempt in ticket.attempts()] == ["error"]
        clock.advance(3_600_001)
        when(engine, lambda runtime: True)
        assert ticket.info().attempts == 1


def test_coroutines_cancel_like_threads_do(tmp_path: Path) -> None:
    engine = make(tmp_path / "data")
    task = engine.task(name="note")(lambda n: n)

    async def main() -> None:
        async with engine:
            ticket = await task.options(delay="1h").asubmit(1)
            assert await ticket.acancel("why not") == "cancelled"
            assert await ticket.acancel() == "too_late"
            with pytest.raises(TicketCancelled):
                await ticket

    asyncio.run(main())


def test_a_cancelled_holder_hands_its_key_on(tmp_path: Path) -> None:
    with hold_handlers() as gate, make(tmp_path / "data") as engine:

        @engine.task(key="k")
        def work(n: int) -> int:
            if n == 0:
                gate.enter()
            return n

        first, second, third = (work.submit(n) for n in range(3))
        gate.wait()
        assert second.cancel() == "cancelled"
        gate.open()
        assert third.result("20s") == 2
        assert first.result("20s") == 0
