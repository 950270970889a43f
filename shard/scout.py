"""Looking past a crowd: who is due behind it is found before the sweep comes there.

A sweep takes the agenda in order, and the tickets of a full lane only as fast as checkpoints make
rows of them. So while the horizon is behind the clock, the agenda past it is looked through for
tickets of lanes that are not full. They come in like any that somebody asks for: hot and clean, in
their lane if they are due, else in the overlay; the sweep meets them as tickets that memory knows.
One with a key is left to the sweep: an older one of its key may be in the crowd.
"""

from collections.abc import Callable
from typing import Final, NamedTuple

from parkade.shard.commands import Loaded
from parkade.shard.lane import RANK_MAX, SERIAL_BITS, SERIAL_MASK
from parkade.shard.lanes import Lanes

__all__ = ["PAUSE_MS", "Scout", "ScoutAsk", "Scouted"]

PAUSE_MS: Final = 250
"""Between two looks at the same commit, and `_BLOB_MS` more for each blob that was looked at."""

_BLOB_MS: Final = 4  # so a greater crowd takes no more of the processor


class ScoutAsk(NamedTuple):
    """Read the tickets that the agenda has after a position (due, serial) and due up to a time, of
    other lanes than these numbers, and not known: at most `limit` of them, the first ones.
    `is_known` is for any thread."""

    after: tuple[int, int]
    until_ms: int
    full: frozenset[int]
    is_known: Callable[[int], bool]
    limit: int


class Scouted(NamedTuple):
    """What was found, in one snapshot. `blobs`: how many were looked at; `is_cut`: the limit left
    something."""

    loaded: Loaded
    blobs: int
    is_cut: bool


class Scout:
    """When to look, and who is in memory for having been found."""

    def __init__(self, lanes: Lanes) -> None:
        self._lanes = lanes
        self.found: set[int] = set()  # hot and clean past the horizon; some have moved on since
        self._keyed: set[int] = set()  # left to the sweep
        self._is_out = False
        self._looked_at: int | None = None  # the commit that was complete then
        self._looked_ms = 0
        self._seen_to: int | None = None  # the horizon then, if no lane was full
        self._pause_ms = PAUSE_MS

    def want(self, horizon: int, now_ms: int) -> ScoutAsk | None:
        """What to look through now. Asked once: the next comes after `took`."""
        bounds = self._lanes.bounds
        if horizon >> SERIAL_BITS >= now_ms + bounds.scout_ahead_ms:
            if self.found or self._keyed:
                self._forget(self.found)
                self._keyed.clear()
            return None
        if self._is_out or not self._is_time(horizon, now_ms):
            return None
        until_ms = now_ms + bounds.scout_ahead_ms + 2 * self._pause_ms
        self._forget({serial for serial in self.found if not self._is_behind(serial, until_ms)})
        full = full_lanes(self._lanes)
        self._seen_to = None if full else horizon
        limit = min(bounds.scout_max, bounds.scouted_max - len(self.found))
        if not full or limit <= 0 or len(self._keyed) >= bounds.scouted_max:
            return None
        self._is_out = True
        hot, keyed = self._lanes.memory.hot, self._keyed
        after = (horizon >> SERIAL_BITS, horizon & SERIAL_MASK) if horizon >= 0 else (0, 0)

        def is_here(serial: int) -> bool:
            return serial in hot or serial in keyed

        return ScoutAsk(after, until_ms, full, is_here, limit)

    def _is_time(self, horizon: int, now_ms: int) -> bool:
        """Whether there may be more to find than the last time. A crowd that the sweep has met
        since then is news as well."""
        commit, since_ms = self._lanes.memory.completed_commit, now_ms - self._looked_ms
        is_known = self._looked_at == commit and self._seen_to in (None, horizon)
        if is_known and 0 <= since_ms < self._pause_ms:
            return False
        self._looked_at, self._looked_ms = commit, now_ms
        return True

    def took(self, result: Scouted, *, is_again: bool) -> None:
        """The read has come. `is_again`: the next one is wanted at once."""
        self._is_out = False
        self._pause_ms = PAUSE_MS + _BLOB_MS * result.blobs
        if is_again:
            self._looked_at = None

    def leave(self, serial: int) -> None:
        """It has a key: the sweep is to bring it."""
        self._keyed.add(serial)

    def _is_behind(self, serial: int, until_ms: int) -> bool:
        """Whether it still waits for a time so near, and not in its lane."""
        ticket = self._lanes.memory.hot.get(serial)
        is_waiting = ticket is not None and ticket.due_ms <= until_ms
        return is_waiting and serial not in self._lanes.seats

    def _forget(self, serials: set[int]) -> None:
        """Whatever else keeps them in memory is asked at the next completion."""
        self._lanes.memory.lingering |= serials
        self.found -= serials


def full_lanes(lanes: Lanes) -> frozenset[int]:
    """The numbers of the lanes that have as many in memory, or about to come in, as they may."""
    most = lanes.bounds.window_max
    return frozenset(
        lane.number
        for lane in lanes.by_key.values()
        if lane.number is not None and (lane.edge < RANK_MAX or len(lane) + lane.near >= most)
    )
