"""Every rule of waiting for a key past what memory holds, broken once: its scenario must fail.

As in `test_shard_rules`; the rules are those of docs/architecture.md, Keys.
"""

from collections.abc import Callable
from typing import Any

import pytest

from kit.rig import SMALL, Rig, codes
from kit.store import FakeStore
from parkade.shard.commands import Cancel, Reschedule
from parkade.shard.lanes import Lanes
from parkade.shard.placement import Placement
from parkade.shard.refill import Refilled
from parkade.shard.waits import Queue, Waits
from parkade.store.record import Options

Scenario = Callable[[], None]
Break = Callable[[pytest.MonkeyPatch], None]

FEW = SMALL._replace(
    wheel_max=200, window_max=8, windows_max=40, lanes_max=40, moves_max=400, sweep_limit=200,
    aside_max=8, waits_window=2, queues_max=5, waiting_max=20,
)  # fmt: skip
HOUR = 3_600_000


def crowd(rig: Rig, count: int, **more: Any) -> list[int]:
    """Tickets of one key, of which the first runs and the others wait, most of them on disk."""
    serials = [rig.submit(key="k", **more) for _ in range(count)]
    rig.settle_down()
    assert rig.pop_all() == serials[:1]
    assert codes(rig.start(serials[0])) == ["started"]
    rest(rig)
    return serials


def rest(rig: Rig) -> None:
    """Whoever may not start has stepped aside, and what is far is on disk."""
    for _ in range(30):
        rig.settle_down()
        for serial in rig.pop_all():
            rig.core.placement.give_back(serial, rig.now_ms)
        rig.checkpoint()
        rig.checked()


def finish(rig: Rig, running: int) -> list[int]:
    """Ends what runs, then runs one after the other; in the order of their starts."""
    rig.settle(running)
    done: list[int] = []
    for _ in range(400):
        rig.settle_down()
        taken = rig.pop_all()
        if not taken:
            return done
        for serial in taken:
            assert codes(rig.start(serial)) == ["started"]
            rig.settle(serial)
        done += taken
        if len(done) % 3 == 0:
            rig.checkpoint()
        rig.checked()
    raise AssertionError("it never ends")


# ---------------------------------------------------------------------- memory, and others


def a_busy_key_costs_neither_memory_nor_the_others_of_its_lane() -> None:
    rig = Rig(FEW)
    serials = crowd(rig, 120)
    assert len(rig.core.hot) <= 1 + FEW.waits_window + FEW.window_max
    assert len(rig.store.waits) >= 90
    others = [rig.submit(key=f"other {n}") for n in range(6)]
    rig.settle_down()
    assert rig.pop_all() == others
    for serial in others:
        rig.start(serial)
        rig.settle(serial)
    assert finish(rig, serials[0]) == serials[1:]


