"""Looking into a directory without owning it: beside a running engine, or where none runs.

    with open_readonly("parkade-data") as reader:
        print(reader.stats().dead, reader.info(ticket_id).state)

Every answer is of the directory as it is when it is asked; only the later pages of a listing may be
of the time of the first. Nothing of the directory is changed: beside a running engine a reader has
a slot in the lock files of the stores, which hold nothing of the directory's.
"""

import asyncio
import os
import threading
from collections.abc import Sequence
from os import PathLike
from types import TracebackType
from typing import TYPE_CHECKING, Any, NoReturn, Self, TypeVar, cast

from parkade.asking import Request, check_not_on_loop
from parkade.asks import Inquiry, PageOf
from parkade.clock import Clock, SystemClock
from parkade.counting import count_shard
from parkade.dead import DeadLetters
from parkade.desk import Desk
from parkade.errors import ConfigError, ParkadeError, UnknownTask
from parkade.finding import NEWEST, find
from parkade.index_keys import tag_name_prefix
from parkade.onlooker import Onlooker, Sight
from parkade.payload import PAYLOAD_BYTES_MAX
from parkade.policies import RetryPolicy
from parkade.reading import DamagedTicket
from parkade.runtime_options import RuntimeOptions
from parkade.shard.ticket import Ticket as Head
from parkade.shard.ticket import format_id
from parkade.stats import ShardCounts, sum_up
from parkade.store.disk import Disk, RealDisk
from parkade.store.errors import ReadFailed, StoreError
from parkade.store.manifest import Manifest, read_manifest
from parkade.translating import opening_error, shard_error
from parkade.views import AttemptInfo, Page, ShardStats, State, Stats, TicketInfo

if TYPE_CHECKING:
    from parkade.engine import Engine
    from parkade.runtime import Runtime

__all__ = ["Reader", "existing_manifest", "open_readonly"]

T = TypeVar("T")
KEEP_DONE_MS = 86_400_000  # what an engine keeps unless it was told otherwise


def open_readonly(path: str | PathLike[str]) -> "Reader":
    """A view of the directory at `path`, whoever owns it. Writes nothing.

    Raises `ConfigError` (PK-111) where there is no parkade directory that this user may read,
    `StorageDamaged` and `FormatTooNew` for a manifest that cannot be used.
    """
    return Reader(RealDisk(), os.path.abspath(os.fspath(path)), SystemClock())


def existing_manifest(disk: Disk, path: str, now_ms: int) -> Manifest:
    """The manifest of a directory that must be there. Raises as `open_readonly` does."""
    try:
        manifest = read_manifest(disk, path)
    except StoreError as error:
        raise opening_error(path, error, now_ms) from error
    if manifest is None:
        what = "is empty, or was never finished" if disk.exists(path) else "does not exist"
        raise ConfigError(
            f"{path} is not a parkade directory: it {what}. An engine makes one when it is "
            "opened; give the path of that one (for the command line: --dir, or PARKADE_DIR)",
            code="PK-111",
        )
    if manifest.is_moving:
        raise ConfigError(
            f"{path} is being changed to {manifest.shards} shards, and that was cut short. Open an "
            "engine on it, or run parkade reshard again: either ends it",
            code="PK-111",
        )
    return manifest


class Reader:
    """Made by `open_readonly`; leave it, or `close` it, to let go of the files.

    Any thread; one question at a time is answered. A shard that is damaged answers with
    `StorageDamaged`, the others go on. A process that has an engine open on the directory asks the
    engine instead.
    """

    def __init__(self, disk: Disk, path: str, clock: Clock) -> None:
        self.path = path
        self.clock = clock
        self.manifest = existing_manifest(disk, path, clock.now_ms())
        self._bystander = Bystander(disk, path, clock, self.manifest)
        # A desk and an office ask what is behind them for a few things, and all of these are here.
        self._desk = Desk(cast("Runtime", self._bystander))
        self.dead = DeadLetters(cast("Engine", self))

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, et: type[BaseException] | None, e: BaseException | None, tb: TracebackType | None
    ) -> None:
        self.close()

    def close(self) -> None:
        """Lets go of the files; what is asked later raises `EngineClosed`. Twice is once."""
        self._desk.close()
        self._bystander.close()

    def lookup(self, name: str) -> NoReturn:
        """No code is here to hold arguments against. Raises `UnknownTask`."""
        raise UnknownTask(name, known=())

    def desk(self, call: str) -> Desk:
        """Where it is asked. Raises `EngineClosed`, and `ForkedEngine` in a fork."""
        self._desk.check(call)
        return self._desk

    def find(
        self,
        *,
        state: State | None = None,
        task: str | None = None,
        key: str | None = None,
        limit: int = 100,
        cursor: str | None = None,
    ) -> Page[TicketInfo]:
        """A page of tickets, newest first; `cursor` is the `next` of the page before.

        Raises `ConfigError` for an unknown state, a bad limit or cursor; `StorageDamaged`.
        """
        desk = self.desk("reader.find")
        return desk.ask(
            find(
                desk, call="reader.find", state=state, task=task, key=key, limit=limit,
                cursor=cursor,
            )
        )  # fmt: skip

    def is_tag_indexed(self, name: str) -> bool:
        """Whether any ticket is found by a tag of this name. Raises `StorageDamaged`."""
        self.desk("reader.is_tag_indexed")
        return self._bystander.is_tag_indexed(name)

    def info(self, ticket_id: str) -> TicketInfo:
        """Raises `UnknownTicket`, `StorageDamaged`."""
        desk = self.desk("reader.info")
        return desk.ask(desk.info(ticket_id, "reader.info"))

    def attempts(self, ticket_id: str) -> Sequence[AttemptInfo]:
        """A ticket's executions so far, in order. Raises `UnknownTicket`, `StorageDamaged`."""
        desk = self.desk("reader.attempts")
        return desk.ask(desk.attempts(ticket_id))

    def stats(self) -> Stats:
        """Counts by state and task. `ready` is counted up to a million a shard; tickets that are
        due beyond that are among the `scheduled`. A shard that cannot be read is `refused`."""
        self.desk("reader.stats")
        return self._bystander.stats()


