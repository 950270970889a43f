"""Frames that the core thread writes itself: lone ones, while nobody else wants anything."""

import threading
from collections.abc import Sequence
from pathlib import Path
from types import SimpleNamespace
from typing import Any

from kit.clock import ManualClock
from kit.engines import PATIENCE_S, make, runtime_of, when
from parkade.asks import Ask, AwaitEnd, Look
from parkade.job import Job
from parkade.lone_frames import (
    ALONE_MS,
    COMPANY_FRAMES,
    COMPANY_MS,
    SLOW_MS,
    SLOW_PAUSE_MS_MAX,
    SLOW_PAUSE_MS_MIN,
    LoneFrames,
    SlowPause,
)
from parkade.waiters import ThreadWaiter


def shard(records: int = 1, *, in_flight: bool = False, is_idle: bool = True) -> Any:
    return SimpleNamespace(
        records=[None] * records,
        frame_in_flight=in_flight,
        is_open=True,
        io=SimpleNamespace(is_idle=is_idle),
        room=SimpleNamespace(is_there=True),
    )


def allowed() -> LoneFrames:
    frames = LoneFrames()
    frames.is_allowed = True
    return frames


def test_a_submit_that_is_due_soon_takes_one_pass_and_no_other_thread(tmp_path: Path) -> None:
    """From the first one of a new directory on: no spare is made beside few frames."""
    with make(tmp_path / "data", clock=ManualClock()) as engine:
        later = engine.task(name="note")(lambda n: n).options(delay="2s")
        when(engine, lambda runtime: all(shard.io.is_idle for shard in runtime.shards))
        host = runtime_of(engine).host
        steps, written = host.steps, host.lone_frames.written
        for n in range(20):
            later.submit(n)
        assert host.lone_frames.written == written + 20
        # One each, and a pass now and then for what came in while the last one ended.
        assert host.steps - steps < 2 * 20
        assert sum(shard.journal.spares for shard in host.shards) == 0


def test_what_is_due_at_its_submit_starts_with_the_same_frame(tmp_path: Path) -> None:
    with make(tmp_path / "data", clock=ManualClock()) as engine:
        gate = threading.Event()
        task = engine.task(name="wait")(lambda: gate.wait(PATIENCE_S))
        when(engine, lambda runtime: all(shard.io.is_idle for shard in runtime.shards))
        host = runtime_of(engine).host
        ticket = task.submit()
        when(engine, lambda runtime: len(runtime.executor.running()) == 1)
        assert host.lone_frames.written == 1
        assert sum(shard.durable_lsn for shard in host.shards) == 2
        gate.set()
        assert ticket.result("20s") is True


def test_who_is_started_leaves_before_who_is_answered(tmp_path: Path) -> None:
    with make(tmp_path / "data", clock=ManualClock()) as engine:
        task = engine.task(name="note")(lambda n: n)
        host, left = runtime_of(engine).host, list[str]()
        start, send = host.attempts._runner.start, host.wakeups.send

        def started(jobs: Sequence[Job]) -> None:
            left.append("attempts")
            start(jobs)

        def sent() -> bool:
            has_any = send()
            left.extend(["answers"] * has_any)
            return has_any

        def watch() -> None:
            host.attempts._runner.start = started  # type: ignore[method-assign]
            host.wakeups.send = sent  # type: ignore[method-assign]

        host.call(watch)
        assert task.submit(1).result("20s") == 1
        assert left[:2] == ["attempts", "answers"]


def test_who_waits_for_an_end_does_not_wake_a_core_that_gives_way(tmp_path: Path) -> None:
    """What was started a moment ago is about to run, and would wait for that pass."""
    with make(tmp_path / "data", clock=ManualClock()) as engine:
        host, rung = runtime_of(engine).host, list[bool]()

        def put() -> None:
            for gives_way in (False, True):
                host._gives_way = gives_way
                for asked in (AwaitEnd(1), Look(1)):
                    host._event.clear()
                    is_patient = type(asked) is AwaitEnd
                    host.inbox.put([(0, Ask(asked, waiter=ThreadWaiter()))], is_patient=is_patient)
                    rung.append(host._event.is_set())

        host.call(put)
        assert rung == [True, True, False, True]


def test_who_is_answered_leaves_before_upkeep_where_no_frame_is_on_its_way(tmp_path: Path) -> None:
    with make(tmp_path / "data", clock=ManualClock()) as engine:
        host = runtime_of(engine).host

        def look() -> list[bool]:
            found: list[bool] = []
            for put_off, in_flight in ((0, False), (1, False), (1, True)):
                host.shards[0].upkeep.put_off = put_off
                host.shards[1].frame_in_flight = in_flight
                found.append(host._has_put_off())
            host.shards[1].frame_in_flight = False
            return found

        assert host.call(look) == [False, True, False]


