"""A whole engine, simulated: its real host, cores, journals and stores, and nothing else real.

The disk is in memory and loses power, the clock is moved, LMDB is simulated at its transactions,
handlers run as long as the seed says, and every piece of work that a thread would do is a step. The
witness of each shard knows what it was told and what it must remember (tests/kit/witness.py); what
holds across shards is held here.
"""

import errno
import logging
from collections import Counter
from collections.abc import Callable, Generator, Sequence
from concurrent.futures import Future
from contextlib import contextmanager
from contextvars import copy_context
from hashlib import blake2b
from random import Random
from typing import Any, ClassVar
from unittest import mock

from kit.disk import FakeDisk, PowerLost
from kit.inodes import How
from kit.lmdb_memory import MemoryFiles, Shelf
from kit.stepped import BOUNDS, LIMITS, ODD_BOUNDS, SIZING
from kit.watched import Watched
from kit.witness import StoreImage, Witness, fields_of
from parkade import Engine, Limit, RetryPolicy, limits
from parkade.asks import Ask, AwaitEnd, Inquiry, Look, PageOf, Seen
from parkade.drive import Drive
from parkade.errors import ParkadeError, StorageDamaged
from parkade.executor import Executor
from parkade.io import Post, ShardIO
from parkade.opening import OpenShard, open_shard
from parkade.runs import Run
from parkade.runtime import Runtime
from parkade.shard.commands import Command
from parkade.shard.states import RUNNING
from parkade.store.errors import StoreError
from parkade.store.parked import Parked
from parkade.waiters import ThreadWaiter

__all__ = ["KEYS", "PATH", "World", "simulated"]

PATH = "/data"
START_MS = 1_700_000_000_000
MAP_BYTES = 96 << 10  # so little that every longer history outgrows it
KEYS = ("k0", "k1", "k2")
STEPS_PER_ANSWER_MAX = 5_000
SETTLE_PASSES_MAX = 4_000


class SimulatedClock:
    """Both clocks of the machine; only the world moves them."""

    def __init__(self) -> None:
        self.wall_ms = START_MS
        self.mono_ms = 1_000

    def now_ms(self) -> int:
        return self.wall_ms

    def monotonic_ms(self) -> int:
        return self.mono_ms

    def wait(self, event: Any, timeout_ms: int | None) -> bool:
        return bool(event.is_set())


class AtWork:
    """A place in which a handler runs until the world ends it."""

    def __init__(self, world: "World", runs: Any) -> None:
        self._world = world
        self._runs = runs
        self.alive: dict[tuple[int, int], Run] = {}

    def put(self, runs: Sequence[Run]) -> None:
        for run in runs:
            self._world.attempt_begins(run)
            self.alive[run.key] = run
            assert self._runs.claim(run)
            copy_context().run(self._runs.prepare, run)

    def interrupt(self, run: Run) -> None:
        """A thread has to look."""

    def close(self) -> None:
        self.alive.clear()

    def end(self, key: tuple[int, int], value: Any, error: BaseException | None) -> None:
        run = self.alive.pop(key)
        self._world.attempt_ends(run)
        outcome = self._runs.ended(run, value, error)
        if self._runs.finish(run, outcome):
            self._runs.hand_over()


class SimulatedExecutor(Executor):
    """The real one, with one place for everything."""

    world: ClassVar["World"]

    def _make_threads(self, count: int) -> Any:
        self.work = AtWork(self.world, self.runs)
        return self.work


