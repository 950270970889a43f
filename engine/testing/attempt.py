"""An attempt without an engine, for unit tests of handlers."""

from collections.abc import Generator, Mapping
from contextlib import contextmanager
from datetime import datetime
from typing import Any

from parkade.attempt import RUNNING, Attempt
from parkade.calls import Call
from parkade.clock import Clock
from parkade.durations import Duration, at_ms, parse_duration_ms
from parkade.errors import ConfigError, EngineClosed
from parkade.links import progress_note
from parkade.payload import PAYLOAD_BYTES_MAX, check_size, encode_checkpoint
from parkade.testing.clock import ManualClock
from parkade.ticket import Ticket
from parkade.views import AttemptInfo

__all__ = ["fake_attempt"]


FIELDS = (
    "cancelled", "checkpoint", "children", "clock", "fence", "key", "last_error", "max_attempts",
    "number", "scheduled_for", "tags", "target", "task", "ticket_id", "timeout",
)  # fmt: skip
TICKET_ID = "0fake" + "0" * 19
TASK = "fake"


class _FakeLink:
    """Keeps what is saved, and nothing of the rest."""

    attempt: Attempt

    def __init__(self, saved: bytes | None) -> None:
        self._saved = saved

    def heartbeat(self, note: str) -> None:
        """Nobody listens."""

    def progress(self, done: float, total: float | None, message: str) -> None:
        progress_note(done, total, message, 0)

    def load_checkpoint(self) -> bytes | None:
        return self._saved

    def save_checkpoint(self, value: bytes) -> None:
        check_size(self.attempt.task, value, PAYLOAD_BYTES_MAX, what="checkpoint")
        self._saved = value


class _Calls:
    """Keeps the calls of children; their tickets have an id, and no engine to ask about it."""

    def __init__(self, calls: list[Call[Any]]) -> None:
        self._calls = calls

    def submit(self, call: Call[Any]) -> Ticket[Any]:
        self._calls.append(call)
        desk: Any = _NoDesk()
        ticket_id = f"0fakechild{len(self._calls):014d}"
        return Ticket(desk, ticket_id, call.task, created=True, bound=call.bound)


class _NoDesk:
    """Stands for an engine that is not open."""

    def __getattr__(self, name: str) -> Any:
        raise EngineClosed("a child of fake_attempt()")


@contextmanager
def fake_attempt(**fields: Any) -> Generator[Attempt, None, None]:
    """Makes `current_attempt()` answer inside of it, with an attempt of these fields.

    Fields are those of `Attempt`: number, max_attempts, fence, key, target, tags, task, ticket_id,
    last_error, scheduled_for; besides, `timeout` is what is left of it, by `clock` (a `ManualClock`
    unless given), `cancelled` is True or the reason, and `checkpoint` is what an attempt before has
    saved; what this one saves is what its `checkpoint` gives. The calls that a handler gives to
    `attempt.submit` are added to the list `children`. Raises `ConfigError` for other names.
    """
    for name in fields:
        if name not in FIELDS:
            raise ConfigError.unknown_option("fake_attempt", name, FIELDS)
    attempt = _make(**fields)
    token = RUNNING.set(attempt)
    try:
        yield attempt
    finally:
        RUNNING.reset(token)


def _make(
    *,
    ticket_id: str = TICKET_ID,
    task: str = TASK,
    number: int = 1,
    max_attempts: int | None = None,
    fence: int | None = None,
    key: str | None = None,
    target: str | None = None,
    tags: Mapping[str, str] | None = None,
    last_error: AttemptInfo | None = None,
    scheduled_for: datetime | None = None,
    timeout: Duration | None = None,
    cancelled: bool | str = False,
    checkpoint: Any = None,
    children: list[Call[Any]] | None = None,
    clock: Clock | None = None,
) -> Attempt:
    clock = ManualClock() if clock is None else clock
    due_ms = clock.now_ms()
    if scheduled_for is not None:
        due_ms = at_ms(scheduled_for, what="fake_attempt(scheduled_for)")
    deadline_ms = None
    if timeout is not None:
        timeout_ms = parse_duration_ms(timeout, what="fake_attempt(timeout)")
        deadline_ms = clock.monotonic_ms() + timeout_ms
    link = _FakeLink(None if checkpoint is None else encode_checkpoint(task, checkpoint))
    attempt = link.attempt = Attempt(
        ticket_id,
        task,
        clock=clock,
        number=number,
        max_attempts=max_attempts,
        fence=number if fence is None else fence,
        due_ms=due_ms,
        key=key,
        target=target,
        tags=tags,
        last_error=last_error,
        deadline_ms=deadline_ms,
        family=_Calls([] if children is None else children),
        link=link,
    )
    if cancelled:
        reason = cancelled if isinstance(cancelled, str) else "cancelled"
        attempt.request_cancel(reason, is_for_good=True)
    return attempt
