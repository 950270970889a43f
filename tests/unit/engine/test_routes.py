"""Routes: the task that hears how a ticket ended, once for each recorded end."""

from pathlib import Path
from typing import Any

import pytest

from parkade import (
    Ambiguous,
    ConfigError,
    Drop,
    Fail,
    Outcome,
    PayloadError,
    Snooze,
    TicketCancelled,
    TicketExpired,
    TicketFailed,
)
from parkade.testing import ManualClock, TestEngine


@pytest.fixture
def heard() -> list[Outcome[str]]:
    return []


@pytest.fixture
def engine(heard: list[Outcome[str]]) -> Any:
    with TestEngine(clock=ManualClock()) as engine:

        @engine.task
        def hear(outcome: Outcome[str]) -> None:
            heard.append(outcome)

        @engine.task(name="charge", on_done=hear, on_dead=hear, on_cancel=hear, retry=1)
        def charge(how: str) -> str:
            match how:
                case "fail":
                    raise Fail("card refused")
                case "error":
                    raise ValueError("no such order")
                case "ambiguous":
                    raise Ambiguous("sent, no answer")
                case "drop":
                    raise Drop("not needed")
            return f"ch-{how}"

        yield engine


def test_a_ticket_that_is_done_tells_its_result(
    engine: TestEngine, heard: list[Outcome[str]]
) -> None:
    ticket = engine.submit("charge", {"how": "1"})
    assert engine.run_until_idle().done == 2
    (outcome,) = heard
    assert (outcome.ticket_id, outcome.task, outcome.state) == (ticket.id, "charge", "done")
    assert (outcome.attempts, outcome.error, outcome.error_type) == (1, None, None)
    assert outcome.result() == "ch-1"
    assert not outcome.ambiguous and not outcome.maybe_applied


@pytest.mark.parametrize(
    ("how", "error_type", "error", "reason", "is_ambiguous"),
    [
        ("fail", "Fail", "card refused", "failed", False),
        ("error", "ValueError", "no such order", "exhausted", False),
        ("ambiguous", "Ambiguous", "sent, no answer", "ambiguous", True),
    ],
)
def test_a_dead_ticket_tells_why(
    engine: TestEngine,
    heard: list[Outcome[str]],
    how: str,
    error_type: str,
    error: str,
    reason: str,
    is_ambiguous: bool,
) -> None:
    ticket = engine.submit("charge", {"how": how})
    engine.run_until_idle()
    (outcome,) = heard
    assert (outcome.state, outcome.error_type, outcome.error) == ("dead", error_type, error)
    assert (outcome.ambiguous, outcome.maybe_applied) == (is_ambiguous, is_ambiguous)
    with pytest.raises(TicketFailed) as failed:
        outcome.result()
    assert (failed.value.ticket_id, failed.value.reason) == (ticket.id, reason)


def test_what_is_cancelled_dropped_or_expired_is_told_to_on_cancel(
    engine: TestEngine, heard: list[Outcome[str]]
) -> None:
    charge = engine.lookup("charge")
    charge.options(delay="1h").submit("1").cancel("changed his mind")
    charge.submit("drop")
    engine.run_until_idle()
    charge.options(delay="1h", expires="1m").submit("2")
    engine.clock.advance("2h")
    engine.run_until_idle()
    assert [outcome.state for outcome in heard] == ["cancelled", "cancelled", "expired"]
    with pytest.raises(TicketCancelled, match="changed his mind"):
        heard[0].result()
    with pytest.raises(TicketCancelled, match="not needed"):
        heard[1].result()
    with pytest.raises(TicketExpired, match="within 1 min"):
        heard[2].result()


def test_the_route_of_a_submit_goes_before_the_tasks(engine: TestEngine) -> None:
    told: list[str] = []

    @engine.task
    def tell(event: Outcome[str], twice: bool = False) -> None:
        told.append(event.state)

    charge = engine.lookup("charge")
    charge.options(on_done=tell).submit("1")
    charge.options(on_done=tell).submit("fail")
    engine.run_until_idle()
    assert told == ["done"]
    assert len(engine.submitted(engine.lookup("hear"))) == 1


def test_a_retry_and_a_snooze_are_no_ends(engine: TestEngine, heard: list[Outcome[str]]) -> None:
    @engine.task(retry=["1m"], on_done=engine.lookup("hear"), on_dead=engine.lookup("hear"))
    def slow(attempt_of: list[int]) -> str:
        if not engine.lookup("slow").ticket(ticket.id).info().snoozes:
            raise Snooze("1m")
        if engine.ticket(ticket.id).info().attempts == 1:
            raise ValueError("again")
        return "at last"

    ticket = slow.submit([])
    engine.run_until_idle(skip_time=True)
    assert [outcome.result() for outcome in heard] == ["at last"]


