"""The store of one shard: tickets parked out of memory, one synced transaction per checkpoint.

    parked = Parked.open(directory, salt=..., shard=0, is_new=False)
    with parked.snapshot() as snapshot:
        head = snapshot.head(serial)
    parked.commit(batch)

One thread commits at a time; any thread may take a snapshot. The store is at all times the state
at exactly one LSN, and a commit that fails leaves it there (docs/architecture.md, Store).
"""

import errno
import threading
from collections.abc import Callable
from contextlib import suppress

import lmdb

from parkade.store.agenda import Upkeep
from parkade.store.batch import Batch, Commit
from parkade.store.disk import file_bytes_max
from parkade.store.environment import (
    MAP_BYTES,
    MEANINGLESS,
    StoreFiles,
    meaningless,
    open_tables,
    system_code,
    used_bytes,
)
from parkade.store.errors import NO_ROOM_CODES, Damage, NoRoom, ReadFailed, StoreError, WriteFailed
from parkade.store.meta import (
    COUNTERS,
    IDENTITY,
    LANE_ROWS,
    LANE_TICKETS,
    MEMO,
    STATE,
    Memo,
    State,
    encode_counters,
    encode_lane_rows,
    encode_memo,
    pack_identity,
)
from parkade.store.parked_reader import ParkedReader, Stat, check_identity
from parkade.store.rows import seal
from parkade.store.writer import write_batch

__all__ = ["MAP_BYTES", "Parked", "ParkedReader", "Stat"]

GROWTH_PERCENT = 75  # of the map in use: then it grows, while there is still room to delete
MARGIN_BYTES = 1 << 20  # less than this free on the disk beyond what a commit needs: it was full


