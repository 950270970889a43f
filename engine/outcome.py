"""How a ticket ended, as the handler of a route is told.

It is stored like any argument: a map by field, with the result as the bytes that its task stored.
So a result is decoded when it is asked for, by the annotation of the route (`Outcome[str]`).
"""

from collections.abc import Callable, Mapping
from typing import Any, Generic, Literal, NamedTuple, TypeVar, cast

from parkade.errors import DeadReason, TicketCancelled, TicketExpired, TicketFailed

__all__ = ["Outcome", "OutcomeFacts"]

R_co = TypeVar("R_co", covariant=True)
EndState = Literal["done", "dead", "cancelled", "expired"]


class OutcomeFacts(NamedTuple):
    """What an outcome is made of; a later version may add to it, with a default."""

    ticket_id: str
    task: str
    state: str
    attempts: int = 0
    error_type: str | None = None
    error: str | None = None
    ambiguous: bool = False
    maybe_applied: bool = False
    reason: str | None = None  # why it is dead, or was cancelled
    result: bytes | None = None
    expires_ms: int = 0


class Outcome(Generic[R_co]):
    """How a ticket ended: what `on_done`, `on_dead` and `on_cancel` are given.

    `state` is "done", "dead", "cancelled" or "expired". `error_type` and `error` are of the last
    attempt that failed; `ambiguous` says that its effect is not known, `maybe_applied` that this is
    so of any attempt.
    """

    __slots__ = ("_decode", "_facts")

    def __init__(self, facts: OutcomeFacts, decode: Callable[[bytes], Any]) -> None:
        self._facts = facts
        self._decode = decode

    @classmethod
    def of(cls, stored: Mapping[str, Any], decode: Callable[[bytes], Any]) -> "Outcome[Any]":
        """The outcome that was stored as this map; `decode` makes its result of the bytes. Raises
        `TypeError` for what is none."""
        fields = OutcomeFacts._fields
        return cls(
            OutcomeFacts(**{name: stored[name] for name in fields if name in stored}), decode
        )

    def stored(self) -> dict[str, Any]:
        """As it is stored: what is as it mostly is, is left out."""
        defaults = OutcomeFacts._field_defaults
        facts = self._facts._asdict()
        return {name: value for name, value in facts.items() if value != defaults.get(name, ...)}

    def __repr__(self) -> str:
        return f"<Outcome {self.state} of {self.task} {self.ticket_id}>"

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Outcome) and self._facts == other._facts

    def __hash__(self) -> int:
        return hash(self._facts)

    @property
    def ticket_id(self) -> str:
        """The id of the ticket that ended."""
        return self._facts.ticket_id

    @property
    def task(self) -> str:
        """The name of its task."""
        return self._facts.task

    @property
    def state(self) -> EndState:
        """How it ended."""
        return cast(EndState, self._facts.state)

    @property
    def attempts(self) -> int:
        """How many attempts its budget has spent."""
        return self._facts.attempts

    @property
    def error_type(self) -> str | None:
        """The type of the last error, by name; None: there was none."""
        return self._facts.error_type

    @property
    def error(self) -> str | None:
        """The message of the last error."""
        return self._facts.error

    @property
    def ambiguous(self) -> bool:
        """Whether the effect of the last attempt is not known."""
        return self._facts.ambiguous

    @property
    def maybe_applied(self) -> bool:
        """Whether the effect of any attempt is not known."""
        return self._facts.maybe_applied

    def result(self) -> R_co:
        """The result of a ticket that is done. Raises `TicketFailed`, `TicketCancelled` or
        `TicketExpired` for other ends, `PayloadError` where the result does not fit the
        annotation."""
        facts = self._facts
        if facts.state == "done":
            value: R_co = self._decode(facts.result or b"\xc0")
            return value
        if facts.state == "cancelled":
            raise TicketCancelled(facts.ticket_id, reason=facts.reason or "")
        if facts.state == "expired":
            raise TicketExpired(facts.ticket_id, expires_ms=facts.expires_ms)
        raise TicketFailed(
            facts.ticket_id,
            task=facts.task,
            attempts=facts.attempts,
            reason=cast(DeadReason, facts.reason or "failed"),
            error_type=facts.error_type or "",
            error=facts.error or "",
        )
