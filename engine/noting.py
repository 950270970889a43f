"""From records that were applied to notes of what they did. Runs on the core thread, in each turn.

A note copies the few values that its event will show, so it holds no payload, result or traceback
in memory. Of a record that people do not see (a retention's, a reschedule's) there is none, and
progress does not wait for its record (`parkade.progress_events`).
"""

from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, Final

from parkade import events
from parkade.events import Note
from parkade.shard import states
from parkade.shard.ticket import Ticket
from parkade.store.record import (
    Buried,
    Cancelled,
    Completed,
    Delivered,
    ErrorText,
    Expired,
    Record,
    Released,
    Resolved,
    Retried,
    Revived,
    Snoozed,
    Started,
    Submitted,
)

__all__ = ["Notebook", "note_of_ticket", "note_records"]

TEXT_CHARS_MAX: Final = 200  # of an error or a reason: the ticket has it whole


class Notebook:
    """A shard's notes, from the apply of their records until those are durable. `made` counts them;
    a number once given is not given again."""

    __slots__ = ("_in_flight", "_open", "made")

    def __init__(self) -> None:
        self._open: list[Note] = []
        self._in_flight: list[Note] = []
        self.made = 0

    def note(self, records: Iterable[Record], tickets: Mapping[int, Ticket]) -> None:
        """These were applied."""
        notes = self._open
        before = len(notes)
        note_records(records, tickets, notes)
        self.made += len(notes) - before

    def note_submits(self, records: Sequence[Submitted]) -> None:
        """`note` of submits alone."""
        kind = events.SUBMITTED
        self._open += [
            (kind, record.at_ms, record.serial, record.part, record.task, record.due_ms)
            for record in records
        ]
        self.made += len(records)

    def send(self) -> None:
        """The frame of all that was applied is on its way; it is the only one."""
        self._in_flight, self._open = self._open, []

    def release(self) -> tuple[list[Note], int]:
        """The frame is durable: its notes, and how many were made before them."""
        notes, self._in_flight = self._in_flight, []
        return notes, self.made - len(self._open) - len(notes)

    def drop(self) -> None:
        """What is not durable may never have happened."""
        self._open, self._in_flight = [], []


def note_records(
    records: Iterable[Record], tickets: Mapping[int, Ticket], notes: list[Note]
) -> None:
    """Adds the notes of records that have just been applied. `tickets` are those in memory."""
    for record in records:
        kind = type(record)
        if kind is Submitted:
            _note_submitted(record, notes)
        elif kind is Started:
            _note_started(record, tickets, notes)
        elif kind is Completed and not record.born:  # type: ignore[attr-defined]
            ticket = tickets.get(record.serial)  # type: ignore[attr-defined]
            if ticket is not None:
                at_ms, detail = record.at_ms, ticket.attempts  # type: ignore[attr-defined]
                of = (ticket.serial, ticket.part, ticket.task, detail)
                notes.append((events.DONE, at_ms, *of))  # pyright: ignore[reportUnknownArgumentType]
        elif kind is Delivered:
            if record.draft is not None:  # type: ignore[attr-defined]
                _note_submitted(record.draft, notes)  # type: ignore[attr-defined]
        else:
            noter = _NOTERS.get(kind)
            ticket = tickets.get(record.serial) if noter is not None else None  # type: ignore[attr-defined]
            if noter is None or ticket is None:
                continue
            code, detail = noter(record, ticket)
            notes.append((code, record.at_ms, ticket.serial, ticket.part, ticket.task, detail))  # type: ignore[attr-defined]
            for child in getattr(record, "born", None) or ():
                _note_submitted(child, notes)


def _note_submitted(record: Any, notes: list[Note]) -> None:
    notes.append(
        (
            events.SUBMITTED, record.at_ms, record.serial, record.part, record.task, record.due_ms,
        )
    )  # fmt: skip


def _note_started(record: Any, tickets: Mapping[int, Ticket], notes: list[Note]) -> None:
    kind, at_ms = events.STARTED, record.at_ms
    known = [ticket for serial in record.serials if (ticket := tickets.get(serial)) is not None]
    notes += [(kind, at_ms, one.serial, one.part, one.task, one.attempts) for one in known]


def _retried(record: Retried, ticket: Ticket) -> tuple[int, Any]:
    return events.RETRYING, _again(ticket, record.cause, record.error)


def _released(record: Released, ticket: Ticket) -> tuple[int, Any]:
    return events.RETRYING, _again(ticket, "released", None)


def _again(ticket: Ticket, reason: str, error: ErrorText | None) -> tuple[Any, ...]:
    return (ticket.attempts, ticket.due_ms, reason, *_short(error))


def _buried(record: Buried, ticket: Ticket) -> tuple[int, Any]:
    return events.DEAD, (ticket.attempts, record.why, *_short(ticket.error))


def _short(error: ErrorText | None) -> tuple[str | None, str | None]:
    return (None, None) if error is None else (error.type, error.message[:TEXT_CHARS_MAX])


_NOTERS: Final[Mapping[type[Record], Callable[[Any, Ticket], tuple[int, Any]]]] = {
    Completed: lambda _, ticket: (events.DONE, ticket.attempts),
    Retried: _retried,
    Released: _released,
    Snoozed: lambda record, ticket: (
        events.SNOOZED,
        (record.due_ms, record.reason[:TEXT_CHARS_MAX]),
    ),
    Buried: _buried,
    Cancelled: lambda record, _: (events.CANCELLED, record.reason[:TEXT_CHARS_MAX]),
    Expired: lambda _, __: (events.EXPIRED, None),
    Revived: lambda record, _: (events.REVIVED, record.due_ms),
    Resolved: lambda record, _: (events.DONE, record.note[:TEXT_CHARS_MAX]),
}


def note_of_ticket(ticket: Ticket) -> Note:
    """How a ticket stands, as the event that may have brought it there would tell it."""
    kind, at_ms, detail = _standing(ticket)
    return kind, at_ms, ticket.serial, ticket.part, ticket.task, detail


def _standing(ticket: Ticket) -> tuple[int, int, Any]:
    match ticket.state:
        case states.RUNNING:
            return events.STARTED, ticket.started_ms, ticket.attempts
        case states.DONE:
            return events.DONE, ticket.finished_ms, ticket.why or ticket.attempts
        case states.DEAD:
            detail = (ticket.attempts, ticket.why, *_short(ticket.error))
            return events.DEAD, ticket.finished_ms, detail
        case states.CANCELLED:
            return events.CANCELLED, ticket.finished_ms, (ticket.why or "")[:TEXT_CHARS_MAX]
        case states.EXPIRED:
            return events.EXPIRED, ticket.finished_ms, None
        case _:
            return _standing_pending(ticket)


def _standing_pending(ticket: Ticket) -> tuple[int, int, Any]:
    if not ticket.fence:
        return events.SUBMITTED, ticket.created_ms, ticket.due_ms
    # When its latest attempt ended is in its history; that it began then is in its head.
    reason = "failed" if ticket.error is not None else "released"
    return events.RETRYING, ticket.started_ms, _again(ticket, reason, ticket.error)
