"""The engine: what an application makes, opens, and submits to.

Constructing one opens nothing, so that tasks can be declared at import. Entering it opens the
directory; leaving it drains, checkpoints and lets the directory go.
"""

import asyncio
import atexit
import contextlib
import logging
import os
import threading
import weakref
from collections.abc import Awaitable, Callable, Generator, Iterable, Mapping, Sequence
from datetime import datetime
from os import PathLike
from types import TracebackType
from typing import Any, Literal, Never, NoReturn, ParamSpec, Self, TypeVar, cast, overload

from msgspec import UNSET

from parkade import foreground, steering
from parkade.alive import Alive
from parkade.asking import Request, check_not_on_loop
from parkade.callbacks import Listener
from parkade.calls import Call
from parkade.checks import check_choice, check_count, refuse
from parkade.clock import Clock, SystemClock
from parkade.dead import DeadLetters
from parkade.desk import Desk
from parkade.directory import own_directory
from parkade.durations import Duration, parse_duration_ms
from parkade.errors import (
    ConfigError,
    EngineClosed,
    ForkedEngine,
    PartialSubmit,
    SubmitReentered,
)
from parkade.events import Event, EventKind, named_kinds
from parkade.handles import Handles
from parkade.late_handlers import LateHandlers
from parkade.limits import SHARDS_MAX, SUBMIT_CHUNK
from parkade.looking import Looking
from parkade.options import check_index_tags
from parkade.payload import PAYLOAD_BYTES_MAX
from parkade.policies import RetryPolicy, as_policy
from parkade.remarks import remark_on_open
from parkade.runtime import Runtime
from parkade.runtime_options import RuntimeOptions
from parkade.steering import Breakers, Limits
from parkade.store.disk import Disk
from parkade.submitting import Submitting, chunks
from parkade.subscription import BUFFER_EVENTS, Subscription, subscribe
from parkade.tasks import Task, Tasks
from parkade.ticket import Ticket
from parkade.views import StopReport
from parkade.wording import shown

__all__ = ["Engine"]

P = ParamSpec("P")
R = TypeVar("R")
_AUTO: Any = UNSET


# A library prints nothing by itself: whoever wants to hear configures logging.
logging.getLogger("parkade").addHandler(logging.NullHandler())


