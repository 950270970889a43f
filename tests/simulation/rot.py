"""Bits that flip in a journal while nobody looks.

They flip where the log is proved by what stands behind: there damage must be told from a torn end.
The shard refuses and says so, touches nothing, and is whole again when the bits are; the others go
on. Whoever asks it is told of damage, and nothing else.
"""

from typing import TYPE_CHECKING, NamedTuple

from parkade.errors import EngineClosed, StorageDamaged
from parkade.store.errors import Damage, StoreError
from parkade.store.segment import HEADER_BYTES, scan_directory

if TYPE_CHECKING:
    from simulation.world import World

__all__ = ["Rot"]


class Flip(NamedTuple):
    """A bit that was flipped, and the journal as it was then."""

    shard: int
    path: str
    offset: int
    bit: int
    image: dict[str, bytes]


class Rot:
    """Of one world."""

    def __init__(self, world: "World") -> None:
        self._world = world
        self._is_wanted = False
        self._flip: Flip | None = None

    def want(self) -> None:
        """The next life finds damage."""
        self._is_wanted = True

    def cease(self) -> None:
        """No more of it."""
        self._is_wanted = False

    def between_lives(self) -> None:
        """What was flipped is mended; what is wanted flips."""
        world, flip = self._world, self._flip
        if flip is not None:
            self._flip = None
            # A write that had not reached the disk may have, or the file is gone.
            found = world.disk.image(self._journal(flip.shard)).get(flip.path, b"")
            if found[flip.offset : flip.offset + 1] == flip.image[flip.path][flip.offset :][:1]:
                world.disk.flip(flip.path, flip.offset, flip.bit)
        if self._is_wanted and world.durability == "disk":
            self._is_wanted = False
            self._choose(world.random.randrange(world.shards))

    def _choose(self, shard: int) -> None:
        world = self._world
        files = {path: inode for path, inode in world.disk.files() if "house" not in path}
        folder = self._journal(shard)
        if not any(path.startswith(folder) for path in files):
            return
        try:
            scans = scan_directory(world.disk, folder, salt=world.salt, shard=shard)
        except StoreError:
            return
        places = [
            (scan.path, frame.offset, frame.size) for scan in scans for frame in scan.frames[:-1]
        ]
        places += [(scan.path, 0, HEADER_BYTES) for scan in scans if len(scan.frames) > 1]
        if places:
            path, offset, size = world.random.choice(places)
            at, bit = offset + world.random.randrange(size), world.random.randrange(8)
            world.disk.flip(path, at, bit)
            self._flip = Flip(shard, path, at, bit, world.disk.image(folder))
            world.counts["flipped bits"] += 1

    def check_open(self) -> None:
        """After an open: a shard that is not served was damaged."""
        world, flip = self._world, self._flip
        for host in world.hosts():
            if host.status == "refused" and isinstance(host.error, Damage):
                assert flip is not None and flip.shard == host.number, ("refused", host.error)
                image = world.disk.image(self._journal(flip.shard))
                assert image == flip.image, "what is damaged is not touched"
                world.counts["damaged shards"] += 1
        if flip is not None and world.host(flip.shard).status != "refused":
            self._flip = None  # it was nothing that anybody needs

    def check_error(self, shard: int, error: BaseException) -> None:
        if self._flip is not None and self._flip.shard == shard:
            assert isinstance(error, StorageDamaged | EngineClosed), error

    def _journal(self, shard: int) -> str:
        from simulation.world import PATH

        return f"{PATH}/shard-{shard:03d}/journal"
