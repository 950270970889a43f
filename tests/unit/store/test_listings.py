"""Listings: serials under a prefix, in blobs that are rewritten once a commit."""

import random
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import lmdb
import pytest

from kit.listing import Listings
from kit.parking import Content, diff, idle_batch, listing_prefix, open_parked, pending, problems
from parkade.store.errors import Damage
from parkade.store.listings import BLOB_SERIALS_MAX, BLOB_SERIALS_MIN
from parkade.store.parked import Parked
from parkade.store.rows import seal

NOW = 5 << 26
ONE, OTHER = b"s one.....\0", b"s one.....\1"
END = 1 << 64


@pytest.fixture
def listings(tmp_path: Path) -> Iterator[Listings]:
    with lmdb.open(str(tmp_path), max_dbs=2, map_size=1 << 28, sync=False) as environment:
        table = environment.open_db(b"listings")
        with environment.begin(write=True, buffers=True) as transaction:
            yield Listings(transaction, table)


def test_a_run_of_new_serials_costs_a_row_for_hundreds_of_them(listings: Listings) -> None:
    count = 20_000
    listings.commit({ONE: list(range(count)), OTHER: [1]})
    rows, calls = listings.rows_put, listings.calls.total()
    listings.commit({ONE: list(range(count, 2 * count))})
    assert listings.rows_put - rows <= count / 500 + 1
    assert listings.calls.total() - calls <= 10
    assert listings.all_of(ONE) == list(range(2 * count))
    assert listings.all_of(OTHER) == [1]


def test_runs_of_a_few_fill_one_blob_after_the_other(listings: Listings) -> None:
    for begin in range(0, 3_000, 7):
        listings.commit({ONE: list(range(begin, begin + 7))})
    sizes = listings.sizes(ONE)
    assert set(sizes[:-1]) == {BLOB_SERIALS_MAX}
    assert sum(sizes) == 3_003


def test_a_lone_change_is_a_few_seeks_and_one_row_however_many_are_listed(
    listings: Listings,
) -> None:
    costs: list[Counter[str]] = []
    for count in (1_000, 100_000):
        listings.commit({ONE: list(range(0, 2 * count, 2))})
        for change in ({"gone": {ONE: [count]}}, {"come": {ONE: [count + 1]}}):
            rows = listings.rows_put
            listings.calls.clear()
            listings.commit(**change)
            assert listings.rows_put - rows == 1
            costs.append(listings.calls.copy())
    assert all(cost.total() <= 6 for cost in costs), costs


def test_the_front_of_a_listing_goes_blob_by_blob_and_touches_nothing_behind(
    listings: Listings,
) -> None:
    listings.commit({ONE: list(range(20 * BLOB_SERIALS_MAX))})
    rows = listings.rows_put
    listings.commit(gone={ONE: list(range(10 * BLOB_SERIALS_MAX + 3))})
    assert listings.rows_put - rows == 1
    assert listings.sizes(ONE) == [BLOB_SERIALS_MAX - 3] + [BLOB_SERIALS_MAX] * 9


def test_a_listing_that_nearly_everything_left_keeps_few_blobs(listings: Listings) -> None:
    everything = list(range(60_000))
    listings.commit({ONE: everything})
    order = everything.copy()
    random.Random(1).shuffle(order)
    left = set(everything)
    for at in range(0, 59_900, 1_000):
        gone = order[at : at + 1_000]
        listings.commit(gone={ONE: gone})
        left -= {*gone}
        sizes = listings.sizes(ONE)
        assert min(sizes[1:-1], default=BLOB_SERIALS_MIN) >= BLOB_SERIALS_MIN
        assert len(sizes) <= len(left) // BLOB_SERIALS_MIN + 2
    listings.commit(gone={ONE: sorted(left)})
    assert listings.all_of(ONE) == listings.sizes(ONE) == []


