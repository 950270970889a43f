"""What a handler is told about its attempt, and how it asks whether to go on.

`current_attempt()` finds it from anywhere below the handler, in its thread, its task and the tasks
started from there. It decides nothing: how an attempt ended is told in `parkade.settling`.
"""

import logging
from collections.abc import (
    AsyncIterator,
    Callable,
    Iterable,
    Iterator,
    Mapping,
    MutableMapping,
    Sized,
)
from contextvars import ContextVar
from datetime import datetime, timedelta
from typing import TYPE_CHECKING, Any, Protocol, TypeVar, overload

from parkade.checks import check_text
from parkade.clock import Clock
from parkade.durations import datetime_of
from parkade.errors import NoAttempt
from parkade.payload import decode_checkpoint, encode_checkpoint
from parkade.verdicts import Cancelled
from parkade.views import AttemptInfo

if TYPE_CHECKING:
    from parkade.calls import Call
    from parkade.family import Births
    from parkade.ticket import Ticket

__all__ = ["RUNNING", "Attempt", "AttemptLink", "current_attempt", "running_attempt"]

T = TypeVar("T")

KEY_PART_BYTES_MAX = 200  # services that take idempotency keys cut them at 255
CHILDREN_NOT_SAVED = (
    "%s %s saved a checkpoint behind children. If this attempt fails they are not made, and the "
    "next one begins behind them: submit them at once, with unique=, and not by attempt.submit"
)
_log = logging.getLogger("parkade.attempt")
_NO_TAGS: Mapping[str, str] = {}


class AttemptLink(Protocol):
    """The engine as an attempt reaches it, from its handler's thread, task or process.

    Each call but `load_checkpoint` renews the lease, if that is an explicit one.
    """

    def heartbeat(self, note: str) -> None:
        """The attempt is alive; a `note` takes the place of the progress's message."""
        ...

    def progress(self, done: float, total: float | None, message: str) -> None:
        """How far it is. Never waits; the latest wins."""
        ...

    def load_checkpoint(self) -> bytes | None:
        """What was saved last for the ticket, by whichever attempt."""
        ...

    def save_checkpoint(self, value: bytes) -> None:
        """Returns when it is durable. Raises `PayloadError` if it is too large, `Cancelled` if the
        attempt was given up, `StorageError` if it cannot be known to be durable."""
        ...


