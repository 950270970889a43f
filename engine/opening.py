"""Opening: from a directory on disk to shards that can be served.

Recovery is one function, used at open and after a failure: the store, then the journal behind it,
with every ticket that a frame names loaded before the frame is applied (docs/architecture.md,
Opening).
"""

from collections.abc import Callable, Iterable, Sequence, Set
from dataclasses import dataclass
from itertools import groupby
from typing import cast

from parkade.index_keys import state_prefix
from parkade.limits import OUTBOX_READ_MAX
from parkade.reading import StoreReader
from parkade.shard import Bounds, Shard
from parkade.shard.memory import UNREAD
from parkade.shard.states import RUNNING
from parkade.store.disk import Disk
from parkade.store.errors import Damage, FormatTooNew, StoreError, WriteFailed
from parkade.store.folders import make_folder
from parkade.store.frame import Frame
from parkade.store.journal import Journal, Sizing
from parkade.store.manifest import FORMAT
from parkade.store.moving import shard_directory
from parkade.store.parked import Parked
from parkade.store.record import (
    AnyRecord,
    Completed,
    RecordDamage,
    RecordTooNew,
    Submitted,
    decode_records,
)
from parkade.store.snapshot import Snapshot

__all__ = [
    "Identity", "OpenShard", "core_at", "open_shard", "records_of", "replay", "shard_directory",
]  # fmt: skip

RUNNING_PAGE = 1_000
REPLAY_RECORDS = 2_048
REPLAY_BYTES = 4 << 20


def _everything_stays() -> None:
    """For a directory that only who works on it knows."""


@dataclass(frozen=True, slots=True)
class Identity:
    """What every file of a directory must say of itself, and how durable it is to be.

    `check_in_place` raises OSError once the directory has lost its name.
    """

    path: str
    salt: bytes
    durability: str
    is_new: bool
    shard_count: int = 1
    check_in_place: Callable[[], None] = _everything_stays

    def check(self) -> None:
        """Before files are opened by their names. Raises `WriteFailed` where those are others'."""
        try:
            self.check_in_place()
        except OSError as error:
            raise WriteFailed(self.path, error.errno or 0) from error


@dataclass(slots=True)
class OpenShard:
    """A shard as recovery hands it over."""

    core: Shard
    journal: Journal
    store: Parked
    reader: StoreReader

    def close(self, *, is_clean: bool = False) -> None:
        """Gives the files back, also when the journal cannot be closed: that raises then."""
        try:
            self.journal.close(clean=is_clean, stored_lsn=self.store.lsn)
        finally:
            self.store.close()


def open_shard(
    disk: Disk,
    identity: Identity,
    number: int,
    *,
    sizing: Sizing,
    entropy: Callable[[int], bytes],
    bounds: Bounds | None = None,
    open_store: Callable[..., Parked] = Parked.open,
    now_ms: int = 0,
) -> OpenShard:
    """Opens and recovers one shard. Raises what the store and the journal raise.

    `bounds` are those of its memory; `open_store` takes the arguments of `Parked.open`. `now_ms`: a
    new one counts its time from there, by the wall clock.
    """
    identity.check()
    directory = shard_directory(identity.path, number)
    if identity.is_new:
        make_folder(disk, directory)
    store = open_store(
        f"{directory}/store",
        salt=identity.salt,
        shard=number,
        is_new=identity.is_new,
        sync=identity.durability != "memory",
        settled_ms=now_ms if identity.is_new else 0,
    )
    try:
        journal = Journal.open(
            disk,
            f"{directory}/journal",
            salt=identity.salt,
            shard=number,
            store_lsn=store.lsn,
            store_epoch=store.epoch,
            mode=identity.durability,
            sizing=sizing,
            is_new=identity.is_new,
            entropy=entropy,
            check_in_place=identity.check_in_place,
        )
    except BaseException:
        store.close()
        raise
    try:
        with store.snapshot() as snapshot:
            core = core_at(snapshot, bounds, number=number, shard_count=identity.shard_count)
        reader = StoreReader(store, core.stored_lane_number)
        replay(core, reader, journal.replay(), journal.directory)
        core.epoch = journal.epoch
        adopt_running(core, reader)
        fill_outbox(core, reader)
    except BaseException:
        journal.close(clean=False)
        store.close()
        raise
    return OpenShard(core, journal, store, reader)


def core_at(
    snapshot: Snapshot, bounds: Bounds | None = None, *, number: int = 0, shard_count: int = 1
) -> Shard:
    """A core as the checkpoint left it that the snapshot shows."""
    return Shard(
        lsn=snapshot.lsn,
        counters=snapshot.counters(),
        lane_names=snapshot.lane_names(),
        lane_rows={lane: count for lane, count in snapshot.lane_row_counts().items() if count},
        bounds=bounds,
        number=number,
        shard_count=shard_count,
        taken=snapshot.taken(),
        has_outbox=bool(snapshot.outbox(limit=1)),
        waits=snapshot.wait_queues(),
        wait_rows=snapshot.wait_row_count(),
        idle_lanes=snapshot.idle_lanes(),
        done_forgotten=snapshot.memo().done_forgotten,
    )


