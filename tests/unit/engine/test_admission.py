"""Who may start: places dealt to the lanes of all shards, the best first, and exactly."""

from typing import Any

import pytest

from kit.rig import NOW_MS, SMALL, Rig
from parkade.admission import Admission
from parkade.guards import Guards, Pause, Permit
from parkade.limits import START_BATCH_MAX, STARTS_IN_A_ROW_MAX
from parkade.shard import Bounds, Placement
from parkade.shard.commands import Cancel
from parkade.store.record import Options


class ShardOf:
    """A shard as admission sees it, over a rig."""

    def __init__(self, number: int, bounds: Bounds | None = None) -> None:
        self.number = number
        self.rig = Rig(bounds or Bounds())

    @property
    def placement(self) -> Placement:
        return self.rig.core.placement


class Kinds:
    def __init__(self, **kinds: str) -> None:
        self._kinds = kinds

    def kinds(self) -> dict[str, str]:
        return self._kinds


def setting(shards: int = 2, threads: int = 2, loops: int = 2) -> tuple[list[ShardOf], Admission]:
    places = {"thread": threads, "loop": loops}
    admission = Admission(places, Kinds(plain="thread", other="thread", coroutine="loop"))
    return [ShardOf(number) for number in range(shards)], admission


def take(admission: Admission, shards: list[ShardOf]) -> list[Permit]:
    for shard in shards:
        shard.rig.settle_down()
    return list(admission.take(shards, NOW_MS))


def test_the_oldest_of_all_shards_go_first_while_there_are_places() -> None:
    shards, admission = setting(threads=3)
    serials: dict[int, list[int]] = {0: [], 1: []}
    for step in range(4):
        for shard in shards:
            shard.rig.last_serial = (NOW_MS << 20) + 10 * step + shard.number
            serials[shard.number].append(shard.rig.submit(task="plain"))
    picks = take(admission, shards)
    assert [(pick.shard, pick.serial) for pick in picks] == [
        (0, serials[0][0]), (1, serials[1][0]), (0, serials[0][1]),
    ]  # fmt: skip
    assert admission.used == {"thread": 3, "loop": 0}
    assert take(admission, shards) == []
    admission.release(picks[0], NOW_MS)
    assert [pick.serial for pick in take(admission, shards)] == [serials[1][1]]


def test_a_lane_without_a_place_or_a_handler_holds_no_other() -> None:
    shards, admission = setting(shards=1, threads=1, loops=1)
    rig = shards[0].rig
    for task in ("nobody", "plain", "plain", "coroutine", "coroutine"):
        rig.submit(task=task)
    assert [pick.kind for pick in take(admission, shards)] == ["thread", "loop"]
    assert not admission.has_places
    assert take(admission, shards) == []


def test_where_nothing_has_changed_there_is_nothing_to_look_at() -> None:
    shards, admission = setting(threads=1)
    rig = shards[0].rig

    def may_take(now_ms: int = NOW_MS, settled_ms: int = NOW_MS) -> bool:
        return admission.may_take(shards, now_ms, now_ms, settled_ms)

    assert may_take(), "it has not looked at them yet"
    assert take(admission, shards) == [] and not may_take()
    assert may_take(settled_ms=NOW_MS - 1), "what is held because of the clocks"
    rig.submit(task="plain")
    assert may_take()
    (pick,) = take(admission, shards)
    assert not may_take(), "no place is free"
    admission.release(pick, NOW_MS)
    assert not may_take(), "nobody waits for that one"
    rig.submit(task="plain")
    rig.submit(task="plain")
    (pick,) = take(admission, shards)
    admission.release(pick, NOW_MS)
    assert may_take(), "somebody does"
    (pick,) = take(admission, shards)
    admission.release(pick, NOW_MS)
    assert take(admission, shards) == []
    admission.guards.pauses["task:plain"] = Pause(NOW_MS + 5, "")
    rig.submit(task="plain")
    assert take(admission, shards) == [] and may_take(), "it is held until a time"


