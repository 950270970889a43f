"""Which frames of a damaged journal can be applied, and which records are lost: pure choice.

Where an open would accept the journal, that is the answer. Where it would refuse, frames are taken
in the order of their LSNs as long as none is missing. The first missing record is a hole; what lies
behind one is told apart, for whoever wants it all the same.
"""

from dataclasses import dataclass, field

from parkade.store.acceptance import accept
from parkade.store.disk import Disk
from parkade.store.errors import Damage, FormatTooNew, ReadFailed, StoreError
from parkade.store.frame import FrameHead
from parkade.store.segment import SegmentName, SegmentScan, scan_segment

__all__ = ["JournalSalvage", "Span", "salvage_journal"]

Span = tuple[int, int]
Found = tuple[SegmentScan, FrameHead]


@dataclass(slots=True)
class JournalSalvage:
    """`sound` can be applied in order; `behind` lie past the first hole. `holes` are the LSNs,
    first and last, of records that are known to have been there and are not. `notes` say which
    files could not be used."""

    sound: list[Found] = field(default_factory=list[Found])
    behind: list[Found] = field(default_factory=list[Found])
    holes: list[Span] = field(default_factory=list[Span])
    notes: list[str] = field(default_factory=list[str])
    epoch_max: int = 0
    last_lsn: int = 0


def salvage_journal(
    disk: Disk, directory: str, *, salt: bytes, shard: int, store_lsn: int
) -> JournalSalvage:
    """Judges every segment that can be read. Raises nothing of the store's."""
    got = JournalSalvage()
    scans = _scans(disk, directory, salt, shard, got.notes)
    got.epoch_max = max((scan.name.epoch for scan in scans), default=0)
    lsns = [frame.last_lsn for scan in scans for frame in scan.frames]
    got.last_lsn = max([store_lsn, *lsns])
    try:
        if not scans:
            raise Damage(directory, 0, "the journal is missing")
        run = accept(scans, store_lsn)
    except Damage as damage:
        got.notes.append(str(damage))
        _choose(scans, store_lsn, got)
        return got
    got.sound = [
        (part.scan, frame)
        for part in run.parts
        for frame in part.frames
        if frame.count and frame.last_lsn > store_lsn
    ]
    return got


def _scans(
    disk: Disk, directory: str, salt: bytes, shard: int, notes: list[str]
) -> list[SegmentScan]:
    try:
        names = disk.listdir(directory)
    except OSError as error:
        notes.append(f"{directory} cannot be listed: {error.strerror}")
        return []
    found: list[SegmentScan] = []
    for name in sorted(filter(None, map(SegmentName.parse, names))):
        try:
            found.append(scan_segment(disk, directory, name, directory_salt=salt, shard=shard))
        except (Damage, FormatTooNew, ReadFailed) as error:
            notes.append(str(error))
        except StoreError as error:
            notes.append(f"{directory}/{name}: {error}")
    return found


def _choose(scans: list[SegmentScan], store_lsn: int, got: JournalSalvage) -> None:
    expected = store_lsn + 1
    taken = got.sound
    for number, scan in enumerate(scans):
        # What a later open wrote under the same LSNs stands in the place of what it cut off.
        later = [
            other.first_lsn for other in scans[number + 1 :] if other.name.epoch > scan.name.epoch
        ]
        end_lsn = min(later, default=1 << 64)
        for frame in scan.frames:
            if not frame.count or frame.last_lsn < expected or frame.last_lsn >= end_lsn:
                continue
            if frame.first_lsn > expected:
                got.holes.append((expected, frame.first_lsn - 1))
                taken = got.behind
            taken.append((scan, frame))
            expected = frame.last_lsn + 1
    synced = [frame.synced_lsn for scan in scans for frame in scan.frames]
    synced += [scan.header.synced_lsn for scan in scans if scan.header is not None]
    proof_lsn = max(synced, default=0)
    if proof_lsn >= expected:
        got.holes.append((expected, proof_lsn))