def replay(core: Shard, reader: StoreReader, frames: Iterable[Frame], path: str) -> None:
    """Applies what the journal has behind the store. Raises what `records_of` does.

    Frames go together until there is a batch to read the store for at once: it has not changed.
    """
    batch: list[tuple[Frame, Sequence[AnyRecord]]] = []
    lsn, count, size_bytes = core.lsn, 0, 0
    for frame in frames:
        records = records_of(frame, path)
        if len(records) != frame.count or frame.first_lsn > lsn + 1:
            # Whatever is answered from here on would be reckoned to the wrong LSN.
            raise Damage(
                path,
                frame.offset,
                f"a frame of {frame.count} records from LSN {frame.first_lsn} on holds "
                f"{len(records)}, behind LSN {lsn}",
            )
        fresh = records[max(0, lsn + 1 - frame.first_lsn) :]
        batch.append((frame, fresh))
        lsn += len(fresh)
        count += len(fresh)
        size_bytes += len(frame.body)
        if count >= REPLAY_RECORDS or size_bytes >= REPLAY_BYTES:
            _apply_batch(core, reader, batch, path)
            batch, count, size_bytes = [], 0, 0
    _apply_batch(core, reader, batch, path)


def _apply_batch(
    core: Shard, reader: StoreReader, batch: Sequence[tuple[Frame, Sequence[AnyRecord]]], path: str
) -> None:
    offset = 0
    try:
        named = load_named(core, reader, [record for _, records in batch for record in records])
        for frame, records in batch:
            core.epoch, offset = frame.epoch, frame.offset
            _apply(core, records, named)
    except StoreError:
        raise
    except Exception as error:
        # `apply` refuses nothing that was decided: these are other records than were written.
        text = f"a frame's records cannot have happened: {type(error).__name__}: {error}"
        raise Damage(path, offset, text) from error


def _apply(core: Shard, records: Sequence[AnyRecord], named: Set[int]) -> None:
    """Submits that follow each other go together, as they did when they were decided; one that is
    `named` later on is needed as a ticket, and goes alone."""
    apply = core.apply
    for kind, run in groupby(records, type):
        if kind is not Submitted:
            for record in run:
                apply(record)
            continue
        submits = cast(list[Submitted], list(run))
        if named.isdisjoint([submit.serial for submit in submits]):
            core.apply_submits(submits)
        else:
            for record in submits:
                apply(record)


def records_of(frame: Frame, path: str) -> list[AnyRecord]:
    """What a frame says. Raises `Damage` for a body that is no records, `FormatTooNew` for records
    of a later version."""
    try:
        return decode_records(frame.body)
    except RecordTooNew as error:
        raise FormatTooNew(path, FORMAT + 1, FORMAT) from error
    except RecordDamage as error:
        raise Damage(path, frame.offset, f"a frame's body is no records: {error}") from error


def load_named(core: Shard, reader: StoreReader, records: Iterable[AnyRecord]) -> Set[int]:
    """Brings into memory every ticket and unique row that the records name, in one read; gives the
    serials that they name.

    What memory knows goes before the store, and what the records create is in no store.
    """
    created: set[int] = set()
    named: set[int] = set()
    uniques: set[bytes] = set()
    for record in records:
        if isinstance(record, Submitted):
            created.add(record.serial)  # it names nobody, and most of a long tail are of its kind
            continue
        if isinstance(record, Completed):
            named.add(record.serial)
            continue
        serials, names = core.names(record)
        named.update(serials)
        uniques.update(names)
    wanted = [serial for serial in named - created if core.look(serial) is UNREAD]
    if wanted or uniques:
        core.adopt(reader.load(wanted, uniques).loaded)
    return named


def adopt_running(core: Shard, reader: StoreReader) -> None:
    """Every ticket that was running at the crash must be in memory: its attempt is lost."""
    before: int | None = 1 << 64
    while before is not None:
        page = reader.heads(
            [[state_prefix(RUNNING)]],
            before,
            count=RUNNING_PAGE,
            walk_max=RUNNING_PAGE,
            fits=lambda _: True,
        )
        serials = [ticket.serial for ticket in page.tickets]
        if serials:
            core.adopt(reader.load(serials).loaded)
        before = page.last


def fill_outbox(core: Shard, reader: StoreReader) -> None:
    """The first entries for each receiver: they go before any newer one."""
    for receiver in sorted(core.outbox.beyond):
        while core.outbox.wants_refill(receiver):
            got = reader.outbox(receiver, core.outbox.last(receiver), OUTBOX_READ_MAX)
            core.outbox.refill(receiver, got.entries, is_end=got.is_end)
