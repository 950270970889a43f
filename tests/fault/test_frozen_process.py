"""A process that stands still while its leases run out, and goes on: one outcome for each attempt,
and never two of a ticket at a time."""

import os
import select
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from kit.clock import ManualClock
from kit.engines import hold_handlers, make, when
from parkade import Attempt, Engine, RetryPolicy

TESTS = Path(__file__).parents[1]
LEASE_S = 0.3


class Frozen:
    """The process, and what it says."""

    def __init__(self, process: "subprocess.Popen[str]") -> None:
        self._process = process

    def said(self) -> str:
        assert self._process.stdout is not None
        line = self._process.stdout.readline()
        assert line, "it ended"
        return line.strip()

    def let_end(self) -> None:
        """One attempt, or what it waits for last."""
        assert self._process.stdin is not None
        self._process.stdin.write("go\n")
        self._process.stdin.flush()

    def freeze(self) -> None:
        """For three leases."""
        self._process.send_signal(signal.SIGSTOP)
        select.select([], [], [], 3 * LEASE_S)

    def thaw(self) -> None:
        self._process.send_signal(signal.SIGCONT)


@contextmanager
def process(path: Path, lease: str) -> Iterator[Frozen]:
    command = [sys.executable, "-m", "kit.frozen", os.fspath(path), lease]
    with subprocess.Popen(
        command, cwd=TESTS, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    ) as running:
        try:
            yield Frozen(running)
        finally:
            running.kill()


def test_a_lease_that_ran_out_in_a_frozen_process_is_noticed_before_any_outcome(
    tmp_path: Path,
) -> None:
    """The handler has its word before the process goes on: its success comes too late all the
    same, and the next attempt begins after it has ended."""
    with process(tmp_path / "data", f"{LEASE_S * 1000:.0f}ms") as frozen:
        assert frozen.said() == "begin 1"
        frozen.freeze()
        frozen.let_end()
        frozen.thaw()
        assert frozen.said() == "end 1"
        fence = 2  # there are more where the machine is too slow for such a lease
        while (said := frozen.said()) == f"begin {fence}":
            frozen.let_end()
            assert frozen.said() == f"end {fence}"
            fence += 1
        then, *outcomes, is_unsure = said.split()
        assert then == "then"
        assert outcomes == ["lost"] * (fence - 2) + ["done"]
        assert fence > 2
        assert is_unsure == "True"


def test_a_frozen_process_loses_nothing_under_a_lease_that_the_engine_renews(
    tmp_path: Path,
) -> None:
    with process(tmp_path / "data", "auto") as frozen:
        assert frozen.said() == "begin 1"
        frozen.freeze()
        frozen.thaw()
        frozen.let_end()
        assert [frozen.said(), frozen.said()] == ["end 1", "then done False"]
        frozen.let_end()
        assert frozen.said() == "refused 0"


# ------------------------------------------------------- threads that nobody can stop


@pytest.mark.parametrize("end", ["returns", "raises"])
@pytest.mark.parametrize("settings", [{"timeout": "2s"}, {"lease": "2s"}], ids=str)
def test_a_thread_that_ignores_its_end_has_one_outcome_and_runs_alone(
    tmp_path: Path, settings: dict[str, Any], end: str
) -> None:
    clock = ManualClock()
    live: list[int] = []
    with hold_handlers() as gate, make(tmp_path, clock=clock, threads=4) as engine:

        @engine.task(retry=RetryPolicy(3, backoff=["1s"]), **settings)
        def stubborn(attempt: Attempt) -> int:
            assert not live, "two attempts of one ticket at a time"
            live.append(attempt.fence)
            try:
                if attempt.fence == 1:
                    gate.enter()
                    if end == "raises":
                        raise ConnectionError
                return attempt.fence
            finally:
                live.remove(attempt.fence)

        ticket = stubborn.submit()
        gate.wait()
        clock.advance(2_000)
        when(engine, lambda runtime: runtime.attempts.is_outlived(_serial(engine, ticket.id)))
        kind = "timeout" if "timeout" in settings else "lost"
        assert [attempt.outcome for attempt in ticket.attempts()] == [kind]
        clock.advance(60_000)
        info = ticket.info()
        assert (info.state, info.attempts, info.maybe_applied) == ("ready", 1, True)
        assert live == [1]
        assert "older attempt" in ticket.why().text
        gate.open()
        assert ticket.result("20s") == 2
        assert [attempt.outcome for attempt in ticket.attempts()] == [kind, "done"]
        assert sum(shard.refused_outcomes for shard in engine.stats().shards) == 1
        assert engine.stats().running == 0
    assert engine.stop().clean


def _serial(engine: Engine, ticket_id: str) -> int:
    return engine.desk("test").parse(ticket_id).serial
