"""Every rule of placement, broken once: the scenario that it is for must fail.

Each scenario passes as it stands. With its rule broken, by a patch that leaves the rest alone, it
fails: so the rule is in the code, and the scenario would notice if it went missing. The rules are
those of docs/architecture.md: Placement, Lanes, Keys.
"""

from collections.abc import Callable
from copy import copy
from typing import Any

import pytest

from kit.rig import NOW_MS, SMALL, Rig, codes
from parkade.shard import PENDING, Bounds, Shard
from parkade.shard.commands import (
    Cancel,
    Reschedule,
)
from parkade.shard.generation import Generation
from parkade.shard.horizon import NOWHERE, span_end
from parkade.shard.keys import Keys
from parkade.shard.lane import RANK_MAX, Lane
from parkade.shard.lanes import Lanes
from parkade.shard.memory import UNREAD, Memory
from parkade.shard.placement import Placement
from parkade.shard.refill import Refilled
from parkade.shard.ticket import Ticket

Scenario = Callable[[], None]
Break = Callable[[pytest.MonkeyPatch], None]

WIDE = SMALL._replace(
    wheel_max=1_000, window_max=100, windows_max=1_000, lanes_max=100, waits_window=100
)
SECOND, HOUR = 1_000, 3_600_000


# ---------------------------------------------------------------------- Placement


def tickets_past_a_sweep_at_one_millisecond_are_not_forgotten() -> None:
    rig = Rig(WIDE)
    serials = [rig.submit(SECOND) for _ in range(3 * WIDE.sweep_limit)]
    rig.checkpoint()
    rig.pass_ms(SECOND)
    rig.settle_down()
    assert rig.pop_all() == serials


def a_horizon_at_the_end_of_its_millisecond(patch: pytest.MonkeyPatch) -> None:
    raise_horizon = Placement._raise_horizon
    patch.setattr(
        Placement,
        "_raise_horizon",
        lambda self, position: raise_horizon(self, span_end(position >> 64)),
    )


def the_agendas_entry_of_a_hot_ticket_is_passed_over() -> None:
    rig = Rig(WIDE)
    serial = rig.submit(100)
    rig.checkpoint()
    rig.do(Reschedule(serial, rig.now_ms + HOUR))
    rig.settle_down()
    rig.checked()
    rig.pass_ms(100)
    rig.settle_down()
    assert rig.pop_all() == []
    rig.checked()


def the_agenda_believed_over_memory(patch: pytest.MonkeyPatch) -> None:
    take = Placement._take_entry

    def take_entry(self: Placement, entry: Any, now_ms: int) -> None:
        look, Memory.look = Memory.look, lambda self, serial: UNREAD  # type: ignore[method-assign]
        try:
            take(self, entry, now_ms)
        finally:
            Memory.look = look  # type: ignore[method-assign]

    patch.setattr(Placement, "_take_entry", take_entry)


def a_dirty_ticket_stays_hot_at_a_completion() -> None:
    rig = Rig(WIDE)
    serial = rig.submit(HOUR)
    rig.cut()
    rig.do(Reschedule(serial, rig.now_ms + 2 * HOUR))
    rig.commit()
    rig.complete()
    rig.checked()
    assert rig.head(serial).due_ms == rig.now_ms + 2 * HOUR


def all_of_the_flight_evicted(patch: pytest.MonkeyPatch) -> None:
    complete = Memory.complete

    def forgetful(self: Memory, lsn: int, placed: Any, keeps: Any, may_go: Any) -> Generation:
        flight = complete(self, lsn, placed, keeps, may_go)
        for serial in flight.tickets:
            self.hot.pop(serial, None)
        return flight

    patch.setattr(Memory, "complete", forgetful)


def a_ticket_in_flight_fires_though_no_sweep_can_find_it() -> None:
    rig = Rig(WIDE)
    rig.settle_down()
    serial = rig.submit(SECOND + 400)
    rig.cut()
    for _ in range(3):
        rig.pass_ms(500)
        rig.settle_down()
        rig.checked()
    assert rig.pop_all() == [serial]


def tickets_leave_the_overlay_at_the_cut(patch: pytest.MonkeyPatch) -> None:
    cut = Shard.cut

    def early(self: Shard) -> Any:
        self.placement.overlay.clear()
        return cut(self)

    patch.setattr(Shard, "cut", early)


