"""The table "After an attempt" of docs/semantics.md, row by row, and what tries to break it."""

import asyncio
import logging
from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kit.attempts import DUE_MS, StillClock, Unlinked
from parkade.attempt import Attempt
from parkade.job import Job
from parkade.policies import Backoff, RetryPolicy
from parkade.settling import Settler, find_verdict
from parkade.shard.commands import Outcome
from parkade.shard.ticket import Ticket
from parkade.store.record import ErrorText, Options
from parkade.tasks import Tasks
from parkade.verdicts import Ambiguous, Cancelled, Drop, Fail, RetryAfter, Snooze, Unsafe, Verdict
from parkade.views import AttemptInfo

ID = "38h8wt3py00004hmnf6yy4hm"
NOW_MS = DUE_MS + 1_000  # what the clock says
RESULT_BYTES_MAX = 100


class Bench:
    """A settler with everything that it needs, and one task."""

    def __init__(self) -> None:
        self.clock = StillClock()
        self.random = 0
        self.settler = Settler(
            clock=self.clock,
            entropy=lambda: self.random,
            result_bytes_max=RESULT_BYTES_MAX,
        )

    def job(self, *, number: int = 1, options: Options | None = None, **settings: Any) -> Job:
        def charge() -> Any: ...

        settings.setdefault("retry", RetryPolicy(7, backoff=["3s", "5s"]))
        task = Tasks().task(**settings)(charge)
        ticket = Ticket(9, 2, "charge", 1, NOW_MS, NOW_MS, NOW_MS, options=options)
        ticket.started_ms = NOW_MS - 1_500
        return Job(9, 2, 4, number, task, b"", ticket, ID)

    def attempt(self, job: Job) -> Attempt:
        return Attempt(
            ID, "charge", clock=self.clock, number=job.number, fence=job.fence, link=Unlinked()
        )

    def raised(
        self,
        error: BaseException,
        *,
        cancel: str | None = None,
        is_for_good: bool = False,
        **settings: Any,
    ) -> Outcome:
        job = self.job(**settings)
        attempt = self.attempt(job)
        if cancel is not None:
            attempt.request_cancel(cancel, is_for_good=is_for_good)
        return self.settler.raised(job, attempt, caught(error), 1_500)

    def returned(self, value: Any, **settings: Any) -> Outcome:
        job = self.job(**settings)
        return self.settler.returned(job, value, 3)


@pytest.fixture
def bench() -> Bench:
    return Bench()


def caught(error: BaseException) -> BaseException:
    """The error as it comes out of a handler, with a frame of the handler's."""

    def handler() -> None:
        raise error

    try:
        handler()
    except BaseException as same:
        return same
    raise AssertionError


class Unspeakable(Exception):
    def __str__(self) -> str:
        raise RuntimeError("no text")

    __repr__ = __str__


def test_a_result_is_done_and_travels_encoded(bench: Bench) -> None:
    assert bench.returned({"a": 1}) == Outcome(9, 4, "done", b"\x81\xa1a\x01")
    assert bench.returned(None).result == b"\xc0"


@pytest.mark.parametrize(
    ("value", "problem"),
    [
        (object(), "cannot store its result of type object"),
        ("x" * RESULT_BYTES_MAX, "result is 102 bytes, the limit is 100 bytes"),
        ("\ud800", "lone surrogate"),
        (1 << 70, "64 bits"),
    ],
)
def test_a_result_that_cannot_be_kept_is_lost_and_the_work_was_done(
    bench: Bench, value: Any, problem: str
) -> None:
    outcome = bench.returned(value)
    assert (outcome.kind, outcome.has_begun, outcome.result) == ("result_lost", True, b"")
    assert outcome.error is not None
    assert outcome.error.type == "PayloadError"
    assert problem in outcome.error.message


def test_a_coroutine_that_nobody_awaits_is_a_failure_and_no_result(bench: Bench) -> None:
    async def forgotten() -> None: ...

    outcome = bench.returned(forgotten())
    assert outcome.kind == "failed"
    assert outcome.error is not None
    assert "async def" in outcome.error.message