def a_key_without_a_queue(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(Waits, "_may_queue", lambda self, ticket, reason: False)


def rows_that_never_leave_memory(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(Waits, "keeps", lambda self, ticket, at: True)


# ---------------------------------------------------------------------- order


def a_younger_ticket_waits_for_those_of_its_key_on_disk() -> None:
    rig = Rig(FEW)
    serials = crowd(rig, 12)
    rig.settle(serials[0])
    done = []
    for _ in range(3):
        younger = rig.submit(key="k")
        rig.advance()  # it is in its lane, and nothing has been read
        taken = rig.pop_all()
        assert younger not in taken
        for serial in taken:
            rig.start(serial)
            rig.settle(serial)
        done += taken
        rig.advance()
        assert younger not in rig.pop_all()
        for serial, seat in list(rig.core.placement.lanes.seats.items()):
            if seat == 2:
                rig.core.placement.give_back(serial, rig.now_ms)
    rig.checked()


def younger_tickets_that_overtake(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(Waits, "must_wait", lambda self, ticket: False)


def rows_and_memory_are_merged_in_order() -> None:
    rig = Rig(FEW)
    running, *serials = crowd(rig, 10)
    for n in range(3):  # older ones, for which some have to leave the window
        serials.insert(n, rig.submit(n - 10, key="k"))
        rig.settle_down()
        assert rig.pop_all() == []
    for _ in range(3):  # past the rows
        serials.append(rig.submit(key="k"))
        rig.settle_down()
        assert rig.pop_all() == []
    assert finish(rig, running) == serials


def a_queue_from_rows_alone(patch: pytest.MonkeyPatch) -> None:
    first = Queue.first_outside
    patch.setattr(Queue, "first_outside", lambda self: 1 << 128 if self.has_rows else first(self))


def a_queue_from_memory_alone(patch: pytest.MonkeyPatch) -> None:
    refilled = Placement.refilled

    def no_rows(self: Placement, result: Refilled, now_ms: int) -> bool:
        if result.key is not None:
            result = result._replace(rows=[], is_end=True)
        return refilled(self, result, now_ms)

    patch.setattr(Placement, "refilled", no_rows)


def a_lane_that_is_held_keeps_no_key_from_the_others() -> None:
    rig = Rig(FEW)
    serials = crowd(rig, 6)
    other = [rig.submit(key="k", options=Options(target="t")) for _ in range(6)]
    rest(rig)
    rig.settle(serials[0])
    rig.settle_down()
    held = ("t", None, 0)
    lane = next((lane for lane in rig.lanes() if lane.key != held), None)
    assert lane is not None, "the first of each lane comes back"
    assert rig.pop(lane) == other[0]


def one_lane_alone_handed_on(patch: pytest.MonkeyPatch) -> None:
    note = Waits.note_key

    def first(self: Waits, key: str) -> None:
        queues = self.by_key.get(key, [])
        self.by_key[key] = queues[:1]
        note(self, key)
        self.by_key[key] = queues

    patch.setattr(Waits, "note_key", first)
    bring_back = Lanes._bring_back
    patch.setattr(
        Lanes,
        "_bring_back",
        lambda self, reason, ranks: bring_back(self, reason, sorted(ranks)[:1]),
    )


# ---------------------------------------------------------------------- on disk


def each_pending_ticket_has_one_entry_whatever_becomes_of_it() -> None:
    rig = Rig(FEW)
    serials = crowd(rig, 12)
    waiting = [serial for *_, serial in sorted(rig.store.waits)]
    assert len(waiting) >= 6
    rig.do(Cancel(waiting[0]))
    rig.do(Reschedule(waiting[1], rig.now_ms + HOUR))
    rig.do(Reschedule(waiting[2], rig.now_ms))
    rest(rig)
    left = [serial for serial in serials[1:] if serial not in waiting[:2]]
    order = finish(rig, serials[0])
    assert sorted(order) == sorted(left)
    rig.pass_ms(HOUR)
    rig.settle_down()
    assert rig.pop_all() == [waiting[1]]


def rows_of_keys_that_nobody_looks_for(patch: pytest.MonkeyPatch) -> None:
    leave = FakeStore._leave
    patch.setattr(
        FakeStore,
        "_leave",
        lambda self, serial, due, first, number, key: leave(self, serial, due, first, number, None),
    )


def an_open_hands_on_every_key_that_has_rows() -> None:
    rig = Rig(FEW)
    serials = crowd(rig, 15)
    rig.reopen()
    rig.settle_lost(0)
    rig.checked()
    rig.settle_down()
    first = rig.pop_all()
    assert len(first) == 1
    rig.start(*first)
    assert first + finish(rig, first[0]) == serials


def what_was_due_at_an_open_goes_before_rows() -> None:
    rig = Rig(FEW)
    serials = crowd(rig, 15)
    rig.reopen()
    rig.settle_lost(0)
    for _ in range(4):  # whatever may be read is read before anything else is done
        if rig.begin_refills():
            rig.end_reads()
        rig.begin_sweep()
        rig.end_reads()
        taken = rig.pop_all()
        if taken:
            break
        rig.advance()
    rig.settle_down()
    taken = taken or rig.pop_all()
    rig.start(*taken)
    assert taken + finish(rig, taken[0]) == serials


def an_open_that_takes_rows_before_the_agenda(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(Placement, "_catch_up", lambda self, now_ms: True)


def an_open_that_knows_of_no_rows(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(FakeStore, "wait_queues", lambda self: [])


def test_a_failed_commit_leaves_those_that_wait_where_they_were() -> None:
    rig = Rig(FEW)
    serials = [rig.submit(key="k") for _ in range(8)]
    rig.checkpoint()  # in the agenda
    rig.settle_down()
    assert rig.pop_all() == serials[:1]
    rig.start(serials[0])
    rig.settle_down()
    assert rig.pop_all() == []
    rig.cut()
    rig.settle(serials[0])
    rig.settle_down()
    taken = rig.pop_all()
    rig.fail_commit()
    rig.checked()
    for serial in taken:
        rig.core.placement.give_back(serial, rig.now_ms)
    rest(rig)
    again = rig.pop_all()
    rig.start(*again)
    assert again + finish(rig, again[0]) == serials[1:]


RULES: list[tuple[Scenario, Break]] = [
    (a_busy_key_costs_neither_memory_nor_the_others_of_its_lane, a_key_without_a_queue),
    (a_busy_key_costs_neither_memory_nor_the_others_of_its_lane, rows_that_never_leave_memory),
    (a_younger_ticket_waits_for_those_of_its_key_on_disk, younger_tickets_that_overtake),
    (rows_and_memory_are_merged_in_order, a_queue_from_rows_alone),
    (rows_and_memory_are_merged_in_order, a_queue_from_memory_alone),
    (a_lane_that_is_held_keeps_no_key_from_the_others, one_lane_alone_handed_on),
    (each_pending_ticket_has_one_entry_whatever_becomes_of_it, rows_of_keys_that_nobody_looks_for),
    (an_open_hands_on_every_key_that_has_rows, an_open_that_knows_of_no_rows),
    (what_was_due_at_an_open_goes_before_rows, an_open_that_takes_rows_before_the_agenda),
]


def name_of(function: Callable[..., None]) -> str:
    return function.__name__


@pytest.mark.parametrize("scenario", dict.fromkeys(rule[0] for rule in RULES), ids=name_of)
def test_a_rule_that_is_kept_lets_its_scenario_pass(scenario: Scenario) -> None:
    scenario()


@pytest.mark.parametrize(
    ("scenario", "broken"), RULES, ids=[f"{s.__name__}-{b.__name__}" for s, b in RULES]
)
def test_a_rule_that_is_broken_is_noticed(
    scenario: Scenario, broken: Break, monkeypatch: pytest.MonkeyPatch
) -> None:
    broken(monkeypatch)
    with pytest.raises(AssertionError):
        scenario()
