"""A whole engine, simulated: its real host, cores, journals and stores, and nothing else real.

The disk is in memory and loses power, the clock is moved, LMDB is simulated at its transactions,
handlers run as long as the seed says, and every piece of work that a thread would do is a step. The
witness of each shard knows what it was told and what it must remember (tests/kit/witness.py); what
holds across shards is held here.
"""

import errno
import logging
from collections import Counter, deque
from collections.abc import Generator, Sequence
from contextlib import contextmanager
from hashlib import blake2b
from random import Random
from typing import Any
from unittest import mock

from kit.disk import FakeDisk, PowerLost
from kit.inodes import How
from kit.lmdb_memory import MemoryFiles, Shelf
from kit.stepped import BOUNDS, LIMITS, ODD_BOUNDS, SIZING
from kit.watched import Watched
from kit.witness import StoreImage, Witness
from parkade import Engine, limits
from parkade.asks import Ask, Inquiry
from parkade.errors import ParkadeError, StorageDamaged
from parkade.guards import decode_override
from parkade.job import Job
from parkade.opening import OpenShard, open_shard
from parkade.outliving import OUTLIVING
from parkade.runs import Run
from parkade.runtime import Runtime
from parkade.shard.commands import Command, Loaded, Verdict
from parkade.shard.states import RUNNING
from parkade.store.errors import StoreError
from parkade.store.parked import Parked
from parkade.store.record import Submitted
from simulation.across import (
    Announced,
    SettledWatch,
    Waiting,
    check_begins,
    check_births,
    check_forgotten,
    check_permits,
    check_rest,
    check_traffic,
    check_unique_serials,
)
from simulation.answers import check_answer
from simulation.application import LIMIT_T, make_engine
from simulation.hearing import Hearing
from simulation.laws import check_kept, check_memory, check_passed_on
from simulation.machine import (
    AtWork,
    SimulatedClock,
    SimulatedDrive,
    SimulatedExecutor,
    SimulatedWriter,
    SimulatedWritten,
)
from simulation.rot import Rot

__all__ = ["KEYS", "PATH", "World", "simulated"]

PATH = "/data"
MAP_BYTES = 96 << 10  # so little that every longer history outgrows it
KEYS = ("k0", "k1", "k2")
SETTLE_PASSES_MAX = 4_000
SMALL_FRAME_RECORDS = 4
JOBS_MAX = 8
FAILING = (
    "pread", "pwrite", "pwrite_durable", "fdatasync", "preallocate", "unlink", "rename",
    "fsync_directory", "open",
)  # fmt: skip


class Simulated(Watched):
    """A shard's host on whose turns the workers get on, as threads do."""

    world: "World"

    def install(self, opened: OpenShard) -> None:
        super().install(opened)
        self.written = SimulatedWritten(self, self.world.counts)

    def turn(self) -> None:
        super().turn()
        self.world.meanwhile()

    def apply(self, verdict: Verdict, loaded: Loaded | None, size: int) -> None:
        tasks = {s: e.draft.task for s, e in self.witness.model.tickets.items()}
        tasks |= {r.serial: r.task for r in verdict.records if isinstance(r, Submitted)}
        outcomes = zip(getattr(self._asked, "outcomes", ()), verdict.answers, strict=False)
        children = sum(len(o.born or ()) for o, answer in outcomes if answer.code == "settled")
        check_forgotten(self.world, self.number, verdict.records)
        check_kept(self.world, self.number, verdict.records)
        super().apply(verdict, loaded, size)
        self.world.check_births(verdict, tasks, children)