def test_an_ordinary_error_is_tried_again_after_the_backoff(bench: Bench) -> None:
    policy = RetryPolicy(4, backoff=Backoff("10s", 2.0, "1m"), max_elapsed="1h")
    bench.random = 2_345
    outcome = bench.raised(ValueError("no"), retry=policy, number=3, max_snoozes=5)
    # The third attempt's failure is before retry 2: 40 s, between its half and its whole.
    assert (outcome.kind, outcome.wait_ms) == ("transient", 22_345)
    assert (outcome.max_attempts, outcome.max_elapsed_ms) == (4, 3_600_000)
    assert (outcome.max_snoozes, outcome.has_begun) == (5, True)
    assert outcome.error is not None
    assert (outcome.error.type, outcome.error.message) == ("ValueError", "no")
    assert "in handler" in outcome.error.traceback


def test_the_numbers_of_the_ticket_go_before_those_of_the_code(bench: Bench) -> None:
    own = Options(max_attempts=2, delays_ms=[70, 90], max_elapsed_ms=5)
    policy = RetryPolicy(9, give_up_on=(KeyError,))
    outcome = bench.raised(ValueError(), retry=policy, options=own, number=2)
    assert (outcome.wait_ms, outcome.max_attempts, outcome.max_elapsed_ms) == (90, 2, 5)
    assert bench.raised(KeyError(), retry=policy, options=own).kind == "failed"
    unbounded = Options(max_attempts=-1, delays_ms=[70])
    assert bench.raised(ValueError(), options=unbounded).max_attempts is None
    assert bench.raised(ValueError(), options=Options(target="x")).max_attempts == 7


def test_a_hint_is_bounded_by_the_cap_and_gets_no_jitter(bench: Bench) -> None:
    policy = RetryPolicy(backoff=Backoff("1s", 2.0, "30s"))
    bench.random = 999
    assert bench.raised(RetryAfter("7s"), retry=policy).wait_ms == 7_000
    assert bench.raised(RetryAfter("7s"), retry=policy).kind == "transient"
    assert bench.raised(RetryAfter("1h", "429"), retry=policy).wait_ms == 30_000
    assert bench.raised(RetryAfter(0), retry=policy).wait_ms == 0


@pytest.mark.parametrize(
    ("error", "kind"),
    [
        (Fail("declined", code=7), "failed"),
        (Unsafe("half written"), "unsafe"),
        (Ambiguous("no answer"), "ambiguous"),
        (KeyError("x"), "failed"),  # give_up_on
        (OSError("x"), "failed"),  # outside retry_on
        (ValueError("x"), "transient"),
        (Verdict("of nobody's kind"), "failed"),
    ],
)
def test_what_the_handler_raises_decides(bench: Bench, error: Exception, kind: str) -> None:
    policy = RetryPolicy(retry_on=(ValueError, LookupError), give_up_on=(KeyError,))
    outcome = bench.raised(error, retry=policy)
    assert outcome.kind == kind
    assert outcome.error is not None
    assert outcome.error.message == str(error)


@pytest.mark.parametrize(
    ("base", "kind"),
    [
        (Fail, "failed"),
        (Unsafe, "unsafe"),
        (Ambiguous, "ambiguous"),
        (RetryAfter, "transient"),
        (Snooze, "snooze"),
        (Drop, "drop"),
        (Cancelled, "cancelled"),
    ],
)
def test_a_verdict_whose_constructor_left_ours_out_is_that_verdict(
    bench: Bench, base: type[BaseException], kind: str
) -> None:
    """Told as a broken policy, an Ambiguous would be dead `failed` and might be repeated."""

    class Own(base):  # type: ignore[misc, valid-type]
        def __init__(self, code: int) -> None:
            self.code = code

    class Unreadable(Own):
        @property
        def reason(self) -> str:
            raise RuntimeError("not to be read")

    for error in (Own(7), Unreadable(7)):
        outcome = bench.raised(error)
        assert (outcome.kind, outcome.reason) == (kind, "")
        assert outcome.wait_ms == (3_000 if base is RetryAfter else 0)


def test_a_verdict_is_not_for_the_policy(bench: Bench) -> None:
    """`retry_on=(Exception,)` covers every verdict by its type."""
    asked: list[BaseException] = []
    policy = RetryPolicy(decide=lambda error, info: asked.append(error))
    for error in (
        Fail("x"),
        Unsafe("x"),
        Ambiguous("x"),
        RetryAfter(1),
        Snooze(1),
        Drop(),
        Cancelled(),
    ):
        assert bench.raised(error, retry=policy).kind != "transient" or type(error) is RetryAfter
    assert asked == []


