"""An executor of its own for a test: a clock that stands still, and every outcome that comes."""

import threading
from collections.abc import Callable
from typing import Any

from parkade.executor import Executor
from parkade.job import Job
from parkade.shard.commands import Outcome
from parkade.shard.ticket import Ticket
from parkade.store.record import ProgressNote
from parkade.tasks import Task, Tasks

WAIT_S = 20.0  # never reached: only so that a broken test ends
DUE_MS = 1_798_761_600_000  # 2027-01-01


class StillClock:
    """Stands still until it is told; `on_ask` is called with each reading."""

    def __init__(self) -> None:
        self.ms = 1_000
        self.on_ask: Callable[[], None] = lambda: None

    def now_ms(self) -> int:
        return DUE_MS + self.ms

    def monotonic_ms(self) -> int:
        self.on_ask()
        return self.ms

    def wait(self, event: threading.Event, timeout_ms: int | None) -> bool:
        raise AssertionError("an executor waits for nobody")


class Port:
    """The engine of the attempts: what they told, and what they saved last, by serial."""

    def __init__(self) -> None:
        self.told: list[ProgressNote] = []
        self.saved: dict[int, bytes] = {}

    def note(self, job: Job, progress: ProgressNote) -> None:
        self.told.append(progress)

    def load_bookmark(self, job: Job) -> bytes | None:
        return self.saved.get(job.serial)

    def save_bookmark(self, job: Job, value: bytes) -> None:
        self.saved[job.serial] = value


class Unlinked:
    """The link of an attempt that has no engine: nothing is kept."""

    def heartbeat(self, note: str) -> None: ...
    def progress(self, done: float, total: float | None, message: str) -> None: ...
    def load_checkpoint(self) -> bytes | None:
        return None

    def save_checkpoint(self, value: bytes) -> None: ...


class AttemptRig:
    """An executor and what it delivered."""

    def __init__(self, thread_count: int = 4) -> None:
        self.clock = StillClock()
        self.tasks = Tasks()
        self.batches: list[list[Outcome]] = []
        self._arrived = threading.Condition()
        self.port = Port()
        self._serials = iter(range(1, 1_000_000))
        self.executor = Executor(
            thread_count=thread_count,
            deliver=self.deliver,
            clock=self.clock,
            entropy=lambda: 0,
            result_bytes_max=1_000,
            port=self.port,
        )

    def deliver(self, outcomes: list[Outcome]) -> None:
        with self._arrived:
            self.batches.append(outcomes)
            self._arrived.notify_all()

    @property
    def outcomes(self) -> list[Outcome]:
        return [outcome for batch in list(self.batches) for outcome in batch]

    def job(self, task: Task[..., Any], *args: Any, fence: int = 1, **head: Any) -> Job:
        serial = next(self._serials)
        number = head.pop("number", 1)
        ticket = Ticket(serial, 0, task.name, 1, DUE_MS, DUE_MS, DUE_MS, **head)
        payload = task.call(*args).payload
        return Job(serial, 0, fence, number, task, payload, ticket, f"id-{serial}")

    def start(self, task: Task[..., Any], *args: Any, **head: Any) -> Job:
        job = self.job(task, *args, **head)
        self.executor.start([job])
        return job

    def run(self, task: Task[..., Any], *args: Any, **head: Any) -> Outcome:
        """Start one, and await its outcome."""
        return self.outcome(self.start(task, *args, **head))

    def outcome(self, job: Job) -> Outcome:
        def found() -> list[Outcome]:
            return [o for o in self.outcomes if (o.serial, o.fence) == (job.serial, job.fence)]

        with self._arrived:
            assert self._arrived.wait_for(found, WAIT_S), "no outcome"
        [outcome] = found()
        return outcome

    def pass_ms(self, ms: int) -> None:
        """Time goes by, and the core thread looks at it."""
        self.clock.ms += ms
        self.executor.look(self.clock.ms)

    def await_count(self, count: int) -> list[Outcome]:
        with self._arrived:
            assert self._arrived.wait_for(lambda: len(self.outcomes) >= count, WAIT_S)
        assert len(self.outcomes) == count
        return self.outcomes


def released(event: threading.Event) -> None:
    """Wait for what another thread will set."""
    assert event.wait(WAIT_S)
