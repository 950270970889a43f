"""The door: bounded in bytes, in order, and nobody is left outside a closed one."""

import asyncio
import threading

import pytest

from parkade.asks import Ask, Look
from parkade.inbox import Inbox
from parkade.waiters import ThreadWaiter

PATIENCE_S = 20


class Woken:
    def __init__(self, bytes_max: int = 100) -> None:
        self.count = self.count_soon = 0
        self.inbox = Inbox(bytes_max, self.wake, self.wake_soon)

    def wake(self) -> None:
        self.count += 1

    def wake_soon(self) -> None:
        self.count_soon += 1


def ask(serial: int = 1, waiter: ThreadWaiter | None = None) -> Ask:
    return Ask(Look(serial), waiter=waiter)


def test_what_is_put_is_taken_in_order_and_wakes() -> None:
    woken = Woken()
    asks = [ask(n) for n in range(3)]
    woken.inbox.put([(0, asks[0]), (1, asks[1])])
    woken.inbox.put([(0, asks[2])])
    assert woken.count == 2
    assert woken.inbox.asks
    assert list(woken.inbox.take()) == [(0, asks[0]), (1, asks[1]), (0, asks[2])]
    assert not woken.inbox.asks


def test_what_can_wait_a_moment_wakes_nobody_who_looks_again_in_one() -> None:
    woken = Woken()
    woken.inbox.put([(0, ask())], is_patient=True)
    assert (woken.count, woken.count_soon) == (0, 1)
    assert len(list(woken.inbox.take())) == 1


def test_a_thread_waits_at_a_full_door_until_there_is_room() -> None:
    inbox = Woken().inbox
    inbox.enter(60)
    inside = threading.Event()

    def enter() -> None:
        inbox.enter(60)
        inside.set()

    waiting = threading.Thread(target=enter)
    waiting.start()
    while not inbox._threads_waiting:
        waiting.join(0.001)
    assert not inside.is_set()
    inbox.leave(10)
    while inside.is_set():
        raise AssertionError("50 + 60 are too many")
    inbox.leave(20)
    assert inside.wait(PATIENCE_S)
    waiting.join(PATIENCE_S)


def test_what_is_larger_than_the_door_goes_in_alone() -> None:
    inbox = Woken().inbox
    inbox.enter(1_000)
    inbox.leave(1_000)
    inbox.enter(100)


def test_coroutines_wait_without_blocking_their_loop() -> None:
    inbox = Woken().inbox

    async def main() -> None:
        await inbox.aenter(80)
        waiting = [asyncio.create_task(inbox.aenter(40)) for _ in range(3)]
        given_up = asyncio.create_task(inbox.aenter(40))
        await asyncio.sleep(0)
        assert not any(task.done() for task in waiting)
        given_up.cancel()
        inbox.leave(80)
        await asyncio.wait_for(asyncio.wait(waiting, return_when="FIRST_COMPLETED"), PATIENCE_S)
        while sum(task.done() for task in waiting) < 2:
            await asyncio.sleep(0)
        assert sum(task.done() for task in waiting) == 2, "40 and 40, and no third"
        inbox.leave(40)
        await asyncio.wait_for(asyncio.gather(*waiting), PATIENCE_S)

    asyncio.run(main())


def test_a_closed_door_lets_everybody_in_to_an_error() -> None:
    inbox = Woken().inbox
    inbox.enter(100)
    told: list[BaseException | None] = []

    def submit() -> None:
        inbox.enter(50)
        waiter = ThreadWaiter()
        inbox.put([(0, ask(1, waiter))])
        assert waiter.wait(PATIENCE_S)
        told.append(waiter.error)

    before = ThreadWaiter()
    inbox.put([(0, ask(1, before))])
    waiting = threading.Thread(target=submit)
    waiting.start()
    while not inbox._threads_waiting:
        waiting.join(0.001)
    error = RuntimeError("closed")
    inbox.close(error)
    waiting.join(PATIENCE_S)
    late = ThreadWaiter()
    inbox.put([(0, ask(1, late))])
    assert [before.error, late.error, *told] == [error] * 3
    assert list(inbox.take()) == []


def test_a_loop_that_closed_while_it_waited_is_passed_over() -> None:
    inbox = Woken().inbox
    inbox.enter(100)
    loop = asyncio.new_event_loop()
    task = loop.create_task(inbox.aenter(50))
    loop.run_until_complete(asyncio.sleep(0))
    loop.close()
    inbox.leave(100)
    inbox.enter(100)
    task._log_destroy_pending = False  # type: ignore[attr-defined]
    with pytest.raises(RuntimeError):
        loop.call_soon_threadsafe(print)
