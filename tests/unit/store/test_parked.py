"""The store of a shard: whose it is, what a commit changes, growth, what a failure is called."""

import errno
import threading
from pathlib import Path

import lmdb
import pytest

from kit.lmdb_memory import CommitFailure, MemoryFiles, Shelf
from kit.parking import (
    DONE,
    PENDING,
    RUNNING,
    SALT,
    Car,
    Content,
    check_content,
    diff,
    idle_batch,
    open_parked,
    pending,
    problems,
    sweep_all,
)
from parkade.store import writer
from parkade.store.batch import Batch, Claim
from parkade.store.entry import NEGATIVE, pack_entry, pack_lane_keys
from parkade.store.errors import Damage, FormatTooNew, NoRoom, ReadFailed, WriteFailed
from parkade.store.meta import FORMAT, IDENTITY, pack_identity
from parkade.store.parked import Parked
from parkade.store.rows import pack_serials, seal
from parkade.store.writer import CLAIM_END_BITS_MIN

NOW = 5 << 26
CLAIM_BUCKET = 1 << 22


def lmdb_error(kind: type[lmdb.Error], code: int) -> lmdb.Error:
    """An error as LMDB raises it: its own constructor leaves the code out."""
    error = kind("mdb_txn_commit")
    error.code = code  # type: ignore[misc]
    return error


def content(cars: dict[int, Car] | None = None, lsn: int = 1) -> Content:
    return Content(lsn=lsn, now_ms=NOW, settled_ms=NOW, cars=cars or {})


def filled(parked: Parked, count: int = 20, size: int = 100) -> Content:
    """A store with tickets of every kind, and what is in it."""
    cars = {serial: pending(NOW + serial, body=b"P" + b"x" * size) for serial in range(1, count)}
    cars[count] = pending(NOW, 2, state=RUNNING, place="", fence=2)
    cars[count + 1] = pending(NOW, 2, state=DONE, place="", fence=1, finished_ms=NOW, body=b"")
    now = content(cars)
    parked.commit(diff(Content(), now))
    return now


def test_a_new_store_is_empty_and_at_lsn_nought(tmp_path: Path) -> None:
    parked = open_parked(tmp_path / "deep" / "store")
    assert (parked.lsn, parked.epoch, parked.settled_ms) == (0, 0, 0)
    assert (parked.counters, parked.lane_rows) == ({}, {})
    assert sweep_all(parked, NOW) == []
    assert problems(parked) == []


def test_a_commit_is_there_after_closing_and_opening(tmp_path: Path) -> None:
    parked = open_parked(tmp_path, is_new=True, sync=True)
    now = filled(parked)
    parked.close()
    again = open_parked(tmp_path, is_new=False)
    assert (again.lsn, again.epoch, again.settled_ms) == (1, 1, NOW)
    assert again.counters == now.counters()
    with again.snapshot() as snapshot:
        assert snapshot.lane_names() == {1: b"mail", 2: b"bill", 3: b"ship"}
        check_content(snapshot, now)


def test_making_a_store_twice_keeps_what_is_in_it(tmp_path: Path) -> None:
    """A process killed after the store was made and before the manifest makes it again."""
    parked = open_parked(tmp_path)
    now = filled(parked)
    parked.close()
    again = open_parked(tmp_path, is_new=True)
    with again.snapshot() as snapshot:
        check_content(snapshot, now)


def test_a_store_that_was_made_half_is_made_whole(tmp_path: Path) -> None:
    (tmp_path / "data.mdb").touch()
    parked = open_parked(tmp_path)
    assert parked.lsn == 0
    parked.close()
    with lmdb.open(str(tmp_path), max_dbs=32) as environment:
        meta = environment.open_db(b"meta")
        with environment.begin(write=True) as transaction:
            transaction.drop(meta)
    with pytest.raises(Damage, match="table is missing"):
        open_parked(tmp_path, is_new=False)
    assert open_parked(tmp_path).lsn == 0


