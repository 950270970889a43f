"""A place for an attempt in a process: its child from the first job on, and what is owed when.

A child is kept for the next attempt, and replaced after it has died. At its timeout an attempt's
process is ended; when it was asked to end, after a grace: first by SIGTERM, then by SIGKILL. Only
when the process is dead the attempt has ended, so that no second one of its ticket runs beside it.
"""

import enum
from typing import Protocol

import msgspec

from parkade.clock import Clock
from parkade.durations import span_text
from parkade.errors import NoAttempt
from parkade.job import Job
from parkade.process import Process, end_text
from parkade.runs import Run
from parkade.settling import Settler
from parkade.shard.commands import Outcome
from parkade.store.lock import Child
from parkade.store.processes import identify
from parkade.store.record import ErrorText
from parkade.verdicts import (
    MESSAGE_BYTES_MAX,
    REASON_BYTES_MAX,
    TRACEBACK_BYTES_MAX,
    TYPE_NAME_BYTES_MAX,
)
from parkade.wire import (
    Ask,
    BadMessage,
    Begun,
    Bye,
    Ended,
    Note,
    Order,
    Ready,
    Refused,
    Reply,
    Stop,
    ToOwner,
    Unfit,
    Welcome,
)

__all__ = ["Phase", "PlaceRules", "ProcessPlace"]


# How an attempt may end, told by the child that made it.
TOLD_KINDS = {
    "done", "transient", "failed", "unsafe", "ambiguous", "snooze", "drop", "cancelled", "released",
    "timeout", "lease", "bad_payload", "result_lost",
}  # fmt: skip
HANG_UP_MS = 1_000  # from the end of the connection to that of the process


class Phase(enum.Enum):
    """How far the child of a place is. EMPTY: there is none."""

    EMPTY = enum.auto()
    STARTING = enum.auto()
    IDLE = enum.auto()
    ASKED = enum.auto()  # to make an attempt, whose handler has not begun
    RUNNING = enum.auto()
    LEAVING = enum.auto()
    HUNG_UP = enum.auto()  # its end of the connection is closed
    TERMINATED = enum.auto()
    KILLED = enum.auto()


_ENDING = (Phase.LEAVING, Phase.HUNG_UP, Phase.TERMINATED, Phase.KILLED)


class PlaceRules(Protocol):
    """What a place is told, and whom it tells. All on the pool's thread."""

    clock: Clock
    settler: Settler
    start_ms: int  # for the interpreter and the imports, each
    grace_ms: int  # between asking and SIGTERM, and between SIGTERM and SIGKILL
    frame_bytes_max: int

    def welcome(self) -> Welcome: ...
    def order(self, job: Job) -> Order: ...
    def claim(self, run: Run) -> bool: ...
    def note(self, run: Run, note: Note) -> None: ...
    def answer(self, run: Run, asked: Ask) -> None: ...
    def finish(self, run: Run, outcome: Outcome) -> None: ...
    def note_children(self) -> None: ...


