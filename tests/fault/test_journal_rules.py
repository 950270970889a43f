"""Each rule of the journal is broken once, on purpose, and its law notices.

A law is a function of a kind of journal that raises AssertionError, or lets Damage out, where the
rule is not kept. Every law holds for the journal itself; every broken journal fails the law it is
named with, so that no law is one that nothing could break.
"""

from collections.abc import Callable
from contextlib import suppress
from dataclasses import replace
from typing import Any

import pytest

from kit.disk import FakeDisk
from kit.journals import SMALL, append_all, body, open_journal, replayed, segment_paths
from kit.ledger import close_quietly
from parkade import opening
from parkade.store.acceptance import Run, RunPart
from parkade.store.errors import Damage, NoRoom, ReadFailed, StoreError, WriteFailed
from parkade.store.frame import HEAD_BYTES, FrameHead, frame_bytes
from parkade.store.journal import Journal, Sizing
from parkade.store.segment import HEADER_BYTES, SegmentName, SegmentWriter, scan_directory

Kind = type[Journal]
Law = Callable[[Kind], None]

LARGE_BYTES = 1_200


# Rule 1: acceptance


def what_is_appended_behind_a_torn_tail_survives(kind: Kind) -> None:
    disk = FakeDisk()
    append_all(open_journal(disk, kind=kind, is_new=True), [body(1), body(2)])
    disk = disk.crash()
    path = segment_paths(disk)[-1]
    disk.tamper(path, HEADER_BYTES + 56 + 44, b"torn")
    journal = open_journal(disk, kind=kind, seed=1)
    assert replayed(journal) == [body(1)]
    journal.append(b"second", 1)
    journal = open_journal(disk.power_cut(), kind=kind, seed=2)
    assert replayed(journal) == [body(1), b"second"]


def what_was_cut_is_gone_from_the_file(kind: Kind) -> None:
    disk = FakeDisk()
    append_all(open_journal(disk, kind=kind, is_new=True), [body(1), body(2)])
    disk = disk.crash()
    path = segment_paths(disk)[-1]
    disk.tamper(path, HEADER_BYTES + 56 + 44, b"torn")
    open_journal(disk, kind=kind, seed=1)
    behind = HEAD_BYTES  # that the log goes on in another file
    assert len(disk.power_cut().image()[path]) == HEADER_BYTES + 56 + behind


def a_run_that_ends_before_the_proof_is_refused(kind: Kind) -> None:
    disk = FakeDisk()
    append_all(open_journal(disk, kind=kind, is_new=True), [body(n) for n in range(1, 31)])
    disk = disk.crash()
    path = segment_paths(disk)[0]
    disk.flip(path, HEADER_BYTES + 19 * 56 + 44)
    before = disk.digest()
    with suppress(Damage):
        open_journal(disk, kind=kind, seed=1)
        raise AssertionError("damage was cut as if it were a tear")
    assert disk.digest() == before


def a_journal_below_the_stores_lsn_is_refused(kind: Kind) -> None:
    disk = FakeDisk()
    append_all(open_journal(disk, kind=kind, is_new=True), [body(1)])
    with suppress(Damage):
        open_journal(disk.crash(), kind=kind, store_lsn=2, seed=1)
        raise AssertionError("the journal lost what the store has, and nobody said so")


def a_missing_journal_is_no_fresh_start(kind: Kind) -> None:
    disk = FakeDisk()
    open_journal(disk, kind=kind, is_new=True).close(clean=True)
    for path in segment_paths(disk):
        disk.discard(path)
    with suppress(Damage):
        open_journal(disk.crash(), kind=kind, seed=1)
        raise AssertionError("a lost journal was taken for a new one")


def a_read_error_refuses_and_never_cuts(kind: Kind) -> None:
    disk = FakeDisk()
    append_all(open_journal(disk, kind=kind, is_new=True), [body(1), body(2)])
    disk = disk.crash()
    disk.fail(lambda call: call.name == "pread")
    with suppress(ReadFailed):
        open_journal(disk, kind=kind, seed=1)
    assert replayed(open_journal(disk.crash(), kind=kind, seed=2)) == [body(1), body(2)]


