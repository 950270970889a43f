"""Every invariant of a shard's core, one line each where that can be. For tests: it walks all.

`check(core)` asserts what can be read off memory. Given what the store has committed as well, it
asserts the two lines of docs/architecture.md, Placement, for every pending ticket there is.
"""

from collections import Counter
from collections.abc import Iterable, Mapping
from types import MappingProxyType
from typing import NamedTuple

from parkade.shard.core import Shard
from parkade.shard.generation import LaneMove
from parkade.shard.horizon import pack
from parkade.shard.keys import OpenGate
from parkade.shard.lanes import (
    ASIDE,
    IN_HAND,
    RANK_MAX,
    SERIAL_BITS,
    SPILLED,
    WAITING,
    WINDOW,
    Lane,
)
from parkade.shard.memory import UNREAD
from parkade.shard.outbox import NO_PLACE
from parkade.shard.retry import expiry_of
from parkade.shard.states import DEAD, PENDING, RUNNING
from parkade.shard.ticket import Ticket
from parkade.shard.unique import unique_name_of

__all__ = ["StoreView", "check", "recount"]


class StoreView(NamedTuple):
    """What the store has committed: heads, and entries of pending tickets with how often each.

    agenda  (due, serial, first due, lane number)
    marks   (expiry, serial)
    rows    (lane number, first due, serial)
    damaged serials whose heads cannot be read
    waits   (key, lane number, first due, serial)
    """

    heads: Mapping[int, Ticket]
    agenda: Mapping[tuple[int, int, int, int], int]
    marks: Mapping[tuple[int, int], int]
    rows: Mapping[tuple[int, int, int], int]
    damaged: frozenset[int] = frozenset()
    waits: Mapping[tuple[str, int, int, int], int] = MappingProxyType({})


def check(core: Shard, store: StoreView | None = None) -> None:
    """Raise AssertionError, with the facts, if an invariant does not hold."""
    _check_generations(core)
    _check_heads(core)
    _check_names(core)
    _check_lanes(core)
    _check_keys(core)
    _check_waits(core)
    _check_hot_placement(core)
    _check_outbox(core)
    if store is not None:
        _check_store(core, store)
        _check_counters(core, store)
        _check_parked_placement(core, store)


def _check_generations(core: Shard) -> None:
    memory = core.memory
    for generation in (memory.dirty, memory.flight):
        if generation is None:
            continue
        tickets, moves = generation.tickets, generation.moves
        assert not tickets.keys() & moves.keys(), "what is moved is not changed"
        gone = {serial for serial, ticket in tickets.items() if ticket is None}
        assert gone == generation.gone.keys(), ("a tombstone has its last version", gone)
        assert not gone & generation.bodies.keys(), "a tombstone has no body"
        assert all(s not in gone for s, _ in generation.history), "a tombstone has no history"
        assert generation.bodies.keys() <= tickets.keys(), "a body changes with its ticket"
    _check_plain(core)
    for serial, ticket in memory.dirty.tickets.items():
        assert memory.hot.get(serial) is ticket, ("dirty is the current version", serial)
    if memory.flight is not None:
        for serial, ticket in memory.flight.tickets.items():
            if serial not in memory.dirty.tickets:
                assert memory.hot.get(serial) is ticket, ("clean but in flight", serial)
            elif ticket is not None:
                assert memory.dirty.tickets[serial] is not ticket, ("never the same", serial)
    for serial, ticket in memory.hot.items():
        assert ticket.group is None or ticket.state == DEAD, ("only the dead are in groups", ticket)
        assert not memory.is_clean(serial) or serial in memory.stored_at, ("clean: stored", serial)
    for serial in memory.stored_at:
        known = serial in memory.hot or memory.is_gone(serial)
        assert known, ("stored_at is of hot and deleted tickets", serial)
    assert memory.payloads.keys() <= memory.hot.keys(), "payloads are of hot tickets"
    assert memory.payload_bytes == sum(map(len, memory.payloads.values())), "payload bytes"
    assert memory.payload_bytes <= memory.payload_bytes_max, "payloads are bounded"


