"""The core thread: its passes, what is posted to it, and its end."""

import functools
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from kit.clock import START_MS, ManualClock
from kit.engines import PATIENCE_S, checkpoint, make, runtime_of, when
from parkade import Engine, limits
from parkade.errors import SubmitReentered
from parkade.host import Host


@pytest.fixture
def clock() -> ManualClock:
    return ManualClock()


@pytest.fixture
def engine(tmp_path: Path, clock: ManualClock) -> Iterator[Engine]:
    with make(tmp_path / "data", clock=clock) as engine:
        yield engine


def host_of(engine: Engine) -> Host:
    return runtime_of(engine).host


def test_a_call_is_made_on_the_core_thread_and_raises_what_it_raises(engine: Engine) -> None:
    host = host_of(engine)
    assert host.call(lambda: threading.current_thread().name) == "parkade-core"
    with pytest.raises(ZeroDivisionError):
        host.call(lambda: 1 // 0)
    with pytest.raises(SubmitReentered):
        host.call(lambda: host.call(lambda: 5))


def test_what_is_posted_and_raises_is_told_and_costs_nobody_else(
    engine: Engine, caplog: pytest.LogCaptureFixture
) -> None:
    host = host_of(engine)
    ran = threading.Event()
    fails: Any = lambda: 1 // 0  # noqa: E731
    host.post(fails)
    assert host.when(fails).wait(PATIENCE_S), "nor does a condition"
    host.post(ran.set)
    assert ran.wait(PATIENCE_S)
    assert "ZeroDivisionError" in caplog.text
    assert host.fatal is None


def test_an_end_in_the_midst_of_a_pass_is_heard_behind_it(
    engine: Engine, monkeypatch: pytest.MonkeyPatch
) -> None:
    host, ended = host_of(engine), threading.Event()
    run_posted = host.run_posted

    def last() -> int:
        host._is_ended = True
        host.wake()
        host._event.clear()  # as behind a frame that is written here
        return 3_600_000

    def over() -> None:
        run_posted()
        ended.set()

    monkeypatch.setattr(host, "run_posted", over)
    monkeypatch.setattr(host, "step", last)
    host.wake()
    assert ended.wait(PATIENCE_S)


def test_an_idle_engine_does_nothing_until_its_time(engine: Engine, clock: ManualClock) -> None:
    host = host_of(engine)
    checkpoint(engine)
    when(engine, lambda runtime: True)
    steps = host.steps
    clock.advance(limits.WAIT_MS_MAX // 2)
    when(engine, lambda runtime: True)
    assert host.steps - steps <= 6, "it does not spin"


def test_a_clock_set_back_or_ahead_stops_nothing(engine: Engine, clock: ManualClock) -> None:
    task = engine.task(name="note")(lambda n: n)
    soon = task.options(delay="10s").submit(1)
    clock.set_wall_ms(START_MS - 86_400_000)
    assert task.submit(2).result("20s") == 2
    clock.advance(10_000)
    when(engine, lambda runtime: True)
    assert soon.info().state == "scheduled", "its time by the wall clock has not come again"
    clock.set_wall_ms(START_MS + 10_000)
    assert soon.result("20s") == 1
    clock.set_wall_ms(START_MS + 400 * 86_400_000)
    assert task.submit(3).result("20s") == 3
    clock.set_wall_ms(START_MS)
    again = task.options(delay="1s").submit(4)
    clock.advance(1_000)
    assert again.result("20s") == 4


def test_after_its_end_calls_are_made_where_they_come_from(
    tmp_path: Path, clock: ManualClock
) -> None:
    engine = make(tmp_path / "data", clock=clock).start()
    host = host_of(engine)
    engine.stop()
    me = threading.current_thread().name
    assert host.call(lambda: threading.current_thread().name) == me
    ran: list[int] = []
    host.post(ran.append, 1)
    host.run_posted()
    assert ran == [1]


def test_submits_wait_at_the_bound_of_what_is_dirty_and_go_on_by_themselves(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(limits, "DIRTY_BYTES_MAX", 200_000)
    monkeypatch.setattr(limits, "CHECKPOINT_DIRTY_BYTES", 100_000)
    with make(tmp_path / "data", shards=1, run=False) as engine:
        task = engine.task(name="note")(lambda text: text)
        most = 0

        def look(runtime: Any) -> bool:
            nonlocal most
            core = runtime.shards[0].core
            flight = 0 if core.flight is None else core.flight.size_bytes
            most = max(most, core.dirty.size_bytes + flight)
            return False

        runtime = runtime_of(engine)
        runtime.host.when(lambda: look(runtime))
        later = task.options(delay="1h")
        tickets = engine.submit_many((later.call("x" * 1_000) for _ in range(1_500)), chunk=50)
        assert len(tickets) == 1_500
        assert runtime_of(engine).shards[0].checkpoints >= 3
        assert most < 600_000
        assert engine.stats().scheduled == 1_500


def test_the_door_is_bounded_and_gives_back_what_was_decided(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(limits, "DOOR_BYTES_MAX", 5_000)
    with make(tmp_path / "data", run=False) as engine:
        task = engine.task(name="note")(lambda text: text)
        workers = [
            threading.Thread(target=lambda: [task.submit("x" * 1_500) for _ in range(30)])
            for _ in range(6)
        ]
        for worker in workers:
            worker.start()
        for worker in workers:
            worker.join(PATIENCE_S)
        engine.submit_many(task.call("y" * 2_000) for _ in range(20))
        when(engine, lambda runtime: not runtime.host._leaving)
        assert engine.stats().ready == 200
        assert runtime_of(engine).host.inbox._bytes == 0


def test_a_refused_submit_gives_its_bytes_at_the_door_back(tmp_path: Path) -> None:
    with make(tmp_path / "data", run=False) as engine:
        task = engine.task(name="note")(lambda n: n)
        runtime = runtime_of(engine)
        for shard in runtime.shards:
            runtime.host.call(functools.partial(shard.refuse, OSError("broken")))
        for _ in range(5):
            with pytest.raises(OSError, match="broken"):
                task.submit(1)
        when(engine, lambda runtime: not runtime.host._leaving)
        assert runtime.host.inbox._bytes == 0


def test_a_payload_out_of_memory_is_read_when_its_time_comes(
    engine: Engine, clock: ManualClock
) -> None:
    task = engine.task(name="note")(lambda text: len(text))
    later = task.options(delay="1h")
    tickets = engine.submit_many(later.call("x" * n) for n in range(40))
    checkpoint(engine)
    assert all(not shard.core.hot for shard in runtime_of(engine).shards)
    clock.advance(3_600_000)
    assert [ticket.result("20s") for ticket in tickets] == list(range(40))


def test_what_sleeps_is_out_of_memory_and_wakes_in_order(
    tmp_path: Path, clock: ManualClock
) -> None:
    with make(tmp_path / "data", clock=clock, shards=1, threads=1) as engine:
        order: list[int] = []
        task = engine.task(name="note")(lambda n: order.append(n))
        dues = [17, 3, 90_000, 4, 60_000, 3_600_000, 3, 86_400_000]
        tickets = [task.options(delay=ms / 1000).submit(ms) for ms in dues]
        checkpoint(engine)
        for ms in sorted(set(dues)):
            clock.advance(ms - (clock.now_ms() - START_MS))
            for ticket, due in zip(tickets, dues, strict=True):
                if due == ms:
                    ticket.result("20s")
        assert order == sorted(dues)
