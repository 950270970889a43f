"""One shard with its real host, journal and store, and no thread: a test takes every step.

The journal lies on a disk that can lose power, the store in a directory of its own. Bounds and
limits are so small that few tickets meet every rule. Frames, reads, commits, completions, turns and
starts happen when a test says so, in any order; what the shard says is held against a `Witness`.
"""

import errno
import os
import shutil
import tempfile
from collections import Counter, deque
from collections.abc import Callable, Generator
from contextlib import contextmanager
from typing import Any
from unittest import mock

from kit.around_stepped import KeepingTasks, Port, Routes
from kit.disk import Call, FakeDisk, PowerLost
from kit.inodes import How
from kit.journals import SALT, Entropy
from kit.watched import Failed, Handlers, Job, Watched
from kit.witness import StoreImage, Witness, fields_of
from parkade import limits
from parkade.admission import Admission
from parkade.asks import Ask, AwaitEnd, BookmarkOf, Inquiry, Look, Seen
from parkade.attempts import Attempts
from parkade.clock import MonoMs, SettledClock, SettledMs, WallMs
from parkade.draft_sizes import DRAFT_BYTES
from parkade.io import Post, ShardIO, Writer
from parkade.keeping import Keeping
from parkade.opening import Identity, OpenShard, open_shard
from parkade.shard import Bounds
from parkade.shard.commands import Command, Outcome, Submit
from parkade.store.batch import Batch, Commit
from parkade.store.errors import WriteFailed
from parkade.store.journal import Sizing
from parkade.store.parked import Parked
from parkade.store.record import Options, Submitted, UniqueClaim

__all__ = [
    "BOUNDS",
    "NOW_MS",
    "ODD_BOUNDS",
    "STEPS",
    "Failed",
    "Job",
    "KeepingTasks",
    "Stepped",
    "stepped",
]

NOW_MS = 1_700_000_000_000
BOUNDS = Bounds(
    horizon_ms=1_000,
    wheel_max=8,
    window_max=3,
    windows_max=8,
    lanes_max=4,
    sweep_limit=4,
    moves_max=6,
    aside_max=2,
    waits_window=1,
    queues_max=3,
    waiting_max=4,
    refill_max=2,
    scout_ahead_ms=300,
    scout_max=2,
    scouted_max=3,
    payload_cache_bytes_max=64,
    plain_ahead_ms=1_500,
    outbox_max=3,
    outbox_bytes_max=1_200,
)
# Where one bound is met long before the others.
ODD_BOUNDS = (
    BOUNDS._replace(wheel_max=3, window_max=2, windows_max=3, lanes_max=2, sweep_limit=2),
    BOUNDS._replace(wheel_max=20, window_max=6, lanes_max=1, sweep_limit=10, aside_max=0),
    BOUNDS._replace(aside_max=6, waits_window=3, queues_max=1),
    BOUNDS._replace(horizon_ms=300, window_max=1, windows_max=2, sweep_limit=1, moves_max=1),
)
LIMITS = {
    "TURN_BYTES_MAX": 700,
    "SMALL_FRAME_RECORDS": 0,
    "ENDS_FRAME_RECORDS": 0,
    "FRAME_MARGIN_BYTES": 500,
    "COMMANDS_PER_TURN_MAX": 3,
    "DIRTY_BYTES_MAX": 12_000,
    "READ_ON_BYTES_MAX": 8_000,
    "CHECKPOINT_DIRTY_BYTES": 4_000,
    "CHECKPOINT_TICKETS_MAX": 7,
    "CHECKPOINT_JOURNAL_BYTES": 4_000,
    "CHECKPOINT_AGE_MS": 2_000,
    "CHECKPOINT_RETRY_MS": 200,
    "ENCODE_SLICE_TICKETS": 2,
    "IDLE_COVER_MS": 300,
    "LOAD_CHUNK": 3,
    "OUTBOX_READ_MAX": 2,
    "POISON_WINDOW_MS": 1_000,
    "FORGET_MAX": 2,
    "FORGOTTEN_UNCOMMITTED_MAX": 6,
    "FORGET_SPAN_MS": 50,
    "SPENT_WALK_BLOBS": 2,
    "STARTS_ALONE_MIN": 6,
    "STARTS_UNDER_WAY_MAX": 2,
    "RETENTION_COUNT_PAUSE_MS": 100,
    "RETENTION_PAUSE_MS_MIN": 100,
    "RETENTION_PAUSE_MS_MAX": 500,
}
SIZING = Sizing(
    segment_bytes_first=1, segment_bytes_max=4_096, frame_bytes_max=64, reserve_bytes=200,
    kept_free_bytes=0,
)  # fmt: skip
PLACES = 3
SHARDS = 2  # this one, and one that is never open: what is for it waits
# "late pass": a completion is heard of before what was read ahead of it.
STEPS = ("io", "writer", "hear io", "hear writer", "turn", "admit", "pass", "late pass")
Heard = deque[tuple[Callable[..., None], tuple[Any, ...]]]


