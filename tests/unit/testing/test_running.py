"""Runs of a test engine: what is done, in which order, what is told, and that no thread helps."""

import contextlib
import threading
from collections.abc import Callable
from datetime import timedelta
from pathlib import Path

import pytest

from parkade import (
    Ambiguous,
    Attempt,
    Drop,
    Engine,
    EngineClosed,
    Fail,
    ResultTimeout,
    RetryAfter,
    RetryPolicy,
    Snooze,
    Tasks,
    TicketError,
    TicketFailed,
    Unsafe,
    WaitInsideAttempt,
    current_attempt,
)
from parkade.testing import Drained, ManualClock, StillBusy, TestEngine


def test_nothing_runs_before_it_is_told_to(parkade_engine: TestEngine) -> None:
    ran: list[int] = []

    @parkade_engine.task
    def note(n: int) -> None:
        ran.append(n)

    ticket = note.submit(1)
    assert ticket.info().state == "ready"
    assert ran == []
    assert parkade_engine.run_until_idle() == Drained(1, 0, 0, 0, attempts=1)
    assert ran == [1]
    assert ticket.info().state == "done"


def test_no_thread_is_ever_started(parkade_clock: ManualClock) -> None:
    def refuse(thread: threading.Thread) -> None:
        raise AssertionError(f"{thread.name} was started")

    before = threading.enumerate()
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(threading.Thread, "start", refuse)
        with TestEngine(clock=parkade_clock, shards=3) as engine:

            @engine.task
            def plain(n: int) -> int:
                return n

            @engine.task
            async def awaited(n: int) -> int:
                return n

            tickets = [plain.submit(1), awaited.submit(2), plain.options(delay="90d").submit(3)]
            assert engine.run_until_idle(skip_time=True).done == 3
            assert [ticket.result() for ticket in tickets] == [1, 2, 3]
            engine.crash()
            assert len(engine.submitted(plain)) == 2
    assert threading.enumerate() == before


def test_tickets_run_one_after_another_in_their_order(parkade_engine: TestEngine) -> None:
    ran: list[str] = []
    inside: list[str] = []

    @parkade_engine.task
    def note(name: str) -> None:
        assert not inside
        inside.append(name)
        ran.append(name)
        states = [info.state for info in parkade_engine.submitted(note)]
        assert states.count("running") == 1
        inside.remove(name)

    for name in ("a", "b", "c"):
        note.submit(name)
    note.options(priority=5).submit("first")
    assert parkade_engine.run_until_idle().done == 4
    assert ran == ["first", "a", "b", "c"]


def test_a_run_takes_what_its_handlers_submit(parkade_engine: TestEngine) -> None:
    ran: list[int] = []

    @parkade_engine.task
    def countdown(n: int) -> None:
        ran.append(n)
        if n:
            countdown.submit(n - 1)
            countdown.options(delay="1h", unique="once").submit(100)

    countdown.submit(3)
    assert parkade_engine.run_until_idle().done == 4
    assert ran == [3, 2, 1, 0]
    infos = parkade_engine.submitted(countdown)
    assert [info.state for info in infos] == ["done", "done", "scheduled", "done", "done"]
    assert infos[2].unique == "once"


def test_retries_over_days_take_no_time(parkade_engine: TestEngine) -> None:
    seen: list[timedelta] = []
    start = parkade_engine.clock.now()

    @parkade_engine.task(retry=["1m", "1d", "30d"])
    def flaky() -> str:
        seen.append(parkade_engine.clock.now() - start)
        if current_attempt().number < 4:
            raise ConnectionError("down")
        return "up"

    ticket = flaky.submit()
    drained = parkade_engine.run_until_idle(skip_time=True)
    assert (drained.done, drained.retried, drained.attempts) == (1, 3, 4)
    hours = [0, 1 / 60, 24 + 1 / 60, 31 * 24 + 1 / 60]
    assert seen == [timedelta(hours=each) for each in hours]
    assert ticket.result() == "up"
    assert [attempt.outcome for attempt in ticket.attempts()] == ["error"] * 3 + ["done"]


