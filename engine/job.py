"""An attempt that is to be made, as the executors get it."""

from typing import Any

import msgspec

from parkade.durations import datetime_of
from parkade.policies import RetryPolicy
from parkade.shard.ticket import Ticket, format_id
from parkade.showing import outcome_of
from parkade.tasks import Task
from parkade.views import AttemptInfo

__all__ = ["Job"]


class Job(msgspec.Struct, gc=False, eq=False):
    """An attempt to be made: its Started is durable and its place is in hand.

    `number` counts the budget from 1. `ticket` is the head as it stood at the start; it is read,
    never changed. `written_id` is the ticket's id where somebody has it already; else it is made
    with the directory's `salt` when it is asked for, which most attempts never do.
    """

    serial: int
    part: int
    fence: int
    number: int
    task: Task[..., Any]
    payload: bytes
    ticket: Ticket
    written_id: str = ""
    salt: int = 0
    chosen_policy: RetryPolicy | None = None

    @property
    def ticket_id(self) -> str:
        """The ticket's id."""
        if not self.written_id:
            self.written_id = format_id(self.serial, self.part, self.salt)
        return self.written_id

    @property
    def target(self) -> str | None:
        """What the attempt calls."""
        return self.ticket.target

    @property
    def timeout_ms(self) -> int | None:
        """How long it may run: as the ticket says, or else its task; None: for ever."""
        options = self.ticket.options
        if options is not None and options.timeout_ms is not None:
            return options.timeout_ms
        return self.task.timeout_ms

    def policy(self) -> RetryPolicy:
        """The policy of the code of today, with the numbers that the ticket brought."""
        if self.chosen_policy is None:
            self.chosen_policy = self.task.policy_for(self.ticket.options)
        return self.chosen_policy

    def last_error(self) -> AttemptInfo | None:
        """What the head keeps of the attempt before: its error. Its times are in the history."""
        ticket = self.ticket
        if ticket.error is None:
            return None
        return AttemptInfo(
            number=max(1, self.number - 1),
            started_at=datetime_of(ticket.first_due_ms),
            ended_at=None,
            fence=self.fence - 1,
            outcome=outcome_of("error", ticket.error),
            error_type=ticket.error.type,
            error=ticket.error.message,
            traceback=ticket.error.traceback or None,
        )
