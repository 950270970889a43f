"""A clock that stands still until a test moves it."""

import threading
from datetime import UTC, datetime, timedelta

from parkade.clock import Clock
from parkade.durations import Duration, after_ms, at_ms, datetime_of, parse_duration_ms
from parkade.errors import ConfigError

__all__ = ["ManualClock"]

START = datetime(2027, 1, 4, 9, tzinfo=UTC)  # a Monday morning: every run of a test has the same
MONOTONIC_START_MS = 1_000_000
LOOK_S = 0.005


class ManualClock(Clock):
    """Both clocks of an engine, moved by hand. Any thread may move and read it.

    `start`: what time it is at first, 2027-01-04 09:00 UTC unless said. Raises `NaiveDatetime`.
    """

    def __init__(self, start: datetime | None = None) -> None:
        self._mono_ms = MONOTONIC_START_MS
        self._ahead_ms = at_ms(start or START, what="ManualClock(start)") - self._mono_ms

    def __repr__(self) -> str:
        return f"<ManualClock {self.now().isoformat()}>"

    def now(self) -> datetime:
        """The wall clock, in UTC."""
        return datetime_of(self.now_ms())

    def now_ms(self) -> int:
        """The wall clock: ms since the epoch."""
        return self._mono_ms + self._ahead_ms

    def monotonic_ms(self) -> int:
        """Ms since some fixed moment; it never goes back."""
        return self._mono_ms

    def advance(self, by: Duration) -> None:
        """Time passes, on both clocks. Raises `ConfigError` for what is no duration."""
        by_ms = parse_duration_ms(by, what="clock.advance")
        after_ms(self.now_ms(), by_ms, what="clock.advance()")
        self._mono_ms += by_ms

    def step_wall(self, by: timedelta) -> None:
        """Somebody sets the wall clock, forwards or backwards; no time passes.

        Raises `ConfigError` where it would leave the years 1970 to 9999.
        """
        to_ms = self.now_ms() + by // timedelta(milliseconds=1)
        if to_ms < 0:
            raise ConfigError(
                f"clock.step_wall({by}): that lies before 1970. Use a smaller step", code="PK-210"
            )
        self._ahead_ms = after_ms(to_ms, 0, what="clock.step_wall()") - self._mono_ms

    def wait(self, event: threading.Event, timeout_ms: int | None) -> bool:
        """Waits until `event` is set or the clock was moved past the time (None: for ever); whether
        it is set. For engines with threads: a `TestEngine` never waits."""
        if timeout_ms is None:
            return event.wait()
        until_ms = self._mono_ms + timeout_ms
        while not event.is_set() and self._mono_ms < until_ms:
            event.wait(LOOK_S)
        return event.is_set()
