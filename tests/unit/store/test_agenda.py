"""The agenda in numbers: crowds at one millisecond, splitting by slices, clearing what is over."""

import random
from pathlib import Path

import pytest

from kit.parking import harm_last_blob, idle_batch, open_parked, sweep_all
from parkade.store.agenda import AgendaWriter
from parkade.store.batch import Batch, Commit
from parkade.store.entry import (
    COARSE,
    COARSE_AHEAD_MS,
    FAR,
    FINE,
    FINE_AHEAD_MS,
    LEVEL_BITS,
    MIDDLE,
    MIDDLE_AHEAD_MS,
    NEGATIVE,
    SERIAL_MAX,
    BlobKey,
    pack_entry,
    parse_blob_key,
)
from parkade.store.errors import Damage
from parkade.store.parked import Parked
from parkade.store.sweep import cut_at
from parkade.store.writer import REFINE_ENTRIES

MINUTE, HOUR, DAY = 1 << 16, 1 << 22, 1 << 26
NOW = DAY * 25_000


def commit(parked: Parked, entries: list[bytes], now_ms: int = NOW) -> Commit:
    batch = idle_batch(parked, now_ms)
    batch.agenda += entries
    return parked.commit(batch)


def entry(due_ms: int, serial: int, flags: int = 0) -> bytes:
    return pack_entry(due_ms, serial, due_ms, 1, flags)


def blobs(parked: Parked) -> list[BlobKey]:
    with parked.snapshot() as snapshot:
        cursor = snapshot.transaction.cursor(snapshot.tables.agenda)
        return [parse_blob_key(key) for key in cursor.iternext(values=False)]


def test_fifty_thousand_and_one_tickets_of_one_millisecond_come_in_two_sweeps(
    tmp_path: Path,
) -> None:
    parked = open_parked(tmp_path / "store")
    commit(parked, [entry(NOW + 5, serial) for serial in range(50_001)])
    with parked.snapshot() as snapshot:
        first = snapshot.sweep((0, 0), NOW + 65_000, 50_000)
        second = snapshot.sweep(first.position, NOW + 65_000, 50_000)
    assert len(first.entries) == 50_000
    assert first.position == (NOW + 5, 49_999)
    assert second.entries == [(NOW + 5, 50_000, NOW + 5, 1)]
    assert second.position == (NOW + 65_000, SERIAL_MAX)
    assert not first.needs_refine
    assert not second.needs_refine


def test_a_crowd_that_came_in_many_commits_is_swept_in_order(tmp_path: Path) -> None:
    parked = open_parked(tmp_path / "store")
    serials = list(range(30_000))
    random.Random(1).shuffle(serials)
    for at in range(0, 30_000, 3_000):
        commit(parked, [entry(NOW + serial % 7, serial) for serial in serials[at : at + 3_000]])
    found = sweep_all(parked, NOW + 7, limit=1_000)
    assert found == sorted((NOW + serial % 7, serial, NOW + serial % 7, 1) for serial in serials)


def test_a_far_ticket_is_written_coarse_and_a_near_one_fine(tmp_path: Path) -> None:
    parked = open_parked(tmp_path / "store")
    commit(parked, [entry(NOW + 1, 1), entry(NOW + 3 * HOUR, 2), entry(NOW + 9 * DAY, 3)])
    assert [(level, start - NOW) for level, start, *_ in blobs(parked)] == [
        (0, 9 * DAY),
        (1, 3 * HOUR),
        (2, 0),
    ]


def test_a_commit_appends_one_blob_for_each_bucket_it_touches(tmp_path: Path) -> None:
    parked = open_parked(tmp_path / "store")
    for round_ in range(3):
        commit(parked, [entry(NOW + 9 * DAY + serial % 2 * DAY, serial) for serial in range(20)])
        assert len(blobs(parked)) == 2 * (round_ + 1)


