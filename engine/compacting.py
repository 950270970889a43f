"""Compacting: each store of a directory that nobody runs, written anew without its free pages.

The new file takes the old one's name in one step, so at any moment there is one or the other, and
both hold the same.
"""

from collections.abc import Iterator
from typing import Any

from parkade.apart import ChildDied, lines_apart, serve_lines
from parkade.backing_up import held_still
from parkade.clock import SystemClock
from parkade.house import HOUSE_NUMBER
from parkade.onlooker import Onlooker
from parkade.reader import existing_manifest
from parkade.store.copying import copy_store
from parkade.store.disk import Disk, RealDisk
from parkade.store.environment import DATA_FILE, LOCK_FILE
from parkade.store.errors import StoreError
from parkade.store.manifest import Manifest
from parkade.translating import died_error, work_error

__all__ = ["compact"]

FRESH = "store.fresh"
WHAT = "be compacted"


def compact(path: str) -> Iterator[dict[str, Any]]:
    """Part by part: its name, and the bytes of its store before and after.

    Raises `EngineInUse`, `StorageDamaged`, `StorageFull`, `StorageError`; parts that were told are
    done.
    """
    try:
        yield from lines_apart(__name__, {"path": path})
    except ChildDied as death:
        free_bytes = RealDisk().free_space(path)
        raise died_error(path, WHAT, death.reason, free_bytes=free_bytes) from death


def _say(asked: dict[str, Any]) -> Iterator[dict[str, Any]]:
    disk, path = RealDisk(), str(asked["path"])
    manifest = existing_manifest(disk, path, SystemClock().now_ms())
    try:
        with held_still(disk, path):
            yield from _parts(disk, path, manifest)
    except StoreError as error:
        raise work_error(path, None, WHAT, error) from error


def _parts(disk: Disk, path: str, manifest: Manifest) -> Iterator[dict[str, Any]]:
    for number in (HOUSE_NUMBER, *range(manifest.shards)):
        is_house = number == HOUSE_NUMBER
        part = Onlooker(
            disk, path, manifest.salt, number,
            place="house" if is_house else None, is_still=True,
        )  # fmt: skip
        try:
            before, after = _rewrite(disk, part)
        except (StoreError, OSError) as error:
            shard = None if is_house else number
            raise work_error(path, shard, WHAT, error) from error
        name = "house" if is_house else f"shard {number:02d}"
        yield {"part": name, "before_bytes": before, "after_bytes": after}


def _rewrite(disk: Disk, part: Onlooker) -> tuple[int, int]:
    store, fresh = f"{part.directory}/store", f"{part.directory}/{FRESH}"
    data = f"{store}/{DATA_FILE}"
    disk.remove_tree(fresh)
    before = disk.stat(data).size_bytes
    try:
        with part.store().snapshot() as snapshot:
            copy_store(snapshot, fresh)
        part.close()
        after = disk.stat(f"{fresh}/{DATA_FILE}").size_bytes
        disk.fsync_directory(fresh)
        disk.rename(f"{fresh}/{DATA_FILE}", data)
        if disk.exists(f"{store}/{LOCK_FILE}"):
            disk.unlink(f"{store}/{LOCK_FILE}")
        disk.fsync_directory(store)
    finally:
        part.close()
        disk.remove_tree(fresh)
    return before, after


if __name__ == "__main__":
    serve_lines(_say)