class SimulatedDrive(Drive):
    """No threads: the world takes every step, also those that a caller waits for."""

    has_threads = False

    def __init__(self, world: "World") -> None:
        self._world = world

    def open_each(
        self, count: int, open_one: Callable[[int], OpenShard]
    ) -> "list[Future[OpenShard]]":
        opening: list[Future[OpenShard]] = []
        for number in range(count):
            future: Future[OpenShard] = Future()
            opening.append(future)
            try:
                future.set_result(open_one(number))
            except Exception as error:
                future.set_exception(error)
        return opening

    def make_io(self, name: str, post: Post) -> ShardIO:
        return ShardIO(name, post)

    def make_executor(self, *, thread_count: int, **given: Any) -> Executor:
        SimulatedExecutor.world = self._world
        return SimulatedExecutor(thread_count=thread_count, **given)

    def start(self, runtime: Runtime) -> None:
        self._world.runtime = runtime

    def stir(self) -> None:
        """Whoever asked goes on; the world takes the steps."""

    def wait_for(self, waiter: ThreadWaiter, timeout_s: float | None) -> bool:
        for _ in range(STEPS_PER_ANSWER_MAX):
            if waiter.wait(0.0):
                return True
            self._world.random_step()
        return waiter.wait(0.0)

    def wait(self, clock: Any, event: Any, timeout_ms: int) -> bool:
        until_ms = clock.monotonic_ms() + timeout_ms
        while not event.is_set() and clock.monotonic_ms() < until_ms:
            self._world.random_step()
            self._world.pass_ms(10)
        return bool(event.is_set())


