"""Policies: when a failed attempt is tried again, and what guards a target. Frozen, checked values.

The arithmetic is pure: randomness comes in as a number, so the same number gives the same wait.
"""

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from datetime import timedelta
from typing import TYPE_CHECKING, Any, Final, Literal, TypeAlias, cast

import msgspec

from parkade.checks import check_choice, check_count, check_error_types, check_text, fill, refuse
from parkade.durations import Duration, parse_duration_ms
from parkade.errors import ConfigError

if TYPE_CHECKING:
    from parkade.views import AttemptInfo

__all__ = [
    "DEFAULT_POLICY",
    "GIVE_UP",
    "JITTERS",
    "Backoff",
    "Breaker",
    "Limit",
    "Retry",
    "RetryPolicy",
    "Secret",
    "StoredRetry",
    "Waits",
    "as_policy",
    "checked_rate",
]

Jitter: TypeAlias = Literal["full", "equal", "none"]
ErrorTypes: TypeAlias = tuple[type[BaseException], ...]
Decide: TypeAlias = "Callable[[BaseException, AttemptInfo], Duration | Literal['give_up'] | None]"

GIVE_UP: Final = "give_up"
JITTERS: tuple[Jitter, ...] = ("none", "equal", "full")  # a stored jitter is an index in here
MAX_ATTEMPTS_DEFAULT = 10
CAP_MS_DEFAULT = 3_600_000
STORED_DELAYS_MAX = 64
PREVIEW_MAX = 100  # an unbounded policy has no whole timetable


@dataclass(frozen=True, slots=True, init=False, repr=False)
class Backoff:
    """Waits that grow: `min(cap, first * factor**n)` before the n-th retry, n from 0, in ms.

    Jitter "equal" waits between the half and the whole, "full" between nothing and the whole.
    Raises `ConfigError` for a factor below 1 or a first wait beyond the cap.
    """

    first_ms: int
    factor: float
    cap_ms: int
    jitter: Jitter

    def __init__(
        self,
        first: Duration = "2s",
        factor: float = 3.0,
        cap: Duration = "1h",
        jitter: Jitter = "equal",
    ) -> None:
        first_ms = parse_duration_ms(first, what="Backoff(first)")
        cap_ms = parse_duration_ms(cap, what="Backoff(cap)")
        growth = cast(object, factor)
        if isinstance(growth, bool) or not isinstance(growth, int | float):
            refuse("Backoff", "factor", growth, "a number from 1 on")
        if not (math.isfinite(growth) and growth >= 1):
            refuse("Backoff", "factor", growth, "a finite number from 1 on; 1 keeps the wait equal")
        check_choice("Backoff", "jitter", jitter, JITTERS)
        if first_ms > cap_ms:
            refuse("Backoff", "first", first, f"no more than the cap, {cap}; or raise cap=")
        fill(self, first_ms=first_ms, factor=float(factor), cap_ms=cap_ms, jitter=jitter)

    def __repr__(self) -> str:
        return (
            f"Backoff({self.first_ms / 1000:g}, {self.factor:g}, {self.cap_ms / 1000:g}, "
            f"{self.jitter!r})"
        )

    def delay_ms(self, n: int) -> int:
        """The whole wait before retry `n`, from 0: never less than the one before it."""
        first, cap = self.first_ms, self.cap_ms
        if first == 0 or first == cap or n <= 0:
            return first
        # By logarithms first: a float power overflows long before n does.
        if n * math.log(self.factor) >= math.log(cap / first):
            return cap
        return min(cap, int(first * self.factor**n))

    def wait_ms(self, n: int, r: int) -> int:
        """The wait with jitter, from a random number `r` >= 0."""
        return jittered_ms(self.delay_ms(n), self.jitter, r)


class StoredRetry(msgspec.Struct, array_like=True, frozen=True, gc=False):
    """The numbers of a policy, as a ticket keeps them: what `options(retry=)` gave.

    `max_attempts` is -1 for no bound. Past the end of `delays_ms` its last one holds. `jitter` is
    an index in `JITTERS`.
    """

    max_attempts: int
    delays_ms: list[int]
    max_elapsed_ms: int | None = None
    jitter: int = 0