def a_journal_of_another_directory_or_shard_is_refused(kind: Kind) -> None:
    for salt, shard in ((b"other", 3), (b"\x11\x22\x33\x44\x55", 4)):
        disk = FakeDisk()
        open_journal(disk, kind=kind, is_new=True).close(clean=True)
        with suppress(Damage):
            kind.open(
                disk,
                "/home/shard-003/journal",
                salt=salt,
                shard=shard,
                store_lsn=0,
                store_epoch=0,
                sizing=SMALL,
            )
            raise AssertionError("somebody else's journal was opened")


class AppendsBehindTheGarbage(Journal):
    """Goes on in the file with the torn tail, behind all that stands there."""

    def _cut(self, handle: int, part: RunPart) -> None:
        return

    def _begin(self, run: Run, store_lsn: int, store_epoch: int) -> None:
        super()._begin(run, store_lsn, store_epoch)
        if run.parts:
            scan = run.parts[-1].scan
            assert scan.header is not None
            handle = self._disk.open(scan.path)
            again = SegmentWriter(self._disk, handle, scan.path, scan.header, scan.size_bytes)
            again.end = run.end + 56
            self._active = again


class EndsNoRun(Journal):
    """Leaves the torn tail where it is, and what the log goes on from unsaid."""

    def _cut(self, handle: int, part: RunPart) -> None:
        return

    def _mark_goes_on(self, part: RunPart) -> None:
        return


class KnowsNoProof(Journal):
    """Takes whatever run there is, forgetting all that says it must be longer."""

    def _accept(self, store_lsn: int, *, is_new: bool) -> Run:
        scans = scan_directory(self._disk, self.directory, salt=self._salt, shard=self._shard)
        if not scans and not is_new:
            raise Damage(self.directory, 0, "missing")
        first = scans[:1]
        if not first:
            return Run(0, 0)
        taken = tuple(frame for frame in first[0].frames if frame.offset < first[0].end)
        last = taken[-1].last_lsn if taken else 0
        parts = [RunPart(first[0], taken)] if taken else []
        return Run(last, 0, parts, [] if taken else first, scans[1:])


class BelievesAMissingJournalIsNew(Journal):
    """Begins afresh where nothing is found."""

    def _accept(self, store_lsn: int, *, is_new: bool) -> Run:
        return super()._accept(store_lsn, is_new=True)


class TakesAReadErrorForTheEnd(Journal):
    """Believes that what cannot be read is not there."""

    def _accept(self, store_lsn: int, *, is_new: bool) -> Run:
        try:
            return super()._accept(store_lsn, is_new=is_new)
        except ReadFailed:
            for path in segment_paths(self._disk, self.directory):
                self._disk.unlink(path)
            return Run(store_lsn, store_lsn)


class AsksNotWhoseItIs(Journal):
    """Opens whatever journal it is pointed at."""

    def _accept(self, store_lsn: int, *, is_new: bool) -> Run:
        try:
            return super()._accept(store_lsn, is_new=is_new)
        except Damage as damage:
            if "belongs to" not in damage.reason:
                raise
            return Run(store_lsn, store_lsn)


# Rule 2: the accepted tail


def what_an_open_accepted_after_a_failed_sync_survives_a_power_cut(kind: Kind) -> None:
    disk = FakeDisk()
    journal = open_journal(disk, kind=kind, is_new=True)
    journal.append(body(1), 1)
    # The bytes are written, the sync fails: they read well and are on no disk.
    disk.fail(lambda call: call.name == "pwrite_durable", how="after")
    with suppress(WriteFailed):
        journal.append(body(2), 1)
    close_quietly(journal)
    accepted = open_journal(disk, kind=kind, seed=1)
    found = replayed(accepted)
    assert found == [body(1), body(2)]
    accepted.append(body(3), 1)
    assert replayed(open_journal(disk.power_cut(), kind=kind, seed=2)) == [*found, body(3)]