def test_the_report_tells_every_kind_of_end(parkade_engine: TestEngine) -> None:
    def raiser(error: BaseException) -> Callable[[], None]:
        def handler() -> None:
            raise error

        return handler

    ends = {
        "fails": Fail("no"),
        "ambiguous": Ambiguous("who knows"),
        "drops": Drop("gone"),
        "snoozes": Snooze("10m"),
        "retries": RetryAfter("10m", "busy"),
        "breaks": ValueError("odd"),
    }
    for name, error in ends.items():
        parkade_engine.task(name=name)(raiser(error)).submit()
    drained = parkade_engine.run_until_idle()
    assert drained.attempts == 6
    assert (drained.done, drained.dead, drained.cancelled) == (0, 2, 1)
    assert (drained.retried, drained.snoozed, drained.expired) == (2, 1, 0)
    raised = {one.task: one.error for one in drained.errors}
    assert raised == {name: ends[name] for name in ("fails", "ambiguous", "retries", "breaks")}


def test_what_handlers_raise_can_be_raised_in_the_test(parkade_engine: TestEngine) -> None:
    @parkade_engine.task(retry=None)
    def broken(n: int) -> None:
        raise ValueError(f"odd: {n}")

    ticket = broken.submit(1)
    drained = parkade_engine.run_until_idle()
    assert [(one.ticket_id, one.task, one.attempt) for one in drained.errors] == [
        (ticket.id, broken.name, 1)
    ]
    with pytest.raises(ValueError, match="odd: 1") as caught:
        drained.raise_errors()
    assert caught.traceback[-1].name == "broken"
    broken.submit(2)
    broken.submit(3)
    with pytest.raises(ExceptionGroup) as group:
        parkade_engine.run_until_idle().raise_errors()
    assert [str(error) for error in group.value.exceptions] == ["odd: 2", "odd: 3"]
    parkade_engine.run_until_idle().raise_errors()
    with pytest.raises(TicketFailed, match="odd: 1"):
        ticket.result()


def test_a_result_that_cannot_be_kept_is_among_the_errors(parkade_engine: TestEngine) -> None:
    @parkade_engine.task
    def opaque() -> object:
        return object()

    opaque.submit()
    drained = parkade_engine.run_until_idle()
    assert drained.dead == 1
    assert [type(one.error).__name__ for one in drained.errors] == ["PayloadError"]


def test_a_broken_policy_is_told_after_what_it_was_asked_about(parkade_engine: TestEngine) -> None:
    def decide(error: BaseException, info: object) -> None:
        raise KeyError("policy")

    @parkade_engine.task(retry=RetryPolicy(decide=decide))
    def broken() -> None:
        raise ValueError("odd")

    broken.submit()
    drained = parkade_engine.run_until_idle()
    assert [type(one.error) for one in drained.errors] == [ValueError, KeyError]


def test_a_payload_that_no_longer_fits_is_among_the_errors(parkade_engine: TestEngine) -> None:
    @parkade_engine.task(name="resize")
    def old(width: str) -> None: ...

    parkade_engine.submit("resize", {"width": "wide"})
    other = Tasks()

    @other.task(name="resize")
    def new(width: int) -> None: ...

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(parkade_engine, "task_of", other.task_of)
        drained = parkade_engine.run_until_idle()
    assert drained.dead == 1
    assert [type(one.error).__name__ for one in drained.errors] == ["PayloadError"]


def test_time_that_a_handler_spends_counts_against_its_timeout(parkade_engine: TestEngine) -> None:
    @parkade_engine.task(timeout="10s", retry=2)
    def slow(attempt: Attempt) -> str:
        assert attempt.time_left == timedelta(seconds=10)
        if attempt.number == 1:
            parkade_engine.clock.advance("11s")
            assert attempt.cancelled
        return "in time"

    ticket = slow.submit()
    drained = parkade_engine.run_until_idle(skip_time=True)
    assert (drained.done, drained.retried) == (1, 1)
    assert [one.outcome for one in ticket.attempts()] == ["timeout", "done"]
    assert ticket.info().maybe_applied


