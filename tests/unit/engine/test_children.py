"""Children: what a handler submits with its outcome, and that exists exactly when that does."""

from pathlib import Path
from typing import Any

import pytest

from kit.engines import make
from parkade import (
    Ambiguous,
    Attempt,
    ConfigError,
    Drop,
    Fail,
    NoAttempt,
    RetryAfter,
    Snooze,
    Ticket,
    TicketFailed,
    UnknownTicket,
    Unsafe,
    WaitInsideAttempt,
)
from parkade.testing import TestEngine, fake_attempt


@pytest.fixture
def engine() -> Any:
    with TestEngine(shards=3) as engine:

        @engine.task
        def child(n: int) -> int:
            return n * n

        yield engine


def test_a_child_has_its_id_at_once_and_runs_after_its_parent_is_done(engine: TestEngine) -> None:
    child = engine.lookup("child")
    ids: list[str] = []

    @engine.task
    def parent(attempt: Attempt) -> str:
        ticket = attempt.submit(child.call(7))
        assert ticket.created and ticket.task == "child"
        with pytest.raises(WaitInsideAttempt):
            ticket.result()
        assert not engine.submitted(child)
        ids.append(ticket.id)
        return ticket.id

    made = parent.submit()
    engine.run_until_idle()
    assert [info.id for info in engine.submitted(child)] == ids == [made.result()]
    assert child.ticket(ids[0]).result() == 49


@pytest.mark.parametrize(
    "verdict", [Snooze("1h"), Drop(), Fail("no"), Unsafe("no"), Ambiguous("?")]
)
def test_a_verdict_on_the_ticket_brings_its_children_forth(
    engine: TestEngine, verdict: Exception
) -> None:
    child = engine.lookup("child")

    @engine.task
    def parent(attempt: Attempt) -> None:
        attempt.submit(child.call(1))
        attempt.submit(child.options(key="k").call(2))
        raise verdict

    parent.submit()
    engine.run_until_idle()
    assert sorted(engine.ticket(i.id).result() for i in engine.submitted(child)) == [1, 4]


@pytest.mark.parametrize("error", [ValueError("no"), RetryAfter("1m")])
def test_an_attempt_that_fails_takes_its_children_with_it(
    engine: TestEngine, error: Exception
) -> None:
    child = engine.lookup("child")

    @engine.task(retry=["1m"])
    def parent(attempt: Attempt) -> None:
        attempt.submit(child.options(unique="once").call(attempt.number))
        attempt.submit(child.call(attempt.number))
        if attempt.number == 1:
            raise error

    parent.submit()
    engine.run_until_idle(skip_time=True)
    assert [engine.ticket(i.id).result() for i in engine.submitted(child)] == [4, 4]


def test_a_child_whose_unique_is_taken_answers_as_its_holder(engine: TestEngine) -> None:
    child = engine.lookup("child")
    order = child.options(unique="order-7", delay="1h")
    first = order.submit(3)
    ids: list[str] = []

    @engine.task
    def parent(attempt: Attempt) -> None:
        ids.extend(attempt.submit(order.call(n)).id for n in (4, 5))

    parent.submit()
    engine.run_until_idle()
    assert len(engine.submitted(child)) == 1
    for ticket_id in ids:
        assert ticket_id != first.id
        assert engine.ticket(ticket_id).info().id == first.id
    engine.run_until_idle(skip_time=True)
    assert [child.ticket(ticket_id).result() for ticket_id in ids] == [9, 9]
    reopened = engine.crash()
    assert [reopened.ticket(ticket_id).result() for ticket_id in ids] == [9, 9]
    assert reopened.ticket(ids[0]).cancel() == "too_late"


def test_children_of_a_key_run_in_the_order_of_their_submits(engine: TestEngine) -> None:
    ran: list[str] = []

    @engine.task(key="{order}")
    def step(order: str, n: int) -> None:
        ran.append(f"{order}{n}")

    @engine.task(unique="{order}-{n}", key="{order}", name="once")
    def once(order: str, n: int) -> None:
        ran.append(f"{order}{n}")

    @engine.task
    def parent(attempt: Attempt) -> None:
        for n in range(9):
            for order in "abc":
                task = once if n % 3 else step
                attempt.submit(task.call(order, n))

    parent.submit()
    engine.run_until_idle()
    for order in "abc":
        assert [one for one in ran if one[0] == order] == [f"{order}{n}" for n in range(9)]


def test_a_child_may_replace_the_ticket_that_has_its_unique(engine: TestEngine) -> None:
    child = engine.lookup("child")
    latest = child.options(unique="latest", on_conflict="replace", delay="1h")
    old = latest.submit(1)

    @engine.task
    def parent(attempt: Attempt) -> str:
        return attempt.submit(latest.call(2)).id

    made = parent.submit()
    engine.run_until_idle(skip_time=True)
    assert old.info().state == "cancelled"
    assert engine.ticket(made.result()).result() == 4