def what_an_open_accepted_from_the_page_cache_survives_a_power_cut(kind: Kind) -> None:
    disk = FakeDisk()
    append_all(open_journal(disk, kind=kind, is_new=True, mode="process"), [body(1), body(2)])
    disk = disk.crash()
    found = replayed(open_journal(disk, kind=kind, seed=1))
    assert found == [body(1), body(2)]
    assert replayed(open_journal(disk.power_cut(), kind=kind, seed=2)) == found


class TrustsAFailedSyncsPages(Journal):
    """Syncs the accepted tail without writing it again, or anything else into its sector."""

    def _write_again(self, handle: int, last: FrameHead) -> None:
        return

    def _mark_goes_on(self, part: RunPart) -> None:
        return


class TrustsThePageCache(Journal):
    """Neither writes nor syncs what it accepted."""

    def _make_durable(self, part: RunPart, *, is_last: bool) -> None:
        return


# Rule 3: covering frames


def a_flipped_bit_in_the_last_record_is_found_after_a_clean_close(kind: Kind) -> None:
    disk = FakeDisk()
    journal = open_journal(disk, kind=kind, is_new=True)
    append_all(journal, [body(1), body(2)])
    journal.close(clean=True)
    assert_the_last_record_is_watched(kind, disk)


def a_flipped_bit_in_the_last_record_is_found_after_an_idle_second(kind: Kind) -> None:
    disk = FakeDisk()
    journal = open_journal(disk, kind=kind, is_new=True)
    append_all(journal, [body(1), body(2)])
    journal.write_covering_frame()
    assert_the_last_record_is_watched(kind, disk.power_cut())


def assert_the_last_record_is_watched(kind: Kind, disk: FakeDisk) -> None:
    disk.flip(segment_paths(disk)[-1], HEADER_BYTES + 56 + HEAD_BYTES)
    with suppress(Damage):
        open_journal(disk, kind=kind, seed=1)
        raise AssertionError("an acknowledged record was cut")


class CoversNothing(Journal):
    """Writes no empty frame, neither when idle nor at the end."""

    def _cover(self) -> bool:
        return False


# Rule 4: room first


def an_append_that_was_promised_room_meets_no_full_disk(kind: Kind) -> None:
    sizing = replace(SMALL, reserve_bytes=2 * frame_bytes(16))
    disk = FakeDisk(capacity_bytes=2 * SMALL.segment_bytes_first)
    journal = open_journal(disk, kind=kind, is_new=True, sizing=sizing)
    number = 0
    for number in range(200):
        with suppress(NoRoom):
            journal.prepare_spare()
        if not journal.has_room():
            break
        try:
            journal.append(body(number), 1)
        except StoreError as error:
            raise AssertionError("the room that was promised is not there") from error
    assert 20 <= number < 100
    outcomes = 0
    while journal.fits(16):
        journal.append(body(outcomes), 1)
        outcomes += 1
    assert outcomes >= 2


class PromisesRoomItHasNot(Journal):
    """Says there is room, and looks for it when it is needed."""

    def has_room(self, body_bytes: int = 0) -> bool:
        return True


class AllocatesInTheTurn(Journal):
    """Makes the next file when the last is full, whatever the disk has to say."""

    def has_room(self, body_bytes: int = 0) -> bool:
        return True

    def append(self, body: bytes, count: int) -> int:
        if self._active is not None and self._active.body_bytes_max < len(body):
            self.prepare_spare()
        return super().append(body, count)


# Rule 5: a failed append


def nothing_answered_after_a_failed_sync_is_lost(kind: Kind) -> None:
    # Frames of more than a sector: a frame of its own sectors is not saved by its neighbour.
    sizing = Sizing(1 << 14, 1 << 14, frame_bytes_max=LARGE_BYTES, reserve_bytes=0)
    bodies = [bytes([number]) * LARGE_BYTES for number in range(5)]
    disk = FakeDisk()
    journal = open_journal(disk, kind=kind, is_new=True, sizing=sizing)
    journal.append(bodies[0], 1)
    disk.fail(lambda call: call.name == "pwrite_durable", how="after")
    with suppress(WriteFailed):
        journal.append(bodies[1], 1)
    answered = [bodies[0]]
    for each in bodies[2:]:
        try:
            journal.append(each, 1)
        except WriteFailed:
            close_quietly(journal)
            journal = open_journal(disk, kind=kind, seed=each[0], sizing=sizing)
            journal.append(each, 1)
        answered.append(each)
    found = replayed(open_journal(disk.power_cut(), kind=kind, seed=9, sizing=sizing))
    assert [each for each in found if each in answered] == answered


