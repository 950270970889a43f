"""How a process with an engine ends: by signals, by itself, with its loop. Each in its own process,
with real signals, waited for by what it says."""

import asyncio
import signal
from pathlib import Path

import pytest

from kit.engines import make
from kit.foreground import Foreground
from parkade import BlockingInEventLoop

pytestmark = pytest.mark.skipif(not hasattr(signal, "SIGTERM"), reason="no signals")


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_a_signal_stops_an_engine_in_the_foreground_in_order(
    tmp_path: Path, number: signal.Signals
) -> None:
    with Foreground(tmp_path / "data", "forever") as process:
        process.until("open")
        process.send(number)
        assert process.end() == 0, process.errors()
        assert f"log {number.name}: the engine stops" in process.lines
        assert process.lines[-2:] == ["returned", "my handler"], "the handler of before is back"
        assert process.errors() == ""
    with make(tmp_path / "data", durability="process", run=False) as engine:
        assert engine.stats().running == 0


def test_an_attempt_that_runs_at_the_signal_may_end_in_its_time(tmp_path: Path) -> None:
    with Foreground(tmp_path / "data", "forever", "brief") as process:
        process.until("begun")
        process.send(signal.SIGTERM)
        assert process.end() == 0, process.errors()
    assert "ended" in process.lines
    (line,) = [line for line in process.lines if line.startswith("log stopped")]
    assert line == "log stopped: 1 attempts finished, 0 cancelled, 0 given back, 0 still running"
    with make(tmp_path / "data", durability="process", run=False) as engine:
        assert [info.state for info in engine.find()] == ["done"]


@pytest.mark.parametrize("second", [signal.SIGTERM, signal.SIGINT])
def test_a_second_signal_ends_the_process_at_once(tmp_path: Path, second: signal.Signals) -> None:
    with Foreground(tmp_path / "data", "forever", "stuck") as process:
        process.until("begun")
        process.send(signal.SIGTERM)
        process.until("log SIGTERM: the engine stops")
        process.send(second)
        assert process.end() == 128 + second
        assert "returned" not in process.lines
        assert f"parkade: {second.name} again, leaving at once" in process.errors()
    with make(tmp_path / "data", durability="process", run=False) as engine:
        (info,) = engine.find()
        assert (info.maybe_applied, info.fence) == (True, 1), "as after a crash"


def test_run_forever_in_another_thread_leaves_signals_alone_and_ends_with_a_stop(
    tmp_path: Path,
) -> None:
    with Foreground(tmp_path / "data", "beside") as process:
        assert process.end() == 0, process.errors()
        said = [line for line in process.lines if not line.startswith("log")]
        assert said == ["stopped True", "returned"]


def test_run_forever_is_refused_where_an_event_loop_runs(tmp_path: Path) -> None:
    engine = make(tmp_path / "data")

    async def main() -> None:
        engine.run_forever()

    with pytest.raises(BlockingInEventLoop, match="async with engine"):
        asyncio.run(main())


def test_a_main_thread_that_ends_without_a_stop_leaves_the_engine_closed_cleanly(
    tmp_path: Path,
) -> None:
    with Foreground(tmp_path / "data", "no stop") as process:
        assert process.end() == 0, process.errors()
        assert process.errors() == ""
        assert "event submitted quick" in process.lines, "callbacks were called to the end"
    with make(tmp_path / "data", durability="process", run=False) as engine:
        assert sorted(info.state for info in engine.find()) == ["done", "scheduled"]


def test_what_runs_when_the_main_thread_ends_is_waited_for(tmp_path: Path) -> None:
    with Foreground(tmp_path / "data", "no stop", "brief") as process:
        assert process.end() == 0, process.errors()
    assert process.lines.index("main ends") < process.lines.index("ended")
    with make(tmp_path / "data", durability="process", run=False) as engine:
        assert {info.state for info in engine.find(task="brief")} == {"done"}


def test_attempts_on_a_loop_that_closes_end_as_unknown_and_the_rest_goes_on(
    tmp_path: Path,
) -> None:
    with Foreground(tmp_path / "data", "loop") as process:
        assert process.end() == 0, process.errors()
        said = [line for line in process.lines if not line.startswith(("log", "event"))]
        assert said[-3:] == ["result 7", "on_loop scheduled True", "stopped True"]