def test_a_snooze_waits_for_what_it_says_and_counts_no_error(bench: Bench) -> None:
    outcome = bench.raised(Snooze("15s", "pending"), max_snoozes=3)
    assert (outcome.kind, outcome.wait_ms, outcome.reason) == ("snooze", 15_000, "pending")
    assert (outcome.error, outcome.max_snoozes) == (None, 3)
    until = datetime.fromtimestamp(NOW_MS / 1_000, UTC) + timedelta(minutes=2)
    assert bench.raised(Snooze(until=until)).wait_ms == 120_000
    assert bench.raised(Snooze(until=until - timedelta(days=1))).wait_ms == 0


def test_dropped_and_cancelled_end_without_an_error(bench: Bench) -> None:
    assert bench.raised(Drop("left")).kind == "drop"
    assert bench.raised(Drop("left")).reason == "left"
    assert bench.raised(Cancelled("typo")).kind == "cancelled"
    assert bench.raised(Cancelled("typo")).reason == "typo"


@pytest.mark.parametrize(
    "error", [SystemExit(3), KeyboardInterrupt(), asyncio.CancelledError("mine")]
)
def test_what_stops_a_program_only_ends_the_attempt(
    bench: Bench, error: BaseException, caplog: pytest.LogCaptureFixture
) -> None:
    with caplog.at_level(logging.WARNING, "parkade.attempt"):
        outcome = bench.raised(error, retry=RetryPolicy(retry_on=(ValueError,)))
    assert outcome.kind == "transient"
    assert type(error).__name__ in caplog.text


def test_what_stops_a_program_is_given_up_on_where_the_policy_says_so(bench: Bench) -> None:
    assert bench.raised(SystemExit(), retry=RetryPolicy(give_up_on=(SystemExit,))).kind == "failed"


def test_a_type_error_of_the_call_itself_is_never_tried_again(bench: Bench) -> None:
    job = bench.job()
    takes_none: Callable[..., Any] = lambda: None  # noqa: E731
    try:
        takes_none(1)
    except TypeError as error:
        outcome = bench.settler.raised(job, bench.attempt(job), error, 0)
    assert outcome.kind == "failed"
    assert bench.raised(TypeError("from inside")).kind == "transient"


def test_the_decision_is_the_policys_and_it_is_told_of_the_attempt(bench: Bench) -> None:
    told: list[AttemptInfo] = []

    def decide(error: BaseException, info: AttemptInfo) -> Any:
        told.append(info)
        return {"wait": "9s", "end": "give_up"}.get(str(error))

    policy = RetryPolicy(3, backoff=["4s"], decide=decide)
    assert bench.raised(ValueError("wait"), retry=policy).wait_ms == 9_000
    assert bench.raised(ValueError("end"), retry=policy).kind == "failed"
    assert bench.raised(ValueError("else"), retry=policy, number=2).wait_ms == 4_000
    info = told[-1]
    assert (info.number, info.fence, info.outcome) == (2, 4, "error")
    assert (info.error_type, info.error) == ("ValueError", "else")
    assert info.ended_at is not None
    assert info.ended_at - info.started_at == timedelta(milliseconds=1_500)


@pytest.mark.parametrize("answer", ["never", -1, object(), float("nan"), b""])
def test_a_bad_answer_of_the_policy_buries_with_that_error(bench: Bench, answer: Any) -> None:
    outcome = bench.raised(ValueError("why"), retry=RetryPolicy(decide=lambda e, i: answer))
    assert outcome.kind == "failed"
    assert outcome.error is not None
    assert outcome.error.type == "ConfigError"
    assert "asked about ValueError: why" in outcome.error.message


@pytest.mark.parametrize("fault", [ZeroDivisionError("oops"), SystemExit(1), Unspeakable()])
def test_a_policy_that_raises_buries_with_its_own_error(bench: Bench, fault: BaseException) -> None:
    def decide(error: BaseException, info: AttemptInfo) -> Any:
        raise fault

    outcome = bench.raised(ValueError("why"), retry=RetryPolicy(decide=decide))
    assert outcome.kind == "failed"
    assert outcome.error is not None
    assert outcome.error.type.rpartition(".")[2] == type(fault).__name__
    assert "asked about ValueError: why" in outcome.error.message
    assert "in decide" in outcome.error.traceback


