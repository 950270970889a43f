"""Bodies that are cut where the pages of the store end."""

from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kit.parking import (
    DONE,
    Content,
    check_content,
    diff,
    idle_batch,
    open_parked,
    pending,
    problems,
)
from parkade.store.bodies import CUT_BYTES_MIN, PageFill, cut_count, whole_bodies, whole_body
from parkade.store.copying import copy_store
from parkade.store.parked import Parked
from parkade.store.rows import RowDamaged, pack_serials, seal, seal_all
from parkade.store.walk import RowsOfTickets

NOW_MS = 5 << 26
PAGE_BYTES = 4096
ROOM_BYTES = PAGE_BYTES - 16
NODE_BYTES = 8 + 2  # what LMDB keeps of a row, beside key and value
COUNT = 200


def body(serial: int, size: int = 1_011) -> bytes:
    return b"P" + (b"%d " % serial * size)[:size]


def filled(parked: Parked, size: int = 1_011) -> Content:
    """A store of tickets of which nothing but the body is large."""
    cars = {serial: pending(NOW_MS + serial, body=body(serial, size)) for serial in range(1, COUNT)}
    now = Content(lsn=1, now_ms=NOW_MS, settled_ms=NOW_MS, cars=cars)
    parked.commit(diff(Content(), now))
    return now


def check(parked: Parked, content: Content) -> None:
    with parked.snapshot() as snapshot:
        check_content(snapshot, content)


def table_of(parked: Parked) -> tuple[dict[bytes, bytes], int]:
    """The rows of the table, and how many pages they take."""
    with parked.snapshot() as snapshot:
        table = snapshot.tables.bodies
        rows = {bytes(key): bytes(row) for key, row in snapshot.transaction.cursor(table)}
        return rows, snapshot.transaction.stat(table)["leaf_pages"]


def cut_keys(parked: Parked) -> list[bytes]:
    return [key for key, row in table_of(parked)[0].items() if len(key) == 8 and cut_count(row)]


@pytest.mark.parametrize("size", [300, 700, 1_011, 1_400, 2_100, 5_000])
def test_bodies_that_come_in_order_leave_hardly_a_hole_in_their_pages(
    tmp_path: Path, size: int
) -> None:
    parked = open_parked(tmp_path)
    now = filled(parked, size)
    rows, pages = table_of(parked)
    taken = sum(NODE_BYTES + len(key) + len(row) for key, row in rows.items())
    assert pages * ROOM_BYTES <= 1.03 * taken + 2 * ROOM_BYTES
    assert len(rows) > COUNT and taken < 1.1 * sum(len(car.body) + 30 for car in now.cars.values())
    check(parked, now)
    parked.close()


def test_small_bodies_and_very_large_ones_are_one_row_each(tmp_path: Path) -> None:
    for size in (CUT_BYTES_MIN - 2, 40_000):
        parked = open_parked(tmp_path / f"{size}")
        now = filled(parked, size)
        assert len(table_of(parked)[0]) == len(now.cars)
        check(parked, now)
        parked.close()


def test_what_is_cut_ends_whole(tmp_path: Path) -> None:
    parked = open_parked(tmp_path)
    now = filled(parked)
    assert cut_keys(parked)
    then = now.copy()
    then.lsn += 1
    for serial in range(1, COUNT):
        if serial % 3 == 0:
            del then.cars[serial]
        elif serial % 3 == 1:
            then.cars[serial] = pending(
                NOW_MS, state=DONE, place="", fence=1, finished_ms=NOW_MS, body=b"R1"
            )
        else:
            then.cars[serial] = then.cars[serial]._replace(body=body(serial, 1_600))
    parked.commit(diff(now, then))
    check(parked, then)
    assert not problems(parked)
    gone = then.copy()
    gone.lsn += 1
    gone.cars.clear()
    parked.commit(diff(then, gone))
    assert table_of(parked) == ({}, 0)
    parked.close()


def test_bodies_of_many_small_commits_are_all_there(tmp_path: Path) -> None:
    parked = open_parked(tmp_path)
    now = Content(lsn=1, now_ms=NOW_MS, settled_ms=NOW_MS)
    for serial in range(1, 60):
        then = now.copy()
        then.lsn += 1
        then.cars[serial] = pending(NOW_MS, body=body(serial, 37 * serial))
        parked.commit(diff(now, then))
        now = then
    check(parked, now)
    assert not problems(parked)
    parked.close()


