"""What the files of a directory hold, part by part: what LMDB counts, and the journal's run."""

from collections.abc import Iterator
from typing import Any

from parkade.durations import datetime_of
from parkade.facts import plain
from parkade.house import HOUSE_NUMBER
from parkade.onlooker import Onlooker
from parkade.store.disk import Disk
from parkade.store.errors import ReadFailed, StoreError
from parkade.store.manifest import Manifest
from parkade.store.snapshot import Snapshot

__all__ = ["storage_facts"]


def storage_facts(disk: Disk, path: str, manifest: Manifest) -> Iterator[dict[str, Any]]:
    """The house, then the shards; a part that cannot be read has an `error`, and no more.

    Bytes, counts, pages, LSNs. A constant number of reads for a store; a journal is read whole.
    Raises `ConfigError` where only the owner may look.
    """
    yield _part(disk, Onlooker(disk, path, manifest.salt, HOUSE_NUMBER, place="house"), "house")
    for number in range(manifest.shards):
        shard = Onlooker(disk, path, manifest.salt, number)
        yield _part(disk, shard, f"shard {number:02d}")


def _part(disk: Disk, part: Onlooker, name: str) -> dict[str, Any]:
    def see(snapshot: Snapshot) -> dict[str, Any]:
        store, journal = _store(disk, part, snapshot), _journal(part, snapshot)
        return {"part": name, "error": None, **store, **journal}

    try:
        with part.held(see) as facts:
            return facts
    except StoreError as error:
        return {"part": name, "error": str(error), "journal_damage": None}
    finally:
        part.close()


def _store(disk: Disk, part: Onlooker, snapshot: Snapshot) -> dict[str, Any]:
    pages = part.store().pages(snapshot)
    state = snapshot.state()
    return {
        "tickets": sum(snapshot.counters().values()),
        "entries": pages.entries,
        "file_bytes": _file_bytes(disk, snapshot.path),
        "page_bytes": pages.page_bytes,
        "used_pages": pages.used,
        "free_pages": pages.free,
        "depth": pages.depth,
        "readers": pages.readers,
        "store_lsn": state.lsn,
        "epoch": state.epoch,
        "settled_at": plain(datetime_of(state.settled_ms)) if state.settled_ms else None,
    }


def _file_bytes(disk: Disk, path: str) -> int:
    try:
        return disk.stat(path).size_bytes
    except OSError as error:
        raise ReadFailed(path, error.errno or 0) from error


def _journal(part: Onlooker, snapshot: Snapshot) -> dict[str, Any]:
    report = part.inspect(snapshot)
    return {
        "journal_segments": len(report.segments),
        "journal_bytes": sum(segment.end for segment in report.segments),
        "journal_file_bytes": sum(segment.size_bytes for segment in report.segments),
        "journal_lsn": report.last_lsn,
        "behind_records": max(0, report.last_lsn - snapshot.lsn),
        "journal_damage": None if report.damage is None else str(report.damage),
    }
