"""Policies: the default timetable, coercions, what is refused, and what a ticket keeps."""

import dataclasses
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest

from parkade.errors import ConfigError
from parkade.policies import (
    Backoff,
    Breaker,
    Limit,
    RetryPolicy,
    StoredRetry,
    Waits,
    as_policy,
    is_from_the_call,
)
from parkade.views import AttemptInfo

INFO = AttemptInfo(1, datetime(2027, 1, 1, tzinfo=UTC), None, 1, "running")
HOUR_MS = 3_600_000


def seconds(policy: RetryPolicy) -> list[float]:
    return [time.total_seconds() for time in policy.preview()]


def test_the_default_tries_ten_times_in_two_and_a_half_hours() -> None:
    assert seconds(RetryPolicy()) == [2, 8, 26, 80, 242, 728, 2186, 5786, 9386]


def test_attempts_count_executions_so_one_means_no_retry() -> None:
    assert seconds(RetryPolicy(1)) == []
    assert seconds(as_policy(None, call="x")) == []
    assert seconds(as_policy(3, call="x")) == [2, 8]


def test_a_list_of_waits_is_exact_and_gives_one_attempt_more_than_it_is_long() -> None:
    policy = as_policy(["1m", "1h"], call="x")
    assert policy.max_attempts == 3
    assert [policy.wait_ms(n, 12345) for n in range(4)] == [60_000, HOUR_MS, HOUR_MS, HOUR_MS]
    assert seconds(policy) == [60, 3660]
    assert as_policy([], call="x").max_attempts == 1


def test_a_policy_is_taken_as_it_is() -> None:
    policy = RetryPolicy(4)
    assert as_policy(policy, call="x") is policy


@pytest.mark.parametrize("retry", [0, -1, True, 1.5, "1m", b"1m", {"a": 1}, object()])
def test_what_is_no_retry_is_refused_and_names_the_caller(retry: Any) -> None:
    with pytest.raises(ConfigError, match=r"^@engine\.task\(retry=.*\): use ") as caught:
        as_policy(retry, call="@engine.task")
    assert caught.value.code == "PK-107"


def test_a_bad_wait_in_a_list_is_refused_as_a_duration() -> None:
    with pytest.raises(ConfigError, match=r"RetryPolicy\(backoff=nan\): it is not a finite"):
        as_policy(["1m", float("nan")], call="x")


def test_an_unbounded_policy_previews_a_hundred_retries() -> None:
    assert len(RetryPolicy(None).preview()) == 100


def test_the_preview_ends_before_the_elapsed_bound() -> None:
    assert seconds(RetryPolicy(10, max_elapsed="26s")) == [2, 8]
    assert seconds(RetryPolicy(10, max_elapsed="27s")) == [2, 8, 26]


def test_equal_jitter_waits_between_the_half_and_the_whole() -> None:
    backoff = Backoff("10s", 1, "10s")
    assert backoff.wait_ms(0, 0) == 5_000
    assert backoff.wait_ms(0, 5_000) == 10_000
    assert backoff.wait_ms(0, 5_001) == 5_000


def test_full_jitter_waits_between_nothing_and_the_whole() -> None:
    backoff = Backoff("10s", 1, "10s", jitter="full")
    assert [backoff.wait_ms(0, r) for r in (0, 10_000, 10_001)] == [0, 10_000, 0]
    assert Backoff("10s", 1, "10s", jitter="none").wait_ms(0, 777) == 10_000


def test_a_hint_is_bounded_by_the_cap_and_not_by_a_short_list() -> None:
    assert RetryPolicy(backoff=Backoff(cap="5m")).hinted_wait_ms(HOUR_MS) == 300_000
    assert RetryPolicy(backoff=["1s"]).hinted_wait_ms(2 * HOUR_MS) == HOUR_MS
    assert RetryPolicy(backoff=["3h"]).hinted_wait_ms(9 * HOUR_MS) == 3 * HOUR_MS
    assert as_policy([], call="x").hinted_wait_ms(5) == 5


