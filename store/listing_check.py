"""What is wrong in table `listings`: row by row, and against the heads of a store."""

from array import array
from collections.abc import Iterator
from itertools import chain

from lmdb import Transaction, _Database

from parkade.store.listings import BLOB_SERIALS_MAX, SERIAL_BYTES, ListingReader, unpack_blob

__all__ = ["ListingCheck", "blob_fault"]


def blob_fault(key: bytes, serials: "array[int]") -> str | None:
    """What is wrong in a row that has its checksum; None: nothing."""
    if not 0 < len(serials) <= BLOB_SERIALS_MAX:
        return f"has {len(serials)} serials"
    ordered = serials.tolist()
    if sorted({*ordered}) != ordered:
        return "has serials that are not in order"
    if len(key) <= SERIAL_BYTES or ordered[0] < int.from_bytes(key[-SERIAL_BYTES:], "big"):
        return "has another key than its serials ask for"
    return None


class ListingCheck:
    """Holds what is listed against what should be, which comes in the order of serials.

    `rows` is gone through first. A prefix of which a row is bad is held against nothing.
    """

    def __init__(self, transaction: "Transaction[memoryview]", table: _Database, path: str) -> None:
        self._transaction = transaction
        self._table = table
        self._reader = ListingReader(transaction, table, path)
        self._lines: dict[bytes, Iterator[int]] = {}
        self._next: dict[bytes, int | None] = {}
        self._unsound: set[bytes] = set()

    def rows(self) -> Iterator[str]:
        """What is wrong in rows, and between one and the next."""
        before, last = b"", -1
        for key_view, stored in self._transaction.cursor(self._table):
            key = bytes(key_view)
            if key <= before:
                yield f"the table goes from row {before.hex()} back to row {key.hex()}"
                self._unsound.update(self._lines)
                return
            before, prefix = key, key[:-SERIAL_BYTES]
            if prefix not in self._lines:
                self._lines[prefix], last = self._reader.oldest(prefix), -1
            serials = unpack_blob(key, stored)
            fault = "fails its checksum" if serials is None else blob_fault(key, serials)
            if fault is None and int.from_bytes(key[-SERIAL_BYTES:], "big") <= last:
                fault = "begins before the one before it ends"
            if fault is not None:
                self._unsound.add(prefix)
                yield f"row {key.hex()} {fault}"
            elif serials is not None:
                last = serials[-1]

    def meet(self, prefix: bytes, serial: int) -> tuple[list[int], bool]:
        """Those that are listed before it, and were not met; whether it is listed itself."""
        if prefix in self._unsound:
            return [], True
        extra: list[int] = []
        listed = self._advance(prefix, prefix not in self._next)
        while listed is not None and listed < serial:
            extra.append(listed)
            listed = self._advance(prefix, True)
        if listed == serial:
            self._advance(prefix, True)
        return extra, listed == serial

    def rest(self) -> Iterator[int]:
        """Those that are listed behind all that were met."""
        for prefix in self._lines.keys() - self._unsound:
            first = self._next.get(prefix)
            yield from chain([] if first is None else [first], self._lines[prefix])

    def _advance(self, prefix: bytes, is_due: bool) -> int | None:
        if is_due:
            self._next[prefix] = next(self._lines.get(prefix, iter(())), None)
        return self._next[prefix]
