"""One place for processes, step by step: a child of the test's own, a clock that stands still."""

from collections.abc import Iterator
from typing import Any

import msgspec
import pytest

from kit import process_tasks as work
from kit.attempts import AttemptRig, StillClock
from parkade import process_place
from parkade.clock import Clock
from parkade.job import Job
from parkade.process_place import Phase, ProcessPlace
from parkade.runs import Run
from parkade.settling import Settler
from parkade.shard.commands import Outcome
from parkade.store.lock import Child
from parkade.store.record import ErrorText, Options
from parkade.wire import (
    Ask,
    BadMessage,
    Begun,
    Bye,
    Ended,
    Note,
    Order,
    Ready,
    Stop,
    ToChild,
    ToOwner,
    Unfit,
    Welcome,
)


class StillProcess:
    """A child that does what the test says: `said` is what it says next, `got` what it was told."""

    def __init__(self, frame_bytes_max: int) -> None:
        self.pid = 4_000
        self.said: list[ToOwner | BadMessage] = []
        self.got: list[ToChild] = []
        self.signals: list[str] = []
        self.is_dead = self.is_hung_up = self.is_closed = False
        self.exit_code = 0

    def send(self, message: ToChild) -> None:
        self.got.append(message)

    def hear(self) -> Iterator[ToOwner]:
        while self.said:
            message = self.said.pop(0)
            if isinstance(message, BadMessage):
                raise message
            yield message

    def die(self, exit_code: int) -> None:
        self.is_dead = self.is_hung_up = True
        self.exit_code = exit_code

    def terminate(self) -> None:
        self.signals.append("TERM")

    def kill(self) -> None:
        self.signals.append("KILL")

    def close(self) -> None:
        self.is_closed = True


class Rules:
    """A place, and what became of what it was given."""

    def __init__(self) -> None:
        self.still = StillClock()
        self.clock: Clock = self.still
        self.settler = Settler(clock=self.clock, entropy=lambda: 0, result_bytes_max=100)
        self.start_ms, self.grace_ms, self.frame_bytes_max = 1_000, 50, 10_000
        self.may_begin = True
        self.note_error: Exception | None = None
        self.outcomes: list[Outcome] = []
        self.notes: list[Note] = []
        self.place = ProcessPlace(self)
        self._jobs = AttemptRig()

    def welcome(self) -> Welcome:
        return Welcome([], None, None, 100)

    def order(self, job: Job) -> Order:
        return Order(job.ticket, job.ticket_id, job.number, job.task.name, [], job.payload)

    def claim(self, run: Run) -> bool:
        return self.may_begin

    def note(self, run: Run, note: Note) -> None:
        self.notes.append(note)

    def answer(self, run: Run, asked: Ask) -> None:
        raise BadMessage("nobody answers here")

    def finish(self, run: Run, outcome: Outcome) -> None:
        self.outcomes.append(outcome)

    def note_children(self) -> None:
        if self.note_error is not None:
            raise self.note_error

    # ------------------------------------------------------------------------- for the tests

    @property
    def process(self) -> StillProcess:
        process: object = self.place.process
        assert isinstance(process, StillProcess)
        return process

    def give(self, timeout_ms: int | None = None) -> Run:
        options = None if timeout_ms is None else Options(timeout_ms=timeout_ms)
        job = self._jobs.job(work.add, 1, 2, options=options)
        run = Run(job, self._jobs.executor.processes, (job.serial, job.fence))
        self.place.give(run)
        return run

    def say(self, *messages: ToOwner | BadMessage) -> None:
        self.process.said += messages
        self.place.listen()
        self.place.look()

    def running(self, timeout_ms: int | None = None) -> Run:
        """An attempt whose handler has begun."""
        run = self.give(timeout_ms)
        self.say(Ready(), Begun(*run.key))
        assert self.place.phase is Phase.RUNNING
        return run

    def pass_ms(self, ms: int) -> None:
        self.still.ms += ms
        self.place.look()

    def die(self, exit_code: int = -15) -> None:
        self.process.die(exit_code)
        self.place.listen()
        self.place.look()

    @property
    def outcome(self) -> Outcome:
        [outcome] = self.outcomes
        return outcome

    @property
    def text(self) -> str:
        assert self.outcome.error is not None
        return self.outcome.error.message


@pytest.fixture
def rules(monkeypatch: pytest.MonkeyPatch) -> Rules:
    monkeypatch.setattr(process_place, "Process", StillProcess)
    monkeypatch.setattr(process_place, "identify", lambda pid: Child(pid, "now"))
    return Rules()


