"""parkade as it comes: every default, four shards and a sync before each answer included."""

from collections.abc import Sequence
from datetime import UTC, datetime

from bench.peers.driver import Driver, Dues, Handler, timed_each
from parkade import Call, Engine
from parkade.tasks import Task


def unexpected(_: str) -> None:
    """The handler of an engine that runs nothing."""
    raise AssertionError("an engine with run=False has run a ticket")


class Parkade(Driver):
    """Coroutine handlers, as those of the other queues with an event loop are; where they block,
    functions, which run in threads."""

    settings = (
        'defaults: durability="disk", 4 shards; handlers are coroutines, or functions in its 32 '
        "threads where they block"
    )
    has_bulk = True

    def open(self) -> None:
        self._engine: Engine | None = None

    def _opened(self) -> Engine:
        """The engine that works, or one that only takes."""
        if self._engine is None:
            self._engine = Engine(self.place.directory / "parkade", run=False)
            self._job = self._wired(self._engine, unexpected, is_blocking=False)
            self._engine.start()
        return self._engine

    def _wired(self, engine: Engine, handler: Handler, *, is_blocking: bool) -> Task[[str], None]:
        async def awaited(body: str) -> None:
            handler(body)

        def blocking(body: str) -> None:
            handler(body)

        return engine.task(name="job")(blocking if is_blocking else awaited)

    def _call(self, payload: str, due: float | None) -> Call[None]:
        if due is None:
            return self._job.call(payload)
        return self._job.options(at=datetime.fromtimestamp(due, UTC)).call(payload)

    def submit_each(self, payloads: Sequence[str], dues: Dues = None) -> list[float]:
        engine = self._opened()
        return timed_each(
            lambda payload, due: engine.submit(self._call(payload, due)), payloads, dues
        )

    def submit_bulk(self, payloads: Sequence[str], dues: Dues = None) -> None:
        moments = [None] * len(payloads) if dues is None else dues
        self._opened().submit_many(map(self._call, payloads, moments))

    def work(self, handler: Handler, *, is_blocking: bool = False) -> None:
        self.close()
        self._engine = Engine(self.place.directory / "parkade")
        self._job = self._wired(self._engine, handler, is_blocking=is_blocking)
        self._engine.start()

    def is_settled(self, count: int) -> bool:
        return self._opened().stats().done_total >= count

    def close(self) -> None:
        if self._engine is not None:
            self._engine.stop()