class World:
    """One machine and what lives on it. Make one with `simulated`."""

    def __init__(self, seed: int, *, shards: int, keep_ms: int | None, bounds: int) -> None:
        self.random = Random(seed)
        self.shards = shards
        self.keep_ms = keep_ms
        self.bounds = (BOUNDS, *ODD_BOUNDS)[bounds]
        self.clock = SimulatedClock()
        self.disk = FakeDisk()
        self.disk.keeps_calls = False
        self.shelf = Shelf()
        self.counts: Counter[str] = Counter()
        self.witnesses = [Witness() for _ in range(shards)]
        self.images: list[StoreImage | None] = [None] * shards
        self.stores: dict[int, Parked] = {}
        self.unanswered: dict[int, Ask] = {}
        self.asked_at: dict[int, list[int]] = {}
        self.troubles: list[tuple[str, BaseException | None]] = []
        self.known: dict[int, int] = {}  # serial -> part, of what was acknowledged
        self.paused: set[str] = set()  # by what was acknowledged; None: not known
        self.unsure: set[str] = set()
        self.runtime: Runtime | None = None
        self._opening: set[int] = set()
        self.engine = self._make_engine()

    # ------------------------------------------------------------------ the application

    def _make_engine(self) -> Engine:
        keep = None if self.keep_ms is None else self.keep_ms / 1_000
        engine = Engine(
            PATH,
            shards=self.shards,
            clock=self.clock,
            threads=4,
            keep_done=keep,
            lock_wait=0,
            default_retry=RetryPolicy(None, backoff=["300ms"]),
        )
        options = engine._options
        options.disk = self.disk
        options.open_store = self._open_store
        options.entropy = self.random.randbytes
        options.sizing = SIZING
        options.make_drive = lambda: SimulatedDrive(self)
        # The names that the model of a shard knows.
        engine.task(name="t", limits=[Limit(concurrency=3)])(_plain)
        engine.task(name="u", on_crash="ambiguous")(_plain)
        return engine

    def _open_store(self, directory: str, **given: Any) -> Parked:
        given["map_bytes"] = MAP_BYTES
        store = Parked.open(directory, files=MemoryFiles(self.shelf), **given)
        if "shard-" in directory:
            self.stores[int(directory.rpartition("shard-")[2][:3])] = store
        return store

    # ------------------------------------------------------------------ lives

    def open(self) -> bool:
        """The process starts; False: the power went meanwhile, or the disk said no."""
        self.counts["opens"] += 1
        try:
            self.engine.start()
        except PowerLost:
            self._begin_again("torn")
            return False
        except ParkadeError as error:
            assert not isinstance(error, StorageDamaged), error
            self.counts["refused opens"] += 1
            self._begin_again(None)
            return False
        self._opening.clear()
        self.counts["recoveries"] += self.shards
        self._check_house()
        self.check()
        return True

    def crash(self, how: How) -> None:
        """The power goes."""
        self.counts["crashes"] += 1
        self._begin_again(how)

    def kill(self) -> None:
        """The process ends, and nothing else does."""
        self.counts["kills"] += 1
        self._begin_again(None)

    def _begin_again(self, how: How | None) -> None:
        before = self.disk
        if how is None:
            self.disk = before.crash()
        else:
            self.counts[f"{how} writes"] += sum(len(inode.pending) for _, inode in before.files())
            self.disk = before.power_cut(how, self.random.getrandbits(30))
        self.disk.keeps_calls = False
        self.disk.capacity_bytes = before.capacity_bytes
        self.shelf.lose_process()
        self.shelf.fail_commit = lambda _: None
        self.images = [None] * self.shards
        self.stores.clear()
        self.unanswered.clear()
        self.asked_at.clear()
        self._opening.clear()
        self.runtime = None
        self.engine._desk = None
        self.engine = self._make_engine()

    @property
    def is_open(self) -> bool:
        return self.runtime is not None

    def host(self, number: int) -> Watched:
        assert self.runtime is not None
        host = self.runtime.shards[number]
        assert isinstance(host, Watched)
        return host

    # ------------------------------------------------------------------ what stands in for a part

    def make_shard_host(self, number: int, *given: Any) -> Watched:
        host = Watched(number, *given)
        host.witness = self.witnesses[number]
        host.image_of = lambda: self.image(number)
        host.held_at = {}
        return host

    def open_shard(self, disk: Any, identity: Any, number: int, **given: Any) -> OpenShard:
        """The real one; what it recovers is held against the witness."""
        opened = open_shard(disk, identity, number, bounds=self.bounds, **given)
        witness, core = self.witnesses[number], opened.core
        assert core.lsn >= witness.told_lsn, ("told, and lost", number, witness.told_lsn, core.lsn)
        assert core.lsn in witness.points, ("a state that never was", number, core.lsn)
        witness.go_back(core.lsn)
        self.images[number] = None
        self._opening.add(number)
        for lsns in self.asked_at.values():
            lsns[number] = min(lsns[number], core.lsn)
        self.counts["recovered shards"] += 1
        return opened

    def report(self, what: str, error: BaseException | None) -> None:
        # In the dark nobody is there to hear it.
        if not isinstance(error, StoreError) and not self.disk.is_dark:
            self.troubles.append((what, error))

    def committed(self, path: str) -> None:
        for number in range(self.shards):
            if f"shard-{number:03d}" in path:
                self.images[number] = None

    def image(self, number: int) -> StoreImage:
        """What a shard's store has committed by now."""
        image = self.images[number]
        if image is None:
            image = self.images[number] = StoreImage.of(self.stores[number])
        return image

    # ------------------------------------------------------------------ attempts

    def attempt_begins(self, run: Run) -> None:
        ticket = run.job.ticket
        number = run.job.part % self.shards
        entry = self.witnesses[number].model.tickets[run.job.serial]
        assert (entry.state, entry.fence) == (RUNNING, run.job.fence), ("runs", run.job, entry)
        assert entry.body == run.job.payload, ("with its payload", entry)
        assert ticket.started_ms >= ticket.due_ms, ("early", ticket)
        alive = self.work.alive
        assert all(key[0] != run.job.serial for key in alive), ("two attempts of one ticket", run)
        others = [other.job.ticket for other in alive.values()]
        if ticket.key is not None:
            assert all(other.key != ticket.key for other in others), ("its key runs", ticket)
        if ticket.task == "t":
            assert sum(other.task == "t" for other in others) < 3, "the limit of its task"
        self.counts["attempts"] += 1

    def attempt_ends(self, run: Run) -> None:
        shard = self.host(run.job.part % self.shards)
        flight = shard.is_open and shard.core.flight is not None
        sweeping = shard.is_open and shard.placement.sweep_from is not None
        self.counts["completions during checkpoints"] += flight
        self.counts["completions during sweeps"] += sweeping

    @property
    def work(self) -> AtWork:
        assert self.runtime is not None
        executor = self.runtime.executor
        assert isinstance(executor, SimulatedExecutor)
        return executor.work

    # ------------------------------------------------------------------ asking

    def ask(self, number: int, asked: Command | Inquiry, size: int = 0) -> None:
        """Puts a question through the door; whatever comes back is checked."""
        assert self.runtime is not None
        ask = Ask(asked, size=size)
        self.asked_at[id(ask)] = [
            host.core.lsn if hasattr(host, "core") else 0 for host in self.runtime.shards
        ]

        def then(value: Any, error: BaseException | None) -> None:
            assert self.unanswered.pop(id(ask), None) is not None, ("answered twice", asked)
            self._check_answer(number, asked, value, error, self.asked_at.pop(id(ask))[number])

        ask.then = then
        self.unanswered[id(ask)] = ask
        self.runtime.host.inbox.put([(number, ask)])

    def _check_answer(
        self,
        number: int,
        asked: Command | Inquiry,
        value: Any,
        error: BaseException | None,
        since: int,
    ) -> None:
        self.counts["answers"] += 1
        if error is not None:
            assert isinstance(error, ParkadeError), (asked, error)
            self.counts["errors answered"] += 1
            return
        if isinstance(asked, Command):
            for answer in value:
                if answer.code == "created":
                    self.known[answer.serial] = answer.part
            return
        if isinstance(asked, Look | AwaitEnd):
            head = None if value is None else fields_of(value.ticket)
            until = self.host(number).durable_lsn
            seen = self.witnesses[number].was_seen(asked.serial, head, min(since, until), until)
            assert seen, (asked, value, since, until)
            if isinstance(value, Seen) and (isinstance(asked, AwaitEnd) or asked.wants_body):
                shadows = self.witnesses[number].versions[asked.serial]
                bodies = [shadow.body for _, shadow in shadows if shadow and shadow.head == head]
                assert value.body in bodies, ("head and body of one moment", value)
        assert isinstance(asked, Look | AwaitEnd | PageOf)

    # ------------------------------------------------------------------ steps

    def workers(self) -> Sequence[Any]:
        assert self.runtime is not None
        return self.runtime.workers

    def random_step(self) -> None:
        """One step of somebody."""
        workers = self.workers()
        chosen = self.random.randrange(2 * len(workers))
        self.step(chosen if chosen < len(workers) else None)

    def step(self, worker: int | None) -> bool:
        """A worker does one thing; None: the core thread makes a pass. PowerLost ends the life."""
        self.counts["steps"] += 1
        assert self.runtime is not None
        if worker is None:
            return self.runtime.host.step() == 0
        worked: bool = self.workers()[worker].run_one()
        return worked

    def rest(self) -> None:
        """Goes on until nothing more can happen at this time."""
        assert self.runtime is not None
        for _ in range(SETTLE_PASSES_MAX):
            wait_ms = self.runtime.host.step()
            has_worked = False
            for worker in self.workers():
                has_worked |= worker.run_one()
            self.counts["steps"] += 1 + len(self.workers())
            if not has_worked and wait_ms > 0:
                return
        raise AssertionError("it does not come to rest")

    def pass_ms(self, wall_ms: int, mono_ms: int | None = None) -> None:
        self.clock.wall_ms = max(0, self.clock.wall_ms + wall_ms)
        self.clock.mono_ms += max(0, wall_ms if mono_ms is None else mono_ms)

    # ------------------------------------------------------------------ what holds

    def check(self) -> None:
        """Everything that holds after every step."""
        for what, error in self.troubles:
            raise AssertionError(what) from error
        runtime = self.runtime
        if runtime is None:
            return
        for number in range(self.shards):
            host = self.host(number)
            assert not host.callbacks_failed
            if host.is_open:
                settled_ms = runtime.settled_clock.now
                witness = self.witnesses[number]
                witness.check_live(host.core, self.image(number), settled_ms)
        self._check_permits(runtime)

    def _check_permits(self, runtime: Runtime) -> None:
        admission = runtime.attempts.admission
        assert all(count >= 0 for count in admission.used.values()), admission.used
        assert sum(admission.used.values()) >= len(self.work.alive), (
            "a place for each that runs", admission.used,
        )  # fmt: skip

    def _check_house(self) -> None:
        """Pauses that were acknowledged are in force."""
        assert self.runtime is not None
        pauses = set(self.runtime.house.state.pauses)
        sure = (self.paused | pauses) - self.unsure
        assert pauses & sure == self.paused & sure, (pauses, self.paused, self.unsure)
        self.paused, self.unsure = pauses, set()

    def heal(self) -> None:
        self.disk.heal()
        self.disk.cut_at(0)
        self.disk.capacity_bytes = None
        self.shelf.fail_commit = lambda _: None
        self.shelf.free_bytes = 1 << 40

    def finish(self) -> None:
        """Faults have ceased: every ticket comes to its end, and every question to its answer."""
        self.heal()
        for _ in range(5):
            if self.is_open and all(host.is_open for host in self._hosts()):
                break
            if self.is_open:
                self.rest()
                self.kill()
            self.open()
        assert self.is_open
        runtime = self.runtime
        assert runtime is not None
        for scope in list(runtime.house.state.pauses):
            kind, _, name = scope.partition(":")
            self.engine.resume(**{kind: name})
        self.pass_ms(700_000)
        for _ in range(400):
            self.rest()
            for key in list(self.work.alive):
                self.work.end(key, 1, None)
            self.check()
            entries = [e for w in self.witnesses for e in w.model.tickets.values()]
            dues = [entry.due_ms for entry in entries if entry.state == 0]
            running = sum(entry.state == RUNNING for entry in entries)
            if not dues and not running and not self.unanswered:
                return
            self.pass_ms(max(min(dues, default=0) - self.clock.wall_ms, 100))
        raise AssertionError(("stuck", self._stuck(), list(self.unanswered.values())))

    def _hosts(self) -> list[Watched]:
        return [self.host(number) for number in range(self.shards)]

    def _stuck(self) -> list[Any]:
        return [
            (number, serial, self.host(number).placement.where(serial), entry)
            for number, witness in enumerate(self.witnesses)
            for serial, entry in witness.model.tickets.items()
            if entry.state in (0, 1)
        ]

    def digest(self) -> str:
        """Equal for runs in which the same things happened."""
        ends = [
            sorted((s, tuple(map(str, shadow.head))) for s, shadow in witness.tickets.items())
            for witness in self.witnesses
        ]
        files = blake2b(digest_size=16)
        for path, inode in self.disk.files():
            if not path.endswith("/lock"):  # it names this process
                files.update(path.encode() + bytes(inode.live))
        return f"{sorted(self.counts.items())} {ends} {files.hexdigest()}"


def _plain(size: int = 0) -> int:
    """The handler of every task; it is never called."""
    raise AssertionError("the world ends attempts")


def no_room(path: str) -> tuple[Any, int]:
    return "before", errno.ENOSPC


@contextmanager
def simulated(seed: int, **options: Any) -> Generator[World, None, None]:
    """A machine that was never switched on, under limits so small that few tickets meet them."""
    world = World(seed, **options)
    world.shelf.on_commit = world.committed
    patched: dict[str, Any] = dict(LIMITS) | {"HOUSE_JOURNAL_BYTES": 2_000}
    logging.disable(logging.CRITICAL)
    try:
        with (
            mock.patch.multiple(limits, **patched),
            mock.patch("parkade.runtime.ShardHost", world.make_shard_host),
            mock.patch("parkade.runtime.open_shard", world.open_shard),
            mock.patch.object(Runtime, "report", lambda _, what, error: world.report(what, error)),
        ):
            yield world
    finally:
        logging.disable(logging.NOTSET)
