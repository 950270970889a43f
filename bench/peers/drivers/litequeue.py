"""litequeue: one table that is popped from and marked done, with synchronous=FULL set by hand."""

import sqlite3
import threading
from collections.abc import Sequence

from litequeue import LiteQueue

from bench.peers.driver import Drained, Driver, Dues, Handler, NotOffered, timed_each

IDLE_S = 0.002


class Litequeue(Driver):
    """It has no worker, and one connection: a lock of the bench keeps the worker's thread and the
    submitter apart."""

    settings = (
        "WAL, synchronous=FULL set by hand (it sets NORMAL); bulk in one transaction(); one thread "
        f"of ours pops and marks done, looking every {IDLE_S * 1e3:.0f} ms when idle"
    )
    has_bulk = True
    has_delays = False

    def open(self) -> None:
        file = self.place.directory / "queue.db"
        connection = sqlite3.connect(file, check_same_thread=False)
        self._queue = LiteQueue(connection)
        connection.execute("PRAGMA synchronous=FULL")
        self._lock = threading.Lock()
        self._worker: Drained | None = None

    def submit_each(self, payloads: Sequence[str], dues: Dues = None) -> list[float]:
        def submit(payload: str, _: float | None) -> None:
            with self._lock:
                self._queue.put(payload)

        if dues is not None:
            raise NotOffered("no delays")
        return timed_each(submit, payloads, None)

    def submit_bulk(self, payloads: Sequence[str], dues: Dues = None) -> None:
        if dues is not None:
            raise NotOffered("no delays")
        with self._lock, self._queue.transaction():
            for payload in payloads:
                self._queue.put(payload)

    def work(self, handler: Handler, *, is_blocking: bool = False) -> None:
        def take() -> tuple[str, object] | None:
            with self._lock:
                message = self._queue.pop()
            return None if message is None else (message.data, message.message_id)

        def acknowledge(token: object) -> None:
            with self._lock:
                self._queue.done(token)

        self._worker = Drained(take, acknowledge, handler, IDLE_S)

    def close(self) -> None:
        if self._worker is not None:
            self._worker.close()
        self._queue.close()
