"""Entries and blobs as bytes: order, cancelling, buckets."""

from itertools import chain, permutations
from zlib import crc32

import pytest

from parkade.store.entry import (
    COARSE,
    COARSE_AHEAD_MS,
    ENTRY_BYTES,
    EXPIRY,
    FAR,
    FINE,
    FINE_AHEAD_MS,
    MIDDLE,
    MIDDLE_AHEAD_MS,
    NEGATIVE,
    Entry,
    cancel,
    cut_into_buckets,
    first_negative,
    has_negatives,
    join_blob,
    pack_entry,
    pack_upper,
    parse_blob_key,
    position_of,
    rank,
    split_entries,
    unpack_entries,
    unpack_entry,
)

MINUTE, HOUR, DAY, FORTNIGHT = 1 << 16, 1 << 22, 1 << 26, 1 << 30


def test_an_entry_is_29_bytes_that_are_written_down() -> None:
    packed = pack_entry(0x0102, 0x0304, 0x05, 0x06, EXPIRY | NEGATIVE)
    assert packed.hex() == "0000000000000102000000000000030400000000000000050000000603"
    assert len(packed) == ENTRY_BYTES
    assert unpack_entry(packed) == Entry(0x0102, 0x0304, 0x05, 0x06, 3)
    assert position_of(packed) == (0x0102, 0x0304)
    assert unpack_entries([packed, packed]) == [(0x0102, 0x0304, 5, 6, 3)] * 2


def test_entries_sort_by_due_and_then_by_serial() -> None:
    positions = [(1, 2), (1, 300), (2, 1), (256, 0), (1 << 40, 5)]
    packed = [pack_entry(due, serial, 9, 9) for due, serial in positions]
    assert sorted([packed[4], *packed[:4]]) == packed


def test_the_upper_key_of_a_position_lies_behind_all_entries_of_that_position() -> None:
    upper = pack_upper((5, 7))
    assert pack_entry(5, 7, (1 << 55) - 1, 0xFFFF_FFFF, 3) < upper < pack_entry(5, 8, 0, 0)


def test_a_removal_takes_away_one_entry_and_no_other() -> None:
    here, there = pack_entry(5, 7, 5, 1), pack_entry(5, 7, 5, 2)
    gone = pack_entry(5, 7, 5, 1, NEGATIVE)
    for entries in permutations([here, there, gone]):
        assert cancel(sorted(entries)) == [there]


def test_a_ticket_that_came_back_to_its_position_is_there_once() -> None:
    here, gone = pack_entry(5, 7, 5, 1), pack_entry(5, 7, 5, 1, NEGATIVE)
    assert cancel(sorted([here, gone, here])) == [here]
    assert cancel(sorted([here, gone, here, gone])) == []


def test_a_removal_without_its_entry_stays_until_they_meet() -> None:
    other, gone = pack_entry(5, 6, 5, 1), pack_entry(5, 7, 5, 1, NEGATIVE)
    assert cancel([other, gone]) == [other, gone]
    assert cancel([gone, gone]) == [gone, gone]


def test_a_mark_is_removed_by_the_removal_of_a_mark_only() -> None:
    entry, mark = pack_entry(5, 7, 5, 1), pack_entry(5, 7, 5, 1, EXPIRY)
    assert cancel(sorted([entry, mark, pack_entry(5, 7, 5, 1, NEGATIVE)])) == [mark]
    assert cancel(sorted([entry, mark, pack_entry(5, 7, 5, 1, NEGATIVE | EXPIRY)])) == [entry]


