"""Limits, as arithmetic on counts and ms: how many run at once, and how many start in a span.

A `Meter` is what one scope (a task, a target, a key) has in use. It is told the time, by a clock
that never goes back, and decides nothing by itself: ask `wait_ms`, then `take`. Tokens are whole
numbers throughout, so no rounding lets one more through than the rate says.
"""

from collections.abc import Iterable, Sequence
from typing import NamedTuple

__all__ = ["Bucket", "Meter", "Quota"]


class Quota(NamedTuple):
    """One limit's numbers; 0 where it says nothing. At most `concurrency` at once; `starts` in
    `span_ms`, of which `burst` may come together."""

    concurrency: int = 0
    starts: int = 0
    span_ms: int = 0
    burst: int = 0


class Bucket:
    """Tokens of one rate: it gains `starts` in `span_ms`, evenly, and holds `burst` at most.

    A start takes one token, which is `span_ms` of level; a ms adds `starts` of it.
    """

    __slots__ = ("at_ms", "burst", "level", "span_ms", "starts")

    def __init__(self, quota: Quota, empty_since_ms: int) -> None:
        """Empty at that time, and filling since."""
        self.starts = quota.starts
        self.span_ms = quota.span_ms
        self.burst = quota.burst or quota.starts
        self.level = 0
        self.at_ms = empty_since_ms

    @property
    def _top(self) -> int:
        return self.burst * self.span_ms

    def fill(self, now_ms: int) -> None:
        """Bring the level to the present."""
        if now_ms > self.at_ms:
            self.level = min(self._top, self.level + (now_ms - self.at_ms) * self.starts)
            self.at_ms = now_ms

    def wait_ms(self, now_ms: int) -> int:
        """How long until there is a token; 0: there is one."""
        self.fill(now_ms)
        missing = self.span_ms - self.level
        return 0 if missing <= 0 else -(-missing // self.starts)

    def take(self, now_ms: int) -> None:
        """One start. There must be a token."""
        self.fill(now_ms)
        assert self.level >= self.span_ms, (self.level, self.span_ms)
        self.level -= self.span_ms

    def give_back(self) -> None:
        """A start that was not made after all."""
        self.level = min(self._top, self.level + self.span_ms)

    def is_full(self, now_ms: int) -> bool:
        """Whether it says no more than a new one of the same age would."""
        self.fill(now_ms)
        return self.level == self._top


class Meter:
    """What one scope has in use: attempts that run, and the buckets of its rates.

    Which quotas count is the asker's to say, with each question: the code changes, and operators
    change what it says. Buckets are made when a rate is first asked for, as if they had been
    filling since `empty_since_ms`.
    """

    __slots__ = ("buckets", "empty_since_ms", "running")

    def __init__(self, empty_since_ms: int) -> None:
        self.running = 0
        self.buckets: dict[Quota, Bucket] = {}
        self.empty_since_ms = empty_since_ms

    def wait_ms(self, quotas: Iterable[Quota], now_ms: int) -> int | None:
        """0: one may start. A time: not before, by its rates. None: not before one that runs ends.

        Of several quotas the most restrictive counts.
        """
        wait_ms = 0
        for quota in quotas:
            if quota.concurrency and self.running >= quota.concurrency:
                return None
            bucket = self._bucket(quota)
            if bucket is not None:
                wait_ms = max(wait_ms, bucket.wait_ms(now_ms))
        return wait_ms

    def take(self, quotas: Sequence[Quota], now_ms: int) -> list[Bucket]:
        """One starts: it may. The buckets that a token was taken from, for `undo`."""
        self.running += 1
        if not quotas:
            return []
        # Two limits with one rate have one bucket, and a start is one token of it.
        taken = {id(bucket): bucket for bucket in map(self._bucket, quotas) if bucket is not None}
        for bucket in taken.values():
            bucket.take(now_ms)
        return list(taken.values())

    def end(self, count: int = 1) -> None:
        """So many that ran have ended, or did not begin."""
        self.running -= count
        assert self.running >= 0, "more ended than began"

    def is_idle(self, now_ms: int) -> bool:
        """Whether a new meter would say the same."""
        if self.running:
            return False
        age_ms = now_ms - self.empty_since_ms
        return all(
            bucket.is_full(now_ms) and age_ms * bucket.starts >= bucket.burst * bucket.span_ms
            for bucket in self.buckets.values()
        )

    def _bucket(self, quota: Quota) -> Bucket | None:
        if not quota.starts:
            return None
        rate = quota._replace(concurrency=0)
        bucket = self.buckets.get(rate)
        if bucket is None:
            bucket = self.buckets[rate] = Bucket(rate, self.empty_since_ms)
        return bucket