def test_a_sweep_stops_before_a_bucket_that_is_not_split_and_asks_for_a_commit(
    tmp_path: Path,
) -> None:
    parked = open_parked(tmp_path / "store")
    commit(parked, [entry(NOW + 1, 1), entry(NOW + 9 * DAY + 5, 2), entry(NOW + 9 * DAY, 3)])
    late_ms = NOW + 10 * DAY
    with parked.snapshot() as snapshot:
        swept = snapshot.sweep((0, 0), late_ms, 100)
        again = snapshot.sweep((NOW + 9 * DAY + 3, 0), late_ms, 100)
    assert [serial for _, serial, _, _ in swept.entries] == [1]
    assert swept.position == (NOW + 9 * DAY - 1, SERIAL_MAX)
    assert swept.needs_refine
    assert (again.entries, again.position) == ([], (NOW + 9 * DAY + 3, 0))
    assert again.needs_refine

    commit(parked, [], now_ms=late_ms)
    with parked.snapshot() as snapshot:
        swept = snapshot.sweep(swept.position, late_ms, 100)
    assert [serial for _, serial, _, _ in swept.entries] == [3, 2]
    assert not swept.needs_refine


def test_a_bucket_is_split_ahead_of_its_time_a_slice_per_commit(tmp_path: Path) -> None:
    parked = open_parked(tmp_path / "store")
    count = REFINE_ENTRIES + 10_000
    rng = random.Random(2)
    for at in range(0, count, 20_000):
        dues = [NOW + 9 * DAY + rng.randrange(DAY) for _ in range(20_000)]
        commit(parked, [entry(due, at + serial) for serial, due in enumerate(dues)])
    before_ms = NOW + 8 * DAY + 1  # the bucket begins within the stretch that is split ahead
    assert commit(parked, [], before_ms).has_refine_due
    assert {level for level, *_ in blobs(parked)} == {0, 1}
    assert not commit(parked, [], before_ms).has_refine_due
    assert {level for level, *_ in blobs(parked)} == {1}
    assert sum(entries for *_, entries, _ in blobs(parked)) == 80_000


def test_a_bucket_that_is_due_already_goes_straight_to_the_finest_level(tmp_path: Path) -> None:
    parked = open_parked(tmp_path / "store")
    commit(parked, [entry(NOW + 9 * DAY + serial * HOUR, serial) for serial in range(16)])
    assert {level for level, *_ in blobs(parked)} == {0}
    assert not commit(parked, [], NOW + 20 * DAY).has_refine_due
    assert {level for level, *_ in blobs(parked)} == {2}


def test_the_bucket_of_tickets_that_have_started_is_gone_with_the_same_commit(
    tmp_path: Path,
) -> None:
    parked = open_parked(tmp_path / "store")
    commit(parked, [entry(NOW + serial, serial) for serial in range(1_000)])
    commit(parked, [entry(NOW + serial, serial, NEGATIVE) for serial in range(1_000)])
    assert blobs(parked) == []


def test_a_crowd_that_leaves_in_order_is_cleared_by_slices_and_not_all_at_once(
    tmp_path: Path,
) -> None:
    """The minute's bucket holds far more than a commit clears."""
    parked = open_parked(tmp_path / "store")
    count = 150_000
    for at in range(0, count, 50_000):
        # each commit spreads over the whole minute, so that no blob's range is its own
        commit(
            parked,
            [entry(NOW + (serial * 7) % MINUTE, serial) for serial in range(at, at + 50_000)],
        )
    leaving = sorted(((serial * 7) % MINUTE, serial) for serial in range(count))
    most = 0
    for at in range(0, count, 25_000):
        gone = leaving[at : at + 25_000]
        commit(parked, [entry(NOW + off, serial, NEGATIVE) for off, serial in gone])
        most = max(most, sum(negatives for *_, negatives in blobs(parked)))
    assert most < count  # cleared while they left
    while parked.commit(idle_batch(parked, NOW)).has_upkeep:
        pass
    assert blobs(parked) == []


