"""A signal handler or a finalizer asks the engine in the midst of what its own thread asks of it,
and neither waits for the other."""

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, cast

import pytest

from kit.attempts import AttemptRig
from kit.between import interrupted_at_every_call
from kit.engines import PATIENCE_S, hold_handlers, make, runtime_of
from parkade import StopReport, WaitInsideAttempt
from parkade.attempt import Attempt
from parkade.drive import Drive
from parkade.errors import SubmitReentered
from parkade.feed import Feed
from parkade.inbox import Inbox
from parkade.progress import ProgressBoard
from parkade.runs import Run
from parkade.runtime import Runtime
from parkade.serials import Serials
from parkade.shard.commands import Bookmark
from parkade.store.record import ProgressNote

NOW_MS = 1_700_000_000_000


def test_two_may_be_at_the_door() -> None:
    def prepare() -> tuple[Callable[[], Inbox], Callable[[], object]]:
        inbox = Inbox(100, lambda: None, lambda: None)

        def enter() -> Inbox:
            inbox.enter(60)
            return inbox

        return enter, lambda: inbox.enter_now(20)

    for inbox in interrupted_at_every_call(prepare):
        assert not inbox.enter_now(21) and inbox.enter_now(20)


def test_no_serial_comes_twice() -> None:
    def prepare() -> tuple[Callable[[], int], Callable[[], object]]:
        serials, taken = Serials(1, 1 << 62, lambda: None), list[int]()

        def ask() -> int:
            serials.extend(serials.next_lease(NOW_MS))
            taken.append(serials.take(1, NOW_MS))
            return len(set(taken))

        return ask, lambda: taken.append(serials.take(1, NOW_MS))

    assert set(interrupted_at_every_call(prepare)) == {2}


class Watcher:
    serial = 7

    def tell(self, seq: int, number: int, note: Any) -> None: ...
    def look_again(self) -> None: ...
    def end(self) -> None: ...
    def offer(self, first: int, notes: Sequence[Any]) -> None: ...


@pytest.mark.parametrize("call", ["watch", "unwatch", "join", "leave", "close"])
def test_a_watch_that_nobody_holds_any_more_leaves_at_any_moment(call: str) -> None:
    def prepare() -> tuple[Callable[[], bool], Callable[[], object]]:
        feed, forgotten, one = Feed(), Watcher(), Watcher()
        feed.watch(forgotten)
        feed.join(forgotten)
        if call in ("unwatch", "leave"):
            feed.watch(one)
            feed.join(one)

        def ask() -> bool:
            getattr(feed, call)(*([] if call == "close" else [one]))
            feed.unwatch(one)
            feed.leave(one)
            return feed.is_heard()

        def leave() -> None:
            feed.unwatch(forgotten)
            feed.leave(forgotten)

        return ask, leave

    assert set(interrupted_at_every_call(prepare)) == {False}


class Relatives:
    """A family whose children are itself."""

    def submit(self, call: object) -> "Relatives":
        return self


def test_whoever_asks_for_the_attempt_gets_the_same_one() -> None:
    rig = AttemptRig()
    runs, task = rig.executor.runs, rig.tasks.task(name="task")(lambda: None)
    runs.family_of = lambda _: cast(Any, Relatives())

    def prepare() -> tuple[Callable[[], bool], Callable[[], object]]:
        job, asked = rig.job(task), list[Attempt]()
        run = Run(job, cast(Any, None), (job.serial, job.fence))

        def ask() -> bool:
            attempt = runs.attempt_of(run)
            is_one = all(other is attempt for other in asked)
            return is_one and cast(Any, attempt).submit(None) is run.family

        return ask, lambda: asked.append(runs.attempt_of(run))

    assert all(interrupted_at_every_call(prepare))
    rig.executor.close()


def test_progress_is_told_at_any_moment() -> None:
    def prepare() -> tuple[Callable[[], list[Bookmark]], Callable[[], object]]:
        board = ProgressBoard(1)
        for serial in (1, 2):
            board.put(0, serial, 1, ProgressNote(1.0, None, "", NOW_MS))
        more = iter(range(3, 100))

        def tell() -> None:
            board.put(0, next(more), 1, ProgressNote(1.0, None, "", NOW_MS))

        return lambda: board.take(0, [], NOW_MS), tell

    for taken in interrupted_at_every_call(prepare):
        assert [note.serial for note in taken][:2] == [1, 2]


@pytest.mark.parametrize("max_ready", [None, 5])
def test_whoever_has_a_lock_that_the_core_thread_wants_does_not_wait_for_that(
    tmp_path: Path, max_ready: int | None
) -> None:
    with make(tmp_path / "data", max_ready=max_ready) as engine:
        task = engine.task(name="task")(lambda: None)
        ticket = task.options(delay="1h").submit()
        runtime = runtime_of(engine)
        inbox = runtime.host.inbox
        locks: list[Any] = [inbox.lock, runtime.serials.lock, runtime.progress.lock]
        locks += [] if inbox.valve is None else [inbox.valve.lock]
        calls: list[Callable[[], object]] = [
            task.submit, ticket.info, ticket.cancel, engine.stats, lambda: engine.pause(task="task")
        ]  # fmt: skip
        for lock in [*locks, *runtime.executor.locks]:
            for call in calls:
                with lock, pytest.raises(SubmitReentered):
                    call()
        assert task.submit().result() is None


def test_a_stop_in_the_midst_of_a_stop_changes_nothing(tmp_path: Path) -> None:
    with hold_handlers() as gate, make(tmp_path / "data") as engine:

        @engine.task
        def waits() -> None:
            gate.enter()

        waits.submit()
        gate.wait()
        reports: list[StopReport] = []
        drive = runtime_of(engine).drive
        wait = drive.wait

        def interrupted(*given: Any) -> bool:
            if not reports:
                reports.append(engine.stop())
                gate.open()
            return wait(*given)

        drive.wait = interrupted  # type: ignore[assignment,method-assign]
        report = engine.stop()
        assert not reports[0].clean and report.clean and report.finished == 1
        assert engine.stop().clean


def test_a_stop_in_the_midst_of_a_start_ends_that(tmp_path: Path) -> None:
    class Interrupted(Drive):
        def start(self, runtime: Runtime) -> None:
            super().start(runtime)
            engine.stop()

    engine = make(tmp_path / "data")
    options = vars(engine)["_options"]
    options.make_drive = Interrupted
    with pytest.raises(SubmitReentered):
        engine.start()
    assert engine.stop().clean
    options.make_drive = Drive
    with engine:
        assert engine.stats().scheduled == 0


def test_a_handler_that_stops_an_engine_which_stops_is_not_waited_for(tmp_path: Path) -> None:
    with hold_handlers() as gate, make(tmp_path / "data") as engine:

        @engine.task(retry=1)
        def stop() -> None:
            gate.enter()
            with pytest.raises(WaitInsideAttempt):
                engine.stop()

        stop.submit()
        gate.wait()
        attempts = runtime_of(engine).attempts
        stop_admitting = attempts.stop_admitting

        def begin() -> None:
            gate.open()
            stop_admitting()

        attempts.stop_admitting = begin  # type: ignore[method-assign]
        report = engine.stop(drain=f"{int(PATIENCE_S)}s")
        assert (report.finished, report.given_back) == (1, 0)
