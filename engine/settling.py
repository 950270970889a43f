"""How an attempt ended, told as an `Outcome`: the table "After an attempt" of docs/semantics.md.

Runs where the handler ran, in its thread or on its loop, since policies and results are the user's
code. What becomes of the ticket is decided by its shard; whether an attempt is left, too.
"""

import asyncio
import contextlib
import inspect
import logging
from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING, Any, cast

from parkade.attempt import Attempt
from parkade.clock import Clock
from parkade.durations import datetime_of, span_text
from parkade.folding import Folding
from parkade.policies import DEFAULT_POLICY
from parkade.shard.commands import Outcome
from parkade.showing import error_line, outcome_of
from parkade.store.record import ErrorText
from parkade.verdicts import (
    Ambiguous,
    Cancelled,
    Drop,
    Fail,
    RetryAfter,
    Snooze,
    Unsafe,
    Verdict,
    describe,
    reason_text,
)
from parkade.views import AttemptInfo

if TYPE_CHECKING:
    from parkade.job import Job

__all__ = ["Settler", "find_verdict", "is_stated"]

_log = logging.getLogger("parkade.attempt")

GROUP_LEAVES_MAX = 1_000
# In a group the verdict that forbids most comes first; one that asks for another try counts only
# when nothing else happened.
_STRONGEST_FIRST = (Ambiguous, Unsafe, Fail, Cancelled, Drop)
_LEVELS = {
    "done": logging.DEBUG,
    "snooze": logging.DEBUG,
    "drop": logging.INFO,
    "cancelled": logging.INFO,
    "released": logging.INFO,
}
_WORDS = {
    "transient": "failed",
    "failed": "failed for good",
    "unsafe": "failed and must not be repeated",
    "ambiguous": "may or may not have done it",
    "timeout": "took too long",
    "lease": "was lost",
    "lost": "was lost with its process",
    "bad_payload": "could not begin: its payload does not fit the handler",
    "result_lost": "did its work, and the result cannot be kept",
    "snooze": "snoozed",
    "drop": "was dropped",
    "cancelled": "was cancelled",
    "released": "was given back",
}


