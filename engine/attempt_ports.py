"""What attempts need of others: who runs them, what the code says, who notes breakers."""

from collections.abc import Sequence
from typing import TYPE_CHECKING, Protocol

from parkade.policies import RetryPolicy
from parkade.shard.ticket import Ticket

if TYPE_CHECKING:
    from parkade.job import Job

__all__ = ["AttemptRunner", "BreakerNotes", "TaskRules"]


class AttemptRunner(Protocol):
    """The executors."""

    def start(self, jobs: "Sequence[Job]") -> None: ...
    def cancel(
        self, serial: int, fence: int, reason: str, *, is_for_good: bool = False
    ) -> None: ...
    def look(self, mono_ms: int) -> None: ...
    def wait_ms(self, mono_ms: int) -> int | None: ...
    def is_loop_closed(self) -> bool: ...
    def loop_lost(self) -> None: ...


class TaskRules(Protocol):
    """What the code says of a task today."""

    def policy_of(self, ticket: Ticket) -> RetryPolicy: ...
    def on_crash_of(self, task: str) -> int: ...
    def job_of(self, ticket: Ticket, payload: bytes) -> "Job | None": ...
    def entropy(self) -> int: ...


class BreakerNotes(Protocol):
    """Who makes durable which breakers have opened or closed."""

    def expect_breakers(self, names: Sequence[str]) -> None:
        """By outcomes that are yet to be written."""

    def note_breakers(self, names: Sequence[str]) -> None:
        """By outcomes that are durable, or were lost with a shard that is served no more."""
