"""The desk of an open engine: what can be asked about tickets, as requests in both tempers.

`Engine`, `Ticket` and `DeadLetters` ask here; once the engine has stopped it raises `EngineClosed`.
"""

import logging
from collections.abc import Callable, Coroutine, Mapping, Sequence
from datetime import datetime
from functools import lru_cache
from typing import TYPE_CHECKING, Any, TypeVar, cast

from parkade import asking, forks
from parkade.asking import Request
from parkade.asks import AwaitEnd, Explain, Look, Seen, Watch, Watched
from parkade.attempt import running_attempt
from parkade.control import ControlServer
from parkade.durations import (
    Duration,
    after_ms,
    at_ms,
    datetime_of,
    duration_text,
    parse_duration_ms,
)
from parkade.errors import (
    ConfigError,
    EngineClosed,
    ResultGone,
    ResultTimeout,
    TicketCancelled,
    TicketExpired,
    TicketFailed,
    UnknownTicket,
    WaitInsideAttempt,
)
from parkade.forks import check_process
from parkade.payload import decode_untyped
from parkade.runtime import Runtime
from parkade.shard.commands import Answer, Cancel, Refusal, Reschedule
from parkade.shard.states import CANCELLED, DEAD, DONE, EXPIRED
from parkade.shard.ticket import Ticket as Head
from parkade.shard.ticket import TicketId, parse_id
from parkade.showing import attempt_infos, ticket_info
from parkade.store.record import Submitted
from parkade.telling import tell
from parkade.ticket import Ticket
from parkade.verdicts import reason_text
from parkade.views import AttemptInfo, CancelOutcome, TicketInfo, Why
from parkade.why import Facts, explain, held_text

if TYPE_CHECKING:
    from parkade.tasks import Task

__all__ = ["Desk"]

T = TypeVar("T")
_log = logging.getLogger("parkade.engine")


