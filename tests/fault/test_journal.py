"""Every call of a journal's life fails once, and the power goes at every one of them.

The life: open a new journal, append over several segments, cover, drop and recycle, close, open
again, append into recycled segments, close, with and without all of it in the store. A first run
counts the calls; then there is one run for each of them. The law is the ledger's.
"""

import errno
from collections.abc import Callable, Iterator
from contextlib import suppress

import pytest

from kit.disk import Failure, FakeDisk, PowerLost
from kit.inodes import How
from kit.journals import PLACE, SMALL, append_all, body, open_journal, replayed
from kit.ledger import Ledger, close_quietly
from parkade.store.errors import NoRoom, ReadFailed, StoreError, WriteFailed
from parkade.store.journal import Journal

Step = Callable[[Journal], object]

LARGE_BYTES = 2_000


class Life:
    """One run of the script on one disk. A step that fails is followed by a new open."""

    def __init__(self, disk: FakeDisk, mode: str = "disk") -> None:
        self.disk = disk
        self.mode = mode
        self.ledger = Ledger()
        self.journal: Journal | None = None
        self.opens = 0
        self.failures: list[StoreError] = []

    def run(self) -> None:
        self.disk.make_directories("/home/shard-003")
        for step in self.steps():
            journal = self.journal or self.open()
            try:
                step(journal)
            except NoRoom as error:
                # Nothing was written: the journal goes on.
                self.failures.append(error)
            except StoreError as error:
                self.failures.append(error)
                close_quietly(journal)
                self.journal = None

    def steps(self) -> Iterator[Step]:
        yield lambda journal: journal.prepare_spare()
        yield from self.appends(1, 46)
        yield lambda journal: journal.write_covering_frame()
        yield lambda journal: self.ledger.drop(journal, 30)
        yield from self.appends(46, 52)
        yield lambda journal: self.ledger.drop(journal, 45)
        yield self.close
        # The first frame of a life that its first segment is too small for.
        yield lambda journal: journal.has_room(LARGE_BYTES)
        yield lambda journal: journal.prepare_spare()
        yield lambda journal: self.ledger.append(journal, b"L" * LARGE_BYTES)
        yield from self.appends(52, 96)
        yield lambda journal: self.ledger.drop(journal, 90)
        yield self.close
        # A life whose last segment is worth giving back, for the store has all of it.
        yield from self.appends(96, 106)
        yield lambda journal: self.ledger.drop(journal, journal.last_lsn)
        yield self.close
        yield from self.appends(106, 108)
        yield self.close

    def appends(self, first: int, last: int) -> Iterator[Step]:
        def append(number: int) -> Step:
            return lambda journal: self.ledger.append(journal, body(number))

        for number in range(first, last):
            yield append(number)
            if number % 7 == 0:
                yield lambda journal: journal.prepare_spare()

    def close(self, journal: Journal) -> None:
        journal.close(clean=True, stored_lsn=self.ledger.store_lsn)
        self.journal = None

    def open(self) -> Journal:
        """Opens until it succeeds: no fault is for ever."""
        self.opens += 1
        is_new = not any(offer.lsn for offer in self.ledger.offers)
        journal = None
        try:
            journal = open_journal(
                self.disk,
                store_lsn=self.ledger.store_lsn,
                mode=self.mode,
                is_new=is_new,
                seed=self.opens,
            )
            frames = list(journal.replay())
        except (WriteFailed, ReadFailed, NoRoom) as error:
            self.failures.append(error)
            close_quietly(journal)
            return self.open()
        self.ledger.check(journal, frames)
        self.journal = journal
        return journal


def count_calls(mode: str = "disk") -> int:
    disk = FakeDisk()
    life = Life(disk, mode)
    life.run()
    assert not life.failures
    return disk.number


def reopened(life: Life, disk: FakeDisk, seed: int = 100) -> Journal:
    """A later open by a new process: what is there obeys the ledger."""
    is_new = not any(offer.lsn for offer in life.ledger.offers)
    if is_new:
        disk.make_directories("/home/shard-003")
    journal = open_journal(
        disk, store_lsn=life.ledger.store_lsn, mode=life.mode, is_new=is_new, seed=seed
    )
    life.ledger.check(journal, list(journal.replay()))
    return journal


