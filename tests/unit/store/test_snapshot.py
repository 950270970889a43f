"""Reading a store: rows, listings, lanes, what has ended, and rows that fail their checksum."""

from pathlib import Path

import pytest

from kit.parking import (
    DONE,
    PENDING,
    Content,
    diff,
    digest,
    idle_batch,
    index_prefix,
    open_parked,
    pending,
    problems,
)
from parkade.store.batch import Batch, Claim, pack_ended
from parkade.store.ended import Ended, EndedAt
from parkade.store.entry import pack_entry
from parkade.store.errors import Damage
from parkade.store.parked import Parked
from parkade.store.rows import RowDamaged, seal, unseal

NOW = 5 << 26


def flip(parked: Parked, table: str, key: bytes) -> None:
    """One wrong bit in a stored row."""
    handle = getattr(parked._tables, table)
    with parked._environment.begin(write=True) as transaction:
        value = transaction.get(key, db=handle)
        assert value is not None
        transaction.put(key, bytes([value[0] ^ 1]) + value[1:], db=handle)


def key_of(serial: int) -> bytes:
    return serial.to_bytes(8, "big")


def with_tickets(directory: Path, count: int) -> Parked:
    parked = open_parked(directory)
    cars = {serial: pending(NOW + serial) for serial in range(1, count + 1)}
    parked.commit(diff(Content(), Content(lsn=1, now_ms=NOW, cars=cars)))
    return parked


def test_a_row_is_bound_to_its_key_by_its_checksum() -> None:
    stored = seal(b"key", b"value")
    assert unseal(b"key", stored) == b"value"
    assert unseal(b"kex", stored) is None
    for at in range(len(stored)):
        wrong = bytearray(stored)
        wrong[at] ^= 0x10
        assert unseal(b"key", bytes(wrong)) is None
    assert unseal(b"key", b"") is None


def test_a_damaged_head_is_one_ticket_and_hides_no_other(tmp_path: Path) -> None:
    parked = with_tickets(tmp_path, 5)
    flip(parked, "heads", key_of(3))
    with parked.snapshot() as snapshot:
        with pytest.raises(RowDamaged) as caught:
            snapshot.head(3)
        rows = snapshot.heads([5, 4, 3, 2, 1, 99, 1])
        assert snapshot.body(3) == (ord("P"), b"payload")
    assert (caught.value.serial, caught.value.table) == (3, "heads")
    assert (sorted(rows.found), rows.damaged) == ([1, 2, 4, 5], [3])
    found = [(problem.table, problem.serial) for problem in problems(parked)]
    assert ("heads", 3) in found
    assert {serial for _, serial in found} == {3, None}


def test_a_damaged_body_or_attempt_or_unique_row_says_so(tmp_path: Path) -> None:
    parked = with_tickets(tmp_path, 2)
    batch = idle_batch(parked, NOW)
    batch.history[1, 1] = b"attempt 1"
    batch.uniques[b"u" * 16] = Claim(b"row", -1)
    parked.commit(batch)
    flip(parked, "bodies", key_of(2))
    flip(parked, "history", key_of(1) + key_of(1))
    flip(parked, "uniques", b"u" * 16)
    with parked.snapshot() as snapshot:
        with pytest.raises(RowDamaged, match="bodies"):
            snapshot.body(2)
        with pytest.raises(RowDamaged, match="history"):
            snapshot.history(1)
        with pytest.raises(RowDamaged, match="uniques") as caught:
            snapshot.unique(b"u" * 16)
        assert snapshot.bodies([1, 2]) == ({1: b"Ppayload"}, [2])
    assert caught.value.serial is None


def test_rows_that_belong_to_no_single_ticket_are_damage_of_the_store(tmp_path: Path) -> None:
    parked = with_tickets(tmp_path, 2)
    batch = idle_batch(parked, NOW)
    batch.lane_rows.append(pack_entry(NOW, 1, NOW, 1))
    batch.ended.append(pack_ended(DONE, digest("mail"), NOW, 1))
    batch.outbox[b"k"] = b"row"
    parked.commit(batch)
    flip(parked, "lanes", (1).to_bytes(4, "big") + key_of(NOW) + key_of(1))
    flip(parked, "lane_names", (2).to_bytes(4, "big"))
    flip(parked, "outbox", b"k")
    flip(parked, "meta", b"counters")
    with parked.snapshot() as snapshot:
        with pytest.raises(Damage, match="lanes"):
            snapshot.lane_rows(1, limit=10)
        with pytest.raises(Damage, match="lane_names"):
            snapshot.lane_names()
        with pytest.raises(Damage, match="outbox"):
            snapshot.outbox(limit=10)
        with pytest.raises(Damage, match="meta"):
            snapshot.counters()