def test_only_who_waits_for_an_end_is_patient(tmp_path: Path) -> None:
    with make(tmp_path / "data", clock=ManualClock()) as engine:
        ticket = engine.task(name="note")(lambda n: n).submit(1)
        inbox, patient = runtime_of(engine).host.inbox, list[tuple[type, bool]]()
        put = inbox.put

        def noted(asks: Any, *, is_patient: bool = False) -> None:
            asks = list(asks)
            patient.append((type(asks[0][1].asked), is_patient))
            put(asks, is_patient=is_patient)

        inbox.put = noted  # type: ignore[method-assign]
        assert ticket.result("20s") == 1
        assert ticket.info().state == "done"
        assert patient == [(AwaitEnd, True), (Look, False)]


def test_only_a_lone_small_frame_of_an_idle_shard_is_written_here() -> None:
    frames, lone = allowed(), shard()
    assert frames.pick([shard(0), lone], 0) is lone
    others: list[list[Any]] = [
        [lone, shard()], [lone, shard(0, in_flight=True)], [shard(is_idle=False)], [shard(17)],
        [shard(0)],
    ]  # fmt: skip
    assert [frames.pick(shards, 0) for shards in others] == [None] * len(others)
    assert LoneFrames().pick([shard()], 0) is None


def test_where_something_came_in_meanwhile_the_next_frames_are_handed_over() -> None:
    frames, lone = allowed(), shard()
    frames.note(began_ms=0, ended_ms=COMPANY_MS, has_company=True)
    picked = [frames.pick([lone], COMPANY_MS) for _ in range(COMPANY_FRAMES + 1)]
    assert picked == [None] * COMPANY_FRAMES + [lone]


def test_a_quick_disk_costs_whoever_comes_meanwhile_less_than_a_hand_over() -> None:
    frames, lone = allowed(), shard()
    frames.note(began_ms=0, ended_ms=COMPANY_MS - 1, has_company=True)
    assert frames.pick([lone], COMPANY_MS) is lone


def test_after_a_quiet_while_whoever_comes_is_alone_again() -> None:
    frames, lone = allowed(), shard()
    frames.note(began_ms=-COMPANY_MS, ended_ms=0, has_company=True)
    picked = [
        frames.pick([lone], at_ms) for at_ms in (ALONE_MS - 1, 2 * ALONE_MS - 1, 2 * ALONE_MS)
    ]
    assert picked == [None, lone, lone]


def test_a_disk_that_is_slow_is_not_waited_for_again_for_a_while() -> None:
    frames, lone = allowed(), shard()
    frames.note(began_ms=0, ended_ms=SLOW_MS, has_company=False)
    assert frames.pick([lone], SLOW_MS + SLOW_PAUSE_MS_MIN - 1) is None
    assert frames.pick([lone], SLOW_MS + SLOW_PAUSE_MS_MIN) is lone


def test_a_disk_that_stays_slow_is_left_alone_for_longer_each_time() -> None:
    pause, lengths = SlowPause(), list[int]()
    for took_ms in [*[SLOW_MS] * 6, 0, SLOW_MS]:
        pause.note(0, took_ms)
        lengths.append(pause.until_ms - SLOW_MS)
    assert lengths == [20, 40, 80, 160, 320, 320, 320, 20]
    assert (lengths[0], max(lengths)) == (SLOW_PAUSE_MS_MIN, SLOW_PAUSE_MS_MAX)


def test_who_waits_for_an_end_that_is_outstanding_brings_no_turn(tmp_path: Path) -> None:
    with make(tmp_path / "data", clock=ManualClock()) as engine:
        gate = threading.Event()
        ticket = engine.task(name="wait")(lambda: gate.wait(PATIENCE_S)).submit()
        when(engine, lambda runtime: len(runtime.executor.running()) == 1)
        host, waiter = runtime_of(engine).host, ThreadWaiter()

        def ask() -> tuple[bool, bool]:
            (shard,) = (shard for shard in host.shards if shard.core.running)
            (serial,) = shard.core.running
            shard.is_stirred = False
            shard.put(Ask(AwaitEnd(serial), waiter=waiter))
            return shard.is_stirred, serial in shard.awaiting

        assert host.call(ask) == (False, True)
        gate.set()
        assert waiter.wait(PATIENCE_S) and waiter.error is None
        assert ticket.result("20s") is True
