"""The places for attempts in processes, and the one thread that looks after all of them.

That thread starts the children: on Linux the system ends a child with the thread that started it,
so it must be one that lasts as long as the engine. It takes requests from any thread and waits for
nobody: what a child does not read is kept until it does.
"""

import contextlib
import logging
import selectors
import socket
import sys
import threading
from collections import deque
from collections.abc import Callable, Sequence
from typing import NamedTuple

from parkade.clock import Clock
from parkade.job import Job
from parkade.policies import StoredRetry
from parkade.process import Process
from parkade.process_answers import Answering
from parkade.process_place import Phase, ProcessPlace
from parkade.reachable import main_program, modules_of
from parkade.runs import Run, Runs
from parkade.shard.commands import Outcome
from parkade.store.lock import Child
from parkade.telling import tell
from parkade.wire import Ask, Note, Order, Reply, Stop, Welcome

__all__ = ["ProcessPool"]

START_MS = 120_000  # an import of a large library, on a cold disk
GRACE_MS = 5_000
FRAME_BYTES_BESIDE = 8_000_000  # of an outcome, beside its result: error, children
JOIN_S_MORE = 10.0
LOOK_MS_MAX = 1_000  # a suspend and a clock that was moved are noticed within this
DEATH_LOOK_MS = 20  # where the system does not say that a process has died
_log = logging.getLogger("parkade.engine")


class _Watched(NamedTuple):
    """A child, and which of its descriptors the selector waits for."""

    process: Process | None
    events: dict[int, int]


def _events(process: Process | None) -> dict[int, int]:
    events: dict[int, int] = {}
    if process is not None:
        if not process.is_hung_up:
            writes = selectors.EVENT_WRITE if process.has_unsent else 0
            events[process.connection.fileno()] = selectors.EVENT_READ | writes
        if process.exit_watch is not None:
            events[process.exit_watch] = selectors.EVENT_READ
    return events