def _check_plain(core: Shard) -> None:
    """Plain tickets are nowhere else: past the horizon, and looked at before their time; or due,
    and outside of their lane's window."""
    memory, flight = core.memory, core.memory.flight
    for generation in (memory.dirty, flight):
        if generation is None:
            continue
        assert generation.unpacked.keys() <= generation.plain.keys(), "unpacked were plain"
        assert generation is flight or not generation.unpacked, "of the flight alone"
        lined = set[int]().union(*generation.lined.values())
        unpacked = lined & generation.unpacked.keys()
        assert lined <= generation.plain.keys(), "those lined up are plain"
        assert len(unpacked) == generation.lined_unpacked, "how many of them became tickets"
        assert not generation.tickets.keys() & generation.plain.keys(), "one version of a ticket"
        assert not generation.bodies.keys() & generation.plain.keys(), "its body is with it"
        for serial, draft in generation.plain.items():
            assert serial == draft.serial and draft.unique is None and draft.options is None, draft
            if serial in generation.unpacked:
                continue
            if generation.is_lined(draft.task, serial):
                lane = core.placement.lanes.by_key[draft.task, None, 0]
                assert lane.ranks[serial] == draft.due_ms << SERIAL_BITS | serial, draft
            else:
                assert draft.due_ms >= generation.plain_due_ms, ("looked at in time", draft)
                assert draft.due_ms << SERIAL_BITS | serial > core.placement.horizon, draft
            assert serial not in memory.hot and serial not in memory.stored_at, draft
            assert serial not in core.placement.lanes.seats, draft


def _check_heads(core: Shard) -> None:
    for serial, ticket in core.hot.items():
        facts = (serial, ticket)
        assert ticket.serial == serial, facts
        assert 0 <= ticket.attempts <= ticket.fence, facts
        assert (ticket.state == RUNNING) == (serial in core.running), facts
        assert (ticket.finished_ms > 0) == (ticket.state not in (PENDING, RUNNING)), facts
        assert ticket.fence > 0 or ticket.started_ms == 0, facts
        assert ticket.fence > 0 or ticket.first_due_ms == ticket.due_ms, facts
        assert ticket.first_due_ms <= ticket.due_ms, facts
        assert ticket.state == RUNNING or ticket.cancel_reason is None, facts
        assert ticket.maybe_applied or not ticket.is_ambiguous, facts
    assert core.running <= core.hot.keys(), "a running ticket is hot"


def _check_names(core: Shard) -> None:
    memory = core.memory
    users = Counter(name for t in core.hot.values() if (name := unique_name_of(t)) is not None)
    assert users == memory.unique_users, ("names of hot tickets", users, memory.unique_users)
    flight_rows = {} if memory.flight is None else memory.flight.uniques
    known = users.keys() | memory.dirty.uniques.keys() | flight_rows.keys()
    assert memory.uniques.keys() == known, "rows in memory are those used or changed"
    for name, row in (flight_rows | memory.dirty.uniques).items():
        assert memory.uniques[name] == row, ("a changed row is the current one", name)
    for ticket in core.hot.values():
        name = unique_name_of(ticket)
        if name is not None and ticket.unique is not None and ticket.unique.mode != 2:
            row = memory.uniques[name]
            if ticket.state in (PENDING, RUNNING):
                assert row is not None and row.serial == ticket.serial, ("holds its name", ticket)
                assert row.until_ms == -1, ("holds it until its end", ticket, row)