@pytest.mark.parametrize("is_lost", [True, False])
def test_a_cut_body_without_its_rest_costs_its_ticket_alone(tmp_path: Path, is_lost: bool) -> None:
    parked = open_parked(tmp_path)
    now = filled(parked)
    key = cut_keys(parked)[5]
    serial = int.from_bytes(key, "big")
    with parked._environment.begin(write=True) as transaction:
        if is_lost:
            assert transaction.delete(key + b"\1", db=parked._tables.bodies)
        else:
            transaction.put(key + b"\1", b"another piece", db=parked._tables.bodies)
    with parked.snapshot() as snapshot:
        with pytest.raises(RowDamaged) as caught:
            snapshot.body(serial)
        assert caught.value.serial == serial
        rows = snapshot.bodies(range(COUNT))
        assert rows.damaged == [serial]
        assert rows.found == {s: car.body for s, car in now.cars.items() if s != serial}
    assert {(found.table, found.serial) for found in problems(parked)} == {("bodies", serial)}
    parked.close()


def test_a_piece_that_belongs_to_no_body_is_told(tmp_path: Path) -> None:
    parked = open_parked(tmp_path)
    filled(parked)
    key = cut_keys(parked)[0]
    with parked._environment.begin(write=True) as transaction:
        extra = key + b"\2"
        transaction.put(extra, seal(extra, b"\xffmore"), db=parked._tables.bodies)
    (problem,) = problems(parked)
    assert problem.table == "bodies" and "follows no other" in problem.text
    parked.close()


def test_a_copy_and_a_walk_have_every_row_of_cut_bodies(tmp_path: Path) -> None:
    parked = open_parked(tmp_path / "store")
    now = filled(parked)
    with parked.snapshot() as snapshot:
        of_tickets = RowsOfTickets(snapshot)
        for serial, car in now.cars.items():
            assert of_tickets.of(serial).body == car.body
        of_tickets.check_all_reached()
        copy_store(snapshot, str(tmp_path / "copy"))
    copied = open_parked(tmp_path / "copy", is_new=False)
    assert table_of(copied)[0] == table_of(parked)[0]
    check(copied, now)
    copied.close()
    parked.close()


def test_fresh_tickets_are_cut_as_others_are(tmp_path: Path) -> None:
    parked = open_parked(tmp_path)
    batch = idle_batch(parked, NOW_MS)
    batch.fresh_keys = pack_serials(list(range(1, COUNT)))
    batch.fresh_heads = [b"head"] * (COUNT - 1)
    batch.fresh_bodies = [body(serial)[1:] for serial in range(1, COUNT)]
    batch.fresh_kind = b"P"
    parked.commit(batch)
    assert cut_keys(parked)
    with parked.snapshot() as snapshot:
        assert snapshot.bodies(range(COUNT)).found == {
            serial: body(serial) for serial in range(1, COUNT)
        }
    parked.close()


@given(
    st.integers(0, ROOM_BYTES // 2),
    st.lists(st.binary(max_size=30).flatmap(lambda b: st.integers(0, 700).map(lambda n: b * n))),
    st.booleans(),
)
def test_whatever_is_cut_can_be_put_together(
    room: int, contents: list[bytes], is_of_one_kind: bool
) -> None:
    fill = PageFill(PAGE_BYTES)
    fill.room = 2 * room
    serials = list(range(1, len(contents) + 1))
    bodies = [b"R" + content for content in contents]
    of_kind = (contents, b"R") if is_of_one_kind else (bodies, b"")
    keys, leads, pieces = fill.cut(pack_serials(serials), *of_kind)
    assert keys == sorted(set(keys))
    stored = dict(zip(keys, seal_all(keys, pieces, leads), strict=True))
    rows = [lead + piece for lead, piece in zip(leads, pieces, strict=True)]
    assert dict(whole_bodies(stored.items())) == dict(
        zip(pack_serials(serials), bodies, strict=True)
    )
    backward = whole_bodies(reversed(stored.items()))
    assert [found for _, found in backward] == bodies[::-1]
    for key in keys:
        if len(key) > 8:
            assert whole_body(key[:8], rows[keys.index(key[:8])], lambda _: None) is None
    assert all(len(row) <= 2_018 for row in rows if CUT_BYTES_MIN <= len(row) <= 16_384)