def test_errors_that_cannot_be_shown_or_were_never_made_whole_are_settled_too(
    bench: Bench,
) -> None:
    class HalfMade(RetryAfter):
        def __init__(self) -> None:
            pass

    class Lying(Snooze):
        def __init__(self) -> None:
            super().__init__(1)

        @property
        def reason(self) -> str:
            raise Unspeakable()

        @reason.setter
        def reason(self, value: str) -> None: ...

    outcome = bench.raised(Unspeakable())
    assert outcome.kind == "transient"
    assert outcome.error is not None
    assert "its str() raised RuntimeError" in outcome.error.message
    assert bench.raised(HalfMade()).kind == "transient"
    assert bench.raised(Lying()).kind == "snooze"


def test_an_error_that_lies_about_itself_is_settled_too(bench: Bench) -> None:
    class Text(str):
        def __len__(self) -> int:
            raise Unspeakable()

    class Odd(Exception):
        def __str__(self) -> str:
            return Text("odd")

    class Hidden(Exception):
        @property
        def __traceback__(self) -> Any:  # type: ignore[override]
            raise Unspeakable()

    odd, hidden = bench.raised(Odd()), bench.raised(Hidden("hidden"))
    assert odd.kind == hidden.kind == "transient"
    assert odd.error is not None and hidden.error is not None
    assert (odd.error.message, type(odd.error.message)) == ("odd", str)
    assert hidden.error.message == "hidden"


def test_half_a_surrogate_pair_in_a_reason_can_be_stored(bench: Bench) -> None:
    assert bench.raised(Drop("a\ud800b")).reason == "a\\ud800b"


@pytest.mark.parametrize("error", [asyncio.CancelledError(), Cancelled("typo")])
def test_what_stops_because_it_was_asked_to_is_cancelled_or_given_back(
    bench: Bench, error: BaseException
) -> None:
    outcome = bench.raised(error, cancel="typo", is_for_good=True)
    assert (outcome.kind, outcome.reason, outcome.error) == ("cancelled", "typo", None)
    outcome = bench.raised(error, cancel="the engine stops")
    assert (outcome.kind, outcome.reason, outcome.error) == ("released", "the engine stops", None)
    assert (outcome.has_begun, outcome.wait_ms) == (True, 0)


@pytest.mark.parametrize("is_for_good", [True, False])
@pytest.mark.parametrize("error", [ValueError(), Fail("x"), Unsafe("x"), Ambiguous("x"), Snooze(5)])
def test_what_is_reported_after_a_request_to_stop_is_kept(
    bench: Bench, error: Exception, is_for_good: bool
) -> None:
    """The shard knows whether the ticket is cancelled, and what then becomes of a failure."""
    asked = bench.raised(error, cancel="typo", is_for_good=is_for_good)
    assert asked.kind == bench.raised(error).kind
    assert bench.settler.returned(bench.job(), 1, 0).kind == "done"


def test_a_verdict_in_a_task_group_is_the_verdict(bench: Bench) -> None:
    group = ExceptionGroup("unhandled errors in a TaskGroup", [ValueError("a"), Unsafe("b")])
    assert bench.raised(group).kind == "unsafe"
    nested = ExceptionGroup("outer", [group, ExceptionGroup("inner", [Ambiguous("c")])])
    assert bench.raised(nested).kind == "ambiguous"
    assert bench.raised(ExceptionGroup("x", [ValueError(), OSError()])).kind == "transient"


def test_another_try_speaks_for_a_group_only_alone() -> None:
    again = RetryAfter("5s")
    assert find_verdict(ExceptionGroup("x", [again])) is again
    assert find_verdict(ExceptionGroup("x", [again, ValueError()])) is None
    assert find_verdict(ExceptionGroup("x", [Snooze(1), again])) is None


def test_a_group_nested_beyond_all_reason_is_looked_at_in_bounded_time() -> None:
    group: ExceptionGroup[Exception] = ExceptionGroup("x", [Unsafe("deep")])
    for _ in range(5_000):
        group = ExceptionGroup("x", [group])
    assert find_verdict(group) is None


def test_too_long_is_unknown_whatever_came_of_it(bench: Bench) -> None:
    job = bench.job(retry=["6s"])
    outcome = bench.settler.overran(job, 1_000, 1_500)
    assert (outcome.kind, outcome.wait_ms, outcome.max_attempts) == ("timeout", 6_000, 2)
    assert outcome.error == ErrorText("TimeoutError", "ran for 1.5 s, the timeout is 1 s")
    # The handler's own answer to being stopped says nothing more.
    assert bench.settler.overran(job, 1_000, 1_500, asyncio.CancelledError()) == outcome
    assert bench.settler.overran(job, 1_000, 1_500, Cancelled("time")) == outcome
    late = bench.settler.overran(job, 1_000, 1_500, caught(KeyError("late")))
    assert late.kind == "timeout"
    assert late.error is not None
    assert late.error.message.endswith("then KeyError: 'late'")
    assert "in handler" in late.error.traceback