class Settler:
    """Makes outcomes. `entropy` gives random integers >= 0; a result may have `result_bytes_max`.

    None of its methods raises, whatever the user's exceptions, policies and results do.
    """

    def __init__(
        self,
        *,
        clock: Clock,
        entropy: Callable[[], int],
        result_bytes_max: int,
    ) -> None:
        self._clock = clock
        self._entropy = entropy
        self.result_bytes_max = result_bytes_max
        self.folding = Folding()
        # Whether an error counts against the target; the engine's breakers say.
        self.trips: Callable[[Job, BaseException], bool] = _never

    def returned(self, job: "Job", value: Any, ran_ms: int) -> Outcome:
        """The handler returned `value`."""
        try:
            result = job.task.encode_result(value, bytes_max=self.result_bytes_max)
        except BaseException as error:
            outcome = self._unkept(job, value, error)
        else:
            outcome = Outcome(job.serial, job.fence, "done", result)
        self.tell(job, outcome, ran_ms)
        return outcome

    def raised(self, job: "Job", attempt: Attempt, error: BaseException, ran_ms: int) -> Outcome:
        """The handler raised `error`."""
        text = _described(error)
        try:
            outcome = self._classified(job, attempt, error, text)
        except BaseException as second:
            outcome = self._broken_policy(job, second, text)
        self.tell(job, outcome, ran_ms)
        return outcome

    def overran(
        self, job: "Job", timeout_ms: int, ran_ms: int, error: BaseException | None = None
    ) -> Outcome:
        """The handler ended, and later than it may; `error` is what it raised then."""
        text = f"ran for {span_text(ran_ms)}, the timeout is {span_text(timeout_ms)}"
        trace = ""
        if error is not None and not isinstance(error, asyncio.CancelledError | Cancelled):
            after = _described(error)
            text = f"{text}; then {after.type}: {after.message}"
            trace = after.traceback
        text_of = ErrorText("TimeoutError", text, trace)
        return self._unknown(job, "timeout", text_of, ran_ms, strikes=True)

    def lapsed(self, job: "Job", lease_ms: int, *, has_begun: bool) -> Outcome:
        """Its lease is over, and nobody renewed it."""
        span = span_text(lease_ms)
        if not has_begun:
            return self.given_back(job, f"it did not begin within its lease of {span}")
        text = ErrorText("AttemptLost", f"no heartbeat for {span}")
        wait_ms = self._safe_wait_ms(job)
        outcome = self._transient(job, text, wait_ms, kind="lease", strikes=True)
        after = ""
        if outcome.max_attempts is None or job.number < outcome.max_attempts:
            after = f", attempt {job.number + 1} in {span_text(wait_ms)}"
        lost = f"lost its lease (no heartbeat for {span}); its outcome will be refused{after}"
        self._log_line(logging.WARNING, f"{_named(job)} {lost}", job, lease_ms)
        return outcome

    def silent(self, job: "Job", reason: str, grace_ms: int) -> Outcome:
        """The ticket was cancelled, and its handler neither ended nor was heard of in time."""
        text = f"did not end within {span_text(grace_ms)} of being asked to stop"
        outcome = self._outcome(job, "lease", error=ErrorText("AttemptLost", text), reason=reason)
        self.tell(job, outcome, grace_ms)
        return outcome

    def too_late(self, job: "Job", error: BaseException | ErrorText | None, ran_ms: int) -> Outcome:
        """The handler ended after it was given up: nobody asks its policy what that means."""
        text = _described(error) if isinstance(error, BaseException) else error
        kind = "done" if text is None else "transient"
        outcome = Outcome(job.serial, job.fence, kind, error=text)
        level = logging.INFO if error is None else logging.DEBUG
        line = f"{_named(job)} ended after it was given up; its outcome is refused"
        self._log_line(level, line, job, ran_ms)
        return outcome

    def lost(self, job: "Job", why: str) -> Outcome:
        """Nobody will hear of the attempt again, and it had begun."""
        return self._unknown(job, "lease", ErrorText("AttemptLost", why))

    def died(self, job: "Job", why: str) -> Outcome:
        """The process of the attempt is dead, and its handler had begun."""
        return self._unknown(job, "lost", ErrorText("AttemptLost", why))

    def given_back(self, job: "Job", why: str) -> Outcome:
        """The attempt never began, for a reason that is not the ticket's."""
        wait_ms = self._safe_wait_ms(job)
        outcome = self._outcome(job, "released", wait_ms=wait_ms, reason=why, has_begun=False)
        self.tell(job, outcome, 0)
        return outcome

    def withdrawn(self, job: "Job", reason: str, *, is_for_good: bool) -> Outcome:
        """The attempt was cancelled before the handler began."""
        kind = "cancelled" if is_for_good else "released"
        outcome = self._outcome(job, kind, reason=reason, has_begun=False)
        self.tell(job, outcome, 0)
        return outcome

    def unreadable(self, job: "Job", error: BaseException) -> Outcome:
        """The payload does not fit the handler, which was not called."""
        outcome = self._outcome(job, "bad_payload", error=describe(error), has_begun=False)
        self.tell(job, outcome, 0)
        return outcome

    def not_run(self, job: "Job", error: BaseException | ErrorText) -> Outcome:
        """The attempt could not be run here: no thread, no loop, no process. It is tried again."""
        text = error if isinstance(error, ErrorText) else describe(error)
        outcome = self._transient(job, text, self._safe_wait_ms(job), has_begun=False)
        self.tell(job, outcome, 0)
        return outcome

    def untold(self, job: "Job", error: BaseException) -> Outcome:
        """How the attempt ended cannot be told: saying it raised `error`. Asks nobody's code: it
        waits as the default policy would, and is unknown like an attempt that was lost."""
        wait_ms = DEFAULT_POLICY.wait_ms(max(0, job.number - 1), 0)
        attempts = DEFAULT_POLICY.max_attempts
        return Outcome(
            job.serial, job.fence, "lease",
            error=describe(error), wait_ms=wait_ms, max_attempts=attempts,
        )  # fmt: skip

    # ------------------------------------------------------------------------- classification

    def _classified(
        self, job: "Job", attempt: Attempt, error: BaseException, text: ErrorText
    ) -> Outcome:
        verdict = find_verdict(error)
        if attempt.is_cancel_requested and (
            isinstance(error, asyncio.CancelledError) or isinstance(verdict, Cancelled)
        ):
            # Cancelled by an engine that stops, the ticket is to run again.
            kind = "cancelled" if attempt.is_cancelled_for_good else "released"
            return self._outcome(job, kind, reason=attempt.cancel_reason or "")
        if verdict is not None:
            return self._judged(job, verdict, text)
        wait_ms = job.policy().decided_wait_ms(
            error, self._info(job, text), job.number - 1, self._entropy()
        )
        if wait_ms is None:
            return self._outcome(job, "failed", error=text)
        return self._transient(job, text, wait_ms, strikes=self._trips(job, error))

    def _judged(self, job: "Job", verdict: Verdict | Cancelled, text: ErrorText) -> Outcome:
        match verdict:
            case RetryAfter():
                after_ms = verdict.after_ms
                policy = job.policy()
                wait_ms = (
                    self._safe_wait_ms(job) if after_ms is None else policy.hinted_wait_ms(after_ms)
                )
                return self._transient(job, text, wait_ms, strikes=self._trips(job, verdict))
            case Snooze():
                now_ms = self._clock.now_ms()
                wait_ms = max(0, verdict.due_ms(now_ms) - now_ms)
                return self._outcome(job, "snooze", wait_ms=wait_ms, reason=_reason_of(verdict))
            case Drop():
                return self._outcome(job, "drop", reason=_reason_of(verdict))
            case Cancelled():
                return self._outcome(job, "cancelled", reason=_reason_of(verdict))
            case Unsafe():
                return self._outcome(job, "unsafe", error=text, strikes=True)
            case Ambiguous():
                return self._outcome(job, "ambiguous", error=text, strikes=True)
            case _:
                return self._outcome(job, "failed", error=text)

    def _trips(self, job: "Job", error: BaseException) -> bool:
        """A subclass hook of the user's types may raise: then it is no failure of the target."""
        try:
            return self.trips(job, error)
        except Exception:
            return False

    def _broken_policy(self, job: "Job", error: BaseException, asked_about: ErrorText) -> Outcome:
        """The policy's own error buries the ticket, and says what it was asked about."""
        own = describe(error)
        text = ErrorText(
            own.type,
            f"{own.message} (raised by the policy, which was asked about {asked_about.type}: "
            f"{asked_about.message})",
            own.traceback,
        )
        return self._outcome(job, "failed", error=text)

    def _unkept(self, job: "Job", value: Any, error: BaseException) -> Outcome:
        if inspect.iscoroutine(value):
            value.close()
            text = "the handler returned a coroutine that nobody awaits. Make it async def"
            return self._outcome(job, "failed", error=ErrorText("TypeError", text))
        return self._outcome(job, "result_lost", error=describe(error))

    def _unknown(
        self, job: "Job", kind: str, text: ErrorText, ran_ms: int = 0, *, strikes: bool = False
    ) -> Outcome:
        wait_ms = self._safe_wait_ms(job)
        outcome = self._transient(job, text, wait_ms, kind=kind, strikes=strikes)
        self.tell(job, outcome, ran_ms)
        return outcome

    def _transient(
        self,
        job: "Job",
        text: ErrorText,
        wait_ms: int,
        *,
        kind: str = "transient",
        has_begun: bool = True,
        strikes: bool = False,
    ) -> Outcome:
        return self._outcome(
            job, kind, error=text, wait_ms=wait_ms, has_begun=has_begun, strikes=strikes
        )

    def _outcome(
        self,
        job: "Job",
        kind: str,
        *,
        error: ErrorText | None = None,
        wait_ms: int = 0,
        reason: str = "",
        has_begun: bool = True,
        strikes: bool = False,
    ) -> Outcome:
        policy = job.policy()
        return Outcome(
            job.serial,
            job.fence,
            kind,
            error=error,
            wait_ms=wait_ms,
            max_attempts=policy.max_attempts,
            max_elapsed_ms=policy.max_elapsed_ms,
            max_snoozes=job.task.max_snoozes,
            has_begun=has_begun,
            reason=reason_text(reason),
            strikes=strikes,
        )

    def _safe_wait_ms(self, job: "Job") -> int:
        return job.policy().wait_ms(job.number - 1, self._entropy())

    def _info(self, job: "Job", text: ErrorText) -> AttemptInfo:
        return AttemptInfo(
            number=job.number,
            started_at=datetime_of(job.ticket.started_ms),
            ended_at=datetime_of(self._clock.now_ms()),
            fence=job.fence,
            outcome=outcome_of("error", text),
            error_type=text.type,
            error=text.message,
            traceback=text.traceback,
        )

    # -------------------------------------------------------------------------------- telling

    def tell(self, job: "Job", outcome: Outcome, ran_ms: int) -> None:
        """One log line; the level ERROR is left to whoever buries the ticket."""
        level = _LEVELS.get(outcome.kind, logging.WARNING)
        try:
            if not _log.isEnabledFor(level):
                return
            folded = 0
            if level == logging.WARNING:
                kind = (job.task.name, outcome.kind, outcome.error.type if outcome.error else "")
                told = self.folding.take(kind, self._clock.monotonic_ms())
                if told is None:
                    return
                folded = told
            self._log_line(level, _line(job, outcome, folded), job, ran_ms)
        # A filter or a handler of the application: its failure is not the ticket's.
        except Exception:
            return

    def _log_line(self, level: int, line: str, job: "Job", ran_ms: int) -> None:
        # A filter or a handler of the application: its failure is not the ticket's.
        with contextlib.suppress(Exception):
            _log.log(level, "%s", line, extra=_fields(job, ran_ms))


