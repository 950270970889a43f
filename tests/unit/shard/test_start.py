"""Before a start: docs/semantics.md, Before a start, Suspects, and Limits, keys, order."""

import pytest

from kit.rig import Rig, codes
from parkade.shard import DEAD, EXPIRED, PENDING, RUNNING
from parkade.shard.commands import Answer, Cancel, Refusal, Start, StartItem
from parkade.store.record import Buried, Expired, Options, Started

HOUR = 3_600_000


def in_hand(rig: Rig, **more: object) -> int:
    serial = rig.submit(**more)  # type: ignore[arg-type]
    rig.settle_down()
    assert serial in rig.pop_all()
    return serial


def test_a_start_spends_an_attempt_and_counts_a_fence() -> None:
    rig = Rig()
    serial = in_hand(rig)
    rig.pass_ms(5)
    assert rig.start(serial, on_crash=1) == [Answer("started", serial, 7, 1)]
    ticket = rig.head(serial)
    assert (ticket.state, ticket.attempts, ticket.fence) == (RUNNING, 1, 1)
    assert (ticket.started_ms, ticket.on_crash) == (rig.now_ms, 1)
    assert rig.core.running == {serial}
    rig.checked()


def test_one_record_starts_all_that_lose_their_attempt_in_the_same_way() -> None:
    rig = Rig()
    serials = [rig.submit() for _ in range(4)]
    rig.settle_down()
    assert rig.pop_all() == serials
    items = [StartItem(serial, on_crash=nth % 2) for nth, serial in enumerate(serials)]
    verdict = rig.do(Start(items))
    assert verdict.records == [
        Started([serials[0], serials[2]], rig.now_ms, 0),
        Started([serials[1], serials[3]], rig.now_ms, 1),
    ]
    assert [answer.serial for answer in verdict.answers] == serials


def test_what_may_not_start_says_why_and_the_others_start() -> None:
    rig = Rig()
    good, cancelled = in_hand(rig), in_hand(rig)
    future = rig.submit(HOUR)
    rig.do(Cancel(cancelled))
    verdict = rig.do(Start([StartItem(s) for s in (cancelled, 5, future, good, good)]))
    expected = ["not_pending", "gone", "not_due", "started", "not_pending"]
    assert codes(verdict.answers) == expected
    rig.checked()


def test_expired_comes_before_late_and_late_before_exhausted() -> None:
    options = Options(expires_ms=50, max_elapsed_ms=50, max_attempts=0)
    rig = Rig()
    serial = in_hand(rig, options=options)
    rig.pass_ms(50)
    verdict = rig.do(Start([StartItem(serial)]))
    assert verdict.records == [Expired(serial, rig.now_ms)]
    assert verdict.answers == [Refusal("expired", serial)]
    assert rig.head(serial).state == EXPIRED
    serial = in_hand(rig, options=Options(max_elapsed_ms=50, max_attempts=0))
    rig.pass_ms(50)
    verdict = rig.do(Start([StartItem(serial)]))
    assert verdict.records == [Buried(serial, -1, rig.now_ms, "late")]
    serial = in_hand(rig, options=Options(max_attempts=0))
    verdict = rig.do(Start([StartItem(serial)]))
    assert verdict.records == [Buried(serial, -1, rig.now_ms, "exhausted")]
    ticket = rig.head(serial)
    assert (ticket.state, ticket.why, ticket.fence) == (DEAD, "exhausted", 0)
    rig.checked()


def test_the_ends_come_before_the_starts_among_the_records() -> None:
    rig = Rig()
    good, bad = in_hand(rig), in_hand(rig, options=Options(max_attempts=0))
    verdict = rig.do(Start([StartItem(good), StartItem(bad)]))
    assert [type(record) for record in verdict.records] == [Buried, Started]


