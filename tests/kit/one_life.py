"""One life of an engine that comes by every line of the file layer, and what must be true after it.

It opens a new directory, works, checkpoints, changes segments, forgets, fails and recovers, is
looked at from outside, stops, is opened again, is killed with an attempt under way, and is opened
once more: all on the thread of the test, by a clock of its own. Each part may meet an error that
is documented, and then the next part begins.
"""

import errno
import logging
import os
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager, nullcontext, suppress
from pathlib import Path
from typing import Any
from unittest import mock

from kit.engines import recount
from kit.sites import Ledger, Site, SiteDisk, SiteFiles
from kit.stepped import LIMITS, SIZING
from parkade import (
    Attempt,
    EngineInUse,
    Outcome,
    ParkadeError,
    RetryPolicy,
    StorageError,
    StorageFull,
    Task,
    UnknownTicket,
    limits,
)
from parkade.asking import TimeIsUp
from parkade.backing_up import _say
from parkade.reader import Reader, existing_manifest
from parkade.resharding import Tools, reshard
from parkade.shard.ticket import part_of_key
from parkade.store.disk import RealDisk
from parkade.store.errors import StoreError
from parkade.store.journal import Sizing
from parkade.store.lock import read_owner
from parkade.store.manifest import read_manifest
from parkade.store.parked import Parked
from parkade.testing import Killed, ManualClock, TestEngine
from parkade.verifying import verify_parts

__all__ = [
    "MODES",
    "OneLife",
    "copy_once",
    "copy_twice",
    "lives",
    "reshard_twice",
    "small_limits",
    "tickets_of",
]

MODES = ("disk", "process")

ENDED = ("done", "dead", "cancelled", "expired")
HOUSE_SIZING = Sizing(16 << 10, 16 << 10, frame_bytes_max=2_000, reserve_bytes=200)
MAP_BYTES = 96 << 10  # so little that it has to grow
KEYS = [next(f"k{n}" for n in range(99) if part_of_key(f"k{n}") % 2 == shard) for shard in (0, 1)]


def copy_twice(source: Path, target: Path, ledger: Ledger) -> None:
    """Copies a directory that nobody owns, in this process. The first copy fails, and what it made
    cannot be removed; the second finds that there. Raises what is documented."""
    ledger.break_next("fdatasync", "copying")
    ledger.break_next("remove_tree", "backing_up")
    with suppress(ParkadeError):
        copy_once(source, target, ledger)
    copy_once(source, target, ledger)


def copy_once(source: Path, target: Path, ledger: Ledger) -> None:
    """The same without a failure of its own."""
    asked = {"verb": "restore", "source": str(source), "target": str(target), "is_live": False}
    with mock.patch("parkade.backing_up.RealDisk", lambda: SiteDisk(ledger)):
        list(_say(asked))


def reshard_twice(path: Path, ledger: Ledger) -> None:
    """Deals a directory that nobody owns to three shards, at the second try, and then to one.
    Raises what is documented."""
    files = SiteFiles(ledger)

    def open_store(directory: str, **given: Any) -> Parked:
        return Parked.open(directory, files=files, commit_hook=files.commit, **given)

    tools = Tools(SiteDisk(ledger), ManualClock(), os.urandom, open_store, SIZING)
    ledger.break_next("preallocate", "spares", errno.ENOSPC)
    for shards in (3, 3, 1):
        with suppress(ParkadeError) if shards == 3 else nullcontext():
            reshard(tools, str(path), shards, lambda *_: None)
    assert existing_manifest(RealDisk(), str(path), 0).shards == 1


def tickets_of(path: Path) -> dict[str, dict[str, int]]:
    """By task and state, as an engine counts them that opens the directory and runs nothing."""
    with TestEngine(path) as engine:
        assert {shard.status for shard in engine.stats().shards} == {"open"}
        counts = recount(engine)
        assert engine.stats().by_task == counts
        return {task: states for task, states in counts.items() if task != "brief"}


@contextmanager
def small_limits() -> Iterator[None]:
    """Few tickets fill a segment, a turn and a checkpoint; nothing is logged."""
    patched: dict[str, Any] = LIMITS | {"HOUSE_JOURNAL_BYTES": 2_000}
    logging.disable(logging.CRITICAL)
    try:
        with (
            mock.patch.multiple(limits, **patched),
            mock.patch("parkade.runtime.Sizing", lambda: HOUSE_SIZING),
        ):
            yield
    finally:
        logging.disable(logging.NOTSET)


