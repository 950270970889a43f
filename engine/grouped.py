"""Groups of dead tickets in a shard: what the store counts, put right by what memory has changed.

Runs on the core thread. All that is dirty is looked at, and only heads: no message is read.
"""

import copy
from collections import Counter
from collections.abc import Mapping

from parkade.asks import GroupEnds, GroupsOf, ShardGroups
from parkade.reading import GroupCounts, GroupTickets
from parkade.shard import Shard
from parkade.shard.ticket import Ticket

__all__ = ["changed_serials", "merged_counts", "merged_ends"]


def changed_serials(core: Shard) -> set[int]:
    """Tickets whose row in the store may say otherwise than they are."""
    flight = core.flight
    return set(core.dirty.tickets) | (set() if flight is None else set(flight.tickets))


def merged_counts(core: Shard, asked: GroupsOf, got: GroupCounts) -> ShardGroups:
    """The groups of one slice, as they are now."""
    last = got.last
    counts = Counter(got.counts)
    for group, shift in _shifts(core, got.lsn).items():
        if group > asked.after and (last is None or group <= last):
            counts[group] += shift
    return ShardGroups({group: count for group, count in counts.items() if count > 0}, last)


def merged_ends(core: Shard, asked: GroupEnds, got: GroupTickets) -> dict[bytes, list[Ticket]]:
    """The ends of each group, as they are now."""
    changed = _changed(core)
    found = {
        group: [ticket for ticket in got.ends[group] if ticket.serial not in changed]
        for group in asked.groups
    }
    for ticket in changed.values():
        if ticket is not None and ticket.group is not None and ticket.group in found:
            found[ticket.group].append(ticket)
    for group, tickets in found.items():
        tickets.sort(key=lambda ticket: ticket.serial)
        found[group] = [copy.copy(ticket) for ticket in (tickets[:1] + tickets[1:][-1:])]
    return found


def _changed(core: Shard) -> Mapping[int, Ticket | None]:
    flight = core.flight
    return core.dirty.tickets if flight is None else flight.tickets | core.dirty.tickets


def _shifts(core: Shard, snapshot_lsn: int) -> Counter[bytes]:
    """By how much memory differs from a snapshot, by group.

    A snapshot past the last completion has what is in flight; else the store has what `stored_at`
    tells.
    """
    flight = {} if core.flight is None else core.flight.tickets
    has_flight = snapshot_lsn > core.completed_lsn
    shifts: Counter[bytes] = Counter()
    for serial, ticket in _changed(core).items():
        if has_flight and serial in flight:
            stored = flight[serial]
            was = None if stored is None else stored.group
        else:
            at = core.stored_at.get(serial)
            was = None if at is None else at.group
        now = None if ticket is None else ticket.group
        if was != now:
            if was is not None:
                shifts[was] -= 1
            if now is not None:
                shifts[now] += 1
    return shifts
