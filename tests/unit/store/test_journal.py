"""The journal at work: numbering, rolling, recycling, what it counts, what it costs."""

from collections.abc import Callable
from dataclasses import replace

import pytest

from kit.between import met_at_every_step
from kit.disk import FakeDisk
from kit.journals import (
    PLACE,
    SALT,
    SHARD,
    SMALL,
    Entropy,
    append_all,
    body,
    open_journal,
    replayed,
    segment_paths,
)
from parkade.store.errors import Damage, NoRoom, WriteFailed
from parkade.store.frame import HEAD_BYTES
from parkade.store.journal import MARK_BYTES, Journal, Sizing, inspect, read_only_frames
from parkade.store.segment import HEADER_BYTES
from parkade.store.spares import Spare, SparePool


def bodies(first: int, last: int) -> list[bytes]:
    return [body(number) for number in range(first, last + 1)]


def test_an_append_is_one_call_to_the_disk() -> None:
    disk = FakeDisk()
    journal = open_journal(disk, is_new=True)
    for _ in range(10):
        before = disk.number
        journal.append(b"body", 1)
        assert disk.number == before + 1
        assert disk.calls[-1].name == "pwrite_durable"


def test_lsns_count_records_and_a_frame_may_hold_many() -> None:
    disk = FakeDisk()
    journal = open_journal(disk, is_new=True)
    assert journal.append(b"three", 3) == 3
    assert journal.append(b"one", 1) == 4
    assert (journal.next_lsn, journal.last_lsn, journal.durable_lsn) == (5, 4, 4)
    frames = list(open_journal(disk.power_cut(), seed=1).replay())
    assert [(f.first_lsn, f.count, f.last_lsn, f.body) for f in frames] == [
        (1, 3, 3, b"three"),
        (4, 1, 4, b"one"),
    ]
    assert [frame.epoch for frame in frames] == [1, 1]


def test_a_frame_without_a_record_is_refused_before_the_disk_is_asked() -> None:
    disk = FakeDisk()
    journal = open_journal(disk, is_new=True)
    before = disk.number
    with pytest.raises(ValueError, match="at least one record"):
        journal.append(b"body", 0)
    assert disk.number == before


def test_a_frame_that_straddles_the_stores_lsn_is_given_whole() -> None:
    disk = FakeDisk()
    journal = open_journal(disk, is_new=True)
    journal.append(b"1 to 3", 3)
    journal.append(b"4 to 6", 3)
    journal = open_journal(disk.power_cut(), store_lsn=5, seed=1)
    assert [(f.first_lsn, f.body) for f in journal.replay()] == [(4, b"4 to 6")]
    assert journal.next_lsn == 7


def test_every_open_begins_a_greater_epoch_than_store_and_journal_have_seen() -> None:
    disk = FakeDisk()
    epochs = []
    for seed, store_epoch in enumerate([0, 0, 7, 0, 3]):
        journal = open_journal(disk, is_new=seed == 0, store_epoch=store_epoch, seed=seed)
        epochs.append(journal.epoch)
        journal.close(clean=True)
    assert epochs == [1, 2, 8, 9, 10]


def test_opening_and_closing_over_and_over_leaves_one_segment_behind() -> None:
    disk = FakeDisk()
    for seed in range(8):
        open_journal(disk, is_new=seed == 0, seed=seed).close(clean=True)
    assert len(segment_paths(disk)) == 1
    assert len(disk.paths()) <= 2


def test_the_next_lsn_follows_the_store_where_the_journal_holds_nothing() -> None:
    disk = FakeDisk()
    journal = open_journal(disk, is_new=True)
    append_all(journal, bodies(1, 25))
    journal.drop_through(25)
    journal.close(clean=True)
    journal = open_journal(disk, store_lsn=25, seed=1)
    assert journal.append(b"next", 1) == 26


def test_a_journal_that_begins_behind_the_store_is_damage() -> None:
    disk = FakeDisk()
    journal = open_journal(disk, is_new=True)
    append_all(journal, bodies(1, 45))
    journal.drop_through(40)
    with pytest.raises(Damage, match="the journal begins at LSN 41, the store ends at 12"):
        open_journal(disk.crash(), store_lsn=12, seed=1)


def test_dropped_segments_are_recycled_and_an_older_life_does_not_show() -> None:
    disk = FakeDisk()
    journal = open_journal(disk, is_new=True, sizing=replace(SMALL, spares_max=4))
    lsn = 0
    for number in range(1, 400):
        journal.prepare_spare()
        lsn = journal.append(body(number % 100), 1)
        if number % 30 == 0:
            journal.drop_through(lsn)
    assert journal.segments + journal.spares <= 5
    assert disk.counts["preallocate"] <= 5
    left = lsn - lsn % 30
    journal = open_journal(disk.power_cut(), store_lsn=left, seed=1)
    assert len(replayed(journal)) == lsn - left


