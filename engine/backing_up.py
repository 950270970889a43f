"""Backup and restore: a whole directory copied as it was at one cut, while its owner runs or not.

Done in a process of its own, which reads the stores as any reader does: its snapshots keep no
writer waiting, and its pages may be damaged. The copy is made under another name, without a
manifest, and gets both when all of it is there and synced: what was left half-way opens as nothing.
"""

import os
from collections.abc import Callable, Generator, Iterator, Sequence
from contextlib import ExitStack, closing, contextmanager, suppress
from dataclasses import dataclass
from typing import Any

from parkade.apart import ChildDied, ask_back, lines_apart, serve_lines
from parkade.clock import SystemClock
from parkade.errors import ConfigError, StorageDamaged
from parkade.house import HOUSE_NUMBER, House
from parkade.limits import SERIAL_LEASE
from parkade.onlooker import Onlooker
from parkade.opening import Identity, shard_directory
from parkade.reader import existing_manifest
from parkade.store.copying import copy_journal, copy_store
from parkade.store.disk import Disk, RealDisk, let_go, parent_of
from parkade.store.environment import LOCK_FILE
from parkade.store.errors import Damage, LockedByOther, ReadFailed, StoreError
from parkade.store.journal import Sizing
from parkade.store.lock import NAME as LOCK_NAME
from parkade.store.lock import read_owner
from parkade.store.manifest import NAME as MANIFEST_NAME
from parkade.store.manifest import Manifest
from parkade.store.record import Leased
from parkade.translating import died_error, opening_error, work_error
from parkade.verifying import verify_parts

__all__ = ["Copied", "back_up", "copied_directory", "held_still", "lease_ahead", "restore"]

LOOKS_MAX = 5
SUFFIX = ".partial"
OPENS_MAX = 10_000  # of an origin within so many blocks of its clock: four months


@dataclass(frozen=True, slots=True)
class Copied:
    """What came of it: where, how many tickets, bytes on disk."""

    path: str
    tickets: int
    bytes: int


def back_up(source: str, target: str, call: Callable[..., Any] | None) -> Copied:
    """Copies the directory at `source` into a new one at `target`.

    `call(name, **args)` asks the engine that runs on it; None: none does. Raises `ConfigError`
    for a target that is there already, `StorageDamaged`, `StorageFull`, `EngineInUse`.
    """
    holder: dict[str, Any] = {}

    def reply(what: str) -> Any:
        assert call is not None
        if what == "begin":
            holder.update(call("backup_begin"))
            return holder
        return call(f"backup_{what}", **holder)

    asked = {"verb": "backup", "source": source, "target": target, "is_live": call is not None}
    try:
        return _copied(source, asked, reply)
    finally:
        if holder and call is not None:
            call("backup_end", **holder)


def restore(source: str, target: str) -> Copied:
    """Copies a backup into a new directory, and has every row of the copy verified. Its ids go on
    behind all that the directory of the backup can have given out until now.

    Raises as `back_up` does, `StorageDamaged` also for what `verify --deep` finds.
    """
    asked = {"verb": "restore", "source": source, "target": target, "is_live": False}
    return _copied(source, asked, None)


def _copied(source: str, asked: dict[str, Any], reply: Callable[[str], Any] | None) -> Copied:
    inside = os.path.join(os.path.realpath(source), "")
    if os.path.realpath(asked["target"]).startswith(inside):
        raise ConfigError(
            f"{asked['target']} is inside of {source}. Give a path outside of it", code="PK-107"
        )
    check_target(RealDisk(), asked["target"])
    try:
        (said,) = lines_apart(__name__, asked, reply)
    except ChildDied as death:
        target = str(asked["target"])
        free_bytes = RealDisk().free_space(parent_of(target))
        with suppress(OSError):
            remove_partial(RealDisk(), target)
        what = f"be copied to {target}"
        raise died_error(source, what, death.reason, free_bytes=free_bytes) from death
    return Copied(**said)


# ------------------------------------------------------------------------------- in the child


def check_target(disk: Disk, target: str) -> None:
    """Raises `ConfigError` where the copy cannot be made."""
    if disk.exists(target):
        raise ConfigError(f"{target} is there already. Give a path where nothing is", code="PK-107")
    if not disk.exists(parent_of(target)):
        raise ConfigError(
            f"{parent_of(target)} does not exist, so {target} cannot be made in it. Make the "
            "parent directory first",
            code="PK-111",
        )


