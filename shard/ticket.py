"""A ticket as memory and the store hold it, and its id: serial (64 bits), part (16), salt (40)."""

import re
import zlib
from collections.abc import Callable, Sequence
from functools import lru_cache
from itertools import accumulate, repeat
from typing import Final, NamedTuple, TypeAlias

import msgspec
from msgspec.structs import replace

from parkade.store.record import ErrorText, Options, ProgressNote, Submitted, UniqueClaim

__all__ = [
    "SERIAL_MAX",
    "HeadDamage",
    "Placed",
    "StoredAt",
    "Ticket",
    "TicketId",
    "decode_ticket",
    "encode_plain",
    "encode_ticket",
    "format_id",
    "parse_id",
    "part_of_key",
    "part_of_serial",
    "part_of_unique",
    "parts_of_serials",
    "shard_of",
    "ticket_of",
]

SERIAL_MAX = (1 << 64) - 1
_GOLDEN = 0x9E37_79B9_7F4A_7C15
_ALPHABET = "0123456789abcdefghjkmnpqrstvwxyz"
_DIGITS = str.maketrans(_ALPHABET, "0123456789abcdefghijklmnopqrstuv")
_PAIRS = [first + second for first in _ALPHABET for second in _ALPHABET]
_ID = re.compile(f"[{_ALPHABET}]{{24}}", re.ASCII)


class HeadDamage(Exception):
    """A stored head is not a ticket."""


class Ticket(msgspec.Struct, array_like=True, gc=False, forbid_unknown_fields=True):
    """The head of a ticket: all that is known of it but its payload, its result and its history.

    Times are ms since the epoch. Mutable in memory: only `Shard.apply` changes one, and never one
    that is being written by a checkpoint. New fields go at the end, with a default.
    """

    serial: int
    part: int
    task: str
    state: int
    due_ms: int
    first_due_ms: int
    created_ms: int
    key: str | None = None
    unique: UniqueClaim | None = None
    options: Options | None = None
    attempts: int = 0
    fence: int = 0
    snoozes: int = 0
    deaths: int = 0
    is_suspect: bool = False
    maybe_applied: bool = False
    is_ambiguous: bool = False
    on_crash: int = 0
    started_ms: int = 0  # of the latest attempt; 0: never started
    finished_ms: int = 0  # 0: not ended
    why: str | None = None  # a dead ticket's reason, a cancelled one's
    error: ErrorText | None = None
    cancel_reason: str | None = None  # asked of the running attempt
    group: bytes | None = None  # of a dead ticket: those that died alike (`shard/grouping.py`)
    aliases: list[int] | None = None  # ids of children that its unique kept from being made
    progress: ProgressNote | None = None  # the last that an attempt told
    has_bookmark: bool = False  # there is a row with what an attempt saved

    @property
    def target(self) -> str | None:
        return None if self.options is None else self.options.target

    @property
    def priority(self) -> int:
        return 0 if self.options is None else self.options.priority

    @property
    def lane(self) -> tuple[str, str | None, int]:
        """(task, target, priority): the queue it waits in when it is due."""
        options = self.options
        if options is None:
            return (self.task, None, 0)
        return (self.task, options.target, options.priority)


def ticket_of(submitted: Submitted) -> Ticket:
    """The ticket as it is submitted."""
    due_ms = submitted.due_ms
    return Ticket(
        submitted.serial,
        submitted.part,
        submitted.task,
        0,  # pending
        due_ms,
        due_ms,
        submitted.at_ms,
        submitted.key,
        submitted.unique,
        submitted.options,
    )


class StoredAt(msgspec.Struct, frozen=True, gc=False):
    """How the last completed checkpoint left a ticket: what the next one must take away."""

    state: int
    due_ms: int
    first_due_ms: int
    lane_number: int
    expiry_ms: int = 0  # where its marked extra entry of the agenda is; 0: none
    # Its entry is a row of `lanes`, not of the agenda; None: not known.
    in_lane: bool | None = False
    group: bytes | None = None  # in whose index it stands
    in_waits: bool = False  # its entry is a row of `waits`

    def as_row(self, *, is_waiting: bool) -> "StoredAt":
        """The same with its entry a row of `lanes`, or of `waits`."""
        return replace(self, in_lane=not is_waiting, in_waits=is_waiting)


Placed: TypeAlias = StoredAt | int
"""How a checkpoint leaves a ticket. Of a plain one (without options; new and pending with its entry
in the agenda, or done) the lane number alone, 0 if it is done: its head says the rest, and most of
those leave memory with the checkpoint."""


class TicketId(NamedTuple):
    serial: int
    part: int
    salt: int  # 40 bits, the directory's


_encode = msgspec.msgpack.Encoder().encode
_decode = msgspec.msgpack.Decoder(Ticket).decode


encode_ticket: Final[Callable[[Ticket], bytes]] = _encode
"""The head as the store has it; at full load it is made once or twice in each life."""


def encode_plain(task: str, drafts: Sequence[Submitted]) -> list[bytes]:
    """The heads of tickets of one task that were submitted without key, unique and options, and
    have not changed since: they end where the fields begin that are as they are when they are
    missing."""
    encode, pending = _encode, 0
    return [
        encode((one.serial, one.part, task, pending, one.due_ms, one.due_ms, one.at_ms))
        for one in drafts
    ]


def decode_ticket(head: bytes | memoryview) -> Ticket:
    """Raises `HeadDamage`."""
    try:
        return _decode(head)
    except msgspec.MsgspecError as error:
        raise HeadDamage(str(error)) from error


def format_id(serial: int, part: int, salt: int) -> str:
    """24 lower-case Crockford base32 characters; they sort by serial."""
    high = serial << 16 | part
    return (
        _PAIRS[high >> 70] + _PAIRS[high >> 60 & 1023] + _PAIRS[high >> 50 & 1023]
        + _PAIRS[high >> 40 & 1023] + _PAIRS[high >> 30 & 1023] + _PAIRS[high >> 20 & 1023]
        + _PAIRS[high >> 10 & 1023] + _PAIRS[high & 1023] + _salt_text(salt)
    )  # fmt: skip


@lru_cache(maxsize=16)
def _salt_text(salt: int) -> str:
    return "".join(_PAIRS[salt >> shift & 1023] for shift in (30, 20, 10, 0))


def parse_id(text: str) -> TicketId | None:
    """None when `text` is not an id in its one spelling."""
    if _ID.fullmatch(text) is None:
        return None
    number = int(text.translate(_DIGITS), 32)
    return TicketId(number >> 56, number >> 40 & 0xFFFF, number & 0xFF_FFFF_FFFF)


def part_of_key(key: str) -> int:
    return zlib.crc32(key.encode()) & 0xFFFF


def part_of_unique(task: str, unique: str) -> int:
    return zlib.crc32(f"{task}\0{unique}".encode()) & 0xFFFF


def part_of_serial(serial: int) -> int:
    """Multiplicative hashing with the golden ratio (Knuth, TAOCP 6.4): unlike a crc it spreads
    serials that differ in a few high bits alone, as those of idle times do."""
    return (serial * _GOLDEN >> 48) & 0xFFFF


def parts_of_serials(first: int, count: int) -> list[int]:
    """`part_of_serial` of so many serials in a row."""
    products = accumulate(repeat(_GOLDEN, count - 1), initial=first * _GOLDEN)
    return [product >> 48 & 0xFFFF for product in products] if count else []


def shard_of(part: int, shards: int) -> int:
    return part % shards
