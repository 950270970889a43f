"""Due tickets on their way into memory: firing, sweeps, loads and lane rows of one shard.

The core says what it wants read; this hands it to who reads, one of each kind at a time, and
brings back what came (docs/architecture.md, Placement).
"""

from functools import partial
from typing import TYPE_CHECKING, Any

from parkade import limits
from parkade.asks import Ask
from parkade.shard.commands import Expire

if TYPE_CHECKING:
    from parkade.shard_host import ShardHost

__all__ = ["ReadAhead"]


class ReadAhead:
    def __init__(self, shard: "ShardHost") -> None:
        self._shard = shard
        self._is_loading = False
        self.needs_refine = False

    def fire(self) -> None:
        """Brings what is due into the lanes, and ends what has expired."""
        shard = self._shard
        host = shard.host
        expired = shard.placement.advance(host.now_ms, host.settled_ms, limits.FIRE_MAX)
        if expired:
            shard.asks.appendleft(Ask(Expire(expired), size=limits.EXPIRED_BYTES * len(expired)))

    def ask(self) -> None:
        """Has read what the placement wants to know of the store."""
        shard, placement, reader = self._shard, self._shard.placement, self._shard.reader
        if not self._is_loading:
            serials = placement.want_loads(limits.LOAD_CHUNK)
            if serials:
                self._is_loading = True
                shard.read(
                    lambda: reader.load(serials, has_bodies=True),
                    lambda got: self._loaded(serials, got),
                    is_first=True,  # they are due: behind refills, who is alone waits for a crowd
                )
        scout = placement.want_scout(shard.host.now_ms)
        if scout is not None:  # before all: whom it finds it reads, and the others are the crowd
            shard.read(lambda: reader.scout(scout), self._scouted, is_first=True)
        sweep = placement.want_sweep(shard.host.now_ms)
        if sweep is not None:
            shard.read(lambda: reader.sweep(sweep), self._swept)
        # While the sweep is behind, somebody who is due may be behind a crowd that it has to pass.
        placement.lanes.reads_on = (
            shard.host.changed_bytes < limits.READ_ON_BYTES_MAX
            and not placement.is_behind(shard.host.now_ms)
        )
        for refill in placement.want_refills(shard.host.now_ms):
            shard.read(partial(reader.refill, refill), self._refilled)

    def _loaded(self, serials: list[int], got: Any) -> None:
        self._is_loading = False
        self._shard.quarantined |= got.damaged
        self._shard.placement.loaded(serials, got.loaded, self._shard.host.now_ms)

    def _swept(self, got: Any) -> None:
        self.needs_refine = self.needs_refine or got.needs_refine
        self._shard.placement.swept(got.swept, self._shard.host.now_ms)

    def _scouted(self, got: Any) -> None:
        scouted, damaged = got
        self._shard.quarantined |= damaged
        self._shard.placement.scouted(scouted, self._shard.host.now_ms)

    def _refilled(self, got: Any) -> None:
        refilled, damaged = got
        self._shard.quarantined |= damaged
        self._shard.placement.refilled(refilled, self._shard.host.now_ms)
