"""Tickets as people see them, from heads as the shards keep them."""

from collections.abc import Sequence
from typing import Any, cast

from parkade.durations import datetime_of
from parkade.errors import DeadReason
from parkade.shard.history import AttemptRow
from parkade.shard.states import CANCELLED, DEAD, DONE, EXPIRED, PENDING, RUNNING
from parkade.shard.ticket import Ticket
from parkade.store.record import ErrorText, ProgressNote
from parkade.verdicts import RetryAfter
from parkade.views import AttemptInfo, AttemptOutcome, Progress, State, TicketInfo

__all__ = ["ENDED_NAMES", "STATE_NUMBERS", "attempt_info", "state_name", "ticket_info"]

ENDED_NAMES: dict[int, State] = {
    RUNNING: "running", DONE: "done", DEAD: "dead", CANCELLED: "cancelled", EXPIRED: "expired",
}  # fmt: skip
STATE_NUMBERS: dict[State, int] = {
    **{name: number for number, name in ENDED_NAMES.items()},
    "scheduled": PENDING,
    "ready": PENDING,
}
_NO_TAGS: dict[str, str] = {}


def state_name(ticket: Ticket, now_ms: int) -> State:
    """`scheduled` and `ready` are the two names of pending: due later, due now."""
    if ticket.state == PENDING:
        return "scheduled" if ticket.due_ms > now_ms else "ready"
    return ENDED_NAMES[ticket.state]


def ticket_info(
    ticket: Ticket, ticket_id: str, *, shards: int, now_ms: int, max_attempts: int | None
) -> TicketInfo:
    """`max_attempts` is the task's; the ticket's own wins."""
    options = ticket.options
    own = None if options is None else options.max_attempts
    if own is not None:
        max_attempts = None if own < 0 else own
    error = ticket.error
    return TicketInfo(
        id=ticket_id,
        task=ticket.task,
        state=state_name(ticket, now_ms),
        shard=ticket.part % shards,
        key=ticket.key,
        target=ticket.target,
        tags=(options.tags if options is not None else None) or _NO_TAGS,
        summary=None if options is None else options.summary,
        attempts=ticket.attempts,
        max_attempts=max_attempts,
        created_at=datetime_of(ticket.created_ms),
        due_at=datetime_of(ticket.due_ms),
        started_at=datetime_of(ticket.started_ms) if ticket.started_ms else None,
        finished_at=datetime_of(ticket.finished_ms) if ticket.finished_ms else None,
        progress=progress_of(ticket.progress),
        dead_reason=cast("DeadReason", ticket.why) if ticket.state == DEAD else None,
        error=None if error is None else error_line(error),
        unique=None if ticket.unique is None else ticket.unique.name,
        priority=ticket.priority,
        snoozes=ticket.snoozes,
        fence=ticket.fence,
        cancel_requested=ticket.cancel_reason is not None,
        ambiguous=ticket.is_ambiguous,
        maybe_applied=ticket.maybe_applied,
        as_of=datetime_of(now_ms),
    )


def progress_of(note: ProgressNote | None) -> Progress | None:
    if note is None:
        return None
    return Progress(note.done, note.total, note.message, datetime_of(note.at_ms))


def attempt_info(row: AttemptRow) -> AttemptInfo:
    error: Any = row.error
    return AttemptInfo(
        number=row.number,
        started_at=datetime_of(row.started_ms),
        ended_at=datetime_of(row.ended_ms) if row.ended_ms else None,
        fence=row.fence,
        outcome=outcome_of(row.outcome, error),
        error_type=None if error is None else error.type,
        error=None if error is None else error.message,
        traceback=(error.traceback or None) if error is not None else None,
    )


def outcome_of(outcome: str, error: ErrorText | None) -> AttemptOutcome:
    """The word for how an attempt ended. The record of one that asked for another is that of any
    other that failed: what it raised tells. Names of other libraries' types have a module."""
    if outcome == "error" and error is not None and error.type == RetryAfter.__name__:
        return "retry_after"
    return cast("AttemptOutcome", outcome)


def error_line(error: ErrorText) -> str:
    """`ValueError: no`; of an error without a message its type alone."""
    return f"{error.type}: {error.message}" if error.message else error.type


def attempt_infos(rows: Sequence[AttemptRow]) -> list[AttemptInfo]:
    return [attempt_info(row) for row in rows]
