"""The journal of one shard: an unbroken run of records, numbered by LSN, in a directory of files.

    journal = Journal.open(disk, directory, salt=..., shard=0, store_lsn=40, store_epoch=2, ...)
    for frame in journal.replay(): ...      what the store does not have yet
    lsn = journal.append(body, count)       durable on return
    journal.drop_through(lsn)               once the store has everything up to there
    journal.close(clean=True)

It numbers and keeps bodies; it knows nothing of what they say, of time, or of threads: one thread
at a time calls it, save that any may ask how much there is and whether there is room. The rules it
keeps, and every byte it writes, are in docs/format.md.
"""

import contextlib
import errno
import os
from collections import deque
from collections.abc import Callable, Iterator
from typing import NoReturn

from parkade.store.acceptance import Run, RunPart, accept
from parkade.store.disk import Disk
from parkade.store.errors import NO_ROOM_CODES, Damage, NoRoom, StoreError, WriteFailed
from parkade.store.folders import make_folder
from parkade.store.frame import Frame, FrameHead
from parkade.store.inspection import JournalReport, inspect, read_only_frames, replay_run
from parkade.store.segment import (
    DIRECTORY_SALT_BYTES,
    HEADER_BYTES,
    SALT_BYTES,
    Mode,
    SegmentHeader,
    SegmentName,
    SegmentWriter,
    scan_directory,
)
from parkade.store.spares import SIZE_BYTES_MIN, Sizing, Spare, SparePool

__all__ = ["Journal", "JournalReport", "Sizing", "inspect", "read_only_frames"]

MODES = {"disk": Mode.DISK, "process": Mode.PROCESS, "memory": Mode.MEMORY}
MARK_BYTES = 64 << 10
SPARE_BEHIND = 16  # a first spare is made behind this part of the first segment's size