def _reason_of(verdict: Verdict | Cancelled) -> str:
    """What a verdict says, if that can be told: what it is counts without it."""
    try:
        return str(verdict.reason)
    except Exception:
        return ""


def _never(job: "Job", error: BaseException) -> bool:
    return False


def _described(error: BaseException) -> ErrorText:
    """An error as text, without the frame that called the handler: it is ours, and always the
    same."""
    # By way of the class: an exception may have attributes of its own under these names.
    traceback_of = BaseException.__dict__["__traceback__"]
    trace = traceback_of.__get__(error)
    if trace is None or trace.tb_next is None:
        return describe(error)
    # Only for the time of this call: policies see the error as it was caught.
    traceback_of.__set__(error, trace.tb_next)
    try:
        return describe(error)
    finally:
        traceback_of.__set__(error, trace)


_STATED_KINDS = {
    "done", "result_lost", "snooze", "drop", "failed", "unsafe", "ambiguous",
}  # fmt: skip


def is_stated(outcome: Outcome, error: BaseException | None) -> bool:
    """Whether the handler has stated the outcome itself: it returned, or raised a verdict on the
    ticket. Not so where it failed, asks for another attempt, or was stopped."""
    if outcome.kind not in _STATED_KINDS:
        return False
    if error is None:
        return outcome.kind in ("done", "result_lost")
    return isinstance(find_verdict(error), Snooze | Drop | Fail | Unsafe | Ambiguous)


