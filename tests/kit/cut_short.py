"""An engine that dies after so many steps of those that reach its disk: frames, reads, commits.

Between two of them nothing changes that a later process could see.
"""

from collections.abc import Callable
from pathlib import Path
from typing import Any

from parkade.testing import Killed, TestEngine
from parkade.testing.stepping import SteppedDrive

__all__ = ["CutShort", "MortalEngine"]


class CutShort(Killed):
    """The process is gone."""


class _Mortal(SteppedDrive):
    """Counts its steps, and dies where it is told to."""

    steps_left: int | None = None
    steps_taken = 0
    is_reversed = False
    starts_at_once = False
    at_step: tuple[int, Callable[[], None]] | None = None

    def _stir(self) -> None:
        host, workers = self._runtime.host, list(self._runtime.workers)
        if self.is_reversed:
            workers.reverse()
        while True:
            wait_ms = host.step()
            has_worked = False
            for worker in workers:
                while worker.run_one():
                    has_worked = True
                    self._tick()
            if not has_worked and wait_ms > 0:
                return

    def _open_places(self, is_open: bool) -> None:
        super()._open_places(is_open or self.starts_at_once)

    def _tick(self) -> None:
        self.steps_taken += 1
        self.clock.advance("1ms")
        if self.at_step is not None and self.steps_taken > self.at_step[0]:
            (_, act), self.at_step = self.at_step, None
            act()
        if self.steps_left is not None:
            self.steps_left -= 1
            if self.steps_left < 0:
                self.is_over = True
                raise CutShort


class MortalEngine(TestEngine):
    """A test engine that ends after a number of steps, and lives on after `crash()`."""

    def __init__(self, path: Path, **options: Any) -> None:
        super().__init__(path, **options)
        self.drive: _Mortal

    starts_at_once = False  # what is due is started when it is opened, and run when that is asked
    is_reversed = False  # who reaches the disk first: the last shard, or the first
    _steps_of_next: int | None = None

    def _make_drive(self) -> SteppedDrive:
        self._drive = self.drive = _Mortal(self._manual_clock)
        self.drive.is_reversed = self.is_reversed
        self.drive.starts_at_once = self.starts_at_once
        self.drive.steps_left, self._steps_of_next = self._steps_of_next, None
        return self.drive

    def die_after(self, steps: int | None) -> None:
        """Raises `CutShort` out of whatever is asked then; None: not any more."""
        self.drive.steps_left = steps

    def crash_twice(self, steps: int) -> None:
        """The next life ends after so many steps, if it comes so far, and another one begins."""
        self._steps_of_next = steps
        try:
            self.crash()
            self.run_until_idle()
            self.drive.steps_left = None
        except CutShort:
            if self._desk is None:
                self.start()
            else:
                self.crash()
