"""Where pending tickets wait: bounds, reads that fail, clocks that jump, order."""

import pytest

from kit.rig import NOW_MS, SMALL, Rig, codes
from parkade.shard import DONE, PENDING, Bounds, Shard, Swept
from parkade.shard.commands import Cancel, Reschedule
from parkade.shard.horizon import NOWHERE
from parkade.store.record import Options

SECOND, HOUR = 1_000, 3_600_000
WIDE = SMALL._replace(
    wheel_max=1_000, window_max=100, windows_max=1_000, lanes_max=100, moves_max=1_000
)


def run_all(rig: Rig) -> list[int]:
    """Start and finish what is due, until nothing is; in the order of the starts."""
    done: list[int] = []
    for _ in range(200):
        rig.settle_down()
        taken = rig.pop_all()
        if not taken and not rig.core.placement.wants_checkpoint:
            return done
        for serial in taken:
            assert codes(rig.start(serial)) == ["started"]
            rig.settle(serial)
        done += taken
        rig.checkpoint()
        rig.checked()
    raise AssertionError("it never ends")


def test_at_an_open_the_first_sweep_is_wanted_at_once_from_before_everything() -> None:
    placement = Shard(bounds=WIDE).placement
    assert placement.horizon == NOWHERE
    wake_ms = placement.next_wake()
    assert wake_ms is not None and wake_ms < 0
    ask = placement.want_sweep(NOW_MS)
    assert ask is not None and ask.from_pos < (0, 0)
    assert ask.until_ms == NOW_MS + WIDE.horizon_ms
    assert placement.want_sweep(NOW_MS) is None, "asked once"


def test_an_idle_shard_wakes_for_its_next_sweep_only() -> None:
    rig = Rig(WIDE)
    rig.settle_down()
    assert rig.core.placement.next_wake() == rig.now_ms + WIDE.horizon_ms // 2
    assert rig.core.placement.next_timer() is None


def test_a_ticket_that_sleeps_costs_no_memory_and_wakes_on_time() -> None:
    rig = Rig(WIDE)
    serials = [rig.submit(20 * SECOND + nth) for nth in range(50)]
    rig.checkpoint()
    assert not rig.core.hot and not rig.core.stored_at
    rig.settle_down()
    while rig.now_ms < NOW_MS + 20 * SECOND - 1:
        wake_ms = rig.core.placement.next_wake()
        assert wake_ms is not None
        rig.pass_ms(min(wake_ms, NOW_MS + 20 * SECOND - 1) - rig.now_ms)
        rig.settle_down()
        assert rig.pop_all() == []
    rig.pass_ms(1)
    rig.settle_down()
    assert rig.pop_all() == [serials[0]]
    rig.pass_ms(49)
    rig.settle_down()
    assert rig.pop_all() == serials[1:]
    rig.checked()


def test_a_read_that_failed_is_wanted_again() -> None:
    rig = Rig(WIDE._replace(window_max=2))
    placement = rig.core.placement
    serials = [rig.submit() for _ in range(5)]
    rig.checkpoint()
    assert placement.want_sweep(rig.now_ms) is not None
    placement.sweep_lost()
    assert rig.begin_sweep() and rig.end_reads() == [True]
    rig.advance()
    asked = placement.want_loads()
    assert asked and placement.want_loads() == []
    placement.loads_lost(asked)
    assert placement.want_loads() == asked
    placement.loads_lost(asked)
    rig.settle_down()
    rig.checkpoint()
    assert rig.pop_all() == serials[:2]
    (ask,) = placement.want_refills(rig.now_ms)
    assert placement.want_refills(rig.now_ms) == []
    placement.refill_lost(ask.lane_number)
    assert placement.want_refills(rig.now_ms) == [ask]
    placement.refill_lost(ask.lane_number)
    rig.settle_down()
    assert rig.pop_all() == serials[2:4]


@pytest.mark.parametrize("read", ["load", "refill"])
def test_a_read_of_heads_that_a_completion_overtook_is_read_again(read: str) -> None:
    rig = Rig(WIDE._replace(window_max=2))
    serials = [rig.submit() for _ in range(4)]
    rig.checkpoint()
    assert rig.begin_sweep() and rig.end_reads() == [True]
    rig.advance()
    if read == "refill":
        rig.settle_down()
        rig.checkpoint()
        assert rig.pop_all() == serials[:2]
        assert rig.begin_refills()
    else:
        assert rig.begin_loads()
    assert not rig.core.placement.hold_completion
    for _ in range(2):
        rig.submit(HOUR)
        rig.checkpoint()
        assert rig.end_reads() == [False]
        assert rig.begin_refills() if read == "refill" else rig.begin_loads()
    assert rig.core.placement.hold_completion
    assert rig.end_reads() == [True]
    assert not rig.core.placement.hold_completion
    rig.checked()