class Desk:
    """Any thread. One for each time the engine is opened."""

    TimeIsUp = asking.TimeIsUp

    def __init__(self, runtime: Runtime) -> None:
        self.runtime = runtime
        self.is_open = True
        self._forks = forks.count
        self._asker = runtime.asker
        self._server: ControlServer | None = None

    def serve(self, handlers: Mapping[str, Callable[[Mapping[str, Any]], Any]]) -> None:
        """Answers the command line over the directory's socket. An engine without one works."""
        server = ControlServer(f"{self.runtime.directory.path}/control.sock", handlers)
        try:
            server.start()
        except OSError as error:
            tell(_log, logging.WARNING, "no control socket: %s", error)
            return
        self._server = server

    def close(self) -> None:
        """Takes nothing new."""
        self.is_open = False
        if self._server is not None:
            self._server.close()

    # ---------------------------------------------------------------------------- two tempers

    def ask(self, request: Request[T], timeout_ms: int | None = None) -> T:
        self.check(request.call)
        return self._asker.ask(request, None if timeout_ms is None else timeout_ms / 1000)

    def aask(self, request: Request[T], timeout_ms: int | None = None) -> Coroutine[Any, Any, T]:
        self.check(request.instead)
        return self._asker.aask(request, None if timeout_ms is None else timeout_ms / 1000)

    @property
    def is_usable(self) -> bool:
        """Whether `check` has nothing to say."""
        return self.is_open and forks.count == self._forks

    def check(self, call: str) -> None:
        """Raises `ForkedEngine` in a fork, `EngineClosed` when the engine has stopped."""
        self.check_process()
        if not self.is_open:
            raise EngineClosed(call)

    def check_process(self) -> None:
        """Raises `ForkedEngine` in a fork."""
        check_process(self.runtime.pid)

    # ------------------------------------------------------------------------------ requests

    def info(self, ticket_id: str, call: str) -> Request[TicketInfo]:
        known = self.parse(ticket_id)

        def finish(answers: list[Any]) -> TicketInfo:
            return self.shown(self._seen(ticket_id, answers[0]).ticket)

        return Request(call, _twin(call), [(self._shard(known), Look(known.serial))], finish)

    def why(self, ticket_id: str, call: str) -> Request[Why]:
        salt = self.runtime.salt
        return self._facts(ticket_id, call, lambda facts: explain(facts, salt))

    def held(self, ticket_id: str, call: str) -> Request[str | None]:
        """What holds a ready ticket, in a few words; None: nothing does."""
        salt = self.runtime.salt
        return self._facts(ticket_id, call, lambda facts: held_text(facts, salt))

    def _facts(self, ticket_id: str, call: str, tell: Callable[[Facts], T]) -> Request[T]:
        known = self.parse(ticket_id)

        def finish(answers: list[Any]) -> T:
            answer = answers[0]
            if isinstance(answer, Seen):  # read from the files
                now_ms = self.runtime.clock.now_ms()
                nobody = "no engine runs on this directory"
                answer = Facts(answer.ticket, now_ms, runs_nothing=nobody)
            if answer is None:
                raise self._unknown(ticket_id)
            return tell(answer)

        return Request(call, _twin(call), [(self._shard(known), Explain(known.serial))], finish)

    def attempts(self, ticket_id: str) -> Request[Sequence[AttemptInfo]]:
        known = self.parse(ticket_id)

        def finish(answers: list[Any]) -> Sequence[AttemptInfo]:
            return attempt_infos(self._seen(ticket_id, answers[0]).rows or [])

        look = Look(known.serial, wants_history=True)
        return Request("ticket.attempts", "ticket.aattempts", [(self._shard(known), look)], finish)

    def end(
        self,
        ticket: Ticket[Any],
        bound: "Task[..., Any] | None",
        call: str,
        *,
        is_holder: bool = False,
    ) -> Request[Any]:
        """Its result once it has ended. `is_holder`: it holds a unique, so it was there."""
        serial, part = ticket.address
        self._check_may_wait(ticket)

        def finish(answers: list[Any]) -> Any:
            if answers[0] is None and is_holder:
                raise ResultGone(ticket.id, keep_done=None)  # by age or by number
            if answers[0] is None:
                raise self._unknown(ticket.id)
            return self._result(answers[0], ticket, bound)

        asked = AwaitEnd(serial)
        return Request(call, _twin(call), [(part % self.runtime.shard_count, asked)], finish)

    def watch(self, ticket_id: str, call: str) -> Request[Watched]:
        """How it stands, for somebody who is told of what follows."""
        known = self.parse(ticket_id)
        self._check_may_wait(ticket_id)

        def finish(answers: list[Any]) -> Watched:
            watched: Watched = answers[0]
            self._seen(ticket_id, watched.seen)
            return watched

        return Request(call, _twin(call), [(self._shard(known), Watch(known.serial))], finish)

    def check_may_stop(self) -> None:
        """Raises `WaitInsideAttempt` in a handler of this engine, which a stop would wait for, and
        `SubmitReentered` in the midst of a submit."""
        self.runtime.host.caller_frames.check("engine.stop")
        attempt = running_attempt()
        known = None if attempt is None else parse_id(attempt.ticket_id)
        if attempt is not None and known is not None and known.salt == self.runtime.salt:
            raise WaitInsideAttempt(attempt.task, ticket_id=attempt.ticket_id)

    def _check_may_wait(self, ticket: str | Ticket[Any]) -> None:
        attempt = running_attempt()
        if attempt is not None:
            places = f"{self.runtime.options.threads} threads"
            ticket_id = ticket if isinstance(ticket, str) else ticket.id
            raise WaitInsideAttempt(attempt.task, ticket_id=ticket_id, places=places)

    def cancel(self, ticket_id: str, reason: str) -> Request[CancelOutcome]:
        known = self.parse(ticket_id)
        if not isinstance(cast(object, reason), str):
            raise ConfigError.option("ticket.cancel", "reason", reason, "use a text")

        def finish(answers: list[Any]) -> CancelOutcome:
            answer = answers[0][0]
            if isinstance(answer, Answer):
                return "requested" if answer.code == "requested" else "cancelled"
            assert isinstance(answer, Refusal)
            if answer.code == "too_late":
                return "too_late"
            raise self._unknown(ticket_id)

        return Request(
            "ticket.cancel",
            "ticket.acancel",
            [(self._shard(known), Cancel(known.serial, reason_text(reason)))],
            finish,
        )

    def reschedule(
        self, ticket_id: str, delay: Duration | None, at: datetime | None
    ) -> Request[bool]:
        """What lies in the past is due now."""
        call = "ticket.reschedule"
        known = self.parse(ticket_id)
        if (delay is None) == (at is None):
            raise ConfigError(f"{call}(): give delay= or at=, one of them", code="PK-210")
        now_ms = self.runtime.clock.now_ms()
        if delay is not None:
            delay_ms = parse_duration_ms(delay, what=f"{call}(delay)")
            due_ms = after_ms(now_ms, delay_ms, what=f"{call}(delay)")
        else:
            due_ms = max(now_ms, at_ms(cast(datetime, at), what=f"{call}(at)"))

        def finish(answers: list[Any]) -> bool:
            answer = answers[0][0]
            if isinstance(answer, Refusal) and answer.code == "unknown":
                raise self._unknown(ticket_id)
            return isinstance(answer, Answer)

        command = Reschedule(known.serial, due_ms)
        return Request(call, "ticket.areschedule", [(self._shard(known), command)], finish)

    def child(self, draft: Submitted, bound: "Task[..., Any] | None") -> Ticket[Any]:
        """The handle of a ticket that an attempt has submitted."""
        place = (draft.serial, draft.part)
        return Ticket(self, place, draft.task, created=True, bound=bound)

    # ------------------------------------------------------------------------------ answers

    def parse(self, ticket_id: str) -> TicketId:
        """Raises `UnknownTicket` for what is no id of this directory."""
        known = parse_id(ticket_id) if isinstance(cast(object, ticket_id), str) else None
        if known is None or known.salt != self.runtime.salt:
            raise self._unknown(str(ticket_id))
        return known

    def shown(self, ticket: Head) -> TicketInfo:
        runtime = self.runtime
        return ticket_info(
            ticket,
            runtime.id_of(ticket),
            shards=runtime.shard_count,
            now_ms=runtime.clock.now_ms(),
            max_attempts=runtime.policy_of(ticket).max_attempts,
        )

    def result_timeout(self, ticket_id: str, why: Why, waited_ms: int | None) -> ResultTimeout:
        standing = (
            f"It is {why.text}" if why.state != "scheduled" else f"It is scheduled, {why.text}"
        )
        standing += self.runtime.drive.advice
        return ResultTimeout(ticket_id, waited_ms=waited_ms or 0, why=standing)

    def until(self, until_ms: int) -> str:
        return f"kept until {datetime_of(until_ms).isoformat(timespec='minutes')}"

    def _shard(self, known: TicketId) -> int:
        return known.part % self.runtime.shard_count

    def _unknown(self, ticket_id: str) -> UnknownTicket:
        return UnknownTicket(ticket_id, keep_done=self._keep_done())

    def _keep_done(self) -> str | None:
        keep_ms = self.runtime.options.keep_done_ms
        return None if keep_ms is None else duration_text(keep_ms)

    def _seen(self, ticket_id: str, seen: Seen | None) -> Seen:
        if seen is None:
            raise self._unknown(ticket_id)
        return seen

    def _result(self, seen: Seen, handle: Ticket[Any], bound: "Task[..., Any] | None") -> Any:
        ticket, body = seen.ticket, seen.body
        if ticket.state == DONE and body is not None:
            return decode_untyped(body) if bound is None else bound.decode_result(body)
        ticket_id = handle.id
        if ticket.state == DONE:
            finished = datetime_of(ticket.finished_ms).isoformat(timespec="seconds")
            raise ResultGone(ticket_id, finished=finished, keep_done=self._keep_done())
        if ticket.state == CANCELLED:
            ago_ms = max(0, self.runtime.clock.now_ms() - ticket.finished_ms)
            raise TicketCancelled(ticket_id, reason=ticket.why or "", ago_ms=ago_ms)
        if ticket.state == EXPIRED:
            expires_ms = 0 if ticket.options is None else ticket.options.expires_ms or 0
            raise TicketExpired(ticket_id, expires_ms=expires_ms)
        assert ticket.state == DEAD, ticket.state
        error: Any = ticket.error
        reason: Any = ticket.why
        raise TicketFailed(
            ticket_id,
            task=ticket.task,
            attempts=ticket.attempts,
            reason=reason,
            error_type="" if error is None else error.type,
            error="" if error is None else error.message,
            remote_traceback="" if error is None else error.traceback,
        )


@lru_cache(maxsize=64)
def _twin(call: str) -> str:
    """`ticket.info` -> `ticket.ainfo`."""
    where, _, verb = call.rpartition(".")
    return call if verb.startswith("a") and verb != "attempts" else f"{where}.a{verb}"
