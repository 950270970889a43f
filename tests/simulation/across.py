"""What holds across the shards of a simulated world, beside what each witness holds of its own.

Places and limits, keys, order and fairness; entries on their way between shards; the clock that may
destroy. Each law says what it takes for granted: most of them ask that nothing is broken just then.
"""

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, NamedTuple

from kit.model import PENDING, RUNNING, Entry
from parkade import BreakerState
from parkade.runs import Run
from parkade.runtime import Runtime
from parkade.shard.breaker import decode_circuit
from parkade.shard.lane import SERIAL_BITS
from parkade.shard.placement import Placement
from parkade.shard.ticket import Ticket
from parkade.store.record import Forgotten, Record
from simulation.application import LIMIT_T, PLACES, ROUTED
from simulation.laws import check_key_order, check_quiet, waits_for_room

if TYPE_CHECKING:
    from simulation.world import World

__all__ = [
    "Announced",
    "SettledWatch",
    "Waiting",
    "check_begins",
    "check_births",
    "check_forgotten",
    "check_permits",
    "check_rest",
    "check_traffic",
    "waiting_of",
]

MAX_OPEN_FOR_MS = 8_000  # of the application's breaker
HOUR_MS, DAY_MS, HOLD_MS, DRIFT_MS = 3_600_000, 86_400_000, 600_000, 5_000
STATE_OF_RECORD = {"Completed": 2, "Resolved": 2, "Buried": 3, "Cancelled": 4, "Expired": 5}

FINISHED = Ticket.__struct_fields__.index("finished_ms")
Queue = tuple[str, str | None, int]


class Waiting(NamedTuple):
    """A ticket that was ready when the world came to rest, and that only room held."""

    first_due_ms: int
    serial: int
    due_ms: int
    shard: int


def target_of(entry: Entry) -> str | None:
    options = entry.draft.options
    return None if options is None else options.target


def queue_of(entry: Entry) -> Queue:
    options = entry.draft.options
    return entry.draft.task, target_of(entry), 0 if options is None else options.priority


# ------------------------------------------------------------------ places, limits, order


def check_begins(world: "World", run: Run) -> None:
    """An attempt begins: nobody has what it needs, and nobody was there before it."""
    ticket = run.job.ticket
    alive = world.work.alive
    # A zombie holds its place and what its limits count, and neither its key nor anybody's trust.
    others = [other.job.ticket for other in alive.values() if not other.is_given_up]
    assert len(alive) < PLACES, "a place for each that runs"
    assert all(key[0] != run.job.serial for key in alive), ("two attempts of one ticket", run)
    if ticket.key is not None:
        assert all(other.key != ticket.key for other in others), ("its key runs", ticket)
    if ticket.task == "t" and world.limit_t is not None:
        count = sum(other.job.ticket.task == "t" for other in alive.values())
        assert count < world.limit_t, ("the limit of its task", count, world.limit_t)
    if ticket.is_suspect:
        assert not any(other.is_suspect for other in others), ("suspects in company", ticket)
    check_key_order(world, run)
    number = run.job.part % world.shards
    queue = queue_of(world.witnesses[number].model.tickets[run.job.serial])
    before = (ticket.first_due_ms, ticket.serial)
    if not world.is_well:
        world.waiting = {}
    for first in world.waiting.get(queue, ()):
        # Of another shard the head may be on its way from the store just then.
        if first.shard == number and (first.first_due_ms, first.serial) < before:
            entry = world.witnesses[number].model.tickets.get(first.serial)
            is_still = entry is not None and (entry.state, entry.due_ms) == (PENDING, first.due_ms)
            is_still = is_still and _is_in_line(world.host(number).placement, first)
            assert not is_still, ("out of turn", queue, first, ticket)


def _is_in_line(placement: Placement, first: Waiting) -> bool:
    """Not so: chosen before, and waiting for its payload; just being read from the store, which
    nobody waits for; or in the agenda past the horizon, as after a full disk, which a sweep has to
    wait for."""
    where = placement.where(first.serial)
    position = first.due_ms << SERIAL_BITS | first.serial
    is_on_its_way = where in ("in hand", "loading")
    return not is_on_its_way and (where != "parked" or position <= placement.horizon)


def check_permits(world: "World", runtime: Runtime) -> None:
    admission = runtime.attempts.admission
    assert all(count >= 0 for count in admission.used.values()), admission.used
    used = sum(admission.used.values())
    assert used >= len(world.work.alive), ("a place for each that runs", admission.used)
    assert used <= PLACES, ("more places than there are", admission.used)


