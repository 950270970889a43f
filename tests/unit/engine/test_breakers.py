"""Breakers in a whole engine: what opens one, who waits, and what outlives the process."""

import logging
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from parkade import (
    Ambiguous,
    Breaker,
    ConfigError,
    Drop,
    Fail,
    RetryAfter,
    RetryPolicy,
    Snooze,
    Unsafe,
)
from parkade.tasks import Task
from parkade.testing import TestEngine

PATIENT = RetryPolicy(50, backoff=["1s"])


class Down(Exception):
    """The target does not answer."""


class Flaky:
    """A handler that does what it is told, and notes when it was called."""

    def __init__(self, engine: TestEngine, name: str = "charge", **options: Any) -> None:
        self.engine = engine
        self.calls: list[int] = []
        self.act: Callable[[], object] = lambda: None
        settings: dict[str, Any] = {"target": "psp", "retry": PATIENT} | options

        def charge() -> object:
            self.calls.append(engine.clock.now_ms())
            return self.act()

        self.task: Task[..., Any] = engine.task(name=name, **settings)(charge)

    def fail(self, error: Exception | None = None) -> None:
        raised = error or Down("no answer")

        def act() -> object:
            raise raised

        self.act = act

    def work(self) -> None:
        self.act = lambda: None


@pytest.fixture
def engine() -> Iterator[TestEngine]:
    with TestEngine() as engine:
        yield engine


def submit(flaky: Flaky, count: int) -> None:
    flaky.engine.submit_many(flaky.task.call() for _ in range(count))


def state_of(engine: TestEngine, name: str = "psp") -> str:
    return engine.breakers[name].state


def test_failures_in_a_row_open_it_and_what_waits_spends_no_attempt(engine: TestEngine) -> None:
    flaky = Flaky(engine, breaker=Breaker("psp", failures=3, open_for="1m"))
    flaky.fail()
    tickets = [flaky.task.submit() for _ in range(10)]
    assert engine.run_until_idle().attempts == 3
    assert state_of(engine) == "open"
    engine.clock.advance("59s")
    assert engine.run_until_idle().attempts == 0
    assert [ticket.info().attempts for ticket in tickets] == [1] * 3 + [0] * 7
    assert engine.breakers["psp"].held == 10


def test_one_probe_goes_first_and_its_success_lets_the_others_go(engine: TestEngine) -> None:
    flaky = Flaky(engine, breaker=Breaker("psp", failures=1, open_for="1m"))
    flaky.fail()
    submit(flaky, 5)
    engine.run_until_idle()
    engine.clock.advance("1m")
    engine.run_until_idle()
    assert len(flaky.calls) == 2  # the probe failed, and the others waited for it
    flaky.work()
    engine.clock.advance("2m")
    assert engine.run_until_idle().done == 5
    assert state_of(engine) == "closed"


def test_each_failed_probe_doubles_the_wait_up_to_the_longest(engine: TestEngine) -> None:
    breaker = Breaker("psp", failures=1, open_for="10s", max_open_for="35s")
    flaky = Flaky(engine, breaker=breaker, retry=RetryPolicy(6, backoff=["1s"]))
    flaky.fail()
    submit(flaky, 1)
    engine.run_until_idle(skip_time=True)
    waits = [later - earlier for earlier, later in zip(flaky.calls, flaky.calls[1:], strict=False)]
    assert waits == [10_000, 20_000, 35_000, 35_000, 35_000]


def test_a_success_between_failures_starts_the_count_again(engine: TestEngine) -> None:
    flaky = Flaky(engine, breaker=Breaker("psp", failures=2))
    for is_failing in (True, False, True, False, True):
        flaky.fail() if is_failing else flaky.work()
        flaky.task.options(retry=1).submit()
        engine.run_until_idle()
    assert state_of(engine) == "closed"
    assert engine.breakers["psp"].failures == 1


def test_failures_that_lie_further_apart_than_the_window_do_not_add_up(
    engine: TestEngine,
) -> None:
    flaky = Flaky(engine, breaker=Breaker("psp", failures=2, window="30s"), retry=1)
    flaky.fail()
    for wait in ("30s", "30s", "29s"):
        submit(flaky, 1)
        engine.run_until_idle()
        assert state_of(engine) == "closed"
        engine.clock.advance(wait)
    submit(flaky, 1)
    engine.run_until_idle()
    assert state_of(engine) == "open"


