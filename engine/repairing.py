"""Repair: a new directory of all that is whole in a damaged one, and a list of what is not.

The source is read and never written. Each store's rows are read by a child process, since damaged
pages can end it; the new store is made of the rows that pass their checksums, and the journal is
applied to it as an open would, up to the first record that is missing. The ids stay; so do the
number of shards and the salt (docs/operating.md).
"""

import dataclasses
import os
from collections.abc import Iterable
from dataclasses import dataclass, field

import msgspec

from parkade.backing_up import copied_directory, held_still, lease_ahead
from parkade.checkpoint import BODY_PAYLOAD, Checkpoint
from parkade.clock import SystemClock
from parkade.errors import ConfigError
from parkade.house import HOUSE_NUMBER, House, HouseState, decode_state
from parkade.opening import Identity, core_at, load_named, shard_directory
from parkade.reader import existing_manifest
from parkade.reading import StoreReader
from parkade.rebuilding import Lost, Rebuilt, rebuild_store
from parkade.salvaging import Salvaged, salvage_stores
from parkade.shard import Shard
from parkade.shard.memory import UNREAD
from parkade.shard.states import NO_FENCE, PENDING, RUNNING
from parkade.shards_told import parts_of_heads, parts_of_journal, shards_told
from parkade.store.disk import Disk, RealDisk
from parkade.store.errors import Damage, NotOurs, StoreError
from parkade.store.journal import Journal, Sizing
from parkade.store.journal_salvage import Found, JournalSalvage, Span, salvage_journal
from parkade.store.manifest import NAME as MANIFEST_NAME
from parkade.store.manifest import Manifest, read_manifest
from parkade.store.manifest_salvage import guess_manifest
from parkade.store.parked import Parked
from parkade.store.record import AnyRecord, Buried, ErrorText, Leased, RecordDamage, decode_records
from parkade.store.rows import unseal
from parkade.store.salvage import read_rows
from parkade.store.segment import read_frames
from parkade.translating import opening_error, work_error
from parkade.verifying import verify_parts
from parkade.version import VERSION

__all__ = ["PartRepair", "Repair", "repair"]

ENCODE_TICKETS = 5_000
LOST_PAYLOAD = ErrorText(
    "PayloadLost", "its payload was damaged; revive it with a payload, or drop it"
)


class PartRepair(msgspec.Struct):
    """What became of a shard, or of the house.

    `tickets` are in the new directory. `records`: of the journal, applied. `holes`: LSNs, first and
    last, of records that are lost; `left`: of those that are whole and were left, since they stand
    behind a hole. `notes` say what could not be read.
    """

    name: str
    tickets: int = 0
    records: int = 0
    lost: list[Lost] = []
    holes: list[Span] = []
    left: list[Span] = []
    notes: list[str] = []

    @property
    def has_losses(self) -> bool:
        return bool(self.lost or self.holes or self.left or self.notes)


@dataclass(slots=True)
class Repair:
    """Into which directory, and what of each part. `notes` are about the directory itself."""

    path: str
    parts: list[PartRepair] = field(default_factory=list[PartRepair])
    notes: list[str] = field(default_factory=list[str])

    @property
    def has_losses(self) -> bool:
        return bool(self.notes) or any(part.has_losses for part in self.parts)


def repair(source: str, target: str, *, is_past_holes: bool = False) -> Repair:
    """Makes a directory at `target` of what is whole at `source`. `is_past_holes`: also applies
    records behind those that are lost.

    Raises `ConfigError` where `target` is there already or `source` is no directory of parkade's,
    `EngineInUse`, `FormatTooNew`, `StorageFull`, `StorageError`.
    """
    disk = RealDisk()
    report = Repair(target)
    manifest, is_guessed = _manifest(disk, source, report)
    try:
        with held_still(disk, source), copied_directory(disk, target) as partial:
            work = _Work(disk, source, partial, manifest, is_past_holes)
            house, *salvaged = work.salvage()
            if is_guessed:
                salvaged += work.salvage_missing(salvaged, report)
                manifest = work.manifest
            shards = [work.shard(number, rows) for number, rows in enumerate(salvaged)]
            report.parts = [work.house(house), *shards]
            _check_sound(disk, partial, manifest)
            disk.replace_file(f"{partial}/{MANIFEST_NAME}", manifest.encode())
    except (StoreError, OSError) as error:
        raise work_error(source, None, f"be repaired into {target}", error) from error
    return report


