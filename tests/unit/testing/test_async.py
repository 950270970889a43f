"""Async handlers: on a loop of the engine's own in a plain test, on the test's in an async one."""

import asyncio
from collections.abc import Coroutine
from typing import Any

import pytest

from parkade import BlockingInEventLoop, EngineClosed
from parkade.testing import Killed, ManualClock, TestEngine


def run(main: Coroutine[Any, Any, None]) -> None:
    """An async test, without a plugin for them."""
    asyncio.run(main)


def test_a_plain_test_runs_async_handlers_on_one_loop(parkade_engine: TestEngine) -> None:
    loops: list[asyncio.AbstractEventLoop] = []

    @parkade_engine.task
    async def note(n: int) -> int:
        await asyncio.sleep(0)
        loops.append(asyncio.get_running_loop())
        return n

    tickets = [note.submit(n) for n in range(3)]
    assert parkade_engine.run_until_idle().done == 3
    assert [ticket.result() for ticket in tickets] == [0, 1, 2]
    note.submit(3)
    assert parkade_engine.run_until_idle().done == 1
    assert len(set(loops)) == 1
    with pytest.raises(RuntimeError):
        asyncio.get_running_loop()


def test_an_async_test_runs_async_handlers_on_its_own_loop(parkade_engine: TestEngine) -> None:
    loops: list[asyncio.AbstractEventLoop] = []

    @parkade_engine.task
    async def note(n: int) -> int:
        await asyncio.sleep(0)
        loops.append(asyncio.get_running_loop())
        return n

    async def main() -> None:
        ticket = await note.asubmit(1)
        drained = await parkade_engine.arun_until_idle()
        assert drained.done == 1
        assert await ticket == 1
        assert loops == [asyncio.get_running_loop()]

    run(main())


def test_plain_handlers_of_an_async_test_run_as_if_there_were_no_loop(
    parkade_engine: TestEngine,
) -> None:
    @parkade_engine.task
    async def inner(n: int) -> int:
        return n

    @parkade_engine.task
    def outer(n: int) -> int:
        inner.submit(n)  # would raise BlockingInEventLoop on a loop's thread
        return n

    async def main() -> None:
        await outer.asubmit(1)
        drained = await parkade_engine.arun_until_idle()
        assert (drained.done, drained.errors) == (2, ())
        assert asyncio.get_running_loop().is_running()
        assert [info.state for info in parkade_engine.submitted(inner)] == ["done"]

    run(main())


def test_plain_handlers_of_an_async_test_may_have_a_loop_of_their_own(
    parkade_engine: TestEngine,
) -> None:
    async def fetch(n: int) -> int:
        await asyncio.sleep(0)
        return n

    @parkade_engine.task
    def fetches(n: int) -> int:
        return asyncio.run(fetch(n))

    async def main() -> None:
        before = asyncio.current_task()
        ticket = await fetches.asubmit(1)
        (await parkade_engine.arun_until_idle()).raise_errors()
        assert await ticket == 1
        assert asyncio.current_task() is before

    run(main())


def test_a_coroutine_handler_may_submit_and_look(parkade_engine: TestEngine) -> None:
    @parkade_engine.task
    async def leaf(n: int) -> int:
        return n

    @parkade_engine.task
    async def node(n: int) -> str:
        ticket = await leaf.asubmit(n)
        return (await ticket.ainfo()).state

    first = node.submit(1)
    assert parkade_engine.run_until_idle().done == 2
    assert first.result() == "ready"

    async def main() -> None:
        second = await node.asubmit(2)
        assert (await parkade_engine.arun_until_idle()).done == 2
        assert await second == "ready"

    run(main())


def test_blocking_calls_are_refused_on_a_loop_as_in_production(
    parkade_engine: TestEngine,
) -> None:
    @parkade_engine.task(retry=None)
    async def blocks() -> None:
        blocks.submit()

    async def main() -> None:
        with pytest.raises(BlockingInEventLoop, match=r"await engine\.arun_until_idle"):
            parkade_engine.run_until_idle()
        with pytest.raises(BlockingInEventLoop):
            blocks.submit()

    run(main())
    blocks.submit()
    (raised,) = parkade_engine.run_until_idle().errors
    assert isinstance(raised.error, BlockingInEventLoop)


