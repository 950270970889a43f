"""Looking through the agenda past a crowd: who is found, and what is not opened for it."""

from pathlib import Path

import pytest

from kit.parking import idle_batch, open_parked
from parkade.store.entry import EXPIRY, NEGATIVE, pack_entry
from parkade.store.errors import Damage
from parkade.store.parked import Parked

NOW_MS = 5 << 30
DAY_MS = 86_400_000
CROWD, OTHER, THIRD = 1, 2, 3 << 16  # lane numbers


def write(parked: Parked, entries: list[bytes], now_ms: int = NOW_MS) -> None:
    batch = idle_batch(parked, now_ms)
    batch.lsn += 1
    batch.agenda += entries
    parked.commit(batch)


def found(
    parked: Parked, until_ms: int, *passed: int, after: tuple[int, int] = (0, 0)
) -> list[int]:
    with parked.snapshot() as snapshot:
        return snapshot.glance(after, until_ms, passed).serials


def entry(due_ms: int, serial: int, lane: int, flags: int = 0) -> bytes:
    return pack_entry(due_ms, serial, due_ms, lane, flags)


def crowd(count: int) -> list[bytes]:
    return [entry(NOW_MS + nth % 50, 1_000 + nth, CROWD) for nth in range(count)]


def test_who_is_behind_a_crowd_is_found_in_order_of_due_time(tmp_path: Path) -> None:
    parked = open_parked(tmp_path / "store")
    write(parked, crowd(5_000))
    write(parked, [entry(NOW_MS + 60, 1, OTHER), entry(NOW_MS + 40, 2, THIRD)])
    assert found(parked, NOW_MS + 100, CROWD) == [2, 1]
    assert found(parked, NOW_MS + 50, CROWD) == [2]
    assert found(parked, NOW_MS + 100, CROWD, THIRD) == [1]
    assert found(parked, NOW_MS + 100, CROWD, after=(NOW_MS + 40, 2)) == [1]
    assert len(found(parked, NOW_MS + 100, OTHER)) == 5_001
    parked.close()


def test_who_has_left_and_marks_of_expiry_are_not_found(tmp_path: Path) -> None:
    parked = open_parked(tmp_path / "store")
    write(parked, [entry(NOW_MS + 1, 1, OTHER), entry(NOW_MS + 1, 2, OTHER)])
    write(parked, [entry(NOW_MS + 1, 1, OTHER, NEGATIVE), entry(NOW_MS + 2, 3, OTHER, EXPIRY)])
    assert found(parked, NOW_MS + 100, CROWD) == [2]
    parked.close()


def test_buckets_that_are_not_split_yet_are_looked_at_as_well(tmp_path: Path) -> None:
    """As at an open long after the last one."""
    parked = open_parked(tmp_path / "store")
    days = (1, 10, 40)
    write(parked, [entry(NOW_MS + day * DAY_MS, day, OTHER) for day in days])
    assert found(parked, NOW_MS + 41 * DAY_MS, CROWD) == [1, 10, 40]
    assert found(parked, NOW_MS + 11 * DAY_MS, CROWD) == [1, 10]
    parked.close()


def test_a_damaged_blob_is_noticed_where_it_is_opened(tmp_path: Path) -> None:
    parked = open_parked(tmp_path / "store")
    write(parked, [entry(NOW_MS + 1, 1, OTHER)])
    with parked._environment.begin(write=True) as transaction:
        cursor = transaction.cursor(parked._tables.agenda)
        assert cursor.first()
        cursor.put(cursor.key(), b"\xff" + cursor.value()[1:])
    with pytest.raises(Damage):
        found(parked, NOW_MS + 100, CROWD)
    assert found(parked, NOW_MS + 100, OTHER) == [], "the sweep will notice"
    parked.close()
