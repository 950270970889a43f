"""A manifest made anew of what the files beside it say: whose they are, and how many shards."""

import re
from collections import Counter

from parkade.store.disk import Disk
from parkade.store.errors import StoreError
from parkade.store.manifest import FORMAT, HASH, SHARDS_MAX, Manifest
from parkade.store.segment import HEADER_BYTES, SegmentHeader, SegmentName

__all__ = ["guess_manifest"]

_SHARD = re.compile(r"shard-(\d{3})")


def guess_manifest(disk: Disk, directory: str, created_by: str, now_ms: int) -> Manifest | None:
    """The salt that most headers of journals name, and a shard for each number up to the greatest
    folder. None where no header can be read."""
    try:
        names = disk.listdir(directory)
    except OSError:
        return None
    numbers = [int(found[1]) for found in map(_SHARD.fullmatch, names) if found]
    shards = max(numbers, default=-1) + 1
    salts: Counter[bytes] = Counter()
    for name in [f"shard-{number:03d}" for number in numbers] + ["house"]:
        salts.update(_salts(disk, f"{directory}/{name}/journal"))
    if not salts or not 1 <= shards <= SHARDS_MAX:
        return None
    ((salt, _),) = salts.most_common(1)
    return Manifest(FORMAT, salt, shards, HASH, created_by, now_ms)


def _salts(disk: Disk, journal: str) -> list[bytes]:
    salts: list[bytes] = []
    try:
        names = disk.listdir(journal)
    except OSError:
        return salts
    for name in names:
        if SegmentName.parse(name) is None:
            continue
        path = f"{journal}/{name}"
        try:
            handle = disk.open(path, read_only=True)
            try:
                header = SegmentHeader.decode(disk.pread(handle, HEADER_BYTES, 0), path)
            finally:
                disk.close(handle)
        except (OSError, StoreError):
            continue
        if header is not None:
            salts.append(header.directory_salt)
    return salts
