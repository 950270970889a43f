"""Few entries for many far buckets of the agenda: one blob, until there are more of them."""

from pathlib import Path

import pytest

from kit.parking import harm_last_blob, idle_batch, open_parked, sweep_all
from parkade.store.entry import (
    COARSE,
    FAR,
    FINE,
    LEVEL_BITS,
    LOOSE,
    MIDDLE,
    NEGATIVE,
    SERIAL_MAX,
    BlobKey,
    pack_entry,
    parse_blob_key,
)
from parkade.store.errors import Damage
from parkade.store.parked import Parked

DAY = 1 << LEVEL_BITS[COARSE]
FORTNIGHT = 1 << LEVEL_BITS[FAR]
NOW = FORTNIGHT * 1_600
A_YEAR = [NOW + nth * FORTNIGHT + 7 for nth in range(2, 32)]  # a time in each of 30 buckets


def commit(parked: Parked, entries: list[bytes], now_ms: int = NOW) -> None:
    batch = idle_batch(parked, now_ms)
    batch.agenda += entries
    parked.commit(batch)


def entry(due_ms: int, serial: int, flags: int = 0) -> bytes:
    return pack_entry(due_ms, serial, due_ms, 1, flags)


def year_of(first: int, each: int = 1) -> list[bytes]:
    return [entry(due_ms, first + n) for n, due_ms in enumerate(A_YEAR * each)]


def blobs(parked: Parked) -> list[BlobKey]:
    with parked.snapshot() as snapshot:
        cursor = snapshot.transaction.cursor(snapshot.tables.agenda)
        return [parse_blob_key(key) for key in cursor.iternext(values=False)]


def test_a_few_sleepers_over_a_year_are_one_blob(tmp_path: Path) -> None:
    parked = open_parked(tmp_path / "store")
    near = [entry(NOW + 5, 1), entry(NOW + DAY // 2, 2)]
    commit(parked, near + year_of(100, each=8))
    assert [(blob.level, blob.entries) for blob in blobs(parked)] == [
        (MIDDLE, 1),
        (FINE, 1),
        (LOOSE, 240),
    ]
    assert blobs(parked)[-1].start_ms == A_YEAR[0] // DAY * DAY


def test_what_has_become_many_is_put_into_its_buckets_together(tmp_path: Path) -> None:
    parked = open_parked(tmp_path / "store")
    for nth in range(16):
        commit(parked, year_of(1_000 * nth, each=8))
        assert [blob.level for blob in blobs(parked)] == [LOOSE] * (nth + 1)
    commit(parked, year_of(1_000 * 16, each=8))
    assert [(blob.level, blob.entries) for blob in blobs(parked)] == [(FAR, 17 * 8)] * 30
    commit(parked, year_of(1_000 * 17, each=8))
    assert [blob.level for blob in blobs(parked)] == [FAR] * 30 + [LOOSE]


def test_many_of_each_bucket_go_there_at_once(tmp_path: Path) -> None:
    parked = open_parked(tmp_path / "store")
    commit(parked, year_of(1, each=17))
    assert [(blob.level, blob.entries) for blob in blobs(parked)] == [(FAR, 17)] * 30


def test_a_sweep_stops_at_the_first_loose_entry_and_a_commit_splits_its_blob(
    tmp_path: Path,
) -> None:
    parked = open_parked(tmp_path / "store")
    commit(parked, year_of(1))
    until_ms = A_YEAR[0] + 10
    with parked.snapshot() as snapshot:
        swept = snapshot.sweep((0, 0), until_ms, 100)
        assert snapshot.first_position((0, 0)) == (A_YEAR[0], 1)
        assert snapshot.first_position((A_YEAR[0], 1)) == (A_YEAR[1], 2)
        assert snapshot.first_position((A_YEAR[-1], SERIAL_MAX)) is None
    assert (swept.entries, swept.needs_refine) == ([], True)
    assert swept.position == (A_YEAR[0] // DAY * DAY - 1, SERIAL_MAX)

    commit(parked, [], now_ms=A_YEAR[0] - 2 * DAY)  # it is a day too early
    assert {blob.level for blob in blobs(parked)} == {LOOSE}
    commit(parked, [], now_ms=A_YEAR[0] - DAY // 2)
    levels = [blob.level for blob in blobs(parked)]
    assert levels == [MIDDLE] + [FAR] * 29
    assert sweep_all(parked, until_ms) == [(A_YEAR[0], 1, A_YEAR[0], 1)]


def test_who_leaves_while_loose_is_neither_swept_nor_there_when_all_are_put_apart(
    tmp_path: Path,
) -> None:
    parked = open_parked(tmp_path / "store")
    commit(parked, year_of(1))
    commit(parked, [entry(A_YEAR[0], 1, NEGATIVE), entry(A_YEAR[9], 10, NEGATIVE)])
    assert [blob.level for blob in blobs(parked)] == [FAR, FAR, LOOSE]
    with parked.snapshot() as snapshot:
        assert snapshot.first_position((0, 0)) == (A_YEAR[1], 2)
    assert [serial for _, serial, _, _ in sweep_all(parked, A_YEAR[-1])] == [
        serial for serial in range(1, 31) if serial not in (1, 10)
    ]


def test_a_glance_past_a_crowd_sees_what_is_loose(tmp_path: Path) -> None:
    parked = open_parked(tmp_path / "store")
    commit(parked, year_of(1))
    with parked.snapshot() as snapshot:
        seen = snapshot.glance((A_YEAR[0], 1), A_YEAR[2], [99])
        unseen = snapshot.glance((0, 0), A_YEAR[2], [1])
    assert (seen.serials, unseen.serials) == ([2, 3], [])


def test_a_loose_blob_with_a_wrong_byte_is_damage(tmp_path: Path) -> None:
    parked = open_parked(tmp_path / "store")
    commit(parked, year_of(1))
    harm_last_blob(parked)
    with parked.snapshot() as snapshot, pytest.raises(Damage, match="table agenda"):
        snapshot.first_position((0, 0))
    with pytest.raises(Damage, match="table agenda"):
        commit(parked, [], now_ms=A_YEAR[0])