@dataclass(frozen=True, slots=True)
class Waits:
    """Waits given one by one, in ms; past the end the last one holds."""

    delays_ms: tuple[int, ...]
    jitter: Jitter = "none"

    @property
    def cap_ms(self) -> int:
        """The longest of them, and at least an hour: a list says nothing of asked-for waits."""
        return max((CAP_MS_DEFAULT, *self.delays_ms))

    def delay_ms(self, n: int) -> int:
        """The whole wait before retry `n`, from 0."""
        return self.delays_ms[min(max(n, 0), len(self.delays_ms) - 1)] if self.delays_ms else 0

    def wait_ms(self, n: int, r: int) -> int:
        """The wait with jitter, from a random number `r` >= 0."""
        return jittered_ms(self.delay_ms(n), self.jitter, r)


def jittered_ms(delay_ms: int, jitter: Jitter, r: int) -> int:
    """A wait up to `delay_ms`, as the number `r` >= 0 chooses."""
    if jitter == "none":
        return delay_ms
    if jitter == "full":
        return r % (delay_ms + 1)
    half = delay_ms // 2
    return half + r % (half + 1)


@dataclass(frozen=True, slots=True, init=False)
class RetryPolicy:
    """Which failures are tried again, how often, and after which waits.

    `max_attempts` counts executions, the first one too; None is no bound. `backoff` is a `Backoff`
    or a list of exact waits, whose last one repeats. An error that is not one of `retry_on`, or is
    one of `give_up_on`, ends the ticket, as does a `TypeError` from calling the handler.
    `max_elapsed` counts from the first due time. `decide` sees an error before these rules do and
    answers with a wait, "give_up", or None to leave it to them. Raises `ConfigError`.
    """

    max_attempts: int | None
    backoff: Backoff | Waits
    retry_on: ErrorTypes
    give_up_on: ErrorTypes
    max_elapsed_ms: int | None
    decide: "Decide | None"

    def __init__(
        self,
        max_attempts: int | None = MAX_ATTEMPTS_DEFAULT,
        *,
        backoff: "Backoff | Sequence[Duration] | None" = None,
        retry_on: ErrorTypes = (Exception,),
        give_up_on: ErrorTypes = (),
        max_elapsed: Duration | None = None,
        decide: "Decide | None" = None,
    ) -> None:
        if max_attempts is not None:
            check_count("RetryPolicy", "max_attempts", max_attempts)
        if decide is not None and not callable(decide):
            refuse("RetryPolicy", "decide", decide, "a function of an error and an AttemptInfo")
        waits = _checked_backoff(backoff)
        if waits == Waits(()) and max_attempts != 1:
            refuse("RetryPolicy", "backoff", backoff, "at least one wait, or max_attempts=1")
        fill(
            self,
            max_attempts=max_attempts,
            backoff=waits,
            retry_on=check_error_types("RetryPolicy", "retry_on", retry_on),
            give_up_on=check_error_types("RetryPolicy", "give_up_on", give_up_on),
            max_elapsed_ms=None
            if max_elapsed is None
            else parse_duration_ms(max_elapsed, what="RetryPolicy(max_elapsed)"),
            decide=decide,
        )

    @property
    def cap_ms(self) -> int:
        """The longest wait that a handler's `RetryAfter` may ask for."""
        return self.backoff.cap_ms

    def delay_ms(self, n: int) -> int:
        """The whole wait before retry `n`, from 0."""
        return self.backoff.delay_ms(n)

    def wait_ms(self, n: int, r: int) -> int:
        """The wait before retry `n`, from 0, with the jitter that the number `r` >= 0 makes."""
        return self.backoff.wait_ms(n, r)

    def hinted_wait_ms(self, after_ms: int) -> int:
        """The wait that a handler asked for, bounded by the cap; it gets no jitter."""
        return min(after_ms, self.cap_ms)

    def is_retried(self, error: BaseException) -> bool:
        """Whether the types alone let `error` be tried again.

        An exit or a cancel that the handler made up itself says nothing of the work: it is.
        """
        if isinstance(error, self.give_up_on) or is_from_the_call(error):
            return False
        return isinstance(error, self.retry_on) or not isinstance(error, Exception)

    def decided_wait_ms(
        self, error: BaseException, info: "AttemptInfo", n: int, r: int
    ) -> int | None:
        """The wait before retry `n` after `error`; None: give up.

        Runs `decide`, which is the user's: whatever it raises comes out, and a bad answer of it
        comes out as `ConfigError`.
        """
        answer = None if self.decide is None else self.decide(error, info)
        if answer == GIVE_UP:
            return None
        if answer is not None:
            return parse_duration_ms(answer, what="the answer of decide")
        return self.wait_ms(n, r) if self.is_retried(error) else None

    def preview(self) -> Sequence[timedelta]:
        """When the retries come at the latest, counted from the first attempt: the timetable.

        It ends before `max_elapsed`, and after 100 retries.
        """
        retries = PREVIEW_MAX if self.max_attempts is None else self.max_attempts - 1
        times: list[timedelta] = []
        total_ms = 0
        for n in range(min(retries, PREVIEW_MAX)):
            total_ms += self.delay_ms(n)
            if self.max_elapsed_ms is not None and total_ms >= self.max_elapsed_ms:
                break
            times.append(timedelta(milliseconds=total_ms))
        return times

    def stored(self, *, call: str = "options") -> StoredRetry:
        """The numbers alone, for one ticket; raises `ConfigError` (PK-107) where code is asked for:
        `decide`, `retry_on` and `give_up_on` are read from the task, and cannot be stored."""
        for name in ("retry_on", "give_up_on", "decide"):
            if getattr(self, name) != getattr(DEFAULT_POLICY, name):
                raise ConfigError(
                    f"{call}(retry=RetryPolicy({name}=...)): a ticket stores numbers only "
                    f"(attempts, waits, max_elapsed). Give {name}= to the task's own retry="
                )
        return self.numbers()

    def numbers(self) -> StoredRetry:
        """The numbers alone, whatever code there is beside them."""
        attempts = -1 if self.max_attempts is None else self.max_attempts
        jitter = JITTERS.index(self.backoff.jitter)
        return StoredRetry(attempts, self._waits(), self.max_elapsed_ms, jitter)

    def _waits(self) -> list[int]:
        """The backoff as a list; one that grows ends where it stays at its cap."""
        if isinstance(self.backoff, Waits):
            return list(self.backoff.delays_ms)
        waits: list[int] = []
        most = STORED_DELAYS_MAX if self.max_attempts is None else self.max_attempts - 1
        for n in range(min(most, STORED_DELAYS_MAX)):
            waits.append(self.delay_ms(n))
            if waits[-1] == self.cap_ms:
                break
        return waits

    @classmethod
    def from_stored(
        cls, stored: StoredRetry, *, base: "RetryPolicy | None" = None
    ) -> "RetryPolicy":
        """The policy that a ticket's own numbers stand for.

        What cannot be stored (`retry_on`, `give_up_on`, `decide`) comes from `base`, the task's.
        """
        base = DEFAULT_POLICY if base is None else base
        policy = cls.__new__(cls)
        fill(
            policy,
            max_attempts=None if stored.max_attempts < 0 else stored.max_attempts,
            backoff=Waits(tuple(stored.delays_ms), JITTERS[stored.jitter]),
            retry_on=base.retry_on,
            give_up_on=base.give_up_on,
            max_elapsed_ms=stored.max_elapsed_ms,
            decide=base.decide,
        )
        return policy