class TriesAgainOnTheSameDescriptor(Journal):
    """Goes on behind a frame whose sync failed as if nothing had been."""

    def _write(self, active: SegmentWriter, body: bytes, count: int) -> None:
        try:
            super()._write(active, body, count)
        except WriteFailed:
            self._failure = None
            active.end += frame_bytes(len(body))
            self.next_lsn += count
            raise


# Rule 6: directories, dropping


def what_a_new_segment_holds_survives_a_power_cut(kind: Kind) -> None:
    disk = FakeDisk()
    disk.make_directories("/home/shard-003/journal")
    journal = open_journal(disk, kind=kind, is_new=True)
    bodies = [body(n) for n in range(1, 31)]
    append_all(journal, bodies)
    assert replayed(open_journal(disk.power_cut(), kind=kind, seed=1, is_new=True)) == bodies


def a_segment_with_a_record_the_store_has_not_is_kept(kind: Kind) -> None:
    disk = FakeDisk()
    journal = open_journal(disk, kind=kind, is_new=True)
    bodies = [body(n) for n in range(1, 51)]
    append_all(journal, bodies)
    assert journal.drop_through(19) == 0
    journal = open_journal(disk.power_cut(), kind=kind, store_lsn=19, seed=1)
    assert replayed(journal) == bodies[19:]


def segments_the_store_has_are_dropped_and_the_active_one_is_not(kind: Kind) -> None:
    disk = FakeDisk()
    journal = open_journal(disk, kind=kind, is_new=True)
    append_all(journal, [body(n) for n in range(1, 51)])
    assert journal.drop_through(50) == 2
    assert journal.segments == 1
    assert len(segment_paths(disk)) == 1
    assert open_journal(disk.power_cut(), kind=kind, store_lsn=50, seed=1).next_lsn == 51


def a_power_cut_while_segments_go_leaves_neighbours(kind: Kind) -> None:
    for seed in range(12):
        disk = FakeDisk()
        journal = open_journal(disk, kind=kind, is_new=True)
        append_all(journal, [body(n) for n in range(1, 71)])
        disk.fail(lambda call: call.name == "fsync_directory", times=1)
        with suppress(WriteFailed):
            journal.drop_through(60)
        disk.fail(lambda call: call.name == "fsync_directory", times=1)
        with suppress(WriteFailed):
            journal.drop_through(60)
        try:
            open_journal(disk.power_cut("torn", seed), kind=kind, store_lsn=60, seed=1)
        except Damage as damage:
            raise AssertionError("a gap between files") from damage


def each_file_has_a_salt_of_its_own_whenever_it_is_made(kind: Kind) -> None:
    disk = FakeDisk()
    journal = open_journal(disk, kind=kind, is_new=True)
    append_all(journal, [body(n) for n in range(1, 51)])
    salts = [segment.salt for segment in map(named, segment_paths(disk))]
    journal.drop_through(50)
    append_all(journal, [body(n) for n in range(51, 76)])  # into what was dropped
    salts += [segment.salt for segment in map(named, segment_paths(disk)) if segment.first_lsn > 50]
    assert len(set(salts)) == len(salts)


def named(path: str) -> SegmentName:
    found = SegmentName.parse(path.rpartition("/")[2])
    assert found is not None
    return found


class GivesEachSegmentTheSameSalt(Journal):
    """Draws one salt for all."""

    def __init__(self, *given: Any, **named: Any) -> None:
        super().__init__(*given, **named)
        self._entropy = bytes