class Attempt:
    """One execution of a ticket, as its handler sees it.

    `number` starts at 1 and counts the budget of `max_attempts` (None: no bound). `fence` grows
    with every start of the ticket, for ever: pass it to systems that can refuse an older one.
    `idempotency_key` is the same in every attempt. `tags` are the ticket's.
    """

    __slots__ = (
        "_cancel_reason",
        "_clock",
        "_deadline_ms",
        "_due_ms",
        "_family",
        "_has_children",
        "_is_for_good",
        "_is_warned",
        "_link",
        "_log",
        "fence",
        "key",
        "last_error",
        "max_attempts",
        "number",
        "tags",
        "target",
        "task",
        "ticket_id",
    )

    def __init__(
        self,
        ticket_id: str,
        task: str,
        *,
        clock: Clock,
        number: int = 1,
        max_attempts: int | None = None,
        fence: int = 1,
        due_ms: int = 0,
        key: str | None = None,
        target: str | None = None,
        tags: Mapping[str, str] | None = None,
        last_error: AttemptInfo | None = None,
        deadline_ms: int | None = None,
        family: "Births | None" = None,
        link: AttemptLink,
    ) -> None:
        """`due_ms`: the first due time, since the epoch; `deadline_ms`: on the monotonic clock."""
        self.ticket_id = ticket_id
        self.task = task
        self.number = number
        self.max_attempts = max_attempts
        self.fence = fence
        self.key = key
        self.target = target
        self.tags = _NO_TAGS if tags is None else tags
        self.last_error = last_error
        self._clock = clock
        self._due_ms = due_ms
        self._deadline_ms = deadline_ms
        self._family = family
        self._link = link
        self._cancel_reason: str | None = None
        self._is_for_good = False
        self._has_children = False
        self._is_warned = False  # that a checkpoint lacks them
        self._log: logging.LoggerAdapter[logging.Logger] | None = None

    def __repr__(self) -> str:
        return f"<Attempt {self.number} of {self.task} {self.ticket_id}>"

    @property
    def is_last(self) -> bool:
        """Whether a failure of this attempt will be the ticket's end."""
        return self.max_attempts is not None and self.number >= self.max_attempts

    @property
    def idempotency_key(self) -> str:
        """For the service that is called: the same in all attempts, unique in the world."""
        return f"pk-{self.ticket_id}"

    def key_for(self, part: str) -> str:
        """A key of the same kind for one part of the work, like `key_for("refund")`.

        Raises `ConfigError` for a part that is empty or longer than 200 bytes.
        """
        check_text("Attempt.key_for", "part", part, bytes_max=KEY_PART_BYTES_MAX)
        return f"pk-{self.ticket_id}-{part}"

    @property
    def scheduled_for(self) -> datetime:
        """The time this work is for, in UTC: when it was first due, whatever retries came since."""
        return datetime_of(self._due_ms)

    @property
    def cancelled(self) -> bool:
        """Whether to stop: the ticket is cancelled, the engine stops, or the timeout is over."""
        return self._cancel_reason is not None or self._is_overdue()

    @property
    def cancel_reason(self) -> str | None:
        """Why to stop; None while there is no reason to."""
        if self._cancel_reason is not None:
            return self._cancel_reason
        return "its timeout has passed" if self._is_overdue() else None

    def raise_if_cancelled(self) -> None:
        """Raise `Cancelled` if it is time to stop: for handlers in threads, between two steps."""
        reason = self.cancel_reason
        if reason is not None:
            raise Cancelled(reason)

    @property
    def time_left(self) -> timedelta | None:
        """What is left of the timeout, never negative; None without one."""
        if self._deadline_ms is None:
            return None
        return timedelta(milliseconds=max(0, self._deadline_ms - self._clock.monotonic_ms()))

    def submit(self, call: "Call[T]") -> "Ticket[T]":
        """A child: a ticket that is made by the outcome of this attempt, exactly once, and that has
        its id now. `call` is like `task.call(...)`.

        It is made when the handler returns, or raises Snooze, Drop, Fail, Unsafe or Ambiguous; an
        attempt that ends otherwise takes its children with it. Raises `ConfigError` for more than
        1,000, `PayloadError` for one that is too large, `NoAttempt` once the attempt is over.
        """
        if self._family is None:
            raise NoAttempt("attempt.submit")
        ticket: Ticket[T] = self._family.submit(call)
        self._has_children = True
        return ticket

    def heartbeat(self, note: str = "") -> None:
        """Say that the work goes on: it renews an explicit `lease=` (without one the engine renews
        by itself). A note is shown as the message of the progress. Never waits."""
        self._link.heartbeat(note)

    def progress(self, done: float, total: float | None = None, message: str = "") -> None:
        """Tell how far the work is, for whoever looks at the ticket; renews the lease.

        As often as you like: it never waits and the latest wins. The message is cut at 4 KiB. It
        is on disk with the next thing that the engine writes, at most every 250 ms.
        """
        self._link.progress(done, total, message)

    def track(self, items: Iterable[T], total: int | None = None, message: str = "") -> Iterator[T]:
        """The items, with progress told for each one that is done.

        `total` is their number unless it is given; of what has no length there is none. Where it is
        given and is more than their number, the difference was done before: so work that goes on
        behind a checkpoint shows how far all of it is.
        """
        done = 0
        if isinstance(items, Sized):
            total = len(items) if total is None else total
            done = max(0, total - len(items))
        self.progress(done, total, message)
        for item in items:
            yield item
            done += 1
            self.progress(done, total, message)

    async def atrack(
        self, items: AsyncIterator[T], total: int | None = None, message: str = ""
    ) -> AsyncIterator[T]:
        """The same for what is iterated with `async for`."""
        done = 0
        self.progress(done, total, message)
        async for item in items:
            yield item
            done += 1
            self.progress(done, total, message)

    @overload
    def checkpoint(self, type: type[T]) -> T | None: ...
    @overload
    def checkpoint(self, type: type[T], default: T) -> T: ...
    def checkpoint(self, type: type[T], default: T | None = None) -> T | None:
        """What an attempt of this ticket saved last, as a `type`; `default` if none did.

        It waits for the disk if it has to. Raises `PayloadError` for what does not fit the type, as
        when the type has changed since: catch it to begin anew.
        """
        saved = self._link.load_checkpoint()
        return default if saved is None else decode_checkpoint(self.task, saved, type)

    def save_checkpoint(self, value: Any) -> None:
        """Keep where the work is, for the next attempt; it is durable when this returns, and takes
        the place of what was saved before. Renews the lease.

        In a coroutine it blocks the event loop until then: one write to the disk. Raises
        `PayloadError` for what cannot be stored or is larger than `max_payload`, `Cancelled` if
        this attempt was given up meanwhile (another may run: stop), and `StorageError`.

        Children are not saved with it: what an attempt submitted by `attempt.submit` before it is
        lost if the attempt fails, and the log warns of that.
        """
        self._link.save_checkpoint(encode_checkpoint(self.task, value))
        if self._has_children and not self._is_warned:
            self._is_warned = True
            self.log.warning(CHILDREN_NOT_SAVED, self.task, self.ticket_id)

    @property
    def log(self) -> "logging.LoggerAdapter[logging.Logger]":
        """The logger `parkade.attempt`, with ticket_id, task, attempt, key and target in each
        record. Fields of an `extra=` of yours come on top."""
        if self._log is None:
            self._log = _FieldsAdapter(_log, self.log_fields())
        return self._log

    def log_fields(self) -> dict[str, object]:
        """The fields that every log record about this attempt carries."""
        fields: dict[str, object] = {
            "ticket_id": self.ticket_id,
            "task": self.task,
            "attempt": self.number,
        }
        if self.key is not None:
            fields["key"] = self.key
        if self.target is not None:
            fields["target"] = self.target
        return fields

    def request_cancel(self, reason: str, *, is_for_good: bool = False) -> None:
        """Set the flag that handlers look at. For the engine, from any thread; the first reason
        stays. `is_for_good`: the ticket itself is cancelled, and not only this attempt stopped."""
        if is_for_good:
            self._is_for_good = True
        if self._cancel_reason is None:
            self._cancel_reason = reason

    @property
    def is_cancel_requested(self) -> bool:
        """Whether somebody asked; a timeout that has passed is no request."""
        return self._cancel_reason is not None

    @property
    def is_cancelled_for_good(self) -> bool:
        """Whether the ticket is cancelled; else an engine that stops wants its place back."""
        return self._is_for_good

    def _is_overdue(self) -> bool:
        return self._deadline_ms is not None and self._clock.monotonic_ms() >= self._deadline_ms


class _FieldsAdapter(logging.LoggerAdapter[logging.Logger]):
    """Adds the attempt's fields; before Python 3.13 the base class drops a caller's `extra`."""

    def process(
        self, msg: Any, kwargs: MutableMapping[str, Any]
    ) -> tuple[Any, MutableMapping[str, Any]]:
        kwargs["extra"] = {**(self.extra or {}), **(kwargs.get("extra") or {})}
        return msg, kwargs


# What runs here: an attempt, or what makes it for the first who asks, since most handlers never do.
# The engine sets it in the fresh context of each attempt, and nowhere else.
RUNNING: ContextVar[Attempt | Callable[[], Attempt]] = ContextVar("parkade_attempt")


def current_attempt() -> Attempt:
    """The attempt whose handler is running here. Raises `NoAttempt` outside of one."""
    attempt = running_attempt()
    if attempt is None:
        raise NoAttempt()
    return attempt


def running_attempt() -> Attempt | None:
    """The same; None outside of one."""
    running = RUNNING.get(None)
    return running if running is None or isinstance(running, Attempt) else running()