def test_segments_grow_to_their_bound_while_nothing_is_dropped() -> None:
    sizing = Sizing(1_024, 8_192, frame_bytes_max=64, reserve_bytes=0)
    disk = FakeDisk()
    journal = open_journal(disk, is_new=True, sizing=sizing)
    append_all(journal, [b"x" * 60] * 600)
    sizes = [len(disk.image()[path]) for path in segment_paths(disk)]
    assert sizes[:5] == [1_024, 1_024, 2_048, 4_096, 8_192]
    assert set(sizes[5:]) == {8_192}


def test_a_spare_takes_a_part_of_what_is_free_and_leaves_room_for_a_checkpoint() -> None:
    sizing = Sizing(4_096, 65_536, frame_bytes_max=64, reserve_bytes=0, kept_free_bytes=40_000)
    disk = FakeDisk(capacity_bytes=120_000)
    journal = open_journal(disk, is_new=True, sizing=sizing)
    with pytest.raises(NoRoom):
        append_all(journal, [b"x" * 60] * 2_000)
    assert max(len(disk.image()[path]) for path in segment_paths(disk)) == 8_192
    assert disk.free_space(PLACE) >= 40_000
    journal.drop_through(journal.last_lsn)
    before = disk.free_space(PLACE)
    append_all(journal, [b"x" * 60] * 20)
    assert disk.free_space(PLACE) == before, "what was given back is used again"


def test_a_larger_turn_is_given_room_once_it_has_been_asked_for() -> None:
    disk = FakeDisk()
    journal = open_journal(disk, is_new=True)
    journal.prepare_spare()
    assert journal.has_room() and not journal.has_room(5_000)
    assert not journal.has_spare
    with pytest.raises(NoRoom):
        journal.append(b"x" * 5_000, 1)
    journal.prepare_spare()
    assert journal.has_room(5_000) and journal.has_spare
    # Two of them: one may be in flight while the next is decided.
    assert journal.append(b"x" * 5_000, 1) == 1
    assert journal.fits(5_000)
    assert journal.append(b"y" * 5_000, 1) == 2
    assert replayed(open_journal(disk.power_cut(), seed=1)) == [b"x" * 5_000, b"y" * 5_000]


def test_a_clean_close_leaves_one_spare_and_what_the_store_does_not_have() -> None:
    sizing = replace(SMALL, segment_bytes_max=8 * SMALL.segment_bytes_first, spares_max=3)
    disk = FakeDisk()
    journal = open_journal(disk, is_new=True, sizing=sizing)
    append_all(journal, [body(number) for number in range(200)])
    journal.drop_through(150)
    journal.close(clean=True, stored_lsn=150)
    assert spare_bytes(disk) == [SMALL.segment_bytes_first]
    journal = open_journal(disk.power_cut(), store_lsn=150, seed=1, sizing=sizing)
    assert replayed(journal) == [body(number) for number in range(150, 200)]


@pytest.mark.parametrize("mode", ["disk", "process"])
def test_a_clean_close_leaves_no_frame_of_many_that_the_store_has(mode: str) -> None:
    disk = FakeDisk()
    journal = open_journal(disk, is_new=True, mode=mode)
    append_all(journal, [body(number) for number in range(30)])
    journal.drop_through(30)
    journal.close(clean=True, stored_lsn=30)
    (segment,) = segment_paths(disk)
    assert len(disk.image()[segment]) == HEADER_BYTES
    assert spare_bytes(disk) == [SMALL.segment_bytes_first]
    journal = open_journal(disk.power_cut(), store_lsn=30, seed=1, mode=mode)
    assert (journal.next_lsn, journal.segments, journal.spares) == (31, 1, 0)
    assert journal.append(b"the life after", 1) == 31


def test_a_clean_close_cuts_the_few_frames_that_the_store_has_behind_the_last() -> None:
    disk = FakeDisk()
    journal = open_journal(disk, is_new=True)
    append_all(journal, [body(1), body(2)])
    journal.close(clean=True, stored_lsn=2)
    (segment,) = segment_paths(disk)
    assert len(disk.image()[segment]) == HEADER_BYTES + 2 * 56 + HEAD_BYTES
    journal = open_journal(disk.power_cut(), store_lsn=2, seed=1)
    assert (journal.next_lsn, replayed(journal)) == (3, [])


def test_a_clean_close_leaves_a_spare_for_the_next_open_where_none_was_made() -> None:
    disk = FakeDisk()
    open_journal(disk, is_new=True).close(clean=True, stored_lsn=0)
    before = disk.counts["preallocate"]
    journal = open_journal(disk, seed=1)
    assert journal.append(b"the life after", 1) == 1
    assert disk.counts["preallocate"] == before


