"""More of what holds in a simulated world: laws that a second set of faults asked for.

What a shard keeps in memory and says in its store of other shards; what has ended by time once
the world rests; order within a key past an open; leases; what is kept by number; breakers and
pauses as the house has them; requests to stop, of which nobody hears before they are durable.
"""

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from kit.model import CANCELLED, DONE, EXPIRED, PENDING, Entry
from kit.watched import Watched
from parkade.runs import Run
from parkade.runtime import Runtime
from parkade.shard.breaker import CLOSED
from parkade.shard.outbox import NO_PLACE, Place
from parkade.shard.ticket import Ticket
from parkade.store.outbox import unpack_place
from parkade.store.record import Forgotten, Record
from parkade.store.walk import outbox_of

if TYPE_CHECKING:
    from simulation.world import World

__all__ = [
    "Leases",
    "check_kept",
    "check_key_order",
    "check_memory",
    "check_passed_on",
    "check_quiet",
    "check_stop",
    "waits_for_room",
]

COUNTED = (DONE, CANCELLED, EXPIRED)
CANCEL_REASON = Ticket.__struct_fields__.index("cancel_reason")


# ------------------------------------------------------------------ one shard


def check_memory(host: Watched) -> None:
    """A clean ticket that nobody needs leaves memory with the next completion."""
    core, placement = host.core, host.placement
    for serial, ticket in core.hot.items():
        if core.is_clean(serial) and serial not in core.memory.lingering:
            is_known = serial in host.quarantined or placement.keeps(ticket, None)
            assert is_known, ("clean, and nobody will let it go", ticket)


def check_passed_on(world: "World", number: int) -> None:
    """What a store has of what its shard takes from others, and sends them, is as at its LSN."""
    with world.stores[number].snapshot() as snapshot:
        lsn, taken = snapshot.lsn, snapshot.taken()
        sent = {unpack_place(key) for key, _ in outbox_of(snapshot)}
    point = world.witnesses[number].points.get(lsn)
    if point is not None:
        model = point.model
        expected = {sender: tuple(place) for sender, place in model.taken.items()}
        assert taken == expected, ("taken at that LSN", number, lsn, taken, expected)
        left = {(to, tuple(place)) for to, entries in model.outbox.items() for place, _ in entries}
        assert sent == left, ("sent and not taken at that LSN", number, lsn, sent, left)


# ------------------------------------------------------------------ at rest


def waits_for_room(host: Watched) -> bool:
    """A checkpoint that found none is tried again after a moment, and the sweep has to wait for
    it: what lies past the horizon comes in then."""
    return host.checkpointing.has_failed and not host.placement.can_sweep()


def check_quiet(world: "World", runtime: Runtime) -> None:
    """All is well and nothing more can happen at this time."""
    settled_ms = min(runtime.settled_clock.now, world.clock.wall_ms)
    for number, witness in enumerate(world.witnesses):
        if waits_for_room(world.host(number)):
            continue
        for entry in witness.model.tickets.values():
            assert not _is_over(entry, settled_ms), ("expired, and still there", entry)
    guards, state = runtime.attempts.admission.guards, runtime.house.state
    alive = list(world.work.alive.values())
    for name, circuit in guards.circuits.items():
        tried = sum(_breaker_of(run) == name for run in alive)
        assert len(circuit._probes) <= tried, ("a probe that nobody makes", name, circuit._probes)
    if not runtime.levers.unwritten:
        trips = {name for name, circuit in guards.circuits.items() if circuit.state != CLOSED}
        assert trips == state.breakers.keys(), ("as the house has them", trips, state.breakers)
        assert guards.pauses == state.pauses, ("pauses", guards.pauses, state.pauses)


def _is_over(entry: Entry, settled_ms: int) -> bool:
    options = entry.draft.options
    if entry.state != PENDING or entry.fence or options is None or options.expires_ms is None:
        return False
    return entry.first_due_ms + options.expires_ms <= settled_ms


def _breaker_of(run: Run) -> str:
    options = run.job.ticket.options
    return (None if options is None else options.target) or run.job.ticket.task


# ------------------------------------------------------------------ attempts


def check_key_order(world: "World", run: Run) -> None:
    """What another shard had sent before the last open goes first, if it is of the same key and
    queue, and due."""
    ticket = run.job.ticket
    number = run.job.part % world.shards
    if ticket.key is None or not world.is_well:
        return
    rank = (ticket.first_due_ms, ticket.serial)
    here = world.witnesses[number].model
    for sender, witness in enumerate(world.witnesses):
        taken = here.taken.get(sender, NO_PLACE)
        epoch = world.host(sender).core.epoch
        for place, draft in witness.model.outbox.get(number, ()):
            is_older = (draft.due_ms, draft.serial) < rank and draft.due_ms <= ticket.started_ms
            is_of_queue = (draft.key, draft.task) == (ticket.key, ticket.task)
            is_same = is_of_queue and draft.unique is None and draft.options == ticket.options
            was_there = Place(*place).epoch < epoch and place > taken
            assert not (is_older and is_same and was_there), ("before what was sent", ticket, draft)


class Leases:
    """When the lease of each attempt ends, told from what its handler said alone."""

    def __init__(self) -> None:
        self._ends: dict[tuple[int, int], int] = {}

    def begins(self, run: Run) -> None:
        if run.lease_until_ms is not None:
            self._ends[run.key] = run.lease_until_ms

    def renewed(self, run: Run, mono_ms: int) -> None:
        """Its handler was heard."""
        end_ms = self._ends.get(run.key)
        if end_ms is not None and mono_ms < end_ms:
            self._ends[run.key] = max(end_ms, mono_ms + run.lease_ms)

    def ended(self, run: Run, outcome: Any, mono_ms: int) -> None:
        end_ms = self._ends.pop(run.key, None)
        if end_ms is not None and not run.is_given_up:
            is_over = mono_ms >= end_ms
            assert (outcome.kind == "lease") == is_over, ("its lease", run.key, outcome, is_over)


def check_stop(world: "World", serial: int, fence: int) -> None:
    """An attempt hears that it is to stop: whoever asked for that could have been told."""
    for number, witness in enumerate(world.witnesses):
        if serial in witness.model.tickets:
            durable_lsn = world.host(number).durable_lsn
            asked = [
                lsn
                for lsn, shadow in witness.versions[serial]
                if shadow is not None and shadow.head[CANCEL_REASON] is not None
            ]
            assert asked and asked[0] <= durable_lsn, ("told too early", serial, fence, asked)


# ------------------------------------------------------------------ forgetting


def check_kept(world: "World", number: int, records: Sequence[Record]) -> None:
    """Before records are applied: what is not forgotten for its age leaves so many as are kept."""
    if world.keep_max is None or world.keep_ms is not None:
        return
    count = sum(
        entry.state in COUNTED for witness in world.witnesses for entry in _entries(witness)
    )
    for record in records:
        if isinstance(record, Forgotten):
            count -= len(record.serials)
            assert count >= world.keep_max, ("fewer than are kept", number, record, count)


def _entries(witness: Any) -> list[Entry]:
    return list(witness.model.tickets.values())
