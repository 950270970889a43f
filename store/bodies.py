"""Rows of table `bodies`: one that would leave a hole at the end of a page is cut there, and goes
on in rows of its own. No LMDB here.

A row is the kind of the body, its content and a crc32. Where the first bit of the kind is set, one
byte follows that says how many rows come behind this one, under the key of the ticket and a number
from 1 on; each of them is a piece of the content and a crc32.
"""

from bisect import bisect_right
from collections.abc import Callable, Iterable, Iterator
from itertools import accumulate, groupby
from typing import NamedTuple

from parkade.store.rows import CRC_BYTES, unseal

__all__ = [
    "CUT_BYTES_MIN", "SERIAL_BYTES", "PageFill", "Rows", "cut_count", "is_cut", "kind_of",
    "rest_keys", "whole_bodies", "whole_body",
]  # fmt: skip

CUT = 0x80  # of the first byte of a row: others follow
CUT_BYTES_MIN = 256  # what is smaller leaves holes that are not worth another row
CUT_BYTES_MAX = 16_384  # what is larger has pages of its own, of which less than a fourth is empty
PIECE_BYTES_MIN = 48  # of a body, in a row
SERIAL_BYTES = 8
LEAD_BYTES = 2  # of the first of several rows: kind and count
_NUMBERS = [bytes((number,)) for number in range(256)]

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


def rest_keys(key: bytes, count: int) -> list[bytes]:
    """The keys of the rows behind the first, which has the key of the ticket."""
    return [key + number for number in _NUMBERS[1 : count + 1]]


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


class Rows(NamedTuple):
    """Rows to put: under what key, and what each begins and goes on with before its checksum."""

    keys: list[bytes]
    leads: list[bytes]
    contents: list[bytes]


class PageFill:
    """Cuts bodies that are appended to the table, one behind the other, where its pages end.

    `room` is what the last page has left. Were it wrong, pages would be as full as without it.
    """

    def __init__(self, page_bytes: int) -> None:
        self._page = page_bytes - _PAGE_HEAD
        self._node_max = (self._page // 2 & -2) - _NODE_POINTER
        self._whole_max = self._node_max - _NODE_HEAD - SERIAL_BYTES - CRC_BYTES
        self.room = 0
        # By (size, room): bodies of one size fall into few patterns.
        self._plans: dict[tuple[int, int], tuple[list[int], int]] = {}

    def begin(self, size_bytes: int) -> None:
        """A page has begun with a row of that size, which is not cut and has no checksum yet."""
        self.room = self._page - self._taken(SERIAL_BYTES, size_bytes + CRC_BYTES)

    def cut(self, keys: list[bytes], bodies: list[bytes], kind: bytes) -> Rows:
        """The rows to put for these. `kind` is of all of them; b"" where each begins with its
        own."""
        rows = Rows(keys[:], [kind] * len(keys), bodies[:])
        beside = _NODE_HEAD + SERIAL_BYTES + len(kind) + CRC_BYTES + _NODE_POINTER + 1
        whole_max, never = self._whole_max - len(kind), self._page + 1
        sizes = map(len, bodies)
        # Where each would end if they stood behind each other in one page.
        ends = list(accumulate([n + beside & -2 if n <= whole_max else never for n in sizes]))
        begun = before = added = 0
        plans, room = self._plans, self.room
        while (at := bisect_right(ends, before + room, begun)) < len(ends):
            if at > begun:
                room -= ends[at - 1] - before
            body = bodies[at]
            place = len(kind) + len(body), room
            plan = plans.get(place)
            if plan is None:
                plan = plans[place] = self._plan(*place)
            pieces, room = plan
            if pieces:
                _cut_one(rows, at + added, kind, pieces)
                added += len(pieces)
            begun, before = at + 1, ends[at]
        self.room = room if begun == len(ends) else room - (ends[-1] - before)
        return rows

    def _plan(self, size_bytes: int, room: int) -> tuple[list[int], int]:
        """The sizes of all pieces but the last, and the room behind that one. No sizes: it is not
        cut, since the next page has room for it, or it is too small or too large."""
        if CUT_BYTES_MIN <= size_bytes <= CUT_BYTES_MAX:
            pieces, left = list[int](), size_bytes - 1
            while True:
                beside = _NODE_HEAD + SERIAL_BYTES + CRC_BYTES + (1 if pieces else LEAD_BYTES)
                most = min(room - _NODE_POINTER, self._node_max) - beside
                if left <= most:
                    break
                if most >= PIECE_BYTES_MIN:
                    pieces.append(most)
                    left -= most
                    room -= beside + most + _NODE_POINTER + 1 & -2
                else:
                    room = self._page
            if pieces:
                return pieces, room - self._taken(SERIAL_BYTES + 1, left + CRC_BYTES)
        taken = self._taken(SERIAL_BYTES, size_bytes + CRC_BYTES)
        return [], (room if taken <= room else self._page) - taken

    def _taken(self, key_bytes: int, value_bytes: int) -> int:
        """What a row takes of a page."""
        size = _NODE_HEAD + key_bytes + value_bytes
        if size > self._node_max:
            size += _PAGE_NUMBER - value_bytes
        return size + _NODE_POINTER + 1 & -2


def _cut_one(rows: Rows, at: int, kind: bytes, pieces: list[int]) -> None:
    """Puts rows in the place of one, which ends where the first of these pieces does."""
    keys, leads, contents = rows
    key, body, begin = keys[at], contents[at], 1 - len(kind)
    leads[at] = bytes(((kind or body)[0] | CUT, len(pieces)))
    for number, piece_bytes in enumerate(pieces, 1):
        end = begin + piece_bytes
        contents[at] = body[begin:end]
        begin, at = end, at + 1
        keys.insert(at, key + _NUMBERS[number])
        leads.insert(at, b"")
        contents.insert(at, body)
    contents[at] = body[begin:]