def test_a_head_that_cannot_be_read_stops_no_other() -> None:
    rig = Rig(WIDE._replace(window_max=2))
    serials = [rig.submit() for _ in range(6)]
    rig.checkpoint()
    rig.store.damaged = {serials[0], serials[3]}
    done = run_all(rig)
    assert done == [serials[1], serials[2], serials[4], serials[5]]


def test_a_sweep_that_cannot_read_on_waits_for_the_next_checkpoint() -> None:
    rig = Rig(WIDE)
    rig.settle_down()
    placement = rig.core.placement
    rig.pass_ms(600)
    ask = placement.want_sweep(rig.now_ms)
    assert ask is not None
    assert placement.swept(Swept(0, [], ask.from_pos), rig.now_ms)
    assert placement.want_sweep(rig.now_ms) is None
    assert placement.next_wake() is None, "and nobody is woken to ask in vain"
    rig.checkpoint()
    assert placement.want_sweep(rig.now_ms) is not None


def test_an_advance_takes_no_more_timers_than_it_may_and_says_that_some_are_left() -> None:
    rig = Rig(WIDE)
    rig.settle_down()
    serials = [rig.submit(10) for _ in range(6)]
    rig.pass_ms(10)
    rig.advance(4)
    assert len(rig.core.placement.lanes.seats) == 4
    assert rig.core.placement.next_wake() == rig.now_ms
    rig.advance(4)
    assert rig.pop_all() == serials


def test_the_order_is_by_priority_then_first_due_then_serial() -> None:
    rig = Rig(WIDE)
    low = [rig.submit(5, task="a"), rig.submit(3, task="b"), rig.submit(5, task="b")]
    high = rig.submit(9, task="c", options=Options(priority=1))
    retried = rig.submit(0, task="d")
    rig.run(retried)
    rig.settle(retried, "transient", wait_ms=9)
    rig.pass_ms(10)
    rig.settle_down()
    assert rig.pop_all() == [high, retried, low[1], low[0], low[2]]


def test_a_held_lane_holds_no_other() -> None:
    rig = Rig()
    held = [rig.submit(task="held") for _ in range(30)]
    free = rig.submit(10, task="free")
    rig.pass_ms(10)
    for _ in range(20):
        rig.settle_down()
        rig.checkpoint()
        rig.checked()
    lane = next(lane for lane in rig.lanes() if lane.key[0] == "free")
    assert rig.pop(lane) == free
    assert len(rig.core.hot) <= SMALL.window_max + SMALL.wheel_max + 1
    rig.start(free)
    rig.settle(free)
    assert run_all(rig) == held


@pytest.mark.parametrize("checkpoints", [False, True])
def test_what_does_not_fit_into_the_windows_keeps_its_order(checkpoints: bool) -> None:
    rig = Rig(SMALL._replace(wheel_max=200, moves_max=200))
    serials = [rig.submit(nth, task="tu"[nth % 2]) for nth in range(40)]
    rig.pass_ms(50)
    rig.settle_down()
    if checkpoints:
        rig.checkpoint()
        assert rig.core.placement.lanes.total <= SMALL.windows_max
        assert len(rig.core.hot) <= SMALL.windows_max
    done = run_all(rig)
    assert [s for s in done if s in serials[::2]] == serials[::2]
    assert [s for s in done if s in serials[1::2]] == serials[1::2]


def test_an_older_ticket_that_comes_late_puts_a_younger_one_out() -> None:
    rig = Rig(WIDE._replace(window_max=2))
    old = rig.submit()
    rig.run(old)
    rig.settle(old, "transient", wait_ms=100)
    younger = [rig.submit() for _ in range(3)]
    rig.pass_ms(99)
    rig.settle_down()
    assert rig.core.placement.where(younger[1]) == "window"
    rig.pass_ms(1)
    rig.settle_down()
    assert rig.core.placement.where(younger[1]) == "spilled"
    rig.checked()
    rig.checkpoint()
    rig.checked()
    assert run_all(rig) == [old, *younger]