class Stepped:
    """The shard, and everything that a test does to it. Make one with `stepped`."""

    def __init__(
        self,
        path: str,
        *,
        bounds: Bounds = BOUNDS,
        durability: str = "disk",
        keeping: Keeping | None = None,
    ) -> None:
        self.path = path
        self.bounds = bounds
        self.durability = durability
        self.keeping = Keeping() if keeping is None else keeping
        self.now_ms, self.mono_ms = NOW_MS, 1_000
        self.last_serial = 0
        self.disk = FakeDisk()
        self.disk.keeps_calls = False
        self.disk.make_directories(path)
        self.entropy = Entropy()
        self.witness = Witness()
        self.answers: list[tuple[Command | Inquiry, Any]] = []
        self.unanswered: dict[int, Ask] = {}
        self._asked_at: dict[int, int] = {}
        self.is_new = True
        self.lives = 0
        self.done: Counter[str] = Counter()
        self._image: StoreImage | None = None
        self._commit_fault: tuple[str, int] | None = None
        self._stores: list[Parked] = []
        self._begin_life()

    # ------------------------------------------------------------------ lives

    def _begin_life(self) -> None:
        self.from_io: Heard = deque()
        self.from_writer: Heard = deque()
        self.io = ShardIO("io", post_to(self.from_io))
        self.writer = Writer("writer", post_to(self.from_writer))
        self.handlers = Handlers(self.witness)
        self.port = Port(self)
        self.shard = Watched(0, self.port, self.io, self.writer)
        self.shard.witness, self.shard.image_of = self.witness, self.image
        self.shard.held_at, self.shard.begun_at = {}, {}
        self.shard.kin = Routes(self)
        admission = Admission({"thread": PLACES}, self.handlers)
        self.attempts = Attempts([self.shard], admission, self.handlers, self.handlers)
        self.settled: SettledClock | None = None
        opened = self.open_files()
        self._read_clocks()
        self.shard.install(opened)
        self.lives += 1
        attempts = self.attempts
        attempts.settle_lost([self.shard], lambda: setattr(attempts, "is_admitting", True))

    def open_files(self) -> OpenShard:
        """Opens the shard, and holds what was recovered against the witness."""
        opened = open_shard(
            self.disk,
            Identity(self.path, SALT, self.durability, self.is_new, SHARDS),
            0,
            sizing=SIZING,
            entropy=self.entropy,
            bounds=self.bounds,
            open_store=self._open_store,
        )
        self.is_new = False
        store = opened.store
        if self.settled is None:
            start = SettledMs(store.settled_ms) if store.settled_ms else None
            self.settled = SettledClock(start, WallMs(self.now_ms), MonoMs(self.mono_ms))
        self._image = StoreImage.of(store)
        settled_ms = min(self.settled.now, self.now_ms)
        self.witness.check_recovered(opened.core, self._image, settled_ms)
        lsn = opened.core.lsn
        self._asked_at = {ask: min(at, lsn) for ask, at in self._asked_at.items()}
        return opened

    def _open_store(self, directory: str, **options: Any) -> Parked:
        options["sync"] = False
        store = WatchedStore.open(directory, commit_hook=self._at, **options)
        assert isinstance(store, WatchedStore)
        store.stepped = self
        self._stores.append(store)
        return store

    def close_files(self) -> None:
        """Lets the files go as a process does that ends."""
        for store in self._stores:
            store.close()
        self._stores.clear()

    def crash(self, how: How = "lost", seed: int = 0, then_cut_at: int = 0) -> None:
        """The power goes. `then_cut_at`: once more, at that call of the next open."""
        if self.durability != "disk":
            # What was told may be lost with the power, save what the store has.
            told_lsn = self.witness.told_lsn
            self.witness.told_lsn = min([told_lsn, *(store.lsn for store in self._stores)])
        self.close_files()
        self.disk = self.disk.power_cut(how, seed)
        self._after_crash(then_cut_at)
        self.done["crash"] += 1

    def kill(self) -> None:
        """The process ends, and nothing else does."""
        self.close_files()
        self.disk = self.disk.crash()
        self._after_crash(0)

    def _after_crash(self, cut_at: int) -> None:
        self._image = self._commit_fault = None
        self.disk.keeps_calls = False
        self.unanswered.clear()
        if cut_at:
            self.disk.cut_at(cut_at)
        try:
            self._begin_life()
        except PowerLost:
            self.crash("torn", cut_at)
        else:
            self.disk.cut_at(0)

    # ------------------------------------------------------------------ what is asked

    def ask(self, asked: Command | Inquiry, size: int = 0) -> Ask:
        """Puts a question; the answer comes to `answers` when it may be told."""
        ask = Ask(asked, size=size)
        self._asked_at[id(ask)] = self.shard.core.lsn

        def then(value: Any, error: BaseException | None) -> None:
            assert self.unanswered.pop(id(ask), None) is not None, ("answered twice", asked)
            self._check_answer(asked, value, error, self._asked_at.pop(id(ask)))
            self.answers.append((asked, value if error is None else error))

        ask.then = then
        self.unanswered[id(ask)] = ask
        self.shard.put(ask)
        return ask

    def _check_answer(
        self, asked: Command | Inquiry, value: Any, error: BaseException | None, since: int
    ) -> None:
        assert error is None or isinstance(error, Failed), (asked, error)
        if error is None and isinstance(asked, BookmarkOf):
            saved = [shadow.bookmark for _, shadow in self.witness.versions[asked.serial] if shadow]
            assert value is None or value in saved, ("what nobody saved", asked, value)
        if error is not None or not isinstance(asked, Look | AwaitEnd):
            return
        head = None if value is None else fields_of(value.ticket)
        until = self.shard.durable_lsn
        since = min(since, until)
        assert self.witness.was_seen(asked.serial, head, since, until), (asked, value, since, until)
        if isinstance(value, Seen) and (isinstance(asked, AwaitEnd) or asked.wants_body):
            self._check_body(asked.serial, value)

    def _check_body(self, serial: int, seen: Seen) -> None:
        head = fields_of(seen.ticket)
        bodies = [s.body for _, s in self.witness.versions[serial] if s and s.head == head]
        assert seen.body in bodies, ("head and body of one moment", seen, bodies)

    def draft(
        self,
        due_ms: int | None = None,
        task: str = "t",
        *,
        key: str | None = None,
        unique: UniqueClaim | None = None,
        options: Options | None = None,
        payload: bytes | None = None,
        part: int = 8,
    ) -> Submitted:
        """A ticket to be submitted, due now unless said."""
        serial = self.last_serial = max(self.now_ms << 20, self.last_serial + 1)
        due_ms = self.now_ms if due_ms is None else due_ms
        payload = b"payload of %d" % (serial & 0xFFFF) if payload is None else payload
        return Submitted(serial, part, task, due_ms, self.now_ms, payload, key, unique, options)

    def submit(self, *drafts: Submitted, modes: list[int] | None = None) -> None:
        size = sum(len(draft.payload) + DRAFT_BYTES for draft in drafts)
        self.ask(Submit(list(drafts), modes), size)

    def settle(self, job: Job, kind: str = "done", **more: Any) -> None:
        """An attempt ends."""
        del self.handlers.alive[job.serial]
        self.attempts.settle_all([Outcome(job.serial, job.fence, kind, **more)])

    # ------------------------------------------------------------------ steps

    def step(self, name: str) -> bool:
        """One step of one of `STEPS`; False when there was nothing to do, as far as that shows."""
        self._read_clocks()
        try:
            return self._steps()[name]()
        except PowerLost:
            self.crash("torn", self.disk.number)
            return True

    def _steps(self) -> dict[str, Callable[[], bool]]:
        return {
            "io": self.io.run_one,
            "writer": self.writer.run_one,
            "hear io": lambda: self._hear(self.from_io),
            "hear writer": lambda: self._hear(self.from_writer),
            "turn": self._turn,
            "admit": self._admit,
            "pass": lambda: self._pass(self.from_io, self.from_writer),
            "late pass": lambda: self._pass(self.from_writer, self.from_io),
        }

    def _read_clocks(self) -> None:
        port, settled = self.port, self.settled
        assert settled is not None
        port.now_ms, port.mono_ms = self.now_ms, self.mono_ms
        settled_ms = settled.read(WallMs(self.now_ms), MonoMs(self.mono_ms))
        port.settled_ms = min(settled_ms, self.now_ms)

    def _hear(self, posted: Heard) -> bool:
        if not posted:
            return False
        function, arguments = posted.popleft()
        self.shard.is_stirred = self.shard.is_stirred or function != self.shard.durable
        function(*arguments)
        return True

    def _turn(self) -> bool:
        self.shard.turn()
        return True

    def _admit(self) -> bool:
        self.attempts.admit(self.port.now_ms)
        self.shard.hand_frame()
        self.attempts.send_jobs()
        return True

    def _pass(self, *posted: Heard) -> bool:
        """What the core thread does between two waits."""
        for each in posted:
            for _ in range(len(each)):
                self._hear(each)
        shard, dues = self.shard, self.shard.dues
        if shard.is_stirred or self.now_ms >= dues.wall_ms or self.mono_ms >= dues.mono_ms:
            self._turn()
        return self._admit()

    def run(self) -> None:
        """Passes, frames, reads and commits until none has anything to do at this time."""
        for _ in range(300 + 10 * len(self.witness.tickets)):
            self.step("pass")
            worked = [self.step("io"), self.step("writer")]
            if not any(worked) and not self.from_io and not self.from_writer and self._waits():
                self.check()
                return
        raise AssertionError(("it does not come to rest", self._unrest()))

    def _unrest(self) -> dict[str, Any]:
        placement, port = self.shard.placement, self.port
        due = (self.shard.checkpointing.next_ms(), self.shard.retention.next_ms())
        return {
            "now": (self.now_ms, port.settled_ms, self.mono_ms),
            "wheel": placement.wheel.next_wake(),
            "wake": placement.next_wake(),
            "horizon": placement.horizon >> 64,
            "expiries": placement.expiries.next_ms(),
            "due": due,
            "reads": (placement.sweep_from, placement.is_stalled, list(placement.load_queue)),
            "asks": (list(self.shard.asks), list(self.shard.submits)),
            "heard": (list(self.from_io), list(self.from_writer)),
            "waiting": (self.shard.waiting, self.shard.loading),
            "unanswered": [ask.asked for ask in self.unanswered.values()],
        }

    def _waits(self) -> bool:
        shard = self.shard
        if not shard.is_open:
            return True
        return shard.wait_ms() > 0 and not shard.has_more and not shard.records

    def pass_ms(self, wall_ms: int, mono_ms: int | None = None) -> None:
        """Time goes by, on both clocks unless said."""
        self.now_ms += wall_ms
        self.mono_ms += max(wall_ms if mono_ms is None else mono_ms, 0)

    def want_checkpoint(self) -> None:
        self.shard.checkpointing.is_wanted = self.shard.is_stirred = True

    def checkpoint(self) -> None:
        """All that is dirty goes into the store, and what is far leaves memory."""
        self.want_checkpoint()
        self.run()
        assert not self.shard.checkpointing.is_busy

    # ------------------------------------------------------------------ faults

    def _at(self, point: str) -> None:
        fault = self._commit_fault
        if fault is not None and fault[0] == point:
            self._commit_fault = None
            raise OSError(fault[1], os.strerror(fault[1]))

    def fail_commit(self, point: str, code: int = errno.EIO) -> None:
        """The next commit fails there; at "after" it is done, and says that it failed."""
        self._commit_fault = (point, code)

    def took_commit_fault(self) -> bool:
        """Whether a commit that is done is to say that it failed."""
        is_due = self._commit_fault is not None and self._commit_fault[0] == "after"
        if is_due:
            self._commit_fault = None
        return is_due

    def fail_append(self, how: str) -> None:
        """The next write of a frame fails: before, after or half-way."""
        name = "pwrite_durable" if self.durability == "disk" else "pwrite"
        self.disk.fail(lambda call: call.name == name, how=how)  # type: ignore[arg-type]

    def fill_disk(self, times: int) -> None:
        """There is no room for a spare, so many times."""

        def is_allocation(call: Call) -> bool:
            return call.name == "preallocate"

        self.disk.fail(is_allocation, errno.ENOSPC, times=times)

    def heal(self) -> None:
        self.disk.heal()
        self.disk.cut_at(0)
        self._commit_fault = None

    # ------------------------------------------------------------------ what holds

    def image(self) -> StoreImage:
        """What the store has committed by now."""
        if self._image is None:
            self._image = StoreImage.of(self.shard.store)
        return self._image

    def committed(self) -> None:
        self._image = None

    def check(self) -> None:
        """Everything that holds after every step."""
        for what, error in self.port.errors:
            raise AssertionError(what) from error
        assert not self.shard.callbacks_failed
        if self.shard.is_open:
            self.witness.check_live(self.shard.core, self.image(), self.port.settled_ms)

    def finish(self) -> None:
        """Faults have ceased: every ticket comes to its end, and every question to its answer."""
        self.heal()
        self.run()
        if not self.shard.is_open:
            self.crash()
        self.pass_ms(700_000)
        model = self.witness.model
        for _ in range(400):
            self.run()
            for job in list(self.handlers.alive.values()):
                self.settle(job)
            model = self.witness.model
            dues = [entry.due_ms for entry in model.tickets.values() if entry.state == 0]
            running = [s for s, entry in model.tickets.items() if entry.state == 1]
            if not dues and not running and not self.unanswered and not model.outbox.get(0):
                return
            self.pass_ms(max(min(dues, default=0) - self.now_ms, 100))
        raise AssertionError(("stuck", self._stuck(), list(self.unanswered.values())))

    def _stuck(self) -> list[Any]:
        where = self.shard.placement.where
        entries = self.witness.model.tickets.items()
        return [(s, where(s), entry) for s, entry in entries if entry.state in (0, 1)]


def post_to(heard: Heard) -> Post:
    """What a worker calls when it has done something: it is kept until the core thread hears it."""

    def post(function: Callable[..., None], *arguments: Any) -> None:
        heard.append((function, arguments))

    return post


class WatchedStore(Parked):
    """A store that says when it has changed, and can lie about a commit that is done."""

    stepped: Stepped

    def commit(self, batch: Batch) -> Commit:
        try:
            commit = super().commit(batch)
        finally:
            self.stepped.committed()
        self.stepped.done["commit"] += 1
        if self.stepped.took_commit_fault():
            raise WriteFailed(self.path, errno.EIO, "the last page was not written, it says")
        return commit


@contextmanager
def stepped(**options: Any) -> Generator[Stepped, None, None]:
    """A new shard under small limits, in a directory that goes with it."""
    path = tempfile.mkdtemp(dir="/dev/shm" if os.path.isdir("/dev/shm") else None)
    try:
        patched: dict[str, Any] = dict(LIMITS)
        with mock.patch.multiple(limits, **patched):
            shard = Stepped(path, **options)
            try:
                yield shard
            finally:
                shard.close_files()
    finally:
        shutil.rmtree(path, ignore_errors=True)