Retry: TypeAlias = RetryPolicy | int | Sequence[Duration]


def as_policy(retry: "Retry | None", *, call: str, name: str = "retry") -> RetryPolicy:
    """What `retry=` stands for: a policy; n executions; a list of exact waits; None: one execution.

    `call` and `name` say in errors where it was given: `@engine.task(retry=...)`. Raises
    `ConfigError`.
    """
    if isinstance(retry, RetryPolicy):
        return retry
    if retry is None:
        return _ONCE
    if isinstance(retry, int):
        return RetryPolicy(check_count(call, name, retry))
    if not isinstance(retry, str | bytes) and isinstance(cast(object, retry), Sequence):
        return RetryPolicy(len(retry) + 1, backoff=retry)
    advice = 'a RetryPolicy, a number of executions, a list of waits (["1m", "1h"]), or None'
    refuse(call, name, retry, advice)


def _checked_backoff(backoff: "Backoff | Sequence[Duration] | None") -> Backoff | Waits:
    if backoff is None:
        return _BACKOFF
    if isinstance(backoff, Backoff):
        return backoff
    if isinstance(backoff, str | bytes) or not isinstance(cast(object, backoff), Sequence):
        refuse("RetryPolicy", "backoff", backoff, 'a Backoff, or a list of waits (["1m", "1h"])')
    delays = [parse_duration_ms(wait, what="RetryPolicy(backoff)") for wait in backoff]
    if len(delays) > STORED_DELAYS_MAX:
        advice = f"at most {STORED_DELAYS_MAX} waits (the last one repeats), or a Backoff"
        refuse("RetryPolicy", "backoff", backoff, advice)
    return Waits(tuple(delays))


def is_from_the_call(error: BaseException) -> bool:
    """Whether `error` is a TypeError of calling the handler itself: its arguments do not fit.

    To be asked in the frame that caught it: an error from inside the handler has more frames.
    """
    # By way of the class: an exception may have an attribute of its own under this name.
    trace = BaseException.__dict__["__traceback__"].__get__(error)
    return type(error) is TypeError and trace is not None and trace.tb_next is None


