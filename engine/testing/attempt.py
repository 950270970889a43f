"""An attempt without an engine, for unit tests of handlers."""

from collections.abc import Generator, Mapping
from contextlib import contextmanager
from datetime import datetime
from typing import Any

from parkade.attempt import RUNNING, Attempt
from parkade.clock import Clock
from parkade.durations import Duration, at_ms, parse_duration_ms
from parkade.errors import ConfigError
from parkade.testing.clock import ManualClock
from parkade.views import AttemptInfo

__all__ = ["fake_attempt"]

FIELDS = (
    "cancelled", "clock", "fence", "key", "last_error", "max_attempts", "number", "scheduled_for",
    "tags", "target", "task", "ticket_id", "timeout",
)  # fmt: skip
TICKET_ID = "0fake" + "0" * 19
TASK = "fake"


@contextmanager
def fake_attempt(**fields: Any) -> Generator[Attempt, None, None]:
    """Makes `current_attempt()` answer inside of it, with an attempt of these fields.

    Fields are those of `Attempt`: number, max_attempts, fence, key, target, tags, task, ticket_id,
    last_error, scheduled_for; besides, `timeout` is what is left of it, by `clock` (a `ManualClock`
    unless given), and `cancelled` is True or the reason. Raises `ConfigError` for other names.
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
    attempt = Attempt(
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
    )
    if cancelled:
        reason = cancelled if isinstance(cancelled, str) else "cancelled"
        attempt.request_cancel(reason, is_for_good=True)
    return attempt
