"""What a shard needs of the engine around it: the seam at which a test stands in for the host."""

from collections.abc import Sequence
from typing import TYPE_CHECKING, Protocol

from parkade.asks import Ask
from parkade.feed import Feed
from parkade.keeping import Keeping
from parkade.opening import OpenShard
from parkade.waiters import Wakeups

if TYPE_CHECKING:
    from parkade.shard_host import ShardHost

__all__ = ["HostPort"]


class HostPort(Protocol):
    """What a shard needs of the engine around it. Times are those of the pass under way."""

    wakeups: Wakeups
    feed: Feed
    now_ms: int
    mono_ms: int
    settled_ms: int
    is_lone: bool
    keeping: Keeping

    @property
    def shards(self) -> "Sequence[ShardHost]": ...
    @property
    def counts_ready(self) -> bool: ...
    def decided(self, ask: Ask) -> None: ...
    def open_shards(self) -> "Sequence[ShardHost]": ...
    def has_changed_room(self) -> bool: ...
    @property
    def changed_bytes(self) -> int: ...
    def shard(self, number: int) -> "ShardHost | None": ...
    def failure(self, shard: int, error: BaseException) -> Exception: ...
    def reopen(self, shard: "ShardHost") -> OpenShard: ...
    def shard_recovered(self, shard: "ShardHost") -> None: ...
    def shard_failed(self, shard: "ShardHost") -> None: ...
    def report(self, what: str, error: BaseException | None) -> None: ...