def ended(run: Run, result: bytes = b"\x03", **fields: Any) -> Ended:
    outcome = Outcome(run.job.serial, run.job.fence, "done", result)
    return Ended(msgspec.structs.replace(outcome, **fields), 5)


def test_a_child_is_welcomed_then_asked_and_kept_for_the_next(rules: Rules) -> None:
    first = rules.give()
    assert not rules.place.is_free
    rules.say(Ready())
    rules.say(Begun(*first.key), ended(first))
    assert rules.outcome.result == b"\x03" and rules.place.is_free
    process = rules.process
    second = rules.give()
    rules.say(Begun(*second.key), ended(second))
    assert [type(message) for message in process.got] == [Welcome, Order, Order]
    assert (len(rules.outcomes), process.signals) == (2, [])


def test_a_timeout_begins_with_the_handler_and_ends_with_the_process(rules: Rules) -> None:
    run = rules.give(100)
    rules.pass_ms(900)
    rules.say(Ready())
    rules.pass_ms(900)
    rules.say(Begun(*run.key))
    rules.pass_ms(99)
    assert rules.process.signals == []
    rules.pass_ms(1)
    assert rules.process.signals == ["TERM"]
    rules.pass_ms(50)
    assert rules.process.signals == ["TERM", "KILL"]
    rules.pass_ms(10_000)
    assert rules.outcomes == [] and not rules.place.is_free
    process = rules.process
    rules.die(-9)
    assert rules.outcome.kind == "timeout" and rules.outcome.strikes
    assert process.is_closed and rules.place.is_free and rules.place.child is None


def test_what_a_handler_reports_after_sigterm_counts_and_its_child_goes_all_the_same(
    rules: Rules,
) -> None:
    run = rules.running(100)
    rules.pass_ms(100)
    rules.say(ended(run))
    assert rules.outcome.kind == "done"
    assert rules.place.phase is Phase.TERMINATED and not rules.place.is_free
    rules.die()
    assert len(rules.outcomes) == 1 and rules.place.is_free


def test_a_child_that_never_gets_to_the_handler_is_ended_and_nothing_was_applied(
    rules: Rules,
) -> None:
    for is_ready in (False, True):
        rules.outcomes.clear()
        rules.give()
        if is_ready:
            rules.say(Ready())
        rules.pass_ms(1_000)
        assert rules.process.signals == ["TERM"]
        rules.die()
        assert (rules.outcome.kind, rules.outcome.has_begun) == ("transient", False)
        assert "did not get as far as the handler in 1 s" in rules.text


@pytest.mark.parametrize(
    ("exit_code", "how"),
    [(7, "exit code 7"), (-11, "signal SIGSEGV"), (-9, "signal SIGKILL"), (-63, "signal 63")],
)
def test_a_child_that_dies_says_how_and_whether_the_handler_had_begun(
    rules: Rules, exit_code: int, how: str
) -> None:
    rules.give()
    rules.die(exit_code)
    assert (rules.outcome.kind, rules.outcome.has_begun) == ("transient", False)
    assert f"ended with {how} before it called the handler" in rules.text
    rules.outcomes.clear()
    rules.running()
    rules.die(exit_code)
    assert (rules.outcome.kind, rules.outcome.has_begun) == ("lost", True)
    assert f"its process 4000 ended with {how} before the handler returned" in rules.text
    assert ("out of memory" in rules.text) is (exit_code == -9)
    assert not rules.outcome.strikes


def test_its_last_words_count_though_it_is_dead_when_they_are_read(rules: Rules) -> None:
    run = rules.running()
    rules.process.said += [ended(run)]
    rules.process.die(1)
    rules.place.look()
    assert rules.outcome.kind == "done" and rules.place.is_free


def test_a_cancelled_attempt_has_a_grace_and_a_stopped_one_its_time(rules: Rules) -> None:
    run = rules.running()
    rules.place.stop(Stop(*run.key, "the engine stops", is_for_good=False))
    rules.pass_ms(100_000)
    assert rules.process.signals == []
    rules.place.stop(Stop(*run.key, "no more", is_for_good=True))
    assert [type(message) for message in rules.process.got[2:]] == [Stop, Stop]
    rules.pass_ms(49)
    assert rules.process.signals == []
    rules.pass_ms(1)
    assert rules.process.signals == ["TERM"]
    rules.die()
    assert rules.outcome.kind == "lost"
    assert "was asked to end and did not within 50 ms" in rules.text