def check_rest(world: "World", runtime: Runtime) -> None:
    """Nothing more can happen: no place is held for nobody, and nobody waits for nothing."""
    admission = runtime.attempts.admission
    alive = world.work.alive
    used = sum(admission.used.values())
    assert used == len(alive), ("places are free when attempts have ended", used, len(alive))
    world.waiting = {}
    _check_wheels(world)
    valve = runtime.host.inbox.valve
    assert valve is None or valve._let_in == 0, ("let in, and neither there nor refused", valve)
    if not world.is_well or not runtime.attempts.is_admitting:
        return
    for entry, shard in _ready(world):
        if _is_aside_full(world, shard) or waits_for_room(world.host(shard)):
            continue
        held = _held(world, runtime, entry)
        assert held, ("ready, and nothing holds it", shard, entry, dict(admission.used))
        if held == "room":
            found = waiting_of(entry, shard)
            world.waiting.setdefault(queue_of(entry), []).append(found)
    check_quiet(world, runtime)
    world.counts["rests where all is well"] += 1


def _check_wheels(world: "World") -> None:
    """What is in memory because it is due soon is not much."""
    for host in world.hosts():
        if host.is_open:
            timers, timers_max = len(host.placement.wheel), host.placement.bounds.wheel_max
            # What came in since the last look at the time is trimmed at the next.
            assert timers <= 2 * timers_max + 10, ("a full wheel", timers)


def _is_aside_full(world: "World", shard: int) -> bool:
    """Then a ticket that its key holds stays in its window, and may keep another lane from one."""
    lanes = world.host(shard).placement.lanes
    return lanes.keys.count >= lanes.bounds.aside_max


def waiting_of(entry: Entry, shard: int) -> Waiting:
    return Waiting(entry.first_due_ms, entry.draft.serial, entry.due_ms, shard)


def _ready(world: "World") -> Iterator[tuple[Entry, int]]:
    now_ms = world.clock.wall_ms
    for number, witness in enumerate(world.witnesses):
        for entry in witness.model.tickets.values():
            if entry.state == PENDING and entry.due_ms <= now_ms:
                yield entry, number


def _held(world: "World", runtime: Runtime, entry: Entry) -> str:
    """Why a ready ticket does not run; empty: for no reason."""
    guards = runtime.attempts.admission.guards
    task, target, alive = entry.draft.task, target_of(entry), world.work.alive.values()
    is_timed = entry.draft.options is not None and (
        entry.draft.options.expires_ms is not None or entry.draft.options.max_elapsed_ms is not None
    )
    key = entry.draft.key
    if entry.draft.serial in {run.job.serial for run in alive}:
        return "zombie"
    if f"task:{task}" in guards.pauses or f"target:{target}" in guards.pauses:
        return "pause"
    if key is not None and any(run.job.ticket.key == key for run in alive):
        return "key"
    if entry.is_suspect and any(run.job.ticket.is_suspect for run in alive):
        return "suspect"
    if is_timed and runtime.settled_clock.now < world.clock.wall_ms:
        return "clock"
    circuit = guards.circuits.get(target or task)
    if circuit is not None and circuit.state:
        return "breaker"
    limit = world.limit_now
    if task == "t" and limit is not None and sum(r.job.ticket.task == "t" for r in alive) >= limit:
        return "room" if key is None and not entry.is_suspect and not is_timed else "limit"
    if len(world.work.alive) >= PLACES:
        return "room" if key is None and not entry.is_suspect and not is_timed else "places"
    return ""


# ------------------------------------------------------------------ between shards


def check_births(mix: int, records: list[Record], tasks: dict[int, str], children: int) -> None:
    """Each recorded end brings forth its route once, and the children of its attempt."""
    expected = children
    for record in records:
        state = STATE_OF_RECORD.get(type(record).__name__)
        task = tasks.get(getattr(record, "serial", 0), "")
        expected += state is not None and state in ROUTED[mix].get(task, ())
    found = sum(
        len(getattr(record, name, None) or ()) for record in records for name in ("born", "sent")
    )
    assert found == expected, ("routes and children, once each", records, found, expected)


def check_traffic(world: "World", *, is_end: bool) -> None:
    """What has arrived is the beginning of what was sent; in the end, all of it."""
    if world.has_lost_told:
        return
    for sender, witness in enumerate(world.witnesses):
        by_receiver: dict[int, list[tuple[tuple[int, int, int], int]]] = {}
        for noted in witness.traffic.sent:
            by_receiver.setdefault(noted.receiver, []).append((noted.place, noted.serial))
        for receiver, other in enumerate(world.witnesses):
            sent = by_receiver.get(receiver, [])
            got = [(t.place, t.serial) for t in other.traffic.taken if t.sender == sender]
            assert got == sent[: len(got)], ("as they were sent", sender, receiver, sent, got)
            assert not is_end or len(got) == len(sent), ("never arrived", sender, receiver, sent)
            handed = witness.traffic.handed(receiver)
            assert all(place > handed for place, _ in sent[len(got) :]), ("dropped early", sent)


