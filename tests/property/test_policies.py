"""Backoff arithmetic: bounded, never overflowing, never shrinking, the same for the same number."""

import math

from hypothesis import given
from hypothesis import strategies as st

from parkade.policies import JITTERS, Backoff, RetryPolicy, Waits

MS = st.integers(0, 10**13)
NUMBERS = st.integers(0, 2**64)


@st.composite
def backoffs(draw: st.DrawFn) -> Backoff:
    first, cap = sorted((draw(MS), draw(MS)))
    factor = draw(st.floats(1, 1e308, allow_nan=False))
    jitter = draw(st.sampled_from(JITTERS))
    return Backoff(f"{first}ms", factor, f"{cap}ms", jitter)


@given(backoffs(), st.integers(0, 10**18))
def test_a_wait_is_within_first_and_cap_for_any_retry(backoff: Backoff, n: int) -> None:
    assert backoff.first_ms <= backoff.delay_ms(n) <= backoff.cap_ms


@given(backoffs(), st.integers(0, 10_000), st.integers(0, 10_000))
def test_waits_never_shrink_with_the_retries(backoff: Backoff, n: int, more: int) -> None:
    assert backoff.delay_ms(n) <= backoff.delay_ms(n + more)


@given(backoffs(), st.integers(0, 40))
def test_the_wait_is_first_times_factor_to_the_n_where_that_can_be_said(
    backoff: Backoff, n: int
) -> None:
    exponent = n * math.log(backoff.factor) + math.log(max(backoff.first_ms, 1))
    if exponent < 600:
        exact = min(backoff.cap_ms, backoff.first_ms * backoff.factor**n)
        assert abs(backoff.delay_ms(n) - exact) <= 1 + exact * 1e-9


@given(backoffs(), st.integers(0, 10**6), NUMBERS)
def test_jitter_stays_in_its_half_or_whole(backoff: Backoff, n: int, r: int) -> None:
    delay, wait = backoff.delay_ms(n), backoff.wait_ms(n, r)
    least = {"none": delay, "equal": delay // 2, "full": 0}[backoff.jitter]
    assert least <= wait <= delay
    assert wait == backoff.wait_ms(n, r)


@given(MS, st.sampled_from(JITTERS))
def test_jitter_reaches_both_of_its_ends(delay: int, jitter: str) -> None:
    waits = Waits((delay,), jitter)  # type: ignore[arg-type]
    least = {"none": delay, "equal": delay // 2, "full": 0}[jitter]
    assert waits.wait_ms(0, 0) == least
    most = 2 * (delay // 2) if jitter == "equal" else delay
    assert waits.wait_ms(0, most - least) == most


@given(backoffs(), st.integers(1, 200), st.one_of(st.none(), MS), NUMBERS)
def test_what_a_ticket_stores_waits_as_the_policy_did(
    backoff: Backoff, attempts: int, elapsed: int | None, r: int
) -> None:
    policy = RetryPolicy(
        attempts,
        backoff=backoff,
        max_elapsed=None if elapsed is None else f"{elapsed}ms",
    )
    back = RetryPolicy.from_stored(policy.stored())
    assert back.max_attempts == attempts
    assert back.max_elapsed_ms == elapsed
    for n in range(min(attempts - 1, 64)):
        assert back.wait_ms(n, r) == policy.wait_ms(n, r)


@given(st.lists(MS, min_size=1, max_size=64), NUMBERS, st.integers(0, 10**9))
def test_a_list_waits_as_given_and_repeats_its_last(waits: list[int], r: int, n: int) -> None:
    policy = RetryPolicy(None, backoff=[f"{ms}ms" for ms in waits])
    assert policy.wait_ms(n, r) == (waits[n] if n < len(waits) else waits[-1])


@given(backoffs(), st.integers(1, 150))
def test_the_timetable_never_goes_back(backoff: Backoff, attempts: int) -> None:
    times = RetryPolicy(attempts, backoff=backoff).preview()
    assert len(times) == min(attempts - 1, 100)
    assert list(times) == sorted(times)
