"""Many at once: starts that are alike, and attempts that returned, are as if one by one."""

from typing import Any

import pytest

from kit.rig import SMALL, Rig
from parkade.shard import DONE, RUNNING, Bounds
from parkade.shard.commands import (
    AllSettled,
    AllStarted,
    Answer,
    Command,
    Outcome,
    Refusal,
    Settle,
    Start,
    StartAlike,
    StartItem,
)
from parkade.shard.crowd import first_ranks, plain_count, take_first
from parkade.shard.lane import RANK_MAX, SERIAL_MASK
from parkade.shard.lanes import IN_HAND
from parkade.store.record import Options, UniqueClaim

COUNT = 6


def rig_with(**odd: Any) -> tuple[Rig, list[int]]:
    """Tickets in hand, the third of which is odd."""
    rig = Rig(Bounds())
    serials = [rig.submit(**(odd if place == 2 else {})) for place in range(COUNT)]
    rig.settle_down()
    assert sorted(rig.pop_all()) == serials
    return rig, serials


def both(one: Rig, other: Rig, command: Command, again: Command) -> tuple[Any, Any]:
    """What two rigs answer, which then stand alike."""
    answers = one.do(command).answers, other.do(again).answers
    assert list(answers[0]) == list(answers[1])
    assert one.core.hot == other.core.hot and one.core.by_task == other.core.by_task
    assert one.core.dirty.bodies == other.core.dirty.bodies
    assert one.core.dirty.history == other.core.dirty.history
    assert one.core.dirty.size_bytes == other.core.dirty.size_bytes
    assert (one.core.lsn, one.core.running) == (other.core.lsn, other.core.running)
    one.checked()
    return answers


def test_starts_that_are_alike_are_one_record_and_like_each_by_itself() -> None:
    (rig, serials), (other, _) = rig_with(), rig_with()
    one_by_one = Start([StartItem(serial, 3) for serial in serials])
    answers, _ = both(rig, other, StartAlike(serials, 3), one_by_one)
    assert type(answers) is AllStarted and [answer.fence for answer in answers] == [1] * COUNT
    assert answers[-1] == Answer("started", serials[-1], 7, 1) and len(answers[1:3]) == 2
    assert rig.core.running == set(serials)


@pytest.mark.parametrize(
    "odd", [{"key": "k"}, {"options": Options(max_attempts=1)}, {"unique": UniqueClaim("u", 0)}]
)
def test_one_that_is_not_like_the_others_is_started_like_them(odd: dict[str, Any]) -> None:
    (rig, serials), (other, _) = rig_with(**odd), rig_with(**odd)
    starts = [StartItem(serial) for serial in serials]
    both(rig, other, StartAlike(serials), Start(starts))
    assert rig.core.running == set(serials)


def test_one_that_may_not_start_is_refused_and_the_others_start() -> None:
    rig, serials = rig_with()
    rig.start(serials[2])
    answers = rig.do(StartAlike([*serials, serials[0]])).answers
    refused = [(a.code, a.serial) for a in answers if isinstance(a, Refusal)]
    assert refused == [("not_pending", serials[2]), ("not_pending", serials[0])]
    assert rig.core.running == set(serials)
    assert [rig.head(serial).fence for serial in serials] == [1] * COUNT


def test_where_there_is_no_room_none_of_a_crowd_starts() -> None:
    rig, serials = rig_with()
    rig.core.has_room = False
    answers = rig.do(StartAlike(serials)).answers
    assert {a.code for a in answers} == {"full"} and not rig.core.running


def test_one_whose_attempts_are_spent_dies_of_it_and_the_others_start() -> None:
    rig, serials = rig_with()
    rig.core.hot[serials[1]].attempts = 3
    codes = [a.code for a in rig.do(StartAlike(serials, 3)).answers]
    assert codes.count("started") == COUNT - 1 and codes[1] == "exhausted"


ODD_ENDS: list[dict[str, Any]] = [
    {},
    {"key": "k"},
    {"unique": UniqueClaim("u", 0)},
    {"options": Options(expires_ms=1_000)},
]


@pytest.mark.parametrize("odd", ODD_ENDS)
@pytest.mark.parametrize("is_cut", [False, True])
def test_attempts_that_returned_end_together_as_they_end_one_by_one(
    odd: dict[str, Any], is_cut: bool
) -> None:
    rigs = []
    for _ in range(2):
        rig, serials = rig_with(**odd)
        rig.start(*serials)
        if is_cut:
            rig.cut()
        rigs.append(rig)
    outcomes = [Outcome(serial, 1, "done", b"%d" % serial) for serial in serials]
    answers = rigs[0].do(Settle(outcomes)).answers
    assert type(answers) is AllSettled and answers[0] == Answer("settled", serials[0], 7, 1)
    for outcome in outcomes:
        (answer,) = rigs[1].do(Settle([outcome])).answers
        assert answer.code == "settled"
    first, second = rigs[0].core, rigs[1].core
    assert first.hot == second.hot and first.by_task == second.by_task
    assert first.dirty.bodies == second.dirty.bodies and first.lsn == second.lsn
    assert first.dirty.size_bytes == second.dirty.size_bytes
    assert {ticket.state for ticket in first.hot.values()} == {DONE} and not first.running
    rigs[0].checked()


def test_an_end_that_is_told_twice_or_late_leaves_the_others_to_themselves() -> None:
    rig, serials = rig_with()
    rig.start(*serials)
    outcomes = [Outcome(serial, 1, "done") for serial in serials]
    answers = rig.do(Settle([*outcomes, outcomes[0], Outcome(serials[1], 7, "done")])).answers
    assert [type(answer) for answer in answers] == [Answer] * COUNT + [Refusal] * 2
    assert rig.core.refused_outcomes == 2 and not rig.core.running


def test_plain_tickets_are_taken_up_to_the_first_of_which_there_is_more_to_say() -> None:
    rig = Rig(SMALL)
    plain = [rig.submit(), rig.submit()]
    keyed = rig.submit(key="k")
    last = rig.submit()
    rig.settle_down()
    (lane,) = rig.core.placement.heads()
    lanes, window = rig.core.placement.lanes, list(lane.window)
    assert [rank & SERIAL_MASK for rank in window] == [*plain, keyed, last]
    assert first_ranks(lane, 9, RANK_MAX) == window
    assert first_ranks(lane, 1, RANK_MAX) == window[:1]
    assert first_ranks(lane, 9, window[1]) == window[:1]
    assert first_ranks(lane, 9, window[0]) == first_ranks(lane, 0, RANK_MAX) == []
    assert plain_count([(rank, lanes) for rank in window], rig.now_ms) == 2
    assert plain_count([(rank, lanes) for rank in window[:1]], rig.now_ms) == 1
    assert plain_count([(window[0], lanes)], rig.now_ms - 86_400_000) == 0
    take_first(lanes, lane, 2)
    assert [lanes.seats[serial] for serial in plain] == [IN_HAND] * 2
    assert lane.window == window[2:] and lanes.total == 2 and lane in lanes.changed
    rig.checked()
    assert rig.start(*plain)[0].code == "started"
    assert [rig.head(serial).state for serial in plain] == [RUNNING] * 2
    rig.checked()