class Engine(Looking):
    """Owns a data directory.

    `shards` None: the directory's number, or 4 for a new one. `durability`: "disk" survives power
    loss, "process" survives kill -9, "memory" survives nothing: a temporary directory stands in for
    `path`, which is not touched. `threads` and `async_limit`: how many plain and async handlers run
    at a time; `processes`: how many of those with `where="process"`. `keep_done`: how long done,
    cancelled and expired tickets are kept, `keep_done_max`: how many of them, `keep_dead`: how long
    dead ones; None: for ever, any number. `index_tags`: names of tags by which tickets that are
    submitted from now on are found and cancelled. `max_ready`: when so many tickets are ready, a
    submit of one that is due raises `Backpressure`, or waits (`when_full="wait"`; never in a
    handler). `max_payload`: bytes of one payload or result. `lock_wait`: how long to wait for a
    process that is leaving the directory. `run=False` opens for submitting only.

    A `with` or `async with` inside of another is part of it: the last one that is left stops the
    engine.

    Raises `ConfigError` for options that cannot be right; opening raises `EngineInUse`,
    `ShardMismatch`, `FormatTooNew`, `StorageDamaged`, `ConfigError`.
    """

    _temporary_place: Callable[[], object] | None = None
    _is_opening = _is_stopping = False
    _submitting: Submitting | None = None

    def __init__(
        self,
        path: str | PathLike[str] = "parkade-data",
        *,
        shards: int | None = None,
        durability: Literal["disk", "process", "memory"] = "disk",
        threads: int = 32,
        async_limit: int = 1000,
        processes: int = 0,
        keep_done: Duration | None = "24h",
        keep_done_max: int | None = 1_000_000,
        keep_dead: Duration | None = None,
        index_tags: Sequence[str] = (),
        max_ready: int | None = None,
        when_full: Literal["error", "wait"] = "error",
        max_payload: int = PAYLOAD_BYTES_MAX,
        lock_wait: Duration = "5s",
        default_retry: RetryPolicy | int | None = _AUTO,
        clock: Clock | None = None,
        run: bool = True,
        include: Sequence[Tasks] = (),
        **unknown: Never,
    ) -> None:
        super().__init__()
        for name in unknown:
            raise ConfigError.unknown_option("Engine", name, _OPTIONS)
        _check_shards(shards)
        _check_durability(durability)
        check_choice("Engine", "when_full", when_full, ("error", "wait"))
        self.path: str = os.path.abspath(os.fspath(path))
        self._clock: Clock = SystemClock() if clock is None else clock
        self._shards = shards
        self._lock_wait_ms = parse_duration_ms(lock_wait, what="Engine(lock_wait)")
        policy = RetryPolicy()
        if default_retry is not _AUTO:
            policy = as_policy(default_retry, call="Engine", name="default_retry")
        self._options = RuntimeOptions(
            durability=durability,
            threads=check_count("Engine", "threads", threads),
            async_limit=check_count("Engine", "async_limit", async_limit),
            default_retry=policy,
            max_payload=check_count("Engine", "max_payload", max_payload),
            keep_done_ms=_span_ms("keep_done", keep_done),
            keep_done_max=_count("keep_done_max", keep_done_max),
            keep_dead_ms=_span_ms("keep_dead", keep_dead),
            has_attempts=run,
            processes=check_count("Engine", "processes", processes, least=0),
            max_ready=_count("max_ready", max_ready),
            when_full=when_full,
            index_tags=check_index_tags("Engine", index_tags),
        )
        self._desk: Desk | None = None
        self._blocks: list[None] = []  # those that are inside of `with`; a list counts atomically
        self._changing = threading.RLock()  # a signal handler may stop while its thread does
        self.engine = self
        self.default_policy = policy
        self.dead = DeadLetters(self)
        self.breakers = Breakers(self)
        self.limits = Limits(self)
        self.include(*include)

    @property
    def clock(self) -> Clock:
        """What tells this engine the time."""
        return self._clock

    # ------------------------------------------------------------------------ open and close

    def __enter__(self) -> Self:
        with self._entering():
            return self.start()

    def __exit__(
        self, et: type[BaseException] | None, e: BaseException | None, tb: TracebackType | None
    ) -> None:
        self._blocks.pop()
        if not self._blocks:
            # A fork leaves the block too: nothing of it is its.
            with contextlib.suppress(ForkedEngine):
                self.stop()

    async def __aenter__(self) -> Self:
        with self._entering():
            return await self.astart()

    async def __aexit__(
        self, et: type[BaseException] | None, e: BaseException | None, tb: TracebackType | None
    ) -> None:
        self._blocks.pop()
        if not self._blocks:
            with contextlib.suppress(ForkedEngine):
                await self.astop()

    @contextlib.contextmanager
    def _entering(self) -> Generator[None, None, None]:
        """Counts a block, unless it cannot be entered."""
        self._blocks.append(None)
        try:
            yield
        except BaseException:
            self._blocks.pop()
            raise

    def start(self) -> Self:
        """Opens the directory and begins to run what is due; async handlers run on a loop of the
        engine's own. Raises as the class says; an engine that is open stays so."""
        check_not_on_loop("engine.start", "engine.astart")
        return self._start(None)

    async def astart(self) -> Self:
        """`start` for coroutines: async handlers then run on this loop."""
        loop = asyncio.get_running_loop()
        await asyncio.to_thread(self._start, loop)
        return self

    def stop(self, drain: Duration = "10s", cancel: Duration = "5s") -> StopReport:
        """Takes nothing new, waits `drain` for running attempts, asks the rest to cancel and waits
        `cancel`, gives back what still runs, checkpoints and closes. Twice is once. Whoever waits
        for the engine gets an answer or `EngineClosed`. In a signal handler that has interrupted
        a stop it changes nothing, and reports one that is not clean.

        Raises `WaitInsideAttempt` in a handler of this engine: it would wait for itself. Raises
        `SubmitReentered` in a signal handler that has interrupted a submit or a start.
        """
        check_not_on_loop("engine.stop", "engine.astop")
        return self._stop(drain, cancel)

    async def astop(self, drain: Duration = "10s", cancel: Duration = "5s") -> StopReport:
        """`stop` for coroutines."""
        return await asyncio.to_thread(self._stop, drain, cancel)

    def _start(self, loop: asyncio.AbstractEventLoop | None) -> Self:
        self._check_process()
        with self._changing:
            if self._desk is not None:
                return self
            self._is_opening = True
            try:
                self._open(loop)
            except BaseException:
                self._leave_place()
                raise
            finally:
                self._is_opening = False
            return self

    def _check_may_stop(self) -> None:
        """Before the lock too: a stop that has it may wait for the handler that asks."""
        desk = self._desk
        if desk is not None:
            desk.check_may_stop()

    def _check_process(self) -> None:
        """Raises `ForkedEngine`. Asked before the lock is: one that another thread had when the
        fork was made is never free there."""
        desk = self._desk
        if desk is not None:
            desk.check_process()

    def _open(self, loop: asyncio.AbstractEventLoop | None) -> None:
        directory = own_directory(
            self._options.disk,
            self._place(),
            shards=self._shards,
            clock=self.clock,
            lock_wait_ms=self._lock_wait_ms,
            entropy=self._options.entropy,
        )
        try:
            runtime = Runtime.open(directory, self._options, self, self.clock)
        except BaseException:
            directory.release()
            raise
        try:
            runtime.executor.attach_loop(loop)
            runtime.callbacks.start(loop)
            desk = Desk(runtime)
            runtime.executor.runs.family_of = runtime.families(desk.child)
            runtime.start()
            self._submitting, self._desk = Submitting(desk), desk
            runtime.let_begin()
            if runtime.drive.has_threads:
                desk.serve(LateHandlers(self))
                remark_on_open(runtime, self)
        except BaseException:
            self._desk = None
            runtime.abandon()
            raise
        _open_engines.add(self)

    def _place(self) -> str:
        """The directory to open: a temporary one for what is to survive nothing."""
        if not self._options.is_temporary:
            return self.path
        import tempfile

        place = tempfile.mkdtemp(prefix="parkade-")
        # Also at the end of the interpreter: but not of a fork's, which has the same engine.
        self._temporary_place = weakref.finalize(
            self, _remove_own, self._options.disk, place, os.getpid()
        )
        return place

    def _leave_place(self) -> None:
        if self._temporary_place is not None:
            self._temporary_place()
            self._temporary_place = None

    def _stop(self, drain: Duration, cancel: Duration) -> StopReport:
        drain_ms = parse_duration_ms(drain, what="engine.stop(drain)")
        cancel_ms = parse_duration_ms(cancel, what="engine.stop(cancel)")
        self._check_process()
        self._check_may_stop()
        with self._changing:
            if self._is_opening:  # by this thread, which a signal handler has interrupted
                raise SubmitReentered("engine.stop")
            desk = self._desk
            if desk is None or self._is_stopping:
                is_stopped = desk is None
                return StopReport(
                    clean=is_stopped, finished=0, cancelled=0, given_back=0, zombies=0
                )
            self._is_stopping = True
            desk.close()
            try:
                return desk.runtime.stop(drain_ms=drain_ms, cancel_ms=cancel_ms)
            finally:
                self._desk, self._is_stopping = None, False
                _open_engines.discard(self)
                self._leave_place()

    def run_forever(self) -> None:
        """Opens the engine unless it is open, and returns when it has stopped.

        In the main thread SIGTERM and SIGINT stop it, with the limits of `stop`; a second one ends
        the process at once, as a crash would. In another thread it waits for somebody's `stop`.
        Raises what opening raises. Where an event loop runs the application (uvicorn), use the
        engine in its lifespan instead: "async with engine:".
        """
        check_not_on_loop("engine.run_forever", "async with engine")
        foreground.run_in_foreground(self)

    def desk(self, call: str) -> Desk:
        """Where this engine is asked. Raises `EngineClosed`, and `ForkedEngine` in a fork."""
        desk = self._desk
        if desk is None:
            raise EngineClosed(call)
        desk.check(call)
        return desk

    # -------------------------------------------------------------------------------- submit

    @overload
    def submit(self, call: Call[R], /) -> Ticket[R]: ...
    @overload
    def submit(self, task: Task[P, R], /, *args: P.args, **kwargs: P.kwargs) -> Ticket[R]: ...
    @overload
    def submit(self, name: str, payload: Mapping[str, Any], /) -> Ticket[Any]: ...
    def submit(self, what: Any, /, *args: Any, **kwargs: Any) -> Ticket[Any]:
        """A call, a task with its arguments, or a registered name with a mapping of arguments.
        When it returns, the ticket survives."""
        return self.submit_call(self._call(what, args, kwargs))

    @overload
    async def asubmit(self, call: Call[R], /) -> Ticket[R]: ...
    @overload
    async def asubmit(
        self, task: Task[P, R], /, *args: P.args, **kwargs: P.kwargs
    ) -> Ticket[R]: ...
    @overload
    async def asubmit(self, name: str, payload: Mapping[str, Any], /) -> Ticket[Any]: ...
    async def asubmit(self, what: Any, /, *args: Any, **kwargs: Any) -> Ticket[Any]:
        """`submit` for coroutines."""
        return await self.asubmit_call(self._call(what, args, kwargs))

    def submit_call(self, call: Call[R], /) -> Ticket[R]:
        return self._door(call, "submit").submit(call)

    def asubmit_call(self, call: Call[R], /) -> Awaitable[Ticket[R]]:
        return self._door(call, "asubmit").asubmit(call)

    def _door(self, call: Call[Any], verb: str) -> Submitting:
        """Where single calls are submitted. Raises as `desk` does."""
        desk, submitting = self._desk, self._submitting
        if desk is None or submitting is None or not desk.is_usable:
            self.desk(f"{call.task}.{verb}")  # says why not
            raise EngineClosed(f"{call.task}.{verb}")
        return submitting

    def submit_many(
        self, calls: Iterable[Call[R]], /, *, chunk: int = SUBMIT_CHUNK
    ) -> Sequence[Ticket[R]]:
        """Tickets in the order of the calls, which are taken a chunk at a time.

        Raises `PartialSubmit` when a chunk fails after others were accepted.
        """
        desk = self.desk("engine.submit_many")
        accepted = Handles(desk)
        try:
            for listed in chunks(calls, check_count("engine.submit_many", "chunk", chunk)):
                error = desk.ask(self._many(listed, accepted))
                if error is not None:
                    raise error
        except Exception as error:
            _raise_partial(accepted, error)
        return accepted

    async def asubmit_many(
        self, calls: Iterable[Call[R]], /, *, chunk: int = SUBMIT_CHUNK
    ) -> Sequence[Ticket[R]]:
        """`submit_many` for coroutines."""
        desk = self.desk("engine.asubmit_many")
        accepted = Handles(desk)
        try:
            for listed in chunks(calls, check_count("engine.asubmit_many", "chunk", chunk)):
                error = await desk.aask(self._many(listed, accepted))
                if error is not None:
                    raise error
        except Exception as error:
            _raise_partial(accepted, error)
        return accepted

    def _call(self, what: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Call[Any]:
        if isinstance(what, Call):
            return what  # pyright: ignore[reportUnknownVariableType]
        if isinstance(what, Task):
            return cast(Task[..., Any], what).call(*args, **kwargs)
        if isinstance(what, str) and len(args) == 1 and not kwargs:
            return self.call_by_name(what, args[0])
        raise ConfigError(
            "engine.submit() takes a call (task.call(...)), a task with its arguments, or the "
            "name of a task and a mapping of its arguments"
        )

    def _many(self, calls: Sequence[Call[Any]], accepted: Handles) -> Request[Exception | None]:
        assert self._submitting is not None
        if set(map(type, calls)) != {Call}:
            for call in calls:
                if not isinstance(cast(object, call), Call):
                    raise ConfigError(
                        f"engine.submit_many({shown(call)}): it takes calls, like task.call(...)"
                    )
        return self._submitting.many(calls, accepted)

    # ------------------------------------------------------------------------------ operators

    def pause(
        self,
        *,
        task: str | None = None,
        target: str | None = None,
        until: datetime | None = None,
        reason: str = "",
    ) -> None:
        """Starts nothing more of a task, or against a target, until then or until `resume`; after a
        restart as well. What runs goes on; what waits spends no attempt, but `expires` and
        `max_elapsed` go on. A task that nobody knows is paused as well, for another process may;
        the log says so.

        Raises `ConfigError` unless one of the two is given, `NaiveDatetime`, `StorageError`.
        """
        steering.pause(self, task=task, target=target, until=until, reason=reason)

    def resume(self, *, task: str | None = None, target: str | None = None) -> None:
        """Takes a pause back; where there is none, nothing happens."""
        steering.resume(self, task=task, target=target)

    # -------------------------------------------------------------------------------- events

    def events(
        self,
        *kinds: EventKind,
        task: str | None = None,
        since: int | None = None,
        buffer: int = BUFFER_EVENTS,
    ) -> Subscription:
        """What happens from now on, as it becomes durable: of these kinds (none named: all), of one
        task if it is given. To be iterated in a thread or on an event loop.

        `since`: first what the last 100,000 events have above this number; 0 is all of them. A
        number that this open has not reached is of an earlier one, and means 0. `buffer`: how many
        events may wait to be taken; beyond it the oldest are lost, and counted in `dropped`.
        Raises `ConfigError`.
        """
        runtime = self.desk("engine.events").runtime
        return subscribe(runtime, kinds, task=task, since=since, buffer=buffer)

    def on(self, *kinds: EventKind) -> Callable[[Callable[[Event], Any]], Callable[[Event], Any]]:
        """Has a function called with each event of these kinds (none named: all), from when the
        engine is opened, or from now on if it is open. `@engine.on("dead")`.

        Calls are made one after another on a side thread; a coroutine function runs on the loop
        that the engine was opened on, else on one of that thread's own. What a call raises is
        logged. Callbacks that cannot keep up lose the oldest of 10,000 events. Raises
        `ConfigError`.
        """
        wanted = named_kinds("engine.on", kinds)

        def register(function: Callable[[Event], Any]) -> Callable[[Event], Any]:
            if not callable(cast(object, function)):
                refuse("engine.on", "function", function, "a function of one event")
            self._listen([Listener(wanted, function)])
            return function

        return register

    def _listen(self, listeners: Sequence[Listener]) -> None:
        self._options.listeners += listeners
        desk = self._desk
        if desk is not None and listeners:
            desk.runtime.callbacks.listen()


_OPTIONS = (
    "shards", "durability", "threads", "async_limit", "processes", "keep_done", "keep_done_max",
    "keep_dead", "index_tags", "max_ready", "when_full", "max_payload", "lock_wait",
    "default_retry", "clock", "run", "include",
)  # fmt: skip


# Threads of ours are daemons: whoever forgets to stop an engine still leaves it closed cleanly.
_open_engines: Alive[Engine] = Alive()


def _remove_own(disk: Disk, place: str, pid: int) -> None:
    if os.getpid() == pid:
        with contextlib.suppress(OSError):
            disk.remove_tree(place)


@atexit.register
def _stop_open_engines() -> None:
    for engine in _open_engines.all():
        with contextlib.suppress(ForkedEngine):
            engine.stop()


def _check_shards(shards: int | None) -> None:
    if shards is not None and check_count("Engine", "shards", shards) > SHARDS_MAX:
        raise ConfigError.option("Engine", "shards", shards, f"use 1 to {SHARDS_MAX}")


def _span_ms(name: str, span: Duration | None) -> int | None:
    return None if span is None else parse_duration_ms(span, what=f"Engine({name})")


def _count(name: str, count: int | None) -> int | None:
    return None if count is None else check_count("Engine", name, count)


def _check_durability(durability: str) -> None:
    advice = '"disk" (survives power loss), "process" (survives kill -9) or "memory" (tests)'
    if durability not in ("disk", "process", "memory"):
        raise ConfigError.option("Engine", "durability", durability, f"use {advice}")


def _raise_partial(accepted: Sequence[Ticket[Any]], error: Exception) -> NoReturn:
    """Nothing accepted: the error itself says it better."""
    if not accepted:
        raise error
    raise PartialSubmit(accepted, total=None, cause=error) from error
