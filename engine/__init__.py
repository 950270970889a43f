"""parkade: an embedded, durable, sharded ticket engine. The public surface.

from parkade import Engine

engine = Engine("data", shards=4)

@engine.task
def resize(path: str, width: int = 800) -> str: ...

with engine:
    resize.options(delay="10m").submit("cat.png")
"""

from typing import TYPE_CHECKING, Any

from parkade.attempt import Attempt, current_attempt
from parkade.calls import Call
from parkade.clock import Clock
from parkade.dead import DeadLetters
from parkade.durations import Duration
from parkade.engine import Engine
from parkade.errors import (
    Backpressure,
    BlockingInEventLoop,
    ConfigError,
    DashboardAuthMissing,
    DeadReason,
    DuplicateTicket,
    EngineClosed,
    EngineInUse,
    ForkedEngine,
    FormatTooNew,
    MissingExtra,
    NaiveDatetime,
    NoAttempt,
    NotDead,
    ParkadeError,
    PartialSubmit,
    PayloadError,
    ResultGone,
    ResultTimeout,
    ShardMismatch,
    StorageDamaged,
    StorageError,
    StorageFull,
    TicketCancelled,
    TicketError,
    TicketExpired,
    TicketFailed,
    UnknownTask,
    UnknownTicket,
    WaitInsideAttempt,
    WorkflowChanged,
)
from parkade.events import Event, EventKind
from parkade.outcome import Outcome
from parkade.policies import Backoff, Breaker, Limit, RetryPolicy, Secret
from parkade.subscription import Subscription
from parkade.tasks import AsyncTask, SyncTask, Task, Tasks
from parkade.ticket import Ticket
from parkade.verdicts import (
    Ambiguous,
    Cancelled,
    Drop,
    Fail,
    RetryAfter,
    Snooze,
    Unsafe,
    Verdict,
)
from parkade.version import VERSION as __version__
from parkade.views import (
    AttemptInfo,
    BreakerState,
    BulkResult,
    CancelOutcome,
    DeadGroup,
    LimitState,
    Page,
    Progress,
    State,
    Stats,
    StopReport,
    TicketInfo,
    Why,
)

if TYPE_CHECKING:
    from parkade.reader import Reader, open_readonly

__all__ = [
    "Ambiguous",
    "AsyncTask",
    "Attempt",
    "AttemptInfo",
    "Backoff",
    "Backpressure",
    "BlockingInEventLoop",
    "Breaker",
    "BreakerState",
    "BulkResult",
    "Call",
    "CancelOutcome",
    "Cancelled",
    "Clock",
    "ConfigError",
    "DashboardAuthMissing",
    "DeadGroup",
    "DeadLetters",
    "DeadReason",
    "Drop",
    "DuplicateTicket",
    "Duration",
    "Engine",
    "EngineClosed",
    "EngineInUse",
    "Event",
    "EventKind",
    "Fail",
    "ForkedEngine",
    "FormatTooNew",
    "Limit",
    "LimitState",
    "MissingExtra",
    "NaiveDatetime",
    "NoAttempt",
    "NotDead",
    "Outcome",
    "Page",
    "ParkadeError",
    "PartialSubmit",
    "PayloadError",
    "Progress",
    "Reader",
    "ResultGone",
    "ResultTimeout",
    "RetryAfter",
    "RetryPolicy",
    "Secret",
    "ShardMismatch",
    "Snooze",
    "State",
    "Stats",
    "StopReport",
    "StorageDamaged",
    "StorageError",
    "StorageFull",
    "Subscription",
    "SyncTask",
    "Task",
    "Tasks",
    "Ticket",
    "TicketCancelled",
    "TicketError",
    "TicketExpired",
    "TicketFailed",
    "TicketInfo",
    "UnknownTask",
    "UnknownTicket",
    "Unsafe",
    "Verdict",
    "WaitInsideAttempt",
    "Why",
    "WorkflowChanged",
    "__version__",
    "current_attempt",
    "open_readonly",
]


def __getattr__(name: str) -> Any:
    if name in ("Reader", "open_readonly"):  # an application that runs tickets wants neither
        from parkade import reader

        return getattr(reader, name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
