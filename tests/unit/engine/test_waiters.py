"""How an answer reaches who asked."""

import asyncio
import threading

from parkade.waiters import LoopWaiter, ThreadWaiter, Wakeups

PATIENCE_S = 20


def test_a_thread_is_woken_by_the_last_of_its_answers() -> None:
    waiter, wakeups = ThreadWaiter(3), Wakeups()
    waiter.answer(2, "c", wakeups)
    waiter.answer(0, "a", wakeups)
    assert not waiter.wait(0)
    waiter.answer(1, "b", wakeups)
    assert not waiter.wait(0), "at the end of the pass"
    threading.Thread(target=wakeups.send).start()
    assert waiter.wait(PATIENCE_S)
    assert waiter.values == ["a", "b", "c"]
    assert waiter.error is None


def test_an_error_stands_in_its_slot_and_the_first_is_the_error() -> None:
    waiter, wakeups = ThreadWaiter(3), Wakeups()
    first, second = ValueError(1), ValueError(2)
    waiter.fail(1, first, wakeups)
    waiter.answer(0, "a", wakeups)
    waiter.fail(2, second, wakeups)
    wakeups.send()
    assert waiter.wait(0)
    assert waiter.values == ["a", first, second]
    assert waiter.error is first


def test_coroutines_of_one_loop_are_woken_by_one_call() -> None:
    class Loop(asyncio.SelectorEventLoop):
        calls = 0

        def call_soon_threadsafe(self, *arguments: object, **named: object) -> asyncio.Handle:
            self.calls += 1
            return super().call_soon_threadsafe(*arguments, **named)  # type: ignore[arg-type]

    loop = Loop()

    async def main() -> list[bool]:
        waiters = [LoopWaiter(loop) for _ in range(50)]
        wakeups = Wakeups()
        for number, waiter in enumerate(waiters):
            waiter.answer(0, number, wakeups)
        await asyncio.sleep(0)
        assert loop.calls == 0
        wakeups.send()
        woken = await asyncio.gather(*(waiter.wait(PATIENCE_S) for waiter in waiters))
        assert [waiter.values for waiter in waiters] == [[number] for number in range(50)]
        wakeups.send()
        return list(woken)

    try:
        assert loop.run_until_complete(main()) == [True] * 50
        assert loop.calls == 1
    finally:
        loop.close()


def test_the_time_may_be_up_and_the_answer_then_goes_nowhere() -> None:
    async def main() -> None:
        waiter, wakeups = LoopWaiter(asyncio.get_running_loop()), Wakeups()
        assert await waiter.wait(0) is False
        waiter.answer(0, 1, wakeups)
        wakeups.send()
        assert await waiter.wait() is True

    asyncio.run(main())
    waiter = ThreadWaiter()
    assert waiter.wait(0) is False
    waiter.answer(0, 1, Wakeups())


def test_a_loop_that_has_closed_is_counted_and_keeps_nobody_waiting() -> None:
    gone, here = asyncio.new_event_loop(), asyncio.new_event_loop()
    wakeups = Wakeups()
    vanished, waiter = LoopWaiter(gone), LoopWaiter(here)
    gone.close()
    vanished.answer(0, 1, wakeups)
    waiter.answer(0, 2, wakeups)
    wakeups.send()
    assert wakeups.vanished == 1
    assert here.run_until_complete(waiter.wait(PATIENCE_S))
    here.close()
