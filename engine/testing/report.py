"""What a run of a test engine comes to."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from parkade.wording import count_text

__all__ = ["Drained", "Killed", "Raised", "StillBusy"]

TASKS_SHOWN_MAX = 3


@dataclass(frozen=True, slots=True)
class Raised:
    """What an attempt ended with: the exception itself, with its traceback."""

    ticket_id: str
    task: str
    attempt: int
    error: BaseException


@dataclass(frozen=True, slots=True)
class Drained:
    """What happened in one `run_until_idle`: how many tickets were done, died or were cancelled;
    how often one was retried or snoozed; how many attempts there were, and what those that failed
    raised, in order. `expired` counts from the run before."""

    done: int
    dead: int
    retried: int
    cancelled: int
    expired: int = 0
    snoozed: int = 0
    attempts: int = 0
    errors: Sequence[Raised] = ()

    def raise_errors(self) -> None:
        """Raises what the attempts raised, so that a test fails with the traceback of the handler:
        one as it is, several as an exception group. Does nothing when there was none."""
        errors = [raised.error for raised in self.errors]
        if len(errors) == 1:
            raise errors[0]
        if errors:
            raise BaseExceptionGroup("attempts failed", errors)


class StillBusy(AssertionError):
    """A run made `max_tickets` attempts and there was more to do. `attempts`: how many, by task."""

    def __init__(self, attempts: Mapping[str, int]) -> None:
        self.attempts = dict(sorted(attempts.items(), key=lambda item: (-item[1], item[0])))
        tasks = [f"{name} ({count_text(count)})" for name, count in self.attempts.items()]
        listed = ", ".join(tasks[:TASKS_SHOWN_MAX])
        if len(tasks) > TASKS_SHOWN_MAX:
            listed += f" and {len(tasks) - TASKS_SHOWN_MAX} more"
        super().__init__(
            f"run_until_idle() made {count_text(sum(attempts.values()))} attempts and is not idle: "
            f"{listed or 'none'}. A ticket may be tried again without end, or submit itself; if "
            "there is so much to do, give max_tickets="
        )


class Killed(BaseException):
    """Raised in a handler, or in what it calls: the process dies there, as by kill -9.

    `run_until_idle` ends with it and the engine is gone; `crash()` opens its directory again.
    """
