"""The children of an engine when it is killed, or they are: none outlives its owner for long, and
none is alive when its ticket is settled."""

import os
import select
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from kit.children import Fifo, engine_with, wait_gone
from kit.engines import PATIENCE_S, make, runtime_of, when
from kit.process_tasks import tasks
from parkade import EngineInUse, orphans
from parkade.process import Process
from parkade.store.disk import RealDisk
from parkade.store.lock import Child, DirectoryLock, Owner
from parkade.store.processes import identify, is_alive, kill
from parkade.wire import Ready, Welcome

TESTS = Path(__file__).parents[1]
DEAF = "import signal; print('up', flush=True); signal.pause()"


@contextmanager
def owner_process(path: Path, fifo: Fifo, *more: str) -> "Iterator[subprocess.Popen[str]]":
    owner = subprocess.Popen(
        [
            *(sys.executable, "-W", "ignore", "-m", "kit.process_owner"),
            *(os.fspath(path), fifo.path, *more),
        ],
        cwd=TESTS,
        stdout=subprocess.PIPE,
        text=True,
    )
    try:
        yield owner
    finally:
        owner.kill()
        owner.wait()
        assert owner.stdout is not None
        owner.stdout.close()


def said(process: "subprocess.Popen[str]") -> str:
    assert process.stdout is not None
    line = process.stdout.readline().strip()
    assert line, "it ended"
    return line


@pytest.mark.parametrize("more", [(), ("fork",)], ids=["alone", "with-a-copy"])
def test_a_child_ends_with_its_owner_and_its_attempt_is_settled_once(
    tmp_path: Path, more: tuple[str, ...]
) -> None:
    fifo = Fifo(tmp_path / "came")
    with owner_process(tmp_path / "data", fifo, *more) as owner:
        copy = int(said(owner)) if more else None
        ticket_id, child = said(owner), int(said(owner))
        assert fifo.read() == child
        owner.kill()
        try:
            wait_gone(child)
        finally:
            if copy is not None:
                os.kill(copy, signal.SIGKILL)
    fifo.close()
    for _ in range(2):
        with make(tmp_path / "data", durability="process", run=False, include=[tasks]) as engine:
            ticket = engine.ticket(ticket_id)
            [attempt] = ticket.attempts()
            assert (attempt.outcome, attempt.fence) == ("lost", 1)
            info = ticket.info()
            assert (info.dead_reason, info.attempts, info.maybe_applied) == ("exhausted", 1, True)


def test_a_child_ends_when_its_owner_hangs_up() -> None:
    process = Process(1_000)
    try:
        process.send(Welcome([], None, None, 1_000))
        assert select.select([process.connection], [], [], PATIENCE_S)[0]
        assert list(process.hear()) == [Ready()]
        process.connection.close()
        wait_gone(process.pid)
        assert process.is_dead and process.exit_code == 70
    finally:
        process.kill()
        process.close()


def test_a_child_that_hears_nonsense_ends_itself() -> None:
    process = Process(1_000)
    try:
        process.connection.setblocking(True)
        process.connection.sendall(b"\x01\x00\x00\x00\xc1")
        wait_gone(process.pid)
        assert process.is_dead and process.exit_code == 71
    finally:
        process.kill()
        process.close()


# ------------------------------------------------------------------------------ left by another


@pytest.fixture
def stranger() -> "Iterator[subprocess.Popen[str]]":
    """A process that ends only when it is killed."""
    process = subprocess.Popen([sys.executable, "-c", DEAF], stdout=subprocess.PIPE, text=True)
    assert said(process) == "up"
    yield process
    process.kill()
    process.wait()
    assert process.stdout is not None
    process.stdout.close()


def leave_behind(path: Path, *children: Child) -> None:
    """A lock file as an owner leaves it that was killed."""
    with make(path):
        pass
    lock = DirectoryLock.try_acquire(
        RealDisk(), os.fspath(path), Owner(1, "here", 0, "app.py", children=children)
    )
    lock.release()


def test_a_child_that_outlived_its_owner_is_ended_before_the_door_opens(
    tmp_path: Path, stranger: "subprocess.Popen[str]", monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(orphans, "LOOKS_FOR_THEIR_END", 2)
    child = identify(stranger.pid)
    assert child is not None and is_alive(child)
    leave_behind(tmp_path / "data", child)
    with make(tmp_path / "data") as engine:
        assert stranger.wait(PATIENCE_S) == -signal.SIGKILL
        assert runtime_of(engine).directory.lock.owner.children == ()


def test_a_process_with_the_number_of_a_child_that_has_ended_is_let_alone(
    tmp_path: Path, stranger: "subprocess.Popen[str]"
) -> None:
    child = Child(stranger.pid, "another boot/12345")
    unknown = Child(stranger.pid)
    kill(child)
    kill(unknown)
    leave_behind(tmp_path / "data", child, unknown)
    with make(tmp_path / "data"):
        pass
    assert stranger.poll() is None


def test_a_child_that_cannot_be_ended_keeps_the_directory_and_its_name_in_the_lock(
    tmp_path: Path, stranger: "subprocess.Popen[str]", monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in ("LOOKS_FOR_THEIR_END", "LOOKS_AFTER_KILL"):
        monkeypatch.setattr(orphans, name, 2)
    child = identify(stranger.pid)
    assert child is not None
    leave_behind(tmp_path / "data", child)
    with monkeypatch.context() as patch:
        patch.setattr(orphans, "kill", lambda _: None)
        for _ in range(2):
            with pytest.raises(EngineInUse, match=f"process {stranger.pid}"):
                make(tmp_path / "data").start()
    make(tmp_path / "data").start().stop()
    assert stranger.wait(PATIENCE_S) == -signal.SIGKILL


def test_a_process_that_has_ended_and_was_not_reaped_counts_as_gone() -> None:
    process = subprocess.Popen([sys.executable, "-S", "-c", ""])
    child = identify(process.pid)
    wait_gone(process.pid)
    assert identify(process.pid) is None
    assert child is None or not is_alive(child)
    process.wait()


# ------------------------------------------------------------------------------------- cancelled


@pytest.mark.parametrize("is_deaf", [False, True])
def test_a_cancelled_handler_that_does_not_look_is_ended_and_may_have_been_applied(
    tmp_path: Path, is_deaf: bool
) -> None:
    fifo = Fifo(tmp_path / "came")
    with engine_with(tmp_path / "data") as engine:
        runtime_of(engine).executor.processes.grace_ms = 50
        ticket = engine.submit("hang", {"came": fifo.path, "is_deaf": is_deaf})
        pid = fifo.read()
        assert ticket.cancel("no more") == "requested"
        when(engine, lambda runtime: runtime.attempts.running == 0)
        with pytest.raises(ProcessLookupError):
            os.kill(pid, 0)
        when(engine, lambda _: True)
        info = ticket.info()
        assert (info.state, info.maybe_applied) == ("cancelled", True)
        assert "did not within" in str(info.error)
    fifo.close()