def test_a_thousand_children_of_an_outcome_all_run_and_one_more_is_refused(
    engine: TestEngine,
) -> None:
    child = engine.lookup("child")

    @engine.task
    def parent(attempt: Attempt) -> int:
        for n in range(1_000):
            attempt.submit(child.options(key=f"k{n % 7}").call(n) if n % 2 else child.call(n))
        with pytest.raises(ConfigError, match="1000 children"):
            attempt.submit(child.call(0))
        return 1_000

    ticket = parent.submit()
    engine.run_until_idle()
    assert ticket.result() == 1_000
    infos = engine.submitted(child)
    assert [info.state for info in infos] == ["done"] * 1_000
    assert {info.shard for info in infos if info.key is None} == {0, 1, 2}


def test_what_cannot_be_a_child_is_refused_in_the_handler(engine: TestEngine) -> None:
    child = engine.lookup("child")
    errors: list[str] = []

    @engine.task
    def parent(attempt: Attempt) -> None:
        bad: tuple[Any, ...] = (
            child,
            child.options(unique="u", on_conflict="error").call(1),
        )
        for call in bad:
            with pytest.raises(ConfigError) as refused:
                attempt.submit(call)
            errors.append(str(refused.value))

    ticket = parent.submit()
    engine.run_until_idle()
    assert ticket.info().state == "done", ticket.info().error
    assert "task.call(...)" in errors[0] and "on_conflict" in errors[1]


def test_an_attempt_that_is_over_takes_no_more_children(engine: TestEngine) -> None:
    child = engine.lookup("child")
    kept: list[Attempt] = []

    @engine.task
    def parent(attempt: Attempt) -> None:
        kept.append(attempt)

    parent.submit()
    engine.run_until_idle()
    with pytest.raises(NoAttempt):
        kept[0].submit(child.call(1))


def test_a_fake_attempt_keeps_the_calls_of_children(engine: TestEngine) -> None:
    child = engine.lookup("child")
    calls: list[Any] = []
    with fake_attempt(children=calls) as attempt:
        ids = {attempt.submit(child.call(n)).id for n in (1, 2)}
    assert calls == [child.call(1), child.call(2)] and len(ids) == 2


def test_whoever_hears_of_the_end_finds_the_children_on_their_way(tmp_path: Any) -> None:
    """With threads: the answer never comes before the child can be asked about."""
    from kit.engines import make

    with make(tmp_path / "data", shards=4) as engine:

        @engine.task
        def child(n: int) -> int:
            return n

        @engine.task
        def parent(attempt: Attempt, n: int) -> str:
            call = child.options(unique=f"u{n}", key=f"k{n % 5}").call(n)
            return attempt.submit(call).id

        parents: list[Ticket[str]] = [parent.submit(n) for n in range(40)]
        found = [child.ticket(ticket.result("20s")).result("20s") for ticket in parents]
        assert found == list(range(40))


@pytest.mark.parametrize("ask", ["info", "cancel", "reschedule", "result"])
def test_the_last_of_a_thousand_children_is_known_as_soon_as_its_parent_is_done(
    tmp_path: Path, ask: str
) -> None:
    """More than a window of the outbox holds, and than one batch brings."""
    with make(tmp_path / "data") as engine:

        @engine.task
        def child(n: int) -> int:
            return n

        @engine.task
        def parent(attempt: Attempt) -> list[str]:
            kind = child.options(key="busy", delay=None if ask == "result" else "1h")
            return [attempt.submit(kind.call(n)).id for n in range(1_000)]

        last = child.ticket(parent.submit().result("20s")[-1])
        if ask == "info":
            assert last.info().state == "scheduled"
        elif ask == "cancel":
            assert last.cancel() == "cancelled"
        elif ask == "reschedule":
            assert last.reschedule(delay="2h")
        else:
            assert last.result("20s") == 999


def test_an_id_that_nobody_made_is_unknown_also_while_children_are_on_their_way(
    tmp_path: Path,
) -> None:
    with make(tmp_path / "data") as engine:
        ids: list[str] = []

        @engine.task
        def child(n: int) -> int:
            return n

        @engine.task(retry=None)
        def parent(attempt: Attempt, is_done: bool) -> None:
            later = child.options(key="busy", delay="1h")
            ids.extend(attempt.submit(later.call(n)).id for n in range(1_000))
            if not is_done:
                raise ValueError("no children")

        with pytest.raises(TicketFailed):
            parent.submit(False).result("20s")
        parent.submit(True).result("20s")
        with pytest.raises(UnknownTicket):
            engine.ticket(ids[999]).info()
        assert engine.ticket(ids[1_999]).info().state == "scheduled"


def test_who_saves_a_checkpoint_behind_children_is_warned_once(
    engine: TestEngine, caplog: pytest.LogCaptureFixture
) -> None:
    child = engine.lookup("child")

    @engine.task(retry=[0])
    def load(attempt: Attempt) -> int:
        start = attempt.checkpoint(int, 0)
        for n in range(start, 6):
            attempt.submit(child.call(n))
            attempt.save_checkpoint(n + 1)
            if attempt.number == 1 and n == 3:
                raise OSError("cut off")
        return start

    ticket = load.submit()
    engine.run_until_idle(skip_time=True)
    assert ticket.result() == 4
    assert len(engine.submitted(child)) == 2, "those of the attempt that failed are not made"
    assert caplog.text.count("saved a checkpoint behind children") == 2, "once an attempt"