class Bystander:
    """What stands behind a reader's desk, in the place of an open engine's runtime."""

    def __init__(self, disk: Disk, path: str, clock: Clock, manifest: Manifest) -> None:
        self.clock = clock
        self.pid = os.getpid()
        self.salt = int.from_bytes(manifest.salt, "big")
        self.shard_count = manifest.shards
        self.options = RuntimeOptions(
            durability="disk",
            threads=1,
            async_limit=1,
            # A ticket's own budget is known; its task's is the code's, which is not here.
            default_retry=RetryPolicy(max_attempts=None),
            max_payload=PAYLOAD_BYTES_MAX,
            keep_done_ms=KEEP_DONE_MS,
            has_attempts=False,
            index_tags=None,
        )
        self._path = path
        self._shards = [Onlooker(disk, path, manifest.salt, n) for n in range(manifest.shards)]
        self._asking = threading.Lock()

    @property
    def asker(self) -> "Bystander":
        return self

    def id_of(self, ticket: Head) -> str:
        return format_id(ticket.serial, ticket.part, self.salt)

    def policy_of(self, _: Head) -> RetryPolicy:
        return self.options.default_retry

    def ask(self, request: Request[T], timeout_s: float | None = None) -> T:
        """Answers on the caller's thread. Raises `ConfigError` for what would change something."""
        check_not_on_loop(request.call, request.instead)
        return request.finish([self._answer(request.call, *one) for one in request.asks])

    async def aask(self, request: Request[T], timeout_s: float | None = None) -> T:
        return await asyncio.to_thread(self.ask, request, timeout_s)

    def stats(self) -> Stats:
        now_ms = self.clock.now_ms()
        counts: list[ShardCounts] = []
        shards: list[ShardStats] = []
        with self._asking:
            for shard in self._shards:
                try:
                    shards.append(_shard_stats(shard, now_ms, counts))
                except ReadFailed as error:
                    raise self._error(shard.number, error) from error
                except StoreError as error:
                    reason = str(self._error(shard.number, error))
                    shards.append(ShardStats(shard.number, "refused", reason, *[0] * 9))
        return sum_up(counts, shards, now_ms)

    def is_tag_indexed(self, name: str) -> bool:
        with self._asking:
            for shard in self._shards:
                try:
                    with shard.sight() as sight:
                        if _is_tag_indexed(sight, name):
                            return True
                except StoreError as error:
                    raise self._error(shard.number, error) from error
        return False

    def close(self) -> None:
        with self._asking:
            for shard in self._shards:
                shard.close()

    def _answer(self, call: str, number: int, asked: Any) -> Any:
        if not isinstance(asked, Inquiry):
            raise ConfigError(
                f"{call}(): this is a view that changes nothing. Use the engine that owns the "
                "directory, or open one"
            )
        is_later_page = isinstance(asked, PageOf) and asked.before < NEWEST
        try:
            with self._asking:
                return self._shards[number].answer(asked, is_fresh=not is_later_page)
        except (StoreError, DamagedTicket) as error:
            raise self._error(number, error) from error

    def _error(self, number: int, error: Exception) -> ParkadeError:
        if isinstance(error, ReadFailed):
            return ConfigError(
                f"{self._path} cannot be read: {error}. Run this as a user who may read all of it",
                code="PK-111",
            )
        return shard_error(self._path, number, error)


def _is_tag_indexed(sight: Sight, name: str) -> bool:
    """In the store, or behind it in the journal."""
    if sight.snapshot.prefixes(tag_name_prefix(name), after=b"", limit=1):
        return True
    options = (ticket.options for ticket in sight.core.hot.values())
    return any(one is not None and name in (one.indexed or ()) for one in options)


def _shard_stats(shard: Onlooker, now_ms: int, counts: list[ShardCounts]) -> ShardStats:
    with shard.sight() as sight:
        counts.append(count_shard(sight, now_ms))
        sizes = shard.sizes(sight)
        return ShardStats(
            shard=shard.number,
            status="open",
            reason=None,
            lsn=sight.core.lsn,
            hot=len(sight.core.hot),
            dirty=len(sight.core.dirty.tickets),
            journal_bytes=sizes.journal_bytes,
            journal_segments=sizes.journal_segments,
            store_bytes=sizes.store_bytes,
            checkpoints=0,
            recoveries=0,
            quarantined=0,
        )
