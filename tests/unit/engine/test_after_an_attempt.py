"""The table "After an attempt" of docs/semantics.md, row by row, through the public API: what a
handler does, under which policy, and what the ticket and its history then say."""

import asyncio
from datetime import datetime, timedelta
from itertools import pairwise
from typing import Any, NamedTuple

import pytest

from parkade import (
    Ambiguous,
    AttemptInfo,
    Backoff,
    Cancelled,
    Drop,
    Fail,
    RetryAfter,
    RetryPolicy,
    Snooze,
    Unsafe,
)
from parkade.testing import TestEngine

MINUTE = 60.0
PLAIN = RetryPolicy(4, backoff=["1m", "5m"])
TYPED = RetryPolicy(
    4, backoff=["1m", "5m"], retry_on=(OSError, LookupError), give_up_on=(KeyError, FileExistsError)
)


def decided(answer: Any) -> RetryPolicy:
    """A policy whose `decide` answers so, or raises it."""

    def decide(error: BaseException, info: AttemptInfo) -> Any:
        if isinstance(answer, BaseException):
            raise answer
        return answer(error, info) if callable(answer) else answer

    return RetryPolicy(4, backoff=["1m", "5m"], give_up_on=(KeyError,), decide=decide)


class Row(NamedTuple):
    """`does`: what the attempts raise or return, in order; the last one again and again. `ends`:
    the state, or why it is dead. `waits`: between the attempts, in seconds."""

    name: str
    does: list[Any]
    ends: str
    outcomes: list[str]
    waits: list[float]
    policy: Any = PLAIN
    is_unsure: bool = False
    settings: dict[str, Any] = {}  # noqa: RUF012


DOWN = ConnectionError("down")
FOUR = ["error"] * 4
AS_PLAIN = [MINUTE, 5 * MINUTE, 5 * MINUTE]
ROWS = (
    Row("returns", ["ok"], "done", ["done"], []),
    Row("returns after a failure", [DOWN, "ok"], "done", ["error", "done"], [MINUTE]),
    Row("returns what cannot be kept", [object()], "failed", ["error"], [], is_unsure=True),
    Row("RetryAfter", [RetryAfter("10s"), "ok"], "done", ["retry_after", "done"], [10]),
    Row(
        "RetryAfter beyond the cap", [RetryAfter("9h"), "ok"], "done", ["retry_after", "done"],
        [7_200],
        RetryPolicy(2, backoff=Backoff("1m", cap="2h")),
    ),
    Row("RetryAfter in the last attempt", [RetryAfter("1s")], "exhausted", ["retry_after"] * 4,
        [1] * 3),
    Row("RetryAfter is not for the policy", [RetryAfter("1s"), "ok"], "done",
        ["retry_after", "done"], [1], decided("give_up")),
    Row("raises to the end", [DOWN], "exhausted", FOUR, AS_PLAIN),
    Row("raises a type to be retried", [IndexError(), "ok"], "done", ["error", "done"], [MINUTE],
        TYPED),
    Row("raises a type outside retry_on", [ValueError()], "failed", ["error"], [], TYPED),
    Row("raises a type in give_up_on", [KeyError()], "failed", ["error"], [], TYPED),
    Row("raises a type in both", [FileExistsError()], "failed", ["error"], [], TYPED),
    Row("raises a type it retries, then one it does not", [DOWN, ValueError()], "failed",
        ["error"] * 2, [MINUTE], TYPED),
    Row("Fail", [Fail("no")], "failed", ["error"], []),
    Row("Fail in spite of decide", [Fail("no")], "failed", ["error"], [], decided("1s")),
    Row("Unsafe", [Unsafe("half done")], "unsafe", ["unsafe"], []),
    Row("Ambiguous", [Ambiguous("?")], "ambiguous", ["ambiguous"], [], is_unsure=True),
    Row("Snooze", [Snooze("7s"), Snooze("8s"), "ok"], "done", ["snoozed", "snoozed", "done"],
        [7, 8]),
    Row("Snooze beyond its bound", [Snooze("7s")], "exhausted", ["snoozed", "snoozed", "error"],
        [7, 7], settings={"max_snoozes": 2}),
    Row("Drop", [Drop("no use")], "cancelled", ["cancelled"], []),
    Row("Cancelled", [Cancelled("stop")], "cancelled", ["cancelled"], []),
    Row("SystemExit", [SystemExit(2), "ok"], "done", ["error", "done"], [MINUTE]),
    Row("SystemExit outside retry_on", [SystemExit(2), "ok"], "done", ["error", "done"], [MINUTE],
        TYPED),
    Row("a CancelledError of its own", [asyncio.CancelledError(), "ok"], "done",
        ["error", "done"], [MINUTE]),
    Row("decide gives a wait", [DOWN, "ok"], "done", ["error", "done"], [90],
        decided(timedelta(seconds=90))),
    Row("decide gives a wait against give_up_on", [KeyError(), "ok"], "done", ["error", "done"],
        [90], decided("90s")),
    Row("decide gives up", [DOWN], "failed", ["error"], [], decided("give_up")),
    Row("decide leaves it to the types", [KeyError()], "failed", ["error"], [], decided(None)),
    Row("decide sees the attempt", [DOWN], "exhausted", FOUR, [1, 2, 3],
        decided(lambda error, info: info.number)),
    Row("decide raises", [DOWN], "failed", ["error"], [], decided(ZeroDivisionError("mine"))),
    Row("decide raises a verdict", [DOWN], "failed", ["error"], [], decided(Snooze("1s"))),
    Row("decide answers nonsense", [DOWN], "failed", ["error"], [], decided(["1s"])),
    Row("decide answers what never comes", [DOWN], "failed", ["error"], [], decided("9999y")),
    Row("a wait of thousands of years", [DOWN, "ok"], "done", ["error", "done"],
        [5_000 * 365 * 86_400], decided("5000y")),
    Row("no retry", [DOWN], "exhausted", ["error"], [], None),
    Row("a number", [DOWN], "exhausted", ["error"], [], 1),
    Row("a list of waits", [DOWN], "exhausted", ["error"] * 3, [3, 600], ["3s", "10m"]),
    Row("max_elapsed before the attempts", [DOWN], "late", ["error"] * 2, [MINUTE],
        RetryPolicy(4, backoff=["1m", "5m"], max_elapsed="6m")),
    Row("the attempts before max_elapsed", [DOWN], "exhausted", ["error"] * 2, [MINUTE],
        RetryPolicy(2, backoff=["1m", "5m"], max_elapsed="6m")),
    Row("max_elapsed a moment longer", [DOWN], "late", ["error"] * 3, [MINUTE, 5 * MINUTE],
        RetryPolicy(4, backoff=["1m", "5m"], max_elapsed="361s")),
    Row("a hint beyond max_elapsed", [RetryAfter("1h")], "late", ["retry_after"], [],
        RetryPolicy(4, backoff=["1m"], max_elapsed="10m")),
)  # fmt: skip