def _check_lanes(core: Shard) -> None:
    lanes, memory = core.placement.lanes, core.memory
    generations = [memory.dirty] if memory.flight is None else [memory.dirty, memory.flight]
    lined = set[int]().union(*(serials for one in generations for serials in one.lined.values()))
    seats: dict[int, int] = {}
    for key, lane in lanes.by_key.items():
        assert lane.key == key and lanes.numbers.get(key) == lane.number, (key, lane.number)
        assert lane.window == sorted(lane.window) and lane.loading == sorted(lane.loading), key
        assert lane.top() <= lane.edge, ("what is in memory is before the edge", key)
        assert all(rank > lane.edge for rank in lane.ranks.values()), ("outside: past it", key)
        assert lane.first_outside() == min(lane.ranks.values(), default=RANK_MAX), key
        assert len(lane) <= lanes.bounds.window_max, ("a window is bounded", key, len(lane))
        assert lane.near == len([m for m in core.placement.near.values() if _lane(core, m) is lane])
        for rank in lane.window:
            seats[rank & _SERIAL] = WINDOW
        for serial in lane.ranks:
            if serial in core.hot:
                seats[serial] = SPILLED
            elif serial not in lined:
                assert lanes.is_moving(serial), ("outside and parked: on its way", serial)
        _check_hunger(core, lane)
    heads = [lane.head for lane in core.placement.heads()]
    assert heads == sorted(heads), "heads are in order"
    assert len(heads) == sum(1 for lane in lanes.by_key.values() if lane.window)
    assert len(heads) <= lanes.bounds.lanes_max, "heads in memory are bounded"
    in_lane = {s: seat for s, seat in lanes.seats.items() if seat in (WINDOW, SPILLED)}
    assert in_lane == seats, ("seats are what the lanes hold", in_lane, seats)
    total = sum(map(len, lanes.by_key.values()))
    assert total == lanes.total, (total, lanes.total)
    assert total <= lanes.bounds.windows_max + len(lanes.by_key), "windows are bounded"
    loading = sorted(rank & _SERIAL for lane in lanes.by_key.values() for rank in lane.loading)
    assert loading == sorted(lanes.loading), "what is loading is awaited by its lane"
    assert not lanes.loading.keys() & core.hot.keys(), "what is hot is not loaded"


def _check_hunger(core: Shard, lane: Lane) -> None:
    lanes = core.placement.lanes
    if lane.edge < RANK_MAX and len(lane) <= lanes.bounds.window_max // 2:
        assert lane in lanes.hungry, ("a low lane with something outside is looked at", lane.key)


def _check_keys(core: Shard) -> None:
    lanes, keys = core.placement.lanes, core.placement.lanes.keys
    running = _by_key(core, core.running)
    assert running == _holders(keys.running), "running keys are those of running tickets"
    claims = _by_key(core, (s for s, seat in lanes.seats.items() if seat == IN_HAND))
    assert claims == _holders(keys.claims), "claimed keys are those of tickets in hand"
    if isinstance(keys.gate, OpenGate):
        holders = [*running.values(), *claims.values()]
        assert all(len(serials) == 1 for serials in holders), "one of a key at a time"
        assert not running.keys() & claims.keys(), "a key has one holder"
    waiting = {
        rank & _SERIAL: (reason, lane)
        for reason, by_lane in keys.aside.items()
        for lane, ranks in by_lane.items()
        for rank in ranks
    }
    aside = {
        s: (keys.reasons[s], core.hot[s].lane) for s, seat in lanes.seats.items() if seat == ASIDE
    }
    assert waiting == aside, "aside is what waits for a reason of its own"
    assert len(aside) == keys.count == len(keys.reasons), "all of them are counted"
    for reason, by_lane in keys.aside.items():
        assert by_lane and all(by_lane.values()), reason
        assert all(ranks == sorted(ranks) for ranks in by_lane.values()), reason
        if isinstance(reason, str) and isinstance(keys.gate, OpenGate):
            queued = (t.serial for t in core.hot.values() if t.key == reason and t.state == PENDING)
            in_lane = any(lanes.seats.get(s) in (WINDOW, SPILLED) for s in queued)
            is_coming = _is_coming(core, reason)
            assert keys.is_busy(reason) or in_lane or is_coming, ("stuck", reason)


def _check_waits(core: Shard) -> None:
    lanes, waits = core.placement.lanes, core.placement.lanes.waits
    waiting: set[int] = set()
    most = max(waits.bounds.queues_max, waits.found)
    assert len(waits.queues) <= most, "queues of keys are bounded"
    assert waits.queues.keys() == {
        (key, queue.key) for key, queues in waits.by_key.items() for queue in queues
    }, "each queue is known by its key"
    for (key, lane), queue in waits.queues.items():
        facts = (key, lane, queue.edge)
        assert (queue.waited_for, queue.key) == (key, lane), facts
        ranks = lanes.keys.aside.get(key, {}).get(lane, [])
        assert not ranks or ranks[-1] <= queue.edge, ("aside is before the edge", facts, ranks)
        assert len(ranks) <= waits.bounds.waits_window, ("a window is bounded", facts)
        assert all(rank > queue.edge for rank in queue.ranks.values()), ("outside: past it", facts)
        assert queue.first_outside() == min(queue.ranks.values(), default=RANK_MAX), facts
        for serial in queue.ranks:
            ticket = core.hot[serial]
            assert (ticket.key, ticket.lane) == (key, lane), ("of its key and lane", ticket)
        waiting |= queue.ranks.keys()
        if queue.edge < RANK_MAX and len(ranks) <= waits.bounds.waits_window // 2:
            assert queue in waits.hungry, ("a low queue with something outside is looked at", facts)
    assert waits.outside_count == len(waiting), "those that wait for a checkpoint are counted"
    assert waits.lanes == Counter(lane for _, lane in waits.queues), "queues of each lane"
    seated = {s for s, seat in lanes.seats.items() if seat == WAITING}
    assert seated == waiting, ("who waits for a key is in its queue", seated, waiting)


