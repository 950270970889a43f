"""Small journals on small disks: the same bytes on every run, three segments in four kilobytes."""

from collections.abc import Iterable
from dataclasses import dataclass
from hashlib import blake2b
from typing import TypeVar

from kit.disk import FakeDisk
from parkade.store.disk import Disk
from parkade.store.frame import frame_bytes
from parkade.store.journal import Journal, Sizing
from parkade.store.segment import HEADER_BYTES, SegmentName

SALT = b"\x11\x22\x33\x44\x55"
SHARD = 3
PLACE = "/home/shard-003/journal"

# Twenty frames of 56 bytes, and a covering frame, to a segment.
SMALL = Sizing(
    segment_bytes_first=HEADER_BYTES + 20 * 56 + 40,
    segment_bytes_max=HEADER_BYTES + 20 * 56 + 40,
    frame_bytes_max=32,
    reserve_bytes=0,
    kept_free_bytes=0,
    left_bytes_max=HEADER_BYTES + 5 * 56,
)

J = TypeVar("J", bound=Journal)


class Entropy:
    """Bytes that look random and are the same for the same seed and the same calls before."""

    def __init__(self, seed: int = 0) -> None:
        self.seed = seed
        self.calls = 0

    def __call__(self, length: int) -> bytes:
        self.calls += 1
        return blake2b(f"{self.seed} {self.calls}".encode(), digest_size=length).digest()


def open_journal(
    disk: Disk,
    *,
    directory: str = PLACE,
    store_lsn: int = 0,
    store_epoch: int = 0,
    mode: str = "disk",
    is_new: bool = False,
    seed: int = 0,
    sizing: Sizing = SMALL,
    kind: type[Journal] = Journal,
) -> Journal:
    """A journal of `kind`, all of whose randomness comes from `seed`."""
    return kind.open(
        disk,
        directory,
        salt=SALT,
        shard=SHARD,
        store_lsn=store_lsn,
        store_epoch=store_epoch,
        mode=mode,
        sizing=sizing,
        is_new=is_new,
        entropy=Entropy(seed),
    )


def body(number: int) -> bytes:
    """Between 9 and 16 bytes that say which record they are."""
    return f"record {number:02d}".encode() + b"." * (number % 8)


def append_all(journal: Journal, bodies: Iterable[bytes]) -> list[int]:
    """Appends each as a frame of one record, with a spare always ready; the LSNs."""
    lsns = []
    for each in bodies:
        journal.prepare_spare()
        lsns.append(journal.append(each, 1))
    return lsns


def replayed(journal: Journal) -> list[bytes]:
    """The bodies of what the store does not have, in order."""
    return [frame.body for frame in journal.replay()]


def segment_paths(disk: Disk, directory: str = PLACE) -> list[str]:
    """The segment files of a journal, oldest first."""
    found = [SegmentName.parse(name) for name in disk.listdir(directory)]
    return [f"{directory}/{name}" for name in sorted(n for n in found if n is not None)]


@dataclass(frozen=True)
class Place:
    """A frame of a script: its file, its extent in bytes, and what it carries."""

    path: str
    start: int
    end: int
    body: bytes


@dataclass(frozen=True)
class Script:
    """A journal as bytes: every segment in order, and every frame with its place."""

    images: dict[str, bytes]
    frames: tuple[Place, ...]

    def used_end(self, path: str) -> int:
        """Where the last frame of a segment ends."""
        return max((f.end for f in self.frames if f.path == path), default=HEADER_BYTES)

    def disk(self) -> FakeDisk:
        """A new disk that holds it, all of it durable."""
        disk = FakeDisk()
        for path, content in self.images.items():
            disk.install(path, content)
        return disk


def write_script(bodies: list[bytes], *, seed: int = 0, is_clean: bool = False) -> Script:
    """Writes the bodies, a record each, and gives the bytes; `is_clean` closes cleanly."""
    disk = FakeDisk()
    journal = open_journal(disk, is_new=True, seed=seed)
    append_all(journal, bodies)
    journal.close(clean=is_clean)
    paths = segment_paths(disk)
    frames: list[Place] = []
    starts = [SegmentName.parse(path.rpartition("/")[2]) for path in paths]
    for path, name, following in zip(paths, starts, [*starts[1:], None], strict=True):
        assert name is not None
        last = following.first_lsn - 1 if following is not None else len(bodies)
        at = HEADER_BYTES
        for each in bodies[name.first_lsn - 1 : last]:
            frames.append(Place(path, at, at + frame_bytes(len(each)), each))
            at = frames[-1].end
    if is_clean:
        last_frame = frames[-1]
        frames.append(Place(last_frame.path, last_frame.end, last_frame.end + frame_bytes(0), b""))
    images = {path: disk.image()[path] for path in paths}
    return Script(images, tuple(frames))
