"""Ended tickets in the order in which they ended: what retention reads, a slice at a time.

Table `ended` has blobs of (finished, serial), by state, task and time. A commit only adds to it; a
blob goes when whoever reads it says that nothing of it is left.
"""

from collections.abc import Callable
from typing import NamedTuple

from lmdb import Transaction

from parkade.store.environment import Tables
from parkade.store.errors import Damage
from parkade.store.rows import unseal
from parkade.store.writer import unpack_stamps

__all__ = ["Ended", "EndedAt", "EndedReader", "IsThere"]

ENDED_WALK_ENTRIES = 2_048  # looked at in one read: some 2 ms
_PREFIX_BYTES = 9  # state and task

IsThere = Callable[[bytes, int], bool]
"""Whether a head is of a ticket that ended, and has not come back since, at that time."""


class EndedAt(NamedTuple):
    """A place in the table: a blob, and how many of its entries lie before."""

    key: bytes
    passed: int


class Ended(NamedTuple):
    """Tickets that ended before the time asked for and are still there.

    `spent`: keys of blobs of which nothing is left once these tickets are gone. `after`: where to
    go on; None when nothing more is old enough. Then `first_ms` is when the first of those that are
    left ended, or None when none is.
    """

    serials: list[int]
    spent: list[bytes]
    after: EndedAt | None
    first_ms: int | None


class EndedReader:
    """Reads one state of the table."""

    def __init__(self, transaction: "Transaction[memoryview]", tables: Tables, path: str) -> None:
        self._transaction = transaction
        self._tables = tables
        self._path = path

    def before(
        self,
        state: int,
        task_digest: bytes,
        before_ms: int,
        *,
        limit: int,
        after: EndedAt | None = None,
        is_there: IsThere | None = None,
    ) -> Ended:
        """Tickets of a task that ended in `state` before a time, in the order of the commits that
        told of them and, within one, of their ends. `is_there` None: whoever has a head is there.

        Raises `Damage`.
        """
        prefix = bytes([state]) + task_digest
        cursor = self._transaction.cursor(self._tables.ended)
        heads = self._transaction.cursor(self._tables.heads)
        serials: list[int] = []
        spent: list[bytes] = []
        looked_at = 0
        if cursor.set_range(prefix if after is None else after.key):
            for row_key, stored in cursor.iternext():
                key = bytes(row_key)
                if key[:_PREFIX_BYTES] != prefix:
                    break
                place = after.passed if after is not None and key == after.key else 0
                for finished_ms, serial in self._stamps(key, stored)[place:]:
                    if finished_ms >= before_ms:
                        return Ended(serials, spent, None, finished_ms)
                    if len(serials) >= limit or looked_at >= ENDED_WALK_ENTRIES:
                        return Ended(serials, spent, EndedAt(key, place), None)
                    place += 1
                    looked_at += 1
                    head_key = serial.to_bytes(8, "big")
                    if not heads.set_key(head_key):
                        continue
                    if is_there is not None:
                        head = unseal(head_key, heads.value())
                        if head is None or not is_there(head, finished_ms):
                            continue
                    serials.append(serial)
                spent.append(key)
        return Ended(serials, spent, None, None)

    def spent_fronts(self, after: bytes, limit: int) -> tuple[list[bytes], bytes | None]:
        """Keys of blobs of which nothing is left, as far as no older one of their task and state
        has anything left; from the key `after` on, at most so many blobs. And where to go on; None
        at the end. Raises `Damage`."""
        cursor = self._transaction.cursor(self._tables.ended)
        heads = self._transaction.cursor(self._tables.heads)
        spent: list[bytes] = []
        is_found = cursor.set_range(after)
        for _ in range(limit):
            if not is_found:
                return spent, None
            key = bytes(cursor.key())
            stamps = self._stamps(key, cursor.value())
            if any(heads.set_key(serial.to_bytes(8, "big")) for _, serial in stamps):
                is_found = cursor.set_range(key[:_PREFIX_BYTES] + b"\xff" * 17)
            else:
                spent.append(key)
                is_found = cursor.next()
        return spent, bytes(cursor.key()) if is_found else None

    def _stamps(self, key: bytes, stored: memoryview) -> list[tuple[int, int]]:
        content = unseal(key, stored)
        if content is None:
            reason = f"row {key.hex()} of table ended is missing or damaged"
            raise Damage(self._path, 0, reason)
        return unpack_stamps(content)
