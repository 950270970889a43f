"""Who holds a key, and the tickets that wait aside until they may start.

A due ticket that may not start for a reason of its own (its key is taken, or its key's rate is
spent; it is a suspect and another one runs) steps out of its lane, so that it holds nobody behind
it. It waits under that reason, by lane and rank, and the first of each lane comes back when the
reason may have gone: of each, because a lane that is held meanwhile must not keep the key from the
others. docs/architecture.md, Keys.
"""

from bisect import bisect_left, insort
from collections.abc import Callable, Iterable
from typing import Final, Protocol

from parkade.shard.ticket import Ticket

__all__ = ["CLOCK", "SUSPECT", "Keys", "OpenGate", "StartGate"]

SUSPECT: Final = 1  # another suspect runs
CLOCK: Final = 2  # over by the wall clock, and not by the settled one

Reason = str | int
"""A key, or one of the numbers above."""

_LaneKey = tuple[str, str | None, int]


class StartGate(Protocol):
    """What the host knows of a ticket and the core does not. Asked on the core thread, often."""

    def places(self, ticket: Ticket) -> int:
        """How many tickets of its key may run at once, as far as this one has a say."""
        ...

    def holds(self, ticket: Ticket) -> Reason | None:
        """Why the ticket, alone, may not start now; None: it may. Whoever says so hands the reason
        on when it has gone."""
        ...

    def is_held(self, lane: _LaneKey) -> bool:
        """Whether all of that lane is known to be held: it needs no more than its head in memory,
        and where there are too many lanes not even that."""
        ...


class OpenGate:
    """Lets everybody through, one of a key at a time."""

    def places(self, ticket: Ticket) -> int:
        return 1

    def holds(self, ticket: Ticket) -> Reason | None:
        return None

    def is_held(self, lane: _LaneKey) -> bool:
        return False


class Keys:
    """The keys in use, by running tickets and by those in hand, and who waits aside."""

    __slots__ = ("aside", "claims", "count", "gate", "must_wait", "reasons", "running")

    def __init__(self) -> None:
        # Whether an older ticket of its key has to come in first.
        self.must_wait: Callable[[Ticket], bool] | None = None
        self.gate: StartGate = OpenGate()
        # key -> serial -> how many of the key may run beside it, itself counted
        self.running: dict[str, dict[int, int]] = {}
        self.claims: dict[str, dict[int, int]] = {}
        self.aside: dict[Reason, dict[_LaneKey, list[int]]] = {}  # ranks, sorted
        self.reasons: dict[int, Reason] = {}  # of each ticket aside
        self.count = 0

    # ------------------------------------------------------------------ holding

    def is_busy(self, key: str) -> bool:
        """Whether a ticket of that key runs, or is about to."""
        return key in self.running or key in self.claims

    def has_room(self, ticket: Ticket) -> bool:
        """Whether the ticket may run beside those that hold its key; the most restrictive of all
        of them, itself included, counts."""
        key = ticket.key
        assert key is not None, ticket.serial
        running, claims = self.running.get(key), self.claims.get(key)
        if running is None and claims is None:
            return True
        holders = {**(running or {}), **(claims or {})}
        holders.pop(ticket.serial, None)
        return len(holders) < min((self.gate.places(ticket), *holders.values()))

    def room_to_run(self, ticket: Ticket, starting: Iterable[int]) -> bool:
        """The same among those that run and these that start with it; those in hand do not count.
        `starting`: how many of the key each of them lets run."""
        key = ticket.key
        assert key is not None, ticket.serial
        holders = [*self.running.get(key, {}).values(), *starting]
        return len(holders) < min((self.gate.places(ticket), *holders))

    def claim(self, ticket: Ticket) -> None:
        """The ticket is in hand."""
        if ticket.key is not None:
            places = self.gate.places(ticket)
            self.claims.setdefault(ticket.key, {})[ticket.serial] = places

    def drop_claim(self, ticket: Ticket) -> None:
        if ticket.key is not None:
            _drop(self.claims, ticket.key, ticket.serial)

    def begin(self, ticket: Ticket) -> None:
        """The ticket runs."""
        if ticket.key is not None:
            places = self.gate.places(ticket)
            self.running.setdefault(ticket.key, {})[ticket.serial] = places

    def end(self, ticket: Ticket) -> None:
        """The ticket runs no more."""
        if ticket.key is not None:
            _drop(self.running, ticket.key, ticket.serial)

    # ------------------------------------------------------------------ aside

    def reason_to_wait(self, ticket: Ticket) -> Reason | None:
        """Why the ticket, alone, may not start; None: it may."""
        key = ticket.key
        if key is None:
            return self.gate.holds(ticket)
        if self.must_wait is not None and self.must_wait(ticket):
            return key
        return self.gate.holds(ticket) if self.has_room(ticket) else key

    def put_aside(self, ticket: Ticket, rank: int, reason: Reason) -> None:
        self.reasons[ticket.serial] = reason
        self.count += 1
        insort(self.aside.setdefault(reason, {}).setdefault(ticket.lane, []), rank)

    def take_back(self, ticket: Ticket, rank: int) -> None:
        """The ticket waits aside no more."""
        reason, lane = self.reasons.pop(ticket.serial), ticket.lane
        self.count -= 1
        waiting = self.aside[reason]
        ranks = waiting[lane]
        del ranks[bisect_left(ranks, rank)]
        if not ranks:
            del waiting[lane]
            if not waiting:
                del self.aside[reason]

    def firsts(self, reason: Reason) -> list[int]:
        """The ranks of those that come back first: one of each lane."""
        return [ranks[0] for ranks in self.aside.get(reason, {}).values()]

    def all_aside(self, reason: Reason) -> list[int]:
        """The ranks of all that wait for that reason."""
        return [rank for ranks in self.aside.get(reason, {}).values() for rank in ranks]


def _drop(held: dict[str, dict[int, int]], key: str, serial: int) -> None:
    holders = held.get(key)
    if holders is not None and holders.pop(serial, None) is not None and not holders:
        del held[key]
