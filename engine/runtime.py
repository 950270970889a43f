"""An open engine: a directory that is owned, its house and shards, the threads that serve them.

`Engine` makes one when it is entered and lets it go when it is left. Everything here is wiring; the
rules are in the shards, the passes in `parkade.host` (docs/architecture.md, Opening).
"""

import dataclasses
import logging
import os
import random
import threading
from collections.abc import Callable, Iterable, Mapping, Sequence
from concurrent.futures import Future
from functools import partial
from typing import Any

from parkade.admission import Admission
from parkade.asking import Asker
from parkade.attempts import Attempts
from parkade.backpressure import Valve
from parkade.callbacks import Callbacks
from parkade.checkpointing import Checkpointing
from parkade.clock import Clock, MonoMs, SettledClock, SettledMs, WallMs
from parkade.directory import Directory
from parkade.errors import EngineClosed
from parkade.executor import Executor
from parkade.family import Family
from parkade.guards import Guards
from parkade.host import Host
from parkade.house import House
from parkade.io import Reads, ShardIO, Writer
from parkade.job import Job
from parkade.levers import Levers
from parkade.link_port import EnginePort
from parkade.opening import Identity, OpenShard, open_shard
from parkade.outliving import OUTLIVING
from parkade.placing import Placing
from parkade.policies import RetryPolicy
from parkade.progress import ProgressBoard
from parkade.progress_events import ProgressEvents
from parkade.routing import Routing
from parkade.runtime_options import RuntimeOptions
from parkade.serials import Serials
from parkade.shard.ticket import Ticket, format_id
from parkade.shard_host import ShardHost
from parkade.store.errors import StoreError
from parkade.store.journal import Sizing
from parkade.store.record import Leased, Submitted
from parkade.tasks import Task, Tasks
from parkade.telling import tell
from parkade.translating import opening_error, shard_error
from parkade.verdicts import describe
from parkade.views import StopReport

__all__ = ["Runtime"]

_log = logging.getLogger("parkade.engine")
_storage_log = logging.getLogger("parkade.storage")

HOUSE_SEGMENTS_MAX = 4
WRITERS_MAX = 2  # while one waits for the disk the other prepares what is written next
# For a stop whose limits are spent, which would be enough on a sound disk: what is not in the store
# by then is in the journal, and callbacks that come later are lost.
CHECKPOINT_AT_STOP_MS = 2_000
CALLBACKS_AT_STOP_MS = 500