@contextmanager
def copied_directory(disk: Disk, target: str) -> Generator[str, None, None]:
    """A new directory to be filled, manifest last; it gets the name `target` at the end, and is
    gone where it is left by an error. Raises `ConfigError`."""
    check_target(disk, target)
    partial = target + SUFFIX
    if disk.exists(f"{partial}/{MANIFEST_NAME}"):
        raise ConfigError(f"{partial} is a directory of parkade. Move it away", code="PK-107")
    remove_partial(disk, target)
    handle: int | None = None
    try:
        disk.mkdir(partial)
        # It stays: it is the lock of whoever will own the copy.
        handle = disk.open(f"{partial}/{LOCK_NAME}", create=True)
        disk.flock(handle)
        yield partial
        disk.fsync_directory(partial)
        disk.rename(partial, target)
        disk.fsync_directory(parent_of(target))
    except BaseException:
        with suppress(OSError):  # what is left there opens as nothing, and is told as what it is
            disk.remove_tree(partial)
        raise
    finally:
        if handle is not None:
            let_go(disk, handle)


def remove_partial(disk: Disk, target: str) -> None:
    """What an earlier copy to this place left when its process was killed."""
    partial = target + SUFFIX
    if not disk.exists(partial):
        return
    foreign = [name for name in disk.listdir(partial) if not _is_part(name)]
    if foreign:
        raise ConfigError(f"{partial} holds {foreign[0]}. Move it away", code="PK-107")
    if disk.exists(f"{partial}/{LOCK_NAME}"):
        handle = disk.open(f"{partial}/{LOCK_NAME}")
        try:
            if not disk.flock(handle):
                raise ConfigError(
                    f"another copy to {target} is being made. Wait for it, or give another path",
                    code="PK-107",
                )
        finally:
            disk.close(handle)
    disk.remove_tree(partial)


def _is_part(name: str) -> bool:
    return name in ("house", LOCK_NAME) or name.startswith(("shard-", MANIFEST_NAME))


@contextmanager
def held_still(disk: Disk, path: str) -> Generator[None, None, None]:
    """Keeps engines out of a directory, writing nothing. Raises `EngineInUse`, `ReadFailed`."""
    name = f"{path}/{LOCK_NAME}"
    if not disk.exists(name):
        yield
        return
    try:
        handle = disk.open(name, read_only=True)
    except OSError as error:
        raise ReadFailed(name, error.errno or 0) from error
    try:
        if not _is_free(disk, handle, name):
            owner = read_owner(disk, path)
            locked = LockedByOther(path, {} if owner is None else owner.facts())
            raise opening_error(path, locked, SystemClock().now_ms())
        yield
    finally:
        let_go(disk, handle)


def _is_free(disk: Disk, handle: int, name: str) -> bool:
    try:
        return disk.flock(handle)
    except OSError as error:
        raise ReadFailed(name, error.errno or 0) from error


def _say(asked: dict[str, Any]) -> Iterator[dict[str, Any]]:
    disk = RealDisk()
    source, target = str(asked["source"]), str(asked["target"])
    manifest = existing_manifest(disk, source, SystemClock().now_ms())
    try:
        with ExitStack() as stack:
            if not asked["is_live"]:
                stack.enter_context(held_still(disk, source))
            partial = stack.enter_context(copied_directory(disk, target))
            _copy_parts(disk, source, partial, manifest, is_live=asked["is_live"])
            is_restore = asked["verb"] == "restore"
            if is_restore:
                raise_lease(disk, partial, manifest)
            tickets = _verified(disk, source, partial, manifest, deep=is_restore)
            disk.replace_file(f"{partial}/{MANIFEST_NAME}", manifest.encode())
            size = _tree_bytes(disk, partial)
    except (StoreError, OSError) as error:
        shard = _shard_of(source, manifest, str(getattr(error, "path", "")))
        raise work_error(source, shard, f"be copied to {target}", error) from error
    yield {"path": target, "tickets": tickets, "bytes": size}


def _shard_of(source: str, manifest: Manifest, path: str) -> int | None:
    """Whose file it is; None: the house's, or no shard's."""
    numbers = range(manifest.shards)
    mine = (number for number in numbers if path.startswith(f"{shard_directory(source, number)}/"))
    return next(mine, None)


