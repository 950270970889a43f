"""The small parts: the table of states, arithmetic, names, history, timers of expiry."""

import pytest

from kit.rig import Rig
from parkade.shard import NEXT, STATES, attempts_of, decode_attempt, encode_attempt, unique_name
from parkade.shard.commands import UniqueRow
from parkade.shard.expiry import Expiries
from parkade.shard.history import AttemptRow, HistoryDamage
from parkade.shard.lanes import decode_lane, encode_lane
from parkade.shard.retry import DUE_MS_MAX, due_after, expiry_of, is_exhausted, is_late
from parkade.shard.states import DEAD, DONE, GONE, PENDING, RUNNING, STATE_NAMES
from parkade.shard.unique import ACTIVE, DURATION, HELD, KEPT, is_taken, row_after_end
from parkade.store.record import (
    RECORD_TYPES,
    ErrorText,
    Options,
    Released,
    Retried,
    Revived,
    Snoozed,
    Started,
)


def test_only_a_start_of_a_pending_ticket_leads_to_running() -> None:
    ways = {(a, record) for (a, record), to in NEXT.items() if to == RUNNING and a != RUNNING}
    assert ways == {(PENDING, Started)}


def test_there_are_four_ways_back_to_pending() -> None:
    ways = {record for (a, record), to in NEXT.items() if to == PENDING and a != PENDING}
    assert ways == {Retried, Snoozed, Released, Revived}


def test_what_has_ended_leads_nowhere_but_to_gone() -> None:
    for (state, _), to in NEXT.items():
        if state not in (PENDING, RUNNING, DEAD):
            assert to in (state, GONE)


def test_the_table_names_states_and_records_that_exist() -> None:
    assert {state for state, _ in NEXT} == set(STATES)
    assert {record for _, record in NEXT} <= set(RECORD_TYPES)
    assert set(NEXT.values()) <= {*STATES, GONE}
    assert len(STATE_NAMES) == len(STATES)


def test_a_due_stays_within_the_calendar() -> None:
    assert due_after(5, 10) == 15
    assert due_after(5, -10) == 5
    assert due_after(-5, 0) == 0
    assert due_after(5, 1 << 60) == DUE_MS_MAX


def test_a_budget_without_a_number_has_no_end() -> None:
    rig = Rig()
    serial = rig.submit()
    ticket = rig.head(serial)
    assert not is_exhausted(ticket, None) and not is_exhausted(ticket, -1)
    assert not is_late(ticket, None, DUE_MS_MAX) and not is_late(ticket, -1, DUE_MS_MAX)
    assert expiry_of(ticket) is None


def test_an_expiry_counts_from_the_first_due_and_ends_at_the_first_start() -> None:
    rig = Rig()
    serial = rig.submit(100, options=Options(expires_ms=50))
    assert expiry_of(rig.head(serial)) == rig.now_ms + 150
    rig.pass_ms(100)
    rig.run(serial)
    assert expiry_of(rig.head(serial)) is None


def test_names_that_are_cut_otherwise_are_other_names() -> None:
    names = [
        unique_name("ab", None, "c"),
        unique_name("a", None, "bc"),
        unique_name("a", "b", "c"),
        unique_name("a", "", "bc"),
        unique_name("a", "c", "b"),
    ]
    assert len(set(names)) == len(names)
    assert all(len(name) == 16 for name in names)


def test_a_name_is_the_same_in_every_process() -> None:
    assert unique_name("task", "key", "name").hex() == "32574523761d55a13c4fed2f61277cf5"


@pytest.mark.parametrize(
    ("mode", "until_ms", "after"), [(KEPT, HELD, 150), (ACTIVE, HELD, None), (DURATION, 70, 70)]
)
def test_an_end_leaves_a_name_as_its_submit_chose(
    mode: int, until_ms: int, after: int | None
) -> None:
    row = row_after_end(UniqueRow(1, 2, until_ms, mode, 50), 100)
    assert (None if row is None else row.until_ms) == after


