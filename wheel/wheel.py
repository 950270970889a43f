"""When: the deadlines that are near, in memory.

A wheel is told the time and hands back what is due. It owns no clock, and of a ticket it knows the
serial: whether that ticket is still waiting is for the owner to look up when the timer fires, so
nothing is ever removed before.

Nearly all timers lie in the one level, a window of 65,536 ms that begins at the last poll. A timer
is appended to its millisecond and taken from there: it moves between no levels on its way.
"""

import sys
from collections.abc import Iterable, Iterator
from typing import ClassVar

from parkade.wheel.level import SPAN_MS, Level, Timer, flatten
from parkade.wheel.outside import Outside


class Wheel:
    """Timers as (due in ms, serial): any number, at any due, handed back in order, never early.

    Order is by due, and within a millisecond by insertion. A serial may be in the wheel more than
    once, and each timer fires once. Dues are integers, of any size and sign.

    Cost: an insert, or a timer polled, costs the same however many there are. A poll visits the
    occupied milliseconds that are due and no others, however far the clock has jumped. Timers due
    outside the window cost a step of a heap for each millisecond they share.
    """

    __slots__ = ("level", "outside")

    SPAN_MS: ClassVar[int] = SPAN_MS
    """The window: a timer due less than this after the last poll takes the short way."""

    def __init__(self, now_ms: int) -> None:
        """An empty wheel whose window begins at now_ms."""
        self.level = Level(now_ms)
        self.outside = Outside()

    def __len__(self) -> int:
        """How many timers have not fired."""
        return self.level.count + self.outside.count

    @property
    def start_ms(self) -> int:
        """Where the window begins: no timer in the level is due before."""
        return self.level.start_ms

    @property
    def visits(self) -> int:
        """How many buckets have been taken or moved so far: the work done, for tests of cost."""
        return self.level.visits + self.outside.visits

    def insert(self, at_ms: int, serial: int) -> None:
        """Add a timer. One whose due is past fires at the next poll.

        Raises TypeError, and changes nothing, when at_ms is no integer.
        """
        if not self.level.add(at_ms, serial):
            self.outside.add(at_ms, serial)

    def insert_many(self, timers: Iterable[Timer]) -> None:
        """Add timers, given as (due in ms, serial), as if each were inserted in turn.

        When one is refused, or timers itself raises, just those before it are in the wheel.
        """
        strays: list[Timer] = []
        try:
            self.level.add_many(timers, strays)
        finally:
            for at_ms, serial in strays:
                self.outside.add(at_ms, serial)

    def next_wake(self) -> int | None:
        """The due of the earliest timer in ms, exactly; None when there is none."""
        near_ms, other_ms = self.level.first_ms(), self.outside.first_ms()
        if near_ms is None or other_ms is None:
            return near_ms if other_ms is None else other_ms
        return min(near_ms, other_ms)

    def poll(self, now_ms: int, limit: int | None = None) -> list[Timer]:
        """Take out what is due at or before now_ms, in order; at most limit timers if it is given.

        What a limit leaves is still due: next_wake() says so, and the next poll goes on there.
        A now_ms before an earlier poll's takes what is due at that time, and nothing is lost.
        """
        due_max = sys.maxsize if limit is None else limit
        assert due_max >= 0, limit
        due: list[Timer] = []
        level, outside = self.level, self.outside
        if not level.count and not outside.count:
            level.start_ms = max(level.start_ms, now_ms)
            return due
        # In due order: what is before the window, then the window, then what is beyond it.
        outside.take_due(min(now_ms, level.start_ms - 1), due, due_max)
        if now_ms < level.start_ms:
            return due
        level.take_due(now_ms, due, due_max)
        outside.take_due(now_ms, due, due_max)
        left_ms = self.next_wake() if len(due) >= due_max else None
        self._advance(now_ms if left_ms is None else min(now_ms, left_ms))
        return due

    def reanchor(self, now_ms: int) -> None:
        """Begin the window at now_ms, forward or back, and keep every timer at its own due.

        For a clock that was set: without it nothing fires wrongly, but after a step back new timers
        take the long way until the clock has caught up. Costs one move for each occupied
        millisecond, so it is for steps of the clock and not for its ticks.
        """
        buckets = [*self.outside.buckets(), *self.level.buckets()]
        self.clear()
        self.level.start_ms = now_ms
        for at_ms, bucket in buckets:
            if not self.level.place(at_ms, bucket):
                self.outside.place(at_ms, bucket)

    def items(self) -> Iterator[Timer]:
        """Every timer, in order, left where it is. The wheel must not change meanwhile."""
        buckets = [*self.outside.buckets(), *self.level.buckets()]
        buckets.sort(key=lambda timed: timed[0])
        return flatten(buckets)

    def drain(self) -> list[Timer]:
        """Take out every timer, due or not, in order. The window stays where it is."""
        timers = list(self.items())
        self.clear()
        return timers

    def clear(self) -> None:
        """Forget every timer. The window stays where it is."""
        self.level.clear()
        self.outside.clear()

    def _advance(self, start_ms: int) -> None:
        """Move the window's start forward to start_ms, before which no timer is left."""
        level, outside = self.level, self.outside
        if start_ms <= level.start_ms:
            return
        level.start_ms = start_ms
        end_ms = start_ms + SPAN_MS
        while (at_ms := outside.first_ms()) is not None and at_ms < end_ms:
            level.place(*outside.pop_first())
