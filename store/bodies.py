"""Rows of table `bodies`: one that would leave a hole at the end of a page is cut there, and goes
on in rows of its own. No LMDB here.

A row is the kind of the body, its content and a crc32. Where the first bit of the kind is set, one
byte follows that says how many rows come behind this one, under the key of the ticket and a number
from 1 on; each of them is a piece of the content and a crc32.
"""

from collections.abc import Callable, Iterable, Iterator
from itertools import groupby

from parkade.store.rows import CRC_BYTES, unseal

__all__ = [
    "CUT_BYTES_MIN", "SERIAL_BYTES", "PageFill", "cut_count", "is_cut", "kind_of", "rest_keys",
    "whole_bodies", "whole_body",
]  # fmt: skip

CUT = 0x80  # of the first byte of a row: others follow
CUT_BYTES_MIN = 256  # what is smaller leaves holes that are not worth another row
CUT_BYTES_MAX = 16_384  # what is larger has pages of its own, of which less than a fourth is empty
PIECE_BYTES_MIN = 48  # of a body, in a row
SERIAL_BYTES = 8
LEAD_BYTES = 2  # of the first of several rows: kind and count

# What LMDB needs beside keys and values, in bytes.
_PAGE_HEAD = 16
_NODE_HEAD = 8
_NODE_POINTER = 2
_PAGE_NUMBER = 8

Stored = Callable[[bytes], bytes | memoryview | None]


def kind_of(row: bytes | memoryview) -> int:
    """The kind of the body whose first row this is."""
    return row[0] & ~CUT


def is_cut(row: bytes | memoryview) -> bool:
    """Whether others follow this first row."""
    return len(row) > 1 and row[0] & CUT != 0


def cut_count(stored: bytes | memoryview) -> int:
    """How many rows are behind this first one."""
    return stored[1] if is_cut(stored) else 0


def rest_keys(key: bytes, count: int) -> Iterator[bytes]:
    """The keys of the rows behind the first, which has the key of the ticket."""
    return (key + bytes((number,)) for number in range(1, count + 1))


def whole_body(key: bytes, row: bytes, stored: Stored) -> bytes | None:
    """The body, its kind first, whose first row this is; None where one of the others is missing or
    damaged. `stored` gives what stands under a key."""
    if not is_cut(row):
        return row
    pieces = [bytes((kind_of(row),)), row[2:]]
    for at in rest_keys(key, cut_count(row)):
        found = stored(at)
        piece = None if found is None else unseal(at, found)
        if piece is None:
            return None
        pieces.append(piece)
    return b"".join(pieces)


def whole_bodies(rows: Iterable[tuple[bytes, bytes]]) -> Iterator[tuple[bytes, bytes | None]]:
    """(key, body) of each ticket, of rows of which those of a ticket stand together, in whatever
    order. None: it cannot be put together."""
    for key, listed in groupby(rows, lambda row: row[0][:SERIAL_BYTES]):
        of_ticket = dict(listed)
        first = of_ticket.get(key)
        row = None if first is None else unseal(key, first)
        body = None if row is None else whole_body(key, row, of_ticket.get)
        yield key, body


class PageFill:
    """Cuts bodies that are appended to the table, one behind the other, where its pages end.

    `room` is what the last page has left. Were it wrong, pages would be as full as without it.
    """

    def __init__(self, page_bytes: int) -> None:
        self._page = page_bytes - _PAGE_HEAD
        self._node_max = (self._page // 2 & -2) - _NODE_POINTER
        self._whole_max = self._node_max - _NODE_HEAD - SERIAL_BYTES - CRC_BYTES
        self.room = 0

    def begin(self, row: bytes) -> None:
        """A page has begun with this row, which is not cut and has no checksum yet."""
        self.room = self._page - self._taken(SERIAL_BYTES, len(row) + CRC_BYTES)

    def cut(self, keys: list[bytes], rows: list[bytes]) -> tuple[list[bytes], list[bytes]]:
        """The keys and rows to put in the place of these."""
        out_keys: list[bytes] = []
        out_rows: list[bytes] = []
        beside = _NODE_HEAD + SERIAL_BYTES + CRC_BYTES + _NODE_POINTER + 1
        for key, row in zip(keys, rows, strict=True):
            size_bytes = len(row)
            taken = size_bytes + beside & -2
            if taken <= self.room and size_bytes <= self._whole_max:
                self.room -= taken
            elif CUT_BYTES_MIN <= size_bytes <= CUT_BYTES_MAX:
                pieces = self._pieces(row)
                out_keys.append(key)
                out_keys += rest_keys(key, len(pieces) - 1)
                out_rows += pieces
                continue
            else:
                taken = self._taken(SERIAL_BYTES, size_bytes + CRC_BYTES)
                self.room = (self.room if taken <= self.room else self._page) - taken
            out_keys.append(key)
            out_rows.append(row)
        return out_keys, out_rows

    def _pieces(self, row: bytes) -> list[bytes]:
        """The rows that take the place of one; itself where the next page has room for it."""
        pieces: list[bytes] = []
        at = 1
        while True:
            key_bytes = SERIAL_BYTES + bool(pieces)
            beside = _NODE_HEAD + key_bytes + CRC_BYTES + (0 if pieces else LEAD_BYTES)
            most = min(self.room - _NODE_POINTER, self._node_max) - beside
            if len(row) - at <= most:
                break
            if most >= PIECE_BYTES_MIN:
                pieces.append(row[at : at + most])
                at += most
                self.room -= beside + most + _NODE_POINTER + 1 & -2
            else:
                self.room = self._page
        if not pieces:
            self.room -= self._taken(SERIAL_BYTES, len(row) + CRC_BYTES)
            return [row]
        self.room -= self._taken(SERIAL_BYTES + 1, len(row) - at + CRC_BYTES)
        return [bytes((row[0] | CUT, len(pieces))) + pieces[0], *pieces[1:], row[at:]]

    def _taken(self, key_bytes: int, value_bytes: int) -> int:
        """What a row takes of a page."""
        size = _NODE_HEAD + key_bytes + value_bytes
        if size > self._node_max:
            size += _PAGE_NUMBER - value_bytes
        return size + _NODE_POINTER + 1 & -2
