"""The engine as the benches use it: tasks that do nothing, tickets that sleep, and ways to wait.

What is waited for is looked at by the core thread between two passes, so that waiting costs what is
measured next to nothing. A sleeper is parked when its checkpoint is done: it has left memory.
"""

import itertools
import random
from collections.abc import Callable, Iterator
from pathlib import Path
from types import TracebackType
from typing import Any, Self

from parkade import Call, Engine
from parkade.host import Host
from parkade.shard.states import DONE

WAIT_S_MAX = 600
PAYLOAD_BYTES = 100
BODY = "x" * (PAYLOAD_BYTES - 8)  # the payload is a map of one name
DAY_S, YEAR_S = 86_400.0, 31_536_000.0
CALLS_MAX = 10_000  # distinct due times among the sleepers
SLICE = 10_000  # tickets whose handles are held at a time


class Stage:
    """An open engine with its tasks. `options` are the engine's."""

    def __init__(self, directory: Path | str, **options: Any) -> None:
        self.engine = Engine(directory, **options)

        @self.engine.task(name="noop")
        def noop() -> None: ...

        @self.engine.task(name="anoop")
        async def anoop() -> None: ...

        @self.engine.task(name="sleeper")
        def sleeper(body: str) -> None: ...

        self.noop, self.anoop, self.sleeper = noop, anoop, sleeper

    def __enter__(self) -> Self:
        self.engine.start()
        return self

    def __exit__(
        self, et: type[BaseException] | None, e: BaseException | None, tb: TracebackType | None
    ) -> None:
        self.engine.stop()

    @property
    def host(self) -> Host:
        """The core thread."""
        return self.engine.desk("bench").runtime.host

    def sleepers(self, count: int) -> Iterator[Call[None]]:
        """So many calls of 100 bytes, due over the year to come, in no order."""
        dues = random.Random(7)
        calls = [
            self.sleeper.options(delay=dues.uniform(DAY_S, YEAR_S)).call(BODY)
            for _ in range(min(count, CALLS_MAX))
        ]
        return itertools.islice(itertools.cycle(calls), count)

    def submit_all(self, calls: Iterator[Call[Any]]) -> int:
        """Submits, letting go of the handles as it goes; how many there were."""
        total = 0
        while count := len(self.engine.submit_many(itertools.islice(calls, SLICE))):
            total += count
        return total

    def park(self) -> None:
        """Has every shard write its checkpoint now; returns when nothing is dirty any more."""
        host = self.host

        def want() -> None:
            for shard in host.open_shards():
                shard.checkpointing.is_wanted = not shard.core.dirty.is_empty

        host.post(want)
        self._wait(lambda: all(shard.is_quiet for shard in host.shards), "parked")

    def done(self) -> int:
        """How many tickets were ever done, those that are forgotten among them."""
        cores = [shard.core for shard in self.host.shards]
        kept = sum(counts[DONE] for core in cores for counts in core.by_task.values())
        return kept + sum(core.done_forgotten for core in cores)

    def await_done(self, count: int) -> None:
        """Returns when so many tickets are done and it is on disk."""
        shards = self.host.shards

        def is_done() -> bool:
            is_durable = all(shard.durable_lsn == shard.core.lsn for shard in shards)
            return self.done() >= count and is_durable

        self._wait(is_done, f"{count} tickets done")

    def _wait(self, condition: Callable[[], bool], what: str) -> None:
        if not self.host.when(condition).wait(WAIT_S_MAX):
            raise TimeoutError(f"not {what} within {WAIT_S_MAX} s: {self.engine.stats()}")
