"""New shards take the place of the old ones: what is built beside them, and how it moves in.

    shard-000.new …   written while the old ones are what counts: of no meaning yet
    manifest.json     names the new number, and that they move in: from here on they count
    shard-000 …       each old one removed, each new one renamed, in any number of tries
    manifest.json     as ever

The rename of the manifest is the only moment that decides. What is found before it is thrown away,
what is found after it is carried on, by whoever owns the directory next (docs/format.md).
"""

import dataclasses
import re

from parkade.store.disk import Disk
from parkade.store.errors import Damage, ReadFailed, WriteFailed
from parkade.store.manifest import NAME, Manifest

__all__ = [
    "begin_move", "building_directory", "check_no_more", "finish_move", "is_half_built",
    "remove_half_built", "shard_directory",
]  # fmt: skip

_SHARD = re.compile(r"shard-(\d{3})")
_BUILDING = re.compile(r"shard-(\d{3})\.new")


def shard_directory(path: str, number: int) -> str:
    """Where a shard has its files."""
    return f"{path}/shard-{number:03d}"


def building_directory(path: str, number: int) -> str:
    """Where a shard is built that is to take the place of that number."""
    return f"{shard_directory(path, number)}.new"


def is_half_built(disk: Disk, path: str, manifest: Manifest) -> bool:
    """Whether somebody began to build shards, and did not come to the point."""
    return not manifest.is_moving and bool(_numbers(disk, path, _BUILDING))


def remove_half_built(disk: Disk, path: str) -> None:
    """Throws away what was built and does not count. Raises `WriteFailed`."""
    try:
        for number in _numbers(disk, path, _BUILDING):
            disk.remove_tree(building_directory(path, number))
        disk.fsync_directory(path)
    except OSError as error:
        raise WriteFailed(path, error.errno or 0) from error


def begin_move(disk: Disk, path: str, manifest: Manifest, shards: int) -> Manifest:
    """From here on the shards that were built are those of the directory; all of them must be
    there and synced. Raises `WriteFailed`: then nothing, or all of it, has changed."""
    moving = dataclasses.replace(manifest, shards=shards, is_moving=True)
    _replace(disk, path, moving)
    return moving


def finish_move(disk: Disk, path: str, manifest: Manifest) -> Manifest:
    """Carries on where a move was left, and ends it. Raises `Damage`, `WriteFailed`."""
    if not manifest.is_moving:
        return manifest
    try:
        for number in range(manifest.shards):
            built = building_directory(path, number)
            there = shard_directory(path, number)
            if disk.exists(built):
                disk.remove_tree(there)
                disk.rename(built, there)
            elif not disk.exists(there):
                raise Damage(there, 0, "it was to move in, and is neither here nor there")
        for number in _numbers(disk, path, _SHARD):
            if number >= manifest.shards:
                disk.remove_tree(shard_directory(path, number))
        disk.fsync_directory(path)
    except OSError as error:
        raise WriteFailed(path, error.errno or 0) from error
    settled = dataclasses.replace(manifest, is_moving=False)
    _replace(disk, path, settled)
    return settled


def check_no_more(disk: Disk, path: str, manifest: Manifest) -> None:
    """Raises `Damage` where there are shards that the manifest does not name: then it is an older
    one, of another number of shards, and these are only some of the tickets."""
    there = _numbers(disk, path, _SHARD)
    if there and there[-1] >= manifest.shards:
        raise Damage(
            f"{path}/{NAME}", 0,
            f"it names {manifest.shards} shards, and there are {there[-1] + 1}: it is not the "
            "manifest of these shards",
        )  # fmt: skip


def _numbers(disk: Disk, path: str, kind: re.Pattern[str]) -> list[int]:
    try:
        names = disk.listdir(path)
    except OSError as error:
        raise ReadFailed(path, error.errno or 0) from error
    return sorted(int(found[1]) for found in map(kind.fullmatch, names) if found is not None)


def _replace(disk: Disk, path: str, manifest: Manifest) -> None:
    name = f"{path}/{NAME}"
    try:
        disk.replace_file(name, manifest.encode())
    except OSError as error:
        raise WriteFailed(name, error.errno or 0) from error
