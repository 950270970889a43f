"""Processes that a bench starts, and their end: whatever becomes of the bench, none is left behind,
and no scratch directory is."""

import contextlib
import os
import signal
import subprocess
from collections.abc import Generator, Sequence
from pathlib import Path
from tempfile import TemporaryDirectory
from types import FrameType
from typing import Any

ENDINGS = (signal.SIGTERM, signal.SIGINT, signal.SIGHUP)


@contextlib.contextmanager
def ended_by_signals() -> Generator[None, None, None]:
    """A signal to end is raised as `SystemExit`, so that every block is left as it should be. The
    next ones are passed over: what is being removed is removed."""

    def leave(number: int, _: FrameType | None) -> None:
        for ending in ENDINGS:
            signal.signal(ending, signal.SIG_IGN)
        raise SystemExit(128 + number)

    before = {ending: signal.signal(ending, leave) for ending in ENDINGS}
    try:
        yield
    finally:
        for ending, handler in before.items():
            signal.signal(ending, handler)


@contextlib.contextmanager
def _held_back() -> Generator[None, None, None]:
    """A signal to end comes when the block is left: half of what it does would be of no use."""
    before = signal.pthread_sigmask(signal.SIG_BLOCK, ENDINGS)
    try:
        yield
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)


@contextlib.contextmanager
def scratch(prefix: str, directory: str | None) -> Generator[Path, None, None]:
    """A fresh directory under `directory` (None: where the system has them), which is removed
    afterwards, whenever a signal to end comes."""
    place: TemporaryDirectory[str] | None = None
    try:
        with _held_back():
            place = TemporaryDirectory(prefix=prefix, dir=directory)
        yield Path(place.name)
    finally:
        if place is not None:
            with _held_back():
                place.cleanup()


@contextlib.contextmanager
def started(command: Sequence[str], **how: Any) -> Generator["subprocess.Popen[str]", None, None]:
    """A process in a group of its own, with pipes as `how` says. When the block is left, it and all
    that it has started are killed."""
    with subprocess.Popen(
        command, text=True, stdin=subprocess.DEVNULL, process_group=0, **how
    ) as process:
        try:
            yield process
        finally:
            kill_whole(process)


def kill_whole(process: "subprocess.Popen[str]") -> None:
    """Kills a process of `started` with all that it has started, so far as there is any left."""
    with contextlib.suppress(ProcessLookupError):
        os.killpg(process.pid, signal.SIGKILL)
