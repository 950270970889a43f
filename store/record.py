"""The records: what happened to a ticket, one durable transition each. Pure types and their codec.

A record is a tagged array; tags are never reused and new optional fields go at the end
(docs/format.md). A frame's body is the msgpack array of the records of one or more whole turns,
encoded in one call. What each record does is told in docs/semantics.md and done by
`parkade.shard.core.Shard.apply`.
"""

from collections.abc import Sequence
from typing import Any

import msgspec

__all__ = [
    "RECORD_TYPES",
    "Bookmarked",
    "BreakerSet",
    "Buried",
    "CancelRequested",
    "Cancelled",
    "Completed",
    "Delivered",
    "Dropped",
    "ErrorText",
    "Expired",
    "Forgotten",
    "Handed",
    "Late",
    "Leased",
    "LimitSet",
    "Options",
    "Paused",
    "ProgressNote",
    "Record",
    "RecordDamage",
    "RecordTooNew",
    "Released",
    "Rescheduled",
    "Resolved",
    "Resumed",
    "Retried",
    "Revived",
    "Snoozed",
    "Started",
    "Submitted",
    "UniqueClaim",
    "decode_records",
    "encode_records",
    "is_from_later_version",
]


class RecordDamage(Exception):
    """A frame's body passed its checksum and is not an array of known records."""


class RecordTooNew(RecordDamage):
    """A frame's body holds a record, or a field of one, that this version does not know."""


class _Part(msgspec.Struct, array_like=True, frozen=True, gc=False, forbid_unknown_fields=True):
    """A piece inside a record: no tag of its own."""


class UniqueClaim(_Part, frozen=True):
    """A ticket's dedupe key. `until_ms` < 0: by `mode`; else taken until then, whatever happens."""

    name: str
    mode: int  # 0 kept, 1 active, 2 for a duration from the submit
    until_ms: int = -1
    keep_ms: int = 0  # mode kept: how long after the end
    replaces: bool = False  # of a draft on its way to its shard: on_conflict="replace"


class Options(_Part, frozen=True):
    """What few tickets have, kept apart so that a plain ticket stays small."""

    target: str | None = None
    priority: int = 0
    tags: dict[str, str] | None = None
    summary: str | None = None
    expires_ms: int | None = None
    timeout_ms: int | None = None
    max_attempts: int | None = None  # of options(retry=); -1: no bound
    delays_ms: list[int] | None = None
    max_elapsed_ms: int | None = None
    routes: list[str | None] | None = None  # on_done, on_dead, on_cancel: task names
    trace: str | None = None
    jitter: int = 0  # of the delays: a place in the policy's list of kinds
    indexed: list[str] | None = None  # names of the tags by which it is found, as of its submit


class ErrorText(_Part, frozen=True):
    """An exception as text: never an object."""

    type: str
    message: str
    traceback: str = ""


class ProgressNote(_Part, frozen=True):
    """How far an attempt says it is; the message is bounded where it is told."""

    done: float
    total: float | None
    message: str
    at_ms: int


class Record(msgspec.Struct, array_like=True, frozen=True, gc=False, forbid_unknown_fields=True):
    """Base of all records."""


class Submitted(Record, frozen=True, tag=1):
    """- -> pending."""

    serial: int
    part: int
    task: str
    due_ms: int
    at_ms: int
    payload: bytes
    key: str | None = None
    unique: UniqueClaim | None = None
    options: Options | None = None


class Started(Record, frozen=True, tag=2):
    """pending -> running for each: attempts + 1, fence + 1. `on_crash`: 0 retry, 1 ambiguous."""

    serials: list[int]
    at_ms: int
    on_crash: int = 0


class Completed(Record, frozen=True, tag=3):
    """running -> done. Here and in other ends: `born` are tickets that are made by it, `sent` those
    that go to the outbox, since another shard or a unique decides about them."""

    serial: int
    fence: int
    at_ms: int
    result: bytes
    born: list[Submitted] | None = None
    sent: list[Submitted] | None = None


class Retried(Record, frozen=True, tag=4):
    """running -> pending at `due_ms`; it counts. `cause`: failed, timeout, lease, lost."""

    serial: int
    fence: int
    at_ms: int
    due_ms: int
    cause: str
    error: ErrorText | None = None
    deaths: int = 0  # 1: lost as the only suspect running, over all shards
    maybe_applied: bool = False


class Snoozed(Record, frozen=True, tag=5):
    """running -> pending at `due_ms`; attempts - 1, snoozes + 1."""

    serial: int
    fence: int
    at_ms: int
    due_ms: int
    reason: str = ""
    born: list[Submitted] | None = None
    sent: list[Submitted] | None = None


class Released(Record, frozen=True, tag=6):
    """running -> pending: given back by a stop; attempts - 1; `begun`: maybe_applied."""

    serial: int
    fence: int
    at_ms: int
    due_ms: int
    begun: bool


class Buried(Record, frozen=True, tag=7):
    """pending or running -> dead. `fence` is -1 when no attempt was running."""

    serial: int
    fence: int
    at_ms: int
    why: str
    error: ErrorText | None = None
    maybe_applied: bool = False
    deaths: int = 0
    born: list[Submitted] | None = None
    sent: list[Submitted] | None = None


class CancelRequested(Record, frozen=True, tag=8):
    serial: int
    fence: int
    at_ms: int
    reason: str