def test_a_page_is_newest_first_and_goes_on_from_any_serial(tmp_path: Path) -> None:
    parked = with_tickets(tmp_path, 50)
    prefix = index_prefix(PENDING)
    with parked.snapshot() as snapshot:
        assert snapshot.page(prefix, limit=3) == [50, 49, 48]
        assert snapshot.page(prefix, limit=3, before=48) == [47, 46, 45]
        assert snapshot.page(prefix, limit=3, before=2) == [1]
        assert snapshot.page(prefix, limit=3, before=1) == []
        assert snapshot.page(prefix, limit=3, before=1_000) == [50, 49, 48]
        assert snapshot.page(prefix, limit=3, after=0) == [1, 2, 3]
        assert snapshot.page(prefix, limit=3, after=3) == [4, 5, 6]
        assert snapshot.page(prefix, limit=3, after=49) == [50]
        assert snapshot.page(prefix, limit=3, after=50) == []
        assert snapshot.page(prefix, limit=0) == []
        assert snapshot.page(b"nothing like it", limit=3) == []
        assert snapshot.page(b"nothing like it", limit=3, before=5) == []
        assert snapshot.page(b"nothing like it", limit=3, after=5) == []


def test_an_index_keeps_serials_that_come_out_of_order_and_lets_each_go(tmp_path: Path) -> None:
    parked = open_parked(tmp_path)
    put: list[int] = []
    for lsn, serials in enumerate((range(100, 200), range(0, 50), range(150, 250, 7), [60]), 1):
        batch = Batch(lsn, 1, NOW, NOW, {})
        batch.index_puts += [b"k" + key_of(serial) for serial in serials]
        parked.commit(batch)
        put += serials
    with parked.snapshot() as snapshot:
        assert snapshot.page(b"k", limit=1_000, after=-1) == sorted(set(put))
    batch = Batch(5, 1, NOW, NOW, {})
    batch.index_deletes += [b"k" + key_of(serial) for serial in (0, 60, 249, 777)]
    parked.commit(batch)
    with parked.snapshot() as snapshot:
        left = snapshot.page(b"k", limit=1_000, after=-1)
    assert left == sorted(set(put) - {0, 60, 249})


def test_the_rows_of_a_lane_come_in_order_and_go_on_after_any_rank(tmp_path: Path) -> None:
    parked = open_parked(tmp_path)
    batch = Batch(1, 1, NOW, NOW, {}, lane_names={1: b"a", 2: b"b"})
    ranks = [(NOW + first % 3, serial) for serial, first in enumerate(range(9), 1)]
    batch.lane_rows += [pack_entry(NOW + 9, serial, first, 1) for first, serial in ranks]
    batch.lane_rows.append(pack_entry(NOW, 77, NOW, 2))
    parked.commit(batch)
    ranks.sort()
    with parked.snapshot() as snapshot:
        rows = snapshot.lane_rows(1, limit=4)
        assert [row[:2] for row in rows] == ranks[:4]
        assert {row.due_ms for row in rows} == {NOW + 9}
        rows = snapshot.lane_rows(1, limit=4, after=ranks[3])
        assert [row[:2] for row in rows] == ranks[4:8]
        assert [row[:2] for row in snapshot.lane_rows(1, limit=4, after=ranks[8])] == []
        assert snapshot.lane_rows(3, limit=4) == []
        assert snapshot.lane_row_counts() == {1: 9, 2: 1}


def test_those_that_wait_for_a_key_come_in_order_and_no_other_key_is_taken_for_it(
    tmp_path: Path,
) -> None:
    parked = open_parked(tmp_path)
    batch = Batch(1, 1, NOW, NOW, {}, lane_names={1: b"a", 2: b"b"})
    keys = ("a", "ab", "b", "a" * 255)
    for lane in (1, 2):
        for key in keys:
            for serial in range(1, 4):
                entry = pack_entry(NOW + 9, serial + 10 * lane, NOW - serial, lane)
                batch.wait_rows.append((key, entry))
    parked.commit(batch)
    with parked.snapshot() as snapshot:
        assert sorted(snapshot.wait_queues()) == sorted((key, n) for key in keys for n in (1, 2))
        assert snapshot.wait_row_count() == parked.wait_rows == 24
        rows = snapshot.wait_rows("a", 2, limit=9)
        assert rows == [(NOW - 3, 23, NOW + 9), (NOW - 2, 22, NOW + 9), (NOW - 1, 21, NOW + 9)]
        assert snapshot.wait_rows("a", 2, limit=1) == rows[:1]
        assert snapshot.wait_rows("a", 2, limit=9, after=(NOW - 3, 23)) == rows[1:]
        assert snapshot.wait_rows("a", 3, limit=9) == snapshot.wait_rows("c", 1, limit=9) == []