class Parked(ParkedReader):
    """The store of a shard, for its owner.

    `lsn`, `epoch`, `settled_ms`, `counters`, `memo`, `lane_rows` and `wait_rows` are those of the
    latest commit; the dicts are replaced by a commit, never changed.
    """

    lsn: int
    epoch: int
    settled_ms: int
    counters: dict[tuple[str, int], int]
    memo: Memo
    lane_rows: dict[int, int]
    wait_rows: int

    def __init__(
        self,
        directory: str,
        *,
        salt: bytes,
        shard: int,
        map_bytes: int = MAP_BYTES,
        sync: bool = True,
        commit_hook: Callable[[str], None] | None = None,
        free_bytes: Callable[[str], int] | None = None,
        files: StoreFiles | None = None,
        turn: "threading.Lock | None" = None,
    ) -> None:
        self._salt = salt
        self._shard = shard
        self._map_bytes = map_bytes
        self._sync = sync
        self._at = commit_hook or _pass
        self._files = files or StoreFiles()
        self._free_bytes = free_bytes or self._files.free_bytes
        self._committing = threading.Lock()
        self.turn = turn or threading.Lock()
        self._upkeep = Upkeep()
        super().__init__(directory)

    @classmethod
    def open(
        cls,
        directory: str,
        *,
        salt: bytes,
        shard: int,
        is_new: bool,
        map_bytes: int = MAP_BYTES,
        sync: bool = True,
        commit_hook: Callable[[str], None] | None = None,
        free_bytes: Callable[[str], int] | None = None,
        files: StoreFiles | None = None,
        settled_ms: int = 0,
        turn: "threading.Lock | None" = None,
    ) -> "Parked":
        """Open the store of a shard; `is_new` makes it where it is missing, directory and all, with
        `settled_ms` as its settled time.

        `salt` is the directory's, 5 bytes. `map_bytes` is how large it may become before it grows;
        `sync=False` leaves every sync out, for what need not outlive the machine. `commit_hook`
        is called at named points of a commit and may raise to make it fail: 'begin', 'tickets',
        'agenda', 'before_commit'. `free_bytes` tells how much is free on a disk, `files`
        reaches the files: those of this machine unless a test has its own. Of the stores that have
        the same `turn` one at a time puts rows, while others may sync.

        Raises `Damage` (missing, cut short, another directory's, another shard's), `FormatTooNew`,
        `ReadFailed`, `WriteFailed`.
        """
        parked = cls(
            directory,
            salt=salt,
            shard=shard,
            map_bytes=map_bytes,
            sync=sync,
            commit_hook=commit_hook,
            free_bytes=free_bytes,
            files=files,
            turn=turn,
        )
        if is_new:
            parked._create(settled_ms)
        parked._attach()
        return parked

    def commit(self, batch: Batch) -> Commit:
        """Write a batch in one synced transaction. An empty batch at the same LSN does upkeep.

        Raises `NoRoom` when the disk is full and `WriteFailed` for all else that stopped it, also
        for a file that has lost its name (ESTALE): then nothing of the batch is in the store, and
        it may be committed again. After `WriteFailed` from the very end of a commit LMDB may refuse
        further ones until `reopen`.
        Raises `Damage` for a bucket of the agenda that fails its checksum, or a row that makes no
        sense.
        """
        with self._committing:
            if batch.lsn < self.lsn:
                raise ValueError(f"the store is at LSN {self.lsn}, the batch ends at {batch.lsn}")
            if self._files.identity(self.path) != self._identity:
                # What has its name is another's, and its length would be taken for ours.
                raise WriteFailed(self.path, errno.ESTALE)
            need_bytes = batch.estimate_bytes()
            try:
                has_grown = self._grow_ahead(need_bytes)
                try:
                    return self._write(batch, has_grown)
                except lmdb.MapFullError:
                    map_bytes = self._environment.info()["map_size"]
                    if not self._grow(max(2 * map_bytes, map_bytes + 4 * need_bytes)):
                        raise
                    return self._write(batch, True)
            except (lmdb.Error, OSError) as error:
                failure = self._failure(error, need_bytes)
                if isinstance(failure, NoRoom) and self._has_moved():
                    failure = WriteFailed(self.path, system_code(error), str(error))
                raise failure from error
            except MEANINGLESS as error:
                raise meaningless(self.path, error) from error

    def _has_moved(self) -> bool:
        """Whether the store is not as it was before a commit that says that it failed: the last
        page may have been written all the same, also when there is no room for it."""
        try:
            with self.snapshot() as snapshot:
                return snapshot.state() != self._state
        except (lmdb.Error, OSError, StoreError):
            return True  # who is to say

    def reopen(self) -> None:
        """Close and open again, after a commit failed with room on the disk.

        Then look at `lsn`: a commit that failed while its last page was written may be there.
        Raises what `open` raises, and `ReadFailed` as long as a snapshot is open; a store that
        could not be opened again is closed.
        """
        with self._committing:
            super().close()
            self._attach()

    def close(self) -> None:
        """Let go of the files, once a commit under way is done. Twice is once."""
        with self._committing:
            super().close()

    def _create(self, settled_ms: int) -> None:
        """Make directory, file and tables. Killed half-way, it is done again."""
        try:
            self._files.make_directory(self.directory)
            environment = self._files.open(
                self.directory, map_bytes=self._map_bytes, is_new=True, sync=self._sync
            )
        except OSError as error:
            raise self._failure(error, MARGIN_BYTES) from error
        except ReadFailed as error:
            raise self._failure(OSError(error.code, error.detail), MARGIN_BYTES) from error
        try:
            tables = open_tables(environment, self.path, is_new=True)
            with environment.begin(write=True) as transaction:
                if transaction.get(IDENTITY, db=tables.meta) is None:
                    for key, row in (
                        (IDENTITY, pack_identity(self._salt, self._shard)),
                        (STATE, State(settled_ms=settled_ms).pack()),
                        (COUNTERS, encode_counters({})),
                        (LANE_ROWS, encode_lane_rows({})),
                        (LANE_TICKETS, bytes(8)),
                        (MEMO, encode_memo(Memo())),
                    ):
                        transaction.put(key, seal(key, row), db=tables.meta)
        except (lmdb.Error, OSError) as error:
            raise self._failure(error, MARGIN_BYTES) from error
        finally:
            environment.close()
        if self._sync:
            try:
                self._files.sync_directory(self.directory)
            except OSError as error:
                raise self._failure(error, MARGIN_BYTES) from error

    def _attach(self) -> None:
        """Open the files and read what is kept in memory of them."""
        length = self._files.file_bytes(self.path)
        self._identity = self._files.identity(self.path)
        environment = self._files.open(
            self.directory, map_bytes=self._map_bytes, is_new=False, sync=self._sync
        )
        try:
            self._tables = open_tables(environment, self.path, is_new=False)
            self._environment = environment
            with self.snapshot() as snapshot:
                check_identity(snapshot, self._salt, self._shard)
                self._state = snapshot.state()
                if length < self._state.file_bytes:
                    reason = f"the file ends here, and was {self._state.file_bytes} bytes long"
                    raise Damage(self.path, length, reason)
                self.memo = snapshot.memo()
                rows = snapshot.lane_row_counts(), snapshot.wait_row_count()
                self._adopt(self._state, snapshot.counters(), *rows)
        except BaseException:
            environment.close()
            raise

    def _adopt(
        self,
        state: State,
        counters: dict[tuple[str, int], int],
        lane_rows: dict[int, int],
        wait_rows: int,
    ) -> None:
        self._state = state
        self.lsn, self.epoch, self.settled_ms = state.lsn, state.epoch, state.settled_ms
        self.counters = counters
        self.wait_rows = wait_rows
        self.lane_rows = {lane: count for lane, count in lane_rows.items() if count}

    def _write(self, batch: Batch, has_grown: bool) -> Commit:
        """One attempt at the transaction; what is kept in memory changes after it or not at all."""
        with self._environment.begin(write=True, buffers=True) as transaction:
            # LMDB gives the interpreter away with each row: two stores that put rows at the same
            # time would take it from each other each time, which costs more than the rows do.
            with self.turn:
                self._at("begin")
                written = write_batch(
                    transaction,
                    self._tables,
                    self.path,
                    batch,
                    state=self._state,
                    lane_rows=self.lane_rows,
                    upkeep=self._upkeep,
                    file_bytes=self._files.file_bytes(self.path),
                    at=self._at,
                )
            self._at("before_commit")
            number = transaction.id()
        with suppress(OSError, ReadFailed):  # the batch is durable; the next commit does it
            self._files.fill_up(self._environment, self.path)
        self.memo = batch.memo
        rows = written.lane_rows, written.wait_rows
        self._adopt(written.state, dict(batch.counters), *rows)
        return Commit(
            batch.lsn,
            number,
            has_grown,
            written.written_bytes,
            written.has_refine_due,
            written.has_upkeep,
            written.lane_tickets,
        )

    def _grow_ahead(self, need_bytes: int) -> bool:
        """Grow before a commit that would fill the map past its mark; True if it has grown."""
        map_bytes = self._environment.info()["map_size"]
        wanted = map_bytes
        while (used_bytes(self._environment) + 2 * need_bytes) * 100 > wanted * GROWTH_PERCENT:
            wanted *= 2
        return wanted > map_bytes and self._grow(wanted)

    def _growth_bytes(self) -> int:
        """How much longer the file may become. Raises OSError."""
        free_bytes, most_bytes = self._free_bytes(self.directory), file_bytes_max()
        if most_bytes is None:
            return free_bytes
        return min(free_bytes, most_bytes - used_bytes(self._environment))

    def _failure(
        self, error: lmdb.Error | OSError, need_bytes: int
    ) -> NoRoom | WriteFailed | Damage:
        """What a failed commit was. LMDB tells a full disk from a broken one as little as the
        system does: at a commit both are I/O errors."""
        code = system_code(error)
        if isinstance(error, lmdb.CorruptedError | lmdb.PageNotFoundError):
            return Damage(self.path, 0, str(error))
        is_full = code in NO_ROOM_CODES
        if not is_full and code == errno.EIO:
            with suppress(OSError):  # a disk that cannot tell is no full one
                is_full = self._growth_bytes() < 2 * need_bytes + MARGIN_BYTES
        if is_full:
            return NoRoom(self.path, need_bytes)
        return WriteFailed(self.path, code, str(error))


def _pass(point: str) -> None:
    """The hook of a store that nobody makes fail."""