def find_verdict(error: BaseException) -> Verdict | Cancelled | None:
    """The verdict in an error: itself, or one that a group of concurrent parts holds.

    `asyncio.TaskGroup` wraps what its tasks raise. A part that says "this must not be repeated"
    means it for the whole, so in a group the strongest verdict wins: Ambiguous, Unsafe, Fail,
    Cancelled, Drop. RetryAfter and Snooze speak for a group only when they are all that is in it.
    """
    if isinstance(error, Verdict | Cancelled):
        return error
    if not isinstance(error, BaseExceptionGroup):
        return None
    leaves = list(_leaves(cast(Any, error)))
    for kind in _STRONGEST_FIRST:
        for leaf in leaves:
            if isinstance(leaf, kind):
                return leaf
    if len(leaves) == 1 and isinstance(leaves[0], Verdict):
        return leaves[0]
    return None


def _leaves(group: BaseExceptionGroup[BaseException]) -> Iterator[BaseException]:
    """What a group holds at the bottom, bounded: somebody may have nested it without end."""
    waiting: list[BaseException] = [group]
    for _ in range(GROUP_LEAVES_MAX):
        if not waiting:
            return
        error = waiting.pop()
        if isinstance(error, BaseExceptionGroup):
            waiting.extend(cast(Any, error).exceptions)
        else:
            yield error


def _line(job: "Job", outcome: Outcome, folded: int) -> str:
    words = _WORDS.get(outcome.kind, outcome.kind)
    line = f"{_named(job)} {words}"
    if outcome.error is not None:
        line = f"{line}: {error_line(outcome.error)}"
    elif outcome.reason:
        line = f"{line}: {outcome.reason}"
    if outcome.wait_ms:
        line = f"{line}; {_next(job, outcome)}"
    return f"{line} ({folded} more like it before)" if folded else line


def _next(job: "Job", outcome: Outcome) -> str:
    # The shard has the last word: a ticket may be late by then, or cancelled.
    if outcome.max_attempts is not None and job.number >= outcome.max_attempts:
        return "it was the last"
    return f"next in {span_text(outcome.wait_ms)}"


def _named(job: "Job") -> str:
    return f"{job.task.name} {job.ticket_id} attempt {job.number}"


def _fields(job: "Job", ran_ms: int) -> dict[str, object]:
    fields: dict[str, object] = {
        "ticket_id": job.ticket_id,
        "task": job.task.name,
        "attempt": job.number,
        "duration_s": ran_ms / 1_000,
    }
    if job.ticket.key is not None:
        fields["key"] = job.ticket.key
    if job.ticket.target is not None:
        fields["target"] = job.ticket.target
    return fields
