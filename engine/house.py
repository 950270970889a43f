"""The house: the engine-wide journal and store. Without it the engine does not open.

It keeps what belongs to no shard: the serial leases, pauses, breakers that are not closed, and the
limits that operators set (docs/architecture.md, The house). Same files, same recovery as a shard's.
"""

import contextlib
import dataclasses
from collections.abc import Callable, Iterable

import msgspec

from parkade.guards import Pause
from parkade.opening import Identity, records_of
from parkade.store.batch import Batch
from parkade.store.disk import Disk
from parkade.store.errors import Damage, FormatTooNew, NoRoom, StoreError
from parkade.store.folders import make_folder
from parkade.store.frame import Frame
from parkade.store.journal import Journal, Sizing
from parkade.store.manifest import FORMAT
from parkade.store.parked import Parked
from parkade.store.record import (
    BreakerSet,
    Leased,
    LimitSet,
    Paused,
    Record,
    Resumed,
    encode_records,
    is_from_later_version,
)
from parkade.store.snapshot import Snapshot

__all__ = ["HOUSE_NUMBER", "House", "HouseState", "decode_state", "read_state"]

HOUSE_NUMBER = 0xFFFF_FFFF  # stands where a shard's number stands, in every file of it
_STATE_ROW = 0


class HouseState(msgspec.Struct, array_like=True, forbid_unknown_fields=True):
    """All that the house knows; new fields go at the end, with a default."""

    lease_until: int = 0
    breakers: dict[str, bytes] = {}
    pauses: dict[str, Pause] = {}
    limits: dict[str, bytes] = {}

    def apply(self, record: Record) -> None:
        """Live and replay alike; a record of another kind changes nothing."""
        match record:
            case Leased():
                self.lease_until = max(self.lease_until, record.until)
            case BreakerSet():
                _set(self.breakers, record.name, record.state or None)
            case Paused():
                self.pauses[record.scope] = Pause(record.until_ms, record.reason)
            case Resumed():
                self.pauses.pop(record.scope, None)
            case LimitSet():
                _set(self.limits, record.scope, record.value)
            case _:
                return

    def replay(self, frames: Iterable[Frame], directory: str, store_lsn: int) -> None:
        """Applies what a journal has behind `store_lsn`. Raises `Damage`, `FormatTooNew`."""
        for frame in frames:
            records = records_of(frame, directory)
            for record in records[max(0, store_lsn + 1 - frame.first_lsn) :]:
                self.apply(record)

    def since(self, other: "HouseState") -> list[Record]:
        """What makes of `other` this state again; a lease is never taken back."""
        found: list[Record] = []
        for name in self.breakers | other.breakers:
            if self.breakers.get(name) != other.breakers.get(name):
                found.append(BreakerSet(name, self.breakers.get(name, b"")))
        for scope in self.pauses | other.pauses:
            pause = self.pauses.get(scope)
            if pause is None:
                found.append(Resumed(scope))
            elif pause != other.pauses.get(scope):
                found.append(Paused(scope, pause.until_ms, pause.reason))
        for scope in self.limits | other.limits:
            if self.limits.get(scope) != other.limits.get(scope):
                found.append(LimitSet(scope, self.limits.get(scope)))
        return found

    def forget_pauses(self, settled_ms: int) -> None:
        """Drops the pauses that are over."""
        for scope, pause in list(self.pauses.items()):
            if pause.until_ms is not None and pause.until_ms <= settled_ms:
                del self.pauses[scope]


def _set(rows: dict[str, bytes], name: str, row: bytes | None) -> None:
    if row is None:
        rows.pop(name, None)
    else:
        rows[name] = row


_encode = msgspec.msgpack.Encoder().encode
_decode = msgspec.msgpack.Decoder(HouseState).decode


