"""Attempts from their start to their one outcome, wherever they are made.

A place (threads, an event loop, processes) makes runs: it claims each before its handler begins,
and finishes it with an outcome. Whoever takes a run out of the table owns its outcome, so there is
one, whatever a handler, its thread or its loop does. A run that was given up while its handler goes
on is a zombie: it has had its outcome, and what it has in hand is free when its place finishes it.
What an ending means is told in `parkade.settling`.
"""

import contextlib
import logging
import os
import sys
import threading
from collections import deque
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any, NoReturn, Protocol

import msgspec

from parkade import forks
from parkade.attempt import RUNNING, Attempt
from parkade.clock import Clock
from parkade.family import Family
from parkade.job import Job
from parkade.links import LinkPort, RunLink
from parkade.outliving import OUTLIVING
from parkade.settling import Settler, is_stated
from parkade.shard.commands import Outcome
from parkade.telling import tell

__all__ = ["Place", "Run", "Runs"]

_log = logging.getLogger("parkade.engine")

GIVEN_UP = "it was given up: another attempt may run"


class Place(Protocol):
    """Where runs are made. None of its methods waits for a handler, or raises. `can_stop`: what
    `interrupt` does ends a handler that does not resist."""

    @property
    def can_stop(self) -> bool: ...

    def put(self, runs: "Sequence[Run]") -> None:
        """Make them: whatever goes wrong is an outcome."""
        ...

    def interrupt(self, run: "Run") -> None:
        """Its attempt was asked to stop, and sees that: do what else can be done to stop it."""
        ...

    def is_alive(self, run: "Run") -> bool:
        """Whether its handler has not begun, or may still end by itself."""
        ...

    def close(self) -> None:
        """Begin nothing more, and wait for nobody."""
        ...


class Run(msgspec.Struct, eq=False):
    """A job from its start to its outcome. Times are on the monotonic clock."""

    job: Job
    place: Place
    key: tuple[int, int]  # serial and fence
    attempt: Attempt | None = None  # from when somebody asks for it, to the run's end
    family: Family | None = None  # likewise: its children
    cancel_reason: str | None = None
    is_for_good: bool = False
    has_begun: bool = False
    is_over: bool = False  # its handler has ended: who asks for its attempt now gets no children
    is_given_up: bool = False  # whatever its handler does, it has had its outcome
    is_told: bool = False  # the outcome that it was given is on its way
    last_word: Outcome | None = None  # its handler ended before that
    is_interrupted: bool = False  # its timeout is over, and its place was told
    lease_ms: int = 0
    lease_until_ms: int | None = None  # None: the lease is renewed by the engine
    stop_until_ms: int | None = None  # asked to stop for good: when the grace is over
    started_ms: int = 0
    timeout_ms: int | None = None
    deadline_ms: int | None = None
    state: Any = None  # its place's own

    @property
    def is_plain(self) -> bool:
        """Whether nothing but how its handler ended tells what becomes of it."""
        has_time = self.timeout_ms is None and self.lease_until_ms is None
        return has_time and self.family is None and not self.is_given_up

    def is_lapsed(self, now_ms: int) -> bool:
        """Whether its lease is over."""
        return self.lease_until_ms is not None and now_ms >= self.lease_until_ms

    def renew(self, now_ms: int) -> None:
        """Its handler is alive. A lease that is over stays so, and none becomes shorter."""
        if self.lease_until_ms is not None and now_ms < self.lease_until_ms:
            self.lease_until_ms = max(self.lease_until_ms, now_ms + self.lease_ms)


