"""The walk over a whole store: silent on a sound one, and one finding for each planted fault."""

from collections.abc import Callable
from pathlib import Path

import pytest

from kit.parking import (
    DONE,
    RUNNING,
    Content,
    diff,
    idle_batch,
    open_parked,
    pending,
    problems,
)
from parkade.store.batch import Batch, Claim
from parkade.store.entry import EXPIRY, NEGATIVE, pack_entry
from parkade.store.parked import Parked
from parkade.store.rows import seal

NOW = 5 << 26
CARS = {
    1: pending(NOW + 5, expiry_ms=NOW + 500),
    2: pending(NOW + 6),
    3: pending(NOW + (9 << 26)),
    4: pending(NOW, place="lane"),
    5: pending(NOW, state=RUNNING, place="", fence=1),
    6: pending(NOW, state=DONE, place="", finished_ms=NOW, body=b"Rresult"),
    7: pending(NOW, place="waits", key="k"),
}


@pytest.fixture
def parked(tmp_path: Path) -> Parked:
    parked = open_parked(tmp_path)
    batch = diff(Content(), Content(lsn=1, now_ms=NOW, cars=dict(CARS)))
    batch.uniques[b"u" * 16] = Claim(b"row", NOW + 5)
    batch.outbox[b"key"] = b"row"
    parked.commit(batch)
    return parked


def found(parked: Parked, *, deep: bool = True) -> list[tuple[str, int | None]]:
    return [(problem.table, problem.serial) for problem in problems(parked, deep=deep)]


def change(parked: Parked, **parts: object) -> None:
    batch = idle_batch(parked, NOW)
    for name, value in parts.items():
        setattr(batch, name, value)
    parked.commit(batch)


def flip_first(parked: Parked, table: str) -> None:
    handle = getattr(parked._tables, table)
    with parked._environment.begin(write=True) as transaction:
        with transaction.cursor(handle) as cursor:
            cursor.first()
            key, value = cursor.item()
        transaction.put(key, value[:-1] + bytes([value[-1] ^ 1]), db=handle)


def test_nothing_is_found_in_a_sound_store(parked: Parked) -> None:
    assert found(parked) == []
    assert found(parked, deep=False) == []


@pytest.mark.parametrize(
    "table",
    ["agenda", "lanes", "waits", "lane_names", "unique_ends", "ended", "outbox", "listings"],
)
def test_a_bad_row_that_is_no_single_tickets_is_found_without_looking_deep(
    parked: Parked, table: str
) -> None:
    flip_first(parked, table)
    problems = found(parked, deep=False)
    assert {(table, None), (table, 4), (table, 7)} & set(problems)


@pytest.mark.parametrize("table", ["heads", "bodies", "history", "uniques"])
def test_a_bad_row_of_a_ticket_is_found_by_looking_deep(parked: Parked, table: str) -> None:
    flip_first(parked, table)
    assert found(parked, deep=False) == []
    assert table in [name for name, _ in found(parked)]