@pytest.mark.parametrize("row", ROWS, ids=lambda row: row.name)
def test_after_an_attempt_the_ticket_says_what_the_table_says(
    parkade_engine: TestEngine, row: Row
) -> None:
    engine = parkade_engine
    does = list(row.does)

    @engine.task(retry=row.policy, **row.settings)
    def work() -> Any:
        what = does.pop(0) if len(does) > 1 else does[0]
        if isinstance(what, BaseException):
            raise what
        return what

    ticket = work.submit()
    engine.run_until_idle(skip_time=True)
    info = ticket.info()
    attempts = ticket.attempts()
    starts = [attempt.started_at for attempt in attempts]
    assert row.ends in (info.state, info.dead_reason)
    assert (info.state == "dead") is (info.dead_reason is not None)
    assert [attempt.outcome for attempt in attempts] == row.outcomes
    waits = [(b - a).total_seconds() for a, b in pairwise(starts)]
    assert waits == row.waits
    assert info.maybe_applied is row.is_unsure
    assert info.fence == len(attempts)


@pytest.mark.parametrize(
    ("raised", "told"),
    [
        (decided(ZeroDivisionError("mine")), "ZeroDivisionError: mine"),
        (decided(["1s"]), "ConfigError"),
    ],
)
def test_a_policy_that_breaks_says_so_and_what_it_was_asked_about(
    parkade_engine: TestEngine, raised: RetryPolicy, told: str
) -> None:
    @parkade_engine.task(retry=raised)
    def work() -> None:
        raise DOWN

    ticket = work.submit()
    parkade_engine.run_until_idle()
    error = ticket.info().error
    assert error is not None
    assert error.startswith(told)
    assert "asked about ConnectionError: down" in error


@pytest.mark.parametrize(
    "policy",
    [
        RetryPolicy(backoff=Backoff(jitter="none")),
        RetryPolicy(6, backoff=Backoff("1s", factor=1, jitter="none")),
        RetryPolicy(None, backoff=Backoff("1h", factor=2.5, cap="30d", jitter="none"),
                    max_elapsed="1y"),
        RetryPolicy(7, backoff=["1m", "5m", "1h"]),
        RetryPolicy(7, backoff=["1m", "5m", "1h"], max_elapsed="7m"),
        RetryPolicy(1),
        RetryPolicy(20, backoff=["200y"]),
        RetryPolicy(12, backoff=Backoff("1ms", factor=1e300, cap="100y", jitter="none")),
    ],
)  # fmt: skip
@pytest.mark.parametrize("where", ["task", "ticket"])
def test_the_timetable_is_kept_to_the_millisecond(
    parkade_engine: TestEngine, policy: RetryPolicy, where: str
) -> None:
    """`preview()` without jitter is when the retries come, and how many there are, also by the
    numbers that a ticket brings along."""
    engine = parkade_engine
    preview = list(policy.preview())

    starts: list[datetime] = []

    @engine.task(retry=policy if where == "task" else 3)
    def work() -> None:
        starts.append(engine.clock.now())
        raise DOWN

    submitted = engine.clock.now()
    (work if where == "task" else work.options(retry=policy)).submit()
    engine.run_until_idle(skip_time=True)
    assert [start - submitted for start in starts] == [timedelta(0), *preview]
