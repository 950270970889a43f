"""Arithmetic on a ticket's deadlines and budget. Times in ms since the epoch, spans in ms."""

from typing import Final

from parkade.shard.ticket import Ticket

__all__ = [
    "DEATHS_MAX",
    "DUE_MS_MAX",
    "due_after",
    "expiry_of",
    "is_exhausted",
    "is_late",
    "late_at",
]

DUE_MS_MAX: Final = 253_402_300_799_999
"""The last millisecond of the year 9999, in UTC."""

DEATHS_MAX: Final = 3
"""The death as the only suspect running that buries a ticket."""

_UNBOUNDED = -1


def due_after(now_ms: int, wait_ms: int) -> int:
    """The due of a ticket that waits so long: not before the epoch, not past the year 9999."""
    return min(max(now_ms + max(wait_ms, 0), 0), DUE_MS_MAX)


def expiry_of(ticket: Ticket) -> int | None:
    """When a ticket that has not been started expires; None: never, or it has been started."""
    options = ticket.options
    if options is None or options.expires_ms is None or ticket.fence:
        return None
    return min(ticket.first_due_ms + options.expires_ms, DUE_MS_MAX)


def late_at(ticket: Ticket, policy_elapsed_ms: int | None) -> int | None:
    """From when on the ticket is late; its own option goes before the policy's. None: never."""
    options = ticket.options
    elapsed_ms = policy_elapsed_ms
    if options is not None and options.max_elapsed_ms is not None:
        elapsed_ms = options.max_elapsed_ms
    if elapsed_ms is None or elapsed_ms == _UNBOUNDED:
        return None
    return ticket.first_due_ms + elapsed_ms


def is_late(ticket: Ticket, policy_elapsed_ms: int | None, at_ms: int) -> bool:
    """Whether the ticket is late at that time."""
    limit_ms = late_at(ticket, policy_elapsed_ms)
    return limit_ms is not None and limit_ms <= at_ms


def is_exhausted(ticket: Ticket, policy_attempts_max: int | None) -> bool:
    """Whether no attempt is left; the ticket's own option goes before the policy's."""
    options = ticket.options
    attempts_max = policy_attempts_max
    if options is not None and options.max_attempts is not None:
        attempts_max = options.max_attempts
    if attempts_max is None or attempts_max == _UNBOUNDED:
        return False
    return ticket.attempts >= attempts_max
