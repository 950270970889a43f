"""Results: waited for, found again by id, and gone."""

import asyncio
import time
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import msgspec
import pytest

from kit.clock import ManualClock
from kit.engines import hold_handlers, make, runtime_of, when
from parkade import (
    EngineClosed,
    PayloadError,
    ResultGone,
    ResultTimeout,
    Ticket,
    TicketCancelled,
    TicketFailed,
    UnknownTicket,
)


class Receipt(msgspec.Struct):
    amount: int
    paid_at: datetime


PAID = datetime(2026, 5, 1, 12, tzinfo=UTC)


def test_a_result_comes_back_as_its_annotation_says_also_by_id(tmp_path: Path) -> None:
    engine = make(tmp_path / "data", durability="process")

    @engine.task
    def pay(amount: int) -> Receipt:
        return Receipt(amount, PAID)

    with engine:
        ticket = pay.submit(5)
        assert ticket.result("20s") == Receipt(5, PAID)
        assert pay.ticket(ticket.id).result() == Receipt(5, PAID)
    with engine:
        assert pay.ticket(ticket.id).result() == Receipt(5, PAID)
        untyped = engine.ticket(ticket.id)
        assert untyped.result() == {"amount": 5, "paid_at": PAID.isoformat()} or isinstance(
            untyped.result()["paid_at"], datetime | str
        )
        assert untyped.task == "pay"


def test_awaiting_a_ticket_gives_its_result(tmp_path: Path) -> None:
    engine = make(tmp_path / "data")

    @engine.task
    async def pay(amount: int) -> Receipt:
        return Receipt(amount, PAID)

    async def main() -> None:
        async with engine:
            ticket = await pay.asubmit(5)
            assert await ticket == await ticket.aresult() == Receipt(5, PAID)
            assert await pay.ticket(ticket.id) == Receipt(5, PAID)
            assert (await ticket.ainfo()).state == "done"
            assert [attempt.outcome for attempt in await ticket.aattempts()] == ["done"]

    asyncio.run(main())


def test_none_and_falsy_results_are_results(tmp_path: Path) -> None:
    with make(tmp_path / "data") as engine:

        @engine.task
        def echo(value: Any) -> Any:
            return value

        values: list[Any] = [None, 0, "", [], {}, False, 1.5, "ü", [1, {"a": None}], b"\x00\xff"]
        for value in values:
            assert echo.submit(value).result("20s") == value


def test_a_timeout_says_how_the_ticket_stands(tmp_path: Path) -> None:
    with hold_handlers() as gate, make(tmp_path / "data") as engine:

        @engine.task
        def wait() -> str:
            gate.enter()
            return "done"

        later = wait.options(delay="1h").submit()
        with pytest.raises(ResultTimeout, match="scheduled, due in") as caught:
            later.result(timeout=0)
        assert caught.value.code == "PK-404"
        assert isinstance(caught.value, TimeoutError)
        running = wait.submit()
        gate.wait()
        with pytest.raises(ResultTimeout, match="running, attempt 1"):
            running.result(timeout="1ms")
        gate.open()
        assert running.result("20s") == "done", "waiting is not owning"


def test_a_ticket_that_has_ended_is_told_however_little_time_there_is(tmp_path: Path) -> None:
    engine = make(tmp_path / "data")

    @engine.task(retry=1)
    def halve(n: int) -> int:
        if n % 2:
            raise ValueError("odd")
        return n // 2

    with engine:
        even, odd = halve.submit(4), halve.submit(5)
        assert even.result("20s") == 2
        with pytest.raises(TicketFailed):
            odd.result("20s")
        for _ in range(5):
            assert even.result(0) == asyncio.run(even.aresult(0)) == 2
            with pytest.raises(TicketFailed):
                odd.result(timeout="0s")
            with pytest.raises(TicketFailed):
                asyncio.run(odd.aresult(0))


def test_who_gave_up_waiting_leaves_nothing_behind(tmp_path: Path) -> None:
    """A ticket that is polled for years must not gather its pollers."""
    engine = make(tmp_path / "data")
    task = engine.task(name="note")(lambda n: n)

    async def cancelled(ticket: Ticket[Any]) -> None:
        waiting = asyncio.create_task(ticket.aresult())
        while not awaiting():
            await asyncio.to_thread(when, engine, lambda runtime: True)
        waiting.cancel()
        with pytest.raises(asyncio.CancelledError):
            await waiting
        with pytest.raises(ResultTimeout):
            await ticket.aresult(timeout=0)

    def awaiting() -> int:
        runtime = runtime_of(engine)
        return int(
            runtime.host.call(
                lambda: sum(len(x) for s in runtime.shards for x in s.awaiting.values())
            )
        )

    with engine:
        ticket = task.options(delay="3d").submit(1)
        for _ in range(5):
            with pytest.raises(ResultTimeout):
                ticket.result(timeout=0)
        asyncio.run(cancelled(ticket))
        when(engine, lambda runtime: not any(shard.awaiting for shard in runtime.shards))
        assert awaiting() == 0
        assert ticket.cancel() == "cancelled"


