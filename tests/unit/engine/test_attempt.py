"""What a handler is told, and when it is told to stop."""

import contextvars
import logging
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest

from kit.attempts import StillClock, Unlinked
from parkade.attempt import RUNNING, Attempt, current_attempt
from parkade.errors import ConfigError, NoAttempt
from parkade.verdicts import Cancelled

ID = "38h8wt3py00004hmnf6yy4hm"


@pytest.fixture
def clock() -> StillClock:
    return StillClock()


def make(clock: StillClock, **fields: Any) -> Attempt:
    return Attempt(ID, "billing.charge", clock=clock, link=Unlinked(), **fields)


def test_the_last_attempt_knows_that_it_is(clock: StillClock) -> None:
    lasts = [make(clock, number=n, max_attempts=3).is_last for n in (1, 2, 3, 4)]
    assert lasts == [False, False, True, True]
    assert not make(clock, number=1_000, max_attempts=None).is_last


def test_keys_are_the_same_in_every_attempt_and_different_for_every_part(clock: StillClock) -> None:
    first, second = make(clock, number=1, fence=1), make(clock, number=2, fence=7)
    assert first.idempotency_key == second.idempotency_key == f"pk-{ID}"
    assert first.key_for("refund") == second.key_for("refund") == f"pk-{ID}-refund"
    assert len({first.key_for(part) for part in ("a", "b", "a-b", "ä")}) == 4


@pytest.mark.parametrize("part", ["", 7, None, "x" * 201, "\ud800"])
def test_a_part_that_cannot_be_a_key_is_refused(clock: StillClock, part: Any) -> None:
    with pytest.raises(ConfigError, match="key_for"):
        make(clock).key_for(part)


def test_the_time_it_is_for_is_its_first_due_time(clock: StillClock) -> None:
    attempt = make(clock, due_ms=1_798_761_600_250)
    assert attempt.scheduled_for == datetime(2027, 1, 1, 0, 0, 0, 250_000, tzinfo=UTC)


def test_a_request_to_stop_is_seen_and_its_first_reason_stays(clock: StillClock) -> None:
    attempt = make(clock)
    assert (attempt.cancelled, attempt.cancel_reason) == (False, None)
    attempt.raise_if_cancelled()
    attempt.request_cancel("typo")
    attempt.request_cancel("other")
    assert (attempt.cancelled, attempt.cancel_reason) == (True, "typo")
    assert attempt.is_cancel_requested
    assert not attempt.is_cancelled_for_good
    attempt.request_cancel("other", is_for_good=True)
    assert attempt.is_cancelled_for_good
    with pytest.raises(Cancelled) as caught:
        attempt.raise_if_cancelled()
    assert caught.value.reason == "typo"


def test_a_request_without_a_reason_is_a_request(clock: StillClock) -> None:
    attempt = make(clock)
    attempt.request_cancel("")
    assert attempt.cancelled
    with pytest.raises(Cancelled):
        attempt.raise_if_cancelled()


def test_a_timeout_that_has_passed_says_stop_and_is_no_request(clock: StillClock) -> None:
    attempt = make(clock, deadline_ms=1_500)
    clock.ms = 1_499
    assert (attempt.cancelled, attempt.time_left) == (False, timedelta(milliseconds=1))
    clock.ms = 1_500
    assert (attempt.cancelled, attempt.time_left) == (True, timedelta(0))
    assert not attempt.is_cancel_requested
    clock.ms = 99_000
    assert attempt.time_left == timedelta(0)
    with pytest.raises(Cancelled, match="its timeout has passed"):
        attempt.raise_if_cancelled()


def test_without_a_timeout_there_is_no_time_left_to_tell(clock: StillClock) -> None:
    assert make(clock).time_left is None


def test_its_log_carries_the_fields_and_those_of_the_handler(
    clock: StillClock, caplog: pytest.LogCaptureFixture
) -> None:
    attempt = make(clock, number=2, key="order-7", target="psp")
    with caplog.at_level(logging.INFO, "parkade.attempt"):
        attempt.log.info("hello %s", "there", extra={"line": 4, "task": "mine"})
    [record] = caplog.records
    assert record.name == "parkade.attempt"
    assert record.getMessage() == "hello there"
    fields = {name: getattr(record, name) for name in ("ticket_id", "attempt", "key", "target")}
    assert fields == {"ticket_id": ID, "attempt": 2, "key": "order-7", "target": "psp"}
    assert (record.__dict__["line"], record.__dict__["task"]) == (4, "mine")
    assert attempt.log is attempt.log


def test_fields_that_a_ticket_does_not_have_are_not_logged(clock: StillClock) -> None:
    assert make(clock).log_fields() == {"ticket_id": ID, "task": "billing.charge", "attempt": 1}


def test_outside_of_a_handler_there_is_no_attempt() -> None:
    with pytest.raises(NoAttempt, match=r"outside a handler.*\[PK-208\]") as caught:
        current_attempt()
    assert caught.value.__context__ is None


def test_the_attempt_is_found_in_its_context_alone(clock: StillClock) -> None:
    attempt = make(clock)
    inside = contextvars.copy_context()
    inside.run(RUNNING.set, attempt)
    assert inside.run(current_attempt) is attempt
    with pytest.raises(NoAttempt):
        current_attempt()


def test_tags_of_a_ticket_without_any_are_an_empty_mapping(clock: StillClock) -> None:
    assert dict(make(clock).tags) == {}
    assert make(clock, tags={"a": "b"}).tags == {"a": "b"}