class House:
    """Used by one thread at a time."""

    def __init__(
        self,
        journal: Journal,
        store: Parked,
        state: HouseState,
        reopen: "Callable[[], House] | None" = None,
    ) -> None:
        self.journal = journal
        self.store = store
        self.state = state
        self.lsn = journal.last_lsn
        self._reopen = reopen
        self._taken_back: list[Record] = []  # what the next append writes before its own

    @classmethod
    def open(
        cls,
        disk: Disk,
        identity: Identity,
        *,
        sizing: Sizing,
        entropy: Callable[[int], bytes],
        open_store: Callable[..., Parked] = Parked.open,
    ) -> "House":
        """Opens and recovers it. Raises what the store and the journal raise.

        `open_store` takes the arguments of `Parked.open`.
        """
        identity.check()
        directory = f"{identity.path}/house"
        if identity.is_new:
            make_folder(disk, directory)
        store = open_store(
            f"{directory}/store",
            salt=identity.salt,
            shard=HOUSE_NUMBER,
            is_new=identity.is_new,
            map_bytes=1 << 20,
            sync=identity.durability != "memory",
        )
        try:
            journal = Journal.open(
                disk,
                f"{directory}/journal",
                salt=identity.salt,
                shard=HOUSE_NUMBER,
                store_lsn=store.lsn,
                store_epoch=store.epoch,
                mode="disk" if identity.durability == "process" else identity.durability,
                sizing=sizing,
                is_new=identity.is_new,
                entropy=entropy,
                check_in_place=identity.check_in_place,
            )
        except BaseException:
            store.close()
            raise
        lasting = dataclasses.replace(identity, is_new=False)

        def reopen() -> House:
            return cls.open(disk, lasting, sizing=sizing, entropy=entropy, open_store=open_store)

        try:
            return cls(journal, store, _recover(journal, store), reopen)
        except BaseException:
            journal.close(clean=False)
            store.close()
            raise

    def append(self, records: list[Record]) -> None:
        """Durable on return. Raises what a journal raises."""
        records = [*self._taken_back, *records]
        body = encode_records(records)
        if not self.journal.has_room(len(body)):
            try:
                self.journal.prepare_spare()
            except NoRoom:
                # Its records are few and small: the segment has room for them for long.
                if not self.journal.fits(len(body)):
                    raise
        self.lsn = self.journal.append(body, len(records))
        self._taken_back = []
        for record in records:
            self.state.apply(record)

    def recover(self) -> None:
        """After a failed append: lets the files go and opens them again.

        Raises what `open` does, and may then be called again.
        The append may be in the files all the same. Whoever asked for it was told that it is not
        made, so the next one takes it back.
        """
        assert self._reopen is not None
        with contextlib.suppress(StoreError):
            self.close(is_clean=False)
        fresh = self._reopen()
        self.journal, self.store, self.lsn = fresh.journal, fresh.store, fresh.lsn
        self._taken_back = self.state.since(fresh.state)
        self.state.lease_until = max(self.state.lease_until, fresh.state.lease_until)

    def checkpoint(self, *, now_ms: int, settled_ms: int) -> None:
        """Makes the store equal to the state, and drops the journal behind it."""
        self.state.forget_pauses(settled_ms)
        batch = Batch(self.lsn, self.journal.epoch, now_ms, settled_ms, {})
        batch.heads[_STATE_ROW] = _encode(self.state)
        self.store.commit(batch)
        self.journal.drop_through(self.lsn)

    def close(self, *, is_clean: bool) -> None:
        try:
            self.journal.close(clean=is_clean, stored_lsn=self.store.lsn)
        finally:
            self.store.close()


def read_state(snapshot: Snapshot) -> HouseState:
    """The state at the store's LSN. Raises `RowDamaged`, `Damage`, `FormatTooNew`."""
    row = snapshot.head(_STATE_ROW)
    try:
        return HouseState() if row is None else _decode(row)
    except msgspec.MsgspecError as error:
        if is_from_later_version(error):
            raise FormatTooNew(snapshot.path, FORMAT + 1, FORMAT) from error
        raise Damage(snapshot.path, 0, f"the row of the house is none: {error}") from error


def decode_state(row: bytes) -> HouseState:
    """The state as a row of the store has it. Raises `msgspec.MsgspecError`."""
    return _decode(row)


def _recover(journal: Journal, store: Parked) -> HouseState:
    with store.snapshot() as snapshot:
        state = read_state(snapshot)
    state.replay(journal.replay(), journal.directory, store.lsn)
    return state