@pytest.mark.parametrize(("frames", "synced"), [(30, 1), (2, 2)])
def test_an_open_behind_a_clean_close_reads_and_syncs_little(frames: int, synced: int) -> None:
    disk = FakeDisk()
    journal = open_journal(disk, is_new=True)
    append_all(journal, [body(number) for number in range(frames)])
    journal.drop_through(frames)
    journal.close(clean=True, stored_lsn=frames)
    (segment,) = segment_paths(disk)
    assert len(disk.image()[segment]) <= SMALL.left_bytes_max + HEAD_BYTES
    before = disk.counts.copy()
    open_journal(disk, store_lsn=frames, seed=1)
    calls = disk.counts - before
    # The header, and the last frames where there are any; the names of the spare, which may have
    # been a segment, and of the new segment.
    assert (calls["fdatasync"], calls["fsync_directory"]) == (synced, 2)
    assert calls["preallocate"] == calls["ftruncate"] == calls["pwrite_durable"] == 0


def test_the_spare_that_a_clean_close_makes_is_small_also_where_the_segments_have_grown() -> None:
    disk = FakeDisk()
    sizing = replace(SMALL, segment_bytes_max=8 * SMALL.segment_bytes_first)
    journal = open_journal(disk, is_new=True, sizing=sizing)
    journal.prepare_spare()
    while journal.spares:
        journal.append(body(1), 1)
    journal.close(clean=True, stored_lsn=0)
    assert spare_bytes(disk) == [SMALL.segment_bytes_first]


def test_a_segment_with_room_for_two_turns_needs_no_spare() -> None:
    disk = FakeDisk()
    journal = open_journal(disk, is_new=True, sizing=replace(SMALL, reserve_bytes=200))
    appended = 0
    while journal.has_room():
        assert not journal.has_spare
        journal.append(b"x" * SMALL.frame_bytes_max, 1)
        appended += 1
    # Two turns and the reserve are left of it.
    assert appended == 11
    for _ in range(4):
        assert journal.fits(SMALL.frame_bytes_max)
        journal.append(b"x" * SMALL.frame_bytes_max, 1)


def spare_bytes(disk: FakeDisk) -> list[int]:
    """The sizes of the spares that the disk has."""
    return [len(content) for path, content in disk.image().items() if path.endswith(".spare")]


def test_a_covering_frame_is_written_once_and_always_finds_room() -> None:
    disk = FakeDisk()
    journal = open_journal(disk, is_new=True)
    assert not journal.write_covering_frame()
    for number in range(1, 90):
        journal.prepare_spare()
        journal.append(body(number), 1)
        assert journal.write_covering_frame()
        assert not journal.write_covering_frame()
    report = inspect(disk, PLACE, SALT, SHARD, 0)
    assert (report.last_lsn, report.proof_lsn, report.damage) == (89, 89, None)


def test_live_bytes_are_those_of_the_frames_that_are_left() -> None:
    journal = open_journal(FakeDisk(), is_new=True)
    append_all(journal, bodies(1, 50))
    assert journal.live_bytes == 50 * 56
    journal.drop_through(20)
    assert journal.live_bytes == 30 * 56


def test_it_is_begun_when_a_sixteenth_of_a_first_segment_is_written() -> None:
    journal = open_journal(FakeDisk(), is_new=True)
    begun = []
    for frame in bodies(1, 3):
        begun.append(journal.is_begun)
        append_all(journal, [frame])
    assert [*begun, journal.is_begun] == [False, False, True, True]  # 56 bytes each, of 1,200


def test_another_thread_may_ask_how_much_there_is_while_segments_are_sealed_and_dropped() -> None:
    def prepare() -> tuple[Callable[[], tuple[int, int]], Callable[[], object]]:
        journal = open_journal(FakeDisk(), is_new=True)
        append_all(journal, bodies(1, 59))
        journal.prepare_spare()

        def act() -> None:
            append_all(journal, bodies(60, 63))
            journal.drop_through(20)

        return lambda: (journal.segments, journal.live_bytes), act

    seen = met_at_every_step(prepare)
    before, after = (3, 59 * 56), (3, 43 * 56)
    assert seen[0] == after
    assert {segments for segments, _ in seen} == {3}
    assert all(0 < size < before[1] + after[1] for _, size in seen)


def test_bytes_since_an_lsn_may_be_asked_while_its_segments_are_written_and_dropped() -> None:
    sizing = Sizing(1 << 20, 1 << 20, frame_bytes_max=1 << 16, reserve_bytes=0)

    def prepare() -> tuple[Callable[[], int], Callable[[], object]]:
        journal = open_journal(FakeDisk(), is_new=True, sizing=sizing)
        append_all(journal, [b"x" * MARK_BYTES] * 20)

        def act() -> None:
            journal.append(b"x" * MARK_BYTES, 1)
            journal.drop_through(14)

        return lambda: journal.bytes_since(18), act

    exact = {count * (MARK_BYTES + HEAD_BYTES) for count in (2, 3, 4)}
    assert set(met_at_every_step(prepare)) <= exact


