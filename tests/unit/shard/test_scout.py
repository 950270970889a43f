"""Who is due behind a crowd is found before the sweep comes there."""

from kit.rig import SMALL, Rig
from parkade.shard import UNREAD, Bounds
from parkade.shard.commands import Reschedule
from parkade.shard.lane import SERIAL_BITS
from parkade.shard.scout import PAUSE_MS, full_lanes

CROWD = 60
DUE_MS = 10_000
BOUNDS = SMALL._replace(scout_max=3, scouted_max=4)


def behind_a_crowd(
    *delays: int, task: str = "other", key: str | None = None, bounds: Bounds = BOUNDS
) -> tuple[Rig, list[int]]:
    """A shard that is opened at the crowd's time, and the tickets of another task that are due so
    long after it. All are parked; no checkpoint is made, so the sweep gets nowhere."""
    rig = Rig(bounds)
    for _ in range(CROWD):
        rig.submit(DUE_MS)
    others = [rig.submit(DUE_MS + delay, task=task, key=key) for delay in delays]
    rig.checkpoint()
    rig.reopen()
    rig.pass_ms(DUE_MS + 1)
    rig.settle_down()
    rig.checked()
    assert rig.core.placement.wants_checkpoint
    return rig, others


def test_who_is_due_behind_a_crowd_does_not_wait_for_its_sweep() -> None:
    rig, (first, second) = behind_a_crowd(0, 1)
    placement = rig.core.placement
    assert placement.horizon & (1 << SERIAL_BITS) - 1 < first, "the sweep is not there yet"
    taken = rig.pop_all()
    assert set(taken) >= {first, second}
    assert len(taken) <= 2 + BOUNDS.window_max


def test_who_is_due_a_little_later_waits_in_memory_for_its_time() -> None:
    rig, (soon,) = behind_a_crowd(200)
    placement = rig.core.placement
    assert placement.where(soon) == "overlay" and rig.core.is_clean(soon)
    rig.checkpoint()  # of moves: the sweep goes on, and is stopped by the next ones
    rig.settle_down()
    assert placement.horizon < (rig.now_ms << SERIAL_BITS) and soon in rig.core.hot
    rig.pass_ms(200)
    rig.settle_down()
    assert soon in rig.pop_all()
    rig.checked()


def test_who_is_due_much_later_is_not_read() -> None:
    rig, (later,) = behind_a_crowd(DUE_MS)
    assert rig.core.look(later) is UNREAD


def test_what_is_found_is_bounded_and_the_first_ones_are() -> None:
    rig, others = behind_a_crowd(*range(100, 110))
    assert [serial for serial in others if serial in rig.core.hot] == others[:4]
    rig.pass_ms(101)
    rig.settle_down()
    assert set(rig.pop_all()) & set(others) == set(others[:3])
    for serial in others[:3]:
        rig.start(serial)
        rig.settle(serial)
    rig.pass_ms(PAUSE_MS)
    rig.settle_down()
    assert set(rig.pop_all()) >= set(others[3:7]), "those that have begun make room"


def test_the_tickets_of_the_crowd_are_left_to_the_sweep() -> None:
    rig, _ = behind_a_crowd(0)
    assert len([t for t in rig.core.hot.values() if t.task == "t"]) <= BOUNDS.window_max
    assert full_lanes(rig.core.placement.lanes) == {rig.core.placement.lanes.numbers["t", None, 0]}


def test_one_with_a_key_is_left_to_the_sweep_for_an_older_one_may_be_in_the_crowd() -> None:
    rig, (keyed,) = behind_a_crowd(0, key="k")
    assert rig.core.look(keyed) is UNREAD
    rig.pass_ms(PAUSE_MS)
    rig.settle_down()
    assert rig.core.placement.where(keyed) == "parked", "and is not read again and again"


def test_without_a_crowd_nothing_is_looked_through() -> None:
    rig = Rig(BOUNDS)
    rig.submit(DUE_MS)
    rig.checkpoint()
    rig.reopen()
    rig.pass_ms(DUE_MS)
    assert rig.core.placement.horizon < 0 and not rig.begin_scout()


def test_a_look_is_made_once_a_commit_and_again_after_a_pause() -> None:
    rig, _ = behind_a_crowd(0)
    assert not rig.begin_scout()
    rig.pass_ms(PAUSE_MS + 100)
    assert rig.begin_scout() and not rig.begin_scout(), "one at a time"
    assert rig.end_reads() == [True]
    assert not rig.begin_scout()
    rig.checkpoint()
    assert rig.begin_scout()


def test_a_look_that_a_completion_overtook_is_made_again() -> None:
    rig, _ = behind_a_crowd(0)
    rig.pass_ms(PAUSE_MS + 100)
    assert rig.begin_scout()
    rig.checkpoint()
    assert rig.end_reads() == [False]
    assert rig.begin_scout() and rig.end_reads() == [True]


def test_who_was_found_leaves_memory_when_it_is_put_off_for_long() -> None:
    rig, (soon,) = behind_a_crowd(200)
    rig.do(Reschedule(soon, rig.now_ms + 100 * DUE_MS))
    for _ in range(2 * CROWD // BOUNDS.moves_max):
        rig.checkpoint()
        rig.settle_down()
        for serial in rig.pop_all():
            rig.start(serial)
            rig.settle(serial)
    rig.checkpoint()
    assert rig.core.look(soon) is UNREAD
    assert not rig.core.placement.scout.found
    rig.checked()