def test_a_cancel_that_comes_before_the_handler_takes_the_attempt_back(rules: Rules) -> None:
    for is_for_good, kind in ((True, "cancelled"), (False, "released")):
        rules.outcomes.clear()
        run = rules.give()
        rules.place.stop(Stop(*run.key, "no more", is_for_good))
        if rules.place.phase is Phase.STARTING:
            rules.say(Ready())
        assert (rules.outcome.kind, rules.outcome.has_begun) == (kind, False)
        assert rules.place.is_free
        rules.place.abort(RuntimeError())
        rules.die(-9)


def test_an_attempt_that_may_not_begin_any_more_is_forgotten(rules: Rules) -> None:
    rules.may_begin = False
    rules.give()
    rules.say(Ready())
    assert rules.outcomes == [] and rules.place.is_free
    assert [type(message) for message in rules.process.got] == [Welcome]


def test_a_child_that_cannot_be_noted_or_started_makes_no_attempt(
    rules: Rules, monkeypatch: pytest.MonkeyPatch
) -> None:
    rules.note_error = OSError("no room")
    rules.give()
    assert rules.process.signals == ["KILL"] and rules.process.got == []
    rules.die(-9)
    assert (rules.outcome.kind, rules.outcome.has_begun) == ("transient", False)
    assert "no room" in rules.text
    rules.outcomes.clear()

    def refuse(_: int) -> None:
        raise OSError("too many processes")

    monkeypatch.setattr(process_place, "Process", refuse)
    rules.give()
    assert "too many processes" in rules.text and rules.place.is_free


def test_a_task_that_is_not_there_is_told_with_the_owners_policy(rules: Rules) -> None:
    run = rules.give()
    rules.say(Ready(), Unfit(*run.key, ErrorText("ImportError", "no module", "trace")))
    assert (rules.outcome.kind, rules.outcome.has_begun) == ("transient", False)
    assert rules.outcome.error == ErrorText("ImportError", "no module", "trace")
    assert rules.outcome.max_attempts == 10 and rules.place.is_free


STRANGE = [
    lambda run: Ready(),
    lambda run: Begun(run.key[0], run.key[1] + 1),
    lambda run: Ended(Outcome(run.key[0] + 1, run.key[1], "done"), 5),
    lambda run: ended(run, bytes(101)),
    lambda run: ended(run, kind="no such kind"),
    lambda run: ended(run, wait_ms=-1),
    lambda run: ended(run, error=ErrorText("E", "m" * 5_000)),
    lambda run: ended(run, reason="r" * 5_000),
    lambda run: BadMessage("cut"),
]


@pytest.mark.parametrize("strange", STRANGE, ids=range(len(STRANGE)))
def test_a_child_that_says_what_it_may_not_is_killed_and_its_attempt_unknown(
    rules: Rules, strange: Any
) -> None:
    run = rules.running()
    rules.say(strange(run))
    assert rules.process.signals == ["KILL"] and rules.outcomes == []
    rules.die(-9)
    assert rules.outcome.kind == "lost" and "its process was ended, for" in rules.text


def test_an_idle_child_that_speaks_or_hangs_up_is_replaced_and_costs_nobody(rules: Rules) -> None:
    run = rules.running()
    rules.say(ended(run), Begun(*run.key))
    assert rules.process.signals == ["KILL"] and not rules.place.is_free
    rules.die(-9)
    second = rules.running()
    rules.say(ended(second))
    rules.process.is_hung_up = True
    rules.place.listen()
    assert rules.place.phase is Phase.HUNG_UP and not rules.place.is_free
    rules.pass_ms(process_place.HANG_UP_MS)
    assert rules.process.signals == ["KILL"]
    rules.die(-9)
    assert rules.place.is_free and len(rules.outcomes) == 2


def test_at_the_end_an_idle_child_is_told_and_a_busy_one_is_ended(rules: Rules) -> None:
    run = rules.running()
    rules.say(ended(run))
    rules.place.leave()
    rules.place.leave()
    assert [type(message) for message in rules.process.got[2:]] == [Bye]
    rules.pass_ms(50)
    assert rules.process.signals == ["TERM"]
    rules.die()
    rules.running()
    rules.place.leave()
    assert rules.process.signals == ["TERM"]
    rules.place.leave()
    rules.die()
    assert rules.place.phase is Phase.EMPTY