@pytest.mark.parametrize(
    ("parts", "expected"),
    [
        # a removal of nothing, a second entry of the same, one of a ticket that does not wait
        ({"agenda": [pack_entry(NOW + 7, 9, NOW, 1, NEGATIVE)]}, {("agenda", 9)}),
        ({"agenda": [CARS[2].entry(2)]}, {("agenda", 2)}),
        ({"agenda": [pack_entry(NOW, 5, NOW, 1)]}, {("agenda", 5)}),
        ({"agenda": [pack_entry(NOW, 99, NOW, 1)]}, {("agenda", 99)}),
        # two positions, a wrong one, none
        ({"agenda": [pack_entry(NOW + 8, 2, NOW + 6, 1)]}, {("agenda", 2)}),
        ({"leaves": [CARS[2].entry(2, NEGATIVE)]}, {("agenda", 2)}),
        ({"leaves": [CARS[3].entry(3, NEGATIVE)]}, {("agenda", 3)}),
        # in the agenda and in its lane
        ({"lane_rows": [CARS[2].entry(2)]}, {("agenda", 2)}),
        ({"agenda": [CARS[4].entry(4)]}, {("agenda", 4)}),
        # lanes
        ({"lane_rows": [pack_entry(NOW, 5, NOW, 1)]}, {("lanes", 5)}),
        ({"lane_rows": [pack_entry(NOW + 1, 4, NOW, 2)]}, {("lanes", 4), ("agenda", 4)}),
        ({"lane_rows": [pack_entry(NOW, 4, NOW, 7)]}, {("lanes", None), ("agenda", 4)}),
        # those that wait for keys
        ({"wait_rows": [("k", CARS[2].entry(2))]}, {("waits", 2), ("agenda", 2)}),
        ({"wait_rows": [("k", pack_entry(NOW, 5, NOW, 1))]}, {("waits", 5)}),
        ({"wait_rows": [("other", CARS[7].entry(7))]}, {("waits", 7), ("agenda", 7)}),
        ({"keyed_leaves": [("k", CARS[7].entry(7, NEGATIVE))]}, {("agenda", 7)}),
        # marks of expiry
        ({"leaves": [CARS[1].mark(1, NEGATIVE)]}, {("agenda", None)}),
        ({"agenda": [pack_entry(NOW, 2, NOW, 1, EXPIRY)]}, {("agenda", 2), ("agenda", None)}),
        # listings: not there, of another state, of no ticket, before and behind all that are there
        ({"unlisted": {CARS[2].listed_under: [2]}}, {("listings", 2)}),
        ({"listed": {CARS[5].listed_under: [2]}}, {("listings", 2)}),
        ({"listed": {CARS[2].listed_under: [0]}}, {("listings", 0)}),
        ({"listed": {CARS[2].listed_under: [99]}}, {("listings", 99)}),
        ({"listed": {b"s of nobody": [7]}}, {("listings", 7)}),
        # indexes
        ({"index_deletes": [CARS[2].index_keys(2)[0]]}, {("indexes", 2), ("indexes", None)}),
        ({"index_puts": [b"g\1" + bytes(8)]}, {("indexes", None)}),
        # counters, orphans, heads that cannot be read
        ({"counters": {("mail", 0): 3}}, {("meta", None)}),
        ({"bodies": {99: b"Pno head"}}, {("bodies", 99)}),
        ({"history": {(99, 1): b"no head"}}, {("history", 99)}),
    ],
)
def test_tables_that_disagree_are_found(
    parked: Parked, parts: dict[str, object], expected: set[tuple[str, int | None]]
) -> None:
    change(parked, **parts)
    assert set(found(parked)) == expected


def test_a_head_that_cannot_be_read_is_told_from_one_that_fails_its_checksum(
    parked: Parked,
) -> None:
    change(parked, heads={2: b"no json"})
    texts = {problem.text for problem in problems(parked) if problem.table == "heads"}
    assert texts == {"the head cannot be read"}


def test_a_wrong_count_of_rows_per_lane_is_found(parked: Parked) -> None:
    key = b"lane_rows"
    with parked._environment.begin(write=True) as transaction:
        transaction.put(key, seal(key, b"\x91\x92\x01\x05"), db=parked._tables.meta)
    assert found(parked, deep=False) == [("meta", None)]
    with parked._environment.begin(write=True) as transaction:
        transaction.put(key, b"worse", db=parked._tables.meta)
    assert found(parked) == [("meta", None)]


def test_tickets_that_swapped_their_entries_are_told_one_by_one_in_slices(
    parked: Parked, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As many entries as tickets, and each ticket searched for in a pass of its own."""
    monkeypatch.setattr("parkade.store.verify.LOST_SERIALS", 1)
    change(
        parked,
        leaves=[CARS[2].entry(2, NEGATIVE)],
        agenda=[pack_entry(NOW + 1, 1, NOW + 5, 1)],
    )
    texts = [(problem.serial, problem.text) for problem in problems(parked)]
    assert (2, "a pending ticket has no entry and no row") in texts
    assert (1, "a pending ticket has 2 places") in texts


def test_any_walk_is_the_same_walk_twice(parked: Parked) -> None:
    flip_first(parked, "heads")
    walk: Callable[[], list[tuple[str, int | None]]] = lambda: found(parked)  # noqa: E731
    assert walk() == walk() != []


def test_a_store_at_another_lsn_is_walked_as_it_was_committed(parked: Parked) -> None:
    parked.commit(Batch(7, 2, NOW, NOW, parked.counters))
    assert found(parked) == []