def a_sweep_that_a_completion_overtook_counts_for_nothing() -> None:
    rig = Rig(WIDE)
    rig.settle_down()
    rig.pass_ms(600)
    assert rig.begin_sweep()
    serial = rig.submit(900)
    rig.checkpoint()
    assert serial not in rig.core.hot
    rig.end_reads()
    rig.checked()
    rig.pass_ms(900)
    rig.settle_down()
    assert rig.pop_all() == [serial]


def every_read_counts_as_fresh(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(Memory, "is_fresh", lambda self, lsn: True)


def a_sweep_takes_the_overlay_along() -> None:
    rig = Rig(WIDE)
    rig.settle_down()
    serial = rig.submit(SECOND + 200)
    rig.pass_ms(600)
    rig.settle_down()
    rig.checked()
    assert rig.core.placement.where(serial) == "wheel"


def the_horizon_raised_over_the_overlay(patch: pytest.MonkeyPatch) -> None:
    def raise_horizon(self: Placement, position: int) -> None:
        self.horizon = position

    patch.setattr(Placement, "_raise_horizon", raise_horizon)


def a_timer_of_a_former_due_does_not_fire() -> None:
    rig = Rig(WIDE)
    rig.settle_down()
    serial = rig.submit(100)
    rig.do(Reschedule(serial, rig.now_ms + 800))
    rig.pass_ms(100)
    rig.settle_down()
    assert serial not in rig.core.placement.lanes.seats
    rig.do(Cancel(serial))
    rig.pass_ms(800)
    rig.settle_down()
    assert serial not in rig.core.placement.lanes.seats
    rig.checked()


def whatever_a_timer_names_fires(patch: pytest.MonkeyPatch) -> None:
    patch.setattr("parkade.shard.placement.is_due", lambda ticket, now_ms: True)


def a_ticket_has_one_entry_whatever_becomes_of_its_move() -> None:
    rig = Rig(WIDE._replace(window_max=2))
    serials = [rig.submit() for _ in range(4)]
    rig.checkpoint()
    rig.settle_down()
    assert serials[3] in rig.core.dirty.moves
    rig.do(Reschedule(serials[3], rig.now_ms + HOUR))
    rig.checkpoint()
    rig.checked()


def a_move_left_beside_a_change(patch: pytest.MonkeyPatch) -> None:
    def own(self: Memory, ticket: Ticket) -> Ticket:
        if ticket.serial not in self.dirty.tickets:
            ticket = copy(ticket)
            self.hot[ticket.serial] = self.dirty.tickets[ticket.serial] = ticket
        return ticket

    def came_in(self: Placement, ticket: Ticket) -> None:
        self.enter(ticket)

    patch.setattr(Memory, "own", own)
    patch.setattr(Placement, "came_in", came_in)


def a_clock_set_back_leaves_no_more_in_memory_than_before() -> None:
    rig = Rig(WIDE)
    rig.settle_down()
    rig.pass_ms(-HOUR)
    rig.settle_down()
    serials = [rig.submit(HOUR // 2) for _ in range(30)]
    rig.checkpoint()
    assert not rig.core.hot
    rig.checked()
    rig.pass_ms(HOUR // 2)
    rig.settle_down()
    assert rig.pop_all() == serials


def a_horizon_that_is_never_lowered(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(Placement, "_lower", lambda self, horizon: None)


def what_slept_before_an_open_wakes_after_it() -> None:
    rig = Rig(WIDE)
    serial = rig.submit()
    rig.checkpoint()
    rig.reopen()
    assert rig.core.placement.horizon == NOWHERE
    rig.settle_down()
    assert rig.pop_all() == [serial]


def an_open_that_begins_at_now(patch: pytest.MonkeyPatch) -> None:
    init = Placement.__init__

    def late(self: Placement, *args: Any) -> None:
        init(self, *args)
        self.horizon = span_end(NOW_MS)

    patch.setattr(Placement, "__init__", late)


def a_row_met_before_its_due_goes_back_to_the_agenda() -> None:
    rig = Rig(WIDE._replace(window_max=2))
    serials = [rig.submit() for _ in range(3)]
    for serial in serials:
        rig.run(serial)
        rig.settle(serial, "transient", wait_ms=3 * SECOND)
    rig.pass_ms(3 * SECOND)
    rig.settle_down()
    rig.checkpoint()
    assert [serial for _, _, serial in rig.store.rows] == [serials[2]]
    rig.reopen()
    rig.pass_ms(-2 * SECOND)
    rig.settle_down()
    rig.checked()
    rig.checkpoint()
    rig.checked()
    assert not rig.store.rows
    rig.pass_ms(2 * SECOND)
    rig.settle_down()
    assert rig.pop_all() == serials[:2]


def a_ticket_met_early_counts_as_unchanged(patch: pytest.MonkeyPatch) -> None:
    def relocate(self: Placement, ticket: Ticket) -> None:
        self.memory.lingering.add(ticket.serial)
        self.enter(ticket)

    patch.setattr(Placement, "relocate", relocate)


def a_due_hot_ticket_needs_no_sweep() -> None:
    rig = Rig(WIDE)
    rig.settle_down()
    serial = rig.submit(SECOND + 500)
    wake_ms = rig.core.placement.next_timer()
    assert wake_ms == rig.now_ms + SECOND + 500
    rig.pass_ms(SECOND + 500)
    rig.advance()
    assert rig.pop_all() == [serial]


def the_overlay_wakes_nobody(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(Placement, "_overlay_wake", lambda self: None)


def the_wheel_alone_fires(patch: pytest.MonkeyPatch) -> None:
    advance = Placement.advance

    def wheel_only(self: Placement, *args: Any) -> list[int]:
        overlay, self.overlay = self.overlay, []
        try:
            return advance(self, *args)
        finally:
            self.overlay = overlay

    patch.setattr(Placement, "advance", wheel_only)


def a_wheel_that_is_full_lets_go_of_what_is_last() -> None:
    rig = Rig(SMALL)
    rig.settle_down()
    serials = [rig.submit(100 + nth) for nth in range(4 * SMALL.wheel_max)]
    rig.advance()
    assert len(rig.core.placement.wheel) <= SMALL.wheel_max
    rig.checked()
    rig.checkpoint()
    assert len(rig.core.hot) <= SMALL.wheel_max
    rig.pass_ms(SECOND)
    taken = []
    for _ in range(30):
        rig.settle_down()
        taken += rig.pop_all()
        for serial in taken:
            if rig.head(serial).state == PENDING:
                rig.start(serial)
        rig.checkpoint()
    assert taken == serials


def a_wheel_without_a_bound(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(Placement, "trim", lambda self: None)


# ---------------------------------------------------------------------- Lanes and keys


def a_full_lane_delays_no_other() -> None:
    bounds = Bounds(horizon_ms=SECOND, wheel_max=20, window_max=4, sweep_limit=10)
    rig = Rig(bounds)
    many = [rig.submit(900, task="many") for _ in range(60)]
    one = rig.submit(950, task="one")
    rig.checkpoint()
    rig.pass_ms(450)
    rig.settle_down()
    assert rig.core.placement.where(one) == "wheel", "the sweep has come past the many"
    rig.checked()
    rig.pass_ms(450)
    done = []
    for _ in range(40):
        rig.settle_down()
        taken = rig.pop_all()
        for serial in taken:
            rig.start(serial)
            rig.settle(serial)
        done += taken
        rig.checkpoint()
        rig.checked()
    assert done == many


def a_sweep_that_never_runs_ahead(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(Lanes, "run_ahead", lambda self, serial, move, now_ms: False)


def a_lane_keeps_its_order_past_its_window() -> None:
    rig = Rig(SMALL._replace(wheel_max=100, windows_max=100, moves_max=100))
    serials = [rig.submit(nth) for nth in range(20)]
    rig.pass_ms(30)
    rig.settle_down()
    rig.checkpoint()
    late = [rig.submit() for _ in range(3)]
    taken = []
    for _ in range(20):
        rig.settle_down()
        rig.checked()
        for lane in rig.lanes():
            serial = rig.pop(lane)
            if serial is not None:
                taken.append(serial)
                rig.start(serial)
    assert taken == [*serials[: len(taken)], *late][: len(taken)] and len(taken) == 20


def a_window_that_takes_in_whatever_comes(patch: pytest.MonkeyPatch) -> None:
    enter = Lanes.enter

    def greedy(self: Lanes, ticket: Ticket) -> None:
        lane = self.lane(ticket.lane)
        edge, lane.edge = lane.edge, RANK_MAX
        enter(self, ticket)
        lane.edge = edge

    patch.setattr(Lanes, "enter", greedy)


def a_refill_merges_what_has_no_row_yet() -> None:
    rig = Rig(SMALL._replace(wheel_max=100, windows_max=100))
    serials = [rig.submit() for _ in range(6)]
    rig.settle_down()
    rig.checkpoint()
    assert rig.store.rows
    more = [rig.submit() for _ in range(2)]
    rig.settle_down()
    taken = []
    for _ in range(4):
        taken += rig.pop_all()
        for serial in taken:
            rig.start(serial)
        rig.settle_down()
        rig.checked()
    assert taken == serials + more


def a_refill_from_rows_alone(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(Lane, "first_outside", lambda self: RANK_MAX)


def a_refill_from_memory_alone(patch: pytest.MonkeyPatch) -> None:
    refilled = Placement.refilled

    def no_rows(self: Placement, result: Refilled, now_ms: int) -> bool:
        return refilled(self, result._replace(rows=[], is_end=True), now_ms)

    patch.setattr(Placement, "refilled", no_rows)


def of_one_key_one_ticket_runs_and_the_next_follows() -> None:
    rig = Rig(WIDE)
    serials = [rig.submit(key="k") for _ in range(3)]
    rig.settle_down()
    for serial in serials:
        assert rig.pop_all() == [serial]
        assert codes(rig.start(serial)) == ["started"]
        rig.checked()
        rig.settle(serial)
    rig.checked()


def a_key_that_stops_nobody(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(Keys, "has_room", lambda self, ticket: True)


def a_key_that_is_not_handed_on(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(Lanes, "hand_on", lambda self, key: None)


def a_cancelled_ticket_hands_its_key_on() -> None:
    rig = Rig(WIDE)
    first, second, third = (rig.submit(key="k") for _ in range(3))
    rig.settle_down()
    assert rig.pop_all() == [first]
    rig.do(Cancel(first))
    rig.checked()
    assert rig.pop_all() == [second]
    rig.core.placement.give_back(second, rig.now_ms)
    assert rig.pop_all() == [second]
    rig.do(Cancel(second))
    assert rig.pop_all() == [third]


RULES: list[tuple[Scenario, Break]] = [
    # Placement, rules 1 to 9
    (
        tickets_past_a_sweep_at_one_millisecond_are_not_forgotten,
        a_horizon_at_the_end_of_its_millisecond,
    ),
    (the_agendas_entry_of_a_hot_ticket_is_passed_over, the_agenda_believed_over_memory),
    (a_dirty_ticket_stays_hot_at_a_completion, all_of_the_flight_evicted),
    (a_ticket_in_flight_fires_though_no_sweep_can_find_it, tickets_leave_the_overlay_at_the_cut),
    (a_sweep_that_a_completion_overtook_counts_for_nothing, every_read_counts_as_fresh),
    (a_sweep_takes_the_overlay_along, the_horizon_raised_over_the_overlay),
    (a_timer_of_a_former_due_does_not_fire, whatever_a_timer_names_fires),
    (a_ticket_has_one_entry_whatever_becomes_of_its_move, a_move_left_beside_a_change),
    (a_clock_set_back_leaves_no_more_in_memory_than_before, a_horizon_that_is_never_lowered),
    (what_slept_before_an_open_wakes_after_it, an_open_that_begins_at_now),
    (a_row_met_before_its_due_goes_back_to_the_agenda, a_ticket_met_early_counts_as_unchanged),
    (a_due_hot_ticket_needs_no_sweep, the_overlay_wakes_nobody),
    (a_due_hot_ticket_needs_no_sweep, the_wheel_alone_fires),
    (a_wheel_that_is_full_lets_go_of_what_is_last, a_wheel_without_a_bound),
    # Lanes and keys
    (a_full_lane_delays_no_other, a_sweep_that_never_runs_ahead),
    (a_lane_keeps_its_order_past_its_window, a_window_that_takes_in_whatever_comes),
    (a_refill_merges_what_has_no_row_yet, a_refill_from_rows_alone),
    (a_refill_merges_what_has_no_row_yet, a_refill_from_memory_alone),
    (of_one_key_one_ticket_runs_and_the_next_follows, a_key_that_stops_nobody),
    (of_one_key_one_ticket_runs_and_the_next_follows, a_key_that_is_not_handed_on),
    (a_cancelled_ticket_hands_its_key_on, a_key_that_is_not_handed_on),
]


def name_of(function: Callable[..., None]) -> str:
    return function.__name__


@pytest.mark.parametrize("scenario", dict.fromkeys(rule[0] for rule in RULES), ids=name_of)
def test_a_rule_that_is_kept_lets_its_scenario_pass(scenario: Scenario) -> None:
    scenario()


@pytest.mark.parametrize(("scenario", "breaks"), RULES, ids=name_of)
def test_a_rule_that_is_broken_is_noticed(
    scenario: Scenario, breaks: Break, monkeypatch: pytest.MonkeyPatch
) -> None:
    breaks(monkeypatch)
    with pytest.raises((AssertionError, KeyError, IndexError)):
        scenario()
