"""Table `listings` by itself, with what LMDB was asked for counted."""

from collections import Counter
from typing import Any

from parkade.store.listing_check import ListingCheck
from parkade.store.listings import ListingReader, unpack_blob, write_listings

__all__ = ["Listings"]

MOVES = ("set_range", "set_key", "next", "prev", "last")
Changes = dict[bytes, list[int]]


class Listings:
    """One transaction that is every commit; what it has is checked behind each."""

    def __init__(self, transaction: Any, table: Any) -> None:
        self.calls: Counter[str] = Counter()
        self.rows_put = 0
        self._transaction = transaction
        self._table = table

    def commit(self, come: Changes | None = None, gone: Changes | None = None) -> None:
        transaction: Any = _Counted(self)
        write_listings(transaction, self._table, "a path", listed=come or {}, unlisted=gone or {})

    def reader(self) -> ListingReader:
        return ListingReader(self._transaction, self._table, "a path")

    def check(self) -> ListingCheck:
        return ListingCheck(self._transaction, self._table, "a path")

    def all_of(self, prefix: bytes) -> list[int]:
        """Its serials, upward."""
        assert not list(self.check().rows())
        return list(self.reader().oldest(prefix))

    def sizes(self, prefix: bytes) -> list[int]:
        """How many serials each of its blobs has."""
        found: list[int] = []
        for key, stored in self._transaction.cursor(self._table):
            serials = unpack_blob(bytes(key), stored)
            assert serials is not None
            if bytes(key[:-8]) == prefix:
                found.append(len(serials))
        return found


class _Counted:
    """A transaction, and its cursors, that count."""

    def __init__(self, listings: Listings) -> None:
        self._listings = listings
        self._transaction = listings._transaction

    def put(self, key: bytes, value: bytes, *, db: Any) -> bool:
        self._listings.calls["put"] += 1
        self._listings.rows_put += 1
        put: bool = self._transaction.put(key, value, db=db)
        return put

    def delete(self, key: bytes, *, db: Any) -> bool:
        self._listings.calls["delete"] += 1
        is_there: bool = self._transaction.delete(key, db=db)
        return is_there

    def cursor(self, table: Any) -> Any:
        return _CountedCursor(self._listings, self._transaction.cursor(table))


class _CountedCursor:
    def __init__(self, listings: Listings, cursor: Any) -> None:
        self._listings = listings
        self._cursor = cursor

    def __getattr__(self, name: str) -> Any:
        if name in MOVES:
            self._listings.calls[name] += 1
        return getattr(self._cursor, name)

    def putmulti(self, rows: list[tuple[bytes, bytes]]) -> Any:
        self._listings.calls["putmulti"] += 1
        self._listings.rows_put += len(rows)
        return self._cursor.putmulti(rows)
