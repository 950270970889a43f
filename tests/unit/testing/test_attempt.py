"""fake_attempt: handlers as plain callables, with an attempt of the test's making."""

from datetime import UTC, datetime, timedelta

import pytest

from parkade import (
    Attempt,
    AttemptInfo,
    Cancelled,
    ConfigError,
    NaiveDatetime,
    NoAttempt,
    Tasks,
    current_attempt,
)
from parkade.testing import ManualClock, TestEngine, fake_attempt

tasks = Tasks()


@tasks.task
def greet(attempt: Attempt, name: str) -> str:
    return f"{name}: {attempt.number} of {attempt.max_attempts}"


def test_an_attempt_is_there_inside_and_not_outside() -> None:
    with fake_attempt() as attempt:
        assert current_attempt() is attempt
        assert (attempt.number, attempt.fence, attempt.is_last) == (1, 1, False)
        assert attempt.idempotency_key == f"pk-{attempt.ticket_id}"
        assert len(attempt.ticket_id) == 24
        with fake_attempt(number=2) as inner:
            assert current_attempt() is inner
        assert current_attempt() is attempt
    with pytest.raises(NoAttempt, match=r"fake_attempt\(\)"):
        current_attempt()


def test_a_handler_that_takes_its_attempt_is_called_like_a_function() -> None:
    with fake_attempt(number=3, max_attempts=3) as attempt:
        assert greet("ann") == "ann: 3 of 3"
        assert attempt.is_last
        assert attempt.fence == 3


def test_every_field_can_be_set() -> None:
    error = AttemptInfo(1, datetime(2027, 1, 1, tzinfo=UTC), None, 1, "error", "OSError", "down")
    with fake_attempt(
        ticket_id="38h8wt3py00004hmnf6yy4hm",
        task="billing.charge",
        number=2,
        max_attempts=5,
        fence=9,
        key="ann",
        target="stripe",
        tags={"plan": "pro"},
        last_error=error,
        scheduled_for=datetime(2027, 1, 1, tzinfo=UTC),
    ) as attempt:
        assert (attempt.ticket_id, attempt.task) == ("38h8wt3py00004hmnf6yy4hm", "billing.charge")
        assert (attempt.number, attempt.max_attempts, attempt.fence) == (2, 5, 9)
        assert (attempt.key, attempt.target, attempt.tags) == ("ann", "stripe", {"plan": "pro"})
        assert attempt.last_error is error
        assert attempt.scheduled_for == datetime(2027, 1, 1, tzinfo=UTC)
        assert attempt.key_for("refund") == "pk-38h8wt3py00004hmnf6yy4hm-refund"


def test_a_timeout_runs_out_by_the_clock_that_was_given() -> None:
    clock = ManualClock()
    with fake_attempt(timeout="30s", clock=clock) as attempt:
        clock.advance("20s")
        assert attempt.time_left == timedelta(seconds=10)
        assert not attempt.cancelled
        clock.advance("10s")
        with pytest.raises(Cancelled, match="timeout"):
            attempt.raise_if_cancelled()


@pytest.mark.parametrize(
    ("cancelled", "reason"), [(True, "cancelled"), ("user left", "user left"), (False, None)]
)
def test_an_attempt_may_be_cancelled_from_the_start(
    cancelled: bool | str, reason: str | None
) -> None:
    with fake_attempt(cancelled=cancelled) as attempt:
        assert attempt.cancel_reason == reason


def test_a_field_that_does_not_exist_is_refused_with_the_one_that_was_meant() -> None:
    with pytest.raises(ConfigError, match="did you mean number"), fake_attempt(nummer=2):
        pass


def test_a_naive_time_is_refused() -> None:
    with pytest.raises(NaiveDatetime), fake_attempt(scheduled_for=datetime(2027, 1, 1)):
        pass


def test_a_fake_attempt_kills_no_engine(parkade_engine: TestEngine) -> None:
    with fake_attempt():
        assert parkade_engine.crash() is parkade_engine