def test_there_is_room_whatever_spare_is_taken_while_that_is_asked() -> None:
    def prepare() -> tuple[Callable[[], bool], Callable[[], object]]:
        pool = SparePool(FakeDisk(), PLACE, SMALL, Entropy(), lambda _: None, lambda: None)
        for size_bytes in (1_000, 10_000):
            pool.put(Spare(f"{PLACE}/{size_bytes}", size_bytes))
        return lambda: pool.has_room(5_000), lambda: pool.take(10)

    assert all(met_at_every_step(prepare))


def test_a_journal_that_is_closed_while_it_is_asked_for_room_has_some_or_none() -> None:
    def prepare() -> tuple[Callable[[], bool], Callable[[], object]]:
        journal = open_journal(FakeDisk(), is_new=True)
        return lambda: journal.fits(10), lambda: journal.close(clean=False)

    assert set(met_at_every_step(prepare)) == {False, True}


def test_bytes_since_an_lsn_are_right_to_within_their_grain() -> None:
    sizing = Sizing(1 << 20, 1 << 20, frame_bytes_max=1 << 12, reserve_bytes=0)
    journal = open_journal(FakeDisk(), is_new=True, sizing=sizing)
    append_all(journal, [b"x" * 4_056] * 200)
    for lsn in (0, 1, 17, 100, 199, 200):
        exact = (200 - lsn) * 4_096
        assert exact <= journal.bytes_since(lsn) <= exact + MARK_BYTES


def test_a_closed_journal_answers_no_call_and_may_be_closed_again() -> None:
    disk = FakeDisk()
    journal = open_journal(disk, is_new=True)
    journal.append(b"one", 1)
    journal.close(clean=True)
    journal.close(clean=True)
    with pytest.raises(WriteFailed, match="closed"):
        journal.append(b"two", 1)
    assert disk.open_handles() == []


def test_a_clean_close_in_process_mode_syncs_what_was_never_synced() -> None:
    disk = FakeDisk()
    journal = open_journal(disk, is_new=True, mode="process")
    append_all(journal, bodies(1, 45))
    assert not journal.write_covering_frame()
    journal.close(clean=True)
    assert replayed(open_journal(disk.power_cut(), mode="process", seed=1)) == bodies(1, 45)


def test_a_journal_needs_a_salt_of_its_directory() -> None:
    with pytest.raises(ValueError, match="5 bytes"):
        Journal.open(FakeDisk(), PLACE, salt=b"", shard=0, store_lsn=0, store_epoch=0)


def test_a_look_beside_a_working_journal_sees_what_was_answered() -> None:
    disk = FakeDisk()
    journal = open_journal(disk, is_new=True)
    for number in range(1, 50):
        journal.prepare_spare()
        journal.append(body(number), 1)
        frames = read_only_frames(disk, PLACE, salt=SALT, shard=SHARD, store_lsn=0)
        assert [frame.body for frame in frames] == bodies(1, number)


def test_a_look_names_every_segment_and_the_damage() -> None:
    disk = FakeDisk()
    append_all(open_journal(disk, is_new=True), bodies(1, 45))
    report = inspect(disk, PLACE, SALT, SHARD, 0)
    assert [(s.first_lsn, s.last_lsn, s.epoch, s.mode, s.frames) for s in report.segments] == [
        (1, 20, 1, "disk", 21),  # with the mark that the log goes on
        (21, 40, 1, "disk", 21),
        (41, 45, 1, "disk", 5),
    ]
    disk.flip(report.segments[1].path, 100)
    damage = inspect(disk, PLACE, SALT, SHARD, 0).damage
    assert damage is not None
    assert (damage.path, damage.offset) == (report.segments[1].path, 64)


@pytest.mark.parametrize(
    "sizes",
    [
        {"segment_bytes_first": 0},
        {"segment_bytes_first": 2, "segment_bytes_max": 1},
        {"segment_bytes_max": 1 << 32},
        {"frame_bytes_max": 0},
        {"spares_max": 0},
        {"reserve_bytes": -1},
    ],
)
def test_sizes_that_contradict_each_other_are_refused(sizes: dict[str, int]) -> None:
    with pytest.raises(ValueError):
        Sizing(**sizes)


def test_the_default_sizes_begin_with_a_megabyte() -> None:
    sizing = Sizing()
    assert sizing.segment_bytes(sizing.segment_bytes_first, sizing.frame_bytes_max) == 1 << 20
    assert SMALL.segment_bytes(0, SMALL.frame_bytes_max) < SMALL.segment_bytes_first
