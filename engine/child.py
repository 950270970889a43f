"""A child process: makes one attempt after another, as its owner says.

Handlers run on the main thread; another thread reads what the owner says, so that a cancel reaches
a handler that works. A child ends when its owner does: the system sends it a signal (Linux), and
the connection closes. It ignores Ctrl-C, which a terminal sends to all processes of a program:
what is to end is the owner's to say.
"""

import contextlib
import ctypes
import os
import queue
import random
import select
import signal
import socket
import sys
import threading
from collections.abc import Sequence
from contextvars import copy_context
from functools import partial
from typing import Any

import msgspec

from parkade.clock import SystemClock
from parkade.finder import Finder
from parkade.guards import Guards
from parkade.job import Job
from parkade.owner_line import OwnerLine, RemoteFamily, RemoteRun
from parkade.policies import RetryPolicy
from parkade.runs import Run, Runs
from parkade.settling import Settler
from parkade.shard.commands import Outcome
from parkade.tasks import Task, Tasks
from parkade.verdicts import describe
from parkade.wire import (
    BadMessage,
    Begun,
    Bye,
    Ended,
    Frames,
    Order,
    Ready,
    Reply,
    Stop,
    ToChild,
    ToOwner,
    Unfit,
    Welcome,
    pack,
    read_for_child,
)

__all__ = ["main"]

FRAME_BYTES_MAX = 1 << 31  # the owner's own frames: bounded where they are made
CHUNK_BYTES = 1 << 16
OWNER_LOOK_S = 1.0
PR_SET_PDEATHSIG = 1
ORPHANED, CONFUSED = 70, 71  # exit codes


def main(fileno: int, owner_pid: int) -> None:
    """Serves until the owner says to end; then returns, so that the interpreter ends in order."""
    is_tied = _tie_to(owner_pid)
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    signal.signal(signal.SIGTERM, signal.SIG_DFL)
    signal.pthread_sigmask(signal.SIG_UNBLOCK, (signal.SIGTERM, signal.SIGINT))
    os.set_inheritable(fileno, False)
    connection = socket.socket(fileno=fileno)
    Child(connection, owner_pid, is_watching=not is_tied).serve()


def _tie_to(owner_pid: int) -> bool:
    """Has the system end this process with its owner; whether it can. One whose owner has gone in
    the meantime ends here."""
    is_tied = False
    if sys.platform == "linux":
        with contextlib.suppress(Exception):
            is_tied = ctypes.CDLL(None).prctl(PR_SET_PDEATHSIG, signal.SIGKILL, 0, 0, 0) == 0
    if os.getppid() != owner_pid:
        os._exit(ORPHANED)
    return is_tied


