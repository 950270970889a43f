"""When attempts run out of time: their timeouts, their leases, the graces of those asked to stop.

One heap on the core thread, looked at first in each pass; so after a suspend a lease that is over
is noticed before any outcome is taken in. What is given up here is fenced at once: its outcome
counts for nothing any more, and what cannot be stopped goes on as a zombie (docs/semantics.md,
Leases and heartbeats; Cancelling).
"""

import heapq
from collections.abc import Sequence
from itertools import count, groupby
from operator import attrgetter

from parkade.runs import Run, Runs
from parkade.shard.commands import Outcome

__all__ = ["STOP_GRACE_MS", "Deadlines"]

STOP_GRACE_MS = 5_000
"""How long an attempt that was asked to stop may take until it is given up."""

_task_of = attrgetter("job.task")

LIVENESS_MS = 10_000  # how often what runs under an automatic lease is looked at
HEAP_SPARE = 256  # entries of attempts that have ended; with more, they are cleared


class Deadlines:
    """Used by the core thread alone; times are of the monotonic clock, in ms."""

    def __init__(self, runs: Runs) -> None:
        self._runs = runs
        self._heap: list[tuple[int, int, Run]] = []
        self._numbers = count()
        self._round_ms = 0

    def begin(self, runs: Sequence[Run], now_ms: int) -> None:
        """They are sent to their places now, and their leases begin."""
        for task, listed in groupby(runs, _task_of):
            lease_ms = task.lease_ms
            is_unbound = lease_ms is None and task.timeout_ms is None
            for run in listed:
                if is_unbound and run.job.ticket.options is None:
                    continue
                timeout_ms = run.timeout_ms = run.job.timeout_ms
                if lease_ms is not None:
                    run.lease_ms = lease_ms
                    run.lease_until_ms = until_ms = now_ms + lease_ms
                    self._add(run, until_ms)
                if timeout_ms is not None:
                    # It begins later than this: the end is looked up then.
                    self._add(run, now_ms + timeout_ms)

    def asked_to_stop(self, run: Run, now_ms: int) -> None:
        """It was cancelled for good: its grace begins, if it has not begun before."""
        if run.stop_until_ms is None:
            run.stop_until_ms = now_ms + STOP_GRACE_MS
            self._add(run, run.stop_until_ms)

    def look(self, mono_ms: int) -> None:
        """Gives up what has run out of time."""
        has_given_up = False
        while self._heap and self._heap[0][0] <= mono_ms:
            run = heapq.heappop(self._heap)[2]
            if not self._runs.is_open(run):
                continue
            next_ms = self._look_at(run, mono_ms)
            if next_ms is None:
                has_given_up = True
            else:
                self._add(run, next_ms)
        if mono_ms >= self._round_ms:
            self._round_ms = mono_ms + LIVENESS_MS
            known = self._runs.all() + self._runs.zombies()
            dead = [run for run in known if not run.place.is_alive(run)]
            self._runs.lose(dead, "what ran it is gone")
        if has_given_up:
            self._runs.hand_over()

    def wait_ms(self, mono_ms: int) -> int | None:
        """How long until something may run out of time; None: nothing will."""
        return max(0, self._heap[0][0] - mono_ms) if self._heap else None

    def _add(self, run: Run, at_ms: int) -> None:
        heapq.heappush(self._heap, (at_ms, next(self._numbers), run))
        if len(self._heap) > 4 * self._runs.count + HEAP_SPARE:
            self._heap = [entry for entry in self._heap if self._runs.is_open(entry[2])]
            heapq.heapify(self._heap)

    def _look_at(self, run: Run, now_ms: int) -> int | None:
        """When to look again; None: it was given up."""
        runs, settler = self._runs, self._runs.settler
        job = run.job
        if run.is_lapsed(now_ms):
            runs.give_up(run, lambda: settler.lapsed(job, run.lease_ms, has_begun=run.has_begun))
            return None
        if run.stop_until_ms is not None and now_ms >= run.stop_until_ms:
            runs.give_up(run, lambda: self._silent(run))
            return None
        times = [run.lease_until_ms, run.stop_until_ms, self._timeout_of(run, now_ms)]
        known = [ms for ms in times if ms is not None and ms > now_ms]
        if known:
            return min(known)
        ran_ms = now_ms - run.started_ms
        runs.give_up(run, lambda: settler.overran(job, run.timeout_ms or 0, ran_ms))
        return None

    def _silent(self, run: Run) -> Outcome:
        settler, reason = self._runs.settler, run.cancel_reason or ""
        if run.has_begun:
            return settler.silent(run.job, reason, STOP_GRACE_MS)
        return settler.withdrawn(run.job, reason, is_for_good=True)

    def _timeout_of(self, run: Run, now_ms: int) -> int | None:
        """When its timeout, or what it may take to stop after that, is over; None: it has none."""
        if run.timeout_ms is None:
            return None
        if run.deadline_ms is None:
            return now_ms + run.timeout_ms
        if now_ms < run.deadline_ms or not run.place.can_stop:
            return run.deadline_ms
        if not run.is_interrupted:
            run.is_interrupted = True
            run.place.interrupt(run)
        return run.deadline_ms + STOP_GRACE_MS
