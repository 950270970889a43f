"""Attempts of coroutines, on the application's event loop or on one of our own."""

import asyncio
import contextlib
import functools
import logging
import threading
from collections.abc import Sequence
from typing import Any

from parkade.runs import Run, Runs
from parkade.shard.commands import Outcome
from parkade.telling import tell

__all__ = ["BURST_MAX", "LoopedPlace"]

_log = logging.getLogger("parkade.engine")

BURST_MAX = 64  # tasks made at a time: of many at once the garbage collector looks at each
HELD_MAX = 16  # iterations of the loop that outcomes wait for those of later bursts


class _Side:
    """An event loop that attempts run on: the `state` of their runs. `tasks`, by the runs' keys,
    `bursts` and `is_flush_due` are touched by its own callbacks alone."""

    __slots__ = ("bursts", "is_flush_due", "loop", "tasks")

    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        self.loop = loop
        self.bursts = 0  # of tasks that have not had their first steps
        self.is_flush_due = False
        self.tasks: dict[tuple[int, int], asyncio.Task[None]] = {}


class LoopedPlace:
    """Runs coroutines as tasks of a loop."""

    can_stop = True

    def __init__(self, runs: Runs) -> None:
        self._runs = runs
        self._attached: _Side | None = None
        self._own: _Side | None = None

    # --------------------------------------------------------------------- for the executor

    def attach(self, loop: asyncio.AbstractEventLoop | None) -> None:
        """Run coroutines on the caller's loop; None: on a loop of our own, in a thread of its own,
        made when the first one comes."""
        self._attached = None if loop is None else _Side(loop)

    def is_lost(self) -> bool:
        """Whether the caller's loop was closed without `give_up_loop` being called since."""
        attached = self._attached
        return attached is not None and attached.loop.is_closed()

    def give_up_loop(self) -> None:
        """The caller's loop has closed: what began on it ends as unknown, what did not is given
        back, and later coroutines run on a loop of our own."""
        side, self._attached = self._attached, None
        if side is not None:
            self._lose(side)

    @property
    def own_loop(self) -> asyncio.AbstractEventLoop | None:
        """The loop of our own, if there is one."""
        own = self._own
        return None if own is None else own.loop

    def interrupt(self, run: Run) -> None:
        side: _Side | None = run.state
        if side is not None:
            with contextlib.suppress(RuntimeError):  # closed: `give_up_loop` ends the attempt
                side.loop.call_soon_threadsafe(self._cancel, side, run)

    def is_alive(self, run: Run) -> bool:
        side: _Side | None = run.state
        return side is None or not side.loop.is_closed()

    def close(self) -> None:
        own, self._own = self._own, None
        if own is not None:
            with contextlib.suppress(RuntimeError):
                own.loop.call_soon_threadsafe(own.loop.stop)

    def put(self, runs: Sequence[Run]) -> None:
        """Brings runs to the loop, all of them in one callback."""
        attached = self._attached
        if attached is not None and self._post_to(attached, runs):
            return
        if attached is not None:
            self.give_up_loop()
        for _ in range(2):  # a handler may have closed our own loop too; a new one is at hand
            try:
                own = self._own_side()
            except Exception as error:
                self._runs.refuse(runs, error)
                return
            if self._post_to(own, runs):
                return
            self._own = None
            self._lose(own)
        self._runs.refuse(runs, RuntimeError("the event loop was closed at once"))

    def _post_to(self, side: _Side, runs: Sequence[Run]) -> bool:
        """False: the loop is closed, and the runs are nowhere."""
        for run in runs:
            run.state = side
        try:
            side.loop.call_soon_threadsafe(self._begin, side, runs)
        except RuntimeError:
            for run in runs:
                run.state = None
            return False
        return True

    def _lose(self, side: _Side) -> None:
        """Ends what is on a loop that is no more."""
        known = self._runs.all() + self._runs.zombies()
        runs = [run for run in known if run.place is self and _is_on(run, side)]
        self._runs.lose(runs, "its event loop was closed")

    # ------------------------------------------------------------------------------ on the loop

    def _begin(self, side: _Side, runs: Sequence[Run]) -> None:
        """A burst after the other: what ends in its first step is gone before the next is made."""
        if self._runs.is_closed:
            return
        burst, rest = runs[:BURST_MAX], runs[BURST_MAX:]
        side.bursts += 1
        begun: list[tuple[Run, asyncio.Task[None]]] = []
        create_task, tasks = side.loop.create_task, side.tasks
        for run in burst:
            attending = self._attend(side, run)
            try:
                # Its context is a copy of this callback's, so a fresh one.
                task = tasks[run.key] = create_task(attending)
            except BaseException as error:  # the application's own task factory
                attending.close()
                self._finish(side, run, self._runs.settler.not_run(run.job, error))
            else:
                begun.append((run, task))
        try:
            side.loop.call_soon(self._look_after, side, begun, rest)
        except RuntimeError as error:
            self._look_after(side, begun, ())
            self._runs.refuse(rest, error)

    def _look_after(
        self,
        side: _Side,
        begun: "Sequence[tuple[Run, asyncio.Task[None]]]",
        rest: Sequence[Run],
    ) -> None:
        """Behind the first steps of all these tasks, which most need no second of: a callback is
        made for the others alone. Then comes the next burst."""
        for run, task in begun:
            if task.done():
                self._check(side, run, task)
            else:
                task.add_done_callback(functools.partial(self._check, side, run))
        if rest:
            self._begin(side, rest)
        side.bursts -= 1

    async def _attend(self, side: _Side, run: Run) -> None:
        """One attempt, start to end, as a task of its own."""
        if not self._runs.claim(run):
            return
        prepared = self._runs.prepare(run)
        if isinstance(prepared, Outcome):
            self._finish(side, run, prepared)
            return
        args, kwargs = prepared
        try:
            value: Any = await run.job.task.handler.fn(*args, **kwargs)
        except GeneratorExit:
            # Nobody will step this task again: its loop has gone, or somebody closed it.
            lost = self._runs.settler.lost(run.job, "its task was destroyed")
            self._finish(side, run, lost)
            raise
        except BaseException as error:
            self._finish(side, run, self._runs.ended(run, None, error))
            # Ctrl-C in the application's main thread is for the application.
            if isinstance(error, KeyboardInterrupt) and _is_main_thread():
                raise
        else:
            self._finish(side, run, self._runs.ended(run, value, None))

    def _cancel(self, side: _Side, run: Run) -> None:
        """A task that has not begun sees the flag: cancelled now, it would not run at all, and
        nobody would hear of it."""
        task = side.tasks.get(run.key)
        if run.has_begun and task is not None:
            task.cancel(run.cancel_reason)

    def _finish(self, side: _Side, run: Run, outcome: Outcome) -> None:
        """Outcomes of one iteration leave together, and those of bursts that follow at once."""
        if not self._runs.finish(run, outcome) or side.is_flush_due:
            return
        try:
            side.loop.call_soon(self._flush, side)
            side.is_flush_due = True
        except RuntimeError:
            self._runs.hand_over()

    def _flush(self, side: _Side, held: int = 0) -> None:
        if side.bursts and held < HELD_MAX:
            side.loop.call_soon(self._flush, side, held + 1)
            return
        side.is_flush_due = False
        self._runs.hand_over()

    def _check(self, side: _Side, run: Run, future: "asyncio.Task[None]") -> None:
        """After a task: one that was cancelled before its first step has told nobody."""
        side.tasks.pop(run.key, None)
        if not future.cancelled():
            future.exception()  # seen: the loop need not report it
        if self._runs.is_open(run):
            settler = self._runs.settler
            if run.has_begun:
                outcome = settler.lost(run.job, "its task ended and told nobody how")
            else:
                outcome = settler.given_back(run.job, "its task was cancelled before it began")
            self._finish(side, run, outcome)

    # --------------------------------------------------------------------------- a loop of ours

    def _own_side(self) -> _Side:
        side = self._own
        if side is None:
            side = _Side(asyncio.new_event_loop())
            name = "parkade-loop"
            threading.Thread(target=self._run_loop, args=(side,), name=name, daemon=True).start()
            self._own = side
        return side

    def _run_loop(self, side: _Side) -> None:
        """Our own loop's thread: a handler that stops the loop stops only until the next line."""
        loop = side.loop
        asyncio.set_event_loop(loop)
        while not self._runs.is_closed and not loop.is_closed():
            try:
                loop.run_forever()
            except BaseException as error:
                text = "an event loop of handlers was interrupted and goes on"
                tell(_log, logging.ERROR, text, error=error)
        with contextlib.suppress(BaseException):
            _wind_up(loop)
        if not loop.is_closed():
            loop.close()


def _is_on(run: Run, side: _Side) -> bool:
    return run.state is side


def _is_main_thread() -> bool:
    return threading.current_thread() is threading.main_thread()


def _wind_up(loop: asyncio.AbstractEventLoop) -> None:
    """Cancels what is left on a loop and lets it end, as `asyncio.run` does."""
    tasks = asyncio.all_tasks(loop)
    for task in tasks:
        task.cancel()
    if tasks:
        loop.run_until_complete(asyncio.gather(*tasks, return_exceptions=True))
    loop.run_until_complete(loop.shutdown_asyncgens())
