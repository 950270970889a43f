"""Looking at a journal that its owner changes meanwhile."""

import pytest

from kit.disk import Call, FakeDisk
from kit.journals import PLACE, SALT, SHARD, append_all, body, open_journal, segment_paths
from parkade.store.errors import Damage, ReadFailed
from parkade.store.inspection import LOOKS_MAX, inspect, read_only_frames

BODIES = [body(number) for number in range(1, 31)]


def written() -> FakeDisk:
    disk = FakeDisk()
    append_all(open_journal(disk, is_new=True), BODIES)
    return disk


def bodies_seen(disk: FakeDisk) -> list[bytes]:
    frames = read_only_frames(disk, PLACE, salt=SALT, shard=SHARD, store_lsn=0)
    return [frame.body for frame in frames]


def test_a_file_that_goes_between_the_listing_and_the_read_is_looked_for_again() -> None:
    disk = written()
    disk.fail(lambda call: call.name == "open", 2, times=LOOKS_MAX - 1)
    assert bodies_seen(disk) == BODIES
    disk.fail(lambda call: call.name == "open", 2, times=LOOKS_MAX)
    with pytest.raises(ReadFailed):
        bodies_seen(disk)


def test_damage_that_is_gone_at_the_second_look_was_a_write_under_way() -> None:
    disk = written()
    path = segment_paths(disk)[0]
    disk.flip(path, 100)
    looks = 0

    def mend(call: Call) -> bool:
        nonlocal looks
        looks += call.name == "listdir"
        if looks == 2 and call.name == "listdir":
            disk.flip(path, 100)
        return False

    disk.fail(mend)
    report = inspect(disk, PLACE, SALT, SHARD, 0)
    assert (looks, report.damage, report.last_lsn) == (2, None, 30)


def test_damage_that_stays_is_told_by_both_ways_of_looking() -> None:
    disk = written()
    disk.flip(segment_paths(disk)[0], 100)
    report = inspect(disk, PLACE, SALT, SHARD, 0)
    assert report.damage is not None and report.damage.offset == 64
    with pytest.raises(Damage):
        bodies_seen(disk)


def test_another_read_error_is_no_reason_to_look_again() -> None:
    disk = written()
    disk.fail(lambda call: call.name == "pread")
    with pytest.raises(ReadFailed):
        inspect(disk, PLACE, SALT, SHARD, 0)
    assert disk.counts["listdir"] <= 3


def test_a_missing_journal_is_reported_as_damage() -> None:
    report = inspect(FakeDisk(), PLACE, SALT, SHARD, 0)
    assert report.damage is not None and "missing" in report.damage.reason
    disk = FakeDisk()
    disk.make_directories(PLACE)
    assert inspect(disk, PLACE, SALT, SHARD, 0).damage is not None