def _by_key(core: Shard, serials: Iterable[int]) -> dict[str, set[int]]:
    found: dict[str, set[int]] = {}
    for serial in serials:
        key = core.hot[serial].key
        if key is not None:
            found.setdefault(key, set()).add(serial)
    return found


def _holders(held: Mapping[str, Mapping[int, int]]) -> dict[str, set[int]]:
    return {key: set(serials) for key, serials in held.items()}


def _is_coming(core: Shard, key: str) -> bool:
    """Whether a ticket of that key was handed on, and left memory for its lane's rows; or is to
    come in from outside of its queue."""
    lanes = core.placement.lanes
    queues = lanes.waits.by_key.get(key, ())
    return any(lane.edge < RANK_MAX for lane in (*lanes.by_key.values(), *queues))


def _check_hot_placement(core: Shard) -> None:
    """Both lines, for hot tickets."""
    placement, lanes = core.placement, core.placement.lanes
    timers = Counter(map(pack, placement.wheel.items()))
    overlay = set(placement.overlay)
    heap = placement.overlay
    assert all(heap[(i - 1) // 2] <= heap[i] for i in range(1, len(heap))), "overlay is a heap"
    for serial, ticket in core.hot.items():
        position = ticket.due_ms << SERIAL_BITS | serial
        if ticket.state != PENDING:
            assert serial not in lanes.seats, ("only pending tickets wait in lanes", serial)
        elif serial not in lanes.seats:
            if position <= placement.horizon:
                assert position in timers, ("in the wheel up to the horizon", ticket)
            else:
                assert position in overlay, ("in the overlay past the horizon", ticket)
        else:
            expiry_ms = expiry_of(ticket)
            armed = placement.expiries.armed.get(serial)
            assert expiry_ms is None or armed in (expiry_ms, None), ("one expiry", ticket)
    _check_wake(core)
    for serial, move in placement.near.items():
        position = move.due_ms << SERIAL_BITS | serial
        assert position <= placement.horizon, ("near is up to the horizon", serial)
        assert position in timers, ("near is in the wheel", serial)
        assert serial not in core.hot, ("near is parked", serial)


def _check_outbox(core: Shard) -> None:
    """A window holds the first entries that are not handed, and all of them unless there may be
    more; an id that answers as another ticket's has its row."""
    outbox = core.outbox
    changed = outbox.changed()
    for receiver, window in outbox.windows.items():
        places = list(window)
        assert places and places == sorted(places), ("in order", receiver, places)
        assert places[0] > outbox.handed.get(receiver, NO_PLACE), ("not handed", receiver)
        assert len(places) <= outbox.window_max, ("a window is bounded", receiver)
        for place in [at for to, at in changed if to == receiver and at <= places[-1]]:
            assert place in window, ("no entry is passed over", receiver, place)
    for receiver, place in changed:
        is_in = place in outbox.windows.get(receiver, ())
        assert is_in or receiver in outbox.beyond, ("all of them, or more", receiver, place)
    for ticket in core.hot.values():
        assert ticket.aliases is None or ticket.state in (PENDING, RUNNING, DEAD), ticket


def _check_wake(core: Shard) -> None:
    """Time: whatever memory waits for has a timer."""
    placement, seats = core.placement, core.placement.lanes.seats
    dues = [t.due_ms for s, t in core.hot.items() if t.state == PENDING and s not in seats]
    dues += [move.due_ms for move in placement.near.values()]
    if dues:
        wake_ms = placement.next_timer()
        assert wake_ms is not None and wake_ms <= min(dues), ("woken in time", wake_ms, min(dues))


def _check_store(core: Shard, store: StoreView) -> None:
    """Rule 6: in every committed store each pending ticket has exactly one entry."""
    entries = Counter(dict(store.agenda))
    rows = Counter(dict(store.rows))
    waits = Counter(dict(store.waits))
    assert all(count == 1 for count in entries.values()), ("an entry is there once", store.agenda)
    assert all(count == 1 for count in rows.values()), ("a row is there once", store.rows)
    wait_of = {serial: (first, lane, key) for key, lane, first, serial in waits}
    assert len(wait_of) == len(waits), "one row for a ticket"
    agenda_of = {serial: (due, first, lane) for due, serial, first, lane in entries}
    row_of = {serial: (first, lane) for lane, first, serial in rows}
    pending = {s for s, t in store.heads.items() if t.state == PENDING}
    assert len(agenda_of) == len(entries) and len(row_of) == len(rows), "one entry for a ticket"
    assert not agenda_of.keys() & row_of.keys(), "in the agenda or in its lane, not both"
    assert not wait_of.keys() & (agenda_of.keys() | row_of.keys()), "or it waits for its key"
    entered = agenda_of.keys() | row_of.keys() | wait_of.keys()
    assert entered == pending, "an entry for each, for no other"
    for serial in pending:
        ticket = store.heads[serial]
        number = core.placement.lanes.numbers[ticket.lane]
        if serial in agenda_of:
            expected = (ticket.due_ms, ticket.first_due_ms, number)
            assert agenda_of[serial] == expected, ("its own entry", ticket, agenda_of[serial])
        elif serial in wait_of:
            expected_row = (ticket.first_due_ms, number, ticket.key)
            assert wait_of[serial] == expected_row, ("its own row", ticket, wait_of[serial])
        else:
            assert row_of[serial] == (ticket.first_due_ms, number), ("its own row", ticket)
    marks = Counter({(e, s): 1 for s in pending if (e := expiry_of(store.heads[s])) is not None})
    assert marks == Counter(dict(store.marks)), ("a mark for each that may expire", store.marks)


def _check_counters(core: Shard, store: StoreView) -> None:
    counted = recount(core, store.heads)
    assert core.counters == counted, ("counters equal a recount", core.counters, counted)


def recount(core: Shard, heads: Mapping[int, Ticket]) -> dict[tuple[str, int], int]:
    """The counters, counted anew over memory and store."""
    plain = {ticket.serial: ticket for ticket in core.memory.plain_tickets()}
    parked = {s: t for s, t in heads.items() if s not in plain and core.look(s) is UNREAD}
    tickets = {**parked, **plain, **core.hot}
    return dict(Counter((ticket.task, ticket.state) for ticket in tickets.values()))


def _check_parked_placement(core: Shard, store: StoreView) -> None:
    """Both lines, for tickets that only the store has."""
    placement, lanes = core.placement, core.placement.lanes
    row_ranks = {serial: first << SERIAL_BITS | serial for _, first, serial in store.rows}
    agenda = {serial for _, serial, _, _ in store.agenda}
    waiting = {serial for _, _, _, serial in store.waits}
    for serial, ticket in store.heads.items():
        if not core.is_clean(serial) or core.look(serial) is not UNREAD:
            continue
        if ticket.state != PENDING or serial in store.damaged:
            continue
        position = ticket.due_ms << SERIAL_BITS | serial
        lane = lanes.by_key.get(ticket.lane)
        in_rows = serial in row_ranks and lane is not None and row_ranks[serial] > lane.edge
        is_outside = lane is not None and serial in lane.ranks
        queue = lanes.waits.queues.get((str(ticket.key), ticket.lane))
        rank = ticket.first_due_ms << SERIAL_BITS | serial
        is_waiting = serial in waiting and queue is not None and rank > queue.edge
        in_lane = in_rows or is_outside or is_waiting or serial in lanes.loading
        if position <= placement.horizon:
            near = placement.near.get(serial)
            in_wheel = near is not None and near.due_ms == ticket.due_ms
            assert in_wheel or in_lane, ("up to the horizon: wheel or lane", ticket)
        else:
            assert in_lane or serial in agenda, ("past it: lane or agenda", ticket)


def _lane(core: Shard, move: LaneMove) -> Lane | None:
    lanes = core.placement.lanes
    return lanes.by_key.get(lanes.names[move.lane_number])


_SERIAL = (1 << SERIAL_BITS) - 1
