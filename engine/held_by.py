"""What keeps a due ticket from starting, as people ask: admission looked at, not changed."""

from typing import TYPE_CHECKING

from parkade.guards import Hold
from parkade.shard.keys import CLOCK, SUSPECT
from parkade.shard.ticket import Ticket

if TYPE_CHECKING:
    from parkade.admission import Admission

__all__ = ["about", "ahead", "holds"]


def holds(
    admission: "Admission", shard: int, ticket: Ticket, now_ms: int, mono_ms: int
) -> list[Hold]:
    """Everything that keeps a due ticket from starting now."""
    places, guards = admission.places, admission.guards
    kind = admission.handlers.kinds().get(ticket.task)
    if kind is None:
        return [Hold("handler", ticket.task)]
    if kind not in places:
        return [Hold("place", kind)]
    found: list[Hold] = []
    owner = admission.owners.get(shard)
    if owner is not None:
        reason = owner.lanes.keys.reasons.get(ticket.serial)
        if reason == SUSPECT:
            found.append(Hold("suspect", ""))
        elif reason == CLOCK:
            found.append(Hold("clock", ""))
        elif ticket.key is not None and not owner.lanes.keys.has_room(ticket):
            found.append(Hold("key", ticket.key))
    plan = guards.plan_of(ticket.task, ticket.target)
    found += guards.all_holds(plan, ticket.key, now_ms, mono_ms)
    if admission.used[kind] >= places[kind] > 0:
        found.append(Hold("place", kind))
    return found


def ahead(admission: "Admission", shard: int, ticket: Ticket) -> int | None:
    """How many of its task, target and priority go before a ticket; None: it is not in its lane's
    window."""
    owner = admission.owners.get(shard)
    lane = None if owner is None else owner.lanes.by_key.get(ticket.lane)
    if lane is None or not lane.has(ticket.first_due_ms, ticket.serial):
        return None
    lanes = (each.placement.lanes.by_key.get(ticket.lane) for each in admission.owners.values())
    rank = (ticket.first_due_ms, ticket.serial)
    return sum(lane.count_before(*rank) for lane in lanes if lane is not None)


def about(admission: "Admission", hold: Hold) -> str:
    """What is to be said of a hold: why a breaker is open, who paused, how many places."""
    guards = admission.guards
    if hold.kind == "breaker" and hold.name in guards.circuits:
        return guards.circuits[hold.name].cause
    if hold.kind == "pause" and hold.name in guards.pauses:
        return guards.pauses[hold.name].reason
    return str(admission.places.get(hold.name, ""))