# ------------------------------------------------------------------------------------- guards


@dataclass(frozen=True, slots=True, init=False)
class Breaker:
    """Stops starting attempts against a target that fails. Shared by all tasks of the target.

    It opens after `failures` failures in a row within `window`, or, with `rate`, when that share
    (0 to 1) of at least `min_calls` in the window failed. It stays open for `open_for`, doubling
    up to `max_open_for`; then `probes` attempts go through. Only `trip_on` types count. Without a
    name it takes the target's. Raises `ConfigError`.
    """

    name: str | None
    failures: int
    window_ms: int
    rate: float | None
    min_calls: int
    open_for_ms: int
    max_open_for_ms: int
    probes: int
    trip_on: ErrorTypes

    def __init__(
        self,
        name: str | None = None,
        *,
        failures: int = 5,
        window: Duration = "30s",
        rate: float | None = None,
        min_calls: int = 10,
        open_for: Duration = "30s",
        max_open_for: Duration = "10m",
        probes: int = 1,
        trip_on: ErrorTypes = (Exception,),
    ) -> None:
        share = cast(object, rate)
        if share is not None and (
            isinstance(share, bool) or not isinstance(share, int | float) or not 0 < share <= 1
        ):
            refuse("Breaker", "rate", rate, "a share above 0 and up to 1, or None")
        open_ms = _span("Breaker", "open_for", open_for)
        max_open_ms = _span("Breaker", "max_open_for", max_open_for)
        if max_open_ms < open_ms:
            refuse("Breaker", "max_open_for", max_open_for, f"no less than open_for, {open_for}")
        fill(
            self,
            name=None if name is None else check_text("Breaker", "name", name),
            failures=check_count("Breaker", "failures", failures),
            window_ms=_span("Breaker", "window", window),
            rate=None if rate is None else float(rate),
            min_calls=check_count("Breaker", "min_calls", min_calls),
            open_for_ms=open_ms,
            max_open_for_ms=max_open_ms,
            probes=check_count("Breaker", "probes", probes),
            trip_on=check_error_types("Breaker", "trip_on", trip_on),
        )


@dataclass(frozen=True, slots=True, init=False)
class Limit:
    """How many attempts run at once (`concurrency`), or start in a span (`rate=(n, per)`).

    Counted over a task, a target or a key. `burst` is how many of a rate may start together, n
    unless given. Of several limits the most restrictive wins. Raises `ConfigError`.
    """

    concurrency: int | None
    rate: tuple[int, int] | None  # starts, and the span in ms
    burst: int | None
    per: Literal["task", "target", "key"]

    def __init__(
        self,
        *,
        concurrency: int | None = None,
        rate: tuple[int, Duration] | None = None,
        burst: int | None = None,
        per: Literal["task", "target", "key"] = "task",
    ) -> None:
        if concurrency is None and rate is None:
            raise ConfigError("Limit(): it limits nothing; give concurrency=, or rate=(100, '1m')")
        if burst is not None and rate is None:
            refuse("Limit", "burst", burst, "it together with rate=")
        fill(
            self,
            concurrency=None
            if concurrency is None
            else check_count("Limit", "concurrency", concurrency),
            rate=None if rate is None else checked_rate("Limit", rate),
            burst=None if burst is None else check_count("Limit", "burst", burst),
            per=check_choice("Limit", "per", per, ("task", "target", "key")),
        )


class Secret:
    """The mark of a secret: an argument `Annotated[str, Secret]` is shown as dots everywhere."""


def _span(call: str, name: str, value: Any) -> int:
    """A duration in ms that is not zero."""
    ms = parse_duration_ms(value, what=f"{call}({name})")
    if ms == 0:
        refuse(call, name, value, "a duration above zero")
    return ms


def checked_rate(call: str, rate: object) -> tuple[int, int]:
    """Starts, and the span in ms, of a rate as people give it. Raises `ConfigError`."""
    given = rate
    pair = cast(tuple[object, ...], rate) if isinstance(rate, tuple) else ()
    if len(pair) != 2:
        refuse(call, "rate", given, '(starts, span), like (100, "1m")')
    return check_count(call, "rate", pair[0]), _span(call, "rate", pair[1])


_BACKOFF = Backoff()
DEFAULT_POLICY = RetryPolicy(backoff=_BACKOFF)
_ONCE = RetryPolicy(1, backoff=_BACKOFF)