def test_another_directory_or_shard_is_refused_as_damage(tmp_path: Path) -> None:
    open_parked(tmp_path).close()
    with pytest.raises(Damage, match="salt"):
        open_parked(tmp_path, is_new=False, salt=b"other")
    with pytest.raises(Damage, match="belongs to shard 0, not to shard 1"):
        open_parked(tmp_path, is_new=False, shard=1)
    with pytest.raises(Damage, match="salt"):
        open_parked(tmp_path, is_new=True, salt=b"other")
    open_parked(tmp_path, is_new=False)


def plant_identity(directory: Path, row: bytes) -> None:
    with lmdb.open(str(directory), max_dbs=32) as environment:
        meta = environment.open_db(b"meta")
        with environment.begin(write=True) as transaction:
            transaction.put(IDENTITY, row, db=meta)


def test_a_later_format_is_refused_by_its_number(tmp_path: Path) -> None:
    open_parked(tmp_path).close()
    row = bytearray(pack_identity(SALT, 0) + b"what a later format adds")
    row[8:12] = (FORMAT + 1).to_bytes(4, "big")
    plant_identity(tmp_path, seal(IDENTITY, bytes(row)))
    with pytest.raises(FormatTooNew) as caught:
        open_parked(tmp_path, is_new=False)
    assert (caught.value.found, caught.value.supported) == (FORMAT + 1, FORMAT)


def test_a_store_whose_identity_is_unreadable_is_damage(tmp_path: Path) -> None:
    open_parked(tmp_path).close()
    plant_identity(tmp_path, b"x" * 25)
    with pytest.raises(Damage, match="identity"):
        open_parked(tmp_path, is_new=False)
    foreign = b"elsewhat" + pack_identity(SALT, 0)[8:]
    plant_identity(tmp_path, seal(IDENTITY, foreign))
    with pytest.raises(Damage, match="no store of parkade"):
        open_parked(tmp_path, is_new=False)


def test_a_missing_file_is_damage_and_none_is_made_in_its_place(tmp_path: Path) -> None:
    for directory in (tmp_path, tmp_path / "nowhere"):
        with pytest.raises(Damage, match="missing"):
            open_parked(directory, is_new=False)
    assert list(tmp_path.iterdir()) == []


def test_a_batch_from_before_the_stores_lsn_is_refused(tmp_path: Path) -> None:
    parked = open_parked(tmp_path)
    filled(parked)
    with pytest.raises(ValueError, match="LSN 1"):
        parked.commit(Batch(0, 1, NOW, NOW, {}))


def test_a_ticket_leaves_its_lane_if_it_has_a_row_there_and_else_the_agenda(
    tmp_path: Path,
) -> None:
    parked = open_parked(tmp_path)
    cars = {1: pending(NOW, place="lane"), 2: pending(NOW), 3: pending(NOW, place="lane")}
    now = content(cars)
    parked.commit(diff(Content(), now))
    assert parked.lane_rows == {1: 2}
    gone = now.copy()
    gone.lsn = 2
    gone.cars[1] = gone.cars[1]._replace(state=RUNNING, place="")
    gone.cars[2] = gone.cars[2]._replace(state=RUNNING, place="")
    parked.commit(diff(now, gone))
    assert parked.lane_rows == {1: 1}
    assert sweep_all(parked, NOW + 10) == []
    assert problems(parked) == []


def test_a_parked_ticket_moves_from_the_agenda_to_its_lane_without_its_head(
    tmp_path: Path,
) -> None:
    parked = open_parked(tmp_path)
    now = content({1: pending(NOW), 2: pending(NOW)})
    parked.commit(diff(Content(), now))
    batch = idle_batch(parked, NOW)
    batch.leaves.append(now.cars[1].entry(1, NEGATIVE))
    batch.lane_rows.append(now.cars[1].entry(1))
    parked.commit(batch)
    assert parked.lane_rows == {1: 1}
    assert [serial for _, serial, *_ in sweep_all(parked, NOW)] == [2]
    assert problems(parked) == []