def test_heads_in_memory_are_bounded_and_the_first_lanes_have_them() -> None:
    rig = Rig(WIDE._replace(lanes_max=2))
    low = [rig.submit(nth, task=f"low-{nth}") for nth in range(3)]
    rig.pass_ms(10)
    rig.settle_down()
    assert [lane.key[0] for lane in rig.lanes()] == ["low-0", "low-1"]
    high = rig.submit(task="high", options=Options(priority=1))
    rig.settle_down()
    assert [lane.key[0] for lane in rig.lanes()] == ["high", "low-0"]
    rig.checkpoint()
    rig.checked()
    assert run_all(rig) == [high, *low]


def test_stale_timers_take_no_place_from_those_that_count() -> None:
    rig = Rig(SMALL)
    rig.settle_down()
    for _ in range(SMALL.wheel_max):
        serial = rig.submit(900)
        rig.advance()
        rig.do(Cancel(serial))
    sleeper = rig.submit(1_200)
    rig.checkpoint()
    rig.pass_ms(600)
    rig.settle_down()
    assert len(rig.core.placement.wheel) <= SMALL.wheel_max
    rig.pass_ms(600)
    rig.settle_down()
    assert rig.pop_all() == [sleeper]


def test_the_overlay_lets_go_of_what_has_been_parked() -> None:
    rig = Rig(WIDE)
    for _ in range(3):
        for _ in range(600):
            rig.core.apply(rig.draft(HOUR))
        rig.checkpoint()
    assert len(rig.core.placement.overlay) <= 1_024
    rig.core.placement.next_wake()
    assert rig.core.placement.next_timer() is None


def test_a_clock_set_back_a_little_starts_nothing_early() -> None:
    rig = Rig(WIDE)
    serials = [rig.submit(nth) for nth in range(5)]
    rig.pass_ms(10)
    rig.settle_down()
    rig.pass_ms(-8)
    assert rig.pop_all() == serials[:3]
    rig.checked()
    rig.pass_ms(2)
    rig.settle_down()
    assert rig.pop_all() == serials[3:]
    assert rig.core.placement.where(serials[4]) == "in hand"


def test_a_clock_set_far_back_and_forward_again_loses_nothing() -> None:
    rig = Rig(SMALL)
    serials = [rig.submit(nth * 300) for nth in range(30)]
    for step in (3 * SECOND, -HOUR, 500, HOUR, 9 * SECOND):
        rig.pass_ms(step)
        rig.settle_down()
        rig.check_nothing_due_is_forgotten()
        rig.checkpoint()
        rig.checked()
    assert run_all(rig) == serials


def test_a_ticket_given_back_before_its_due_waits_for_it() -> None:
    rig = Rig(WIDE)
    serial = rig.submit()
    rig.settle_down()
    assert rig.pop_all() == [serial]
    rig.pass_ms(-50)
    rig.core.placement.give_back(serial, rig.now_ms)
    rig.settle_down()
    assert rig.pop_all() == []
    rig.checked()
    rig.pass_ms(50)
    rig.settle_down()
    assert rig.pop_all() == [serial]


def test_giving_back_what_has_left_does_nothing() -> None:
    rig = Rig(WIDE)
    serial = rig.submit()
    rig.settle_down()
    assert rig.pop_all() == [serial]
    rig.do(Cancel(serial))
    rig.core.placement.give_back(serial, rig.now_ms)
    rig.core.placement.give_back(5, rig.now_ms)
    assert not rig.core.placement.lanes.seats
    rig.checked()


def test_a_ticket_in_hand_survives_a_checkpoint() -> None:
    rig = Rig(WIDE)
    serial = rig.submit()
    rig.settle_down()
    assert rig.pop_all() == [serial]
    rig.checkpoint()
    assert codes(rig.start(serial)) == ["started"]


def test_a_million_tickets_of_a_busy_key_wait_in_bounded_memory() -> None:
    bounds = SMALL._replace(wheel_max=30, aside_max=3, window_max=4, moves_max=50)
    rig = Rig(bounds)
    serials = [rig.submit(key="k") for _ in range(25)]
    rig.settle_down()
    assert rig.pop_all() == serials[:1]
    rig.start(serials[0])
    for _ in range(10):
        rig.settle_down()
        assert rig.pop_all() == []
        rig.checkpoint()
        rig.checked()
    assert len(rig.core.hot) <= 1 + bounds.aside_max + bounds.window_max
    rig.settle(serials[0])
    assert sorted(run_all(rig)) == serials[1:]


