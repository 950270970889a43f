"""Limits against a list of every start: no rate and no concurrency is ever exceeded."""

from fractions import Fraction

from hypothesis import given
from hypothesis import strategies as st

from parkade.shard.limit import Bucket, Meter, Quota

rates = st.builds(
    lambda starts, span_ms, burst: Quota(0, starts, span_ms, min(burst, starts) or starts),
    st.integers(1, 7),
    st.integers(1, 1_000),
    st.integers(0, 7),
)
quotas = st.lists(
    st.one_of(rates, st.integers(1, 4).map(Quota), rates.map(lambda q: q._replace(concurrency=3))),
    max_size=3,
    unique=True,
)


@given(rates, st.lists(st.tuples(st.integers(0, 700), st.booleans()), max_size=60))
def test_a_bucket_is_its_level_as_a_fraction(quota: Quota, steps: list[tuple[int, bool]]) -> None:
    bucket, now_ms = Bucket(quota, 0), 0
    level = Fraction(0)
    for step_ms, is_given_back in steps:
        now_ms += step_ms
        level = min(Fraction(quota.burst), level + Fraction(step_ms * quota.starts, quota.span_ms))
        wait_ms = bucket.wait_ms(now_ms)
        assert (wait_ms == 0) == (level >= 1)
        if wait_ms:
            # There is a token at that time, and none a millisecond before.
            at = level + Fraction(wait_ms * quota.starts, quota.span_ms)
            assert at >= 1 > at - Fraction(quota.starts, quota.span_ms)
        elif is_given_back:
            bucket.take(now_ms)
            bucket.give_back()
        else:
            bucket.take(now_ms)
            level -= 1
        assert bucket.is_full(now_ms) == (level == quota.burst)


@given(rates, st.lists(st.integers(0, 300), max_size=120))
def test_no_span_has_more_starts_than_the_rate_and_the_burst_allow(
    quota: Quota, steps: list[int]
) -> None:
    bucket, now_ms = Bucket(quota, 0), 0
    started: list[int] = []
    for step_ms in steps:
        now_ms += step_ms
        while bucket.wait_ms(now_ms) == 0:
            bucket.take(now_ms)
            started.append(now_ms)
    for place, first_ms in enumerate(started):
        for count, last_ms in enumerate(started[place:], 1):
            allowed = quota.burst + Fraction((last_ms - first_ms) * quota.starts, quota.span_ms)
            assert count <= allowed
    # And it begins empty: nothing starts before the first token has come.
    assert all(at * quota.starts >= quota.span_ms for at in started)


@given(quotas, st.lists(st.tuples(st.integers(0, 400), st.integers(0, 2)), max_size=80))
def test_a_meter_counts_exactly_and_the_most_restrictive_wins(
    quotas: list[Quota], steps: list[tuple[int, int]]
) -> None:
    meter, now_ms, running = Meter(0), 0, 0
    alone = [Bucket(quota, 0) for quota in {q._replace(concurrency=0) for q in quotas if q.starts}]
    for step_ms, act in steps:
        now_ms += step_ms
        wait_ms = meter.wait_ms(quotas, now_ms)
        is_full = any(q.concurrency and running >= q.concurrency for q in quotas)
        assert (wait_ms is None) == is_full
        if not is_full:
            assert wait_ms == max((bucket.wait_ms(now_ms) for bucket in alone), default=0)
        if act and wait_ms == 0:
            taken = meter.take(quotas, now_ms)
            running += 1
            if act == 1:
                for bucket in alone:
                    bucket.take(now_ms)
            else:  # it did not begin after all
                for bucket in taken:
                    bucket.give_back()
                meter.end()
                running -= 1
        elif running:
            meter.end()
            running -= 1
        assert meter.running == running
        assert not meter.is_idle(now_ms) or not running


@given(rates, st.integers(0, 10_000), st.integers(0, 10_000))
def test_a_bucket_that_is_let_go_when_full_comes_back_as_if_it_had_been_kept(
    quota: Quota, since_ms: int, later_ms: int
) -> None:
    kept = Meter(since_ms)
    kept.wait_ms([quota], since_ms)
    now_ms = since_ms + later_ms
    if kept.is_idle(now_ms):
        fresh = Meter(since_ms)
        for at_ms in (now_ms, now_ms + 7):
            assert fresh.wait_ms([quota], at_ms) == kept.wait_ms([quota], at_ms) == 0
            fresh.take([quota], at_ms)
            kept.take([quota], at_ms)
            assert fresh.wait_ms([quota], at_ms) == kept.wait_ms([quota], at_ms)
            if fresh.wait_ms([quota], at_ms + 7):
                break