@pytest.mark.parametrize(
    "make",
    [
        lambda: Backoff(factor=0.5),
        lambda: Backoff(factor=float("nan")),
        lambda: Backoff(factor=float("inf")),
        lambda: Backoff(factor=True),
        lambda: Backoff(factor="3"),  # type: ignore[arg-type]
        lambda: Backoff(jitter="half"),  # type: ignore[arg-type]
        lambda: Backoff("2h"),
        lambda: Backoff("-2s"),
        lambda: Backoff(cap=float("nan")),
        lambda: RetryPolicy(0),
        lambda: RetryPolicy(True),
        lambda: RetryPolicy(backoff=[]),
        lambda: RetryPolicy(backoff="1m"),
        lambda: RetryPolicy(backoff=3),  # type: ignore[arg-type]
        lambda: RetryPolicy(backoff=["1s"] * 65),
        lambda: RetryPolicy(retry_on=OSError),  # type: ignore[arg-type]
        lambda: RetryPolicy(give_up_on=("x",)),  # type: ignore[arg-type]
        lambda: RetryPolicy(decide=3),  # type: ignore[arg-type]
        lambda: RetryPolicy(max_elapsed=-1),
        lambda: Breaker(failures=0),
        lambda: Breaker(probes=0),
        lambda: Breaker(min_calls=True),
        lambda: Breaker(rate=0),
        lambda: Breaker(rate=1.5),
        lambda: Breaker(rate=float("nan")),
        lambda: Breaker(rate=True),
        lambda: Breaker(window=0),
        lambda: Breaker(open_for="0s"),
        lambda: Breaker(open_for="1h"),
        lambda: Breaker(trip_on=Exception),  # type: ignore[arg-type]
        lambda: Breaker(""),
        lambda: Breaker(3),  # type: ignore[arg-type]
        lambda: Limit(),
        lambda: Limit(concurrency=0),
        lambda: Limit(rate=(0, "1s")),
        lambda: Limit(rate=(5, 0)),
        lambda: Limit(rate=(5,)),  # type: ignore[arg-type]
        lambda: Limit(rate=5),  # type: ignore[arg-type]
        lambda: Limit(rate=(5, float("nan"))),
        lambda: Limit(concurrency=1, burst=2),
        lambda: Limit(rate=(5, "1s"), burst=0),
        lambda: Limit(concurrency=1, per="shard"),  # type: ignore[arg-type]
    ],
)
def test_a_value_that_cannot_be_right_is_refused_when_it_is_made(make: Any) -> None:
    with pytest.raises(ConfigError) as caught:
        make()
    assert caught.value.code in {"PK-107", "PK-210"}


def test_a_breaker_and_a_limit_keep_their_numbers_in_milliseconds() -> None:
    breaker = Breaker("psp", failures=5, window="30s", open_for="1m", trip_on=(OSError,))
    assert (breaker.name, breaker.window_ms, breaker.open_for_ms) == ("psp", 30_000, 60_000)
    assert breaker.max_open_for_ms == 600_000
    assert Breaker(rate=1).rate == 1.0
    limit = Limit(concurrency=8, rate=(100, "1m"), burst=10, per="target")
    assert (limit.concurrency, limit.rate, limit.burst) == (8, (100, 60_000), 10)
    assert Breaker().name is None


def test_policies_are_values_equal_frozen_and_hashable() -> None:
    pairs: list[tuple[Any, Any]] = [
        (RetryPolicy(), RetryPolicy()),
        (Backoff(), Backoff(2, 3, 3600)),
        (Breaker(), Breaker()),
        (Limit(concurrency=1), Limit(concurrency=1)),
    ]
    for one, other in pairs:
        assert one == other
        assert len({one, other}) == 1
        with pytest.raises(dataclasses.FrozenInstanceError):
            setattr(one, dataclasses.fields(one)[0].name, 1)


def test_a_type_outside_retry_on_or_in_give_up_on_ends_the_ticket() -> None:
    policy = RetryPolicy(retry_on=(OSError,), give_up_on=(FileNotFoundError,))
    assert policy.is_retried(ConnectionError())
    assert not policy.is_retried(ValueError())
    assert not policy.is_retried(FileNotFoundError())
    assert RetryPolicy().is_retried(ValueError())


def test_an_exit_that_a_handler_made_up_is_tried_again() -> None:
    assert RetryPolicy().is_retried(SystemExit())
    assert RetryPolicy(retry_on=(OSError,)).is_retried(KeyboardInterrupt())
    assert not RetryPolicy(give_up_on=(SystemExit,)).is_retried(SystemExit())


