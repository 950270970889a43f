"""What handlers do, and what becomes of their tickets: through the engine, with history."""

import asyncio
import threading
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest

from kit.clock import START_MS, ManualClock
from kit.engines import make, when
from parkade import (
    Ambiguous,
    Attempt,
    Cancelled,
    Drop,
    Engine,
    Fail,
    RetryAfter,
    RetryPolicy,
    Snooze,
    Ticket,
    TicketCancelled,
    TicketFailed,
    TicketInfo,
    Unsafe,
)


@pytest.fixture
def clock() -> ManualClock:
    return ManualClock()


def outcomes(ticket: Ticket[Any]) -> list[str]:
    return [attempt.outcome for attempt in ticket.attempts()]


def until(engine: Engine, ticket: Ticket[Any], state: str, attempts: int) -> TicketInfo:
    """The ticket, once it stands so; each look is one question to the core thread."""
    for _ in range(100_000):
        info = ticket.info()
        if info.state == state and info.attempts == attempts:
            return info
        when(engine, lambda runtime: True)
    raise AssertionError(ticket.info())


def test_a_failure_is_retried_at_its_delays_and_its_history_kept(
    tmp_path: Path, clock: ManualClock
) -> None:
    with make(tmp_path / "data", clock=clock) as engine:

        @engine.task(retry=["10s", "1m"])
        def flaky(attempt: Attempt, good_at: int) -> str:
            if attempt.number < good_at:
                raise ValueError(f"attempt {attempt.number} of {attempt.max_attempts}")
            assert attempt.last_error is not None
            return f"{attempt.number}, fence {attempt.fence}, after {attempt.last_error.error}"

        ticket = flaky.submit(3)
        info = until(engine, ticket, "scheduled", 1)
        assert info.due_at == datetime.fromtimestamp((START_MS + 10_000) / 1000, UTC)
        assert info.error == "ValueError: attempt 1 of 3"
        clock.advance(10_000)
        until(engine, ticket, "scheduled", 2)
        clock.advance(60_000)
        assert ticket.result("20s") == "3, fence 3, after attempt 2 of 3"
        history = ticket.attempts()
        assert [(a.number, a.fence, a.outcome, a.error) for a in history] == [
            (1, 1, "error", "attempt 1 of 3"),
            (2, 2, "error", "attempt 2 of 3"),
            (3, 3, "done", None),
        ]
        assert "raise ValueError" in (history[0].traceback or "")
        assert [(a.ended_at or a.started_at) - a.started_at for a in history] == [timedelta(0)] * 3
        assert ticket.info().error is None


def test_the_last_attempt_buries_it(tmp_path: Path, clock: ManualClock) -> None:
    with make(tmp_path / "data", clock=clock) as engine:

        @engine.task(retry=["1s"])
        def fails() -> None:
            raise OSError("down")

        ticket = fails.submit()
        until(engine, ticket, "scheduled", 1)
        clock.advance(1_000)
        with pytest.raises(TicketFailed) as caught:
            ticket.result("20s")
        assert (caught.value.reason, caught.value.error_type) == ("exhausted", "OSError")
        info = ticket.info()
        assert (info.state, info.dead_reason, info.attempts, info.max_attempts) == (
            "dead", "exhausted", 2, 2,
        )  # fmt: skip
        assert engine.dead.count(task="fails") == 1


def test_retries_without_a_wait_never_overtake_themselves(tmp_path: Path) -> None:
    """An attempt may begin before the outcome of the one before it is durable."""
    with make(tmp_path / "data", threads=8) as engine:
        seen: dict[int, list[int]] = {}
        lock = threading.Lock()

        @engine.task(retry=RetryPolicy(max_attempts=None))
        def again(attempt: Attempt, n: int, times: int) -> int:
            with lock:
                seen.setdefault(n, []).append(attempt.fence)
            if attempt.number < times:
                raise RetryAfter(0)
            return n

        tickets = engine.submit_many([again.call(n, 12) for n in range(20)])
        assert [ticket.result("20s") for ticket in tickets] == list(range(20))
        assert all(fences == list(range(1, 13)) for fences in seen.values())
        when(engine, lambda runtime: runtime.attempts.running == 0)
        assert [len(ticket.attempts()) for ticket in tickets] == [12] * 20