def test_a_row_of_a_lane_that_is_put_twice_is_one_row(tmp_path: Path) -> None:
    parked = open_parked(tmp_path)
    for _ in range(2):
        batch = idle_batch(parked, NOW)
        batch.lane_rows += [pack_entry(NOW, 5, NOW, 1), pack_entry(NOW, 6, NOW, 1)]
        parked.commit(batch)
    assert parked.lane_rows == {1: 2}


def test_fresh_rows_of_a_lane_are_counted_beside_those_that_another_lane_loses(
    tmp_path: Path,
) -> None:
    parked = open_parked(tmp_path)
    now = filled(parked)
    row = now.cars[1]._replace(place="lane", first_due_ms=NOW)
    moved = content({**now.cars, 1: row}, lsn=2)
    parked.commit(diff(now, moved))
    left = {serial: car for serial, car in moved.cars.items() if car.lane_number == 2}
    batch = diff(moved, content(left, lsn=3))
    batch.fresh_keys = pack_serials([90, 91])
    batch.fresh_heads, batch.fresh_bodies = [b"head"] * 2, [b"one", b"two"]
    batch.fresh_kind = b"P"
    batch.fresh_lane_keys = pack_lane_keys(2, [NOW + 3, NOW + 2], [90, 91])
    parked.commit(batch)
    assert parked.lane_rows == {2: 2}
    with parked.snapshot() as snapshot:
        assert snapshot.lane_rows(2, limit=9) == [(NOW + 2, 91, NOW + 2), (NOW + 3, 90, NOW + 3)]
        assert snapshot.bodies([90, 91]).found == {90: b"Pone", 91: b"Ptwo"}
        assert snapshot.idle_lanes() == {1, 3}


def test_a_deleted_head_takes_body_and_history_with_it(tmp_path: Path) -> None:
    parked = open_parked(tmp_path)
    now = filled(parked)
    gone = now.copy()
    gone.lsn = 2
    for serial in (5, 20, 21):
        del gone.cars[serial]
    parked.commit(diff(now, gone))
    with parked.snapshot() as snapshot:
        check_content(snapshot, gone)
        assert (snapshot.head(20), snapshot.body(20), snapshot.history(20)) == (None, None, [])
    assert problems(parked) == []


def test_a_unique_row_goes_once_its_time_is_over_on_the_settled_clock(tmp_path: Path) -> None:
    parked = open_parked(tmp_path)
    ends = {b"never".ljust(16): -1, b"soon".ljust(16): NOW + 5, b"late".ljust(16): NOW << 1}
    batch = Batch(1, 1, NOW, NOW, {})
    batch.uniques |= {name: Claim(b"row of " + name, until) for name, until in ends.items()}
    parked.commit(batch)

    def there() -> list[str]:
        with parked.snapshot() as snapshot:
            return [name.decode().strip() for name in ends if snapshot.unique(name) is not None]

    assert there() == ["never", "soon", "late"]
    parked.commit(Batch(1, 1, NOW, NOW + 5, {}))
    assert there() == ["never", "soon", "late"]  # a bucket of time goes as a whole
    parked.commit(Batch(1, 1, NOW << 2, NOW + CLAIM_BUCKET, {}))
    assert there() == ["never", "late"]
    parked.commit(Batch(1, 1, NOW << 2, NOW << 2, {}))
    assert there() == ["never"]
    assert parked.stat().entries["unique_ends"] == 0