def test_what_never_began_says_so(bench: Bench) -> None:
    job = bench.job(retry=["6s"])
    outcomes = [
        bench.settler.given_back(job, "its event loop was closed"),
        bench.settler.withdrawn(job, "typo", is_for_good=True),
        bench.settler.withdrawn(job, "the engine stops", is_for_good=False),
        bench.settler.unreadable(job, ValueError("bytes")),
        bench.settler.not_run(job, RuntimeError("no thread")),
    ]
    kinds = [(outcome.kind, outcome.wait_ms) for outcome in outcomes]
    assert kinds == [
        ("released", 6_000), ("cancelled", 0), ("released", 0), ("bad_payload", 0),
        ("transient", 6_000),
    ]  # fmt: skip
    assert not any(outcome.has_begun for outcome in outcomes)
    assert bench.settler.lost(job, "its event loop was closed").has_begun


def test_every_outcome_says_its_level_and_its_fields(
    bench: Bench, caplog: pytest.LogCaptureFixture
) -> None:
    with caplog.at_level(logging.DEBUG, "parkade.attempt"):
        bench.returned(1)
        bench.raised(Snooze(1))
        bench.raised(Drop("left"))
        bench.raised(Cancelled())
        bench.raised(ValueError("no"), options=Options(target="psp"), number=2)
        bench.raised(Fail("declined"))
    levels = [record.levelname for record in caplog.records]
    assert levels == ["DEBUG", "DEBUG", "INFO", "INFO", "WARNING", "WARNING"]
    record = caplog.records[4]
    assert record.name == "parkade.attempt"
    assert record.getMessage() == (f"charge {ID} attempt 2 failed: ValueError: no; next in 5 s")
    fields = record.__dict__
    assert (fields["ticket_id"], fields["task"], fields["attempt"]) == (ID, "charge", 2)
    assert (fields["target"], fields["duration_s"]) == ("psp", 1.5)
    assert "key" not in fields


def test_equal_warnings_are_told_once_in_ten_seconds_with_their_number(
    bench: Bench, caplog: pytest.LogCaptureFixture
) -> None:
    with caplog.at_level(logging.DEBUG, "parkade.attempt"):
        for _ in range(42):
            bench.raised(ValueError("no"))
        bench.raised(KeyError("another kind"))
        assert len(caplog.records) == 2
        bench.clock.ms += 9_999
        bench.raised(ValueError("no"))
        assert len(caplog.records) == 2
        bench.clock.ms += 1
        bench.raised(ValueError("no"))
        assert caplog.records[2].getMessage().endswith("(42 more like it before)")
        bench.clock.ms += 10_000
        bench.raised(ValueError("no"))
    assert "more like it" not in caplog.records[3].getMessage()


def test_kinds_of_warnings_without_end_take_bounded_memory(bench: Bench) -> None:
    for n in range(3_000):
        kind = type(f"Error{n}", (ValueError,), {})
        bench.settler.not_run(bench.job(), kind())
    assert len(bench.settler.folding._seen) <= 1_024


def test_a_log_filter_that_raises_costs_no_outcome(bench: Bench) -> None:
    def refuse(record: logging.LogRecord) -> bool:
        raise Unspeakable()

    logger = logging.getLogger("parkade.attempt")
    logger.addFilter(refuse)
    try:
        assert bench.raised(ValueError()).kind == "transient"
    finally:
        logger.removeFilter(refuse)


@given(number=st.integers(1, 10**6), random=st.integers(0, 2**64))
def test_a_wait_lies_between_the_half_and_the_whole_of_its_backoff(
    number: int, random: int
) -> None:
    bench = Bench()
    bench.random = random
    policy = RetryPolicy(None, backoff=Backoff("2s", 3.0, "1h"))
    wait_ms = bench.raised(ValueError(), retry=policy, number=number).wait_ms
    whole_ms = min(3_600_000, 2_000 * 3 ** min(number - 1, 20))
    assert whole_ms // 2 <= wait_ms <= whole_ms