def test_a_unique_leads_to_the_ticket_that_is_there(parkade_engine: TestEngine) -> None:
    @parkade_engine.task(unique="order-{n}")
    def charge(n: int) -> int:
        return n

    first, second, other = charge.submit(7), charge.submit(7), charge.submit(8)
    assert (first.created, second.created, other.created) == (True, False, True)
    assert first.id == second.id != other.id
    assert parkade_engine.run_until_idle().done == 2
    assert charge.submit(7).id == first.id
    assert len(parkade_engine.submitted(charge)) == 2


def test_two_tickets_of_one_key_never_run_at_once(parkade_engine: TestEngine) -> None:
    ran: list[int] = []

    @parkade_engine.task(key="user-{user}")
    def note(user: str, n: int) -> None:
        ran.append(n)

    for n in range(6):
        note.submit("ann", n)
    assert parkade_engine.run_until_idle().done == 6
    assert ran == list(range(6))


def test_a_run_without_end_is_stopped_and_says_who_it_was(parkade_engine: TestEngine) -> None:
    @parkade_engine.task
    def again(n: int) -> None:
        again.submit(n + 1)

    @parkade_engine.task
    def once() -> None: ...

    once.submit()
    again.submit(0)
    with pytest.raises(
        StillBusy, match=r"made 20 attempts and is not idle: .*again \(19\)"
    ) as busy:
        parkade_engine.run_until_idle(max_tickets=20)
    assert busy.value.attempts == {again.name: 19, once.name: 1}
    with pytest.raises(StillBusy):
        parkade_engine.run_until_idle(max_tickets=5)
    assert len(parkade_engine.submitted(again)) == 25


def test_a_run_may_take_exactly_as_much_as_it_is_allowed(parkade_engine: TestEngine) -> None:
    @parkade_engine.task
    def note(n: int) -> None: ...

    parkade_engine.submit_many([note.call(n) for n in range(10)])
    assert parkade_engine.run_until_idle(max_tickets=10).done == 10


def test_a_wait_for_what_nobody_runs_ends_at_once(parkade_engine: TestEngine) -> None:
    @parkade_engine.task
    def note() -> None: ...

    ticket = note.options(delay="3d").submit()
    with pytest.raises(ResultTimeout, match=r"due in 3 d\. In a TestEngine no handler runs before"):
        ticket.result()


def test_another_thread_may_wait_for_what_this_one_runs(parkade_engine: TestEngine) -> None:
    @parkade_engine.task
    def note(n: int) -> int:
        return n

    ticket = note.submit(5)
    got: list[int] = []
    thread = threading.Thread(target=lambda: got.append(ticket.result(timeout=20)))
    thread.start()
    parkade_engine.run_until_idle()
    thread.join(20)
    assert got == [5]


def test_a_handler_may_not_wait_nor_begin_a_second_run(parkade_engine: TestEngine) -> None:
    @parkade_engine.task(retry=None)
    def waits(ticket_id: str) -> None:
        parkade_engine.ticket(ticket_id).result()

    @parkade_engine.task(retry=None)
    def runs() -> None:
        parkade_engine.run_until_idle()

    waits.submit(runs.submit().id)
    errors = parkade_engine.run_until_idle().errors
    assert {type(one.error) for one in errors} == {RuntimeError, WaitInsideAttempt}
    assert "a run is under way" in str(next(e.error for e in errors if e.task == runs.name))


def test_ctrl_c_in_a_handler_reaches_whoever_runs_the_tests(parkade_engine: TestEngine) -> None:
    @parkade_engine.task
    def interrupted() -> None:
        raise KeyboardInterrupt

    ticket = interrupted.submit()
    with pytest.raises(KeyboardInterrupt):
        parkade_engine.run_until_idle()
    assert ticket.info().state == "scheduled"
    assert parkade_engine.run_until_idle().attempts == 0


def test_a_handler_that_stops_its_engine_is_refused(parkade_engine: TestEngine) -> None:
    @parkade_engine.task(retry=1)
    def stops() -> None:
        parkade_engine.stop()

    @parkade_engine.task
    def stops_another() -> None:
        TestEngine(seed=1).start().stop()

    ticket, other = stops.submit(), stops_another.submit()
    assert parkade_engine.run_until_idle().dead == 1
    assert "stops its own engine" in (ticket.info().error or "")
    assert other.info().state == "done"


