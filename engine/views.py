"""What an application gets to see of tickets: frozen snapshots, true at their `as_of`."""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from typing import Generic, Literal, TypeAlias, TypeVar

from parkade.errors import DeadReason

__all__ = [
    "AttemptInfo",
    "BreakerState",
    "BulkResult",
    "CancelOutcome",
    "DeadGroup",
    "LimitState",
    "Page",
    "Progress",
    "ShardStats",
    "State",
    "Stats",
    "StopReport",
    "TicketInfo",
    "Why",
]

T = TypeVar("T")

State: TypeAlias = Literal["scheduled", "ready", "running", "done", "dead", "cancelled", "expired"]
CancelOutcome: TypeAlias = Literal["cancelled", "requested", "too_late"]
AttemptOutcome: TypeAlias = Literal[
    "running", "done", "error", "retry_after", "snoozed", "released", "lost", "timeout",
    "cancelled", "unsafe", "ambiguous",
]  # fmt: skip


@dataclass(frozen=True, slots=True)
class Progress:
    """The last progress that an attempt reported."""

    done: float
    total: float | None
    message: str
    updated_at: datetime


@dataclass(frozen=True, slots=True)
class AttemptInfo:
    """One execution of a ticket. `number` starts at 1 and counts the budget; `fence` counts every
    start for ever."""

    number: int
    started_at: datetime
    ended_at: datetime | None
    fence: int
    outcome: AttemptOutcome
    error_type: str | None = None
    error: str | None = None
    traceback: str | None = None


@dataclass(frozen=True, slots=True)
class TicketInfo:
    """A ticket as it stood at `as_of`."""

    id: str
    task: str
    state: State
    shard: int
    key: str | None
    target: str | None
    tags: Mapping[str, str]
    summary: str | None
    attempts: int
    max_attempts: int | None
    created_at: datetime
    due_at: datetime
    started_at: datetime | None
    finished_at: datetime | None
    progress: Progress | None
    dead_reason: DeadReason | None
    error: str | None
    unique: str | None
    priority: int
    snoozes: int
    fence: int
    cancel_requested: bool
    ambiguous: bool
    maybe_applied: bool
    as_of: datetime


@dataclass(frozen=True, slots=True)
class Page(Generic[T]):
    """Some rows, newest first, and the cursor of the next (`None`: this was the last).

    `scanned` counts the tickets looked at; `complete` is False when the page ends early because
    too many did not fit: `next` goes on from there.
    """

    items: Sequence[T]
    next: str | None
    scanned: int
    complete: bool

    def __iter__(self) -> Iterator[T]:
        return iter(self.items)


@dataclass(frozen=True, slots=True)
class BulkResult:
    """What a call about many tickets did, and why it left some alone."""

    matched: int
    changed: int
    skipped: Mapping[str, int] = field(default_factory=dict[str, int])


@dataclass(frozen=True, slots=True)
class DeadGroup:
    """Dead tickets that died alike: of one task, with one type of error, and with messages that
    differ in numbers, ids and quoted parts alone.

    `sample` is the message of the one that died last, as far as is known: of those in a shard the
    first and the last to be submitted are looked at, which also give `first_at` and `last_at`.
    Where there is no error (the process died), `error_type` is empty and `sample` is the reason.
    """

    key: str
    task: str
    error_type: str
    sample: str
    count: int
    first_at: datetime
    last_at: datetime


@dataclass(frozen=True, slots=True)
class ShardStats:
    """One shard: `status` is open, recovering or refused; sizes in bytes. `refused_outcomes`: what
    attempts reported that had been given up, since the open; it counted for nothing."""

    shard: int
    status: str
    reason: str | None
    lsn: int
    hot: int
    dirty: int
    journal_bytes: int
    journal_segments: int
    store_bytes: int
    checkpoints: int
    recoveries: int
    quarantined: int
    refused_outcomes: int = 0


@dataclass(frozen=True, slots=True)
class Stats:
    """The engine's counters, kept as tickets change: nothing is counted when they are read.

    `done_total` counts every ticket that was ever done, those that are forgotten too; the rest
    counts what is there. In `by_task` a ticket that waits is `scheduled`, whether it is due or not.
    """

    ready: int
    scheduled: int
    running: int
    dead: int
    done_total: int
    oldest_ready_age: timedelta
    by_task: Mapping[str, Mapping[State, int]]
    shards: Sequence[ShardStats] = ()
    zombies: int = 0  # attempts that were given up and still keep their places: their threads run


@dataclass(frozen=True, slots=True)
class Why:
    """Why a ticket is not running (or that it is, or how it ended), in one sentence.

    `blockers` names each thing that holds it now, like "breaker:psp" or "limit task:mail".
    `next_change_at` is when that may change by itself, if time alone changes it.
    """

    state: State
    text: str
    blockers: Sequence[str]
    next_change_at: datetime | None


@dataclass(frozen=True, slots=True)
class BreakerState:
    """A breaker. `failures` are those that count at present; `held` is about how many due tickets
    wait behind it."""

    name: str
    state: Literal["closed", "open", "half_open", "forced_open"]
    failures: int
    opened_at: datetime | None
    next_probe_at: datetime | None
    held: int


@dataclass(frozen=True, slots=True)
class LimitState:
    """One limit of a scope, and how many attempts it counts now. `rate` is starts in a span of ms;
    `is_overridden`: an operator set it in place of what the code says."""

    scope: str
    concurrency: int | None
    rate: tuple[int, int] | None
    burst: int | None
    running: int
    is_overridden: bool


@dataclass(frozen=True, slots=True)
class StopReport:
    """How a stop went, in attempts that were running: `finished` by themselves, `cancelled` when
    they were asked to end, `given_back` for they did not end. Only the first are sure to have an
    outcome of their own; the tickets of the others are pending again, unless theirs says otherwise.
    `zombies` run on after the stop."""

    clean: bool
    finished: int
    cancelled: int
    given_back: int
    zombies: int
