"""What happened, as an application may watch it: events, and the slim notes they are made of.

A note is a tuple that the core thread makes of a record; the `Event` with its id, its datetime and
its mapping is made where somebody reads it. Events are for observers: they are kept in memory only,
and may be lost. What must happen belongs into a route or a handler.
"""

from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass
from datetime import datetime
from typing import Any, Final, Literal, TypeAlias, cast, get_args

from parkade.checks import refuse
from parkade.durations import datetime_of
from parkade.wording import closest

__all__ = [
    "BREAKER_CLOSED",
    "BREAKER_OPEN",
    "CANCELLED",
    "DEAD",
    "DONE",
    "ENDS",
    "EXPIRED",
    "PAUSED",
    "PROGRESS",
    "RESUMED",
    "RETRYING",
    "REVIVED",
    "SNOOZED",
    "STARTED",
    "SUBMITTED",
    "Event",
    "EventKind",
    "Note",
    "event_of",
    "kinds_of",
    "named_kinds",
]

EventKind: TypeAlias = Literal[
    "submitted", "started", "progress", "retrying", "snoozed", "done", "dead", "cancelled",
    "expired", "revived", "breaker_open", "breaker_closed", "paused", "resumed", "scheduled_tick",
]  # fmt: skip

KINDS: Final[tuple[EventKind, ...]] = get_args(EventKind)
SUBMITTED, STARTED, PROGRESS, RETRYING, SNOOZED, DONE, DEAD, CANCELLED, EXPIRED, REVIVED = range(10)
BREAKER_OPEN, BREAKER_CLOSED, PAUSED, RESUMED = range(10, 14)
ENDS: Final = frozenset((DONE, DEAD, CANCELLED, EXPIRED))
"""After one of these a ticket has ended, until somebody revives it."""

# Nothing makes these yet: to wait for one would be to wait for ever.
_NEVER: Final = frozenset(("scheduled_tick",))

Note: TypeAlias = tuple[int, int, int, int, str | None, Any]
"""Kind, at_ms, serial (0: of no ticket), part, task, and what `_DETAILS` makes the data of."""


@dataclass(frozen=True, slots=True)
class Event:
    """Something that happened and is durable.

    `seq` counts the events of one open of the engine, from 1. `ticket_id` and `task` are None where
    it concerns no ticket or task. `data` holds a few plain values, by `kind`:

    submitted, revived   due_at
    started              attempt (its number)
    progress             done, total, message
    retrying             attempt, due_at, reason (failed, timeout, lease, lost, released),
                         error_type, error
    snoozed              due_at, reason
    done                 attempt; note instead, where a person resolved it
    dead                 attempt, reason, error_type, error
    cancelled            reason
    breaker_open         breaker, reason, until (None: no time is set)
    breaker_closed       breaker
    paused               scope, reason, until
    resumed              scope

    Texts of errors are cut; the ticket has them whole.
    """

    seq: int
    at: datetime
    kind: EventKind
    ticket_id: str | None
    task: str | None
    data: Mapping[str, Any]


def kinds_of(call: str, kinds: Collection[str]) -> frozenset[int]:
    """The kinds that somebody names, as numbers; none named: all. Raises `ConfigError`."""
    return frozenset(KINDS.index(kind) for kind in named_kinds(call, kinds))


def named_kinds(call: str, kinds: Collection[str]) -> frozenset[EventKind]:
    """`kinds_of`, as names."""
    for kind in kinds:
        if kind not in KINDS:
            known = [one for one in KINDS if one not in _NEVER]
            near = closest(kind, known) if isinstance(cast(object, kind), str) else None
            refuse(call, "kind", kind, f'"{near}"' if near else f"one of {', '.join(known)}")
        if kind in _NEVER:
            refuse(call, "kind", kind, "another kind: this version has no schedules")
    return frozenset(cast(Collection[EventKind], kinds) or KINDS)


def event_of(seq: int, note: Note, id_of: Callable[[int, int], str]) -> Event:
    """The event of a note; `id_of` writes an id from serial and part."""
    kind, at_ms, serial, part, task, detail = note
    data = _DETAILS[kind](detail)
    ticket_id = id_of(serial, part) if serial else None
    return Event(seq, datetime_of(at_ms), KINDS[kind], ticket_id, task, data)


def _until(until_ms: int | None) -> datetime | None:
    return None if until_ms is None else datetime_of(until_ms)


def _due(detail: int) -> dict[str, Any]:
    return {"due_at": datetime_of(detail)}


def _retrying(detail: Any) -> dict[str, Any]:
    attempt, due_ms, reason, error_type, error = detail
    return {
        "attempt": attempt, "due_at": datetime_of(due_ms), "reason": reason,
        "error_type": error_type, "error": error,
    }  # fmt: skip


def _dead(detail: Any) -> dict[str, Any]:
    attempt, reason, error_type, error = detail
    return {"attempt": attempt, "reason": reason, "error_type": error_type, "error": error}


def _done(detail: Any) -> dict[str, Any]:
    return {"attempt": detail} if isinstance(detail, int) else {"note": detail}


def _opened(detail: Any) -> dict[str, Any]:
    name, reason, until_ms = detail
    return {"breaker": name, "reason": reason, "until": _until(until_ms)}


def _paused(detail: Any) -> dict[str, Any]:
    scope, reason, until_ms = detail
    return {"scope": scope, "reason": reason, "until": _until(until_ms)}


_DETAILS: Final[Mapping[int, Callable[[Any], dict[str, Any]]]] = {
    SUBMITTED: _due,
    STARTED: lambda attempt: {"attempt": attempt},
    PROGRESS: lambda detail: dict(zip(("done", "total", "message"), detail, strict=True)),
    RETRYING: _retrying,
    SNOOZED: lambda detail: {"due_at": datetime_of(detail[0]), "reason": detail[1]},
    DONE: _done,
    DEAD: _dead,
    CANCELLED: lambda reason: {"reason": reason},
    EXPIRED: lambda _: {},
    REVIVED: _due,
    BREAKER_OPEN: _opened,
    BREAKER_CLOSED: lambda name: {"breaker": name},
    PAUSED: _paused,
    RESUMED: lambda scope: {"scope": scope},
}