def test_one_coroutine_runs_at_a_time_unless_more_are_allowed(parkade_clock: ManualClock) -> None:
    inside: list[int] = []
    counts: list[int] = []

    async def busy() -> None:
        inside.append(1)
        counts.append(len(inside))
        for _ in range(5):
            await asyncio.sleep(0)
        inside.pop()

    for limit in (1, 3):
        counts.clear()
        with TestEngine(clock=parkade_clock, async_limit=limit) as engine:
            task = engine.task(busy)
            for _ in range(7):
                task.submit()
            assert engine.run_until_idle().done == 7
        assert max(counts) == limit


def test_coroutines_may_wait_for_one_another_where_several_run(parkade_clock: ManualClock) -> None:
    with TestEngine(clock=parkade_clock, async_limit=2) as engine:

        @engine.task
        async def meet(name: str) -> list[str]:
            here.append(name)
            while len(here) < 2:
                await asyncio.sleep(0)
            return here

        here: list[str] = []
        tickets = [meet.submit("ann"), meet.submit("bob")]
        assert engine.run_until_idle().done == 2
        assert [sorted(ticket.result()) for ticket in tickets] == [["ann", "bob"]] * 2


def test_a_coroutine_that_awaits_a_ticket_is_woken_by_the_run(parkade_engine: TestEngine) -> None:
    @parkade_engine.task
    async def note(n: int) -> int:
        return n

    async def main() -> None:
        ticket = await note.options(delay="9d").asubmit(3)
        waiting = asyncio.create_task(ticket.aresult())
        await parkade_engine.arun_until_idle(skip_time=True)
        assert await waiting == 3

    run(main())


def test_whoever_awaits_a_ticket_hears_of_a_crash(parkade_engine: TestEngine) -> None:
    @parkade_engine.task
    async def note() -> None: ...

    async def main() -> None:
        ticket = await note.asubmit()
        waiting = asyncio.create_task(ticket.aresult())
        await asyncio.sleep(0)
        parkade_engine.crash()
        with pytest.raises(EngineClosed):
            await waiting
        await parkade_engine.arun_until_idle()
        assert await parkade_engine.ticket(ticket.id).ainfo()

    run(main())


def test_a_run_that_is_cancelled_leaves_its_coroutine_to_the_next(
    parkade_engine: TestEngine,
) -> None:
    async def main() -> None:
        gate = asyncio.Event()

        @parkade_engine.task
        async def waits() -> str:
            await gate.wait()
            return "through"

        ticket = await waits.asubmit()
        running = asyncio.create_task(parkade_engine.arun_until_idle())
        while (await ticket.ainfo()).state != "running":
            await asyncio.sleep(0)
        with pytest.raises(RuntimeError, match="a run is under way"):
            await parkade_engine.arun_until_idle()
        running.cancel()
        with pytest.raises(asyncio.CancelledError):
            await running
        gate.set()
        assert (await parkade_engine.arun_until_idle()).done == 1
        assert await ticket == "through"

    run(main())


def test_a_coroutine_on_the_loop_of_the_test_can_be_killed(parkade_engine: TestEngine) -> None:
    @parkade_engine.task
    async def charge() -> None:
        await asyncio.sleep(0)
        parkade_engine.crash()

    async def main() -> None:
        await charge.asubmit()
        with pytest.raises(Killed):
            await parkade_engine.arun_until_idle()
        parkade_engine.crash()
        assert [info.state for info in parkade_engine.submitted(charge)] == ["scheduled"]

    run(main())


def test_an_engine_is_entered_and_left_on_a_loop() -> None:
    async def main() -> None:
        async with TestEngine() as engine:

            @engine.task
            async def note() -> None: ...

            await note.asubmit()
            assert (await engine.arun_until_idle()).done == 1
        with pytest.raises(EngineClosed):
            await note.asubmit()

    run(main())


def test_an_engine_with_a_loop_of_its_own_can_be_left_on_another(
    parkade_clock: ManualClock,
) -> None:
    engine = TestEngine(clock=parkade_clock).start()

    @engine.task
    async def note() -> None: ...

    note.submit()
    assert engine.run_until_idle().done == 1

    async def main() -> None:
        assert (await engine.astop()).clean

    run(main())


def test_a_coroutine_that_stops_its_engine_is_refused(parkade_clock: ManualClock) -> None:
    engine = TestEngine(clock=parkade_clock).start()

    @engine.task
    async def stops() -> None:
        await engine.astop(drain=0, cancel=0)

    with engine:
        ticket = stops.options(retry=1).submit()
        assert engine.run_until_idle().dead == 1
        assert "stops its own engine" in (ticket.info().error or "")