@pytest.mark.parametrize(
    ("own", "policy", "starts"),
    [
        (None, 0, False),
        (None, 1, True),
        (5, 0, True),
        (0, 5, False),
        (-1, 0, True),
        (None, -1, True),
    ],
)
def test_a_tickets_own_budget_goes_before_the_policys(
    own: int | None, policy: int, starts: bool
) -> None:
    rig = Rig()
    serial = in_hand(rig, options=Options(max_attempts=own))
    answer = rig.start(serial, max_attempts=policy)[0]
    assert answer.code == ("started" if starts else "exhausted")


def test_a_tickets_own_time_goes_before_the_policys() -> None:
    rig = Rig()
    serial = in_hand(rig, options=Options(max_elapsed_ms=100))
    rig.pass_ms(50)
    assert codes(rig.start(serial, max_elapsed_ms=10)) == ["started"]


def test_a_clock_that_is_not_believed_neither_starts_nor_ends_a_ticket() -> None:
    rig = Rig()
    for options in (Options(expires_ms=50), Options(max_elapsed_ms=50)):
        serial = in_hand(rig, options=options)
        rig.now_ms += HOUR
        verdict = rig.do(Start([StartItem(serial)]))
        assert codes(verdict.answers) == ["clock"] and not verdict.records
        assert rig.head(serial).state == PENDING
        rig.settled_ms = rig.now_ms
        assert codes(rig.do(Start([StartItem(serial)])).answers) in (["expired"], ["late"])


def test_without_room_nothing_starts_but_what_is_over_ends() -> None:
    rig = Rig()
    good, spent = in_hand(rig), in_hand(rig, options=Options(max_attempts=0))
    rig.core.has_room = False
    assert codes(rig.start(good, spent)) == ["full", "exhausted"]
    assert rig.core.placement.where(good) == "window"


def test_of_one_key_only_one_starts() -> None:
    rig = Rig()
    first, second = rig.submit(key="k"), rig.submit(key="k", task="u")
    verdict = rig.core.decide(
        Start([StartItem(first), StartItem(second)]), rig.now_ms, rig.settled_ms
    )
    assert codes(verdict.answers) == ["started", "key_busy"]
    rig.run(first)
    verdict = rig.core.decide(Start([StartItem(second)]), rig.now_ms, rig.settled_ms)
    assert codes(verdict.answers) == ["key_busy"]


def test_a_ticket_in_backoff_leaves_its_key_to_others() -> None:
    rig = Rig()
    first, second = rig.submit(key="k"), rig.submit(key="k")
    rig.run(first)
    rig.settle(first, "transient", wait_ms=HOUR)
    rig.run(second)
    rig.checked()


def suspects(rig: Rig, count: int) -> list[int]:
    serials = [rig.submit() for _ in range(count)]
    rig.settle_down()
    rig.start(*rig.pop_all())
    rig.reopen()
    rig.settle_lost(wait_ms=0)
    assert all(rig.head(serial).is_suspect for serial in serials)
    rig.settle_down()
    return serials


def test_suspects_start_one_at_a_time_and_others_freely() -> None:
    rig = Rig()
    one, two = suspects(rig, 2)
    other = rig.submit()
    rig.settle_down()
    assert rig.pop_all() == [one, two, other]
    assert codes(rig.start(one, two, other)) == ["started", "suspect", "started"]
    assert rig.pop_all() == [two]
    verdict = rig.do(Start([StartItem(two)], allows_suspect=False))
    assert codes(verdict.answers) == ["suspect"]
    rig.settle(one)
    assert codes(rig.start(two)) == ["started"]


@pytest.mark.parametrize(
    "kind", ["done", "transient", "failed", "snooze", "timeout", "drop", "ambiguous"]
)
def test_to_end_an_attempt_in_whatever_way_but_death_clears_a_suspect(kind: str) -> None:
    rig = Rig()
    (serial,) = suspects(rig, 1)
    rig.run(serial)
    rig.settle(serial, kind)
    assert not rig.head(serial).is_suspect


def test_what_a_stop_gives_back_is_a_suspect_still() -> None:
    rig = Rig()
    (serial,) = suspects(rig, 1)
    rig.run(serial)
    rig.settle(serial, "released")
    assert rig.head(serial).is_suspect