def test_places_are_given_back_exactly() -> None:
    shards, admission = setting(shards=1, threads=1)
    rig = shards[0].rig
    serials = [rig.submit(task="plain") for _ in range(3)]
    for serial in serials:
        (pick,) = take(admission, shards)
        assert (pick.shard, pick.serial, pick.kind) == (0, serial, "thread")
        assert rig.start(serial)[0].code == "started"
        rig.settle(serial)
        admission.release(pick, NOW_MS)
    assert admission.used == {"thread": 0, "loop": 0}


def make_suspects(shard: ShardOf, *serials: int) -> None:
    for serial in serials:
        shard.rig.core.hot[serial].is_suspect = True


def test_one_suspect_runs_at_a_time_over_all_shards_and_holds_nobody_else() -> None:
    shards, admission = setting(threads=10)
    suspects = [[shard.rig.submit(task="plain") for _ in range(2)] for shard in shards]
    for shard, pair in zip(shards, suspects, strict=True):
        make_suspects(shard, *pair)
    others = [shard.rig.submit(task="other") for shard in shards]
    picks = take(admission, shards)
    assert len(picks) == 3
    assert {pick.serial for pick in picks} >= set(others)
    (running,) = [pick for pick in picks if pick.serial not in others]
    met = []
    while True:
        assert admission.suspect_running == (running.shard, running.serial)
        met.append(running.serial)
        shard = shards[running.shard]
        assert shard.rig.start(running.serial)[0].code == "started"
        shard.rig.settle(running.serial)
        admission.release(running, NOW_MS)
        following = take(admission, shards)
        if not following:
            break
        (running,) = following
    assert sorted(met) == sorted(suspects[0] + suspects[1])


def test_a_shard_that_is_gone_takes_its_held_suspects_with_it() -> None:
    shards, admission = setting(threads=10)
    for shard in shards:
        make_suspects(shard, shard.rig.submit(task="plain"))
    (pick,) = take(admission, shards)
    admission.shard_is_gone(1 - pick.shard)
    admission.release(pick, NOW_MS)
    assert admission.suspect_running is None
    assert take(admission, [shards[pick.shard]]) == []


def test_a_round_gives_no_more_than_a_batch() -> None:
    shards, admission = setting(shards=1, threads=10_000)
    rig = shards[0].rig
    for _ in range(START_BATCH_MAX + 10):
        rig.submit(task="plain")
    assert len(take(admission, shards)) == START_BATCH_MAX
    assert len(take(admission, shards)) == 10


def test_who_is_due_after_a_crowd_waits_for_a_row_of_it_and_not_for_all() -> None:
    shards, admission = setting(shards=1, threads=3 * STARTS_IN_A_ROW_MAX)
    rig = shards[0].rig
    crowd = [rig.submit(task="plain") for _ in range(4 * STARTS_IN_A_ROW_MAX)]
    others = [rig.submit(task="other") for _ in range(2)]
    serials = [pick.serial for pick in take(admission, shards)]
    row = STARTS_IN_A_ROW_MAX
    assert serials[row] == others[0]
    assert serials[2 * row + 1] == others[1]
    in_order = [serial for serial in serials if serial not in others]
    assert in_order == crowd[: 3 * row - 2]


def test_a_crowd_goes_on_where_those_behind_it_have_less_priority() -> None:
    shards, admission = setting(shards=1, threads=2 * STARTS_IN_A_ROW_MAX)
    rig = shards[0].rig
    crowd = [rig.submit(task="plain") for _ in range(2 * STARTS_IN_A_ROW_MAX)]
    rig.submit(task="other", options=Options(priority=-1))
    assert [pick.serial for pick in take(admission, shards)] == crowd


def test_a_lane_that_was_empty_for_a_while_is_one_lane_of_its_crowd() -> None:
    shards, admission = setting(threads=1)
    older, other = shards[0].rig, shards[1].rig
    older.submit(task="plain")
    assert len(take(admission, shards)) == 1
    waiting = [older.submit(task="plain")]
    other.last_serial = older.last_serial
    gone = other.submit(task="plain")
    assert take(admission, shards) == []
    other.do(Cancel(gone))
    assert take(admission, shards) == []
    waiting += [other.submit(task="plain") for _ in range(8)]
    admission.places["thread"] = 6
    assert [pick.serial for pick in take(admission, shards)] == waiting[:5]
    admission.places["thread"], admission.is_stirred = 30, True
    assert [pick.serial for pick in take(admission, shards)] == waiting[5:]
    for shard in shards:
        shard.rig.checked()


