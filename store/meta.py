"""The rows of table `meta`: whose store this is, which state it is, and what is counted in it."""

import struct
from collections.abc import Mapping
from typing import NamedTuple

import msgspec

__all__ = [
    "COUNTERS",
    "FORMAT",
    "IDENTITY",
    "LANE_ROWS",
    "LANE_TICKETS",
    "MAGIC",
    "MEMO",
    "STATE",
    "TAKEN",
    "Memo",
    "State",
    "decode_counters",
    "decode_lane_rows",
    "decode_memo",
    "decode_taken",
    "encode_counters",
    "encode_lane_rows",
    "encode_memo",
    "encode_taken",
    "pack_identity",
    "unpack_identity",
]

FORMAT = 1
MAGIC = b"PARKADES"
IDENTITY, STATE, COUNTERS, LANE_ROWS = b"identity", b"state", b"counters", b"lane_rows"
MEMO, TAKEN, LANE_TICKETS = b"memo", b"taken", b"lane_tickets"

_IDENTITY = struct.Struct(">8sI5sI")
_STATE = struct.Struct(">5Q")


class Identity(NamedTuple):
    magic: bytes
    format: int
    salt: bytes
    shard: int


class State(NamedTuple):
    """`file_bytes`: how long the file was when the transaction that wrote this began."""

    lsn: int = 0
    epoch: int = 0
    settled_ms: int = 0
    next_blob: int = 1
    file_bytes: int = 0

    def pack(self) -> bytes:
        return _STATE.pack(*self)

    @classmethod
    def unpack(cls, row: bytes) -> "State":
        return cls._make(_STATE.unpack(row))


class Memo(msgspec.Struct, array_like=True, frozen=True, forbid_unknown_fields=True):
    """What outlives the tickets it was of. `done_forgotten`: how many were done and are forgotten;
    `keeps_ms`: how long a task's ended tickets are kept, as its code said last."""

    done_forgotten: int = 0
    keeps_ms: dict[str, int] = {}


def pack_identity(salt: bytes, shard: int) -> bytes:
    return _IDENTITY.pack(MAGIC, FORMAT, salt, shard)


def unpack_identity(row: bytes) -> Identity:
    """Reads what every format has in common; a later one may append to it."""
    return Identity._make(_IDENTITY.unpack_from(row))


_encode = msgspec.msgpack.Encoder().encode
_counters = msgspec.msgpack.Decoder(list[tuple[str, int, int]]).decode
_lane_rows = msgspec.msgpack.Decoder(list[tuple[int, int]]).decode
_taken = msgspec.msgpack.Decoder(list[tuple[int, int, int, int]]).decode


def encode_counters(counters: dict[tuple[str, int], int]) -> bytes:
    """Tickets by (task, state); what is 0 is left out."""
    return _encode([(task, state, n) for (task, state), n in sorted(counters.items()) if n])


def decode_counters(row: bytes) -> dict[tuple[str, int], int]:
    return {(task, state): count for task, state, count in _counters(row)}


def encode_lane_rows(lane_rows: dict[int, int]) -> bytes:
    """Rows in table `lanes` by lane number; what is 0 is left out."""
    return _encode([(lane, count) for lane, count in sorted(lane_rows.items()) if count])


def decode_lane_rows(row: bytes) -> dict[int, int]:
    return dict(_lane_rows(row))


def encode_taken(taken: Mapping[int, tuple[int, int, int]]) -> bytes:
    """The last place that was taken of each sender's outbox: (epoch, LSN, index)."""
    return _encode([(sender, *place) for sender, place in sorted(taken.items())])


def decode_taken(row: bytes) -> dict[int, tuple[int, int, int]]:
    return {sender: (epoch, lsn, index) for sender, epoch, lsn, index in _taken(row)}


encode_memo = msgspec.msgpack.Encoder(order="sorted").encode
decode_memo = msgspec.msgpack.Decoder(Memo).decode
