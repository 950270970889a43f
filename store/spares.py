"""Spare segments: full-size files that wait to be written, so that no append ever needs space.

A spare is named only once its bytes are written and durable; what it holds is of no account, for
a new salt makes everything in it invalid.
"""

from collections.abc import Callable
from dataclasses import dataclass

from parkade.store.disk import Disk, Handle, file_bytes_max
from parkade.store.errors import NO_ROOM_CODES, NoRoom, WriteFailed
from parkade.store.frame import HEAD_BYTES, frame_bytes
from parkade.store.segment import HEADER_BYTES

SUFFIX = ".spare"
UNFINISHED_SUFFIX = ".spare.new"
SIZE_BYTES_MIN = 16 << 10
FREE_PARTS = 4  # a spare that is larger than it must be takes one of so many parts of what is free


@dataclass(frozen=True, slots=True)
class Sizing:
    """How large the files of a journal are, in bytes.

    `frame_bytes_max` is the body of the largest turn that room is held for unless the caller
    names another; a segment holds two of them and `reserve_bytes`, what outcomes may use when no
    spare can be had. `spares_max` is how many recycled files are kept. `kept_free_bytes` is what a
    spare leaves on the disk as long as a checkpoint may give segments back: that takes room too.
    `left_bytes_max` is how much of what the store has a clean close leaves in the last segment.
    """

    segment_bytes_first: int = 1 << 20
    segment_bytes_max: int = 64 << 20
    frame_bytes_max: int = 384 << 10
    reserve_bytes: int = 128 << 10
    spares_max: int = 2
    kept_free_bytes: int = 12 << 20
    left_bytes_max: int = 64 << 10

    def __post_init__(self) -> None:
        if not 0 < self.segment_bytes_first <= self.segment_bytes_max < 1 << 32:
            raise ValueError("a segment has between 1 byte and 4 GiB, the first no more than any")
        if min(self.frame_bytes_max, self.spares_max) < 1:
            raise ValueError("frame_bytes_max and spares_max are at least 1")
        if min(self.reserve_bytes, self.kept_free_bytes) < 0:
            raise ValueError("reserve_bytes and kept_free_bytes are at least 0")

    def segment_bytes(self, wanted: int, body_bytes: int) -> int:
        """The size of a new segment: `wanted` in the bounds, and room for two such frames."""
        needed = self.two_frames_bytes(body_bytes) + HEADER_BYTES
        return max(needed, min(wanted, self.segment_bytes_max))

    def two_frames_bytes(self, body_bytes: int) -> int:
        """What two such frames, the reserve and a covering frame take."""
        return 2 * frame_bytes(body_bytes) + self.reserve_bytes + HEAD_BYTES


@dataclass(frozen=True, slots=True)
class Spare:
    """A file ready to become a segment."""

    path: str
    size_bytes: int

    @staticmethod
    def bytes_for(body_bytes: int) -> int:
        """The least that takes such a frame, and a covering frame behind it."""
        return HEADER_BYTES + frame_bytes(body_bytes) + HEAD_BYTES


