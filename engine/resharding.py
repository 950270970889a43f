"""Resharding: the same tickets in another number of shards, while no engine has the directory.

The old shards are brought up to their journals, as a checkpoint does, and change no more. All their
rows are dealt into new ones beside them. When those are whole and synced the manifest names them
(`parkade.store.moving`), and they take the place of the old ones. Killed before that moment,
nothing has happened; killed after it, the next one to own the directory goes on.
"""

import contextlib
from collections.abc import Callable, Generator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass

from parkade.checkpoint import Checkpoint
from parkade.clock import Clock
from parkade.dealing import Deal, deal
from parkade.directory import Directory, own_directory
from parkade.errors import ParkadeError, StorageFull
from parkade.limits import ENCODE_SLICE_TICKETS
from parkade.onlooker import Onlooker
from parkade.opening import OpenShard, open_shard
from parkade.reader import existing_manifest
from parkade.store.disk import Disk
from parkade.store.errors import Damage, NoRoom, StoreError, write_error
from parkade.store.journal import Journal, Sizing
from parkade.store.manifest import Manifest, read_manifest
from parkade.store.moving import (
    begin_move,
    building_directory,
    finish_move,
    remove_half_built,
)
from parkade.store.parked import Parked
from parkade.store.rows import RowDamaged
from parkade.translating import opening_error, shard_error

__all__ = ["Plan", "Tools", "plan_reshard", "reshard"]

FRESH_BYTES = 4 << 20  # a new shard with no ticket in it: its first segments, its tables

Told = Callable[[str, int, int], None]
"""Hears what is being done, how many tickets of it are, and of how many."""


@dataclass(frozen=True, slots=True)
class Plan:
    """What a change of the number of shards takes. `need_bytes`: beside what is there."""

    shards: int
    to: int
    tickets: int
    need_bytes: int
    free_bytes: int

    @property
    def has_room(self) -> bool:
        return self.free_bytes >= self.need_bytes


@dataclass(frozen=True, slots=True)
class Tools:
    """What it works with: those of this machine, unless a test has its own."""

    disk: Disk
    clock: Clock
    entropy: Callable[[int], bytes]
    open_store: Callable[..., Parked] = Parked.open
    sizing: Sizing | None = None


def plan_reshard(
    tools: Tools, path: str, manifest: Manifest, to: int, *, is_owned: bool = False
) -> Plan:
    """Reads the directory, and changes nothing; an engine may run on it, or it `is_owned` by the
    caller. Raises what looking at a damaged shard raises."""
    tickets = need_bytes = 0
    for number in range(manifest.shards):
        with _of_shard(path, number):
            onlooker = Onlooker(tools.disk, path, manifest.salt, number, is_still=is_owned)
            try:
                if is_owned:  # damaged pages may end the process that reads them: they are told
                    with onlooker.store().snapshot() as snapshot:
                        onlooker.walk_pages(snapshot)
                with onlooker.sight() as sight:
                    tickets += sum(sight.core.counters.values())
                    sizes = onlooker.sizes(sight)
            finally:
                onlooker.close()
            need_bytes += sizes.store_bytes + sizes.journal_bytes
    free_bytes = tools.disk.free_space(path)
    return Plan(manifest.shards, to, tickets, need_bytes + to * FRESH_BYTES, free_bytes)


def reshard(tools: Tools, path: str, to: int, told: Told) -> Plan:
    """Gives a directory `to` shards; every ticket stays, and keeps its id and its place in order.

    Raises `EngineInUse`, `StorageFull` with nothing changed where there is not room for both, and
    `StorageDamaged` for a row that cannot be read: everything is as it was then too.
    """
    try:
        return _reshard(tools, path, to, told)
    except ParkadeError:
        raise
    except OSError as error:
        raise opening_error(path, write_error(path, error), tools.clock.now_ms()) from error


def _reshard(tools: Tools, path: str, to: int, told: Told) -> Plan:
    disk = tools.disk
    _check_is_ours(tools, path)
    directory = own_directory(
        disk, path, shards=None, clock=tools.clock, lock_wait_ms=0, entropy=tools.entropy
    )
    try:
        manifest = directory.manifest
        plan = plan_reshard(tools, path, manifest, to, is_owned=True)
        if to == manifest.shards:
            return plan
        if not plan.has_room:
            raise StorageFull.beside(path, plan.need_bytes, plan.free_bytes)
        try:
            _build(tools, directory, plan, told)
            told("switching", plan.tickets, plan.tickets)
        except BaseException:
            with contextlib.suppress(StoreError):
                remove_half_built(disk, path)
            raise
        finish_move(disk, path, begin_move(disk, path, manifest, to))
        return plan
    except NoRoom as error:
        raise StorageFull.beside(path, error.need_bytes, disk.free_space(path)) from error
    except StoreError as error:
        raise opening_error(path, error, tools.clock.now_ms()) from error
    finally:
        directory.release()