class World:
    """One machine and what lives on it. Make one with `simulated`."""

    def __init__(
        self,
        seed: int,
        *,
        shards: int,
        keep_ms: int | None,
        bounds: int,
        keep_max: int | None = None,
        durability: str = "disk",
        mix: int = 0,
        has_breaker: bool = False,
        has_leases: bool = False,
        actions_per_check: int = 1,
        failing: Sequence[str] = FAILING,
        failing_times: Sequence[int] = (1, 1, 2),
        max_ready: int | None = None,
        has_lone_frames: bool = False,
        has_caller_frames: bool = False,
    ) -> None:
        self.seed = seed
        self.random = Random(seed)
        self.shards = shards
        self.keep_ms, self.keep_max = keep_ms, keep_max
        self.durability, self.mix = durability, mix
        self.has_breaker, self.has_leases = has_breaker, has_leases
        self.actions_per_check = actions_per_check
        self.failing, self.failing_times = failing, failing_times
        self.max_ready, self.has_lone_frames = max_ready, has_lone_frames
        self.has_caller_frames = has_caller_frames
        self.bounds = (BOUNDS, *ODD_BOUNDS)[bounds]
        self.clock = SimulatedClock()
        self.disk = FakeDisk()
        self.disk.keeps_calls = False
        self.shelf = Shelf()
        self.counts: Counter[str] = Counter()
        self.witnesses = [Witness(knows_routes=False) for _ in range(shards)]
        self.images: list[StoreImage | None] = [None] * shards
        self.stores: dict[int, Parked] = {}
        self.unanswered: dict[int, Ask] = {}
        self.asked_at: dict[int, list[int]] = {}
        self.troubles: list[tuple[str, BaseException | None]] = []
        self.known: dict[int, int] = {}  # serial -> part, of what was acknowledged
        self.past: deque[Job] = deque(maxlen=JOBS_MAX)  # of attempts that have ended
        self.given: set[int] = set()  # every serial that was ever given out to submit with
        self.paused: set[str] = set()  # by what was acknowledged; None: not known
        self.unsure: set[str] = set()
        self.settled = SettledWatch(self.clock.wall_ms)
        self.limit_now: int | None = LIMIT_T  # of task t; None: none
        self.limit_t: int | None = LIMIT_T  # the widest that an attempt may have begun under
        self.limits_unsure = False
        self.has_lost_told = False  # of records that only survive the process
        self.waiting: dict[Any, list[Waiting]] = {}
        self.announced = Announced()
        self.rot = Rot(self)
        self.salt = b""
        self.hearing: Hearing | None = None
        self.runtime: Runtime | None = None
        self._since_check = 0
        self._opening: set[int] = set()
        self.engine = self._make_engine()

    # ------------------------------------------------------------------ the application

    def _make_engine(self) -> Engine:
        engine = make_engine(
            PATH,
            self.mix,
            has_breaker=self.has_breaker,
            has_leases=self.has_leases,
            shards=self.shards,
            clock=self.clock,
            durability=self.durability,
            keep_done=None if self.keep_ms is None else self.keep_ms / 1_000,
            keep_done_max=self.keep_max,
            max_ready=self.max_ready,
        )
        options = engine._options
        options.disk = self.disk
        options.open_store = self._open_store
        options.entropy = self.random.randbytes
        options.sizing = SIZING
        options.make_drive = lambda: SimulatedDrive(self)
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
        if not self.counts["recoveries"]:
            self.settled.top_ms = self.clock.wall_ms  # there is nothing yet to be destroyed
        self.settled.open(self.clock.wall_ms, self.clock.mono_ms)
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
        assert self.runtime is not None
        self.salt = self.runtime.identity.salt
        self.counts["recoveries"] += self.shards
        self.hearing = Hearing(self)
        self.rot.check_open()
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
            self._lose_power()
            self.counts[f"{how} writes"] += sum(len(inode.pending) for _, inode in before.files())
            self.disk = before.power_cut(how, self.random.getrandbits(30))
        self.disk.keeps_calls = False
        self.disk.capacity_bytes = before.capacity_bytes
        self.shelf.lose_process()
        self.shelf.fail_commit = no_failure
        self.images = [None] * self.shards
        self.stores.clear()
        self.unanswered.clear()
        self.asked_at.clear()
        self._opening.clear()
        self.runtime = None
        self.waiting = {}
        OUTLIVING._left.clear()
        OUTLIVING._hears.clear()
        self.engine._desk = None
        self.engine = self._make_engine()
        self.rot.between_lives()

    def _lose_power(self) -> None:
        """What only survives the process may be lost, save what the stores have."""
        if self.durability == "disk":
            return
        self.has_lost_told = True
        self.announced = Announced()
        self.unsure |= {"task:t", "task:u", "target:a"}
        self.limits_unsure = True
        for number, witness in enumerate(self.witnesses):
            store = self.stores.get(number)
            witness.told_lsn = min(witness.told_lsn, 0 if store is None else store.lsn)

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
        host = Simulated(number, *given)
        host.world = self
        host.witness = self.witnesses[number]
        host.image_of = lambda: self.image(number)
        host.held_at, host.begun_at = {}, {}
        return host

    def make_writer(self, name: str, post: Any) -> SimulatedWriter:
        return SimulatedWriter(name, post, self.random)

    def open_shard(self, disk: Any, identity: Any, number: int, **given: Any) -> OpenShard:
        """The real one; what it recovers is held against the witness."""
        opened = open_shard(disk, identity, number, bounds=self.bounds, **given)
        witness, core = self.witnesses[number], opened.core
        assert core.lsn >= witness.told_lsn, ("told, and lost", number, witness.told_lsn, core.lsn)
        assert core.lsn in witness.points, ("a state that never was", number, core.lsn)
        witness.go_back(core.lsn)
        self.images[number] = None
        self.waiting = {}  # what was in its lane is read in again, in slices
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
        number = run.job.part % self.shards
        entry = self.witnesses[number].model.tickets[run.job.serial]
        assert (entry.state, entry.fence) == (RUNNING, run.job.fence), ("runs", run.job, entry)
        assert entry.body == run.job.payload, ("with its payload", entry)
        assert run.job.ticket.started_ms >= run.job.ticket.due_ms, ("early", run.job.ticket)
        check_begins(self, run)
        self.counts["attempts"] += 1

    def attempt_ends(self, run: Run) -> None:
        self.past.append(run.job)
        self.announced.ended(run.job.ticket)
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
            check_answer(self, number, asked, value, error, self.asked_at.pop(id(ask))[number])

        ask.then = then
        self.unanswered[id(ask)] = ask
        self.runtime.host.inbox.put([(number, ask)])

    def serials_of(self, task: str | None) -> set[int]:
        """All tickets there are, of a task unless it is None."""
        return {
            serial
            for witness in self.witnesses
            for serial, entry in witness.model.tickets.items()
            if task in (None, entry.draft.task)
        }

    def is_alias(self, number: int, child: int, holder: int) -> bool:
        taken = self.witnesses[number].traffic.taken
        return any(noted.serial == child and noted.holder == holder for noted in taken)

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
            wait_ms = self._pass()
            return wait_ms == 0
        worked: bool = self.workers()[worker].run_one()
        return worked

    def _pass(self) -> int:
        assert self.runtime is not None
        wait_ms = self.runtime.host.step()
        clock = self.clock
        self.settled.read(clock.wall_ms, clock.mono_ms)
        if any(host.is_open for host in self.hosts()):  # else there is nothing to go by, nor for
            self.settled.check(self.runtime.settled_clock.now)
        return wait_ms

    def meanwhile(self) -> None:
        """A worker gets on while the core is in the middle of its pass."""
        if self.runtime is not None and self.random.random() < 0.15:
            workers = self.workers()
            self.counts["steps during passes"] += 1
            workers[self.random.randrange(len(workers))].run_one()

    def rest(self) -> None:
        """Goes on until nothing more can happen at this time."""
        assert self.runtime is not None
        for _ in range(SETTLE_PASSES_MAX):
            wait_ms = self._pass()
            has_worked = False
            for worker in self.workers():
                has_worked |= worker.run_one()
            self.counts["steps"] += 1 + len(self.workers())
            if not has_worked and wait_ms > 0:
                check_rest(self, self.runtime)
                assert self.hearing is not None
                self.hearing.check_rest()
                self.limit_t = self.limit_now
                self.announced.rested()
                return
        raise AssertionError("it does not come to rest")

    def pass_ms(self, wall_ms: int, mono_ms: int | None = None) -> None:
        self.clock.wall_ms = max(0, self.clock.wall_ms + wall_ms)
        self.clock.mono_ms += max(0, wall_ms if mono_ms is None else mono_ms)
        self.announced.passed(self.clock.wall_ms)

    # ------------------------------------------------------------------ what holds

    def check_births(self, verdict: Verdict, tasks: dict[int, str], children: int) -> None:
        check_births(self.mix, verdict.records, tasks, children)

    @property
    def is_well(self) -> bool:
        """Nothing is broken just now, and nothing full."""
        runtime, shelf = self.runtime, self.shelf
        if runtime is None or self.disk.is_failing or self.disk.capacity_bytes is not None:
            return False
        if shelf.fail_commit is not no_failure or shelf.free_bytes < 1 << 40:
            return False
        return all(host.is_open and host.room.takes_starts for host in self.hosts())

    def look(self) -> None:
        """After an action: what holds is checked as often as the run says."""
        self._since_check += 1
        if self._since_check >= self.actions_per_check:
            self.check()

    def check(self) -> None:
        """Everything that holds after every step."""
        self._since_check = 0
        for what, error in self.troubles:
            raise AssertionError(what) from error
        runtime = self.runtime
        if runtime is None:
            return
        for number in range(self.shards):
            host = self.host(number)
            assert not host.callbacks_failed
            if host.is_open and host.is_taken_in:
                witness, settled_ms = self.witnesses[number], runtime.host.settled_ms
                witness.check_live(host.core, self.image(number), settled_ms)
                check_memory(host)
                check_passed_on(self, number)
        check_permits(self, runtime)
        check_traffic(self, is_end=False)

    def _check_house(self) -> None:
        """Pauses that were acknowledged are in force."""
        assert self.runtime is not None
        pauses = set(self.runtime.house.state.pauses)
        sure = (self.paused | pauses) - self.unsure
        assert pauses & sure == self.paused & sure, (pauses, self.paused, self.unsure)
        self.paused, self.unsure = pauses, set()
        row = self.runtime.house.state.limits.get("task:t")
        limit = LIMIT_T if row is None else decode_override(row).concurrency
        assert self.limits_unsure or limit == self.limit_now, ("limits", limit, self.limit_now)
        self.limit_now = self.limit_t = limit
        self.limits_unsure = False
        self.announced.check(self.runtime.house.state.breakers)

    def heal(self) -> None:
        self.disk.heal()
        self.disk.cut_at(0)
        self.disk.capacity_bytes = None
        self.shelf.fail_commit = no_failure
        self.shelf.free_bytes = 1 << 40

    def finish(self) -> None:
        """Faults have ceased: every ticket comes to its end, and every question to its answer."""
        self.heal()
        self.rot.cease()
        for _ in range(5):
            if self.is_open:
                self.rest()  # what has failed is heard of
                if all(host.is_open for host in self.hosts()):
                    break
                self.kill()
            self.open()
        assert self.is_open
        runtime = self.runtime
        assert runtime is not None
        for scope in list(runtime.house.state.pauses):
            kind, _, name = scope.partition(":")
            self.engine.resume(**{kind: name})
        for name in list(runtime.attempts.admission.guards.circuits):
            self.announced.turned(name)
            self.engine.breakers.close(name)
        self.rest()  # the clocks are read: what was set last is believed ten minutes later
        self.pass_ms(700_000)
        for turn in range(400):
            self.rest()
            for key in list(self.work.alive):
                self.work.end(key, 1, None)
            if turn % 8 == 0:
                self.check()
            entries = [e for w in self.witnesses for e in w.model.tickets.values()]
            dues = [entry.due_ms for entry in entries if entry.state == 0]
            running = sum(entry.state == RUNNING for entry in entries)
            if not dues and not running and not self.unanswered:
                self.check()
                check_traffic(self, is_end=True)
                check_unique_serials(self)
                return
            self.pass_ms(max(min(dues, default=0) - self.clock.wall_ms, 100))
        raise AssertionError(("stuck", self._stuck(), list(self.unanswered.values())))

    def hosts(self) -> list[Watched]:
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


def no_failure(path: str) -> None:
    """Commits are done."""


def no_room(path: str) -> tuple[Any, int]:
    return "before", errno.ENOSPC


@contextmanager
def simulated(seed: int, **options: Any) -> Generator[World, None, None]:
    """A machine that was never switched on, under limits so small that few tickets meet them."""
    world = World(seed, **options)
    world.shelf.on_commit = world.committed
    patched: dict[str, Any] = dict(LIMITS) | {"HOUSE_JOURNAL_BYTES": 2_000}
    if world.has_lone_frames:  # else each frame is handed over in the turn that has it
        patched["SMALL_FRAME_RECORDS"] = SMALL_FRAME_RECORDS
    logging.disable(logging.CRITICAL)
    try:
        with (
            mock.patch.multiple(limits, **patched),
            mock.patch("parkade.runtime.ShardHost", world.make_shard_host),
            mock.patch("parkade.runtime.open_shard", world.open_shard),
            mock.patch("parkade.runtime.Writer", world.make_writer),
            mock.patch.object(Runtime, "report", lambda _, what, error: world.report(what, error)),
        ):
            yield world
    finally:
        logging.disable(logging.NOTSET)