class ProcessPool:
    """A place for runs (`parkade.runs.Place`) of at most `count` children.

    `note_children` is told whenever there are others, on the pool's thread, and may raise.
    `default_retry`: the numbers of the engine's policy.
    """

    def __init__(
        self,
        count: int,
        runs: Runs,
        *,
        clock: Clock,
        result_bytes_max: int,
        note_children: Callable[[tuple[Child, ...]], None],
        default_retry: StoredRetry | None = None,
    ) -> None:
        self.clock = clock
        self.settler = runs.settler
        self.start_ms = START_MS
        self.grace_ms = GRACE_MS
        self.frame_bytes_max = result_bytes_max + FRAME_BYTES_BESIDE
        self._runs = runs
        self._note_children = note_children
        self._answering = Answering(runs, clock, result_bytes_max, self._reply_later)
        self._noted: tuple[Child, ...] = ()
        self._default_retry = default_retry
        self._result_bytes_max = result_bytes_max
        self._welcome: Welcome | None = None
        self._places = [ProcessPlace(self) for _ in range(count)]
        self._waiting: deque[Run] = deque()
        self._watched = dict.fromkeys(self._places, _Watched(None, {}))
        self.lock = threading.RLock()  # the core's too (`parkade.core_locks`)
        self._requests: deque[Callable[[], None]] = deque()
        self._thread: threading.Thread | None = None
        self._alarm: socket.socket | None = None
        self._is_closed = False

    # ------------------------------------------------------------------------- from any thread

    can_stop = True

    def is_alive(self, run: Run) -> bool:
        """The pool itself sees to it that the run of a process that dies has an outcome."""
        return True

    def put(self, runs: Sequence[Run]) -> None:
        """Have them made: whatever goes wrong is an outcome."""
        try:
            self._request(lambda: self._waiting.extend(runs), is_work=True)
        except Exception as error:  # the system gives no thread, or no descriptor
            self._runs.refuse(runs, error)

    def interrupt(self, run: Run) -> None:
        """Its attempt is to stop. If it was given up, or the ticket is cancelled, and it does not,
        its process ends."""
        reason = run.cancel_reason or "it was given up: another attempt may run"
        stop = Stop(*run.key, reason, run.is_for_good or run.is_given_up)
        self._request(lambda: self._stop(stop))

    def close(self, *, grace_ms: int | None = None) -> None:
        """Begins nothing more and ends all children: asked first, killed after the grace."""
        self._request(lambda: self._close(self.grace_ms if grace_ms is None else grace_ms))

    def join(self) -> None:
        """Returns when no child is left, or when one cannot even be killed: it hangs in the
        system, and the next owner of the directory waits for it."""
        thread = self._thread
        if thread is not None and thread is not threading.current_thread():
            thread.join(2 * self.grace_ms / 1_000 + JOIN_S_MORE)

    @property
    def pids(self) -> list[int]:
        """The processes of the children that are there, for people and tests."""
        processes = [place.process for place in self._places]
        return [process.pid for process in processes if process is not None]

    def _request(self, request: Callable[[], None], *, is_work: bool = False) -> None:
        with self.lock:
            if self._thread is None:
                if not is_work:
                    return  # nothing was ever begun
                self._begin()
            self._requests.append(request)
            alarm = self._alarm
        if alarm is not None:
            with contextlib.suppress(OSError):  # full: it will look anyway
                alarm.send(b"!")

    def _begin(self) -> None:
        bell, alarm = socket.socketpair()
        bell.setblocking(False)
        alarm.setblocking(False)
        thread = threading.Thread(
            target=self._run, args=(bell,), name="parkade-processes", daemon=True
        )
        try:
            thread.start()
        except BaseException:
            bell.close()
            alarm.close()
            raise
        self._thread, self._alarm = thread, alarm

    # ------------------------------------------------------------------------- the pool's thread

    def _run(self, bell: socket.socket) -> None:
        with selectors.DefaultSelector() as selector:
            selector.register(bell, selectors.EVENT_READ)
            while not (self._is_closed and all(p.phase is Phase.EMPTY for p in self._places)):
                try:
                    self._look(selector, bell)
                except Exception as error:
                    text = "the processes of handlers are looked after again after an error"
                    tell(_log, logging.ERROR, text, error=error)
        with self.lock:
            alarm, self._alarm = self._alarm, None
        bell.close()
        if alarm is not None:
            alarm.close()

    def _look(self, selector: selectors.BaseSelector, bell: socket.socket) -> None:
        """One round: waits for whatever comes first, and acts on it."""
        ready = {key.fd for key, _ in selector.select(self._wait_ms() / 1_000)}
        if bell.fileno() in ready:
            with contextlib.suppress(OSError):
                bell.recv(4_096)
        while self._requests:
            self._requests.popleft()()
        now_ms = self.clock.monotonic_ms()
        for run in self._waiting:
            run.renew(now_ms)  # nobody can say yet that its handler is alive
        for place in self._places:
            try:
                if place.process is not None and place.process.has_unsent:
                    place.process.flush()
                place.listen()
                place.look()
            except Exception as error:
                tell(_log, logging.ERROR, "a child process is given up", error=error)
                place.abort(error)
        self._deal()
        self._watch(selector)
        self._note_gone()

    def _deal(self) -> None:
        """Jobs to places: to those first whose child waits."""
        for place in sorted(self._places, key=lambda place: place.phase is Phase.EMPTY):
            while self._waiting and place.is_free and not self._is_closed:
                place.give(self._waiting.popleft())

    def _wait_ms(self) -> int:
        now_ms = self.clock.monotonic_ms()
        wait_ms = LOOK_MS_MAX
        for place in self._places:
            if place.run is not None and place.run.lease_until_ms is not None:
                wait_ms = min(wait_ms, place.run.lease_ms // 3)
            if place.deadline_ms is not None:
                wait_ms = min(wait_ms, max(0, place.deadline_ms - now_ms))
            process = place.process
            if process is not None and process.exit_watch is None:
                is_ending = process.is_hung_up or place.phase in (Phase.TERMINATED, Phase.KILLED)
                wait_ms = min(wait_ms, DEATH_LOOK_MS if is_ending else 10 * DEATH_LOOK_MS)
        return wait_ms

    def _watch(self, selector: selectors.BaseSelector) -> None:
        """Has the selector wait for what the children may do next."""
        changed: list[tuple[ProcessPlace, _Watched]] = []
        for place in self._places:
            wanted = _Watched(place.process, _events(place.process))
            if self._watched[place] != wanted:
                changed.append((place, wanted))
        # First: a descriptor that was closed may already be another child's.
        for place, _ in changed:
            for fd in self._watched[place].events:
                with contextlib.suppress(KeyError, ValueError, OSError):
                    selector.unregister(fd)
        for place, wanted in changed:
            for fd, events in wanted.events.items():
                selector.register(fd, events)
            self._watched[place] = wanted

    def _stop(self, stop: Stop) -> None:
        key = (stop.serial, stop.fence)
        for place in self._places:
            if place.run is not None and place.run.key == key:
                place.stop(stop)
        for run in [run for run in self._waiting if run.key == key]:
            self._waiting.remove(run)
            settle = self.settler.withdrawn
            self.finish(run, settle(run.job, stop.reason, is_for_good=stop.is_for_good))

    def _close(self, grace_ms: int) -> None:
        self._is_closed = True
        self.grace_ms = grace_ms
        self._waiting.clear()
        for place in self._places:
            place.leave()

    # ------------------------------------------------------------------------- for the places

    def welcome(self) -> Welcome:
        """What a child is told first."""
        if self._welcome is None:
            main, main_path = main_program()
            argv = [str(word) for word in sys.argv]
            self._welcome = Welcome(argv, main, main_path, self._result_bytes_max)
        return self._welcome

    def order(self, job: Job) -> Order:
        """What a child is told of a job."""
        own, modules = job.task.settings.retry, modules_of(job.task.handler, job.task.registered_in)
        return Order(
            job.ticket, job.ticket_id, job.number, job.task.name, modules, job.payload,
            self._default_retry if own is None else None,
        )  # fmt: skip

    def claim(self, run: Run) -> bool:
        """Whether its attempt may begin."""
        return self._runs.claim(run)

    def note(self, run: Run, note: Note) -> None:
        """The attempt tells that it is alive, and how far it is."""
        self._answering.note(run, note)

    def answer(self, run: Run, asked: Ask) -> None:
        """Has a question of the attempt answered."""
        self._answering.take(run, asked)

    def _reply_later(self, run: Run, reply: Reply) -> None:
        self._request(lambda: self._reply(run, reply))

    def _reply(self, run: Run, reply: Reply) -> None:
        for place in self._places:
            if place.run is run and place.process is not None:
                place.process.send(reply)

    def finish(self, run: Run, outcome: Outcome) -> None:
        """Its attempt has ended, physically."""
        self._runs.finish(run, outcome)
        self._runs.hand_over()

    def note_children(self) -> None:
        """There is a new child: it is written down before it gets anything to do."""
        children = tuple(place.child for place in self._places if place.child is not None)
        if children != self._noted:
            self._note_children(children)
            self._noted = children

    def _note_gone(self) -> None:
        try:
            self.note_children()
        except Exception as error:
            text = "the lock file still names child processes that have ended"
            tell(_log, logging.WARNING, text, error=error)