def test_a_refill_asked_from_an_edge_that_has_come_down_is_asked_again() -> None:
    rig = Rig()
    for _ in range(SMALL.window_max + 3):
        rig.submit()
    rig.settle_down()
    rig.checkpoint()
    rig.start(*[serial for serial in (rig.pop(rig.lanes()[0]) for _ in range(3)) if serial])
    placement = rig.core.placement
    (ask,) = placement.want_refills(rig.now_ms)
    # Before it is read, earlier ones fill the window, and what they push out gets rows.
    early = [rig.submit(-SECOND) for _ in range(SMALL.window_max + 2)]
    rig.advance()
    rig.checkpoint()
    result = rig.store.refill(ask)
    assert early[-1] not in {serial for _, serial in result.rows}
    assert not placement.refilled(result, rig.now_ms)
    rig.checked()
    rig.settle_down()
    rig.check_nothing_due_is_forgotten()


def test_a_checkpoint_without_records_overtakes_a_read_as_well() -> None:
    """It may have moved tickets into the rows of their lanes, and its LSN is the former one's."""
    rig = Rig()
    rig.submit(HOUR)
    rig.checkpoint()
    lsn = rig.store.lsn
    assert rig.begin_sweep()
    rig.checkpoint()
    assert rig.store.lsn == lsn
    assert rig.end_reads() == [False]
    assert rig.begin_sweep()
    assert rig.end_reads() == [True]


def test_a_full_set_of_moves_asks_for_a_checkpoint() -> None:
    bounds = SMALL._replace(wheel_max=50, sweep_limit=50, moves_max=5)
    rig = Rig(bounds)
    serials = [rig.submit() for _ in range(20)]
    rig.checkpoint()
    rig.settle_down()
    assert rig.core.placement.wants_checkpoint
    rig.checkpoint()
    assert not rig.core.placement.wants_checkpoint
    assert len(rig.store.rows) >= bounds.moves_max
    assert run_all(rig) == serials


def test_a_rescheduled_row_leaves_its_lane() -> None:
    rig = Rig(WIDE._replace(window_max=2))
    serials = [rig.submit() for _ in range(6)]
    rig.settle_down()
    rig.checkpoint()
    assert rig.store.rows
    rig.do(Reschedule(serials[5], rig.now_ms + HOUR))
    rig.checkpoint()
    rig.checked()
    assert run_all(rig) == serials[:5]
    rig.pass_ms(HOUR)
    assert run_all(rig) == serials[5:]


def test_a_move_whose_ticket_comes_in_while_it_is_written_is_moved_back() -> None:
    rig = Rig(WIDE._replace(window_max=2))
    serials = [rig.submit() for _ in range(4)]
    rig.checkpoint()
    rig.settle_down()
    assert serials[3] in rig.core.dirty.moves
    rig.cut()
    assert rig.core.adopt(rig.store.load([serials[3]]))
    rig.commit()
    rig.complete()
    rig.checked()
    rig.checkpoint()
    rig.checked()
    assert run_all(rig) == serials


def test_a_lane_with_tickets_keeps_its_number() -> None:
    rig = Rig(WIDE)
    for task in "abc":
        rig.submit(HOUR, task=task)
    rig.checkpoint()
    names = dict(rig.store.lane_names)
    assert sorted(names) == [1, 2, 3]
    rig.reopen()
    rig.submit(HOUR, task="d")
    rig.submit(HOUR, task="a")
    rig.checkpoint()
    assert {number: rig.store.lane_names[number] for number in names} == names
    assert sorted(rig.store.lane_names) == [1, 2, 3, 4]


def test_a_lane_without_tickets_gives_its_number_up_and_none_other_gets_it() -> None:
    rig = Rig(WIDE)
    serials = [rig.submit(HOUR, task=task) for task in "abc"]
    rig.checkpoint()
    rig.do(Cancel(serials[1]))
    rig.checkpoint()  # its entry goes
    assert sorted(rig.core.placement.lanes.names) == [1, 3]
    rig.checkpoint()  # and then its number
    assert sorted(rig.store.lane_names) == [1, 3]
    rig.submit(HOUR, task="b")
    rig.checkpoint()
    assert sorted(rig.store.lane_names) == [1, 3, 4]
    rig.checked()


def test_a_lane_number_that_was_given_up_before_a_crash_is_given_up_again() -> None:
    rig = Rig(WIDE)
    serial = rig.submit(HOUR, task="a")
    rig.checkpoint()
    rig.do(Cancel(serial))
    rig.checkpoint()
    assert sorted(rig.store.lane_names) == [1] and not rig.core.placement.lanes.names
    rig.reopen()
    assert sorted(rig.core.placement.lanes.names) == [1]
    rig.checkpoint()
    rig.checkpoint()
    assert not rig.store.lane_names
    rig.checked()


