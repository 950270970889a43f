"""`@engine.on(...)`: functions that are called with events, one after another, on a side thread.

A callback that blocks delays the callbacks behind it and nobody else; what it raises is logged. Its
events come through a bounded buffer like anybody's, and what that loses is lost.
"""

import asyncio
import concurrent.futures
import inspect
import logging
import threading
from collections.abc import Callable, Coroutine
from typing import TYPE_CHECKING, Any, NamedTuple

from parkade.events import Event, EventKind
from parkade.folding import Folding
from parkade.subscription import Subscription, subscribe
from parkade.telling import tell

if TYPE_CHECKING:
    from parkade.runtime import Runtime

__all__ = ["Callbacks", "Listener"]

_log = logging.getLogger("parkade.engine")

LOOP_LOOK_S = 1.0  # how often a wait for a coroutine looks whether its loop is still open


class Listener(NamedTuple):
    """A function, and the kinds of event it is called with."""

    kinds: frozenset[EventKind]
    call: Callable[[Event], Any]


class Callbacks:
    """Those of one open engine. `failed` counts calls that raised.

    A coroutine function runs on `loop` as long as that is open: the loop the engine was opened on;
    else on one of the side thread's own. The next call is made when it has ended.
    """

    def __init__(self, runtime: "Runtime", listeners: list[Listener]) -> None:
        self._runtime = runtime
        self._listeners = listeners
        self._subscription: Subscription | None = None
        self._loop: asyncio.AbstractEventLoop | None = None
        self._runner: asyncio.Runner | None = None
        self._thread: threading.Thread | None = None
        self._starting = threading.Lock()
        self._is_pumping = False
        self._told_dropped = 0
        self._folding = Folding()
        self.failed = 0

    @property
    def dropped(self) -> int:
        """Events that were lost because the callbacks were too slow."""
        return 0 if self._subscription is None else self._subscription.dropped

    def start(self, loop: asyncio.AbstractEventLoop | None) -> None:
        """Calls from now on, if there is anybody to call."""
        self._loop = loop if self._runtime.drive.has_threads else None
        if self._listeners:
            self.listen()

    def listen(self) -> None:
        """There is somebody to call: from now on, if not already. All kinds go through one buffer,
        so that the events of different callbacks keep their order."""
        with self._starting:
            if self._subscription is not None:
                return
            self._subscription = subscribe(self._runtime, ())
            if not self._runtime.drive.has_threads:
                return
            name = "parkade-callbacks"
            self._thread = threading.Thread(target=self._run, name=name, daemon=True)
            self._thread.start()

    def finish(self, timeout_s: float) -> None:
        """After the last event: waits until all callbacks were called, or the time is up."""
        thread = self._thread
        if thread is None:
            self.close()
        elif thread is not threading.current_thread():
            thread.join(timeout_s)
            if thread.is_alive():
                tell(_log, logging.WARNING, "a callback still runs; what comes after it is lost")
                if self._subscription is not None:
                    self._subscription.close()

    def pump(self) -> None:
        """Without threads: makes the calls that are to be made, here."""
        if self._subscription is None or self._is_pumping:
            return
        self._is_pumping = True
        try:
            event = self._subscription.take()
            while event is not None:
                self._tell(event)
                event = self._subscription.take()
        finally:
            self._is_pumping = False

    def close(self) -> None:
        """The loop of our own, if there was one."""
        runner, self._runner = self._runner, None
        if runner is not None:
            runner.close()

    # ------------------------------------------------------------------------------ the side thread

    def _run(self) -> None:
        assert self._subscription is not None
        try:
            for event in self._subscription:
                self._tell(event)
                self._note_losses()
        finally:
            self.close()

    def _tell(self, event: Event) -> None:
        for listener in tuple(self._listeners):
            if event.kind in listener.kinds:
                self._call(listener, event)

    def _call(self, listener: Listener, event: Event) -> None:
        try:
            value = listener.call(event)
            if inspect.iscoroutine(value):
                self._await(value)
        # Whatever it is: SystemExit in a callback ends neither the thread nor the process.
        except BaseException as error:
            self.failed += 1
            self._tell_failure(listener, event, error)

    def _tell_failure(self, listener: Listener, event: Event, error: BaseException) -> None:
        """With its traceback; of equal ones one in 10 s, since what is broken raises each time."""
        name = str(getattr(listener.call, "__qualname__", "a callback"))
        kind = (name, event.kind, type(error).__qualname__)
        folded = self._folding.take(kind, self._runtime.clock.monotonic_ms())
        if folded is None:
            return
        text = "%s raised at an event %s"
        if folded:
            text = f"{text} ({folded} more like it before)"
        tell(_log, logging.ERROR, text, name, event.kind, error=error)

    def _await(self, coroutine: Coroutine[Any, Any, Any]) -> None:
        loop = self._loop
        if loop is None or loop.is_closed():
            if self._runner is None:
                self._runner = asyncio.Runner()
            self._runner.run(coroutine)
            return
        future = asyncio.run_coroutine_threadsafe(coroutine, loop)
        while not future.done():
            if loop.is_closed():
                raise RuntimeError("the event loop was closed while the callback ran on it")
            concurrent.futures.wait((future,), timeout=LOOP_LOOK_S)
        future.result()

    def _note_losses(self) -> None:
        dropped = self.dropped
        if dropped > self._told_dropped:
            text = "callbacks are too slow: %d events were lost to them"
            tell(_log, logging.WARNING, text, dropped - self._told_dropped)
            self._told_dropped = dropped