class ProcessPlace:
    """One place and its child. `deadline_ms`: on the monotonic clock, when `look` has to act."""

    def __init__(self, rules: PlaceRules) -> None:
        self._rules = rules
        self.process: Process | None = None
        self.child: Child | None = None  # as the lock names it
        self.phase = Phase.EMPTY
        self.run: Run | None = None
        self.deadline_ms: int | None = None
        self._forget_run()

    def _forget_run(self) -> None:
        self.run = None
        self._has_begun = False
        self._begun_ms = 0
        self._stop: Stop | None = None
        self._is_overrun = False
        self._is_overstayed = False
        self._failure: BaseException | None = None  # why its process was ended

    @property
    def is_free(self) -> bool:
        """Whether it may be given a job."""
        return self.run is None and self.phase in (Phase.EMPTY, Phase.IDLE)

    # ---------------------------------------------------------------------------------- asked

    def give(self, run: Run) -> None:
        """Have an attempt made, by the child that is there or by one that is started now."""
        self.run = run
        if self.phase is Phase.EMPTY:
            self._start()
        else:
            self._ask()

    def stop(self, stop: Stop) -> None:
        """Ask its attempt to end; when the ticket is cancelled for good, within the grace."""
        self._stop = stop
        if self.process is None or self.phase not in (Phase.ASKED, Phase.RUNNING):
            return
        self.process.send(stop)
        if stop.is_for_good:
            self.deadline_ms = self._soonest(self._rules.grace_ms)

    def leave(self) -> None:
        """End the child: one that works at once, an idle one in order."""
        if self.process is None or self.phase in _ENDING:
            return
        if self.phase is Phase.IDLE:
            self.process.send(Bye())
            self._enter(Phase.LEAVING, self._rules.grace_ms)
        else:
            self._terminate()

    def abort(self, error: BaseException) -> None:
        """Something is wrong with it: end the child now."""
        if self._failure is None:
            self._failure = error
        if self.process is not None:
            self.process.kill()
            self._enter(Phase.KILLED)

    # ---------------------------------------------------------------------------------- looked

    def listen(self) -> None:
        """Take in what the child has said."""
        process = self.process
        if process is None:
            return
        try:
            for message in process.hear():
                self._hear(message)
        except BadMessage as error:
            self.abort(error)
        if process.is_hung_up and self.phase not in _ENDING:
            # It dies, as a rule, and its exit tells more. One that lives on is of no use.
            self._enter(Phase.HUNG_UP, HANG_UP_MS)

    def look(self) -> None:
        """Act on the child's death, or on a deadline that has passed."""
        process = self.process
        if process is None:
            return
        if self.run is not None and self.phase in (Phase.STARTING, Phase.ASKED):
            # Nobody can say yet that the handler is alive: it has not begun.
            self.run.renew(self._now_ms())
        if process.is_dead:
            self.listen()  # to the end: its last words count
            self._bury(process)
        elif self.deadline_ms is not None and self._now_ms() >= self.deadline_ms:
            self._overdue(process)

    def _overdue(self, process: Process) -> None:
        match self.phase:
            case Phase.HUNG_UP:
                self.abort(BadMessage("it closed its connection"))
            case Phase.STARTING | Phase.ASKED if self._stop is None or not self._stop.is_for_good:
                limit = span_text(self._rules.start_ms)
                self._failure = TimeoutError(
                    f"a child process did not get as far as the handler in {limit}"
                )
                self._terminate()
            case Phase.TERMINATED:
                process.kill()
                self._enter(Phase.KILLED)
            case _:
                self._is_overrun = self._is_past_timeout()
                self._is_overstayed = not self._is_overrun
                self._terminate()

    def _hear(self, message: ToOwner) -> None:
        if isinstance(message, Ready) and self.phase is Phase.STARTING:
            self._enter(Phase.IDLE)
            if self.run is not None:
                self._ask()
            return
        if isinstance(message, Note | Ask) and not self._is_about_run(message):
            self._turn_away(message)  # a thread that its handler left behind
            return
        if isinstance(message, Ready) or self.run is None:
            raise BadMessage(f"{type(message).__name__} came when nobody waited for it")
        job = self.run.job
        told = message.outcome if isinstance(message, Ended) else message
        if (told.serial, told.fence) != (job.serial, job.fence):
            raise BadMessage(f"{type(message).__name__} is about another attempt")
        match message:
            case Begun():
                self._begin(job)
            case Ended():
                _check(message.outcome, self._rules.welcome().result_bytes_max)
                self._end(self._heard(self.run, message))
            case Note():
                self._rules.note(self.run, message)
            case Ask():
                self._rules.answer(self.run, message)
            case Unfit():
                self._end(self._rules.settler.not_run(job, message.error))

    def _heard(self, run: Run, ended: Ended) -> Outcome:
        outcome, settler = ended.outcome, self._rules.settler
        if run.is_given_up:
            how = outcome.error or ErrorText("Ended", outcome.kind)
            error = None if outcome.kind == "done" else how
            return settler.too_late(run.job, error, ended.ran_ms)
        settler.tell(run.job, outcome, ended.ran_ms)
        # The children are those that were given ids here, whatever the child process says of them.
        drafts = None if run.family is None else run.family.end()
        return msgspec.structs.replace(outcome, born=drafts if ended.has_children else None)

    def _is_about_run(self, message: Note | Ask) -> bool:
        return self.run is not None and self.run.key == (message.serial, message.fence)

    def _turn_away(self, message: Note | Ask) -> None:
        if isinstance(message, Ask) and self.process is not None:
            error = NoAttempt("attempt")
            refused = Refused(type(error).__name__, error.code, str(error))
            self.process.send(Reply(message.number, refused))

    def _begin(self, job: Job) -> None:
        self._has_begun = True
        self._begun_ms = self._now_ms()
        if self.phase is Phase.ASKED:
            self.phase = Phase.RUNNING
            if self._stop is None or not self._stop.is_for_good:
                timeout_ms = job.timeout_ms
                self.deadline_ms = None if timeout_ms is None else self._begun_ms + timeout_ms

    # --------------------------------------------------------------------------------- the child

    def _start(self) -> None:
        try:
            self.process = Process(self._rules.frame_bytes_max)
        except Exception as error:
            self._end(self._rules.settler.not_run(self._owed().job, error))
            return
        self._enter(Phase.STARTING, self._rules.start_ms)
        self.child = identify(self.process.pid)
        try:
            # Before it is given anything to do: the next owner must know whom to wait for.
            self._rules.note_children()
        except Exception as error:
            self.abort(error)
            return
        self.process.send(self._rules.welcome())

    def _ask(self) -> None:
        run, process, stop = self._owed(), self.process, self._stop
        assert process is not None, self.phase
        if stop is not None:
            settle = self._rules.settler.withdrawn
            self._end(settle(run.job, stop.reason, is_for_good=stop.is_for_good))
        elif not self._rules.claim(run):
            self._forget_run()
        else:
            self._enter(Phase.ASKED, self._rules.start_ms)
            process.send(self._rules.order(run.job))

    def _terminate(self) -> None:
        assert self.process is not None, self.phase
        self.process.terminate()
        self._enter(Phase.TERMINATED, self._rules.grace_ms)

    def _bury(self, process: Process) -> None:
        """The child is dead, and with it the attempt that it made."""
        run, outcome = self.run, None
        if run is not None:
            outcome = self._epitaph(run.job, process)
        process.close()
        self.process = self.child = None
        self._enter(Phase.EMPTY)
        if outcome is None:
            self._forget_run()
        else:
            self._end(outcome)

    def _epitaph(self, job: Job, process: Process) -> Outcome:
        settler, how = self._rules.settler, end_text(process.exit_code)
        stop = self._stop
        if self._owed().is_given_up:
            ran_ms = self._now_ms() - self._begun_ms if self._has_begun else 0
            return settler.too_late(job, ErrorText("AttemptLost", f"ended with {how}"), ran_ms)
        if not self._has_begun:
            if stop is not None:
                return settler.withdrawn(job, stop.reason, is_for_good=stop.is_for_good)
            failure = self._failure or RuntimeError(
                f"a child process ended with {how} before it called the handler"
            )
            return settler.not_run(job, failure)
        if self._is_overrun and job.timeout_ms is not None:
            return settler.overran(job, job.timeout_ms, self._now_ms() - self._begun_ms)
        if self._failure is not None:
            return settler.died(job, f"its process was ended, for {self._failure}")
        if self._is_overstayed:
            grace = span_text(self._rules.grace_ms)
            return settler.died(
                job, f"it was asked to end and did not within {grace}, so its process was ended"
            )
        return settler.died(job, _death_text(process.pid, process.exit_code))

    def _end(self, outcome: Outcome) -> None:
        """The attempt has ended, and its process is idle or on its way to be gone."""
        run = self._owed()
        self._forget_run()
        if self.phase in (Phase.ASKED, Phase.RUNNING):
            self._enter(Phase.IDLE)
        self._rules.finish(run, outcome)

    def _owed(self) -> Run:
        assert self.run is not None, self.phase
        return self.run

    def _enter(self, phase: Phase, within_ms: int | None = None) -> None:
        self.phase = phase
        self.deadline_ms = None if within_ms is None else self._now_ms() + within_ms

    def _soonest(self, within_ms: int) -> int:
        due_ms = self._now_ms() + within_ms
        return due_ms if self.deadline_ms is None else min(self.deadline_ms, due_ms)

    def _is_past_timeout(self) -> bool:
        timeout_ms = None if self.run is None else self.run.job.timeout_ms
        return timeout_ms is not None and self._now_ms() - self._begun_ms >= timeout_ms

    def _now_ms(self) -> int:
        return self._rules.clock.monotonic_ms()


def _check(outcome: Outcome, result_bytes_max: int) -> None:
    """Raises `BadMessage` for what no child of ours tells: nothing of it reaches a shard."""
    error = outcome.error or ErrorText("", "")
    is_bounded = (
        len(outcome.result) <= result_bytes_max
        and len(error.type.encode()) <= TYPE_NAME_BYTES_MAX
        and len(error.message.encode()) <= MESSAGE_BYTES_MAX
        and len(error.traceback.encode()) <= TRACEBACK_BYTES_MAX
        and len(outcome.reason.encode()) <= REASON_BYTES_MAX
    )
    if not is_bounded or outcome.kind not in TOLD_KINDS or outcome.wait_ms < 0:
        raise BadMessage("it told an outcome that cannot be")


def _death_text(pid: int, exit_code: int) -> str:
    text = f"its process {pid} ended with {end_text(exit_code)} before the handler returned"
    if exit_code == -9:
        text += ". Where nobody sent it, the system did: the machine was out of memory"
    return text
