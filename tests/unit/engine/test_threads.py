"""The pool of threads: everything is done, nobody waits who need not, and few are woken."""

import threading
from collections.abc import Sequence

import pytest

from parkade.threads import ThreadPool

WAIT_S = 20.0  # never reached: only so that a broken test ends


class Pieces:
    """Work that can be made to block, and who did it."""

    def __init__(self, thread_count: int) -> None:
        self.pool = ThreadPool[int](thread_count, self.attend, self.refuse)
        self.done: list[int] = []
        self.refused: list[int] = []
        self.who: set[int] = set()
        self.gates: dict[int, threading.Event] = {}
        self.begun = threading.Semaphore(0)
        self.ended = threading.Semaphore(0)

    def attend(self, piece: int) -> None:
        self.who.add(threading.get_ident())
        self.begun.release()
        if piece in self.gates:
            assert self.gates[piece].wait(WAIT_S)
        self.done.append(piece)
        self.ended.release()

    def refuse(self, pieces: Sequence[int], error: BaseException) -> None:
        self.refused.extend(pieces)

    def block(self, *pieces: int) -> threading.Event:
        gate = threading.Event()
        self.gates.update(dict.fromkeys(pieces, gate))
        return gate

    def await_ended(self, count: int) -> None:
        for _ in range(count):
            assert self.ended.acquire(timeout=WAIT_S)

    def await_begun(self, count: int) -> None:
        for _ in range(count):
            assert self.begun.acquire(timeout=WAIT_S)


@pytest.mark.parametrize("thread_count", [1, 2, 32])
def test_everything_is_done_once(thread_count: int) -> None:
    pieces = Pieces(thread_count)
    for start in range(0, 2_000, 50):
        pieces.pool.put(range(start, start + 50))
    pieces.await_ended(2_000)
    assert sorted(pieces.done) == list(range(2_000))
    assert len(pieces.who) <= thread_count
    pieces.pool.close()


def test_one_thread_does_its_work_in_order() -> None:
    pieces = Pieces(1)
    pieces.pool.put(range(500))
    pieces.await_ended(500)
    assert pieces.done == list(range(500))
    pieces.pool.close()


def test_work_that_blocks_delays_nobody_while_a_thread_is_free() -> None:
    pieces = Pieces(8)
    gate = pieces.block(*range(7))
    pieces.pool.put(range(7))
    pieces.await_begun(7)
    pieces.pool.put(range(7, 60))
    pieces.await_ended(53)
    assert sorted(pieces.done) == list(range(7, 60))
    gate.set()
    pieces.await_ended(7)
    pieces.pool.close()


def test_all_threads_may_block_at_once_and_no_more_than_all() -> None:
    pieces = Pieces(6)
    gate = pieces.block(*range(10))
    pieces.pool.put(range(10))
    pieces.await_begun(6)
    assert not pieces.begun.acquire(blocking=False)
    assert len(pieces.who) == 6
    gate.set()
    pieces.await_ended(10)
    pieces.pool.close()


def test_each_piece_may_come_alone_and_all_block() -> None:
    pieces = Pieces(12)
    gate = pieces.block(*range(12))
    for piece in range(12):
        pieces.pool.put([piece])
    pieces.await_begun(12)
    gate.set()
    pieces.await_ended(12)
    pieces.pool.close()


def test_work_that_raises_costs_its_thread_nothing(caplog: pytest.LogCaptureFixture) -> None:
    ended = threading.Event()

    def attend(piece: int) -> None:
        if piece < 3:
            raise [ValueError("x"), SystemExit(), KeyboardInterrupt()][piece]
        ended.set()

    pool = ThreadPool[int](1, attend, lambda pieces, error: None)
    pool.put(range(4))
    assert ended.wait(WAIT_S)
    assert len(caplog.records) == 3
    pool.close()


def test_few_threads_are_started_for_work_that_does_not_block() -> None:
    """One that works and one in reserve suffice; the bound is not a target."""
    pieces = Pieces(32)
    for piece in range(300):
        pieces.pool.put([piece])
        pieces.await_ended(1)
    assert len(pieces.who) <= 3
    pieces.pool.close()


def test_the_threads_are_daemons_that_close_lets_go() -> None:
    pieces = Pieces(4)
    gate = pieces.block(0)
    pieces.pool.put(range(20))
    pieces.await_ended(19)
    threads = [t for t in threading.enumerate() if t.ident in pieces.who]
    assert threads
    assert all(thread.daemon for thread in threads)
    pieces.pool.close()
    gate.set()
    for thread in threads:
        thread.join(WAIT_S)
        assert not thread.is_alive()


def test_after_close_nothing_begins() -> None:
    pieces = Pieces(1)
    gate = pieces.block(0)
    pieces.pool.put([0, 1, 2])
    pieces.await_begun(1)
    pieces.pool.close()
    pieces.pool.put([3])
    gate.set()
    pieces.await_ended(1)
    assert pieces.done == [0]


def test_without_any_thread_the_work_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    def no_start(thread: threading.Thread) -> None:
        raise RuntimeError("can't start new thread")

    pieces = Pieces(4)
    with monkeypatch.context() as patch:
        patch.setattr(threading.Thread, "start", no_start)
        pieces.pool.put([1, 2])
    assert pieces.refused == [1, 2]
    pieces.pool.put([3])
    pieces.await_ended(1)
    assert pieces.done == [3]
    pieces.pool.close()


def test_without_more_threads_the_ones_there_do_it_all(monkeypatch: pytest.MonkeyPatch) -> None:
    pieces = Pieces(4)
    pieces.pool.put([0])
    pieces.await_ended(1)
    start = threading.Thread.start
    mine = threading.get_ident()

    def start_mine(thread: threading.Thread) -> None:
        if "parkade-worker" in thread.name:
            raise RuntimeError("can't start new thread")
        start(thread)

    with monkeypatch.context() as patch:
        patch.setattr(threading.Thread, "start", start_mine)
        pieces.pool.put(range(1, 100))
        pieces.await_ended(99)
    assert sorted(pieces.done) == list(range(100))
    assert pieces.refused == []
    assert mine not in pieces.who
    pieces.pool.close()