class Runs:
    """The table of runs, and the way of their outcomes to `deliver`, which is called from any
    thread, with all that is there."""

    def __init__(
        self,
        *,
        deliver: Callable[[list[Outcome]], None],
        clock: Clock,
        settler: Settler,
        port: LinkPort,
    ) -> None:
        self.deliver = deliver
        self.salt = b""  # of the directory; with one, handlers that outlive `close` are noted
        self.port = port
        self.settler = settler
        self.is_closed = False
        self.family_of: Callable[[Job], Family] | None = None
        self._clock = clock
        self._table: dict[tuple[int, int], Run] = {}
        self._zombies: dict[tuple[int, int], Run] = {}
        self.lock = threading.RLock()  # the core's too (`parkade.core_locks`)
        self._outcomes: deque[Outcome] = deque()
        self._handing_over = threading.Lock()
        self._making = threading.RLock()  # attempts, for whoever asks first: a finalizer may too
        self._forks = forks.count
        self._attempt_of = self.attempt_of  # bound once

    # --------------------------------------------------------------------- for the executor

    def add(self, runs: Sequence[Run]) -> None:
        with self.lock:
            for run in runs:
                self._table[run.key] = run

    def find(self, serial: int, fence: int) -> Run | None:
        return self._table.get((serial, fence))

    def all(self) -> list[Run]:
        """Every run that has no outcome yet."""
        with self.lock:
            return list(self._table.values())

    @property
    def count(self) -> int:
        """How many have no outcome yet."""
        return len(self._table)

    def zombies(self) -> list[Run]:
        """Every run that was given up and whose handler has not ended."""
        with self.lock:
            return list(self._zombies.values())

    def give_up(self, run: Run, settle: Callable[[], Outcome]) -> None:
        """Ends a run from outside, as `settle` says, whatever its handler does from now on."""
        with self.lock:
            if self.is_closed or self._table.get(run.key) is not run:
                return
            del self._table[run.key]
            run.is_given_up = True
            if run.has_begun:
                self._zombies[run.key] = run
        try:
            outcome = settle()
        except BaseException as error:
            outcome = self.settler.untold(run.job, error)
        if run.has_begun:
            outcome = msgspec.structs.replace(outcome, lives_on=True)
        with self.lock:
            run.is_told = True
            self._outcomes.append(outcome)
            if run.last_word is not None:
                self._outcomes.append(run.last_word)
        attempt = run.attempt
        if attempt is not None:
            attempt.request_cancel(GIVEN_UP)
        run.place.interrupt(run)

    def close(self) -> None:
        """Nothing begins any more, and no outcome is wanted."""
        with self.lock:
            if not self.is_closed and self.salt:
                left = [run for run in self._table.values() if run.has_begun]
                OUTLIVING.leave(self.salt, left + list(self._zombies.values()))
            self.is_closed = True

    # -------------------------------------------------------------------------- for the places

    def claim(self, run: Run) -> bool:
        """Whether the run may begin; it has not been lost with its loop, or given back."""
        with self.lock:
            if self._table.get(run.key) is not run or self.is_closed:
                return False
            run.has_begun = True
            return True

    def is_open(self, run: Run) -> bool:
        """Whether it has no outcome yet."""
        return self._table.get(run.key) is run

    def prepare(self, run: Run) -> tuple[tuple[Any, ...], dict[str, Any]] | Outcome:
        """The handler's arguments, with the attempt set up in the context that runs; or the
        outcome, if it will not run. Whatever goes wrong is an outcome too."""
        try:
            return self._prepare(run)
        except BaseException as error:
            return self.settler.untold(run.job, error)

    def ended(self, run: Run, value: Any, error: BaseException | None) -> Outcome:
        """The outcome of a handler that has returned or raised. There always is one: a run
        without would keep its place, and its ticket would run for ever."""
        if forks.count != self._forks:
            _leave_fork(error)
        try:
            return self._outcome_of(run, value, error)
        except BaseException as second:
            return self.settler.untold(run.job, second)

    def finish(self, run: Run, outcome: Outcome) -> bool:
        """Takes the run out, and lays its outcome ready for `hand_over`; False: nobody wants it
        any more. Also of a zombie, whose end is told though its outcome counts for nothing."""
        run.attempt = None  # it knows its run: together they would wait for the garbage collector
        with self.lock:
            if self.is_closed:
                OUTLIVING.end(self.salt, run)
                return False
            if self._table.get(run.key) is run:
                del self._table[run.key]
            elif self._zombies.pop(run.key, None) is not run:
                return False
            elif not run.is_told:
                # What it was given goes first: it says that there is a zombie, this that it ends.
                run.last_word = outcome
                return False
            self._outcomes.append(outcome)
        return True

    def refuse(self, runs: Sequence[Run], error: BaseException) -> None:
        """Ends runs that nothing can run."""
        for run in runs:
            self.finish(run, self.settler.not_run(run.job, error))
        self.hand_over()

    def lose(self, runs: Sequence[Run], why: str) -> None:
        """Ends runs of which nobody will hear again: those that have begun as unknown, the others
        are given back; of a zombie, that it has ended."""
        for run in runs:
            if run.is_given_up:
                self.finish(run, Outcome(*run.key, "lease"))
                continue
            with self.lock:
                if self._table.pop(run.key, None) is not run:
                    continue
            settle = self.settler.lost if run.has_begun else self.settler.given_back
            self._outcomes.append(settle(run.job, why))
        self.hand_over()

    def hand_over(self) -> None:
        """Delivers what is there; whoever comes while another delivers leaves it to that one."""
        while self._outcomes and self._handing_over.acquire(blocking=False):
            try:
                batch: list[Outcome] = []
                while self._outcomes:
                    batch.append(self._outcomes.popleft())
                if batch:
                    self.deliver(batch)
            except Exception as error:
                tell(_log, logging.ERROR, "outcomes could not be handed over", error=error)
            finally:
                self._handing_over.release()

    # --------------------------------------------------------------------- in every attempt

    def _prepare(self, run: Run) -> tuple[tuple[Any, ...], dict[str, Any]] | Outcome:
        job = run.job
        if run.cancel_reason is not None:
            return self.settler.withdrawn(job, run.cancel_reason, is_for_good=run.is_for_good)
        try:
            args, kwargs = job.task.decode(job.payload)
        except BaseException as error:
            return self.settler.unreadable(job, error)
        run.started_ms = self._clock.monotonic_ms()
        if run.timeout_ms is not None:
            run.deadline_ms = run.started_ms + run.timeout_ms
        if not job.task.definition.handler.takes_attempt:
            RUNNING.set(partial(self._attempt_of, run))
            return args, kwargs
        attempt = self.attempt_of(run)
        RUNNING.set(attempt)
        return (attempt, *args), kwargs

    def attempt_of(self, run: Run) -> Attempt:
        """The attempt of a run whose handler has begun, made for the first who asks."""
        with self._making:
            attempt = run.attempt
            if attempt is None:
                made = self._make_attempt(run)
                attempt = run.attempt = run.attempt or made
        # In this order, and the other way round where it is asked to stop, or ends: one of the two
        # sees the other.
        if run.cancel_reason is not None:
            attempt.request_cancel(run.cancel_reason, is_for_good=run.is_for_good)
        if run.is_given_up:
            attempt.request_cancel(GIVEN_UP)
        if run.is_over and run.family is not None:
            run.family.end()
        return attempt

    def _make_attempt(self, run: Run) -> Attempt:
        job, ticket = run.job, run.job.ticket
        options = ticket.options
        if self.family_of is not None:
            family = self.family_of(job)
            run.family = run.family or family
        return Attempt(
            job.ticket_id,
            ticket.task,
            clock=self._clock,
            number=job.number,
            max_attempts=job.policy().max_attempts,
            fence=job.fence,
            due_ms=ticket.first_due_ms,
            key=ticket.key,
            target=None if options is None else options.target,
            tags=None if options is None else options.tags,
            last_error=job.last_error(),
            deadline_ms=run.deadline_ms,
            family=run.family,
            link=RunLink(run, self._clock, self.port, self.settler.result_bytes_max),
        )

    def _outcome_of(self, run: Run, value: Any, error: BaseException | None) -> Outcome:
        run.is_over = True
        now_ms = self._clock.monotonic_ms()
        ran_ms = now_ms - run.started_ms
        if error is None and run.is_plain:
            return self.settler.returned(run.job, value, ran_ms)
        children = None if run.family is None else run.family.end()
        if run.is_given_up:
            return self.settler.too_late(run.job, error, ran_ms)
        if run.is_lapsed(now_ms):
            return self.settler.lapsed(run.job, run.lease_ms, has_begun=True)
        if run.timeout_ms is not None and ran_ms >= run.timeout_ms:
            return self.settler.overran(run.job, run.timeout_ms, ran_ms, error)
        if error is not None:
            outcome = self.settler.raised(run.job, self.attempt_of(run), error, ran_ms)
        else:
            outcome = self.settler.returned(run.job, value, ran_ms)
        if children and is_stated(outcome, error):
            return msgspec.structs.replace(outcome, born=children)
        return outcome


def _leave_fork(error: BaseException | None) -> NoReturn:
    """Ends a child that a handler forked and that comes out of the handler: it has a copy of the
    work that waits here, and would do it a second time."""
    code: object = 0 if error is None else 1
    if isinstance(error, SystemExit):
        code = error.code or 0
    for stream in (sys.stdout, sys.stderr):
        with contextlib.suppress(BaseException):
            stream.flush()
    os._exit(code & 0xFF if isinstance(code, int) else 1)
