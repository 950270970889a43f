"""One shard as somebody sees it who does not own it: store and journal, read and put together.

The same recovery as an opening, in memory alone: the store at one snapshot, the journal behind it
replayed into a core. An owner may be at work meanwhile; when a checkpoint drops journal files from
under a look, the look begins again (docs/architecture.md, Opening).
"""

import os
from collections.abc import Callable, Generator, Iterator
from contextlib import ExitStack, contextmanager
from typing import Any, NamedTuple, TypeVar

from parkade.asks import Inquiry
from parkade.errors import ConfigError
from parkade.inquiring import FromStore, answer
from parkade.opening import core_at, replay, shard_directory
from parkade.reading import DamagedTicket, StoreReader
from parkade.shard import Shard
from parkade.shard.commands import Need
from parkade.store.disk import Disk, let_go
from parkade.store.environment import LOCK_FILE, reading
from parkade.store.errors import Damage, ReadFailed
from parkade.store.frame import Frame
from parkade.store.inspection import JournalReport, inspect, read_only_frames
from parkade.store.lock import NAME as LOCK_NAME
from parkade.store.page_walk import walk_pages
from parkade.store.parked import ParkedReader
from parkade.store.snapshot import Snapshot

__all__ = ["Onlooker", "Sight", "Sizes"]

T = TypeVar("T")
LOOKS_MAX = 5


class Sight(NamedTuple):
    """A shard at one LSN. Valid inside the `with` that gave it."""

    core: Shard
    reader: StoreReader
    snapshot: Snapshot


class Sizes(NamedTuple):
    """Bytes in use; the journal's files may be longer."""

    journal_bytes: int
    journal_segments: int
    store_bytes: int


class HeldStore:
    """A store that stands still: every snapshot of it is the same one."""

    def __init__(self, snapshot: Snapshot) -> None:
        self._snapshot = snapshot

    @contextmanager
    def snapshot(self) -> Generator[Snapshot, None, None]:
        yield self._snapshot


