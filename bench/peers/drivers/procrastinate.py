"""procrastinate on a PostgreSQL of the bench's own, with synchronous_commit=on."""

from collections.abc import Sequence
from concurrent.futures import Future
from datetime import UTC, datetime
from typing import Any

from procrastinate import App, PsycopgConnector

from bench.peers.driver import Driver, Dues, Handler, Looped, atimed_each, called

WORKERS = 8
POLL_S = 0.05


class Procrastinate(Driver):
    """Awaited throughout: the way that its manual recommends."""

    settings = (
        f"PostgreSQL, synchronous_commit=on; a worker with concurrency={WORKERS}, woken by NOTIFY "
        f"and polling every {POLL_S * 1e3:.0f} ms for what is due later (default 5 s)"
    )
    has_bulk = True

    def open(self) -> None:
        self._handler: Handler | None = None
        self._running: Future[Any] | None = None
        self._looped = Looped()
        self._looped.run(self._open())

    async def _open(self) -> None:
        self._app = App(connector=PsycopgConnector(conninfo=self.place.address))

        async def job(body: str) -> None:
            assert self._handler is not None
            await called(self._handler, body, self._is_blocking)

        self._task = self._app.task(name="job")(job)
        await self._app.open_async()
        if not (self.place.directory / "made").exists():
            await self._app.schema_manager.apply_schema_async()
            (self.place.directory / "made").touch()

    def _at(self, due: float | None) -> Any:
        if due is None:
            return self._task
        return self._task.configure(schedule_at=datetime.fromtimestamp(due, UTC))

    async def _submit(self, payload: str, due: float | None) -> object:
        return await self._at(due).defer_async(body=payload)

    def submit_each(self, payloads: Sequence[str], dues: Dues = None) -> list[float]:
        return self._looped.run(atimed_each(self._submit, payloads, dues))

    def submit_bulk(self, payloads: Sequence[str], dues: Dues = None) -> None:
        # One due time for each batch is what it offers: that of the first is taken for all.
        at = self._at(None if dues is None else dues[0])
        self._looped.run(at.batch_defer_async(*({"body": payload} for payload in payloads)))

    def work(self, handler: Handler, *, is_blocking: bool = False) -> None:
        self._handler, self._is_blocking = handler, is_blocking
        worker = self._app.run_worker_async(
            concurrency=WORKERS,
            fetch_job_polling_interval=POLL_S,
            install_signal_handlers=False,
        )
        self._running = self._looped.spawn(worker)

    def close(self) -> None:
        if self._running is not None:
            self._running.cancel()
        self._looped.run(self._app.close_async())
        self._looped.close()
