"""Listings held against sorted sets, through any mix of runs, strays and departures.

The blobs are tiny, so that a few serials fill many of them; the rules are the same for any size.
"""

import tempfile
from typing import Any
from unittest import mock

import lmdb
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, rule

from kit.listing import Changes, Listings

MOST, LEAST = 8, 2
PREFIXES = (b"s one.....\0", b"s one.....\1", b"s two.....\0")
SPAN = 120
SERIALS = st.integers(0, SPAN)
SETS = st.sets(SERIALS, max_size=25)


class ListingLife(RuleBasedStateMachine):
    """Each rule is a commit."""

    @initialize()
    def begin(self) -> None:
        self.model: dict[bytes, set[int]] = {prefix: set() for prefix in PREFIXES}
        self.sizes = mock.patch.multiple(
            "parkade.store.listings", BLOB_SERIALS_MAX=MOST, BLOB_SERIALS_MIN=LEAST
        )
        self.sizes.start()
        self.directory = tempfile.TemporaryDirectory()
        self.environment = lmdb.open(self.directory.name, max_dbs=1, sync=False)
        table = self.environment.open_db(b"listings")
        self.transaction = self.environment.begin(write=True, buffers=True)
        self.listings = Listings(self.transaction, table)

    def teardown(self) -> None:
        self.transaction.abort()
        self.environment.close()
        self.directory.cleanup()
        self.sizes.stop()

    def commit(self, come: dict[bytes, Any], gone: dict[bytes, Any]) -> None:
        as_lists: list[Changes] = [
            {prefix: list(serials) for prefix, serials in change.items()} for change in (come, gone)
        ]
        self.listings.commit(*as_lists)
        for prefix, serials in gone.items():
            self.model[prefix] -= {*serials}
        for prefix, serials in come.items():
            self.model[prefix] |= {*serials}

    @rule(prefix=st.sampled_from(PREFIXES), count=st.integers(1, 40))
    def a_run_comes(self, prefix: bytes, count: int) -> None:
        begin = max(self.model[prefix], default=-1) + 1
        self.commit({prefix: range(begin, begin + count)}, {})

    @rule(
        come=st.dictionaries(st.sampled_from(PREFIXES), SETS),
        gone=st.dictionaries(st.sampled_from(PREFIXES), SETS),
    )
    def some_come_and_go(self, come: dict[bytes, set[int]], gone: dict[bytes, set[int]]) -> None:
        self.commit(come, gone)

    @rule(prefix=st.sampled_from(PREFIXES), begin=SERIALS, count=st.integers(1, 60))
    def a_stretch_leaves(self, prefix: bytes, begin: int, count: int) -> None:
        self.commit({}, {prefix: range(begin, begin + count)})

    @rule(prefix=st.sampled_from(PREFIXES), step=st.integers(2, 4))
    def most_leave_here_and_there(self, prefix: bytes, step: int) -> None:
        left = sorted(self.model[prefix])[::step]
        self.commit({}, {prefix: self.model[prefix].difference(left)})

    @rule(before=st.sampled_from(PREFIXES), after=st.sampled_from(PREFIXES), serials=SETS)
    def some_move(self, before: bytes, after: bytes, serials: set[int]) -> None:
        moved = self.model[before] & serials
        self.commit({after: moved}, {before: moved})

    @rule(prefix=st.sampled_from(PREFIXES), edge=st.integers(0, SPAN + 60))
    def it_is_read_from_anywhere(self, prefix: bytes, edge: int) -> None:
        ordered, reader = sorted(self.model[prefix]), self.listings.reader()
        below = [serial for serial in ordered if serial < edge]
        assert list(reader.newest(prefix, edge)) == below[::-1]
        assert list(reader.oldest(prefix, edge)) == [one for one in ordered if one > edge]

    @invariant()
    def it_lists_what_it_should_in_few_blobs(self) -> None:
        for prefix, serials in self.model.items():
            assert self.listings.all_of(prefix) == sorted(serials)
            sizes = self.listings.sizes(prefix)
            assert all(LEAST <= size <= MOST for size in sizes[1:-1])
            assert len(sizes) <= len(serials) // LEAST + 2

    @invariant()
    def a_check_misses_nothing_and_makes_nothing_up(self) -> None:
        check = self.listings.check()
        assert not list(check.rows())
        told: list[int] = []
        for prefix, serials in self.model.items():
            for serial in sorted(serials):
                if serial % 2:
                    extra, is_listed = check.meet(prefix, serial)
                    assert is_listed
                    told += extra
            if serials:
                assert not check.meet(PREFIXES[0] + b"?", min(serials))[1]
        told += check.rest()
        even = [one for serials in self.model.values() for one in serials if one % 2 == 0]
        assert sorted(told) == sorted(even)


TestListingLife = ListingLife.TestCase
TestListingLife.settings = settings(max_examples=settings().max_examples // 4)
