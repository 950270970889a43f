"""Whoever listens to the events of a simulated engine: what it is told of ends has happened, is
durable, and is told once; and when nothing is left to do, nothing is left to tell."""

from collections import Counter
from collections.abc import Sequence
from typing import TYPE_CHECKING

from parkade import events
from parkade.events import Note
from parkade.shard.states import CANCELLED, DEAD, DONE, EXPIRED
from parkade.shard.ticket import Ticket

if TYPE_CHECKING:
    from simulation.world import World

__all__ = ["Hearing"]

STATE = Ticket.__struct_fields__.index("state")
STATES = {
    events.DONE: DONE, events.DEAD: DEAD, events.CANCELLED: CANCELLED, events.EXPIRED: EXPIRED,
}  # fmt: skip
ENDED = frozenset(STATES.values())


class Hearing:
    """From an open of the engine to the end of that life."""

    def __init__(self, world: "World") -> None:
        assert world.runtime is not None
        self._world = world
        self._told: Counter[tuple[int, int, int]] = Counter()
        feed = world.runtime.host.feed
        self._last = feed.last
        # What is applied and not durable yet will be told too.
        self._since = [host.durable_lsn if host.is_open else 0 for host in world.hosts()]
        feed.join(self)

    def offer(self, first: int, notes: Sequence[Note]) -> None:
        try:
            self._check(first, notes)
        except AssertionError as error:
            self._world.troubles.append(("an event", error))

    def end(self) -> None:
        """The engine stops."""

    def _check(self, first: int, notes: Sequence[Note]) -> None:
        world = self._world
        assert first == self._last + 1, ("events in order, and all of them", first, self._last)
        self._last += len(notes)
        for kind, _, serial, part, _, _ in notes:
            state = STATES.get(kind)
            if state is None:
                continue
            shard = part % world.shards
            self._told[shard, serial, state] += 1
            until = world.host(shard).durable_lsn
            ends = [end for end in self._ends(shard, serial) if end[1] == state]
            assert any(lsn <= until for lsn, _ in ends), ("told, and not durable", serial, kind)
            count = self._told[shard, serial, state]
            assert count <= len(ends), ("told twice", serial, kind, count)
        world.counts["events"] += len(notes)

    def _ends(self, shard: int, serial: int) -> list[tuple[int, int]]:
        """The LSN and the state of each end that a ticket has come to."""
        found, before = [], -1
        for lsn, shadow in self._world.witnesses[shard].versions.get(serial, ()):
            state = -1 if shadow is None else shadow.head[STATE]
            if state != before and state in ENDED:
                found.append((lsn, state))
            before = state
        return found

    def check_rest(self) -> None:
        """All that is durable has been told."""
        for host in self._world.hosts():
            if not host.is_open or host.recoveries:
                continue  # a shard that was recovered does not tell what it had not told
            since, until = self._since[host.number], host.durable_lsn
            for serial in self._world.witnesses[host.number].versions:
                for lsn, state in self._ends(host.number, serial):
                    if since < lsn <= until:
                        is_told = self._told[host.number, serial, state]
                        assert is_told, ("an end, and no event", serial, state, lsn)