def test_an_engine_that_another_thread_stops_ends_the_run(parkade_clock: ManualClock) -> None:
    engine = TestEngine(clock=parkade_clock).start()

    @engine.task
    def stops() -> None:
        stopping = threading.Thread(target=engine.stop, args=(0, 0))
        stopping.start()
        stopping.join()

    stops.submit()
    with pytest.raises(EngineClosed, match="run_until_idle"):
        engine.run_until_idle()
    with pytest.raises(EngineClosed):
        stops.submit()


def test_submitted_gives_every_ticket_in_the_order_of_submits(parkade_engine: TestEngine) -> None:
    @parkade_engine.task
    def note(n: int) -> int:
        return n

    @parkade_engine.task
    def other() -> None: ...

    tickets = parkade_engine.submit_many([note.call(n) for n in range(1_100)])
    other.submit()
    tickets[3].cancel("not this one")
    infos = parkade_engine.submitted(note)
    assert [info.id for info in infos] == [ticket.id for ticket in tickets]
    assert [info.state for info in infos[:5]] == ["ready"] * 3 + ["cancelled", "ready"]
    assert parkade_engine.submitted(other)[0].task == other.name


def test_an_engine_that_only_submits_runs_nothing(parkade_clock: ManualClock) -> None:
    with TestEngine(clock=parkade_clock, run=False) as engine:

        @engine.task
        def note() -> None: ...

        note.submit()
        assert engine.run_until_idle(skip_time=True).attempts == 0
        assert engine.submitted(note)[0].state == "ready"


def test_a_run_leaves_alone_what_has_no_handler(tmp_path: object) -> None:
    with TestEngine(f"{tmp_path}/data") as engine:

        @engine.task(name="old.mail")
        def mail() -> None: ...

        mail.submit()
    with TestEngine(f"{tmp_path}/data") as engine:
        assert engine.run_until_idle(skip_time=True).attempts == 0
        assert engine.stats().by_task == {"old.mail": {"scheduled": 1}}


def test_a_test_engine_stands_in_for_that_of_an_application() -> None:
    application = Engine("never-opened")

    @application.task
    def greet(name: str) -> str:
        return f"hi {name}"

    with TestEngine().stand_in_for(application) as engine:
        ticket = greet.submit("ann")
        assert engine.run_until_idle().done == 1
        assert ticket.result() == "hi ann"
    with pytest.raises(EngineClosed):
        greet.submit("bob")


def test_a_directory_without_a_name_goes_with_its_engine() -> None:
    engine = TestEngine()
    with engine:
        pass
    assert not Path(engine.path).exists()


def test_every_end_is_the_same_as_in_an_engine_with_threads(tmp_path: Path) -> None:
    def live_through(engine: Engine, run: Callable[[], object]) -> list[tuple[object, ...]]:
        @engine.task(retry=None)
        def act(what: str) -> object:
            match what:
                case "fail":
                    raise Fail("declined", code=51)
                case "unsafe":
                    raise Unsafe("half written")
                case "ambiguous":
                    raise Ambiguous("no answer")
                case "drop":
                    raise Drop("user left")
                case "group":
                    raise ExceptionGroup("several", [ValueError("a"), Fail("b")])
                case "error":
                    raise ValueError("odd")
                case "exit":
                    raise SystemExit(3)
                case "opaque":
                    return object()
            return what

        names = ["fail", "unsafe", "ambiguous", "drop", "group", "error", "exit", "opaque", "done"]
        tickets = [act.submit(name) for name in names]
        run()
        ends: list[tuple[object, ...]] = []
        for ticket in tickets:
            with contextlib.suppress(TicketError):
                ticket.result(timeout=20)
            info = ticket.info()
            rows = [
                (one.number, one.outcome, one.error_type, one.error, one.traceback)
                for one in ticket.attempts()
            ]
            ends.append((info.state, info.dead_reason, info.error, info.maybe_applied, rows))
        return ends

    with TestEngine() as stepped:
        here = live_through(stepped, stepped.run_until_idle)
    with Engine(tmp_path / "data", shards=2, durability="memory") as threaded:
        there = live_through(threaded, lambda: None)
    assert here == there
    assert len({end[:2] for end in here}) >= 6