@pytest.mark.parametrize("how", ["before", "after", "short"])
@pytest.mark.parametrize("code", [errno.EIO, errno.ENOSPC])
def test_when_any_call_fails_once_what_was_answered_survives_the_next_power_cut(
    code: int, how: Failure
) -> None:
    answered = 0
    for number in range(1, count_calls() + 1):
        disk = FakeDisk()
        disk.keeps_calls = False
        disk.fail(number, code, how)
        life = Life(disk)
        try:
            life.run()
        except OSError:
            # The directory above the journal could not be made: there is no journal yet.
            assert disk.number <= 12
            continue
        answered += sum(offer.lsn > 0 for offer in life.ledger.offers)
        assert not disk.open_handles(), "whatever failed, no file stays open"
        close_quietly(reopened(life, disk.copy()))
        journal = reopened(life, disk.power_cut("lost"))
        journal.prepare_spare()
        life.ledger.append(journal, b"the life after")
    assert answered > 90 * count_calls()


@pytest.mark.parametrize(
    ("how", "chance"), [("lost", 0), ("landed", 0), ("torn", 1), ("torn", 2), ("torn", 3)]
)
def test_when_the_power_goes_at_any_call_what_was_answered_survives(how: How, chance: int) -> None:
    for number in range(1, count_calls() + 1):
        disk = FakeDisk()
        disk.keeps_calls = False
        disk.cut_at(number)
        life = Life(disk)
        with pytest.raises(PowerLost):
            life.run()
        disk = disk.power_cut(how, chance)
        journal = reopened(life, disk)
        journal.prepare_spare()
        life.ledger.append(journal, b"the life after")
        reopened(life, disk.power_cut(how, chance), seed=101)


def test_when_the_power_goes_during_recovery_the_next_recovery_finds_the_same() -> None:
    disk = FakeDisk()
    life = Life(disk)
    disk.cut_at(count_calls() - 40)
    with pytest.raises(PowerLost):
        life.run()
    torn = disk.power_cut("torn", 7)
    found = reopened(life, torn.copy())
    expected = [frame.body for frame in found.replay()]
    calls = torn.copy()
    reopened(life, calls, seed=101)
    for number in range(1, calls.number + 1):
        for how in ("lost", "landed", "torn"):
            again = torn.copy()
            again.cut_at(number)
            with pytest.raises(PowerLost):
                reopened(life, again, seed=101)
            journal = reopened(life, again.power_cut(how, number), seed=102)
            assert [frame.body for frame in journal.replay()] == expected


def test_when_the_power_goes_while_a_killed_life_is_taken_up_the_next_finds_the_same() -> None:
    """A segment that it was taking away may come back by its name: nothing else is written into
    its file before it cannot."""

    def killed(at: int) -> FakeDisk:
        disk = FakeDisk()
        disk.make_directories(PLACE.rpartition("/")[0])
        journal = open_journal(disk, is_new=True)
        append_all(journal, [body(number) for number in range(1, 41)])
        journal.append(body(41), 1)
        assert not journal.spares
        disk.cut_at(disk.number + at)
        with pytest.raises(PowerLost):
            journal.drop_through(30)
        return disk.crash()

    for at in (1, 2):
        taken_up = killed(at)
        open_journal(taken_up, store_lsn=30, store_epoch=1, seed=1)
        for number in range(1, taken_up.number + 1):
            disk = killed(at)
            disk.cut_at(number)
            with pytest.raises(PowerLost):
                open_journal(disk, store_lsn=30, store_epoch=1, seed=1)
            journal = open_journal(disk.power_cut("lost"), store_lsn=30, store_epoch=1, seed=2)
            assert replayed(journal) == [body(number) for number in range(31, 42)]


