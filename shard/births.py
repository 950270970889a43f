"""What an end gives birth to: the routes that hear of it, and the children its attempt submitted.

Each decision that ends a ticket passes through here before it is applied: what it brings forth is
put into its record, and so exists exactly once per recorded outcome. What has neither key nor
unique, and a part of this shard, is born there and then; the rest is sent by way of the outbox,
also to this shard, so that children of one key keep their order.
"""

from collections.abc import Sequence
from typing import Any, Final, NamedTuple, Protocol

import msgspec

from parkade.shard.states import (
    CANCELLED,
    DEAD,
    DONE,
    EXPIRED,
    NO_FENCE,
    PENDING,
)
from parkade.shard.ticket import Ticket, shard_of
from parkade.shard.view import View
from parkade.store.record import (
    Buried,
    Cancelled,
    Completed,
    ErrorText,
    Expired,
    Record,
    Resolved,
    Snoozed,
    Submitted,
)

__all__ = ["Births", "Ending", "Kin", "births_bytes"]

DRAFT_BYTES: Final = 300

_STATE_AFTER: Final[dict[type[Record], int]] = {
    Completed: DONE,
    Resolved: DONE,
    Buried: DEAD,
    Cancelled: CANCELLED,
    Expired: EXPIRED,
}


_BEARING: Final = frozenset((*_STATE_AFTER, Snoozed))


class Ending(NamedTuple):
    """How a ticket ended. `ticket` is as it stood before: its numbers are those given here."""

    ticket: Ticket
    state: int
    at_ms: int
    attempts: int
    why: str | None = None
    error: ErrorText | None = None
    is_ambiguous: bool = False
    maybe_applied: bool = False
    result: bytes | None = None


class Kin(Protocol):
    """Who knows the routes of tickets."""

    def routes(self, ticket: Ticket, state: int) -> bool:
        """Whether anything hears of this end."""
        ...

    def drafts(self, ending: Ending) -> list[Submitted]:
        """The tickets that hear of it. Never raises."""
        ...


class Births:
    """Of one shard. `kin` None: nothing hears of ends."""

    def __init__(self, number: int, shard_count: int) -> None:
        self.number = number
        self.shard_count = shard_count
        self.kin: Kin | None = None

    def is_home(self, draft: Submitted) -> bool:
        """Whether a ticket is born here at once."""
        is_plain = draft.key is None and draft.unique is None
        return is_plain and shard_of(draft.part, self.shard_count) == self.number

    def attach(self, view: View, records: list[Record]) -> None:
        """Completes the records of a decision with what their ends bring forth."""
        kin, hot = self.kin, view.memory.hot
        unheard: set[tuple[str, int]] = set()  # ends that nobody hears of, of plain tickets
        for place, record in enumerate(records):
            kind = type(record)
            if kind not in _BEARING:
                continue
            state = _STATE_AFTER.get(kind)
            known: Any = record
            drafts: Sequence[Submitted] = known.born or ()
            if state is not None and kin is not None:
                ticket = hot.get(known.serial) or _ticket(view, records, known.serial)
                if ticket is None or (ticket.options is None and (ticket.task, state) in unheard):
                    pass
                elif kin.routes(ticket, state):
                    drafts = [*drafts, *kin.drafts(_ending(ticket, state, record))]
                elif ticket.options is None:
                    unheard.add((ticket.task, state))
            if drafts:
                records[place] = self._with(known, drafts)

    def is_unheard(self, view: View, records: Sequence[Record]) -> bool:
        """Whether nothing comes of these ends of attempts, of tickets in memory, that returned."""
        kin, hot = self.kin, view.memory.hot
        tickets: dict[str, Ticket] = {}
        for record in records:
            known: Any = record
            ticket = hot[known.serial]
            if known.born is not None or ticket.options is not None:
                return False
            tickets[ticket.task] = ticket
        return kin is None or not any(kin.routes(ticket, DONE) for ticket in tickets.values())

    def _with(self, record: Any, drafts: Sequence[Submitted]) -> Record:
        born = [draft for draft in drafts if self.is_home(draft)]
        sent = [draft for draft in drafts if not self.is_home(draft)]
        changed: Record = msgspec.structs.replace(record, born=born or None, sent=sent or None)
        return changed


def births_bytes(records: Sequence[Record]) -> int:
    """About how much all that is brought forth by these records writes."""
    total = 0
    for record in records:
        if type(record) in _BEARING:
            known: Any = record
            if known.born or known.sent:
                for draft in (*(known.born or ()), *(known.sent or ())):
                    total += DRAFT_BYTES + len(draft.payload)
    return total


def _ticket(view: View, records: Sequence[Record], serial: int) -> Ticket | None:
    """The ticket that ends; one may have been made, and replaced, by the same command."""
    known = view.memory.look(serial)
    if isinstance(known, Ticket):
        return known
    parked = None if view.loaded is None else view.loaded.tickets.get(serial)
    if parked is not None:
        return parked.ticket
    for record in records:
        if isinstance(record, Submitted) and record.serial == serial:
            return Ticket(
                serial, record.part, record.task, PENDING, record.due_ms, record.due_ms,
                record.at_ms, record.key, record.unique, record.options,
            )  # fmt: skip
    return None


def _ending(ticket: Ticket, state: int, record: Record) -> Ending:
    """As `apply` will leave it."""
    known: Any = record
    ending = Ending(
        ticket,
        state,
        known.at_ms,
        ticket.attempts,
        error=ticket.error,
        is_ambiguous=ticket.is_ambiguous,
        maybe_applied=ticket.maybe_applied,
    )
    if isinstance(record, Completed | Resolved):
        return ending._replace(error=None, is_ambiguous=False, result=record.result)
    if isinstance(record, Buried | Cancelled):
        why = record.why if isinstance(record, Buried) else record.reason
        ending = ending._replace(why=why)
        if record.fence != NO_FENCE:
            ending = ending._replace(
                attempts=ticket.attempts - (why == "bad_payload" and state == DEAD),
                error=record.error or ticket.error,
                is_ambiguous=record.maybe_applied,
                maybe_applied=ticket.maybe_applied or record.maybe_applied,
            )
    return ending