def caught(fn: Any, *args: Any) -> BaseException:
    try:
        fn(*args)
    except BaseException as error:
        return error
    raise AssertionError("nothing was raised")


def test_a_call_that_does_not_fit_the_handler_is_not_tried_again() -> None:
    def handler(a: int) -> int:
        return len(a)  # type: ignore[arg-type]

    misfit, inside = caught(handler), caught(handler, 5)
    assert type(misfit) is type(inside) is TypeError
    assert is_from_the_call(misfit)
    assert not is_from_the_call(inside)
    assert not RetryPolicy().is_retried(misfit)
    assert RetryPolicy().is_retried(inside)


def test_decide_goes_before_the_types_and_may_leave_it_to_them() -> None:
    answers: list[Any] = ["give_up", "5s", 0, None, None]
    policy = RetryPolicy(
        retry_on=(OSError,),
        backoff=["1m"],
        decide=lambda error, info: answers.pop(0) if info is INFO else None,
    )
    assert policy.decided_wait_ms(OSError(), INFO, 0, 0) is None
    assert policy.decided_wait_ms(ValueError(), INFO, 0, 0) == 5_000
    assert policy.decided_wait_ms(ValueError(), INFO, 0, 0) == 0
    assert policy.decided_wait_ms(OSError(), INFO, 0, 0) == 60_000
    assert policy.decided_wait_ms(ValueError(), INFO, 0, 0) is None


@pytest.mark.parametrize("answer", [float("nan"), float("inf"), -1, True, "soon", object()])
def test_a_bad_answer_of_decide_is_a_config_error(answer: Any) -> None:
    policy = RetryPolicy(decide=lambda error, info: answer)
    with pytest.raises(ConfigError, match=r"^the answer of decide="):
        policy.decided_wait_ms(OSError(), INFO, 0, 0)


def test_a_decide_that_raises_lets_its_error_out() -> None:
    def decide(error: BaseException, info: AttemptInfo) -> None:
        raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError):
        RetryPolicy(decide=decide).decided_wait_ms(OSError(), INFO, 0, 0)


@pytest.mark.parametrize(
    ("policy", "name"),
    [
        (RetryPolicy(retry_on=(OSError,)), "retry_on"),
        (RetryPolicy(give_up_on=(OSError,)), "give_up_on"),
        (RetryPolicy(decide=lambda error, info: None), "decide"),
    ],
)
def test_a_ticket_stores_numbers_and_refuses_code(policy: RetryPolicy, name: str) -> None:
    with pytest.raises(ConfigError) as refused:
        policy.stored(call="resize.options")
    assert str(refused.value) == (
        f"resize.options(retry=RetryPolicy({name}=...)): a ticket stores numbers only (attempts, "
        f"waits, max_elapsed). Give {name}= to the task's own retry= [PK-107]"
    )


def test_stored_numbers_give_the_same_timetable_back() -> None:
    policy = RetryPolicy(6, backoff=Backoff("2s", cap="5m"), max_elapsed="1h")
    stored = policy.stored()
    assert stored == StoredRetry(6, [2_000, 6_000, 18_000, 54_000, 162_000], HOUR_MS, 1)
    back = RetryPolicy.from_stored(stored)
    assert back.preview() == policy.preview()
    assert back.wait_ms(2, 777) == policy.wait_ms(2, 777)
    assert RetryPolicy.from_stored(RetryPolicy(None).stored()).max_attempts is None


def test_stored_numbers_take_their_types_from_the_code_of_today() -> None:
    base = RetryPolicy(3, retry_on=(OSError,), give_up_on=(FileNotFoundError,))
    policy = RetryPolicy.from_stored(StoredRetry(5, [1_000]), base=base)
    assert (policy.max_attempts, policy.delay_ms(3)) == (5, 1_000)
    assert policy.retry_on == (OSError,)
    assert policy.backoff == Waits((1_000,))
    assert RetryPolicy.from_stored(StoredRetry(1, [])).wait_ms(0, 9) == 0


def test_a_slow_backoff_is_stored_in_a_bounded_list() -> None:
    stored = RetryPolicy(None, backoff=Backoff("1s", 1.001, "1h")).stored()
    assert len(stored.delays_ms) == 64
    assert timedelta(milliseconds=stored.delays_ms[-1]) < timedelta(seconds=2)