def test_serials_that_come_out_of_order_split_the_blobs_they_belong_to(listings: Listings) -> None:
    order = list(range(30_000))
    random.Random(2).shuffle(order)
    for at in range(0, 30_000, 3_000):
        listings.commit({ONE: order[at : at + 3_000]})
        assert listings.all_of(ONE) == sorted(order[: at + 3_000])
        assert max(listings.sizes(ONE)) <= BLOB_SERIALS_MAX
    assert len(listings.sizes(ONE)) <= 30_000 // BLOB_SERIALS_MIN + 2


def test_what_is_not_listed_may_leave_and_what_is_may_come_again(listings: Listings) -> None:
    listings.commit({ONE: [5, 7]}, {ONE: [5, 6], OTHER: [1]})
    rows = listings.rows_put
    listings.commit({ONE: [7]}, {ONE: [6, 8], OTHER: [9]})
    assert listings.rows_put == rows
    assert (listings.all_of(ONE), listings.all_of(OTHER)) == ([5, 7], [])
    listings.commit({ONE: [7, 0, END - 1]}, {ONE: [7, 5]})
    assert listings.all_of(ONE) == [0, 7, END - 1]


def test_a_listing_goes_on_from_any_serial_in_both_directions(listings: Listings) -> None:
    serials = list(range(10, 6_000, 3))
    listings.commit({ONE: serials, OTHER: [4, 5_000]})
    reader = listings.reader()
    for edge in (0, 1, 9, 10, 11, 1_531, 1_534, 1_535, 3_000, 5_998, 6_000, END - 1, END):
        older = [serial for serial in serials if serial < edge]
        assert list(reader.newest(ONE, edge)) == older[::-1]
        newer = [serial for serial in serials if serial > edge]
        assert list(reader.oldest(ONE, edge)) == newer
    for prefix in (b"s one....", b"s one.....\2", b"a", b"z"):
        assert list(reader.newest(prefix, END)) == list(reader.oldest(prefix)) == []


def with_cars(path: Path, count: int) -> tuple[Parked, bytes]:
    parked = open_parked(path)
    cars = {serial: pending(NOW + serial) for serial in range(1, count + 1)}
    parked.commit(diff(Content(), Content(lsn=1, now_ms=NOW, cars=cars)))
    return parked, listing_prefix("mail", 0)


def replace_row(parked: Parked, key: bytes, row: bytes) -> None:
    with parked._environment.begin(write=True) as transaction:
        transaction.put(key, row, db=parked._tables.listings)


@pytest.mark.parametrize("harm", ["flipped", "cut", "unordered"])
def test_a_blob_that_is_damaged_is_told_by_whoever_reads_it_and_never_written_over(
    tmp_path: Path, harm: str
) -> None:
    parked, prefix = with_cars(tmp_path, 2_000)
    key = prefix + (1).to_bytes(8, "big")
    with parked._environment.begin() as transaction:
        row: Any = transaction.get(key, db=parked._tables.listings)
    content = row[:-4]
    bad = {
        "flipped": bytes([row[0] ^ 1]) + row[1:],
        "cut": seal(key, content[:-3]),
        "unordered": seal(key, content[:80] + content[8:]),
    }[harm]
    replace_row(parked, key, bad)
    with parked.snapshot() as snapshot, pytest.raises(Damage, match="table listings"):
        list(snapshot.listings().newest(prefix, END))
    with parked.snapshot() as snapshot, pytest.raises(Damage, match="table listings"):
        list(snapshot.listings().oldest(prefix))
    with parked.snapshot() as snapshot:
        assert next(snapshot.listings().newest(prefix, END)) == 2_000
    assert ("listings", None) in {problem[:2] for problem in problems(parked, deep=False)}
    if harm != "unordered":
        batch = idle_batch(parked, NOW)
        batch.unlisted[prefix].append(3)
        with pytest.raises(Damage, match="table listings"):
            parked.commit(batch)


def test_rows_that_overlap_are_told(tmp_path: Path) -> None:
    parked, prefix = with_cars(tmp_path, 2_000)
    key = prefix + (1_000).to_bytes(8, "big")
    replace_row(parked, key, seal(key, (1_000).to_bytes(8, "big")))
    told = [problem.text for problem in problems(parked) if problem.table == "listings"]
    assert len(told) == 1
    assert key.hex() in told[0]
