"""Who may start now: places in the executors, dealt to the lanes of all shards.

Engine-wide and exact, because only the core thread runs it. A freed place goes to the head that is
first by priority, first due time and serial, over all shards; a lane whose task has no place, or no
handler, holds no other lane (docs/architecture.md, Admission and attempts).
"""

import heapq
from collections.abc import Iterator, Mapping, Sequence
from itertools import count
from typing import Protocol, TypeAlias

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
    """Which executor the attempts of each registered task run in."""

    def kinds(self) -> Mapping[str, str]: ...


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
        return any(self._has_place(kind) for kind in self.places)

    def take(self, shards: Sequence[ShardLanes], now_ms: int) -> Iterator[Pick]:
        """Tickets to start, best first, while there are places; at most a batch at a time."""
        if not self.has_places:
            return
        kinds = self._handlers.kinds()
        heads = _Heads(shards, kinds, {kind for kind in self.places if self._has_place(kind)})
        for _ in range(START_BATCH_MAX):
            pick = self._next(heads, now_ms)
            if pick is None:
                return
            yield pick

    def _next(self, heads: "_Heads", now_ms: int) -> Pick | None:
        while True:
            best = heads.best()
            if best is None:
                return None
            shard, lane, kind = best
            serial = shard.placement.pop(lane, now_ms)
            if serial is None:
                continue
            heads.put_back(shard, lane)
            if shard.is_suspect(serial):
                if self.suspect_running is not None:
                    self._suspects_held.append((shard, serial))
                    continue
                self.suspect_running = (shard.number, serial)
            self.used[kind] += 1
            if not self._has_place(kind):
                heads.free.discard(kind)
            return Pick(shard.number, serial, kind)

    def _has_place(self, kind: str) -> bool:
        return self.used[kind] < self.places[kind]

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


_Entry: TypeAlias = "tuple[tuple[int, int, int], int, ShardLanes, Lane, Iterator[Lane] | None]"


class _Heads:
    """The lanes of all shards that have a head, best first, for one round.

    A shard gives its lanes in order, so that one of each is looked at, and the next when that one
    is taken: a round costs what it starts, and one look at each lane that it has to pass by. Those
    are left out of the rest of the round: within one, places only go. `free` are the executors
    that have places and handlers; without any, the round is over.
    """

    def __init__(
        self, shards: Sequence[ShardLanes], kinds: Mapping[str, str], free: set[str]
    ) -> None:
        self._kinds = kinds
        self.free = free & set(kinds.values())
        self._count = count()
        self._heap: list[_Entry] = []
        if self.free:
            for shard in shards:
                self._go_on(shard, shard.placement.heads())

    def best(self) -> tuple[ShardLanes, Lane, str] | None:
        """Takes the lane out, with the executor of its task; `put_back` it when it has been
        popped."""
        while self._heap and self.free:
            _, _, shard, lane, following = heapq.heappop(self._heap)
            if following is not None:
                self._go_on(shard, following)
            kind = self._kinds.get(lane.key[0])
            if kind in self.free:
                return shard, lane, kind
        return None

    def put_back(self, shard: ShardLanes, lane: Lane) -> None:
        if lane.window:  # what is still being read is in no round
            heapq.heappush(self._heap, (lane.head, next(self._count), shard, lane, None))

    def _go_on(self, shard: ShardLanes, lanes: Iterator[Lane]) -> None:
        """The next of a shard's lanes that may start."""
        kinds, free = self._kinds, self.free
        for lane in lanes:
            if kinds.get(lane.key[0]) in free and lane.window:
                entry = (lane.head, next(self._count), shard, lane, lanes)
                heapq.heappush(self._heap, entry)
                return