def test_when_the_process_is_killed_at_any_call_in_process_mode_what_was_answered_survives() -> (
    None
):
    for number in range(1, count_calls("process") + 1):
        disk = FakeDisk()
        disk.keeps_calls = False
        disk.cut_at(number)
        life = Life(disk, "process")
        with pytest.raises(PowerLost):
            life.run()
        reopened(life, disk.crash())


@pytest.mark.parametrize("chance", range(3))
def test_when_the_power_goes_in_process_mode_a_beginning_of_the_log_is_left(chance: int) -> None:
    for number in range(1, count_calls("process") + 1, 3):
        disk = FakeDisk()
        disk.keeps_calls = False
        disk.cut_at(number)
        life = Life(disk, "process")
        with pytest.raises(PowerLost):
            life.run()
        disk = disk.power_cut("torn", chance)
        offered = [offer.body for offer in life.ledger.offers]
        store_lsn = life.ledger.store_lsn
        disk.make_directories("/home/shard-003")
        journal = open_journal(
            disk, store_lsn=store_lsn, mode="process", is_new=not offered, seed=100
        )
        frames = list(journal.replay())
        found = [frame.body for frame in frames]
        assert found == offered[store_lsn : store_lsn + len(found)]
        assert journal.next_lsn == store_lsn + len(found) + 1


def test_a_failed_open_leaves_no_file_open_behind_it() -> None:
    disk = FakeDisk()
    life = Life(disk)
    life.run()
    counting = disk.copy()
    open_journal(counting, store_lsn=life.ledger.store_lsn, seed=9)
    for number in range(1, counting.number + 1):
        failing = disk.copy()
        failing.fail(number)
        with suppress(StoreError):
            journal = open_journal(failing, store_lsn=life.ledger.store_lsn, seed=9)
            journal.close(clean=False)
        assert failing.open_handles() == [], failing.calls[number - 1]


def test_a_dead_journal_answers_every_later_call_with_the_failure() -> None:
    disk = FakeDisk()
    journal = open_journal(disk, is_new=True)
    journal.prepare_spare()
    journal.append(b"one", 1)
    disk.fail(lambda call: call.name == "pwrite_durable")
    with pytest.raises(WriteFailed, match="Input/output error"):
        journal.append(b"two", 1)
    before = disk.number
    for call in (
        lambda: journal.append(b"three", 1),
        journal.write_covering_frame,
        journal.prepare_spare,
        lambda: journal.drop_through(1),
    ):
        with pytest.raises(WriteFailed, match="it failed before and was not reopened"):
            call()
    assert not journal.has_room() and not journal.has_spare and not journal.fits(1)
    assert disk.number == before
    journal.close(clean=True)
    assert disk.counts["close"] == disk.counts["open"]


def test_a_full_disk_is_met_by_preparing_a_spare_and_never_by_an_append() -> None:
    segment = SMALL.segment_bytes_first
    disk = FakeDisk(capacity_bytes=3 * segment)
    journal = open_journal(disk, is_new=True)
    appended = 0
    refused = 0
    for number in range(200):
        try:
            journal.prepare_spare()
        except NoRoom:
            refused += 1
            # What comes in is refused, what must go on uses the rest of the room.
            assert not journal.has_room()
            if not journal.fits(16):
                break
        journal.append(body(number), 1)
        appended += 1
    # From the third on a segment is no larger than it must be, for little was free.
    assert (refused, appended) == (2, 44)
    assert journal.drop_through(44) == 7
    assert journal.has_room()
    assert journal.append(b"it resumes by itself", 1) == 45


def test_a_full_disk_can_still_be_opened_with_the_spare_of_the_last_life() -> None:
    disk = FakeDisk(capacity_bytes=2 * SMALL.segment_bytes_first)
    journal = open_journal(disk, is_new=True)
    journal.prepare_spare()
    journal.append(b"one", 1)
    journal.close(clean=False)
    journal = open_journal(disk, seed=1)
    journal.append(b"two", 1)
    with pytest.raises(NoRoom):
        for _ in range(3):
            journal.prepare_spare()
            journal.append(b"three" * 100, 1)
