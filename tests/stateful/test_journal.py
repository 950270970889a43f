"""A journal is a list of byte strings, whatever happens to it between two lives.

The model is that list. While the journal is closed its files may be cut, flipped, littered and
left to a power cut; what must be refused is refused and repaired by undoing the change, what must
be kept is kept.
"""

from collections import Counter

from hypothesis import strategies as st
from hypothesis.stateful import (
    RuleBasedStateMachine,
    initialize,
    invariant,
    precondition,
    rule,
    run_state_machine_as_test,
)

from kit.disk import FakeDisk
from kit.journals import PLACE, SALT, SHARD, SMALL, open_journal, segment_paths
from parkade.store.errors import Damage, NoRoom, WriteFailed
from parkade.store.journal import Journal, inspect
from parkade.store.segment import HEADER_BYTES, scan_directory

FAILURES = ["before", "after", "short"]

# How often the machine got anywhere: a run that never does proves nothing.
REACHED: Counter[str] = Counter()


class JournalIsAList(RuleBasedStateMachine):
    """`records` is what was answered, the first of them LSN 1; `store_lsn` what a store has."""

    @initialize(count=st.integers(0, 60))
    def begin(self, count: int) -> None:
        self.disk = FakeDisk()
        self.disk.keeps_calls = False
        self.records: list[bytes] = []
        self.maybe: bytes | None = None
        self.store_lsn = 0
        self.epoch = 0
        self.seed = 0
        self.journal: Journal | None = None
        self.open(is_new=True)
        for number in range(count):
            self.append(b"record %d" % number)

    @precondition(lambda self: self.journal is None)
    @rule()
    def reopen(self) -> None:
        self.open(is_new=False)

    def open(self, *, is_new: bool) -> None:
        self.seed += 1
        journal = open_journal(
            self.disk, store_lsn=self.store_lsn, is_new=is_new, seed=self.seed, store_epoch=0
        )
        found = [frame.body for frame in journal.replay()]
        known = self.records[self.store_lsn :]
        if self.maybe is not None and found == [*known, self.maybe]:
            self.records.append(self.maybe)
        else:
            assert found == known
        self.maybe = None
        assert journal.epoch > self.epoch
        REACHED["opens"] += 1
        REACHED["opens with records to replay"] += bool(found)
        REACHED["opens over several segments"] += journal.segments > 2
        REACHED["opens behind a checkpoint"] += self.store_lsn > 0
        assert journal.next_lsn == len(self.records) + 1
        self.epoch = journal.epoch
        self.journal = journal

    @precondition(lambda self: self.journal is not None)
    @rule(body=st.binary(min_size=1, max_size=SMALL.frame_bytes_max))
    def append(self, body: bytes) -> None:
        assert self.journal is not None
        self.journal.prepare_spare()
        assert self.journal.has_room()
        self.records.append(body)
        assert self.journal.append(body, 1) == len(self.records)

    @precondition(lambda self: self.journal is not None)
    @rule(count=st.integers(5, 45), length=st.integers(1, SMALL.frame_bytes_max))
    def append_many(self, count: int, length: int) -> None:
        """Over a segment's end or two: single appends alone would never get there."""
        for number in range(count):
            self.append((b"%d " % (len(self.records) + number) * length)[:length])

    @precondition(lambda self: self.journal is not None)
    @rule(body=st.binary(min_size=SMALL.segment_bytes_first, max_size=2_000))
    def append_more_than_fits(self, body: bytes) -> None:
        assert self.journal is not None
        if not self.journal.fits(len(body)):
            try:
                self.journal.append(body, 1)
            except NoRoom:
                return
            raise AssertionError("it had no room")

    @precondition(lambda self: self.journal is not None)
    @rule(
        body=st.binary(min_size=1, max_size=16), how=st.sampled_from(["before", "after", "short"])
    )
    def append_to_a_failing_disk(self, body: bytes, how: str) -> None:
        assert self.journal is not None
        self.journal.prepare_spare()
        self.disk.fail(lambda call: call.name == "pwrite_durable", how=how)  # type: ignore[arg-type]
        try:
            self.journal.append(body, 1)
        except WriteFailed:
            self.maybe = body
        else:
            raise AssertionError("it failed and said nothing")
        REACHED["failed appends"] += 1
        self.journal.close(clean=False)
        self.journal = None

    @precondition(lambda self: self.journal is not None)
    @rule()
    def cover(self) -> None:
        assert self.journal is not None
        self.journal.write_covering_frame()
        assert not self.journal.write_covering_frame()

    @precondition(lambda self: self.journal is not None)
    @rule(back=st.integers(0, 30))
    def checkpoint(self, back: int) -> None:
        assert self.journal is not None
        self.store_lsn = max(self.store_lsn, len(self.records) - back)
        self.journal.drop_through(self.store_lsn)

    @precondition(lambda self: self.journal is not None)
    @rule(clean=st.booleans())
    def close(self, clean: bool) -> None:
        assert self.journal is not None
        self.journal.close(clean, stored_lsn=self.store_lsn)
        self.journal = None

    @rule(how=st.sampled_from(["lost", "landed", "torn"]), chance=st.integers(0, 1_000))
    def lose_power(self, how: str, chance: int) -> None:
        self.disk = self.disk.power_cut(how, chance)  # type: ignore[arg-type]
        self.disk.keeps_calls = False
        if self.journal is not None:
            self.journal = None

    @rule()
    def kill_the_process(self) -> None:
        self.disk = self.disk.crash()
        self.disk.keeps_calls = False
        if self.journal is not None:
            self.journal = None

    @precondition(lambda self: self.journal is None)
    @rule(litter=st.binary(min_size=1, max_size=200))
    def litter_the_end(self, litter: bytes) -> None:
        """What stands behind the last frame, a half-written frame say, was never answered."""
        scan = scan_directory(self.disk, PLACE, salt=SALT, shard=SHARD)[-1]
        self.disk.tamper(scan.path, max(scan.end, HEADER_BYTES), b"PKFR" + litter)

    @precondition(lambda self: self.journal is None)
    @rule(chance=st.integers(0, 1 << 30), bit=st.integers(0, 7))
    def flip_a_bit_that_is_proven(self, chance: int, bit: int) -> None:
        scans = scan_directory(self.disk, PLACE, salt=SALT, shard=SHARD)
        synced = max([s.header.synced_lsn for s in scans if s.header is not None], default=0)
        synced = max([synced, *(f.synced_lsn for s in scans for f in s.frames)])
        proven = [(s.path, f) for s in scans for f in s.frames if f.count and f.last_lsn <= synced]
        if not proven:
            return
        path, frame = proven[chance % len(proven)]
        offset = frame.offset + chance % frame.size
        self.disk.flip(path, offset, bit)
        REACHED["flips"] += 1
        before = self.disk.digest()
        try:
            open_journal(self.disk, store_lsn=self.store_lsn, seed=self.seed + 1)
        except Damage as damage:
            assert (damage.path, damage.offset) == (path, frame.offset)
        else:
            raise AssertionError(f"a flipped bit in {frame} was not found")
        assert self.disk.digest() == before
        self.disk.flip(path, offset, bit)

    @precondition(lambda self: self.journal is None)
    @rule(chance=st.integers(0, 100))
    def lose_a_file_that_is_needed(self, chance: int) -> None:
        paths = segment_paths(self.disk)
        if len(paths) < 3 or self.store_lsn > 0:
            return
        path = paths[chance % (len(paths) - 1)]
        content = self.disk.image()[path]
        scan = next(
            s for s in scan_directory(self.disk, PLACE, salt=SALT, shard=SHARD) if s.path == path
        )
        if not any(frame.count for frame in scan.frames):
            return
        REACHED["lost files"] += 1
        self.disk.discard(path)
        assert inspect(self.disk, PLACE, SALT, SHARD, self.store_lsn).damage is not None
        self.disk.install(path, content)

    @invariant()
    def look_without_touching(self) -> None:
        before = self.disk.digest()
        report = inspect(self.disk, PLACE, SALT, SHARD, self.store_lsn)
        assert report.damage is None
        assert report.last_lsn in (len(self.records), len(self.records) + (self.maybe is not None))
        assert self.disk.digest() == before


def test_a_journal_is_a_list_of_byte_strings_whatever_happens_to_it_while_closed() -> None:
    REACHED.clear()
    run_state_machine_as_test(JournalIsAList)
    seldom = {name: count for name, count in REACHED.items() if count < 5}
    assert len(REACHED) == 7 and not seldom, REACHED
