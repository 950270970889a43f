"""Keys of table `outbox`: by receiver, then in the order in which its entries came about."""

import struct

__all__ = ["FIRST_PLACE", "pack_place", "receiver_key", "unpack_place"]

_KEY = struct.Struct(">IIQI")
_RECEIVER = struct.Struct(">I")

FIRST_PLACE = (0, 0, 0)
"""Before every (epoch, LSN, index) that there is."""


def pack_place(receiver: int, place: tuple[int, int, int]) -> bytes:
    """The key of an entry; `place` is (epoch, LSN, index) of what it stands in."""
    return _KEY.pack(receiver, *place)


def unpack_place(key: bytes) -> tuple[int, tuple[int, int, int]]:
    """(receiver, place) of a key."""
    receiver, epoch, lsn, index = _KEY.unpack(key)
    return receiver, (epoch, lsn, index)


def receiver_key(receiver: int) -> bytes:
    """What the keys of all entries for a receiver begin with."""
    return _RECEIVER.pack(receiver)