def test_many_small_commits_do_not_leave_many_blobs(tmp_path: Path) -> None:
    parked = open_parked(tmp_path / "store")
    for serial in range(200):
        commit(parked, [entry(NOW + 9 * DAY, serial)])
    assert len(blobs(parked)) < 70
    assert sum(entries for *_, entries, _ in blobs(parked)) == 200


def test_adding_a_few_entries_to_many_buckets_reads_the_keys_of_none_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Loading a year of sleepers adds some to each of 60 buckets with each commit."""
    looks: list[int] = []
    keys_of = AgendaWriter._keys  # pyright: ignore[reportPrivateUsage]

    def counted(self: AgendaWriter, level: int, start_ms: int) -> list[bytes]:
        looks.append(start_ms)
        return keys_of(self, level, start_ms)

    monkeypatch.setattr(AgendaWriter, "_keys", counted)
    monkeypatch.setattr("parkade.store.agenda.LOOSE_BUCKETS_MIN", 10_000)
    far = [NOW + (nth << LEVEL_BITS[FAR]) for nth in range(3, 53)]
    parked = open_parked(tmp_path / "store")
    looked: list[int] = []
    for number in range(1, 70):
        looks.clear()
        commit(parked, [entry(due_ms, number * 100 + n) for n, due_ms in enumerate(far)])
        looked.append(len(looks))
    # Once to know them; and twice when each has 64 small blobs, to join those.
    assert looked[0] == 50
    assert sum(map(bool, looked)) == 2
    assert len(blobs(parked)) < 50 * 8


def test_a_removal_finds_its_entry_though_the_clock_was_set_back_in_between(
    tmp_path: Path,
) -> None:
    """The removal then stands in a coarser bucket than the entry that it removes."""
    parked = open_parked(tmp_path / "store")
    commit(parked, [entry(NOW + 5, 1), entry(NOW + 6, 2)])
    commit(parked, [entry(NOW + 5, 1, NEGATIVE)], now_ms=NOW - 30 * DAY)
    assert {level for level, *_ in blobs(parked)} == {FAR, FINE}
    with parked.snapshot() as snapshot:
        assert snapshot.sweep((0, 0), NOW + 10, 10).entries == []
        assert snapshot.first_position((0, 0)) == (NOW + 6, 2)
    assert sweep_all(parked, NOW + 10) == [(NOW + 6, 2, NOW + 6, 1)]


def test_the_first_position_is_the_least_of_a_far_bucket_and_a_coarse_one_that_begin_together(
    tmp_path: Path,
) -> None:
    """The clock was set back in between, or a version wrote there that knew no far ones."""
    parked = open_parked(tmp_path / "store")
    start_ms = 1 << LEVEL_BITS[FAR] + 10
    commit(parked, [entry(start_ms + 9, 1)], now_ms=start_ms - COARSE_AHEAD_MS // 2)
    commit(parked, [entry(start_ms + 5, 2)], now_ms=start_ms - 3 * COARSE_AHEAD_MS)
    assert {(level, at) for level, at, *_ in blobs(parked)} == {(FAR, start_ms), (COARSE, start_ms)}
    with parked.snapshot() as snapshot:
        assert snapshot.first_position((0, 0)) == (start_ms + 5, 2)
        assert snapshot.first_position((start_ms + 5, 2)) == (start_ms + 9, 1)


def test_an_entry_told_twice_is_swept_once_and_a_removal_of_nothing_is_passed_over(
    tmp_path: Path,
) -> None:
    parked = open_parked(tmp_path / "store")
    commit(parked, [entry(NOW, 1), entry(NOW, 1), entry(NOW + 1, 2, NEGATIVE), entry(NOW + 2, 3)])
    assert [serial for _, serial, _, _ in sweep_all(parked, NOW + 10)] == [1, 3]


def test_marks_of_expiry_come_apart_from_the_tickets_positions(tmp_path: Path) -> None:
    parked = open_parked(tmp_path / "store")
    commit(parked, [entry(NOW, 1), pack_entry(NOW + 5, 1, NOW, 1, 2), entry(NOW + 9, 2)])
    with parked.snapshot() as snapshot:
        swept = snapshot.sweep((0, 0), NOW + 9, 10)
    assert [serial for _, serial, _, _ in swept.entries] == [1, 2]
    assert swept.expiries == [(NOW + 5, 1)]


def test_reading_removes_nothing_at_all(tmp_path: Path) -> None:
    parked = open_parked(tmp_path / "store")
    commit(parked, [entry(NOW + serial, serial) for serial in range(100)])
    with parked.snapshot() as snapshot:
        once = snapshot.sweep((0, 0), NOW + 1_000, 1_000)
        assert snapshot.sweep((0, 0), NOW + 1_000, 1_000) == once
    assert len(once.entries) == 100


def test_a_bucket_with_a_wrong_byte_is_damage_to_a_sweep_and_to_a_split(tmp_path: Path) -> None:
    parked = open_parked(tmp_path / "store")
    commit(parked, [entry(NOW + 9 * DAY, 1)])
    harm_last_blob(parked)
    with pytest.raises(Damage, match="table agenda"):
        commit(parked, [], NOW + 9 * DAY)
    with parked.snapshot() as snapshot, pytest.raises(Damage, match="table agenda"):
        snapshot.first_position((0, 0))
    assert parked.lsn == 0


@pytest.mark.parametrize("want", [1, 10, 500, 2_000])
@pytest.mark.parametrize("shape", ["one run", "runs that follow", "runs that overlap"])
def test_a_cut_takes_as_many_as_wanted_and_not_many_more(want: int, shape: str) -> None:
    total, count = 6_000, 1 if shape == "one run" else 30
    everything = [entry(NOW + index // 3, index) for index in range(total)]
    size = total // count
    runs = [
        everything[at::count] if shape == "runs that overlap" else everything[at * size :][:size]
        for at in range(count)
    ]
    spans = [(memoryview(b"".join(run)), 0, len(run)) for run in runs]
    cut = cut_at(spans, want)
    assert cut is not None
    below = sum(1 for each in everything if each < cut)
    assert want <= below <= 2 * want + count


def test_an_empty_batch_of_a_store_that_stands_still_changes_no_row(tmp_path: Path) -> None:
    parked = open_parked(tmp_path / "store")
    commit(parked, [entry(NOW + 9 * DAY, 1)])
    before = blobs(parked)
    result = parked.commit(Batch(0, 1, NOW, 0, {}))
    assert not result.has_refine_due
    assert not result.has_upkeep
    assert blobs(parked) == before


def test_the_entries_of_one_position_come_together_whatever_the_limit(tmp_path: Path) -> None:
    """A position is exclusive: the second of them could not be asked for."""
    parked = open_parked(tmp_path / "store")
    same = [pack_entry(NOW + 1, 7, first_due, lane) for first_due in (1, 2) for lane in (1, 2)]
    commit(parked, [entry(NOW, 1), *same, entry(NOW + 2, 2)])
    with parked.snapshot() as snapshot:
        first = snapshot.sweep((0, 0), NOW + 9, 2)
        second = snapshot.sweep(first.position, NOW + 9, 2)
    assert [serial for _, serial, _, _ in first.entries] == [1, 7, 7, 7, 7]
    assert first.position == (NOW + 1, 7)
    assert [serial for _, serial, _, _ in second.entries] == [2]


def test_a_position_at_the_very_end_of_a_bucket_is_past_that_bucket(tmp_path: Path) -> None:
    parked = open_parked(tmp_path / "store")
    commit(parked, [entry(NOW + 9 * DAY + 5, 1), entry(NOW + 1, 2)])
    end = (NOW + 10 * DAY - 1, SERIAL_MAX)
    with parked.snapshot() as snapshot:
        swept = snapshot.sweep(end, NOW + 11 * DAY, 10)
        assert snapshot.first_position(end) is None
        assert snapshot.first_position((NOW + 1, 2)) == (NOW + 9 * DAY + 5, 1)
    assert (swept.position, swept.needs_refine) == ((NOW + 11 * DAY, SERIAL_MAX), False)


@pytest.mark.parametrize("off", [-1, 0, 1])
@pytest.mark.parametrize("border_ms", [MINUTE, HOUR, DAY])
def test_a_sweep_ends_at_its_very_millisecond(tmp_path: Path, border_ms: int, off: int) -> None:
    parked = open_parked(tmp_path / "store")
    dues = [NOW + border_ms + step for step in range(-3, 4)]
    commit(parked, [entry(due, due - NOW) for due in dues], NOW + border_ms)
    until_ms = NOW + border_ms + off
    with parked.snapshot() as snapshot:
        swept = snapshot.sweep((0, 0), until_ms, 100)
        rest = snapshot.sweep(swept.position, until_ms + DAY, 100)
    assert [due for due, *_ in swept.entries] == [due for due in dues if due <= until_ms]
    assert [due for due, *_ in rest.entries] == [due for due in dues if due > until_ms]
    assert swept.position == (until_ms, SERIAL_MAX)


@pytest.mark.parametrize(
    ("level", "finer", "ahead_ms"),
    [
        (FAR, COARSE, COARSE_AHEAD_MS),
        (COARSE, MIDDLE, MIDDLE_AHEAD_MS),
        (MIDDLE, FINE, FINE_AHEAD_MS),
    ],
)
def test_a_bucket_is_left_alone_until_its_start_is_near_enough(
    tmp_path: Path, level: int, finer: int, ahead_ms: int
) -> None:
    parked = open_parked(tmp_path / "store")
    start_ms = (NOW >> LEVEL_BITS[FAR]) + 3 << LEVEL_BITS[FAR]
    commit(parked, [entry(start_ms + 5, 1)], start_ms - ahead_ms)
    (before,) = blobs(parked)
    assert before.level == level
    commit(parked, [], start_ms - ahead_ms)
    assert blobs(parked) == [before]
    commit(parked, [], start_ms - ahead_ms + 1)
    (after,) = blobs(parked)
    assert after.level == finer


def test_what_a_commit_touched_is_cleared_in_it_however_much_else_there_is(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("parkade.store.agenda.LOOSE_BUCKETS_MIN", 10_000)
    parked = open_parked(tmp_path / "store")
    commit(parked, [entry(NOW + bucket * DAY, bucket) for bucket in range(9, 900)])
    commit(parked, [entry(NOW, 1)])
    commit(parked, [entry(NOW, 1, NEGATIVE)])
    assert {blob.level for blob in blobs(parked)} == {COARSE, FAR}


def test_the_patrol_goes_all_around_the_agenda(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("parkade.store.agenda.LOOSE_BUCKETS_MIN", 10_000)
    parked = open_parked(tmp_path / "store")
    commit(parked, [entry(NOW + bucket * DAY, bucket) for bucket in range(9, 900)])
    commit(parked, [entry(NOW, 1)])
    with monkeypatch.context() as patch:
        patch.setattr("parkade.store.writer.TIDY_ENTRIES", 0)
        assert commit(parked, [entry(NOW, 1, NEGATIVE)]).has_upkeep
    assert [blob.level for blob in blobs(parked)].count(FINE) == 2
    parked.close()
    parked = open_parked(tmp_path / "store", is_new=False)
    for _ in range(2 * (891 // 256 + 1)):
        commit(parked, [])
    assert {blob.level for blob in blobs(parked)} == {COARSE, FAR}