def test_a_resolved_ticket_is_done_and_one_that_dies_again_is_told_again(
    engine: TestEngine, heard: list[Outcome[str]]
) -> None:
    ticket = engine.submit("charge", {"how": "fail"})
    engine.run_until_idle()
    engine.dead.revive(ticket.id)
    engine.run_until_idle()
    assert [outcome.state for outcome in heard] == ["dead", "dead"]
    engine.dead.resolve(ticket.id, "by hand")
    engine.run_until_idle()
    assert heard[-1].state == "done" and heard[-1].result() == "by hand"


def test_a_dropped_and_a_forgotten_ticket_tell_nobody(
    engine: TestEngine, heard: list[Outcome[str]]
) -> None:
    ticket = engine.submit("charge", {"how": "fail"})
    engine.run_until_idle()
    engine.dead.drop(ticket.id)
    engine.run_until_idle()
    assert len(heard) == 1


def test_a_ticket_that_is_replaced_was_cancelled(
    engine: TestEngine, heard: list[Outcome[str]]
) -> None:
    charge = engine.lookup("charge").options(delay="1h", unique="one", on_conflict="replace")
    first = charge.submit("1")
    charge.submit("2")
    engine.run_until_idle()
    assert [(o.ticket_id, o.state) for o in heard] == [(first.id, "cancelled")]


def test_templates_of_a_route_read_the_outcome(engine: TestEngine) -> None:
    @engine.task(key="{outcome.task}", unique="{outcome.ticket_id}", summary="of {outcome.state}")
    def note(outcome: Outcome[str]) -> None: ...

    ticket = engine.lookup("charge").options(on_done=note).submit("1")
    engine.run_until_idle()
    (info,) = engine.submitted(note)
    assert (info.key, info.unique, info.summary) == ("charge", ticket.id, "of done")
    assert info.state == "done"


def test_a_template_that_does_not_go_with_the_outcome_costs_the_route_its_key_alone(
    engine: TestEngine,
) -> None:
    @engine.task(key="{outcome.error_type}")
    def note(outcome: Outcome[str]) -> None: ...

    ticket = engine.lookup("charge").options(on_done=note).submit("1")
    engine.run_until_idle()
    assert ticket.result() == "ch-1"
    (info,) = engine.submitted(note)
    assert (info.state, info.key) == ("done", None)


def test_a_result_that_does_not_fit_the_route_fails_where_it_is_asked_for(
    engine: TestEngine,
) -> None:
    errors: list[BaseException] = []

    @engine.task
    def count(outcome: Outcome[int]) -> None:
        try:
            outcome.result()
        except PayloadError as error:
            errors.append(error)

    engine.lookup("charge").options(on_done=count).submit("1")
    engine.run_until_idle()
    assert len(errors) == 1 and "annotation of the route" in str(errors[0])


def test_a_route_may_have_routes_and_its_own_error_is_its_own(engine: TestEngine) -> None:
    ends: list[str] = []

    @engine.task
    def last(outcome: Outcome[Any]) -> None:
        ends.append(f"{outcome.task}: {outcome.error}")

    @engine.task(on_dead=last, retry=1)
    def broken(outcome: Outcome[str]) -> None:
        raise ValueError("mail is down")

    ticket = engine.lookup("charge").options(on_done=broken).submit("1")
    engine.run_until_idle()
    assert ticket.info().state == "done"
    assert ends == ["broken: mail is down"]


def test_a_route_of_the_submit_goes_out_where_no_task_is_registered(tmp_path: Path) -> None:
    told: list[str] = []

    def open_with_code() -> TestEngine:
        engine = TestEngine(tmp_path / "data", clock=clock)

        @engine.task
        def tell(end: Outcome[str]) -> None:
            told.append(end.state)

        @engine.task
        def work() -> str:
            return "done"

        return engine

    clock = ManualClock()
    with open_with_code() as engine:
        work = engine.lookup("work")
        ticket = work.options(delay="1h", on_cancel=engine.lookup("tell")).submit()
    with TestEngine(tmp_path / "data", clock=clock) as bare:
        assert bare.ticket(ticket.id).cancel() == "cancelled"
        assert bare.run_until_idle().attempts == 0
    with open_with_code() as engine:
        engine.run_until_idle()
    assert told == ["cancelled"]


def test_what_cannot_hear_of_an_outcome_is_refused_where_it_is_written(engine: TestEngine) -> None:
    @engine.task
    def none() -> None: ...

    @engine.task
    def number(n: int) -> None: ...

    @engine.task
    def two(outcome: Outcome[str], more: int) -> None: ...

    charge: Any = engine.lookup("charge")
    tasks: list[Any] = [none, number, two, print, "hear"]
    for task in tasks:
        with pytest.raises(ConfigError, match="on_done"):
            charge.options(on_done=task)
        with pytest.raises(ConfigError, match="on_dead"):
            engine.task(name="other", on_dead=task)(print)
    with pytest.raises(ConfigError, match="has the options of its task"):
        charge.options(on_cancel=engine.lookup("hear").options(delay="1h"))