def _check_is_ours(tools: Tools, path: str) -> None:
    """An engine would make a directory where there is none."""
    try:
        found = read_manifest(tools.disk, path)
    except StoreError as error:
        raise opening_error(path, error, tools.clock.now_ms()) from error
    if found is None:
        existing_manifest(tools.disk, path, tools.clock.now_ms())


def _build(tools: Tools, directory: Directory, plan: Plan, told: Told) -> None:
    """The new shards, whole and synced, beside the old ones."""
    path, salt = directory.path, directory.manifest.salt
    with ExitStack() as held:
        told("reading the journals", 0, plan.tickets)
        old = [_gather(tools, directory, number, held) for number in range(plan.shards)]
        start = Deal(
            lsn=max(shard.core.lsn for shard in old),
            epoch=max(shard.journal.epoch for shard in old),
            now_ms=tools.clock.now_ms(),
            settled_ms=max(shard.store.settled_ms for shard in old),
        )
        fresh: list[Parked] = []
        for number in range(plan.to):
            place = building_directory(path, number)
            tools.disk.make_directories(place)
            fresh.append(
                tools.open_store(f"{place}/store", salt=salt, shard=number, is_new=True, sync=True)
            )
            held.callback(fresh[-1].close)
        snapshots = [held.enter_context(shard.store.snapshot()) for shard in old]
        try:
            deal(snapshots, fresh, start, lambda done: told("dealing", done, plan.tickets))
        except (Damage, RowDamaged) as error:
            whose = next((n for n, one in enumerate(old) if one.store.path == error.path), None)
            raise shard_error(path, whose, error) from error
        _check_all_there(path, old, fresh)
    for number in range(plan.to):
        _begin_journal(tools, path, salt, number, start)
        tools.disk.fsync_directory(building_directory(path, number))
    tools.disk.fsync_directory(path)


def _gather(tools: Tools, directory: Directory, number: int, held: ExitStack) -> OpenShard:
    """An old shard, recovered, its store brought up to its journal."""
    with _of_shard(directory.path, number):
        shard = open_shard(
            tools.disk,
            directory.identity("disk"),
            number,
            sizing=tools.sizing or Sizing(),
            entropy=tools.entropy,
            open_store=tools.open_store,
        )
        held.callback(shard.store.close)
        try:
            if shard.core.lsn > shard.store.lsn:
                _checkpoint(shard, tools.clock.now_ms())
        finally:
            shard.journal.close(clean=True)
    return shard


def _checkpoint(shard: OpenShard, now_ms: int) -> None:
    checkpoint = Checkpoint(
        shard.core,
        epoch=shard.journal.epoch,
        now_ms=now_ms,
        settled_ms=shard.store.settled_ms,
        keeps_ms=shard.store.memo.keeps_ms,
        spent=[],
    )
    while checkpoint.is_building:
        checkpoint.build(ENCODE_SLICE_TICKETS)
    shard.store.commit(checkpoint.batch)


def _begin_journal(tools: Tools, path: str, salt: bytes, number: int, start: Deal) -> None:
    """An empty journal that goes on behind the store."""
    Journal.open(
        tools.disk,
        f"{building_directory(path, number)}/journal",
        salt=salt,
        shard=number,
        store_lsn=start.lsn,
        store_epoch=start.epoch,
        mode="disk",
        sizing=tools.sizing or Sizing(),
        is_new=True,
        entropy=tools.entropy,
    ).close(clean=True, stored_lsn=start.lsn)


def _check_all_there(path: str, old: Sequence[OpenShard], fresh: Sequence[Parked]) -> None:
    def count(stores: Sequence[Parked]) -> dict[tuple[str, int], int]:
        counted: dict[tuple[str, int], int] = {}
        for store in stores:
            for name, tickets in store.counters.items():
                counted[name] = counted.get(name, 0) + tickets
        return {name: tickets for name, tickets in counted.items() if tickets}

    before, after = count([shard.store for shard in old]), count(fresh)
    if before != after:
        raise Damage(path, 0, "its shards count other tickets than they hold: verify it first")


@contextmanager
def _of_shard(path: str, number: int) -> Generator[None, None, None]:
    """Errors of a store as those of that shard. What the disk has no room for is not."""
    try:
        yield
    except (NoRoom, ParkadeError):
        raise
    except StoreError as error:
        raise shard_error(path, number, error) from error