class Onlooker:
    """Used by one thread at a time. `salt` is the directory's, 5 bytes; `place` is the folder of
    what is no shard: the house. `is_still`: the caller keeps owners out, and nothing is written,
    not even who reads."""

    def __init__(
        self,
        disk: Disk,
        path: str,
        salt: bytes,
        number: int,
        *,
        place: str | None = None,
        is_still: bool = False,
    ) -> None:
        self.number = number
        self.directory = shard_directory(path, number) if place is None else f"{path}/{place}"
        self.journal = f"{self.directory}/journal"
        self._disk = disk
        self._path = path
        self._salt = salt
        self._is_still = is_still
        self._store: ParkedReader | None = None
        self._core: Shard | None = None
        self._base_lsn = -1

    @contextmanager
    def sight(self, *, is_fresh: bool = True) -> Generator[Sight, None, None]:
        """The shard as it is now; without `is_fresh` perhaps as it was at the look before.

        Keep it for seconds at most: the owner cannot use freed pages again meanwhile. Raises
        `Damage`, `ReadFailed`, `FormatTooNew`; `ConfigError` where only its owner may look.
        """
        with self.held(lambda snapshot: self._sight_at(snapshot, is_fresh)) as sight:
            yield sight

    @contextmanager
    def held(self, see: Callable[[Snapshot], T]) -> Generator[T, None, None]:
        """What `see` makes of a snapshot that stays as long as the `with`; raises as `sight`.

        `Damage` is believed at the second look at the same LSN: before that it may be the owner,
        who drops journal files behind a checkpoint.
        """
        held, seen = self._look(see)
        with held:
            yield seen

    def answer(self, asked: Inquiry, *, is_fresh: bool = True) -> Any:
        """What the owner would answer. Raises `DamagedTicket` and what `sight` raises."""
        with self.sight(is_fresh=is_fresh) as (core, reader, snapshot):
            settled_ms = snapshot.state().settled_ms
            got = answer(core, asked, None, settled_ms)
            while isinstance(got, Need):
                read = reader.load(got.serials, got.uniques)
                for serial in read.damaged:
                    raise DamagedTicket(serial)
                got = answer(core, asked, read.loaded, settled_ms)
            while isinstance(got, FromStore):
                got = got.finish(core, got.work(reader))
            return got

    def sizes(self, sight: Sight) -> "Sizes":
        """How much the shard takes on disk. Raises what `sight` raises."""
        report = inspect(self._disk, self.journal, self._salt, self.number, sight.snapshot.lsn)
        return Sizes(
            sum(segment.end for segment in report.segments),
            len(report.segments),
            self._disk.stat(sight.snapshot.path).size_bytes,
        )

    def inspect(self, snapshot: Snapshot) -> JournalReport:
        """What an opening would find in the journal. Raises `ReadFailed`, `FormatTooNew`."""
        return inspect(self._disk, self.journal, self._salt, self.number, snapshot.lsn)

    def walk_pages(self, snapshot: Snapshot) -> None:
        """Whether each page of the store has one use at most. Raises `Damage`, `ReadFailed`."""
        walk_pages(self._disk, snapshot.path, snapshot.commit)

    def frames(self, snapshot: Snapshot) -> Iterator[Frame]:
        """The journal behind a snapshot. Raises what `sight` raises."""
        return read_only_frames(
            self._disk, self.journal, salt=self._salt, shard=self.number, store_lsn=snapshot.lsn
        )

    def close(self) -> None:
        """Lets go of the files. Twice is once."""
        store, self._store = self._store, None
        self._core = None
        if store is not None:
            store.close()

    def _look(self, see: Callable[[Snapshot], T]) -> tuple[ExitStack, T]:
        seen_lsn = -1
        for _ in range(LOOKS_MAX):
            held = ExitStack()
            lsn = seen_lsn
            try:
                snapshot = held.enter_context(self.store().snapshot())
                with reading(snapshot.path):  # what is raised here never reaches the snapshot's own
                    lsn = snapshot.lsn
                    return held, see(snapshot)
            except Damage:
                held.close()
                self._core = None
                if lsn == seen_lsn:
                    raise
                seen_lsn = lsn
            except BaseException:
                held.close()
                raise
        raise Damage(self.directory, 0, "it changes faster than it can be read; try again")

    def _sight_at(self, snapshot: Snapshot, is_fresh: bool) -> Sight:
        store: Any = HeldStore(snapshot)
        core = self._core
        if core is not None and not is_fresh and snapshot.lsn == self._base_lsn:
            return Sight(core, StoreReader(store, core.stored_lane_number), snapshot)
        self._core = None
        core = core_at(snapshot)
        reader = StoreReader(store, core.stored_lane_number)
        replay(core, reader, self.frames(snapshot), self.journal)
        core.memory.unpack_between(0, 1 << 64)  # whoever exports or counts walks over all tickets
        self._core, self._base_lsn = core, snapshot.lsn
        return Sight(core, reader, snapshot)

    def store(self) -> ParkedReader:
        """Its store, opened once. Raises as `sight` does."""
        if self._store is None:
            directory = f"{self.directory}/store"
            readers_file = f"{directory}/{LOCK_FILE}"
            is_live = (
                not self._is_still
                and self._disk.exists(readers_file)
                and os.access(readers_file, os.W_OK)
            )
            if not is_live and not self._is_still:
                self._check_unowned()
            try:
                self._store = ParkedReader.open_readonly(
                    directory, salt=self._salt, shard=self.number, is_live=is_live
                )
            except ReadFailed as error:
                if "already open" in error.detail:
                    raise ConfigError(
                        f"{self._path} is already open in this process, by an engine or another "
                        "reader. Ask that one"
                    ) from error
                raise
        return self._store

    def _check_unowned(self) -> None:
        """Without a slot in the readers' file, pages could be used again under our eyes."""
        path = f"{self._path}/{LOCK_NAME}"
        try:
            handle = self._disk.open(path, read_only=True)
        except FileNotFoundError:
            return
        except OSError as error:
            raise ReadFailed(path, error.errno or 0) from error
        try:
            is_free = self._disk.flock(handle)
        except OSError as error:
            raise ReadFailed(path, error.errno or 0) from error
        finally:
            let_go(self._disk, handle)
        if not is_free:
            raise ConfigError(
                f"{self._path} is open in an engine of another user, and this user may not write "
                f"{LOCK_FILE} there, which a reader needs to be seen. Run this as that user",
                code="PK-111",
            )
