"""persist-queue's SQLiteAckQueue: a queue that is taken from and acknowledged."""

from collections.abc import Sequence

from persistqueue import Empty, SQLiteAckQueue

from bench.peers.driver import Drained, Driver, Dues, Handler, NotOffered, timed_each, use_wal

IDLE_S = 0.002


class PersistQueue(Driver):
    """It has no worker: a thread of the bench takes, runs and acknowledges."""

    settings = (
        "SQLiteAckQueue, WAL, synchronous=FULL (SQLite's default); multithreading=True; one thread "
        f"of ours takes and acknowledges, looking every {IDLE_S * 1e3:.0f} ms when idle"
    )
    has_delays = False

    def open(self) -> None:
        use_wal(self.place.directory / "data.db")
        self._queue = SQLiteAckQueue(str(self.place.directory), multithreading=True)
        self._worker: Drained | None = None

    def submit_each(self, payloads: Sequence[str], dues: Dues = None) -> list[float]:
        if dues is not None:
            raise NotOffered("no delays")
        return timed_each(lambda payload, _: self._queue.put(payload), payloads, None)

    def work(self, handler: Handler, *, is_blocking: bool = False) -> None:
        def take() -> tuple[str, object] | None:
            try:
                item = self._queue.get(block=False, raw=True)
            except Empty:
                return None
            return item["data"], item

        self._worker = Drained(take, self._queue.ack, handler, IDLE_S)

    def close(self) -> None:
        if self._worker is not None:
            self._worker.close()
        self._queue.close()