def test_snoozing_costs_no_attempt_and_is_bounded(tmp_path: Path) -> None:
    with make(tmp_path / "data") as engine:

        @engine.task(retry=2, max_snoozes=5)
        def not_yet(attempt: Attempt) -> None:
            assert attempt.number == 1
            raise Snooze(0)

        ticket = not_yet.submit()
        with pytest.raises(TicketFailed) as caught:
            ticket.result("20s")
        assert caught.value.reason == "exhausted"
        info = ticket.info()
        assert (info.snoozes, info.fence) == (5, 6)
        assert outcomes(ticket)[:5] == ["snoozed"] * 5


@pytest.mark.parametrize(
    ("raised", "state", "reason", "maybe_applied"),
    [
        (Fail("no such card", card=4), "dead", "failed", False),
        (Unsafe("half done"), "dead", "unsafe", False),
        (Ambiguous("no answer"), "dead", "ambiguous", True),
        (Drop("not wanted"), "cancelled", None, False),
        (Cancelled("stopped"), "cancelled", None, False),
        (ValueError("final"), "dead", "failed", False),
    ],
)
def test_a_verdict_ends_the_ticket_at_once(
    tmp_path: Path, raised: BaseException, state: str, reason: str | None, maybe_applied: bool
) -> None:
    with make(tmp_path / "data") as engine:

        @engine.task(retry=RetryPolicy(5, give_up_on=(ValueError,)))
        def handler() -> None:
            raise raised

        @engine.task(retry=RetryPolicy(5, give_up_on=(ValueError,)))
        async def coroutine() -> None:
            await asyncio.sleep(0)
            raise raised

        for task in (handler, coroutine):
            ticket = task.submit()
            with pytest.raises((TicketFailed, TicketCancelled)):
                ticket.result("20s")
            info = ticket.info()
            assert (info.state, info.dead_reason, info.attempts) == (state, reason, 1)
            assert info.maybe_applied is maybe_applied
            assert info.ambiguous is maybe_applied


def test_a_hint_to_retry_is_taken_without_jitter_up_to_the_cap(
    tmp_path: Path, clock: ManualClock
) -> None:
    with make(tmp_path / "data", clock=clock) as engine:

        @engine.task
        def limited(attempt: Attempt) -> str:
            if attempt.number == 1:
                raise RetryAfter("90s", "slow down")
            return "through"

        ticket = limited.submit()
        info = until(engine, ticket, "scheduled", 1)
        assert info.due_at == datetime.fromtimestamp((START_MS + 90_000) / 1000, UTC)
        clock.advance(90_000)
        assert ticket.result("20s") == "through"


class Unprintable(Exception):
    def __str__(self) -> str:
        raise RuntimeError("not even its text")


class Base(BaseException):
    pass


@pytest.mark.parametrize(
    "raised",
    [
        SystemExit(3),
        KeyboardInterrupt(),
        GeneratorExit(),
        Base("of the root"),
        Unprintable(),
        MemoryError(),
        RecursionError("deep"),
        StopIteration(4),
        ExceptionGroup("two", [ValueError(1), OSError(2)]),
        asyncio.CancelledError("of its own"),
        UnicodeEncodeError("utf-8", "\ud800", 0, 1, "a lone surrogate"),
    ],
    ids=lambda error: type(error).__name__,
)
def test_whatever_a_handler_raises_costs_its_ticket_alone(
    tmp_path: Path, raised: BaseException
) -> None:
    with make(tmp_path / "data", threads=2) as engine:

        @engine.task(retry=None)
        def bad() -> None:
            raise raised

        @engine.task
        def good(n: int) -> int:
            return n

        tickets = [bad.submit() for _ in range(3)]
        others = [good.submit(n) for n in range(10)]
        assert [ticket.result("20s") for ticket in others] == list(range(10))
        for ticket in tickets:
            with pytest.raises(TicketFailed):
                ticket.result("20s")
            assert ticket.info().dead_reason in ("exhausted", "failed")
            assert outcomes(ticket) == ["error"]
        assert engine.stats().running == 0