def test_a_round_looks_at_what_has_changed_and_not_at_every_lane(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    shards = [ShardOf(0), ShardOf(1)]
    tasks = {f"t{number}": "thread" for number in range(300)}
    admission = Admission({"thread": 3, "loop": 9}, Kinds(**tasks))
    for shard in shards:
        for number in range(300):
            shard.rig.submit(task=f"t{number}")
    picks = take(admission, shards)
    assert len(picks) == 3
    looked = 0

    def counted(guards: Guards, *args: Any, hold: Any = Guards.task_hold) -> Any:
        nonlocal looked
        looked += 1
        return hold(guards, *args)

    monkeypatch.setattr(Guards, "task_hold", counted)
    for pick in picks:
        assert shards[pick.shard].rig.start(pick.serial)[0].code == "started"
        admission.release(pick, NOW_MS)
    assert len(list(admission.take(shards, NOW_MS))) == 3
    assert 0 < looked <= 3 + len(shards)


def test_where_nothing_that_is_registered_has_a_place_no_lane_is_looked_at(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    admission = Admission({"thread": 1, "loop": 9}, Kinds(plain="thread"))
    shards = [ShardOf(0)]
    for _ in range(2):
        shards[0].rig.submit(task="plain")
    [pick] = take(admission, shards)
    assert admission.has_places

    def refuse(*_: Any) -> Any:
        raise AssertionError("nobody may start")

    with monkeypatch.context() as patch:
        patch.setattr(Placement, "take_head", refuse)
        patch.setattr(Guards, "task_hold", refuse)
        assert list(admission.take(shards, NOW_MS)) == []
    admission.release(pick, NOW_MS)
    assert len(take(admission, shards)) == 1


def held_setting(bounds: Bounds) -> tuple[ShardOf, Admission]:
    """A shard under small bounds; every target but None is paused."""
    shard = ShardOf(0, bounds)
    admission = Admission({"thread": 1}, Kinds(plain="thread", other="thread"))
    for number in range(9):
        admission.guards.pauses[f"target:t{number}"] = Pause()
    return shard, admission


def hold(shard: ShardOf, admission: Admission, targets: int, each: int) -> None:
    for _ in range(each):
        for number in range(targets):
            shard.rig.submit(task="plain", options=Options(target=f"t{number}"))
        assert take(admission, [shard]) == []


def test_more_held_lanes_than_have_a_head_keep_none_that_may_start_from_its_own() -> None:
    shard, admission = held_setting(SMALL._replace(wheel_max=50))
    hold(shard, admission, targets=9, each=2)
    rig = shard.rig
    free = [rig.submit(task="other") for _ in range(3)]
    for serial in free:
        (pick,) = take(admission, [shard])
        assert pick.serial == serial
        assert rig.start(serial)[0].code == "started"
        rig.settle(serial)
        admission.release(pick, NOW_MS)
        rig.checked()
    del admission.guards.pauses["target:t3"]
    admission.wake("pause", "target:t3")
    started = 0
    while picks := take(admission, [shard]):
        for pick in picks:
            assert rig.core.hot[pick.serial].target == "t3"
            started += rig.start(pick.serial)[0].code == "started"
            rig.settle(pick.serial)
            admission.release(pick, NOW_MS)
    assert started == 2
    rig.checked()


def test_a_lane_that_comes_under_hold_has_its_shard_look_for_those_that_may_start() -> None:
    shard, admission = held_setting(SMALL._replace(lanes_max=2, wheel_max=50))
    pauses = dict(admission.guards.pauses)
    admission.guards.pauses.clear()
    rig = shard.rig
    first = rig.submit(task="plain", options=Options(target="t0"))
    for target in ("t0", "t1"):
        rig.submit(task="plain", options=Options(target=target))
    free = rig.submit(task="other")
    (pick,) = take(admission, [shard])
    assert pick.serial == first
    assert rig.start(first)[0].code == "started"
    rig.settle(first)
    admission.guards.pauses.update(pauses)
    admission.release(pick, NOW_MS)
    admission.thinned.clear()
    assert list(admission.take([shard], NOW_MS)) == []
    assert admission.thinned == {shard.number}, "or it would be asked when time has passed"
    (pick,) = take(admission, [shard])
    assert pick.serial == free


def test_windows_full_of_held_tickets_give_way_to_those_that_may_start() -> None:
    shard, admission = held_setting(SMALL._replace(lanes_max=50, wheel_max=50))
    hold(shard, admission, targets=4, each=6)
    rig = shard.rig
    lanes = rig.core.placement.lanes
    assert lanes.total >= SMALL.windows_max
    for _ in range(3):
        rig.submit(task="other")
    shard.rig.settle_down()
    assert len(lanes.by_key["other", None, 0].window) >= 2
    assert lanes.total <= SMALL.windows_max + 4
    rig.checked()


def test_to_know_that_a_lane_is_held_no_plan_is_made(monkeypatch: pytest.MonkeyPatch) -> None:
    """It is asked of every low lane in each pass, and there may be more targets than plans."""
    shards, admission = setting(shards=1)
    monkeypatch.setattr("parkade.guards.PLANS_MAX", 4)
    admission.guards.pauses["task:plain"] = Pause()
    for number in range(10):
        shards[0].rig.submit(task="plain", options=Options(target=f"t{number}"))
    assert take(admission, shards) == []
    monkeypatch.setattr(Guards, "_made", lambda *_: pytest.fail("a plan was made"))
    lanes = [("plain", f"t{number}", 0) for number in range(12)]
    assert all(admission.is_held(lane) for lane in lanes)
    assert not admission.is_held(("other", "t1", 0))


def test_who_comes_alone_is_taken_as_among_others() -> None:
    shards, admission = setting(threads=2)
    shards[0].rig.submit(task="plain")
    (first,) = take(admission, shards)  # the task is met, and is ranked
    assert take(admission, shards) == [] and not admission.is_stirred
    alone = shards[1].rig.submit(task="plain")
    (pick,) = take(admission, shards)
    assert (pick.shard, pick.serial, pick.kind, pick.is_plain) == (1, alone, "thread", True)
    assert admission.used == {"thread": 2, "loop": 0}
    waiting = shards[0].rig.submit(task="plain")
    assert take(admission, shards) == []
    admission.release(pick, NOW_MS)
    assert [each.serial for each in take(admission, shards)] == [waiting]
    admission.release(first, NOW_MS)
    assert admission.used == {"thread": 1, "loop": 0}


@pytest.mark.parametrize("hold", ["pause", "place", "handler", "suspect", "key"])
def test_who_comes_alone_is_held_by_what_holds_others(hold: str) -> None:
    shards, admission = setting(shards=1, threads=1)
    rig = shards[0].rig
    rig.submit(task="plain")
    (first,) = take(admission, shards)
    if hold != "place":
        admission.release(first, NOW_MS)
    assert take(admission, shards) == [] and not admission.is_stirred
    if hold == "pause":
        admission.guards.set_pause("task:plain", Pause(None), NOW_MS)
    task = "nobody" if hold == "handler" else "plain"
    key = "k" if hold == "key" else None
    serial = rig.submit(task=task, key=key)
    if hold == "suspect":
        rig.core.hot[serial].is_suspect = True
        admission.suspect_running = (0, first.serial)
    if hold == "key":
        (pick,) = take(admission, shards)
        assert pick.serial == serial and not pick.is_plain
        rig.submit(task=task, key=key)
    assert take(admission, shards) == []


def test_who_comes_alone_and_is_due_later_by_now_has_its_shard_look_when() -> None:
    shards, admission = setting(threads=2)
    shards[0].rig.submit(task="plain")
    take(admission, shards)  # the task is met, and is ranked
    assert take(admission, shards) == [] and not admission.is_stirred
    shards[1].rig.submit(task="plain")
    shards[1].rig.settle_down()
    assert list(admission.take(shards, NOW_MS - 5_000)) == [], "the clock was set back"
    assert admission.thinned == {1}