class NeverSyncsItsDirectory(Journal):
    """Makes and renames files and leaves it at that."""

    def _sync_directory(self) -> None:
        return


class DropsTooMuch(Journal):
    """Drops a segment as soon as the store has its first record."""

    def drop_through(self, lsn: int) -> int:
        while self._sealed and self._sealed[0].last_lsn - 19 <= lsn:
            self._drop_first()
        return 0


class DropsTheActiveOne(Journal):
    """Drops every segment whose records the store has."""

    def drop_through(self, lsn: int) -> int:
        dropped = super().drop_through(lsn)
        if self._active is not None and 1 < self.next_lsn <= lsn + 1 and dropped:
            self._disk.unlink(self._active.path)
            self._sync_directory()
        return dropped


class ForgetsAFailedDirectorySync(Journal):
    """Removes the next name though the last one may come back."""

    def _sync_removed(self) -> None:
        if self._needs_directory_sync:
            self._needs_directory_sync = False
            self._sync_directory()


# Rule 7: the other modes


def process_mode_syncs_no_frame_and_survives_the_end_of_the_process(kind: Kind) -> None:
    disk = FakeDisk()
    journal = open_journal(disk, kind=kind, is_new=True, mode="process")
    journal.prepare_spare()
    before = disk.counts.copy()
    bodies = [body(n) for n in range(1, 16)]
    for each in bodies:
        journal.append(each, 1)
    assert (disk.counts - before) == {"pwrite": 15}
    journal = open_journal(disk.crash(), kind=kind, mode="process", seed=1)
    assert replayed(journal) == bodies


def process_mode_accepts_a_store_that_is_ahead(kind: Kind) -> None:
    disk = FakeDisk()
    append_all(
        open_journal(disk, kind=kind, is_new=True, mode="process"), [body(n) for n in range(1, 16)]
    )
    # In disk mode too: it is the lost records' mode that counts, not that of the new life.
    for mode in ("process", "disk"):
        left = disk.power_cut()
        try:
            journal = open_journal(left, kind=kind, mode=mode, store_lsn=12, seed=1)
        except Damage as damage:
            raise AssertionError("what was never synced was missed") from damage
        assert journal.next_lsn == 13 and replayed(journal) == []
        journal.append(b"next", 1)
        again = open_journal(left.crash(), kind=kind, mode=mode, store_lsn=12, seed=2)
        assert replayed(again) == [b"next"]


def process_mode_proves_nothing_that_was_not_synced(kind: Kind) -> None:
    for seed in range(20):
        disk = FakeDisk()
        journal = open_journal(disk, kind=kind, is_new=True, mode="process")
        bodies = [body(n) for n in range(1, 46)]
        append_all(journal, bodies)
        journal.write_covering_frame()
        try:
            journal = open_journal(disk.power_cut("torn", seed), kind=kind, mode="process", seed=1)
        except Damage as damage:
            raise AssertionError("a loss that the mode allows was called damage") from damage
        found = replayed(journal)
        assert found == bodies[: len(found)]


def memory_mode_syncs_nothing(kind: Kind) -> None:
    disk = FakeDisk()
    disk.make_directories("/home/shard-003/journal")
    before = disk.counts.copy()
    journal = open_journal(disk, kind=kind, is_new=True, mode="memory")
    append_all(journal, [body(n) for n in range(1, 46)])
    journal.drop_through(40)
    journal.close(clean=True)
    assert not {"fdatasync", "pwrite_durable"} & set(disk.counts - before)
    journal = open_journal(disk, kind=kind, mode="memory", store_lsn=40, seed=1)
    assert replayed(journal) == [body(n) for n in range(41, 46)]


class SyncsInEveryMode(Journal):
    """Knows only one kind of durability."""

    def _write(self, active: SegmentWriter, body: bytes, count: int) -> None:
        super()._write(active, body, count)
        self._disk.fdatasync(active.handle)