class SparePool:
    """The spares of one journal. One thread at a time changes them, any may ask what room there
    is."""

    def __init__(
        self,
        disk: Disk,
        directory: str,
        sizing: Sizing,
        entropy: Callable[[int], bytes],
        sync: Callable[[Handle], None],
        sync_directory: Callable[[], None],
    ) -> None:
        self._disk = disk
        self._directory = directory
        self._sizing = sizing
        self._entropy = entropy
        self._sync = sync
        self._sync_directory = sync_directory
        self._spares: tuple[Spare, ...] = ()  # replaced whole: others may look at it meanwhile
        self.room_bytes = 0  # the size of the largest, 0 without one
        self.next_bytes = sizing.segment_bytes_first

    def __len__(self) -> int:
        return len(self._spares)

    def find(self) -> None:
        """Takes in the spares that an earlier life left, removes half-made ones. OSError."""
        for name in self._disk.listdir(self._directory):
            path = f"{self._directory}/{name}"
            if name.endswith(UNFINISHED_SUFFIX):
                self._disk.unlink(path)
            elif name.endswith(SUFFIX):
                size = self._disk.stat(path).size_bytes
                is_usable = HEADER_BYTES <= size <= (file_bytes_max() or size)
                if len(self._spares) < self._sizing.spares_max and is_usable:
                    self.put(Spare(path, size))
                    self.next_bytes = max(self.next_bytes, size)
                else:
                    self._disk.unlink(path)

    def has_room(self, body_bytes: int) -> bool:
        """Whether some spare takes such a frame."""
        return self.room_bytes >= Spare.bytes_for(body_bytes)

    def _have(self, spares: tuple[Spare, ...]) -> None:
        self._spares = spares
        self.room_bytes = max((spare.size_bytes for spare in spares), default=0)

    def take(self, body_bytes: int) -> Spare | None:
        """The smallest spare that takes such a frame, no longer in the pool."""
        needed_bytes = Spare.bytes_for(body_bytes)
        fitting = [spare for spare in self._spares if spare.size_bytes >= needed_bytes]
        if not fitting:
            return None
        spare = min(fitting, key=lambda each: each.size_bytes)
        self._have(tuple(each for each in self._spares if each is not spare))
        return spare

    def prepare(self, body_bytes: int, *, is_kept_free: bool) -> None:
        """Makes a spare for two such frames unless one is there, a smaller one where little is
        free; with `is_kept_free` it leaves what the sizing says.

        Raises NoRoom, or WriteFailed for any other refusal; the pool is as it was then.
        """
        least = self._sizing.segment_bytes(0, body_bytes)
        if any(spare.size_bytes >= least for spare in self._spares):
            return
        size = self._sizing.segment_bytes(self.next_bytes, body_bytes)
        most = file_bytes_max()
        while most is not None and size > max(least, most):
            size = max(least, size // 2)
        free = self._room_for(self._sizing.kept_free_bytes if is_kept_free else 0)
        if free is not None:
            if free < least:
                raise NoRoom(self._directory, least)
            while size > least and size > free // FREE_PARTS:
                size = max(least, size // 2)
        spare = self.allocate(size)
        self.next_bytes = min(2 * spare.size_bytes, self._sizing.segment_bytes_max)
        self.put(spare)

    def _room_for(self, kept_bytes: int) -> int | None:
        """What a spare may take of the disk; None where the disk does not tell."""
        try:
            return self._disk.free_space(self._directory) - kept_bytes
        except OSError:
            return None

    def allocate(self, size_bytes: int) -> Spare:
        """Makes a file of written zeros, durable with its name. NoRoom or WriteFailed."""
        stem = f"{self._directory}/{self._entropy(8).hex()}"
        path, unfinished = stem + SUFFIX, stem + UNFINISHED_SUFFIX
        try:
            handle = self._disk.open(unfinished, create=True)
            try:
                self._fill(handle, size_bytes)
            finally:
                self._disk.close(handle)
            self._disk.rename(unfinished, path)
            self._sync_directory()
        except OSError as error:
            self._give_up(path, unfinished)
            if error.errno in NO_ROOM_CODES:
                raise NoRoom(self._directory, size_bytes) from error
            raise WriteFailed(unfinished, error.errno or 0) from error
        return Spare(path, size_bytes)

    def _fill(self, handle: Handle, size_bytes: int) -> None:
        self._disk.preallocate(handle, size_bytes)
        self._sync(handle)

    def _give_up(self, *paths: str) -> None:
        for path in paths:
            try:
                self._disk.unlink(path)
            except OSError:
                # What cannot be removed now is no segment, and is removed at the next open.
                continue

    def retire(self, path: str, size_bytes: int) -> Spare | None:
        """Takes the name of a segment away, and gives the spare that its file became, if it did.

        The spare is to be put back with `put` once the directory is synced: until then a power
        cut may bring the segment back, whole. Raises OSError.
        """
        worth = size_bytes >= self._sizing.segment_bytes(0, self._sizing.frame_bytes_max)
        if not worth or len(self._spares) >= self._sizing.spares_max:
            self._disk.unlink(path)
            return None
        spare = Spare(f"{self._directory}/{self._entropy(8).hex()}{SUFFIX}", size_bytes)
        self._disk.rename(path, spare.path)
        return spare

    def put(self, spare: Spare) -> None:
        """Adds a spare whose name is durable."""
        self._have((*self._spares, spare))

    def shrink(self) -> None:
        """Leaves one spare, of the size of a first segment, or none, and makes none that is larger
        from then on: for a journal that is about to be closed. What a spare holds is of no
        account, nor is which of its sizes a power cut leaves. Raises OSError."""
        size = self._sizing.segment_bytes(
            self._sizing.segment_bytes_first, self._sizing.frame_bytes_max
        )
        fitting = [spare for spare in self._spares if spare.size_bytes >= size]
        kept = min(fitting, key=lambda each: each.size_bytes, default=None)
        self.next_bytes = size
        spares = self._spares
        self._have(())
        for spare in spares:
            if spare is not kept:
                self._disk.unlink(spare.path)
        if kept is None:
            return
        if kept.size_bytes > size:
            handle = self._disk.open(kept.path)
            try:
                self._disk.ftruncate(handle, size)
            finally:
                self._disk.close(handle)
        self.put(Spare(kept.path, size))