@pytest.mark.parametrize(
    ("due_ms", "level"),
    [
        (0, FINE),
        (DAY * 10 + FINE_AHEAD_MS - 1, FINE),
        (DAY * 10 + FINE_AHEAD_MS, MIDDLE),
        (DAY * 10 + MIDDLE_AHEAD_MS - 1, MIDDLE),
        (DAY * 10 + MIDDLE_AHEAD_MS, COARSE),
        (2 * FORTNIGHT - 1, COARSE),
        (2 * FORTNIGHT, FAR),
        (DAY * 5000, FAR),
    ],
)
def test_the_nearer_a_ticket_the_finer_its_bucket(due_ms: int, level: int) -> None:
    ((found, start_ms, entries),) = cut_into_buckets([pack_entry(due_ms, 1, 0, 0)], DAY * 10)
    width = {FAR: FORTNIGHT, COARSE: DAY, MIDDLE: HOUR, FINE: MINUTE}[level]
    assert found == level
    assert start_ms % width == 0
    assert start_ms <= due_ms < start_ms + width
    assert len(entries) == 1


def test_a_bucket_that_is_due_to_be_split_takes_no_new_entries_at_its_level() -> None:
    """Else splitting a bucket could write into it."""
    for now_ms in (DAY * 10 - 1, DAY * 10, DAY * 10 + 1, DAY * 10 + HOUR + 1):
        near = range(now_ms, now_ms + 3 * DAY, HOUR // 3)
        for due_ms in chain(near, range(now_ms, now_ms + 3 * FORTNIGHT, DAY // 3)):
            ((level, start_ms, _),) = cut_into_buckets([pack_entry(due_ms, 1, 0, 0)], now_ms)
            if level == MIDDLE:
                assert start_ms >= now_ms + FINE_AHEAD_MS
            if level == COARSE:
                assert start_ms >= now_ms + MIDDLE_AHEAD_MS
            if level == FAR:
                assert start_ms >= now_ms + COARSE_AHEAD_MS


def test_sorted_entries_are_cut_at_the_borders_of_their_buckets() -> None:
    entries = [pack_entry(due, 1, 0, 0) for due in (0, MINUTE - 1, MINUTE, 3 * MINUTE)]
    parts = list(cut_into_buckets(entries, 0))
    assert [(start, len(part)) for _, start, part in parts] == [
        (0, 2),
        (MINUTE, 1),
        (3 * MINUTE, 1),
    ]


def test_a_blob_counts_its_entries_in_its_key_and_ends_in_a_checksum_over_both() -> None:
    entries = [pack_entry(5, 7, 5, 1), pack_entry(5, 7, 5, 1, NEGATIVE), pack_entry(6, 1, 6, 1)]
    key, value = join_blob(FINE, 0, 12, entries, is_mixed=True)
    assert key.hex() == "020000000000000000000000000000000c0000000300000001"
    assert parse_blob_key(key) == (FINE, 0, 12, 3, 1)
    assert parse_blob_key(key).pack() == key
    assert value == b"".join(entries) + crc32(b"".join(entries), crc32(key)).to_bytes(4, "big")
    assert split_entries(value[:-4]) == entries


def test_rank_counts_the_entries_below_a_key() -> None:
    entries = [pack_entry(due, 1, 0, 0) for due in (1, 3, 3, 8)]
    run = memoryview(b"".join(entries))
    assert [rank(run, due.to_bytes(8, "big")) for due in range(10)] == [
        0,
        0,
        1,
        1,
        3,
        3,
        3,
        3,
        3,
        4,
    ]
    assert rank(run, (4).to_bytes(8, "big"), 2) == 3
    assert rank(memoryview(b""), b"x") == 0


def test_the_first_negative_entry_is_found_whether_it_is_a_mark_or_not() -> None:
    flags = [0, EXPIRY, EXPIRY | NEGATIVE, NEGATIVE]
    run = b"".join(pack_entry(due, 1, 0, 0, flag) for due, flag in enumerate(flags))
    assert first_negative(memoryview(run)) == 2
    assert first_negative(memoryview(run[3 * ENTRY_BYTES :])) == 0
    assert first_negative(memoryview(run[: 2 * ENTRY_BYTES])) is None
    assert has_negatives(split_entries(run))
    assert not has_negatives(split_entries(run)[:2])