class Cancelled(Record, frozen=True, tag=9):
    """pending or running -> cancelled. `fence` is -1 when no attempt was running."""

    serial: int
    fence: int
    at_ms: int
    reason: str
    error: ErrorText | None = None
    maybe_applied: bool = False
    gives_up_unique: bool = False  # replaced by a submit with on_conflict="replace"
    born: list[Submitted] | None = None
    sent: list[Submitted] | None = None


class Expired(Record, frozen=True, tag=10):
    """pending, never started -> expired."""

    serial: int
    at_ms: int
    born: list[Submitted] | None = None
    sent: list[Submitted] | None = None


class Rescheduled(Record, frozen=True, tag=11):
    """pending -> pending at `due_ms`."""

    serial: int
    at_ms: int
    due_ms: int


class Revived(Record, frozen=True, tag=12):
    """dead -> pending: attempts 0 unless kept; same id; the fence goes on."""

    serial: int
    at_ms: int
    due_ms: int
    keep_attempts: bool = False
    payload: bytes | None = None


class Resolved(Record, frozen=True, tag=13):
    """dead -> done: a person checked."""

    serial: int
    at_ms: int
    result: bytes
    note: str = ""
    born: list[Submitted] | None = None
    sent: list[Submitted] | None = None


class Dropped(Record, frozen=True, tag=14):
    """dead -> gone."""

    serial: int
    at_ms: int


class Bookmarked(Record, frozen=True, tag=15):
    """What an attempt keeps for the next one, or tells of how far it is; None: as it was."""

    serial: int
    fence: int
    at_ms: int
    value: bytes | None = None
    progress: ProgressNote | None = None


class Late(Record, frozen=True, tag=16):
    """A success of an attempt that had been given up: sets maybe_applied."""

    serial: int
    fence: int


class Forgotten(Record, frozen=True, tag=17):
    """Ended -> gone, by retention: at most 4,096 serials of one task and state."""

    task: str
    state: int
    serials: list[int]


class Handed(Record, frozen=True, tag=18):
    """The outbox entries for a receiver have arrived, up to this one."""

    receiver: int
    epoch: int
    lsn: int
    index: int


class Delivered(Record, frozen=True, tag=19):
    """An outbox entry of `sender` is taken: - -> pending for `draft`. Without one its unique was
    taken: `child`, the id that it would have had, answers as `holder` until `until_ms` (negative:
    until the holder's end says when)."""

    sender: int
    epoch: int
    lsn: int
    index: int
    draft: Submitted | None = None
    child: int = 0
    holder: int = 0
    holder_part: int = 0
    until_ms: int = -1


class Leased(Record, frozen=True, tag=32):
    """House: serials below `until` may be given out by this open."""

    until: int


class BreakerSet(Record, frozen=True, tag=33):
    name: str
    state: bytes


class Paused(Record, frozen=True, tag=34):
    scope: str
    until_ms: int | None = None
    reason: str = ""


class Resumed(Record, frozen=True, tag=35):
    scope: str


class LimitSet(Record, frozen=True, tag=36):
    scope: str
    value: bytes | None = None


RECORD_TYPES: tuple[type[Record], ...] = (
    Submitted, Started, Completed, Retried, Snoozed, Released, Buried, CancelRequested, Cancelled,
    Expired, Rescheduled, Revived, Resolved, Dropped, Bookmarked, Late, Forgotten, Handed,
    Delivered, Leased, BreakerSet, Paused, Resumed, LimitSet,
)  # fmt: skip

AnyRecord = (
    Submitted | Started | Completed | Retried | Snoozed | Released | Buried | CancelRequested
    | Cancelled | Expired | Rescheduled | Revived | Resolved | Dropped | Bookmarked | Late
    | Forgotten | Handed | Delivered | Leased | BreakerSet | Paused | Resumed | LimitSet
)  # fmt: skip

_encode = msgspec.msgpack.Encoder().encode
_decode = msgspec.msgpack.Decoder(list[AnyRecord]).decode
_decode_raw = msgspec.msgpack.Decoder(list[list[Any]]).decode
_TAGS = frozenset(kind.__struct_config__.tag for kind in RECORD_TYPES)
_TOO_LONG = "at most length"  # as msgspec says it of an array with more elements than fields


def encode_records(records: Sequence[Record]) -> bytes:
    """The body of one frame."""
    return _encode(records)


def decode_records(body: bytes | memoryview) -> list[AnyRecord]:
    """The records of one frame's body, in order; raises `RecordDamage`, and `RecordTooNew` for
    those of a later version."""
    try:
        return _decode(body)
    except RecursionError as error:
        raise RecordDamage(str(error)) from error
    except msgspec.MsgspecError as error:
        if is_from_later_version(error) or _has_unknown_tag(body):
            raise RecordTooNew(str(error)) from error
        raise RecordDamage(str(error)) from error


def is_from_later_version(error: msgspec.MsgspecError) -> bool:
    """Whether an array could not be decoded because it has more fields than this version knows."""
    return _TOO_LONG in str(error)


def _has_unknown_tag(body: bytes | memoryview) -> bool:
    try:
        tags = [record[0] for record in _decode_raw(body) if record]
    except (msgspec.MsgspecError, RecursionError):
        return False
    return any(type(tag) is int and tag not in _TAGS for tag in tags)