def test_a_name_is_taken_until_its_time_and_not_at_it() -> None:
    assert not is_taken(None, 0)
    assert is_taken(UniqueRow(1, 2, HELD), 1 << 60)
    assert is_taken(UniqueRow(1, 2, 100), 99)
    assert not is_taken(UniqueRow(1, 2, 100), 100)


def test_a_row_of_history_comes_back_as_it_was() -> None:
    row = AttemptRow(2, 3, 100, 200, "error", ErrorText("E", "no", "trace"))
    assert decode_attempt(encode_attempt(row)) == row


@pytest.mark.parametrize("damage", [b"", b"\xc1", b"\x93\x01\x02\x03", b"\x96\x01\x02\x03\x04\x05"])
def test_a_row_of_history_that_is_none_is_damage(damage: bytes) -> None:
    with pytest.raises(HistoryDamage):
        decode_attempt(damage)


def test_attempts_come_from_the_head_where_there_is_no_row() -> None:
    rig = Rig()
    serial = rig.submit()
    assert attempts_of(rig.head(serial), []) == []
    rig.run(serial)
    started_ms = rig.now_ms
    assert attempts_of(rig.head(serial), []) == [AttemptRow(1, 1, started_ms, 0, "running")]
    rig.pass_ms(9)
    rig.settle(serial)
    assert rig.core.attempt_rows(serial) == [], "the head says it all"
    expected = AttemptRow(1, 1, started_ms, started_ms + 9, "done")
    assert attempts_of(rig.head(serial), []) == [expected]


def test_attempts_are_listed_by_fence_from_every_place_they_are_in() -> None:
    rig = Rig()
    serial = rig.submit()
    kinds = ["transient", "timeout", "snooze", "released", "lease", "done"]
    for nth, kind in enumerate(kinds):
        rig.run(serial)
        rig.settle(serial, kind, error=ErrorText("E", str(nth)))
        if nth == 1:
            rig.checkpoint()
        if nth == 3:
            rig.cut()
    assert rig.outcomes(serial) == ["error", "timeout", "snoozed", "released", "lost", "done"]
    rows = rig.core.attempt_rows(serial)
    assert [row.fence for row in rows] == [3, 4, 5, 6]
    assert [row.number for row in rows] == [3, 3, 3, 4]
    assert rig.core.attempt_rows(5) == []


def test_attempt_rows_are_found_among_few_for_a_ticket_of_many_fences() -> None:
    rig = Rig()
    serial = rig.submit()
    for _ in range(20):
        rig.run(serial)
        rig.settle(serial, "snooze")
    rig.checkpoint()
    rig.run(serial)
    rig.settle(serial, "failed")
    assert [row.fence for row in rig.core.attempt_rows(serial)] == [21]


def test_a_lane_comes_back_from_its_name() -> None:
    for lane in (("task", None, 0), ("t", "target", -3)):
        assert decode_lane(encode_lane(lane)) == lane


def test_the_latest_timer_of_a_ticket_is_the_one_that_fires() -> None:
    timers = Expiries()
    timers.arm(1, 100)
    timers.arm(1, 300)
    timers.arm(2, 200)
    timers.arm(2, 200)
    assert timers.next_ms() == 200
    assert timers.take_due(250, 10) == [2]
    assert timers.take_due(300, 10) == [1]
    assert timers.next_ms() is None


def test_a_disarmed_timer_does_not_fire_and_takes_no_room_for_ever() -> None:
    timers = Expiries()
    for serial in range(500):
        timers.arm(serial, 1_000 + serial)
        timers.disarm(serial)
    timers.arm(7, 5)
    assert len(timers.heap) < 200
    assert timers.take_due(10_000, 10) == [7]


def test_timers_fire_no_more_than_asked_for() -> None:
    timers = Expiries()
    for serial in range(5):
        timers.arm(serial, 10)
    assert timers.take_due(10, 2) == [0, 1]
    assert timers.take_due(10, 9) == [2, 3, 4]


def test_done_is_done_whatever_number_it_has() -> None:
    assert (DONE, DEAD) == (2, 3), "stored: a number keeps its meaning"