class Journal:
    """One shard's journal, open for appending. Make one with `open`."""

    def __init__(
        self,
        disk: Disk,
        directory: str,
        *,
        salt: bytes,
        shard: int,
        mode: Mode,
        sizing: Sizing,
        entropy: Callable[[int], bytes],
        check_in_place: Callable[[], None],
    ) -> None:
        self._disk = disk
        self.directory = directory
        self._salt = salt
        self._shard = shard
        self._mode = mode
        self._sizing = sizing
        self._entropy = entropy
        self._check_in_place = check_in_place
        self._wanted_bytes = sizing.frame_bytes_max  # of a frame
        self._wanted_spare_bytes = Spare.bytes_for(sizing.frame_bytes_max)  # for a spare to take it
        self._spares = SparePool(disk, directory, sizing, entropy, self._sync, self._sync_directory)
        self._sealed: tuple[_Sealed, ...] = ()  # replaced whole: others may look at it meanwhile
        self._replay: list[RunPart] = []
        self._replay_from = 0
        self._active: SegmentWriter | None = None
        self._failure: WriteFailed | None = None
        self._needs_directory_sync = False
        self._marks: deque[tuple[int, int]] = deque()
        self._next_mark_bytes = 0
        self.appended_bytes = 0
        self.epoch = 0
        self.next_lsn = 1
        self.synced_lsn = 0
        self._covered_lsn = 0

    @classmethod
    def open(
        cls,
        disk: Disk,
        directory: str,
        *,
        salt: bytes,
        shard: int,
        store_lsn: int,
        store_epoch: int,
        mode: str = "disk",
        sizing: Sizing | None = None,
        is_new: bool = False,
        entropy: Callable[[int], bytes] = os.urandom,
        check_in_place: Callable[[], None] = lambda: None,
    ) -> "Journal":
        """Finds the log, makes its tail durable, and begins a new segment behind it.

        `salt` is the directory's, 5 bytes; `mode` is "disk", "process" or "memory"; `is_new` only
        while the data directory is first made, otherwise a missing journal is damage.
        `check_in_place` raises OSError when the directory is not the owner's any more; it is asked
        before files change their names. On return everything that `replay` gives is as durable as
        the mode promises.

        Raises Damage with nothing changed, ReadFailed, FormatTooNew, WriteFailed, and NoRoom if
        the disk is full and the last life left no spare.
        """
        if len(salt) != DIRECTORY_SALT_BYTES:
            raise ValueError(f"the salt of a directory has {DIRECTORY_SALT_BYTES} bytes")
        journal = cls(
            disk,
            directory,
            salt=salt,
            shard=shard,
            mode=MODES[mode],
            sizing=sizing or Sizing(),
            entropy=entropy,
            check_in_place=check_in_place,
        )
        if is_new:
            make_folder(disk, directory)
        run = journal._accept(store_lsn, is_new=is_new)
        try:
            journal._settle(run)
            journal._begin(run, store_lsn, store_epoch)
        except OSError as error:
            journal._release()
            raise WriteFailed(directory, error.errno or 0) from error
        except StoreError:
            journal._release()
            raise
        return journal

    # What there is

    @property
    def last_lsn(self) -> int:
        """The LSN of the last record, or of the store where that is ahead."""
        return self.next_lsn - 1

    @property
    def durable_lsn(self) -> int:
        """The last LSN that may be answered: an append that returned is as durable as promised."""
        return self.next_lsn - 1

    @property
    def segments(self) -> int:
        """How many segment files there are, the active one included."""
        return len(self._sealed) + (self._active is not None)

    @property
    def spares(self) -> int:
        """How many spare segments stand ready."""
        return len(self._spares)

    @property
    def live_bytes(self) -> int:
        """Bytes of frames in all segments that have not been dropped."""
        active = self._active
        active_bytes = active.end - HEADER_BYTES if active is not None else 0
        return active_bytes + sum([sealed.used_bytes for sealed in self._sealed])

    @property
    def is_begun(self) -> bool:
        """Whether more is written than the first frames of a few callers: a spare is wanted."""
        return SPARE_BEHIND * self.live_bytes > self._sizing.segment_bytes_first

    def bytes_since(self, lsn: int) -> int:
        """Bytes of frames behind that LSN, rounded up by 64 KiB at most."""
        before = 0
        for marked_lsn, marked_bytes in tuple(self._marks):
            if marked_lsn > lsn:
                break
            before = marked_bytes
        return self.appended_bytes - before

    def replay(self) -> Iterator[Frame]:
        """The frames whose last record is behind the store's LSN, in order.

        The first may begin at or before it: its first records are to be skipped. To be read
        before `drop_through` is called. Raises ReadFailed, and Damage if the bytes have changed
        since the open.
        """
        return replay_run(self._disk, self._replay, self._replay_from)

    # Room

    @property
    def room_bytes(self) -> int:
        """The largest file space that one append finds without any being allocated."""
        active = self._active
        left = active.left_bytes if active is not None else 0
        return max(left, self._spares.room_bytes)

    @property
    def has_spare(self) -> bool:
        """Whether `prepare_spare` has nothing to do. May be asked from any thread."""
        return self._failure is None and self._spares.room_bytes >= self._wanted_spare_bytes

    def has_room(self, body_bytes: int = 0) -> bool:
        """Whether a turn may be decided: a spare is there and takes a frame of that body, or the
        segment that is written now takes two and the reserve.

        Asks for the largest turn that the sizing names or that was ever asked for. Since a
        segment has room for two, the frame in flight cannot take the place of the one being
        decided. May be asked from any thread.
        """
        if body_bytes > self._wanted_bytes:
            self._wanted_bytes = body_bytes
            self._wanted_spare_bytes = Spare.bytes_for(body_bytes)
        return self.has_spare or self._has_room_for_two()

    def _has_room_for_two(self) -> bool:
        active = self._active
        needed = self._sizing.two_frames_bytes(self._wanted_bytes)
        return self._failure is None and active is not None and active.left_bytes >= needed

    def has_place(self, body_bytes: int) -> bool:
        """Whether such a frame goes into the segment that is written now, with no other begun."""
        active = self._active
        return self._failure is None and active is not None and active.body_bytes_max >= body_bytes

    def fits(self, body_bytes: int) -> bool:
        """Whether such a frame can be appended now, be it with the last of the room.

        What outcomes ask, which may use the reserve when no spare can be had.
        """
        active = self._active
        if self._failure is not None or active is None:
            return False
        return active.body_bytes_max >= body_bytes or self._spares.has_room(body_bytes)

    def prepare_spare(self, body_bytes: int = 0) -> None:
        """Sees to it that `has_spare` is true, and takes a frame of that body; cheap if it is and
        does already.

        The only call that allocates after an open, so the only one that may meet a full disk:
        raises NoRoom, and WriteFailed for any other refusal. The journal goes on in both cases.
        """
        self._check_alive()
        wanted_bytes = max(self._wanted_bytes, body_bytes)
        self._spares.prepare(wanted_bytes, is_kept_free=bool(self._sealed))

    # Writing

    def append(self, body: bytes, count: int) -> int:
        """Writes one frame of `count` records, one call to the disk; returns its last LSN.

        Raises NoRoom with nothing written if no spare takes it, and WriteFailed if the disk
        fails: what the frame held may or may not be there, and every later call raises the same
        until the journal is opened again.
        """
        if count < 1:
            raise ValueError("a frame that carries a body carries at least one record")
        active = self._active
        if active is None or self._failure is not None:
            self._raise_dead()
        if active.body_bytes_max < len(body):
            active = self._roll(len(body))
        self._write(active, body, count)
        return self.next_lsn - 1

    def write_covering_frame(self) -> bool:
        """Writes an empty frame that proves the last record, and returns whether it had to.

        For an idle second after writes; a clean close does it by itself. In mode "process" it
        does nothing: nothing may be called durable that was not synced.
        """
        self._check_alive()
        return self._mode is not Mode.PROCESS and self._cover()

    def drop_through(self, lsn: int) -> int:
        """Removes or recycles segments whose records are all at or below `lsn`; returns how many.

        The active segment is never dropped. Raises WriteFailed; the journal goes on.
        """
        self._check_alive()
        dropped = 0
        try:
            self._check_in_place()
            # Oldest first and one at a time: the files that are left are always neighbours.
            while self._sealed and self._sealed[0].last_lsn <= lsn:
                self._drop_first()
                dropped += 1
        except OSError as error:
            raise WriteFailed(self.directory, error.errno or 0) from error
        while len(self._marks) > 1 and self._marks[1][0] <= lsn:
            self._marks.popleft()
        return dropped

    def close(self, clean: bool, *, stored_lsn: int | None = None) -> None:
        """Gives the files back; if `clean`, proves the last record first. May be called twice.

        In mode "process" a clean close syncs what was never synced. With `stored_lsn`, what the
        store has, it gives back the disk that only a busy journal wants. Raises WriteFailed, and
        the files are given back all the same.
        """
        try:
            if clean and self._failure is None:
                self._seal_cleanly()
                if stored_lsn is not None and self._mode is not Mode.MEMORY:
                    self._shrink(stored_lsn)
        finally:
            self._release()

    # Opening

    def _accept(self, store_lsn: int, *, is_new: bool) -> Run:
        """Rule 1: reads everything, changes nothing."""
        scans = scan_directory(self._disk, self.directory, salt=self._salt, shard=self._shard)
        if not scans and not is_new:
            raise Damage(self.directory, 0, "the journal is missing: no segment is there")
        return accept(scans, store_lsn)

    def _settle(self, run: Run) -> None:
        """Rules 1 and 2: what was accepted is made durable, what follows it is taken away."""
        for part in run.parts:
            self._make_durable(part, is_last=part is run.parts[-1])
        for scan in run.beyond:
            self._disk.unlink(scan.path)
        if run.beyond:
            self._sync_directory()

    def _make_durable(self, part: RunPart, *, is_last: bool) -> None:
        handle = self._disk.open(part.scan.path)
        try:
            if is_last:
                self._write_again(handle, part.frames[-1])
                self._cut(handle, part)
            self._sync(handle)
        finally:
            self._disk.close(handle)

    def _write_again(self, handle: int, last: FrameHead) -> None:
        # A failed sync leaves pages that read well, count as clean, and are on no disk.
        content = self._disk.pread(handle, last.size, last.offset)
        self._disk.pwrite(handle, (content,), last.offset)

    def _cut(self, handle: int, part: RunPart) -> None:
        if part.scan.size_bytes > part.frames[-1].end:
            self._disk.ftruncate(handle, part.frames[-1].end)

    def _mark_goes_on(self, part: RunPart) -> None:
        """Now that there is a file behind the run: were it lost, this one would tell."""
        header, last = part.scan.header, part.frames[-1]
        assert header is not None
        if part.scan.goes_on:
            return
        handle = self._disk.open(part.scan.path)
        try:
            writer = SegmentWriter(self._disk, handle, part.scan.path, header, last.end, last.end)
            writer.write_goes_on(last.last_lsn + 1, last.last_lsn)
        except OSError as error:
            # It is some bytes more than there were, and a disk without room must open.
            if error.errno not in NO_ROOM_CODES:
                raise
        finally:
            self._disk.close(handle)

    def _begin(self, run: Run, store_lsn: int, store_epoch: int) -> None:
        self.epoch = max(store_epoch, run.epoch_max) + 1
        self.next_lsn = max(store_lsn, run.last_lsn) + 1
        self.synced_lsn = self._covered_lsn = run.last_lsn
        self._replay = run.parts
        self._replay_from = store_lsn
        self._spares.find()
        if len(self._spares):
            # One may have been a segment, whose name comes back with the power until then.
            self._sync_directory()
        self._active = self._start_segment(self._spare_for_open(), run.end)
        if run.parts and run.last_lsn > store_lsn:  # else all of the run goes at once
            self._mark_goes_on(run.parts[-1])
        for scan in run.spent:
            self._disk.unlink(scan.path)
            self._needs_directory_sync = True
        if run.parts or any(scan.size_bytes > HEADER_BYTES for scan in run.spent):
            self._sync_removed()  # but a bare header, as a clean close leaves it, may come back
        for part in run.parts:
            used = part.frames[-1].end - HEADER_BYTES
            size = part.frames[-1].end if part is run.parts[-1] else part.scan.size_bytes
            name = part.scan.name
            self._seal(_Sealed(part.scan.path, part.frames[-1].last_lsn, used, size))
            self._note_bytes(used, part.frames[-1].last_lsn)
            assert name.epoch < self.epoch
        self.drop_through(store_lsn)
        # Only now is the store's LSN behind every file that could contradict it.
        self.synced_lsn = self._covered_lsn = self.next_lsn - 1

    def _spare_for_open(self) -> Spare:
        spare = self._spares.take(self._sizing.frame_bytes_max)
        if spare is not None:
            return spare
        size = self._sizing.segment_bytes(
            self._sizing.segment_bytes_first, self._sizing.frame_bytes_max
        )
        while True:
            try:
                return self._spares.allocate(size)
            except NoRoom:
                # A full disk must still be opened, or nothing could ever be deleted from it.
                if size // 2 < SIZE_BYTES_MIN:
                    raise
                size //= 2

    # Segments

    def _start_segment(self, spare: Spare, prior_end: int) -> SegmentWriter:
        header = SegmentHeader(
            self._salt,
            self._shard,
            self.epoch,
            self._entropy(SALT_BYTES),
            self.next_lsn,
            self.synced_lsn,
            self._mode,
            prior_end,
        )
        path = f"{self.directory}/{SegmentName(header.first_lsn, header.epoch, header.salt)}"
        self._check_in_place()
        handle = self._disk.open(spare.path)
        try:
            self._disk.pwrite(handle, (header.encode(),), 0)
            self._sync(handle)
            self._disk.rename(spare.path, path)
            self._sync_directory()
        except BaseException:
            self._disk.close(handle)
            raise
        return SegmentWriter(self._disk, handle, path, header, spare.size_bytes)

    def _roll(self, body_bytes: int) -> SegmentWriter:
        full = self._active
        assert full is not None
        spare = self._spares.take(body_bytes)
        if spare is None:
            raise NoRoom(self.directory, body_bytes)
        is_empty = full.end == HEADER_BYTES
        prior_end = full.header.prior_end if is_empty else full.end
        used = full.end - HEADER_BYTES
        try:
            active = self._active = self._start_segment(spare, prior_end)
            try:
                if not is_empty:
                    full.write_goes_on(self.next_lsn, self.synced_lsn)
            finally:
                self._disk.close(full.handle)
            if is_empty:
                # Two files of one epoch that begin at the same LSN have no order.
                self._disk.unlink(full.path)
                self._sync_directory()
        except OSError as error:
            self._fail(full.path, error)
        if not is_empty:
            self._seal(_Sealed(full.path, self.last_lsn, used, full.size_bytes))
        return active

    def _seal(self, sealed: "_Sealed") -> None:
        self._sealed = (*self._sealed, sealed)

    def _write(self, active: SegmentWriter, body: bytes, count: int) -> None:
        try:
            size = active.write(
                body, count=count, first_lsn=self.next_lsn, synced_lsn=self.synced_lsn
            )
        except OSError as error:
            self._fail(active.path, error)
        self.next_lsn += count
        if self._mode is not Mode.PROCESS:
            self.synced_lsn = self.next_lsn - 1
        self._note_bytes(size, self.next_lsn - 1)

    def _cover(self) -> bool:
        active = self._active
        if active is None or self._covered_lsn >= self.last_lsn:
            return False
        self._write(active, b"", 0)
        self._covered_lsn = self.last_lsn
        return True

    def _seal_cleanly(self) -> None:
        active = self._active
        if active is None or self._covered_lsn >= self.last_lsn:
            return
        if self._mode is Mode.PROCESS:
            self._sync_everything(active)
        self._cover()
        if self._mode is Mode.PROCESS:
            self._sync_everything(active)

    def _shrink(self, stored_lsn: int) -> None:
        """After each of its calls the log is whole: where the disk refuses one, it only stays as
        large as it is."""
        active = self._active
        if active is None:
            return
        with contextlib.suppress(StoreError, OSError):
            self._check_in_place()
            if (
                self.last_lsn <= stored_lsn
                and active.end > self._sizing.left_bytes_max
                and len(self._spares)
            ):
                active = self._roll(0)
            self.drop_through(stored_lsn)
            self._spares.shrink()
            self._disk.ftruncate(active.handle, active.end)
            self._sync_directory()
            self._spares.prepare(self._sizing.frame_bytes_max, is_kept_free=False)

    def _sync_everything(self, active: SegmentWriter) -> None:
        try:
            for sealed in self._sealed:
                handle = self._disk.open(sealed.path)
                try:
                    self._sync(handle)
                finally:
                    self._disk.close(handle)
            self._sync(active.handle)
        except OSError as error:
            self._fail(active.path, error)
        self.synced_lsn = self.last_lsn

    def _drop_first(self) -> None:
        # Were two names removed between syncs, a power cut could keep the older one alone.
        self._sync_removed()
        first = self._sealed[0]
        spare = self._spares.retire(first.path, first.size_bytes)
        self._sealed = self._sealed[1:]
        self._needs_directory_sync = True
        if spare is not None:
            self._sync_removed()
            self._spares.put(spare)

    def _sync_removed(self) -> None:
        if self._needs_directory_sync:
            self._sync_directory()
            self._needs_directory_sync = False

    # The disk

    def _sync(self, handle: int) -> None:
        if self._mode is not Mode.MEMORY:
            self._disk.fdatasync(handle)

    def _sync_directory(self) -> None:
        if self._mode is not Mode.MEMORY:
            self._disk.fsync_directory(self.directory)

    def _check_alive(self) -> None:
        if self._active is None or self._failure is not None:
            self._raise_dead()

    def _raise_dead(self) -> NoReturn:
        failed = self._failure
        if failed is not None:
            raise WriteFailed(failed.path, failed.code, "it failed before and was not reopened")
        raise WriteFailed(self.directory, 0)

    def _fail(self, path: str, error: OSError) -> NoReturn:
        """Rule 5: nothing is ever tried again on this descriptor."""
        self._failure = WriteFailed(path, error.errno or errno.EIO)
        raise self._failure from error

    def _release(self) -> None:
        active, self._active = self._active, None
        if active is None:
            return
        try:
            self._disk.close(active.handle)
        except OSError as error:
            raise WriteFailed(active.path, error.errno or 0) from error

    def _note_bytes(self, size: int, last_lsn: int) -> None:
        self.appended_bytes += size
        if self.appended_bytes >= self._next_mark_bytes:
            self._marks.append((last_lsn, self.appended_bytes))
            self._next_mark_bytes = self.appended_bytes + MARK_BYTES


class _Sealed:
    """A segment that is written no more."""

    __slots__ = ("last_lsn", "path", "size_bytes", "used_bytes")

    def __init__(self, path: str, last_lsn: int, used_bytes: int, size_bytes: int) -> None:
        self.path = path
        self.last_lsn = last_lsn
        self.used_bytes = used_bytes
        self.size_bytes = size_bytes
