"""cairnq on SQLite: WAL, synchronous=FULL, client and worker on one loop."""

from collections.abc import Sequence
from concurrent.futures import Future
from typing import Any

from cairnq import CairnQ, Worker

from bench.peers.driver import Driver, Dues, Handler, Looped, atimed_each, called, left_s, use_wal

WORKERS = 8
POLL_MS = 10


class Cairnq(Driver):
    """Awaited handlers, so many at once."""

    settings = (
        f"SQLite WAL, synchronous=FULL (SQLite's default); a worker with concurrency={WORKERS}, "
        f"polling every {POLL_MS} ms (default 500)"
    )

    def open(self) -> None:
        self._file = self.place.directory / "tasks.db"
        use_wal(self._file)
        self._looped = Looped()
        self._client = CairnQ.sqlite(str(self._file))
        self._worker: Any = None
        self._running: Future[Any] | None = None
        self._looped.run(self._client.connect())

    async def _submit(self, payload: str, due: float | None) -> object:
        delay_ms = 0 if due is None else round(1e3 * left_s(due))
        return await self._client.submit("job", {"body": payload}, delay_ms=delay_ms)

    def submit_each(self, payloads: Sequence[str], dues: Dues = None) -> list[float]:
        return self._looped.run(atimed_each(self._submit, payloads, dues))

    def work(self, handler: Handler, *, is_blocking: bool = False) -> None:
        async def job(_: object, payload: dict[str, str]) -> None:
            await called(handler, payload["body"], is_blocking)

        async def run() -> None:
            self._worker = Worker.sqlite(
                str(self._file), concurrency=WORKERS, poll_interval_ms=POLL_MS
            )
            self._worker.task("job")(job)
            await self._worker.run()

        self._running = self._looped.spawn(run())

    def close(self) -> None:
        async def stop() -> None:
            if self._worker is not None:
                self._worker.stop()
            await self._client.close()

        self._looped.run(stop())
        if self._running is not None:
            self._running.cancel()
        self._looped.close()