def check_unique_serials(world: "World") -> None:
    """No two tickets have one serial."""
    serials = Counter(serial for witness in world.witnesses for serial in witness.model.tickets)
    twice = [serial for serial, count in serials.items() if count > 1]
    assert not twice, ("one serial, two tickets", twice)


class Announced:
    """Breakers that were told to be open, and may not be closed since."""

    def __init__(self) -> None:
        self._names: dict[str, BreakerState] = {}
        self._ended: set[str] = set()  # what tried them; it may be that nobody took notice yet

    def see(self, states: Sequence[BreakerState]) -> None:
        tried = {state.name for state in states if state.state == "half_open"} & self._ended
        self._names = {
            state.name: state
            for state in states
            if state.state != "closed" and state.name not in tried
        }

    def ended(self, ticket: Ticket) -> None:
        """An attempt ended: perhaps it closed its breaker."""
        target = None if ticket.options is None else ticket.options.target
        self._names.pop(target or ticket.task, None)
        self._ended.add(target or ticket.task)

    def rested(self) -> None:
        """Of every attempt that ended notice was taken."""
        self._ended.clear()

    def turned(self, name: str) -> None:
        self._names.pop(name, None)

    def passed(self, now_ms: int) -> None:
        """Those whose time is over may be forgotten some time, if nobody tries them."""
        for name, state in list(self._names.items()):
            until = state.next_probe_at
            if state.state != "half_open" and until is None:
                continue  # open until somebody closes it
            if until is None or until.timestamp() * 1_000 + MAX_OPEN_FOR_MS <= now_ms:
                del self._names[name]

    def check(self, kept: Mapping[str, bytes]) -> None:
        """After an open, of which the house knows these."""
        for name in self._names:
            assert name in kept and decode_circuit(kept[name]).state, ("announced, and gone", name)


# ------------------------------------------------------------------ time


def check_forgotten(world: "World", shard: int, records: list[Record]) -> None:
    """What goes by age alone is as old as that by the clock that may destroy."""
    if world.keep_ms is None or world.keep_max is not None:
        return
    assert world.runtime is not None
    settled_ms = world.runtime.settled_clock.now
    tickets = world.witnesses[shard].tickets
    for record in records:
        for serial in record.serials if isinstance(record, Forgotten) else ():
            ended_ms = tickets[serial].head[FINISHED]
            assert ended_ms < settled_ms - world.keep_ms, ("forgotten early", serial, ended_ms)
            world.counts["forgotten by age"] += 1


class SettledWatch:
    """What the clock that may destroy may say at most, told from the clocks alone."""

    def __init__(self, wall_ms: int) -> None:
        self.top_ms = wall_ms  # no life has gone beyond
        self.told_ms = 0  # what the engine said last in this life
        self._offset = self._believed = 0
        self._held_since = 0
        self._mono_ms = 0

    def open(self, wall_ms: int, mono_ms: int) -> None:
        """A life begins."""
        self.told_ms = 0
        self._mono_ms = self._held_since = mono_ms
        self._offset = wall_ms - mono_ms
        is_believed = wall_ms <= self.top_ms + DAY_MS
        self._believed = self._offset if is_believed else self.top_ms - mono_ms
        if is_believed:
            self.top_ms = max(self.top_ms, wall_ms)

    def read(self, wall_ms: int, mono_ms: int) -> None:
        """The engine read its clocks."""
        passed_ms, self._mono_ms = mono_ms - self._mono_ms, mono_ms
        offset = wall_ms - mono_ms
        if abs(offset - self._offset) > DRIFT_MS:
            self._offset, self._held_since = offset, mono_ms
        if mono_ms - self._held_since >= HOLD_MS:
            self._believed = offset
        if offset <= self._believed + HOUR_MS:
            self.top_ms = max(self.top_ms + passed_ms, wall_ms)
        else:
            self.top_ms += passed_ms

    def check(self, settled_ms: int) -> None:
        """So the engine says, having read them."""
        assert settled_ms >= self.told_ms, ("it never goes back", settled_ms, self.told_ms)
        assert settled_ms <= self.top_ms, ("not to be believed yet", settled_ms, self.top_ms)
        self.told_ms = settled_ms


assert RUNNING == 1 and LIMIT_T < PLACES