def test_a_payload_of_yesterday_that_does_not_fit_runs_nothing(tmp_path: Path) -> None:
    with make(tmp_path / "data", durability="process", run=False) as engine:
        engine.task(name="scale")(lambda word: word)
        bad = engine.submit("scale", {"word": "not a number"}).id
        fits = engine.submit("scale", {"word": 4}).id
    ran: list[int] = []
    with make(tmp_path / "data", durability="process") as engine:

        @engine.task
        def scale(word: int) -> int:
            ran.append(word)
            return word * 2

        assert scale.ticket(fits).result("20s") == 8
        ticket = scale.ticket(bad)
        with pytest.raises(TicketFailed) as caught:
            ticket.result("20s")
        assert caught.value.reason == "bad_payload"
        assert ticket.info().attempts == 0, "no attempt is spent"
        assert ran == [4]


@pytest.mark.parametrize("value", [object(), {1, object()}, "x" * 300], ids=["no", "inside", "big"])
def test_a_result_that_cannot_be_kept_says_that_the_work_was_done(
    tmp_path: Path, value: Any
) -> None:
    with make(tmp_path / "data", max_payload=256) as engine:
        task = engine.task(name="work")(lambda: value)
        ticket = task.submit()
        with pytest.raises(TicketFailed) as caught:
            ticket.result("20s")
        assert caught.value.reason == "failed"
        info = ticket.info()
        assert (info.dead_reason, info.maybe_applied, info.attempts) == ("failed", True, 1)


def test_what_comes_too_late_is_buried_as_late(tmp_path: Path, clock: ManualClock) -> None:
    with make(tmp_path / "data", clock=clock) as engine:

        @engine.task(retry=RetryPolicy(None, backoff=["40s"], max_elapsed="1m"))
        def fails() -> None:
            raise OSError("down")

        ticket = fails.submit()
        until(engine, ticket, "scheduled", 1)
        clock.advance(40_000)
        with pytest.raises(TicketFailed) as caught:
            ticket.result("20s")
        assert caught.value.reason == "late"


def test_an_overrun_is_told_from_a_failure(tmp_path: Path, clock: ManualClock) -> None:
    with make(tmp_path / "data", clock=clock) as engine:

        @engine.task(timeout="5s", retry=None)
        def slow() -> str:
            clock.advance(5_000)
            return "too late"

        @engine.task(timeout="5s", retry=None, on_crash="ambiguous")
        def careful() -> str:
            clock.advance(5_000)
            return "too late"

        for task, reason in ((slow, "exhausted"), (careful, "ambiguous")):
            ticket = task.submit()
            with pytest.raises(TicketFailed) as caught:
                ticket.result("20s")
            assert caught.value.reason == reason
            assert ticket.info().maybe_applied
            assert outcomes(ticket) == ["ambiguous" if reason == "ambiguous" else "timeout"]


def test_a_policy_that_raises_buries_its_ticket_alone(tmp_path: Path) -> None:
    def decide(error: BaseException, info: Any) -> None:
        raise ZeroDivisionError("in the policy")

    with make(tmp_path / "data") as engine:

        @engine.task(retry=RetryPolicy(5, decide=decide))
        def bad() -> None:
            raise ValueError("in the handler")

        @engine.task
        def good() -> str:
            return "fine"

        tickets = [bad.submit() for _ in range(3)]
        assert good.submit().result("20s") == "fine"
        for ticket in tickets:
            with pytest.raises(TicketFailed) as caught:
                ticket.result("20s")
            assert (caught.value.reason, caught.value.error_type) == (
                "failed", "ZeroDivisionError",
            )  # fmt: skip