def test_names_go_as_fast_as_they_come_and_stay_no_minute_past_their_end(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(writer, "CLAIM_ENDS_MAX", 10)
    parked = open_parked(tmp_path)
    for commit in range(8):
        now_ms = NOW + commit * (1 << CLAIM_END_BITS_MIN)
        batch = Batch(commit + 1, 1, now_ms, now_ms, {})
        names = [(commit * 300 + n).to_bytes(16, "big") for n in range(300)]
        batch.uniques |= {name: Claim(b"row", now_ms + 1) for name in names}
        parked.commit(batch)
        assert parked.stat().entries["uniques"] <= 600


def test_a_unique_name_that_was_claimed_again_outlives_its_former_end(tmp_path: Path) -> None:
    parked = open_parked(tmp_path)
    name = b"n" * 16
    for until_ms, row in ((NOW + 5, b"first"), (NOW << 2, b"second")):
        batch = Batch(1, 1, NOW, NOW, {})
        batch.uniques[name] = Claim(row, until_ms)
        parked.commit(batch)
    parked.commit(Batch(1, 1, NOW, NOW << 1, {}))
    with parked.snapshot() as snapshot:
        assert snapshot.unique(name) == b"second"


@pytest.mark.parametrize("point", ["begin", "tickets", "agenda", "before_commit"])
def test_after_a_failed_commit_nothing_of_the_batch_is_there(tmp_path: Path, point: str) -> None:
    failing = [point]

    def hook(reached: str) -> None:
        if failing == [reached]:
            raise OSError(errno.EIO, "planted")

    failing.clear()
    parked = open_parked(tmp_path, commit_hook=hook, free_bytes=lambda path: 1 << 40)
    now = filled(parked)
    more = now.copy()
    more.lsn = 2
    more.cars[99] = pending(NOW + 3, 3)
    del more.cars[1]
    batch = diff(now, more)
    failing.append(point)
    with pytest.raises(WriteFailed):
        parked.commit(batch)
    assert (parked.lsn, parked.counters) == (1, now.counters())
    with parked.snapshot() as snapshot:
        check_content(snapshot, now)
    assert problems(parked) == []
    failing.clear()
    assert parked.commit(batch).lsn == 2
    with parked.snapshot() as snapshot:
        check_content(snapshot, more)


@pytest.mark.parametrize(
    ("error", "free_bytes", "expected"),
    [
        (OSError(errno.ENOSPC, "full"), 1 << 40, NoRoom),
        (OSError(errno.EDQUOT, "quota"), 1 << 40, NoRoom),
        (OSError(errno.EIO, "unclear"), 100, NoRoom),
        (OSError(errno.EIO, "unclear"), 1 << 40, WriteFailed),
        (OSError(errno.EROFS, "read-only"), 100, WriteFailed),
        (lmdb_error(lmdb.Error, errno.ENOSPC), 1 << 40, NoRoom),
        (lmdb_error(lmdb.Error, errno.EIO), 100, NoRoom),
        (lmdb_error(lmdb.DiskError, errno.EIO), 1 << 40, WriteFailed),
        (lmdb_error(lmdb.CorruptedError, -30796), 1 << 40, Damage),
        (lmdb_error(lmdb.PanicError, -30795), 1 << 40, WriteFailed),
    ],
)
def test_free_space_tells_a_full_disk_from_a_broken_one(
    tmp_path: Path, error: Exception, free_bytes: int, expected: type[Exception]
) -> None:
    def fail(point: str) -> None:
        raise error

    parked = open_parked(tmp_path, commit_hook=fail, free_bytes=lambda path: free_bytes)
    with pytest.raises(expected):
        parked.commit(Batch(1, 1, NOW, NOW, {}))
    assert parked.lsn == 0


@pytest.mark.parametrize(("how", "expected"), [("before", NoRoom), ("after", WriteFailed)])
def test_a_commit_without_room_that_was_done_is_not_told_as_one_to_try_again(
    how: CommitFailure, expected: type[Exception]
) -> None:
    shelf = Shelf()
    parked = open_parked("/store", files=MemoryFiles(shelf))
    now = filled(parked)
    more = now.copy()
    more.lsn = 2
    del more.cars[1]
    shelf.free_bytes = 0
    shelf.fail_commit = lambda path: (how, errno.ENOSPC)
    with pytest.raises(expected):
        parked.commit(diff(now, more))


def test_the_map_grows_before_it_is_full(tmp_path: Path) -> None:
    parked = open_parked(tmp_path, map_bytes=1 << 20)
    old = Content()
    has_grown = []
    for lsn in range(1, 30):
        now = old.copy()
        now.lsn = lsn
        now.cars |= {lsn * 100 + n: pending(NOW, body=b"P" + b"x" * 900) for n in range(100)}
        has_grown.append(parked.commit(diff(old, now)).has_grown)
        stat = parked.stat()
        assert stat.used_bytes < 0.8 * stat.map_bytes
        old = now
    assert 2 <= sum(has_grown) <= 5
    with parked.snapshot() as snapshot:
        check_content(snapshot, old)


def test_a_batch_larger_than_the_map_is_committed_at_once(tmp_path: Path) -> None:
    parked = open_parked(tmp_path, map_bytes=1 << 20)
    now = content({n: pending(NOW, body=b"P" + b"x" * 9_000) for n in range(1, 500)})
    assert parked.commit(diff(Content(), now)).has_grown
    with parked.snapshot() as snapshot:
        check_content(snapshot, now)
    parked.close()
    again = open_parked(tmp_path, is_new=False, map_bytes=1 << 20)
    with again.snapshot() as snapshot:
        check_content(snapshot, now)


def test_a_commit_that_fills_the_map_is_made_once_more_in_a_larger_one(tmp_path: Path) -> None:
    planted = [lmdb.MapFullError("planted")]

    def hook(point: str) -> None:
        if point == "agenda" and planted:
            raise planted.pop()

    parked = open_parked(tmp_path, commit_hook=hook)
    before = parked.stat().map_bytes
    filled(parked)
    assert parked.lsn == 1
    assert parked.stat().map_bytes == 2 * before


def test_of_stores_with_one_turn_one_puts_rows_at_a_time_and_no_other_waits_for_its_sync(
    tmp_path: Path,
) -> None:
    turn, seen = threading.Lock(), list[tuple[str, bool]]()
    failing: list[str] = []

    def hook(point: str) -> None:
        seen.append((point, turn.locked()))
        if failing == [point]:
            raise OSError(errno.EIO, "planted")

    stores = [
        open_parked(tmp_path / name, commit_hook=hook, free_bytes=lambda path: 1 << 40, turn=turn)
        for name in "ab"
    ]
    for store in stores:
        filled(store)
    assert seen == 2 * [
        ("begin", True), ("tickets", True), ("agenda", True), ("before_commit", False),
    ]  # fmt: skip
    failing.append("tickets")
    with pytest.raises(WriteFailed):
        filled(stores[0])
    assert not turn.locked()


def test_a_map_that_finds_no_addresses_is_a_failed_write_and_the_store_opens_again(
    tmp_path: Path,
) -> None:
    is_planted = False

    def hook(point: str) -> None:
        if point == "agenda" and is_planted:
            raise lmdb.MapFullError("planted")

    parked = open_parked(tmp_path, map_bytes=1 << 20, commit_hook=hook)
    now = filled(parked)
    later = content({1: pending(NOW, 2, fence=7)}, lsn=2)
    is_planted = True
    codes: list[int] = []
    while errno.ENOMEM not in codes and len(codes) < 64:  # it doubles each time
        with pytest.raises(WriteFailed) as failed:
            parked.commit(diff(now, later))
        codes.append(failed.value.code)
    assert codes[-1] == errno.ENOMEM
    is_planted = False
    parked.reopen()
    assert parked.lsn == now.lsn
    parked.commit(diff(now, later))
    with parked.snapshot() as snapshot:
        check_content(snapshot, later)


def test_growth_waits_for_a_reader_and_holds_the_next_one(tmp_path: Path) -> None:
    parked = open_parked(tmp_path, map_bytes=1 << 20)
    now = filled(parked)
    grown = content({n: pending(NOW, body=b"P" + b"x" * 9_000) for n in range(1_000, 1_500)}, lsn=2)
    is_shut, is_done = threading.Event(), threading.Event()
    shut = parked._gate.shut

    def watched(timeout_ms: int) -> bool:
        is_shut.set()
        return shut(timeout_ms)

    parked._gate.shut = watched  # type: ignore[method-assign]

    def write() -> None:
        parked.commit(diff(now, grown))
        is_done.set()

    writer = threading.Thread(target=write)
    with parked.snapshot() as snapshot:
        writer.start()
        assert is_shut.wait(10)
        assert not is_done.is_set()
        check_content(snapshot, now)
    assert is_done.wait(10)
    writer.join()
    with parked.snapshot() as snapshot:
        check_content(snapshot, grown)


def test_a_reader_that_does_not_leave_is_never_pulled_its_map_away(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("parkade.store.parked_reader.READERS_OUT_MS", 1)
    parked = open_parked(tmp_path, map_bytes=1 << 20)
    now = filled(parked)
    grown = content({n: pending(NOW, body=b"P" + b"x" * 9_000) for n in range(1_000, 1_500)}, lsn=2)
    with parked.snapshot() as snapshot:
        with pytest.raises(WriteFailed, match="MAP_FULL"):
            parked.commit(diff(now, grown))
        check_content(snapshot, now)
    assert parked.commit(diff(now, grown)).has_grown


def test_a_snapshot_sees_one_lsn_however_much_is_committed_meanwhile(tmp_path: Path) -> None:
    parked = open_parked(tmp_path)
    now = filled(parked)
    later = content(lsn=2)
    with parked.snapshot() as snapshot:
        committer = threading.Thread(target=lambda: parked.commit(diff(now, later)))
        committer.start()
        committer.join()
        assert parked.lsn == 2
        assert snapshot.lsn == 1
        check_content(snapshot, now)
    with parked.snapshot() as snapshot:
        check_content(snapshot, later)


def test_reopening_brings_back_what_was_committed_last(tmp_path: Path) -> None:
    parked = open_parked(tmp_path)
    now = filled(parked)
    parked.reopen()
    assert (parked.lsn, parked.counters) == (1, now.counters())
    with parked.snapshot() as snapshot:
        check_content(snapshot, now)
    assert not parked.commit(idle_batch(parked, NOW)).has_grown


def test_a_closed_store_refuses_readers_and_batches(tmp_path: Path) -> None:
    parked = open_parked(tmp_path)
    parked.close()
    parked.close()
    with pytest.raises(ReadFailed), parked.snapshot():
        pass
    with pytest.raises(WriteFailed):
        parked.commit(Batch(1, 1, NOW, NOW, {}))


def test_the_stat_counts_rows_bytes_and_readers(tmp_path: Path) -> None:
    parked = open_parked(tmp_path)
    filled(parked)
    assert parked.stat().readers == 0
    with parked.snapshot() as snapshot:
        assert snapshot.counters()["mail", PENDING] == 19
        readers = []
        other = threading.Thread(target=lambda: readers.append(parked.stat().readers))
        other.start()
        other.join()
    assert readers == [1]
    stat = parked.stat()
    assert (stat.entries["heads"], stat.entries["history"], stat.entries["meta"]) == (21, 3, 6)
    assert 10_000 < stat.used_bytes < 1 << 20 < stat.map_bytes == 64 << 20


def test_rows_of_the_outbox_are_kept_in_order_until_they_are_handed_on(tmp_path: Path) -> None:
    parked = open_parked(tmp_path)
    batch = Batch(1, 1, NOW, NOW, {})
    batch.outbox |= {b"%d" % n: b"row %d" % n for n in (3, 1, 2)}
    parked.commit(batch)
    batch = Batch(2, 1, NOW, NOW, {})
    batch.outbox_spent.append((b"0", b"1"))
    parked.commit(batch)
    with parked.snapshot() as snapshot:
        assert snapshot.outbox(limit=10) == [(b"2", b"row 2"), (b"3", b"row 3")]
        assert snapshot.outbox(after=b"2", limit=1) == [(b"3", b"row 3")]