class OneLife:
    """A directory and the engine on it. `run` lives the life, `check` looks at what is left."""

    def __init__(self, path: Path, ledger: Ledger, durability: str = "disk") -> None:
        self.path = path
        self.ledger = ledger
        self._durability = durability
        self._append = "pwrite_durable" if durability == "disk" else "pwrite"
        self.errors: list[tuple[str, ParkadeError]] = []
        self.tell: Callable[[str], None] = lambda _: None
        self.begun: list[tuple[str, int]] = []
        self.acked: dict[str, str] = {}
        self.ends: dict[str, str] = {}
        self.is_killing = False
        self.tasks: dict[str, Task[..., Any]] = {}
        self.engine = self._make(SiteDisk(ledger), SiteFiles(ledger))

    def _make(self, disk: RealDisk, files: SiteFiles) -> TestEngine:
        is_new = not (self.path / "manifest.json").exists()
        options: dict[str, Any] = {"shards": 2} if is_new else {}
        engine = TestEngine(self.path, durability=self._durability, threads=2, **options)
        inside = engine._options
        inside.disk, inside.sizing = disk, SIZING

        def open_store(directory: str, **given: Any) -> Parked:
            given |= {"map_bytes": MAP_BYTES, "files": files, "commit_hook": files.commit}
            return Parked.open(directory, **given)

        inside.open_store = open_store
        self._declare(engine)
        return engine

    def _declare(self, engine: TestEngine) -> None:
        @engine.task
        def receipt(outcome: Outcome[int]) -> None:
            assert outcome.state == "done"

        @engine.task(retry=RetryPolicy(None, backoff=["300ms"]), on_done=receipt)
        def order(attempt: Attempt, n: int, key: str = "") -> int:
            self.tell(f"H {attempt.ticket_id} {attempt.fence}")
            if self.is_killing:
                raise Killed
            return n

        @engine.task(retry=RetryPolicy(3, backoff=["300ms"]))
        def flaky(n: int) -> int:
            raise ValueError("no")

        @engine.task(keep="2s")
        def brief(text: str) -> int:
            return len(text)

        @engine.task
        def far(n: int) -> int:
            return n

        self.tasks = {task.name: task for task in (receipt, order, flaky, brief, far)}

    # ------------------------------------------------------------------ the life

    def run(self) -> None:
        """All parts in their order; when a fault was met, one more and no others. What is raised
        and not documented ends it."""
        parts = (
            self._open, self._work, self._sleep, self._pause, self._fail, self._forget, self._stop,
            self._look, self._begin_again, self._roll, self._be_killed, self._stop_unsaved,
        )  # fmt: skip
        left = len(parts)
        for part in parts:
            if self.ledger.failed:
                left = min(left, 2)
            if not left:
                return
            left -= 1
            try:
                part()
            except ParkadeError as error:
                self.errors.append((part.__name__, error))
            if self.is_down and part not in (self._stop, self._look, self._stop_unsaved):
                self._heal()

    @property
    def is_down(self) -> bool:
        return vars(self.engine)["_desk"] is None

    def _heal(self) -> None:
        """The engine did not open: somebody sees to the disk, and starts it again."""
        self.ledger.heal()
        self.engine = self._make(SiteDisk(self.ledger), SiteFiles(self.ledger))
        self.engine.start()

    def _open(self) -> None:
        self.engine.start()

    def _submit(self, task: str, **options: Any) -> None:
        """One ticket, acknowledged or refused."""
        arguments = options.pop("given", {"n": 1})
        try:
            ticket = self.tasks[task].options(**options).submit(**arguments)
        except ParkadeError as error:
            self.errors.append((f"submit {task}", error))
        except TimeIsUp:
            self._pass(1_100)  # it waits for a spare, which is tried for again by then
        else:
            self.acked[ticket.id] = task
            self.tell(f"S {ticket.id} {task}")

    def _run(self, *, until: bool = False) -> None:
        with suppress(Killed):
            self.engine.run_until_idle(skip_time=until)

    def _pass(self, ms: int) -> None:
        """Time passes, and what comes with it is done."""
        self.engine.clock.advance(ms / 1_000)
        self._run()

    def _work(self) -> None:
        self.ledger.break_next("preallocate")
        for n in range(4):
            self._submit("order", given={"n": n}, key=KEYS[n % 2])
            self._submit("flaky")
            self._submit("brief", given={"text": "x" * 100})
        self._submit("order", unique="one")
        self._submit("order", unique="one")
        self._run()
        self._pass(1_000)
        self._pass(1_000)

    def _sleep(self) -> None:
        for n in range(24):
            self._submit("far", given={"n": n}, key=KEYS[n % 2], delay="1h")
        for each in [each for each, task in self.acked.items() if task == "far"][:3]:
            try:
                self.ends[each] = {"cancelled": "cancelled"}[self.engine.ticket(each).cancel()]
                self.tell(f"C {each}")
            except ParkadeError as error:
                self.errors.append(("cancel", error))
        for _ in range(4):
            self._pass(700)

    def _pause(self) -> None:
        for n in range(8):
            self.engine.pause(task="far", reason="r" * 200)
            self.engine.resume(task="far")
            self._pass(100 + n)

    def _fail(self) -> None:
        """A journal, a commit and a retired segment fail once, far from each other."""
        for call, file in ((self._append, "segment"), ("commit", ""), ("rename", "spares")):
            self._pass(3_000)
            self.ledger.break_next(call, file)
            for n in range(4):
                self._submit("order", given={"n": n}, key=KEYS[0])
                self._pass(1_100)
        self._pass(3_000)

    def _forget(self) -> None:
        for _ in range(3):
            self._submit("brief", given={"text": "y" * 400})
            self._pass(3_000)
        for _ in range(4):
            self._pass(3_000)
        other = TestEngine(self.path)
        other._options.disk = SiteDisk(self.ledger)
        with suppress(EngineInUse):
            other.start()

    def _stop(self) -> None:
        self.engine.stop()

    def _stop_unsaved(self) -> None:
        """The last checkpoint fails, so that all segments are still there when they are closed."""
        self.ledger.break_next("commit", code=errno.ENOSPC, times=1_000)
        for n in range(24):
            self._submit("far", given={"n": n}, key=KEYS[n % 2], delay="1h")
        self.engine.stop()

    def _look(self) -> None:
        """From outside, as a reader and as `verify` does."""
        for readers_file in self.path.rglob("lock.mdb"):
            readers_file.unlink()
        disk = SiteDisk(self.ledger)
        try:
            assert read_owner(disk, str(self.path)) is not None
            with Reader(disk, str(self.path), self.engine.clock) as reader:
                reader.stats()
                for each in list(self.acked)[:4]:
                    with suppress(UnknownTicket):
                        reader.info(each)
            manifest = read_manifest(disk, str(self.path))
        except StoreError:
            assert self.ledger.failed
            return
        assert manifest is not None
        for part in verify_parts(disk, str(self.path), manifest, deep=True):
            assert part.is_sound or self.ledger.failed, part

    def _begin_again(self) -> None:
        """On what others left there, with an open that fails at first."""
        (self.path / "lock").write_bytes(b"{}".ljust(9_000))
        journal = self.path / "shard-000" / "journal"
        (journal / "0000000000000000.spare.new").write_bytes(b"half")
        (journal / "ffffffffffffffff.spare").write_bytes(b"")
        for call, file in (("flock", "lock"), ("rename", "journal"), ("", "")):
            self.ledger.break_next(call, file)
            with suppress(ParkadeError):
                self.engine.start()
                break

    def _roll(self) -> None:
        """A frame that the segment just begun has no room for."""
        self._pass(10_000)
        self.engine.stop()
        self.engine.start()
        self._submit("brief", given={"text": "z" * 50_000}, key=KEYS[0])
        self._submit("brief", given={"text": "z" * 50_000}, key=KEYS[1])
        self._run()

    def _be_killed(self) -> None:
        """With an attempt under way, and segments that should be gone."""
        self._submit("order", key=KEYS[0])
        self.is_killing = True
        self._run()
        self.is_killing = False
        self.engine.crash()
        self.engine.crash()  # before anything is written behind the first
        self._run()

    # ------------------------------------------------------------------ what is left

    def hear(self, told: str) -> None:
        """What a life that was killed has told."""
        for line in told.splitlines():
            what, each, *more = line.split(" ")
            if what == "S":
                self.acked[each] = more[0]
            elif what == "C":
                self.ends[each] = "cancelled"
            else:
                self.begun.append((each, int(more[0])))

    def check(self) -> None:
        """The faults have ceased. Whatever was acknowledged is there and comes to its end."""
        with suppress(ParkadeError):
            self.engine.stop()
        # A stop that failed lets the process go as it is; the next owner finds what is on disk.
        self.engine._kill()
        self.ledger.heal()
        engine = self._make(SiteDisk(Ledger()), SiteFiles(Ledger()))
        with engine:
            engine.run_until_idle(skip_time=True)
            stats = engine.stats()
            assert [shard.status for shard in stats.shards] == ["open", "open"]
            assert sum(shard.quarantined for shard in stats.shards) == 0
            assert stats.by_task == recount(engine)
            for each, task in self.acked.items():
                if task == "brief":
                    continue  # it is forgotten after two seconds
                state = engine.ticket(each).info().state
                assert state == self.ends.get(each, {"flaky": "dead"}.get(task, "done")), (
                    each,
                    task,
                )
            for each, fence in self.begun:
                rows = {row.fence: row.outcome for row in engine.ticket(each).attempts()}
                assert [*rows] == [*range(1, len(rows) + 1)], (each, rows)
                assert rows[fence] in ("done", "lost"), (each, fence, rows)
            orders = Counter(info.state for info in engine.submitted(self.tasks["order"]))
            receipts = len(engine.submitted(self.tasks["receipt"]))
            assert orders == Counter(done=receipts), "one receipt for each order"
        manifest = read_manifest(RealDisk(), str(self.path))
        assert manifest is not None
        for part in verify_parts(RealDisk(), str(self.path), manifest, deep=True):
            assert part.is_sound, part


def lives(path: Path) -> "dict[Site, tuple[str, int]]":
    """Every site that a sound life comes by, the durability under which one first did, and how many
    calls it made there. The directories of the lives stay."""
    found: dict[Site, tuple[str, int]] = {}
    for mode in MODES:
        ledger = Ledger()
        life = OneLife(path / mode, ledger, mode)
        life.run()
        life.check()
        assert {type(error) for _, error in life.errors} == {StorageError, StorageFull}
        found = {site: (mode, calls) for site, calls in ledger.counts.items()} | found
    return found
