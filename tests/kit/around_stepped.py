"""What a stepped shard finds around it: the engine, tasks that are told of ends, settings."""

from typing import TYPE_CHECKING

from kit.watched import Failed
from parkade import limits
from parkade.asks import Ask
from parkade.feed import Feed
from parkade.opening import OpenShard
from parkade.shard.births import Ending
from parkade.shard.memory import changed_bytes
from parkade.shard.ticket import Ticket
from parkade.shard_host import ShardHost
from parkade.store.errors import StoreError
from parkade.store.record import Submitted, UniqueClaim
from parkade.waiters import Wakeups

if TYPE_CHECKING:
    from kit.stepped import Stepped

__all__ = ["KeepingTasks", "Port", "Routes"]


class KeepingTasks:
    """Tasks that say how long they keep what has ended."""

    def __init__(self, keeps_ms: dict[str, int | None]) -> None:
        self._keeps_ms = keeps_ms

    def keeps_ms(self) -> dict[str, int | None]:
        return self._keeps_ms


class Port:
    """The engine around the shard, as far as it needs one."""

    def __init__(self, shard: "Stepped") -> None:
        self._stepped = shard
        self.wakeups = Wakeups()
        self.feed = Feed()
        self.now_ms = self.mono_ms = self.settled_ms = 0
        self.counts_ready = False
        self.is_lone = shard.lives % 2 == 1  # from the second life on, every other
        self.keeping = shard.keeping
        self.errors: list[tuple[str, BaseException | None]] = []

    def decided(self, ask: Ask) -> None:
        return

    @property
    def shards(self) -> list[ShardHost]:
        return [self._stepped.shard]

    def open_shards(self) -> list[ShardHost]:
        return self.shards

    def has_changed_room(self) -> bool:
        moved_bytes = sum(shard.core.memory.moved_bytes for shard in self.shards)
        return self.changed_bytes - moved_bytes < limits.DIRTY_BYTES_MAX

    @property
    def changed_bytes(self) -> int:
        return changed_bytes(shard.core.memory for shard in self.shards)

    def shard(self, number: int) -> ShardHost | None:
        return self._stepped.shard if number == 0 else None

    def failure(self, shard: int, error: BaseException) -> Exception:
        return Failed(error)

    def reopen(self, shard: ShardHost) -> OpenShard:
        self._stepped.close_files()
        return self._stepped.open_files()

    def shard_recovered(self, shard: ShardHost) -> None:
        self._stepped.attempts.shard_recovered(shard)

    def shard_failed(self, shard: ShardHost) -> None:
        self._stepped.attempts.shard_failed(shard)

    def report(self, what: str, error: BaseException | None) -> None:
        if not isinstance(error, StoreError):
            self.errors.append((what, error))


class Routes:
    """A ticket whose option names a task for an end tells it of that."""

    def __init__(self, stepped: "Stepped") -> None:
        self._stepped = stepped

    def routes(self, ticket: Ticket, state: int) -> bool:
        options = ticket.options
        return options is not None and options.routes is not None and state != 2

    def drafts(self, ending: Ending) -> list[Submitted]:
        options, serial = ending.ticket.options, ending.ticket.serial
        assert options is not None and options.routes is not None
        name = options.routes[0]
        assert name is not None
        payload = b"route of %d" % serial
        claim = UniqueClaim("a", 0, -1, 500) if serial % 3 == 0 else None
        return [self._stepped.draft(task=name, payload=payload, unique=claim)]
