"""The handle of a ticket: an id, and questions about it. It holds no state that can go stale."""

from collections.abc import AsyncIterator, Generator, Iterator, Sequence
from contextlib import suppress
from datetime import datetime
from typing import TYPE_CHECKING, Any, Final, Generic, TypeVar, get_args

from parkade import watching
from parkade.durations import Duration, parse_duration_ms
from parkade.events import Event
from parkade.outcome import EndState
from parkade.shard.ticket import format_id
from parkade.views import AttemptInfo, CancelOutcome, TicketInfo, Why

if TYPE_CHECKING:
    from parkade.desk import Desk
    from parkade.tasks import Task

__all__ = ["Ticket"]

R_co = TypeVar("R_co", covariant=True)

ENDED: Final = frozenset[str](get_args(EndState))
ANSWER_MS = 30_000  # for the answer about a ticket that has ended


class Ticket(Generic[R_co]):
    """One submitted piece of work. Awaiting it gives its result.

    `created` is False when a unique led to a ticket that was there before. Methods with an `a` in
    front are for coroutines; the others block, and raise `BlockingInEventLoop` on a loop's thread.
    All raise `UnknownTicket` for an id that is not (or no longer) known, and `EngineClosed`.
    """

    __slots__ = ("_bound", "_desk", "_id", "_is_holder", "_task", "created")

    def __init__(
        self,
        desk: "Desk",
        ticket_id: str | tuple[int, int],
        task: str | None,
        *,
        created: bool = False,
        is_holder: bool = False,
        bound: "Task[..., Any] | None" = None,
    ) -> None:
        self._desk = desk
        self._id = ticket_id
        self._task = task
        self.created = created
        self._is_holder = is_holder  # of a unique: it is known to have been, if it is gone
        self._bound = bound

    @property
    def id(self) -> str:
        """24 lower-case characters, safe in URLs; they sort by time of submit."""
        known = self._id
        if isinstance(known, tuple):
            # Written when it is first asked for: of a bulk of tickets most are never asked.
            known = self._id = format_id(*known, self._desk.runtime.salt)
        return known

    @property
    def address(self) -> tuple[int, int]:
        """Serial and part, by which the engine finds it."""
        known = self._id
        return known if isinstance(known, tuple) else self._desk.parse(known)[:2]

    @property
    def task(self) -> str:
        """The name of its task; asked of the engine when only the id was given."""
        if self._task is None:
            self._task = self._desk.ask(self._desk.info(self.id, "ticket.info")).task
        return self._task

    def __repr__(self) -> str:
        return f"<Ticket {self.id} {self._task or ''}>"

    def __await__(self) -> Generator[Any, None, R_co]:
        return self.aresult().__await__()

    def result(self, timeout: Duration | None = None) -> R_co:
        """The result, when the ticket has ended: through all its retries.

        Raises `TicketFailed`, `TicketCancelled`, `TicketExpired` for other ends; `ResultTimeout`
        when `timeout` is over and the ticket is not; `ResultGone` when it is no longer kept;
        `WaitInsideAttempt` in a handler.
        """
        desk, timeout_ms = self._desk, _timeout_ms(timeout)
        request = desk.end(self, self._bound, "ticket.result", is_holder=self._is_holder)
        value: R_co
        try:
            value = desk.ask(request, timeout_ms)
            return value
        except desk.TimeIsUp:
            why = desk.ask(desk.why(self.id, "ticket.result"))
        if why.state in ENDED:
            with suppress(desk.TimeIsUp):  # revived since
                value = desk.ask(request, ANSWER_MS)
                return value
        raise desk.result_timeout(self.id, why, timeout_ms)

    async def aresult(self, timeout: Duration | None = None) -> R_co:
        """`result` for coroutines."""
        desk, timeout_ms = self._desk, _timeout_ms(timeout)
        request = desk.end(self, self._bound, "ticket.aresult", is_holder=self._is_holder)
        value: R_co
        try:
            value = await desk.aask(request, timeout_ms)
            return value
        except desk.TimeIsUp:
            why = await desk.aask(desk.why(self.id, "ticket.aresult"))
        if why.state in ENDED:
            with suppress(desk.TimeIsUp):  # revived since
                value = await desk.aask(request, ANSWER_MS)
                return value
        raise desk.result_timeout(self.id, why, timeout_ms)

    def info(self) -> TicketInfo:
        """How it stands now: a frozen snapshot."""
        return self._desk.ask(self._desk.info(self.id, "ticket.info"))

    async def ainfo(self) -> TicketInfo:
        return await self._desk.aask(self._desk.info(self.id, "ticket.info"))

    def why(self) -> Why:
        """Why it is not running, in a sentence: due later, held and by what, or how it ended."""
        return self._desk.ask(self._desk.why(self.id, "ticket.why"))

    async def awhy(self) -> Why:
        return await self._desk.aask(self._desk.why(self.id, "ticket.why"))

    def attempts(self) -> Sequence[AttemptInfo]:
        """Its executions so far, in order, with errors and tracebacks."""
        return self._desk.ask(self._desk.attempts(self.id))

    async def aattempts(self) -> Sequence[AttemptInfo]:
        return await self._desk.aask(self._desk.attempts(self.id))

    def cancel(self, reason: str = "") -> CancelOutcome:
        """Cancels a pending ticket at once ("cancelled"), sees to it that a running one is not
        tried again ("requested": its attempt goes on, and its result is kept), or says that it
        has ended ("too_late")."""
        return self._desk.ask(self._desk.cancel(self.id, reason))

    async def acancel(self, reason: str = "") -> CancelOutcome:
        return await self._desk.aask(self._desk.cancel(self.id, reason))

    def reschedule(self, *, delay: Duration | None = None, at: datetime | None = None) -> bool:
        """Gives a pending ticket another due time, also while it is held: `delay` from now, or `at`
        an instant; what lies in the past is due now. False: it is not pending.

        Raises `ConfigError` unless one of the two is given, `NaiveDatetime`.
        """
        return self._desk.ask(self._desk.reschedule(self.id, delay, at))

    async def areschedule(
        self, *, delay: Duration | None = None, at: datetime | None = None
    ) -> bool:
        return await self._desk.aask(self._desk.reschedule(self.id, delay, at))

    def watch(self, timeout: Duration | None = None) -> Iterator[Event]:
        """How it stands now, as the event that brought it there would tell it; then every event of
        this ticket, until its end (done, dead, cancelled, expired), until `timeout` is over or the
        engine stops: the last event says which.

        Iterating raises `UnknownTicket`, and `WaitInsideAttempt` in a handler.
        """
        return watching.watch(self._desk, self.id, _timeout_ms(timeout))

    def awatch(self, timeout: Duration | None = None) -> AsyncIterator[Event]:
        """`watch` for coroutines."""
        return watching.awatch(self._desk, self.id, _timeout_ms(timeout))


def _timeout_ms(timeout: Duration | None) -> int | None:
    return None if timeout is None else parse_duration_ms(timeout, what="timeout")