def test_other_ends_are_errors_with_their_story(tmp_path: Path) -> None:
    with make(tmp_path / "data") as engine:

        @engine.task(retry=None)
        def divide(a: int, b: int) -> float:
            return a / b

        ticket = divide.submit(1, 0)
        with pytest.raises(TicketFailed) as failed:
            ticket.result("20s")
        error = failed.value
        assert (error.code, error.reason, error.error_type) == (
            "PK-401", "exhausted", "ZeroDivisionError",
        )  # fmt: skip
        assert "return a / b" in error.remote_traceback
        assert error.ticket_id == ticket.id
        assert "division by zero" in str(error)
        later = divide.options(delay="1h").submit(1, 1)
        assert later.cancel("a mistake") == "cancelled"
        with pytest.raises(TicketCancelled, match="a mistake") as cancelled:
            later.result()
        assert cancelled.value.code == "PK-402"


def test_an_id_of_nowhere_is_unknown_to_every_question(tmp_path: Path) -> None:
    with make(tmp_path / "data") as engine, make(tmp_path / "other") as other:
        task = engine.task(name="note")(lambda n: n)
        other.task(name="note")(lambda n: n)
        ticket = task.submit(1)
        ticket.result("20s")
        foreign = other.submit("note", {"n": 1}).id
        never = ticket.id[:5] + ("0" if ticket.id[5] != "0" else "1") + ticket.id[6:]
        for unknown in ("", "x", "not an id at all", foreign, never, ticket.id + "0", "ü" * 24):
            handle = engine.ticket(unknown)
            for ask in (handle.info, handle.result, handle.attempts, handle.cancel):
                with pytest.raises(UnknownTicket) as caught:
                    ask()
                assert caught.value.code == "PK-406"
            with pytest.raises(UnknownTicket):
                _ = handle.task
        assert engine.ticket(ticket.id).result() == 1


def test_a_result_is_gone_when_its_ticket_is_forgotten(tmp_path: Path) -> None:
    clock = ManualClock()
    with make(tmp_path / "data", clock=clock, keep_done="10m", shards=1) as engine:
        task = engine.task(name="note")(lambda n: n)
        ticket = task.options(unique="a", unique_for="3d").submit(1)
        assert ticket.result("20s") == 1
        for _ in range(1_000):
            if not engine.stats().by_task:
                break
            clock.advance(10_000)
            when(engine, lambda runtime: True)
        with pytest.raises(UnknownTicket, match="keep_done"):
            ticket.result()
        again = task.options(unique="a").submit(2)
        assert (again.id, again.created) == (ticket.id, False)
        with pytest.raises((ResultGone, UnknownTicket)):
            again.result()


def test_waiters_of_a_stopped_engine_are_told(tmp_path: Path) -> None:
    engine = make(tmp_path / "data")
    task = engine.task(name="note")(lambda n: n)
    with engine:
        ticket = task.options(delay="3d").submit(1)
    for ask in (ticket.info, ticket.result, ticket.attempts, ticket.cancel, engine.stats):
        with pytest.raises(EngineClosed) as caught:
            ask()
        assert caught.value.code == "PK-206"


def test_a_result_that_no_longer_fits_says_so_and_can_be_read_untyped(tmp_path: Path) -> None:
    with make(tmp_path / "data", durability="process") as engine:
        old = engine.task(name="number")(lambda: "a text")
        ticket = old.submit()
        assert ticket.result("20s") == "a text"
    with make(tmp_path / "data", durability="process") as engine:

        @engine.task
        def number() -> int:
            return 1

        with pytest.raises(PayloadError):
            number.ticket(ticket.id).result()
        assert engine.ticket(ticket.id).result() == "a text"


def test_many_wait_for_one_ticket(tmp_path: Path) -> None:
    engine = make(tmp_path / "data")
    with hold_handlers() as gate:

        @engine.task
        def wait() -> float:
            gate.enter()
            return time.time()

        async def main() -> None:
            async with engine:
                ticket = await wait.asubmit()
                await asyncio.to_thread(gate.wait)
                waiting = [asyncio.create_task(ticket.aresult()) for _ in range(100)]
                threads = [asyncio.to_thread(ticket.result, "20s") for _ in range(4)]
                gathered = asyncio.gather(*waiting, *threads)
                await asyncio.sleep(0)
                gate.open()
                assert len(set(await gathered)) == 1

        asyncio.run(main())
