"""When attempts are looked at: many of them, those that have not begun, and those whose thread has
died."""

import asyncio
import threading
from collections.abc import Iterator

import pytest

from kit.attempts import AttemptRig, released
from parkade.attempt import Attempt
from parkade.deadlines import HEAP_SPARE, LIVENESS_MS, STOP_GRACE_MS
from parkade.errors import PayloadError
from parkade.runs import Run


@pytest.fixture
def rig() -> Iterator[AttemptRig]:
    rig = AttemptRig()
    yield rig
    rig.executor.close()


def entries(rig: AttemptRig) -> int:
    return len(vars(rig.executor.deadlines)["_heap"])


def test_attempts_that_have_ended_do_not_pile_up_until_their_timeouts(rig: AttemptRig) -> None:
    @rig.tasks.task(timeout="1y", lease="1y")
    def quick() -> None: ...

    for _ in range(HEAP_SPARE):
        rig.run(quick)
    assert entries(rig) <= HEAP_SPARE + 8
    assert rig.executor.running() == []


def test_with_nothing_to_run_out_of_time_there_is_nothing_to_wait_for(rig: AttemptRig) -> None:
    @rig.tasks.task
    def quick() -> None: ...

    rig.run(quick)
    assert rig.executor.wait_ms(rig.clock.ms) is None


def test_of_timeout_lease_and_grace_the_first_counts(rig: AttemptRig) -> None:
    @rig.tasks.task(timeout="1h", lease="1m", retry=["7s"])
    def stuck(attempt: Attempt) -> None:
        begun.set()
        released(gate)

    begun, gate = threading.Event(), threading.Event()
    job = rig.start(stuck)
    released(begun)
    assert rig.executor.wait_ms(rig.clock.ms) == 60_000
    rig.executor.cancel(job.serial, 1, "enough", is_for_good=True)
    assert rig.executor.wait_ms(rig.clock.ms) == STOP_GRACE_MS
    rig.pass_ms(STOP_GRACE_MS - 1)
    rig.executor.cancel(job.serial, 1, "enough", is_for_good=True)  # no second grace
    rig.pass_ms(1)
    [outcome] = rig.outcomes
    assert (outcome.kind, outcome.lives_on) == ("lease", True)
    assert outcome.error is not None
    assert outcome.error.message == "did not end within 5 s of being asked to stop"
    gate.set()
    rig.await_count(2)


def test_what_has_not_begun_is_given_back_or_cancelled_and_never_begins(rig: AttemptRig) -> None:
    """Behind a loop that is blocked."""

    @rig.tasks.task
    async def block() -> None:
        begun.set()
        released(gate)

    @rig.tasks.task(lease="1s")
    async def leased() -> None:
        called.append("leased")

    @rig.tasks.task
    async def cancelled() -> None:
        called.append("cancelled")

    begun, gate = threading.Event(), threading.Event()
    called: list[str] = []
    rig.start(block)
    released(begun)
    one, other = rig.start(leased), rig.start(cancelled)
    rig.executor.cancel(other.serial, 1, "enough", is_for_good=True)
    rig.pass_ms(1_000)
    rig.pass_ms(STOP_GRACE_MS - 1_000)
    kinds = {o.serial: (o.kind, o.has_begun, o.lives_on) for o in rig.outcomes}
    assert kinds == {
        one.serial: ("released", False, False),
        other.serial: ("cancelled", False, False),
    }
    assert rig.executor.zombies() == []
    gate.set()
    rig.await_count(3)
    asyncio.run(asyncio.sleep(0))
    assert called == []


def test_an_attempt_whose_thread_has_died_is_lost(
    rig: AttemptRig, monkeypatch: pytest.MonkeyPatch
) -> None:
    @rig.tasks.task
    def stuck() -> None:
        begun.set()
        released(gate)

    begun, gate = threading.Event(), threading.Event()
    job = rig.start(stuck)
    released(begun)
    rig.pass_ms(LIVENESS_MS)
    assert rig.outcomes == []
    [run] = rig.executor.runs.all()
    dead = threading.Thread(target=lambda: None)
    dead.start()
    dead.join()
    run.state = dead
    rig.pass_ms(LIVENESS_MS)
    [outcome] = rig.outcomes
    assert (outcome.serial, outcome.kind) == (job.serial, "lease")
    gate.set()


def test_a_renewal_never_shortens_a_lease(rig: AttemptRig) -> None:
    @rig.tasks.task(lease="1m")
    def task() -> None: ...

    job = rig.job(task)
    run = Run(job, vars(rig.executor)["_places"]["thread"], (job.serial, job.fence))
    run.lease_ms, run.lease_until_ms = 60_000, 100_000
    run.renew(10_000)
    assert run.lease_until_ms == 100_000
    run.renew(50_000)
    assert run.lease_until_ms == 110_000
    run.renew(110_000)
    assert run.lease_until_ms == 110_000


def test_a_handler_that_was_given_up_tells_and_saves_nothing_more(rig: AttemptRig) -> None:
    @rig.tasks.task(timeout="1s")
    def stuck(attempt: Attempt) -> None:
        attempt.save_checkpoint(1)
        attempt.progress(1)
        begun.set()
        released(gate)
        attempt.progress(2)
        attempt.heartbeat("still here")
        try:
            attempt.save_checkpoint(2)
        except BaseException as error:
            seen.append(type(error).__name__)
            raise

    begun, gate = threading.Event(), threading.Event()
    seen: list[str] = []
    job = rig.start(stuck)
    released(begun)
    rig.pass_ms(1_000)
    gate.set()
    rig.await_count(2)
    assert seen == ["Cancelled"]
    assert [note.done for note in rig.port.told] == [1]
    assert rig.port.saved == {job.serial: b"\x01"}


@pytest.mark.parametrize("bad", ["ten", None, object()])
def test_progress_that_is_no_number_is_the_handlers_error(rig: AttemptRig, bad: object) -> None:
    @rig.tasks.task(retry=None)
    def load(attempt: Attempt) -> None:
        attempt.progress(bad)  # type: ignore[arg-type]

    outcome = rig.run(load)
    assert outcome.error is not None
    assert outcome.error.type in ("TypeError", "ValueError")
    assert rig.port.told == []


def test_a_value_that_is_too_large_never_reaches_the_engine(rig: AttemptRig) -> None:
    @rig.tasks.task
    def load(attempt: Attempt) -> None:
        with pytest.raises(PayloadError, match=r"checkpoint is 1\.0 kB, the limit"):
            attempt.save_checkpoint("x" * 1_000)

    assert rig.run(load).kind == "done"
    assert rig.port.saved == {}
