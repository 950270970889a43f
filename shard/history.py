"""The rows of a ticket's history: one for each attempt that has ended.

An attempt that succeeds at the first start needs no row, since the head says it all; neither does
one that still runs. `attempts_of` puts rows and head together.
"""

from collections.abc import Iterable

import msgspec

from parkade.shard.states import DONE, RUNNING
from parkade.shard.ticket import Ticket
from parkade.store.record import Buried, ErrorText

__all__ = [
    "AttemptRow",
    "HistoryDamage",
    "attempts_of",
    "decode_attempt",
    "encode_attempt",
    "outcome_of_buried",
]


class HistoryDamage(Exception):
    """A stored row of history is not an attempt."""


class AttemptRow(
    msgspec.Struct, array_like=True, frozen=True, gc=False, forbid_unknown_fields=True
):
    """One attempt: its number in the budget, its fence, from when to when (ms), how it ended.

    `outcome` is done, error, snoozed, released, lost, timeout, cancelled, unsafe or ambiguous; and
    running, with `ended_ms` 0, for the one under way.
    """

    number: int
    fence: int
    started_ms: int
    ended_ms: int
    outcome: str
    error: ErrorText | None = None


_encode = msgspec.msgpack.Encoder().encode
_decode = msgspec.msgpack.Decoder(AttemptRow).decode

_OUTCOMES = {"unsafe": "unsafe", "ambiguous": "ambiguous", "crashed": "lost"}


def encode_attempt(row: AttemptRow) -> bytes:
    return _encode(row)


def decode_attempt(row: bytes | memoryview) -> AttemptRow:
    """Raises `HistoryDamage`."""
    try:
        return _decode(row)
    except msgspec.MsgspecError as error:
        raise HistoryDamage(str(error)) from error


def outcome_of_buried(record: Buried) -> str:
    """How the attempt ended whose ticket was buried with this record."""
    outcome = _OUTCOMES.get(record.why)
    if outcome is not None:
        return outcome
    if not record.maybe_applied or record.why == "failed":
        return "error"
    is_timeout = record.error is not None and record.error.type == "TimeoutError"
    return "timeout" if is_timeout else "lost"


def attempts_of(ticket: Ticket, rows: Iterable[AttemptRow]) -> list[AttemptRow]:
    """Every attempt of a ticket by fence, from its head and the rows there are, in any order."""
    by_fence = {row.fence: row for row in rows}
    if ticket.fence and ticket.fence not in by_fence:
        if ticket.state == RUNNING:
            by_fence[ticket.fence] = AttemptRow(
                ticket.attempts, ticket.fence, ticket.started_ms, 0, "running"
            )
        elif ticket.state == DONE and ticket.fence == 1:
            by_fence[1] = AttemptRow(
                ticket.attempts, 1, ticket.started_ms, ticket.finished_ms, "done"
            )
    return [by_fence[fence] for fence in sorted(by_fence)]