@pytest.mark.parametrize(
    ("error", "counts"),
    [
        (Down("no answer"), True),
        (Unsafe("half written"), True),
        (Ambiguous("no answer after the send"), True),
        (RetryAfter("1s", "busy"), False),
        (Fail("declined"), False),
        (ValueError("a bug of ours"), False),
        (Snooze("1s"), False),
        (Drop("not wanted"), False),
    ],
    ids=lambda value: type(value).__name__ if isinstance(value, Exception) else "",
)
def test_what_is_said_of_the_target_counts_and_the_rest_does_not(
    engine: TestEngine, error: Exception, counts: bool
) -> None:
    flaky = Flaky(engine, breaker=Breaker("psp", failures=1, trip_on=(Down,)))
    flaky.fail(error)
    submit(flaky, 1)
    engine.run_until_idle()
    assert state_of(engine) == ("open" if counts else "closed")


def test_a_timeout_counts_as_the_target_not_answering(engine: TestEngine) -> None:
    flaky = Flaky(engine, breaker=Breaker("psp", failures=1), timeout="5s")
    flaky.act = lambda: engine.clock.advance("6s")
    submit(flaky, 1)
    engine.run_until_idle()
    assert state_of(engine) == "open"


def test_a_process_that_dies_says_nothing_of_the_target(tmp_path: Path) -> None:
    engine = TestEngine(tmp_path / "data")
    flaky = Flaky(engine, breaker=Breaker("psp", failures=1))
    with engine:
        submit(flaky, 1)
        flaky.act = lambda: engine.crash()
        with pytest.raises(BaseException, match="crashed in a handler"):
            engine.run_until_idle()
    with engine:
        assert state_of(engine) == "closed"


def test_a_probe_that_says_nothing_of_the_target_frees_its_turn(engine: TestEngine) -> None:
    flaky = Flaky(engine, breaker=Breaker("psp", failures=1, open_for="1m"))
    flaky.fail()
    submit(flaky, 4)
    engine.run_until_idle()
    engine.clock.advance("1m")
    flaky.fail(Fail("declined"))
    assert engine.run_until_idle().dead == 4  # one after the other, each of them a probe
    assert state_of(engine) == "half_open"


def test_it_guards_all_tasks_of_its_target_and_no_other(engine: TestEngine) -> None:
    charge = Flaky(engine, breaker=Breaker(failures=2, open_for="1m"))
    refund = Flaky(engine, "refund")
    elsewhere = Flaky(engine, "elsewhere", target="bank")
    charge.fail()
    refund.fail()
    submit(charge, 1)
    submit(refund, 1)
    engine.run_until_idle()
    assert state_of(engine) == "open"
    for flaky in (charge, refund, elsewhere):
        submit(flaky, 1)
    assert engine.run_until_idle().done == 1
    assert [len(flaky.calls) for flaky in (charge, refund, elsewhere)] == [1, 1, 1]


def test_a_target_nobody_asked_a_breaker_for_has_none(engine: TestEngine) -> None:
    flaky = Flaky(engine)
    flaky.fail()
    submit(flaky, 20)
    assert engine.run_until_idle().attempts == 20
    assert engine.breakers.list() == []


def test_a_task_without_a_target_has_a_breaker_of_its_own_name(engine: TestEngine) -> None:
    flaky = Flaky(engine, target=None, breaker=Breaker(failures=1))
    flaky.fail()
    submit(flaky, 3)
    assert engine.run_until_idle().attempts == 1
    assert state_of(engine, "charge") == "open"


def test_by_share_it_opens_when_so_many_of_enough_calls_failed(engine: TestEngine) -> None:
    breaker = Breaker("psp", rate=0.5, min_calls=6, window="1m")
    flaky = Flaky(engine, breaker=breaker, retry=1)
    for is_failing in (False, True, True, False, True):
        flaky.fail() if is_failing else flaky.work()
        submit(flaky, 1)
        engine.run_until_idle()
        assert state_of(engine) == "closed"
    flaky.fail()
    submit(flaky, 1)
    engine.run_until_idle()
    assert state_of(engine) == "open"


