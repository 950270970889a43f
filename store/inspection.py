"""Looking at a journal without owning it: what verify and the command line read. Never writes.

The owner may be at work meanwhile: files come and go, and a read of a growing file can see a
later frame and miss an earlier one. What looks broken is therefore looked at again.
"""

import errno
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from parkade.store.acceptance import Run, RunPart, accept
from parkade.store.disk import Disk
from parkade.store.errors import Damage, ReadFailed
from parkade.store.frame import Frame
from parkade.store.segment import SegmentScan, read_frames, scan_directory

LOOKS_MAX = 3


@dataclass(frozen=True, slots=True)
class SegmentFacts:
    """One segment file. `end` and `size_bytes` are bytes; `mode` is None without a header."""

    path: str
    first_lsn: int
    last_lsn: int
    epoch: int
    mode: str | None
    frames: int
    end: int
    size_bytes: int


@dataclass(frozen=True, slots=True)
class JournalReport:
    """What an open would find. With `damage`, `last_lsn` is the store's.

    `proof_lsn` is what must be there, `tail_frames` how many whole frames an open would cut.
    """

    segments: tuple[SegmentFacts, ...]
    last_lsn: int
    proof_lsn: int
    tail_frames: int
    damage: Damage | None


def inspect(disk: Disk, directory: str, salt: bytes, shard: int, store_lsn: int) -> JournalReport:
    """Judges a journal as an open would. Raises ReadFailed and FormatTooNew; damage is reported.

    `salt` is the directory's, 5 bytes; `store_lsn` is to be read before this is called.
    """
    scans: list[SegmentScan] = []
    for look in range(LOOKS_MAX):
        try:
            scans = _scan(disk, directory, salt, shard)
            run = accept(scans, store_lsn)
        except Damage as damage:
            if look == LOOKS_MAX - 1:
                return JournalReport(_facts(scans), store_lsn, store_lsn, 0, damage)
        else:
            frames = sum(len(scan.frames) for scan in scans)
            tail = frames - sum(len(part.frames) for part in run.parts)
            return JournalReport(_facts(scans), run.last_lsn, run.proof_lsn, tail, None)
    raise AssertionError("the last look returns")


def read_only_frames(
    disk: Disk, directory: str, *, salt: bytes, shard: int, store_lsn: int
) -> Iterator[Frame]:
    """What `Journal.replay` would give after an open, without opening; raises as an open does."""
    return replay_run(disk, _accept(disk, directory, salt, shard, store_lsn).parts, store_lsn)


def replay_run(disk: Disk, parts: Sequence[RunPart], store_lsn: int) -> Iterator[Frame]:
    """The frames of a run that hold a record behind `store_lsn`, in order."""
    for part in parts:
        heads = [head for head in part.frames if head.count and head.last_lsn > store_lsn]
        if heads:
            yield from read_frames(disk, part.scan, heads)


def _accept(disk: Disk, directory: str, salt: bytes, shard: int, store_lsn: int) -> Run:
    for _ in range(LOOKS_MAX - 1):
        try:
            return accept(_scan(disk, directory, salt, shard), store_lsn)
        except Damage:
            continue
    return accept(_scan(disk, directory, salt, shard), store_lsn)


def _scan(disk: Disk, directory: str, salt: bytes, shard: int) -> list[SegmentScan]:
    for _ in range(LOOKS_MAX - 1):
        try:
            return _scan_once(disk, directory, salt, shard)
        except ReadFailed as error:
            # Dropped between the listing and the read: the journal has moved on.
            if error.code != errno.ENOENT:
                raise
    return _scan_once(disk, directory, salt, shard)


def _scan_once(disk: Disk, directory: str, salt: bytes, shard: int) -> list[SegmentScan]:
    scans = scan_directory(disk, directory, salt=salt, shard=shard)
    if not scans:
        raise Damage(directory, 0, "the journal is missing: no segment is there")
    return scans


def _facts(scans: Sequence[SegmentScan]) -> tuple[SegmentFacts, ...]:
    return tuple(
        SegmentFacts(
            scan.path,
            scan.first_lsn,
            scan.frames[-1].last_lsn if scan.frames else scan.first_lsn - 1,
            scan.name.epoch,
            scan.header.mode.name.lower() if scan.header is not None else None,
            len(scan.frames),
            scan.end,
            scan.size_bytes,
        )
        for scan in scans
    )