def _manifest(disk: Disk, source: str, report: Repair) -> tuple[Manifest, bool]:
    """And whether it had to be guessed."""
    try:
        manifest = read_manifest(disk, source)
        reason = "it is missing"
    except Damage as damage:
        manifest, reason = None, damage.reason
    except NotOurs:
        manifest, reason = None, "there is none"
    except StoreError as error:
        raise opening_error(source, error, SystemClock().now_ms()) from error
    if manifest is not None:
        # Where shards are about to be exchanged it says what to do first.
        return existing_manifest(disk, source, SystemClock().now_ms()), False
    guessed = guess_manifest(disk, source, VERSION, SystemClock().now_ms())
    if guessed is None:
        raise ConfigError(
            f"{source} is no directory of parkade: {reason}, and no journal in it says whose it "
            "is. Give the directory that was damaged",
            code="PK-111",
        )
    report.notes.append(f"the manifest was made anew of what the journals say ({reason})")
    return guessed, True


def _check_sound(disk: Disk, partial: str, manifest: Manifest) -> None:
    for part in verify_parts(disk, partial, manifest, deep=True, is_still=True):
        for finding in part.problems:
            raise Damage(partial, 0, f"the repaired {part.name} is not sound: {finding.text}")


class _Work:
    def __init__(
        self, disk: Disk, source: str, partial: str, manifest: Manifest, is_past_holes: bool
    ) -> None:
        self.disk = disk
        self.source = source
        self.partial = partial
        self.manifest = manifest
        self.is_past_holes = is_past_holes
        self.salt = int.from_bytes(manifest.salt, "big")
        self.now_ms = SystemClock().now_ms()
        self.serial_max = 0

    def salvage(self) -> list[Salvaged]:
        """The rows of the house and of each shard."""
        house = (f"{self.source}/house", f"{self.partial}/house")
        return self._salvage([house, *map(self._pair, range(self.manifest.shards))])

    def salvage_missing(self, salvaged: list[Salvaged], report: Repair) -> list[Salvaged]:
        """Of shards behind the last folder, if the tickets in the others tell of such."""
        parts = [
            parts_of_heads(rows)
            | parts_of_journal(
                self.disk, f"{self._pair(number)[0]}/journal", self.manifest.salt, number
            )
            for number, rows in enumerate(salvaged)
        ]
        shards = shards_told(parts, len(parts))
        if shards == len(parts):
            return []
        report.notes.append(
            f"the tickets are placed as those of {shards} shards, and there are folders of "
            f"{len(parts)}: the last {shards - len(parts)} are missing, with all that they held"
        )
        self.manifest = dataclasses.replace(self.manifest, shards=shards)
        return self._salvage([self._pair(number) for number in range(len(parts), shards)])

    def _pair(self, number: int) -> tuple[str, str]:
        return shard_directory(self.source, number), shard_directory(self.partial, number)

    def _salvage(self, pairs: list[tuple[str, str]]) -> list[Salvaged]:
        for _, target in pairs:
            self.disk.mkdir(target)
        places = [(f"{source}/store", f"{target}/rows") for source, target in pairs]
        return salvage_stores(self.disk, places)

    # ---------------------------------------------------------------------------- a shard

    def shard(self, number: int, salvaged: Salvaged) -> PartRepair:
        source = shard_directory(self.source, number)
        target = shard_directory(self.partial, number)
        part = PartRepair(f"shard {number:02d}")
        store = Parked.open(f"{target}/store", salt=self.manifest.salt, shard=number, is_new=True)
        try:
            rebuilt = rebuild_store(
                salvaged, store, salt=self.salt, number=number,
                shard_count=self.manifest.shards, now_ms=self.now_ms,
            )  # fmt: skip
            part.lost, part.notes = rebuilt.lost, rebuilt.notes
            journal = self._journal(
                f"{source}/journal", number, rebuilt, part, bool(store.counters)
            )
            lsn, epoch = self._apply(number, store, rebuilt, journal, part)
            with store.snapshot() as snapshot:
                newest = snapshot.serials(before=1 << 64, limit=1)
            self.serial_max = max([self.serial_max, *newest])
            part.tickets = sum(store.counters.values())
        finally:
            store.close()
        Journal.open(
            self.disk, f"{target}/journal", salt=self.manifest.salt, shard=number,
            store_lsn=lsn, store_epoch=epoch, is_new=True,
        ).close(clean=True)  # fmt: skip
        if self.disk.exists(salvaged.rows):
            self.disk.unlink(salvaged.rows)
        self.disk.fsync_directory(target)
        return part

    def _journal(
        self, directory: str, number: int, rebuilt: Rebuilt, part: PartRepair, has_tickets: bool
    ) -> JournalSalvage:
        got = salvage_journal(
            self.disk, directory, salt=self.manifest.salt, shard=number,
            store_lsn=rebuilt.state.lsn,
        )  # fmt: skip
        part.notes = part.notes + got.notes
        if not rebuilt.is_placed and has_tickets:
            # What of the journal the store has is not known: nothing can be put on top of it.
            part.left = _spans(got.sound + got.behind)
            got.behind, got.sound = [], []
        return got

    def _apply(
        self,
        number: int,
        store: Parked,
        rebuilt: Rebuilt,
        journal: JournalSalvage,
        part: PartRepair,
    ) -> tuple[int, int]:
        """Brings the store to the end of the journal; its last LSN and the greatest epoch."""
        with store.snapshot() as snapshot:
            core = core_at(snapshot, number=number, shard_count=self.manifest.shards)
        reader = StoreReader(store, core.stored_lane_number)
        part.holes = list(journal.holes)
        is_whole = self._frames(core, reader, journal.sound, part)
        if is_whole and self.is_past_holes:
            self._frames(core, reader, journal.behind, part)
        else:
            part.left = part.left + _spans(frame for frame in journal.behind)
        buried = self._bury(core, reader, rebuilt.no_payload)
        epoch = max(rebuilt.state.epoch, journal.epoch_max)
        core.lsn = max(core.lsn, journal.last_lsn)
        checkpoint = Checkpoint(
            core, epoch=epoch, now_ms=self.now_ms, settled_ms=rebuilt.state.settled_ms,
            keeps_ms=rebuilt.memo.keeps_ms, spent=[],
        )  # fmt: skip
        while checkpoint.is_building:
            checkpoint.build(ENCODE_TICKETS)
        for serial in buried:
            checkpoint.batch.bodies[serial] = BODY_PAYLOAD
        store.commit(checkpoint.batch)
        return checkpoint.lsn, epoch

    def _frames(
        self, core: Shard, reader: StoreReader, frames: list[Found], part: PartRepair
    ) -> bool:
        """Applies frames in their order; False, and the rest is left, at one that holds none."""
        for at, (scan, head) in enumerate(frames):
            try:
                (frame,) = read_frames(self.disk, scan, [head])
                records = decode_records(frame.body)
                if len(records) != head.count:
                    raise RecordDamage(f"{len(records)} records where {head.count} must be")
            except (StoreError, RecordDamage) as error:
                part.notes = [*part.notes, f"{scan.path}, byte {head.offset}: {error}"]
                part.holes = [*part.holes, (head.first_lsn, head.last_lsn)]
                if self.is_past_holes:
                    continue
                part.left = _spans(frames[at + 1 :])
                return False
            fresh: list[AnyRecord] = records[max(0, core.lsn + 1 - head.first_lsn) :]
            core.lsn = max(core.lsn, head.first_lsn - 1)
            core.epoch = frame.epoch
            load_named(core, reader, fresh)
            for record in fresh:
                core.apply(record)
            part.records += len(fresh)
        return True

    def _bury(self, core: Shard, reader: StoreReader, serials: set[int]) -> list[int]:
        """Ends those that have no payload, now that the journal is applied; a person decides. Gives
        those that have none now."""
        without: list[int] = []
        for serial in sorted(serials):
            buried = Buried(serial, NO_FENCE, self.now_ms, "bad_payload", LOST_PAYLOAD)
            load_named(core, reader, [buried])
            ticket = core.hot.get(serial)
            if ticket is None or core.body(serial) not in (None, UNREAD):
                continue
            if ticket.state == RUNNING:
                fields = {"fence": ticket.fence, "maybe_applied": True}
                core.apply(msgspec.structs.replace(buried, **fields))
            elif ticket.state == PENDING:
                core.apply(buried)
            without.append(serial)
        return without

    # ----------------------------------------------------------------------------- the house

    def house(self, salvaged: Salvaged) -> PartRepair:
        source = f"{self.source}/house"
        part = PartRepair("house")
        rebuilt_state, lsn = self._house_state(salvaged.rows, part)
        part.notes = part.notes + salvaged.notes
        journal = salvage_journal(
            self.disk, f"{source}/journal", salt=self.manifest.salt, shard=HOUSE_NUMBER,
            store_lsn=lsn,
        )  # fmt: skip
        part.notes, part.holes = part.notes + journal.notes, journal.holes
        frames = journal.sound + journal.behind  # each record of it stands for itself
        for scan, head in frames:
            try:
                (frame,) = read_frames(self.disk, scan, [head])
                for record in decode_records(frame.body)[max(0, lsn + 1 - head.first_lsn) :]:
                    rebuilt_state.apply(record)
                    part.records += 1
            except (StoreError, RecordDamage) as error:
                part.notes = [*part.notes, str(error)]
        if self.disk.exists(salvaged.rows):
            self.disk.unlink(salvaged.rows)
        self._write_house(rebuilt_state)
        return part

    def _house_state(self, rows: str, part: PartRepair) -> tuple[HouseState, int]:
        state, lsn = HouseState(), 0
        is_read = False
        for row in read_rows(rows, "heads", "meta"):
            value = unseal(row.key, row.stored)
            if value is None:
                continue
            if row.table == "heads":
                try:
                    state, is_read = decode_state(value), True
                except msgspec.MsgspecError:
                    continue
            elif row.key == b"state":
                lsn = int.from_bytes(value[:8], "big")
        if lsn and not is_read:
            part.lost = [
                Lost("house", "pauses, breakers that were not closed, limits that were set")
            ]
        return state, lsn

    def _write_house(self, state: HouseState) -> None:
        identity = Identity(
            self.partial, self.manifest.salt, "disk", is_new=True, shard_count=self.manifest.shards
        )
        house = House.open(self.disk, identity, sizing=Sizing(), entropy=os.urandom)
        try:
            house.state = state
            lease = max(state.lease_until, self.serial_max + 1, lease_ahead(self.now_ms))
            house.append([Leased(lease)])
            house.checkpoint(now_ms=self.now_ms, settled_ms=0)
        finally:
            house.close(is_clean=True)
        self.disk.fsync_directory(f"{self.partial}/house")


def _spans(frames: Iterable[Found]) -> list[Span]:
    """The LSNs of frames, joined where they follow each other."""
    spans: list[Span] = []
    for _, head in frames:
        if spans and spans[-1][1] + 1 == head.first_lsn:
            spans[-1] = (spans[-1][0], head.last_lsn)
        else:
            spans.append((head.first_lsn, head.last_lsn))
    return spans
