"""pgqueuer on a PostgreSQL of the bench's own, with synchronous_commit=on."""

from collections.abc import Sequence
from concurrent.futures import Future
from datetime import timedelta
from typing import Any

import asyncpg
from pgqueuer import PgQueuer
from pgqueuer.db import AsyncpgDriver
from pgqueuer.models import Job
from pgqueuer.queries import Queries

from bench.peers.driver import Driver, Dues, Handler, Looped, atimed_each, called, left_s

BATCH = 100
POLL_S = 0.05


class Pgqueuer(Driver):
    """One connection submits, another works."""

    settings = (
        f"PostgreSQL, synchronous_commit=on, durability=durable; batch_size={BATCH} (default 10), "
        f"woken by NOTIFY and looking every {POLL_S * 1e3:.0f} ms (default 30 s) for what is due"
    )
    has_bulk = True

    def open(self) -> None:
        self._running: Future[Any] | None = None
        self._queuer: PgQueuer | None = None
        self._looped = Looped()
        self._looped.run(self._open())

    async def _open(self) -> None:
        self._connection = await asyncpg.connect(self.place.address)
        self._queries = Queries(AsyncpgDriver(self._connection))
        if not (self.place.directory / "made").exists():
            await self._queries.install()
            (self.place.directory / "made").touch()

    async def _submit(self, payload: str, due: float | None) -> object:
        after = None if due is None else timedelta(seconds=left_s(due))
        return await self._queries.enqueue("job", payload.encode(), execute_after=after)

    def submit_each(self, payloads: Sequence[str], dues: Dues = None) -> list[float]:
        return self._looped.run(atimed_each(self._submit, payloads, dues))

    def submit_bulk(self, payloads: Sequence[str], dues: Dues = None) -> None:
        after = None
        if dues is not None:
            after = [timedelta(seconds=left_s(due)) for due in dues]
        count = len(payloads)
        self._looped.run(
            self._queries.enqueue(
                ["job"] * count,
                [payload.encode() for payload in payloads],
                [0] * count,
                execute_after=after,
            )
        )

    def work(self, handler: Handler, *, is_blocking: bool = False) -> None:
        async def job(job: Job) -> None:
            assert job.payload is not None
            await called(handler, job.payload.decode(), is_blocking)

        async def run() -> None:
            connection = await asyncpg.connect(self.place.address)
            self._queuer = PgQueuer(AsyncpgDriver(connection))
            self._queuer.entrypoint("job")(job)
            await self._queuer.qm.run(batch_size=BATCH, dequeue_timeout=timedelta(seconds=POLL_S))

        self._running = self._looped.spawn(run())

    def close(self) -> None:
        async def stop() -> None:
            if self._queuer is not None:
                self._queuer.shutdown.set()
            await self._connection.close()

        self._looped.run(stop())
        if self._running is not None:
            self._running.cancel()
        self._looped.close()