def test_a_trip_outlives_a_crash_and_is_in_force_before_anything_starts(tmp_path: Path) -> None:
    engine = TestEngine(tmp_path / "data")
    flaky = Flaky(engine, breaker=Breaker("psp", failures=1, open_for="1h", max_open_for="1h"))
    with engine:
        flaky.fail()
        submit(flaky, 3)
        engine.run_until_idle()
        before = engine.breakers["psp"]
        engine.crash()
        assert engine.breakers["psp"] == before
        engine.clock.advance("30m")
        assert engine.run_until_idle().attempts == 0
        flaky.work()
        engine.clock.advance("30m")
        assert engine.run_until_idle().done == 3
        engine.crash()
        assert state_of(engine) == "closed"
    with engine:  # after a clean stop as well
        assert state_of(engine) == "closed"


def test_it_is_announced_when_it_opens_and_when_it_closes(
    engine: TestEngine, caplog: pytest.LogCaptureFixture
) -> None:
    flaky = Flaky(engine, breaker=Breaker("psp", failures=2, open_for="1m"))
    flaky.fail()
    with caplog.at_level(logging.INFO, "parkade.engine"):
        submit(flaky, 2)
        engine.run_until_idle()
        flaky.work()
        engine.run_until_idle(skip_time=True)
    lines = [record.message for record in caplog.records if record.message.startswith("breaker")]
    assert lines[0].startswith("breaker psp opened (2 failures in a row: ")
    assert ".Down); next probe at 20" in lines[0]
    assert lines[1] == "breaker psp closed"


def test_an_operator_opens_and_closes_it(tmp_path: Path) -> None:
    engine = TestEngine(tmp_path / "data")
    flaky = Flaky(engine)
    with engine:
        engine.breakers.force_open("psp", reason="their maintenance")
        submit(flaky, 2)
        engine.clock.advance("10d")
        assert engine.run_until_idle(skip_time=True).attempts == 0
        engine.crash()
        state = engine.breakers["psp"]
        assert (state.state, state.next_probe_at, state.held) == ("forced_open", None, 2)
        assert engine.run_until_idle(skip_time=True).attempts == 0
        engine.breakers.close("psp")
        assert engine.run_until_idle().done == 2
        engine.breakers.force_open("psp", for_="1h")
        submit(flaky, 2)
        engine.clock.advance("59m")
        assert engine.run_until_idle().attempts == 0
        engine.clock.advance("1m")
        assert engine.run_until_idle().done == 2
        assert state_of(engine) == "closed"


def test_what_cannot_be_right_is_refused_where_it_is_written(engine: TestEngine) -> None:
    with pytest.raises(ConfigError):
        engine.breakers.force_open("")
    with pytest.raises(ConfigError):
        engine.breakers.force_open("psp", for_=0)
    with pytest.raises(ConfigError):
        engine.breakers.force_open("psp", reason=5)  # type: ignore[arg-type]
    with pytest.raises(ConfigError):
        engine.breakers.close("")


def test_breakers_that_are_closed_and_idle_are_kept_nowhere(engine: TestEngine) -> None:
    @engine.task(target="host-{n}", breaker=Breaker(failures=3), retry=1)
    def fetch(n: int) -> None:
        if n % 2:
            raise Down()

    engine.submit_many(fetch.call(n) for n in range(600))
    engine.run_until_idle()
    guards = engine.desk("test").runtime.attempts.admission.guards
    assert len(guards.circuits) == 300  # each has one failure that counts
    engine.clock.advance("1m")
    engine.submit_many(fetch.call(2 * n) for n in range(300))
    engine.run_until_idle()
    assert guards.circuits == {}
    assert guards.on_trial == {}


def test_a_half_open_breaker_that_nobody_tries_is_closed_and_told_of(engine: TestEngine) -> None:
    rules = Breaker(failures=1, open_for="2s", max_open_for="8s")
    charge = Flaky(engine, breaker=rules, retry=None)
    other = Flaky(engine, "other", target="bank", breaker=Breaker())
    charge.fail()
    charge.task.submit()
    engine.run_until_idle()
    events = engine.events("breaker_closed")
    for span, state in (("9s", "half_open"), ("2s", "closed")):
        engine.clock.advance(span)
        other.task.submit()  # any outcome has one of the breakers looked at
        engine.run_until_idle()
        assert engine.breakers["psp"].state == state
    assert [event.data["breaker"] for event in events] == ["psp"]
    engine.crash()
    assert engine.breakers["psp"].state == "closed"
