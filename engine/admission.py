"""Who may start now: places in the executors, dealt to the lanes of all shards.

Engine-wide and exact, because only the core thread runs it. A freed place goes to the head that is
first by priority, first due time and serial, over all shards; a lane whose task has no place, or no
handler, holds no other lane (docs/architecture.md, Admission and attempts).
"""

import heapq
from collections.abc import Callable, Iterator, Sequence
from itertools import count
from typing import Protocol

import msgspec

from parkade.limits import START_BATCH_MAX
from parkade.shard.lanes import Lane
from parkade.shard.placement import Placement

__all__ = ["Admission", "Handlers", "Pick", "ShardLanes"]


class Pick(msgspec.Struct, frozen=True, gc=False):
    """A ticket with a place in hand."""

    shard: int
    serial: int
    kind: str


class Handlers(Protocol):
    """Which executor a task's attempts run in; None when no handler is registered."""

    def kind_of(self, task: str) -> str | None: ...


class ShardLanes(Protocol):
    """What admission needs of a shard: its lanes, and whether a ticket is a suspect."""

    number: int

    @property
    def placement(self) -> Placement: ...
    def is_suspect(self, serial: int) -> bool: ...


class Admission:
    """Counts the places in use and hands out the free ones."""

    def __init__(self, places: dict[str, int], handlers: Handlers) -> None:
        self.places = places
        self.used = dict.fromkeys(places, 0)
        self._handlers = handlers
        self._suspects_held: list[tuple[ShardLanes, int]] = []
        self.suspect_running: tuple[int, int] | None = None  # (shard, serial)

    @property
    def has_places(self) -> bool:
        return any(self.used[kind] < self.places[kind] for kind in self.places)

    def take(self, shards: Sequence[ShardLanes], now_ms: int) -> Iterator[Pick]:
        """Tickets to start, best first, while there are places; at most a batch at a time."""
        if not self.has_places:
            return
        heads = _Heads(shards)
        for _ in range(START_BATCH_MAX):
            pick = self._next(heads, now_ms)
            if pick is None:
                return
            yield pick

    def _next(self, heads: "_Heads", now_ms: int) -> Pick | None:
        while True:
            best = heads.best(self._may_start)
            if best is None:
                return None
            shard, lane = best
            kind = self._handlers.kind_of(lane.key[0])
            serial = shard.placement.pop(lane, now_ms)
            if serial is None:
                continue
            heads.put_back(shard, lane)
            if shard.is_suspect(serial):
                if self.suspect_running is not None:
                    self._suspects_held.append((shard, serial))
                    continue
                self.suspect_running = (shard.number, serial)
            assert kind is not None
            self.used[kind] += 1
            return Pick(shard.number, serial, kind)

    def _may_start(self, lane: Lane) -> bool:
        kind = self._handlers.kind_of(lane.key[0])
        return kind is not None and self.used[kind] < self.places[kind]

    def release(self, shard: int, serial: int, kind: str, now_ms: int) -> None:
        """A place is free: its attempt has physically ended, or never began."""
        self.used[kind] -= 1
        assert self.used[kind] >= 0, (kind, self.used)
        if self.suspect_running == (shard, serial):
            self.suspect_running = None
            held, self._suspects_held = self._suspects_held, []
            for owner, waiting in held:
                owner.placement.give_back(waiting, now_ms)

    def shard_is_gone(self, shard: int) -> None:
        """Its memory was thrown away: what was held for it is found again by its recovery."""
        self._suspects_held = [item for item in self._suspects_held if item[0].number != shard]


class _Heads:
    """The lanes of all shards that have a head, best first, for one round.

    A lane that may not start is left out of the rest of the round: within one, places only go.
    """

    def __init__(self, shards: Sequence[ShardLanes]) -> None:
        self._count = count()
        self._heap: list[tuple[tuple[int, int, int], int, ShardLanes, Lane]] = []
        for shard in shards:
            for lane in shard.placement.heads():
                self._heap.append((_order(lane), next(self._count), shard, lane))
        heapq.heapify(self._heap)

    def best(self, may_start: Callable[[Lane], bool]) -> tuple[ShardLanes, Lane] | None:
        """Takes the lane out; `put_back` it when it has been popped."""
        while self._heap:
            _, _, shard, lane = heapq.heappop(self._heap)
            if may_start(lane):
                return shard, lane
        return None

    def put_back(self, shard: ShardLanes, lane: Lane) -> None:
        if lane.window:  # what is still being read is in no round
            heapq.heappush(self._heap, (_order(lane), next(self._count), shard, lane))


def _order(lane: Lane) -> tuple[int, int, int]:
    return lane.head