class Runtime:
    """Made by `open`, ended by `stop`."""

    def __init__(
        self, directory: Directory, options: RuntimeOptions, tasks: Tasks, clock: Clock
    ) -> None:
        self.directory = directory
        self.options = options
        self.tasks = tasks
        self.clock = clock
        self.drive = options.make_drive()
        self.pid = os.getpid()
        self.identity: Identity = directory.identity(options.durability)
        self.salt = int.from_bytes(directory.manifest.salt, "big")
        self.shard_count = directory.manifest.shards
        self._random = random.Random(int.from_bytes(options.entropy(8), "big"))
        self.opened_ms = clock.now_ms()
        self.lost_at_open = 0
        self._has_settled_lost = self._is_found = False  # both, and handlers may begin
        self._kinds: dict[str, str] = {}
        self._kinds_count = 0
        self._started_tasks: dict[str, Task[..., Any]] = {}  # by the name that a ticket has
        self._is_closed = False
        self._holders = 0
        self._turn = threading.Lock()  # to put rows: of all its shards' stores
        self.callbacks = Callbacks(self, options.listeners)

    @classmethod
    def open(
        cls, directory: Directory, options: RuntimeOptions, tasks: Tasks, clock: Clock
    ) -> "Runtime":
        """House first, then the shards in parallel; a shard that is damaged is refused, the house
        must open. Raises what `translating` makes of store errors."""
        runtime = cls(directory, options, tasks, clock)
        runtime._open_house()
        opened: list[Future[OpenShard]] = []
        try:
            opened = runtime._open_shards()
            directory.finish()
            runtime.identity = dataclasses.replace(runtime.identity, is_new=False)
            runtime._wire(opened)
        except BaseException as error:
            _discard_all(opened)
            runtime._close_house(is_clean=False)
            if isinstance(error, StoreError):
                raise opening_error(directory.path, error, clock.now_ms()) from error
            raise
        return runtime

    # -------------------------------------------------------------------------------- opening

    def _open_house(self) -> None:
        try:
            self.house = House.open(
                self.directory.disk,
                self.identity,
                sizing=Sizing(),
                entropy=self.options.entropy,
                open_store=self.options.open_store,
            )
        except StoreError as error:
            raise shard_error(self.directory.path, None, error) from error
        first = max(self.house.state.lease_until, 1)
        self.serials = Serials(first, first, self._ask_lease)
        try:
            self._lease()
            if self.house.journal.segments > HOUSE_SEGMENTS_MAX:
                # Each open began one. A process that is killed again and again never closes it.
                self.house.checkpoint(
                    now_ms=self.clock.now_ms(), settled_ms=self.house.store.settled_ms
                )
        except StoreError as error:
            self._close_house(is_clean=False)
            raise shard_error(self.directory.path, None, error) from error

    def _lease(self) -> None:
        until = self.serials.next_lease(self.clock.now_ms())
        self.house.append([Leased(until)])
        self.serials.extend(until)

    def _ask_lease(self) -> None:
        """On a caller's thread: the house's own thread renews."""
        self._house_io.call(self._lease, self._leased)

    def _leased(self, _: None, error: Exception | None) -> None:
        if error is not None:
            self.serials.lease_failed()
            self.report("leasing serials in the house", error)

    def _open_shards(self) -> "list[Future[OpenShard]]":
        opening = self.drive.open_each(self.shard_count, self._open_shard)
        for number, future in enumerate(opening):
            error = future.exception()
            if error is not None and (self.identity.is_new or not isinstance(error, StoreError)):
                _discard_all(opening)
                if isinstance(error, StoreError):
                    raise shard_error(self.directory.path, number, error) from error
                raise error
        return opening

    def _open_shard(self, number: int) -> OpenShard:
        return open_shard(
            self.directory.disk,
            self.identity,
            number,
            sizing=self.options.sizing,
            entropy=self.options.entropy,
            open_store=partial(self.options.open_store, turn=self._turn),
            now_ms=self.clock.now_ms(),
        )

    def _wire(self, opened: "list[Future[OpenShard]]") -> None:
        options = self.options
        healthy = [future.result() for future in opened if future.exception() is None]
        now, mono = WallMs(self.clock.now_ms()), MonoMs(self.clock.monotonic_ms())
        settled = [shard.store.settled_ms for shard in healthy if shard.store.settled_ms]
        start = SettledMs(max(settled)) if settled else None
        self.settled_clock = SettledClock(start, now, mono)
        self.host = Host(self.clock, self.settled_clock, self, options.keeping(self.tasks))
        self.progress = ProgressBoard(self.shard_count)
        told = ProgressEvents(self.host, self.clock.monotonic_ms)
        self._port = EnginePort(self.progress, told, self.shard_count)
        self.executor = self._make_executor()
        make_io = self.drive.make_io
        self._house_io = make_io("parkade-house", self.host.post)
        count = min(WRITERS_MAX, self.shard_count)
        self.writers = [Writer(f"parkade-writer-{n}", self.host.post) for n in range(count)]
        self.ios = [
            make_io(f"parkade-io-{n:03d}", self.host.post_for(n)) for n in range(self.shard_count)
        ]
        self.readers = self.drive.give_readers(self.ios)
        self.shards = [
            ShardHost(n, self.host, self.ios[n], self.writers[n % count])
            for n in range(self.shard_count)
        ]
        self.host.shards = self.shards
        self._make_births()
        places = {"thread": options.threads, "loop": options.async_limit}
        if options.processes:
            places["process"] = options.processes
        state = self.house.state
        guards = Guards(
            self.tasks, mono, pauses=state.pauses, breakers=state.breakers, overrides=state.limits
        )
        admission = Admission(places, self, guards)
        self.levers = Levers(self.house, self._house_io, admission, self.host, self.drive)
        self.attempts = Attempts(self.shards, admission, self, self.executor, self.levers)
        if not options.has_attempts:
            self.attempts.runs_nothing = "this engine was opened with run=False"
            self.host.caller_frames.runs_tickets = False
        self.executor.ask_breakers(lambda job, error: guards.trips(job.task, job.target, error))
        self.host.attempts, self.host.levers = self.attempts, self.levers
        for shard in self.shards:
            shard.explain = self.host.explain
            shard.kin = self.routing
            shard.stop_attempt, shard.progress = self.attempts.cancel, self.progress
        if options.max_ready is not None:
            waits = options.when_full == "wait" and self.drive.has_threads
            self.host.inbox.valve = Valve(options.max_ready, waits=waits)
        for shard, future in zip(self.shards, opened, strict=True):
            error = future.exception()
            if error is None:
                shard.install(future.result())
            else:
                failure = shard_error(self.directory.path, shard.number, error)
                tell(_storage_log, logging.CRITICAL, "%s", failure)
                shard.refuse(error)
        self._tell_locks()
        self.asker = self._port.asker = Asker(
            self.host.inbox, self.drive, self.host.caller_frames.check
        )

    def _tell_locks(self) -> None:
        """Which of them the core thread takes as others do."""
        inbox, locks = self.host.inbox, self.host.caller_frames.core_locks
        locks.add([inbox.lock, self.serials.lock, self.progress.lock, *self.executor.locks])
        if inbox.valve is not None:
            locks.add([inbox.valve.lock])

    def _make_executor(self) -> Executor:
        executor = self.drive.make_executor(
            thread_count=self.options.threads,
            deliver=self.host.deliver,
            clock=self.clock,
            entropy=self.entropy,
            result_bytes_max=self.options.max_payload,
            port=self._port,
            process_count=self.options.processes,
            note_children=self.directory.lock.set_children,
            default_retry=self.options.default_retry.numbers(),
        )
        executor.runs.salt = self.directory.manifest.salt
        return executor

    def _make_births(self) -> None:
        """What gives serials and parts to new tickets, and makes those of routes."""
        index_tags = self.options.index_tags or ()
        opens = self.house.journal.epoch - 1
        self.placing = Placing(self.serials, self.shards, self._kept_ms, index_tags, opens)
        self.routing = Routing(self.tasks, self.placing, self.salt, self.report)

    def _kept_ms(self, name: str) -> int | None:
        """How long a task's unique outlives the end of its ticket: as long as that is kept by age,
        unless it is without end."""
        task = self.tasks.task_of(name)
        own_ms = None if task is None else task.settings.keep_ms
        return self.options.keep_done_ms if own_ms is None else own_ms

    def start(self) -> None:
        """Settles the attempts that the last owner lost, and takes what is asked. Handlers wait for
        `let_begin`."""
        shards = self.host.open_shards()
        self.lost_at_open = sum(len(shard.core.running) for shard in shards)
        self.host.hand_over()
        self.attempts.outlived |= OUTLIVING.watch(self.directory.manifest.salt, self._outlived)
        self.attempts.settle_lost(shards, self._lost_are_settled)
        self.drive.start(self)

    def let_begin(self) -> None:
        """The engine is found by whoever asks it something, and so by handlers: they may begin."""
        self.host.post(self._is_found_now)

    def _outlived(self, serial: int) -> None:
        """A handler that an engine before this one left behind has ended."""
        self.host.post(self.attempts.outlived_ended, serial)

    @property
    def workers(self) -> "Sequence[ShardIO | Reads | Writer]":
        """Those that work for the core, beside it."""
        return (*self.ios, *self.readers, *self.writers, self._house_io)

    def _lost_are_settled(self) -> None:
        self._has_settled_lost = True
        self._begin_admission()

    def _is_found_now(self) -> None:
        self._is_found = True
        self._begin_admission()

    def _begin_admission(self) -> None:
        is_ready = self._has_settled_lost and self._is_found
        runs = self.options.has_attempts and not self.attempts.is_stopping
        self.attempts.is_admitting = is_ready and runs

    # --------------------------------------------------------------- what the host needs of us

    def failure(self, shard: int, error: BaseException) -> Exception:
        healthy = sum(other.is_open for other in self.shards)
        return shard_error(self.directory.path, shard, error, healthy=healthy)

    def reopen(self, shard: ShardHost) -> OpenShard:
        """On the shard's I/O thread: lets its files go, and recovers it from them."""
        _discard(shard.opened)
        return self._open_shard(shard.number)

    def next_holder(self) -> int:
        """A number for who holds the journals."""
        self._holders += 1
        return self._holders

    def report(self, what: str, error: BaseException | None) -> None:
        cause = ""
        if error is not None:
            text = describe(error)
            cause = f"{text.type}: {text.message}"
        level = logging.CRITICAL if isinstance(error, StoreError) else logging.ERROR
        tell(_storage_log, level, "%s: %s", what, cause, error=error)

    # ----------------------------------------------------------- what attempts need of the code

    def entropy(self) -> int:
        return self._random.getrandbits(31)

    def kinds(self) -> Mapping[str, str]:
        count = self.tasks.name_count
        if count != self._kinds_count:
            named = self.tasks.named()
            self._kinds = {name: self.executor.kind_of(task) for name, task in named.items()}
            self._kinds_count = count
        return self._kinds

    def policy_of(self, ticket: Ticket) -> RetryPolicy:
        """The task's of today, under the ticket's own numbers; the default where those two do not
        go together, for one ticket must not keep the others from starting."""
        task = self.tasks.task_of(ticket.task)
        if task is None:
            return self.options.default_retry
        try:
            return task.policy_for(ticket.options)
        except Exception as error:
            self.report(f"the retry policy of {self.id_of(ticket)}", error)
            return self.options.default_retry

    def on_crash_of(self, task: str) -> int:
        found = self.tasks.task_of(task)
        return int(found is not None and found.on_crash == "ambiguous")

    def job_of(self, ticket: Ticket, payload: bytes) -> Job | None:
        task = self._started_tasks.get(ticket.task)
        if task is None:
            task = self.tasks.task_of(ticket.task)
            if task is None:
                return None
            self._started_tasks[ticket.task] = task  # a name that is registered stays with its task
        return Job(
            ticket.serial, ticket.part, ticket.fence, ticket.attempts, task, payload, ticket,
            salt=self.salt,
        )  # fmt: skip

    def id_of(self, ticket: Ticket) -> str:
        return format_id(ticket.serial, ticket.part, self.salt)

    def id_of_parts(self, serial: int, part: int) -> str:
        return format_id(serial, part, self.salt)

    def families(self, handle: Callable[[Submitted, Any], Any]) -> Callable[[Job], Family]:
        """Who the children of an attempt are submitted to; `handle` makes what a handler gets."""
        return lambda job: Family(
            self.placing,
            job.part,
            now_ms=self.clock.now_ms,
            payload_bytes_max=self.options.max_payload,
            handle=handle,
        )

    # ------------------------------------------------------------------------------- stopping

    def stop(self, *, drain_ms: int, cancel_ms: int) -> StopReport:
        """Drains, asks the rest to cancel, gives back what still runs, checkpoints, closes.

        Whatever interrupts it, the directory is let go.
        """
        try:
            if self.host.fatal is None and not self._is_closed:
                return self._stop(drain_ms, cancel_ms)
        except BaseException:
            self.abandon()
            raise
        staying = self.executor.staying
        self.abandon()
        return StopReport(clean=False, finished=0, cancelled=0, given_back=0, zombies=staying)

    def abandon(self) -> None:
        """Closes at once and without a checkpoint: what runs is lost, the journal has the rest."""
        self.executor.close()
        self._end_threads(0.0)
        self._close_files(is_clean=False)

    def _stop(self, drain_ms: int, cancel_ms: int) -> StopReport:
        host, attempts = self.host, self.attempts
        until_ms = self.clock.monotonic_ms() + drain_ms + cancel_ms
        before: int = host.call(lambda: attempts.finished)
        host.call(attempts.stop_admitting)
        idle = host.when(lambda: attempts.running == 0)
        is_drained = self._wait(idle, drain_ms)
        drained: int = host.call(lambda: attempts.finished)
        given_back = zombies = 0
        if not is_drained:
            for serial, fence, _ in self.executor.running():
                self.executor.cancel(serial, fence, "the engine stops")
            if not self._wait(idle, cancel_ms):
                given_back, zombies = self._give_back()
        ended: int = host.call(lambda: attempts.finished)
        self.executor.close()
        is_clean = self._checkpoint(self._left_ms(until_ms, least_ms=CHECKPOINT_AT_STOP_MS))
        self._end_threads(self._left_ms(until_ms, least_ms=CALLBACKS_AT_STOP_MS) / 1_000)
        is_clean = self._close_files(is_clean=is_clean)
        return StopReport(
            clean=is_clean and not given_back,
            finished=drained - before,
            cancelled=ended - drained,
            given_back=given_back,
            zombies=zombies,
        )

    def _left_ms(self, until_ms: int, *, least_ms: int) -> int:
        """What is left of the two limits, and a moment where nothing is."""
        return max(least_ms, until_ms - self.clock.monotonic_ms())

    def _give_back(self) -> tuple[int, int]:
        """What still runs; how many were given back, and how many of them go on running."""
        unfinished, staying = self.executor.running(), self.executor.staying
        self.executor.close()

        def give_back() -> int:
            # An outcome that has come is worth more than that its attempt was unfinished.
            self.host.take_outcomes()
            return self.attempts.give_back(unfinished)

        return self.host.call(give_back), staying

    def _wait(self, event: threading.Event, timeout_ms: int) -> bool:
        is_set = event.is_set() or self.drive.wait(self.clock, event, timeout_ms)
        return is_set or event.is_set()

    def _checkpoint(self, timeout_ms: int) -> bool:
        """Makes the stores equal to the states; whether all of them are. One that finds no room is
        not tried again: the journal has it all."""
        host, asked = self.host, list[Checkpointing]()

        def want_checkpoints() -> None:
            """Also of a shard that has recovered since, which is another one, and of what has come
            behind the one before."""
            for shard in host.open_shards():
                checkpointing = shard.checkpointing
                if checkpointing not in asked or checkpointing.has_left:
                    asked.append(checkpointing)
                    checkpointing.want()
                    shard.is_stirred = True
                    host.wake()

        def is_over() -> bool:
            want_checkpoints()
            return all(
                shard.is_quiet or (shard.is_settled and shard.checkpointing.has_failed)
                for shard in host.shards
            )

        return self._wait(host.when(is_over), timeout_ms) and all(
            shard.is_open and not shard.checkpointing.has_failed for shard in host.shards
        )

    def _end_threads(self, timeout_s: float) -> None:
        """Ends all threads after what they have in hand; whoever still waits gets an answer.
        Callbacks may take `timeout_s` for what is left to them."""
        host = self.host
        host.end()
        for worker in self.workers:
            worker.close()
        host.run_posted()
        host.inbox.close(EngineClosed("engine.stop"))
        for shard in host.shards:
            shard.refuse_rest()
        host.wakeups.send()
        host.feed.close()
        self.callbacks.finish(timeout_s)

    def _close_files(self, *, is_clean: bool) -> bool:
        """A shard that was refused has its files open as well. Twice is once."""
        if self._is_closed:
            return is_clean
        self._is_closed = True
        OUTLIVING.ignore(self.directory.manifest.salt)
        self.levers.finish()
        try:
            for shard in self.shards:
                try:
                    is_clean = shard.close() and is_clean
                except StoreError as error:
                    self.report(f"closing shard {shard.number:02d}", error)
                    is_clean = False
            return self._close_house(is_clean=is_clean) and is_clean
        finally:
            # The next owner may start what these were given: at most one attempt is alive.
            self.executor.join()
            self.directory.release()

    def _close_house(self, *, is_clean: bool) -> bool:
        has_failed = False
        try:
            if is_clean:
                self.house.checkpoint(now_ms=self.clock.now_ms(), settled_ms=self.settled_clock.now)
        except StoreError as error:
            self.report("the last checkpoint of the house", error)
            has_failed = True
        try:
            self.house.close(is_clean=is_clean)
        except StoreError as error:
            self.report("closing the house", error)
            has_failed = True
        return not has_failed


def _discard(opened: OpenShard) -> None:
    """Closes what is not served, or is served no more."""
    try:
        opened.close()
    except StoreError as error:
        tell(_storage_log, logging.ERROR, "closing a journal: %s", error)


def _discard_all(opening: "Iterable[Future[OpenShard]]") -> None:
    for future in opening:
        if future.exception() is None:
            _discard(future.result())