class WantsAllOfTheStoresRecords(Journal):
    """Holds a journal of process mode to what only disk mode promises."""

    def _accept(self, store_lsn: int, *, is_new: bool) -> Run:
        run = super()._accept(store_lsn, is_new=is_new)
        if run.last_lsn < store_lsn:
            raise Damage(self.directory, 0, "the store is ahead")
        return run


class ClaimsWhatItDidNotSync(Journal):
    """Says in every frame that those before it are durable."""

    def _write(self, active: SegmentWriter, body: bytes, count: int) -> None:
        super()._write(active, body, count)
        self.synced_lsn = self.next_lsn - 1


LAWS: tuple[tuple[int, Law, tuple[Kind, ...]], ...] = (
    (1, what_is_appended_behind_a_torn_tail_survives, (AppendsBehindTheGarbage,)),
    (1, what_was_cut_is_gone_from_the_file, (EndsNoRun,)),
    (1, a_run_that_ends_before_the_proof_is_refused, (KnowsNoProof,)),
    (1, a_journal_below_the_stores_lsn_is_refused, (KnowsNoProof,)),
    (1, a_missing_journal_is_no_fresh_start, (BelievesAMissingJournalIsNew,)),
    (1, a_read_error_refuses_and_never_cuts, (TakesAReadErrorForTheEnd,)),
    (1, a_journal_of_another_directory_or_shard_is_refused, (AsksNotWhoseItIs,)),
    (2, what_an_open_accepted_after_a_failed_sync_survives_a_power_cut, (TrustsAFailedSyncsPages,)),
    (2, what_an_open_accepted_from_the_page_cache_survives_a_power_cut, (TrustsThePageCache,)),
    (3, a_flipped_bit_in_the_last_record_is_found_after_a_clean_close, (CoversNothing,)),
    (3, a_flipped_bit_in_the_last_record_is_found_after_an_idle_second, (CoversNothing,)),
    (
        4,
        an_append_that_was_promised_room_meets_no_full_disk,
        (PromisesRoomItHasNot, AllocatesInTheTurn),
    ),
    (5, nothing_answered_after_a_failed_sync_is_lost, (TriesAgainOnTheSameDescriptor,)),
    (6, what_a_new_segment_holds_survives_a_power_cut, (NeverSyncsItsDirectory,)),
    (6, a_segment_with_a_record_the_store_has_not_is_kept, (DropsTooMuch,)),
    (6, segments_the_store_has_are_dropped_and_the_active_one_is_not, (DropsTheActiveOne,)),
    (6, a_power_cut_while_segments_go_leaves_neighbours, (ForgetsAFailedDirectorySync,)),
    (6, each_file_has_a_salt_of_its_own_whenever_it_is_made, (GivesEachSegmentTheSameSalt,)),
    (7, process_mode_syncs_no_frame_and_survives_the_end_of_the_process, (SyncsInEveryMode,)),
    (7, process_mode_accepts_a_store_that_is_ahead, (WantsAllOfTheStoresRecords,)),
    (7, process_mode_proves_nothing_that_was_not_synced, (ClaimsWhatItDidNotSync,)),
    (7, memory_mode_syncs_nothing, (SyncsInEveryMode,)),
)

BROKEN = [
    pytest.param(law, kind, id=f"rule-{number}-{kind.__name__}-{law.__name__}")
    for number, law, kinds in LAWS
    for kind in kinds
]


@pytest.mark.parametrize(
    "law", [pytest.param(law, id=f"rule-{number}-{law.__name__}") for number, law, _ in LAWS]
)
def test_the_journal_keeps_the_law_of_the_rule(law: Law) -> None:
    law(vars(opening)["Journal"])  # the one that an engine opens


@pytest.mark.parametrize(("law", "kind"), BROKEN)
def test_a_journal_that_breaks_the_rule_is_caught_by_its_law(law: Law, kind: Kind) -> None:
    with pytest.raises((AssertionError, Damage)):
        law(kind)


def test_every_rule_has_a_law_and_every_law_a_journal_that_breaks_it() -> None:
    assert {number for number, _, _ in LAWS} == set(range(1, 8))
    assert all(kinds for _, _, kinds in LAWS)