class Child:
    """One end of the connection, and the attempt at hand."""

    def __init__(self, connection: socket.socket, owner_pid: int, *, is_watching: bool) -> None:
        self._connection = connection
        self._owner_pid = owner_pid
        self._is_watching = is_watching
        self._sending = threading.Lock()
        self._work: queue.SimpleQueue[Order | Bye] = queue.SimpleQueue()
        self._welcomed = threading.Event()
        self._changing = threading.Lock()
        self._ordered: tuple[int, int] | None = None  # serial and fence of the attempt at hand
        self._run: Run | None = None
        self._stop: Stop | None = None
        self._clock = SystemClock()
        self._line = OwnerLine(self._send)
        self._finder: Finder
        self._runs: Runs

    def serve(self) -> None:
        """Makes attempts until the owner says to end."""
        threading.Thread(target=self._read, name="parkade-owner", daemon=True).start()
        self._welcomed.wait()
        self._send(Ready())
        while isinstance(order := self._work.get(), Order):
            told = copy_context().run(self._attend, order)
            with self._changing:
                self._ordered = self._run = self._stop = None
            _flush()
            self._send(told)

    # ---------------------------------------------------------------------- the owner's thread

    def _read(self) -> None:
        frames = Frames(FRAME_BYTES_MAX)
        try:
            while True:
                if self._is_watching and not self._has_word():
                    continue
                chunk = self._connection.recv(CHUNK_BYTES)
                if not chunk:
                    os._exit(ORPHANED)
                for body in frames.feed(chunk):
                    self._hear(read_for_child(body))
        except BadMessage:
            os._exit(CONFUSED)
        except BaseException:
            os._exit(ORPHANED)

    def _has_word(self) -> bool:
        """Where the system does not tell: a copy of the owner, forked, may hold the other end."""
        if os.getppid() != self._owner_pid:
            os._exit(ORPHANED)
        return bool(select.select([self._connection], [], [], OWNER_LOOK_S)[0])

    def _hear(self, message: ToChild) -> None:
        match message:
            case Welcome():
                sys.argv[:] = message.argv
                self._finder = Finder(message.main, message.main_path)
                settler = _Quiet(
                    clock=self._clock,
                    entropy=lambda: random.getrandbits(31),
                    result_bytes_max=message.result_bytes_max,
                )
                settler.trips = _trips
                self._runs = Runs(
                    deliver=lambda _: None, clock=self._clock, settler=settler, port=self._line
                )
                self._runs.family_of = partial(
                    RemoteFamily,
                    self._line,
                    now_ms=self._clock.now_ms,
                    payload_bytes_max=message.result_bytes_max,
                )
                self._welcomed.set()
            case Order():
                with self._changing:
                    # Now, and not when it is its turn: a stop may follow on its heels.
                    self._ordered = (message.ticket.serial, message.ticket.fence)
                self._work.put(message)
            case Stop():
                with self._changing:
                    if self._ordered == (message.serial, message.fence):
                        self._stop = message
                        self._pass_on()
            case Bye():
                self._work.put(message)
            case Reply():
                self._line.hear(message)

    def _pass_on(self) -> None:
        """Under the lock: what was said before the attempt was there it hears when it is."""
        run, stop = self._run, self._stop
        if run is None or stop is None:
            return
        run.is_for_good = run.is_for_good or stop.is_for_good
        run.cancel_reason = stop.reason
        attempt = run.attempt
        if attempt is not None:
            attempt.request_cancel(stop.reason, is_for_good=stop.is_for_good)

    # -------------------------------------------------------------------------- the main thread

    def _attend(self, order: Order) -> Ended | Unfit:
        """One attempt, start to end. Whatever goes wrong is told."""
        ticket = order.ticket
        try:
            task = self._found(order)
        except BaseException as error:
            return Unfit(ticket.serial, ticket.fence, describe(error))
        job = _job(order, task)
        run = RemoteRun(job, _Nowhere(), (job.serial, job.fence), line=self._line)
        self._runs.add([run])
        with self._changing:
            self._run = run
            self._pass_on()
        outcome = self._make(run)
        self._line.flush()
        self._runs.finish(run, outcome)
        ran_ms = self._clock.monotonic_ms() - run.started_ms if run.started_ms else 0
        # The owner has what they are; here they are only meant.
        has_children = bool(outcome.born)
        return Ended(msgspec.structs.replace(outcome, born=None), ran_ms, has_children)

    def _found(self, order: Order) -> Task[Any, Any]:
        task = self._finder.find(order.task, order.modules)
        registry = task.registry
        if registry.engine is None and order.default_retry is not None:
            registry.default_policy = RetryPolicy.from_stored(order.default_retry)
        return task

    def _make(self, run: Run) -> Outcome:
        prepared = self._runs.prepare(run)
        if isinstance(prepared, Outcome):
            return prepared
        args, kwargs = prepared
        self._send(Begun(*run.key))
        # Caught where it is called: an error of the call itself has no frame of the handler's.
        try:
            value = run.job.task.handler.fn(*args, **kwargs)
        except BaseException as error:
            return self._runs.ended(run, None, error)
        return self._runs.ended(run, value, None)

    def _send(self, message: ToOwner) -> None:
        with self._sending:
            self._connection.sendall(pack(message))


class _Quiet(Settler):
    """The owner tells the log: its handlers are set up, those of a child may not be."""

    def tell(self, job: Job, outcome: Outcome, ran_ms: int) -> None:
        return


def _trips(job: Job, error: BaseException) -> bool:
    registry: Any = job.task.registry.engine
    guards = Guards(registry if isinstance(registry, Tasks) else job.task.registry)
    guards.renew()
    return guards.trips(job.task, job.target, error)


def _job(order: Order, task: Task[Any, Any]) -> Job:
    ticket = order.ticket
    return Job(
        ticket.serial, ticket.part, ticket.fence, order.number, task, order.payload, ticket,
        order.ticket_id,
    )  # fmt: skip


class _Nowhere:
    """The place of a run whose process is one: there is nobody else to tell."""

    can_stop = False

    def put(self, runs: Sequence[Run]) -> None: ...
    def is_alive(self, run: Run) -> bool:
        return True

    def interrupt(self, run: Run) -> None: ...
    def close(self) -> None: ...


def _flush() -> None:
    """What a handler printed is out before its outcome: a child may be ended at any time."""
    for stream in (sys.stdout, sys.stderr):
        with contextlib.suppress(Exception):
            stream.flush()