def _copy_parts(
    disk: Disk, source: str, partial: str, manifest: Manifest, *, is_live: bool
) -> None:
    """The shards at one cut; then the house, whose lease is so behind every serial in them."""
    if is_live:
        ask_back("begin")
    numbers = range(manifest.shards)
    shards = [
        Onlooker(disk, source, manifest.salt, number, is_still=not is_live) for number in numbers
    ]
    with ExitStack() as stack:
        for shard in shards:
            stack.callback(shard.close)
        snapshots = [stack.enter_context(shard.store().snapshot()) for shard in shards]
        untils: Sequence[int | None] = [None] * len(shards)
        if is_live:
            untils = ask_back("cut")["lsns"]
        for shard, snapshot, until_lsn in zip(shards, snapshots, untils, strict=True):
            directory = shard_directory(partial, shard.number)
            disk.mkdir(directory)
            copy_journal(
                disk, shard.journal, f"{directory}/journal",
                salt=manifest.salt, shard=shard.number, store_lsn=snapshot.lsn,
                until_lsn=until_lsn,
            )  # fmt: skip
        if is_live:
            ask_back("end")
        _copy_house(disk, source, partial, manifest, is_live=is_live)
        for shard, snapshot in zip(shards, snapshots, strict=True):
            directory = shard_directory(partial, shard.number)
            copy_store(snapshot, f"{directory}/store")
            disk.fsync_directory(f"{directory}/store")
            disk.fsync_directory(directory)


def _copy_house(
    disk: Disk, source: str, partial: str, manifest: Manifest, *, is_live: bool
) -> None:
    """Its owner may drop a journal file between two reads: then it is looked at again."""
    directory = f"{partial}/house"
    house = Onlooker(disk, source, manifest.salt, HOUSE_NUMBER, place="house", is_still=not is_live)
    with closing(house):
        for look in range(LOOKS_MAX):
            disk.remove_tree(directory)
            disk.mkdir(directory)
            try:
                with house.store().snapshot() as snapshot:
                    copy_journal(
                        disk, house.journal, f"{directory}/journal", salt=manifest.salt,
                        shard=HOUSE_NUMBER, store_lsn=snapshot.lsn, until_lsn=None,
                    )  # fmt: skip
                    copy_store(snapshot, f"{directory}/store")
                break
            except (Damage, ReadFailed):
                if look == LOOKS_MAX - 1:
                    raise
    disk.fsync_directory(f"{directory}/store")
    disk.fsync_directory(directory)


def raise_lease(disk: Disk, path: str, manifest: Manifest) -> None:
    """Puts the serials of a copy behind all that its origin can have given out by now: the engine
    there leases one block ahead of its clock."""
    identity = Identity(path, manifest.salt, "disk", is_new=False, shard_count=manifest.shards)
    house = House.open(disk, identity, sizing=Sizing(), entropy=os.urandom)
    try:
        now_ms = SystemClock().now_ms()
        house.append([Leased(max(house.state.lease_until, lease_ahead(now_ms)))])
        house.checkpoint(now_ms=now_ms, settled_ms=house.store.settled_ms)
    finally:
        house.close(is_clean=True)
    disk.unlink(f"{path}/house/store/{LOCK_FILE}")


def lease_ahead(now_ms: int) -> int:
    """A serial behind all that an engine whose clock is right has leased by now: each of its opens
    has begun a block further, so it may be as many blocks ahead of its clock."""
    return (now_ms << 20) + OPENS_MAX * SERIAL_LEASE


def _verified(disk: Disk, source: str, partial: str, manifest: Manifest, *, deep: bool) -> int:
    """How many tickets the copy has. Raises `StorageDamaged` for the first thing wrong with it."""
    tickets = 0
    parts = verify_parts(disk, partial, manifest, deep=deep, is_still=True)
    for number, part in enumerate(parts, -1):
        tickets += part.tickets
        for finding in part.problems:
            raise StorageDamaged(
                source, shard=number if number >= 0 else None,
                where=finding.table or "its files", reason=finding.text.replace(partial, source),
            )  # fmt: skip
    return tickets


def _tree_bytes(disk: Disk, path: str) -> int:
    facts = disk.stat(path)
    if not facts.is_directory:
        return facts.size_bytes
    return sum(_tree_bytes(disk, f"{path}/{name}") for name in disk.listdir(path))


if __name__ == "__main__":
    serve_lines(_say)
