"""The bell that wakes the core thread: nothing rung is missed."""

import threading

from parkade.bell import Bell


def test_a_bell_rung_before_the_wait_ends_it_at_once() -> None:
    bell = Bell()
    bell.set()
    assert bell.is_set()
    assert bell.wait(60)
    assert bell.wait(60), "it stays rung until it is cleared"


def test_a_cleared_bell_is_silent_until_it_is_rung_again() -> None:
    bell = Bell()
    bell.set()
    bell.set()
    bell.clear()
    assert not bell.is_set()
    assert not bell.wait(0)
    bell.set()
    assert bell.wait(60)


def test_every_ring_of_many_threads_is_heard() -> None:
    bell, heard, rung = Bell(), threading.Event(), [0] * 4
    missed: list[bool] = []

    def ring(place: int) -> None:
        for _ in range(2_000):
            rung[place] += 1
            bell.set()

    def listen() -> None:
        # One who clears, looks and waits sees the last ring of each, or waits for ever.
        while True:
            bell.clear()
            if sum(rung) == 8_000:
                break
            missed.append(not bell.wait(60))
        heard.set()

    threads = [threading.Thread(target=ring, args=(place,)) for place in range(4)]
    threads.append(threading.Thread(target=listen))
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert heard.is_set()
