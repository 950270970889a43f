"""`engine.run_forever()`: an engine in the foreground of a process, stopped by signals.

The first SIGTERM or SIGINT stops the engine in order, the second ends the process at once.
"""

import logging
import os
import queue
import signal
import sys
import threading
from collections.abc import Callable, Generator
from contextlib import contextmanager, suppress
from types import FrameType
from typing import TYPE_CHECKING, Any

from parkade.telling import tell
from parkade.views import StopReport

if TYPE_CHECKING:
    from parkade.engine import Engine

__all__ = ["run_in_foreground"]

SIGNALS = (signal.SIGTERM, signal.SIGINT)
_log = logging.getLogger("parkade.engine")


def run_in_foreground(engine: "Engine", begun: Callable[[], None] | None = None) -> StopReport:
    """Opens the engine if need be, calls `begun`, returns when it was stopped: by a signal, where
    this is the main thread, or by somebody's `stop`."""
    # Its `put` may interrupt itself, which is what a signal handler does.
    over: queue.SimpleQueue[int] = queue.SimpleQueue()
    with _signals(over):
        engine.start()
        engine.desk("engine.run_forever").runtime.host.feed.when_over(lambda: over.put(0))
        if begun is not None:
            begun()
        number = over.get()
        if number:
            tell(_log, logging.INFO, "%s: the engine stops", signal.Signals(number).name)
        report = engine.stop()
    tell(
        _log, logging.INFO if report.clean else logging.WARNING,
        "stopped: %d attempts finished, %d cancelled, %d given back, %d still running",
        report.finished, report.cancelled, report.given_back, report.zombies,
    )  # fmt: skip
    return report


@contextmanager
def _signals(over: "queue.SimpleQueue[int]") -> Generator[None, None, None]:
    """Signals are told to `over`. Only the main thread may have them; in another they stay as they
    are."""
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    seen: list[int] = []

    def heard(number: int, frame: FrameType | None) -> None:
        seen.append(number)
        if len(seen) > 1:
            _leave(number)
        over.put(number)

    before: list[tuple[signal.Signals, Any]] = []
    try:
        for number in SIGNALS:
            before.append((number, signal.signal(number, heard)))
        yield
    finally:
        for number, handler in before:
            # None: it was set by code that is not Python's, and cannot be set again from here.
            if handler is not None:
                signal.signal(number, handler)


def _leave(number: int) -> None:
    """The second signal: whoever sends it does not want to wait. It is as a crash."""
    name = signal.Signals(number).name
    line = f"parkade: {name} again, leaving at once. What ran is settled by the next open\n"
    with suppress(BaseException):
        # Not through the buffer, if there is one: the signal may have interrupted its holder.
        stream: Any = sys.__stderr__
        getattr(stream.buffer, "raw", stream.buffer).write(line.encode())
    os._exit(128 + number)