def end(parked: Parked, ended: list[tuple[int, int]], task: str = "mail") -> None:
    """Tickets (serial, finished) that are there and ended."""
    batch = idle_batch(parked, NOW)
    batch.heads |= {serial: b"head" for serial, _ in ended}
    batch.ended += [pack_ended(DONE, digest(task), finished, serial) for serial, finished in ended]
    parked.commit(batch)


def ended(parked: Parked, before_ms: int, limit: int = 100, after: EndedAt | None = None) -> Ended:
    with parked.snapshot() as snapshot:
        return snapshot.ended().before(DONE, digest("mail"), before_ms, limit=limit, after=after)


def test_retention_meets_ended_tickets_as_they_ended_and_no_younger_one(tmp_path: Path) -> None:
    parked = open_parked(tmp_path)
    hour = 1 << 22
    end(parked, [(1, NOW + 3 * hour), (2, NOW + 5), (3, NOW + 1)])
    end(parked, [(4, NOW + 6), (5, NOW + hour)])
    end(parked, [(6, NOW)], task="bill")
    assert ended(parked, NOW << 1).serials == [3, 2, 4, 5, 1]
    assert ended(parked, NOW + 5) == ([3], [], None, NOW + 5)
    assert ended(parked, NOW + 1) == ([], [], None, NOW + 1)
    assert ended(parked, NOW + hour + 1).serials == [3, 2, 4, 5]
    with parked.snapshot() as snapshot:
        nobody = snapshot.ended().before(DONE, digest("ship"), NOW << 1, limit=9)
    assert nobody == ([], [], None, None)


def test_retention_goes_on_where_it_was_and_tells_what_is_spent(tmp_path: Path) -> None:
    parked = open_parked(tmp_path)
    for first in (1, 4, 7):
        end(parked, [(serial, NOW + serial) for serial in range(first, first + 3)])
    got = ended(parked, NOW << 1, limit=4)
    assert (got.serials, len(got.spent), got.first_ms) == ([1, 2, 3, 4], 1, None)
    rest = ended(parked, NOW << 1, after=got.after)
    assert (rest.serials, len(rest.spent), rest.after) == ([5, 6, 7, 8, 9], 2, None)
    assert len({*got.spent, *rest.spent}) == 3


def test_what_was_forgotten_is_not_met_again_and_its_blobs_go_when_they_are_said_to_be_spent(
    tmp_path: Path,
) -> None:
    parked = open_parked(tmp_path)
    end(parked, [(serial, NOW + serial) for serial in range(1, 6)])
    end(parked, [(serial, NOW + serial) for serial in range(6, 9)])
    assert parked.stat().entries["ended"] == 2
    for forgotten, blobs in (((1, 2), 2), ((3, 4, 5), 1), ((6, 7, 8), 0)):
        batch = idle_batch(parked, NOW)
        batch.spent = ended(parked, NOW << 1, limit=len(forgotten)).spent
        batch.heads |= dict.fromkeys(forgotten)
        parked.commit(batch)
        assert ended(parked, NOW << 1).serials == list(range(forgotten[-1] + 1, 9))
        assert parked.stat().entries["ended"] == blobs


def test_blobs_that_nobody_freed_are_found_up_to_the_first_that_has_something_left(
    tmp_path: Path,
) -> None:
    parked = open_parked(tmp_path)
    for task in ("mail", "bill", "ship"):
        first = ord(task[0])
        for serial in range(first, first + 3):
            end(parked, [(serial, NOW + serial)], task)
    batch = idle_batch(parked, NOW)
    # All of one task, the first of another, one in the middle of the third.
    gone = [*range(ord("m"), ord("m") + 3), ord("b"), ord("s") + 1]
    batch.heads |= dict.fromkeys(gone)
    parked.commit(batch)
    spent: list[bytes] = []
    after: bytes | None = b""
    while after is not None:
        with parked.snapshot() as snapshot:
            found, after = snapshot.ended().spent_fronts(after, 2)
        spent += found
    tasks = [key[1:9] for key in spent]
    assert sorted(tasks) == sorted([digest("mail")] * 3 + [digest("bill")])
