"""The clocks. The only module that asks what time it is; all others are told.

Three kinds of time, in ms, that are never mixed: deadlines are on the wall clock, waits on the
monotonic clock, and what destroys (forgetting, expiring, burying as late) on the settled clock,
which believes a leap of the wall clock only after it has held.
"""

import threading
import time
from typing import NewType, Protocol

__all__ = ["Clock", "MonoMs", "SettledClock", "SettledMs", "SystemClock", "WallMs", "stopwatch_ns"]

WallMs = NewType("WallMs", int)  # since the epoch; it may be set, forwards and backwards
MonoMs = NewType("MonoMs", int)  # since some start; it never goes back, and may stand in a suspend
SettledMs = NewType("SettledMs", int)  # since the epoch; it never goes back

START_AHEAD_MS_MAX = 86_400_000  # an engine that was down for a day is no surprise
STEP_AHEAD_MS_MAX = 3_600_000
HOLD_MS = 600_000
# Within this the wall clock counts as running evenly: it is slewed at 0.5 ms a second at most.
HOLD_DRIFT_MS_MAX = 5_000


stopwatch_ns = time.perf_counter_ns
"""Nanoseconds since some moment of this process, to tell how long something took: nothing may
depend on it, so that a test need not give it."""


class Clock(Protocol):
    """What an engine asks about time; a test gives it another."""

    def now_ms(self) -> int:
        """The wall clock: ms since the epoch."""
        ...

    def monotonic_ms(self) -> int:
        """Ms since some fixed moment; it never goes back."""
        ...

    def wait(self, event: threading.Event, timeout_ms: int | None) -> bool:
        """Wait until `event` is set or the time is over (None: for ever); whether it is set."""
        ...


class SystemClock:
    """The clocks of this machine."""

    def now_ms(self) -> int:
        """The wall clock: ms since the epoch."""
        return time.time_ns() // 1_000_000

    def monotonic_ms(self) -> int:
        """Ms since some fixed moment; it never goes back."""
        return time.monotonic_ns() // 1_000_000

    def wait(self, event: threading.Event, timeout_ms: int | None) -> bool:
        """Wait until `event` is set or the time is over (None: for ever); whether it is set.

        The ms under way counts as the first one: who waits from `now_ms` until a deadline is
        awake when that ms begins, and not up to a ms later.
        """
        if timeout_ms is None:
            return event.wait()
        begun_s = time.time_ns() % 1_000_000 / 1e9
        return event.wait(min(max(timeout_ms / 1_000 - begun_s, 0.0), threading.TIMEOUT_MAX))


class SettledClock:
    """The time that may destroy: the wall clock where it can be believed, uptime where it cannot.

    Pure: it is told both clocks. It starts from the settled time of the last checkpoint (None in a
    new directory, where there is nothing to lose). It believes the wall clock unless that is more
    than a day ahead of the start, or later steps more than an hour ahead of the monotonic clock;
    then it goes on by uptime until the wall clock has run evenly for ten minutes, has come back, or
    somebody confirms it. It never goes back: behind it, the wall clock is waited for.
    """

    __slots__ = (
        "_believed_offset_ms",
        "_held_since",
        "_is_following_uptime",
        "_mono",
        "_new_offset_ms",
        "_settled",
    )

    def __init__(self, settled: SettledMs | None, wall: WallMs, mono: MonoMs) -> None:
        offset = wall - mono
        self._mono = mono
        self._settled = SettledMs(wall) if settled is None else settled
        self._is_following_uptime = wall > self._settled + START_AHEAD_MS_MAX
        # The offset is wall minus monotonic clock. While they run evenly it does not change.
        self._believed_offset_ms = self._settled - mono if self._is_following_uptime else offset
        self._new_offset_ms = offset
        self._held_since = mono
        if not self._is_following_uptime:
            self._settled = max(self._settled, SettledMs(wall))

    @property
    def is_following_uptime(self) -> bool:
        """Whether the wall clock is not believed at present."""
        return self._is_following_uptime

    @property
    def now(self) -> SettledMs:
        """The settled time of the last reading."""
        return self._settled

    def read(self, wall: WallMs, mono: MonoMs) -> SettledMs:
        """The settled time now; to be called with every reading of the two clocks."""
        # In every pass: comparisons, and no calls.
        uptime_ms = mono - self._mono
        if uptime_ms < 0:
            uptime_ms, mono = 0, self._mono
        self._mono = mono
        offset = wall - mono
        if not -HOLD_DRIFT_MS_MAX <= offset - self._new_offset_ms <= HOLD_DRIFT_MS_MAX:
            self._new_offset_ms, self._held_since = offset, mono
        if mono - self._held_since >= HOLD_MS:
            self._believed_offset_ms = offset
        self._is_following_uptime = offset > self._believed_offset_ms + STEP_AHEAD_MS_MAX
        if self._is_following_uptime:
            self._settled = SettledMs(self._settled + uptime_ms)
        elif wall > self._settled:
            self._settled = SettledMs(wall)
        return self._settled

    def confirm(self, wall: WallMs, mono: MonoMs) -> SettledMs:
        """Somebody says that the wall clock is right: believe it from now on."""
        self._mono = max(self._mono, mono)
        self._believed_offset_ms = self._new_offset_ms = wall - self._mono
        self._held_since = self._mono
        self._is_following_uptime = False
        self._settled = max(self._settled, SettledMs(wall))
        return self._settled
