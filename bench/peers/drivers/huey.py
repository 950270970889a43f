"""huey on SQLite: WAL with synchronous=FULL, its consumer's threads in this process."""

from collections.abc import Sequence
from datetime import UTC, datetime
from typing import Any

from huey import SqliteHuey

from bench.peers.driver import Driver, Dues, Handler, Place, timed_each

WORKERS = 4
POLL_S = 0.005


class Huey(Driver):
    """Consumer threads that poll every 5 ms; the default of 100 ms to 10 s is easier on the
    processor and slower to start."""

    settings = (
        f"SQLite WAL, fsync=True (FULL); results=False; consumer with {WORKERS} threads, polling "
        f"every {POLL_S * 1e3:.0f} ms, scheduler every second (its least); what is due later goes "
        "into its schedule at once, where its consumer would move it"
    )

    def __init__(self, place: Place) -> None:
        super().__init__(place)
        self._handler: Handler | None = None

    def open(self) -> None:
        file = str(self.place.directory / "huey.db")
        self._huey = SqliteHuey(filename=file, fsync=True, results=False)
        self._task = self._huey.task(name="job")(self._run)
        self._consumer: Any = None

    def _run(self, payload: str) -> None:
        assert self._handler is not None
        self._handler(payload)

    def _submit(self, payload: str, due: float | None) -> object:
        if due is None:
            return self._task(payload)
        # task.schedule() puts it into the queue, for a consumer to move it one by one.
        return self._huey.add_schedule(self._task.s(payload, eta=datetime.fromtimestamp(due, UTC)))

    def submit_each(self, payloads: Sequence[str], dues: Dues = None) -> list[float]:
        return timed_each(self._submit, payloads, dues)

    def work(self, handler: Handler, *, is_blocking: bool = False) -> None:
        self._handler = handler
        self._consumer = self._huey.create_consumer(
            workers=WORKERS,
            periodic=False,
            initial_delay=POLL_S,
            max_delay=POLL_S,
            backoff=1.0,
            scheduler_interval=1,
        )
        self._consumer.start()

    def close(self) -> None:
        if self._consumer is not None:
            self._consumer.stop(graceful=True)
        self._huey.storage.close()
