"""Due tickets outside of their lane's window: what was submitted stands for them until they have a
row, the window takes them in, or somebody looks."""

from kit.rig import SMALL, Rig
from parkade.shard import CANCELLED, PENDING, UNREAD
from parkade.shard.commands import AllCreated, Cancel, Reschedule, Submit
from parkade.store.record import Options

HOUR = 3_600_000


def plain_serials(rig: Rig) -> list[int]:
    return [ticket.serial for ticket in rig.core.memory.plain_tickets()]


def full_rig(task: str = "t") -> tuple[Rig, list[int]]:
    """A shard whose lane of that task has its window full and one ticket outside."""
    rig = Rig(SMALL)
    serials = [rig.submit(task=task) for _ in range(SMALL.window_max + 1)]
    rig.settle_down()
    assert not plain_serials(rig)
    return rig, serials


def submit(rig: Rig, count: int, task: str = "t") -> list[int]:
    drafts = [rig.draft(task=task) for _ in range(count)]
    assert type(rig.do(Submit(drafts)).answers) is AllCreated
    return [draft.serial for draft in drafts]


def test_who_is_due_behind_a_full_window_is_left_as_it_was_submitted() -> None:
    rig, before = full_rig()
    ready = rig.core.placement.ready_count
    lined = submit(rig, 3)
    other = submit(rig, 1, task="u")
    assert plain_serials(rig) == lined and rig.core.hot.keys() == {*before, *other}
    assert rig.core.placement.ready_count == ready + 3 + 1
    assert rig.core.counters == {("t", PENDING): len(before) + 3, ("u", PENDING): 1}
    rig.checked()


def test_a_crowd_fills_the_window_and_the_rest_of_it_is_left_as_it_was_submitted() -> None:
    rig, other = Rig(SMALL), Rig(SMALL)
    for one in (rig, other):
        one.submit()
        one.settle_down()
    (first,) = rig.core.hot
    crowd = submit(rig, SMALL.window_max + 3)
    for _ in crowd:
        other.submit()
    room = SMALL.window_max - 1
    assert plain_serials(rig) == crowd[room:] and rig.core.hot.keys() == {first, *crowd[:room]}
    lane, like = (each.core.placement.lanes.by_key["t", None, 0] for each in (rig, other))
    assert (lane.window, lane.edge) == (like.window, like.edge)
    assert rig.core.placement.ready_count == other.core.placement.ready_count
    assert (rig.core.lsn, rig.core.counters) == (other.core.lsn, other.core.counters)
    rig.checked()
    taken: list[int] = []
    while rig.core.placement.ready_count > len(taken):
        taken += rig.pop_all()
        rig.settle_down()
        rig.checked()
    assert taken == [first, *crowd] and not plain_serials(rig)


def test_a_crowd_that_goes_before_whoever_waits_is_seated_before_them() -> None:
    rig = Rig(SMALL)
    rig.submit()
    rig.settle_down()
    (later,) = rig.core.hot
    drafts = [rig.draft(-60_000) for _ in range(4)]
    rig.do(Submit(drafts))
    rig.checked()
    rig.settle_down()
    taken = rig.pop_all()
    rig.settle_down()
    assert taken + rig.pop_all() == [*(draft.serial for draft in drafts), later]


def test_what_is_not_plain_is_a_ticket_behind_a_full_window_too() -> None:
    rig, _ = full_rig()
    drafts = [rig.draft(key="k"), rig.draft(options=Options(summary="s")), rig.draft(5)]
    rig.do(Submit(drafts))
    assert not plain_serials(rig)
    rig.checked()


def test_a_checkpoint_gives_them_rows_and_leaves_nothing_of_them_in_memory() -> None:
    rig, before = full_rig()
    lined = [*submit(rig, 2), *submit(rig, 2)]
    rig.checkpoint()
    assert not plain_serials(rig) and rig.core.hot.keys() == set(before[:-1])
    rows = [serial for _, _, serial in sorted(rig.store.rows)]
    assert rows == [before[-1], *lined] and rig.core.placement.ready_count == 9
    rig.checked()
    started = []
    for _ in range(3):
        rig.settle_down()
        started += rig.pop_all()
    assert started == [*before, *lined]


def test_the_window_takes_them_in_order_from_memory_and_from_rows() -> None:
    rig, before = full_rig()
    stored = submit(rig, 2)
    rig.cut()
    in_flight = submit(rig, 2)
    rig.commit()
    rig.complete()
    lined = submit(rig, 2)
    taken = []
    for _ in range(4):
        taken += rig.pop_all()
        rig.settle_down()
        rig.checked()
    assert taken == [*before, *stored, *in_flight, *lined]
    rig.checkpoint()
    rig.checked()


def test_one_that_changes_while_it_is_in_the_flight_is_changed_beside_it() -> None:
    rig, _ = full_rig()
    cancelled, moved, seen, left = submit(rig, 4)
    rig.cut()
    rig.do(Cancel(cancelled))
    rig.do(Reschedule(moved, rig.now_ms + HOUR))
    assert rig.head(seen).state == PENDING and rig.core.placement.where(seen) == "spilled"
    assert plain_serials(rig) == [left]
    rig.checked()
    rig.commit()
    rig.complete()
    assert rig.core.look(left) is UNREAD and rig.core.look(seen) is UNREAD
    rig.checked()
    rig.checkpoint()
    assert rig.store.view().heads[cancelled].state == CANCELLED
    assert {serial for _, _, serial in rig.store.rows} >= {seen, left}
    assert not {serial for _, _, serial in rig.store.rows} & {cancelled, moved}
    rig.checked()


def test_a_flight_may_outlive_the_lane_of_those_that_were_lined_up_in_it() -> None:
    rig, before = full_rig()
    in_flight = submit(rig, 2)
    rig.cut()
    taken = list[int]()
    while len(taken) < len(before) + len(in_flight):
        rig.settle_down()
        taken += rig.pop_all()
    assert taken == [*before, *in_flight]
    for serial in taken:
        rig.start(serial)
    rig.settle_down()
    rig.core.placement.lanes.drop_unused()
    assert not rig.core.placement.lanes.by_key, "nobody is in it"
    rig.commit()
    rig.complete()
    rig.checked()


def test_a_commit_that_fails_gives_them_back() -> None:
    rig, before = full_rig()
    serials = submit(rig, 4)
    rig.cut()
    rig.do(Cancel(serials[0]))
    newer = submit(rig, 1)
    rig.fail_commit()
    assert plain_serials(rig) == [*serials[1:], *newer]
    rig.checked()
    state = rig.state()
    rig.checkpoint()
    assert rig.state() == state
    rig.reopen()
    assert rig.state() == state
    rig.settle_down()
    assert rig.pop_all() == before[:4]


def test_a_sleeper_beside_them_is_still_looked_at_before_its_time() -> None:
    rig, _ = full_rig()
    sleeper = rig.submit(5_000)
    lined = submit(rig, 2)
    assert sorted(plain_serials(rig)) == sorted([sleeper, *lined])
    rig.now_ms += 6_000
    rig.settle_down()
    assert plain_serials(rig) == lined and rig.core.hot[sleeper].state == PENDING
    rig.checked()


def test_replay_comes_to_the_same() -> None:
    rig, before = full_rig()
    rig.checkpoint()
    serials = submit(rig, 3)
    rig.do(Cancel(serials[1]))
    state = rig.state()
    rig.reopen()
    assert rig.state() == state
    taken = []
    for _ in range(3):
        rig.settle_down()
        taken += rig.pop_all()
    assert taken == [*before, serials[0], serials[2]]