def test_a_lane_number_of_a_failed_commit_is_saved_by_the_next() -> None:
    rig = Rig(WIDE)
    rig.submit(HOUR)
    rig.cut()
    rig.fail_commit()
    rig.checkpoint()
    assert sorted(rig.store.lane_names) == [1]
    rig.checked()


def test_unused_lanes_are_forgotten() -> None:
    rig = Rig(WIDE)
    for nth in range(20):
        rig.submit(task=f"task-{nth}")
    run_all(rig)
    rig.checkpoint()
    assert not rig.core.placement.lanes.by_key
    assert not rig.lanes()


def test_people_are_told_where_a_ticket_waits_and_how_many_are_ready() -> None:
    rig = Rig(SMALL._replace(window_max=1))
    placement = rig.core.placement
    rig.settle_down()
    ready = [rig.submit() for _ in range(2)]
    near, far, asleep = rig.submit(400), rig.submit(HOUR), rig.submit(2 * HOUR)
    rig.advance()
    assert [placement.where(s) for s in ready] == ["window", "spilled"]
    assert (placement.where(near), placement.where(far)) == ("wheel", "overlay")
    assert placement.oldest_ready_ms() == rig.now_ms
    assert placement.ready_count == 2
    rig.checkpoint()
    assert placement.where(asleep) == "parked"
    assert placement.ready_count == 2
    run_all(rig)
    assert rig.core.by_task["t"][DONE] == 2
    assert rig.core.counters == {("t", PENDING): 3, ("t", DONE): 2}
    assert placement.oldest_ready_ms() is None


def test_bounds_of_the_product_are_those_of_the_architecture() -> None:
    assert Bounds() == Bounds(
        65_000,
        50_000,
        1_024,
        50_000,
        10_000,
        1_024,
        16_384,
        50_000,
        8 << 20,
        512,
        256_000,
        64,
        10_000,
        10_000,
        1_000,
        256,
        1_024,
        128,
        600_000,
    )


def test_a_lane_that_would_lose_its_head_at_once_is_not_refilled_in_vain() -> None:
    bounds = SMALL._replace(window_max=2, windows_max=100, wheel_max=100, lanes_max=1)
    rig = Rig(bounds)
    second = rig.submit(task="second")
    rig.settle_down()
    first = rig.submit(task="other")
    rig.do(Cancel(second))
    behind = rig.submit(task="second")
    rig.settle_down()
    rig.checkpoint()
    rig.settle_down()
    assert [lane.key[0] for lane in rig.lanes()] == ["other"]
    rig.checked()
    assert run_all(rig) == [first, behind]


def test_what_is_submitted_as_due_is_in_its_lane_at_once_and_needs_no_timer() -> None:
    rig = Rig(WIDE)
    rig.settle_down()
    placement = rig.core.placement
    serial, later = rig.submit(), rig.submit(1)
    assert placement.where(serial) == "window" and placement.where(later) == "wheel"
    assert list(placement.wheel.items()) == [(NOW_MS + 1, later)]
    rig.checked()
    placement.seats_at_once = False
    assert placement.where(rig.submit()) == "wheel"
    rig.checked()


def test_what_a_sweep_finds_due_needs_no_timer_behind_which_others_would_wait() -> None:
    rig = Rig(WIDE._replace(window_max=2))
    crowd = [rig.submit(HOUR) for _ in range(WIDE.sweep_limit)]
    rig.checkpoint()
    rig.reopen()
    rig.pass_ms(HOUR)
    assert rig.begin_sweep() and rig.end_reads() == [True]
    placement = rig.core.placement
    assert not len(placement.wheel) and not placement.near
    assert placement.load_queue[0] == crowd[0] and len(rig.core.dirty.moves) == len(crowd) - 2
    soon = rig.submit(10, task="u")
    rig.pass_ms(10)
    rig.advance(limit=1)
    assert placement.where(soon) == "window"
    rig.checked()


def test_who_is_met_before_its_due_has_a_timer_though_the_clock_had_been_further() -> None:
    rig = Rig(WIDE)
    rig.settle_down()
    serial = rig.submit()
    (lane,) = rig.lanes()
    assert rig.core.placement.take_head(lane, lane.window[0], NOW_MS - 1) is None
    assert rig.core.placement.where(serial) == "wheel"
    rig.checked()
    assert rig.advance() == [] and rig.pop_all() == [serial]
