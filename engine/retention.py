"""Keeping and forgetting: ended tickets leave a while after their end, oldest first.

Reckoned on the settled clock, by the time buckets that the store keeps of ended tickets; dead ones
stay until somebody acts. A pass looks at one task and state, and goes on as long as there is more,
so that it keeps pace at full load (docs/semantics.md, States).
"""

from collections import deque
from typing import TYPE_CHECKING, Any

from parkade import limits
from parkade.asks import Ask
from parkade.index_keys import task_digest
from parkade.shard.commands import Forget
from parkade.shard.states import CANCELLED, DONE, EXPIRED

if TYPE_CHECKING:
    from parkade.shard_host import ShardHost

__all__ = ["Retention"]

_FORGETTABLE = (DONE, CANCELLED, EXPIRED)


class Retention:
    """Of one shard; `keep_ms` None keeps everything."""

    def __init__(self, shard: "ShardHost", keep_ms: int | None) -> None:
        self._shard = shard
        self._keep_ms = keep_ms
        self._pending: list[tuple[str, int]] = []
        self._forgotten: deque[tuple[int, int]] = deque()  # (LSN, count), not in the store yet
        self._is_busy = False
        self._next_ms = shard.host.mono_ms

    @property
    def pause_ms(self) -> int:
        """Between two rounds: fine enough for how long things are kept."""
        keep_ms = self._keep_ms or 0
        return min(max(keep_ms // 10, limits.RETENTION_PAUSE_MS_MIN), limits.RETENTION_PAUSE_MS_MAX)

    def next_ms(self) -> int | None:
        """When, on the monotonic clock, the next look is due."""
        return None if self._keep_ms is None or self._is_busy else self._next_ms

    def step(self) -> None:
        """Looks for what may go, if it is time."""
        shard = self._shard
        if self._keep_ms is None or self._is_busy or shard.host.mono_ms < self._next_ms:
            return
        if not self._pending:
            self._pending = [
                (task, state) for task, state in shard.core.counters if state in _FORGETTABLE
            ]
        if not self._pending:
            self._rest()
            return
        task, state = self._pending.pop()
        before_ms = shard.host.settled_ms - self._keep_ms
        reader, limit = shard.reader, limits.FORGET_MAX + self._uncommitted()
        self._is_busy = True
        shard.read(
            lambda: reader.ended(state, task_digest(task), before_ms, limit),
            lambda serials: self._found(task, state, serials),
        )

    def _uncommitted(self) -> int:
        """How many were forgotten that the store still has."""
        completed_lsn = self._shard.core.completed_lsn
        while self._forgotten and self._forgotten[0][0] <= completed_lsn:
            self._forgotten.popleft()
        return sum(count for _, count in self._forgotten)

    def _found(self, task: str, state: int, serials: list[int]) -> None:
        core = self._shard.core
        serials = [serial for serial in serials if core.look(serial) is not None]
        if not serials:
            self._is_busy = False
            if not self._pending:
                self._rest()
            return

        def then(answers: Any, error: BaseException | None) -> None:
            self._is_busy = False
            if answers is None:
                self._rest()
                return
            self._forgotten.append((core.lsn, len(serials)))
            self._pending.append((task, state))

        self._shard.put(Ask(Forget(task, state, serials[: limits.FORGET_MAX]), then=then))

    def _rest(self) -> None:
        self._next_ms = self._shard.host.mono_ms + self.pause_ms
