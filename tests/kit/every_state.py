"""A directory with a ticket of every kind in it, and all that can be seen of one.

    town = Town(path, shards=3)
    town.settle()          # three lives; the last one dies with an attempt running
    seen = look(path)      # everything a reader can tell, as plain values

The same code makes the golden directories and what is resharded. It uses no clock and no randomness
but its own, so that a directory can be made again.
"""

import random
import shutil
from collections.abc import Callable
from dataclasses import fields, is_dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import msgspec

from kit.cut_short import CutShort, MortalEngine
from kit.engines import rig, walk
from parkade import (
    Ambiguous,
    Attempt,
    Breaker,
    Call,
    Fail,
    Outcome,
    ResultGone,
    Snooze,
    TicketError,
)
from parkade.house import HOUSE_NUMBER, HouseState, read_state
from parkade.onlooker import Onlooker
from parkade.opening import records_of
from parkade.reader import Reader
from parkade.shard.commands import UniqueRow
from parkade.shard.outbox import NO_PLACE, Outbox, Place
from parkade.shard.ticket import shard_of
from parkade.store.disk import RealDisk
from parkade.store.journal import Sizing
from parkade.store.manifest import read_manifest
from parkade.store.outbox import unpack_place
from parkade.store.record import Submitted
from parkade.store.snapshot import Snapshot
from parkade.testing import ManualClock, TestEngine

__all__ = ["LEFT_AT", "OPTIONS", "Town", "declare", "end_of", "live_on", "look", "resident"]

LEFT_AT = datetime(2027, 2, 1, 12, tzinfo=UTC)
"""Later than all that happens in the lives of a town: when whoever opens it later comes."""

SMALL = Sizing(segment_bytes_first=64 << 10, frame_bytes_max=24 << 10, reserve_bytes=2 << 10)
OPTIONS: dict[str, Any] = {"keep_done": "90d", "keep_done_max": 14, "index_tags": ("tenant",)}
STEPS_FIRST, STEPS_MAX = 2, 60


def declare(engine: TestEngine, starts: list[str], last_act: Callable[[], None]) -> None:
    """The tasks of all lives. `starts` hears of each start of a ticket with a key."""

    @engine.task(tags={"kind": "plain"})
    def plain(n: int) -> int:
        return 2 * n

    @engine.task(retry=["1m", "2h"])
    def flaky(attempt: Attempt, n: int) -> int:
        if attempt.number < 3:
            raise ConnectionError(f"attempt {attempt.number} of {n}")
        return n

    @engine.task
    def fails(n: int) -> None:
        raise Fail(f"card {n} refused", code=n)

    @engine.task
    def unsure(n: int) -> None:
        raise Ambiguous(f"sent {n}, no answer")

    @engine.task(key="{who}", summary="{who}{n}")
    def keyed(attempt: Attempt, who: str, n: int) -> str:
        starts.append(f"{who}{n} {attempt.ticket_id}")
        return f"{who}{n}"

    @engine.task(retry=["3d"])
    def saver(attempt: Attempt) -> int:
        done = attempt.checkpoint(int, 0)
        attempt.progress(done, 9, "rows")
        if done < 3:
            attempt.save_checkpoint(3)
            raise ConnectionError("gone away")
        return done

    @engine.task
    def naps(attempt: Attempt) -> str:
        if attempt.fence == 1:
            raise Snooze("40d", "not yet")
        return "rested"

    @engine.task(unique="{outcome.ticket_id}")
    def hear(outcome: Outcome[Any]) -> str:
        return outcome.state

    @engine.task(on_done=hear)
    def parent(attempt: Attempt) -> list[str]:
        calls: list[Call[Any]] = [keyed.call(who, n) for n in (7, 8) for who in "abc"]
        calls += [plain.options(unique="only").call(1), plain.options(unique="only").call(2)]
        return [attempt.submit(call).id for call in calls]

    @engine.task(target="psp", breaker=Breaker(failures=1, open_for="300d", max_open_for="300d"))
    def charge(n: int) -> None:
        raise ConnectionError("down")

    @engine.task(priority=9)
    def hold(attempt: Attempt, n: int) -> int:
        last_act()
        return n


class Town:
    """Fills a directory, life by life."""

    def __init__(self, path: Path, *, shards: int = 2, durability: str = "memory") -> None:
        self.path = path
        self.clock = ManualClock(datetime(2027, 1, 4, 9, tzinfo=UTC))
        self.options = OPTIONS | {"shards": shards, "durability": durability}
        self._last_act: Callable[[], None] = _nothing
        self._opens = 0

    def settle(self) -> None:
        """All lives. How many steps the last one is given is tried out, until a child is on its way
        to another shard."""
        self._first_life()
        self._second_life()
        self._last_life()

    def _open(self) -> MortalEngine:
        engine = MortalEngine(self.path, clock=self.clock, **self.options)
        self._opens += 1
        rig(engine, sizing=SMALL, entropy=random.Random(self._opens).randbytes)
        declare(engine, [], lambda: self._last_act())
        engine.start()
        return engine

    def _first_life(self) -> None:
        """What has ended, and what was forgotten."""
        engine = self._open()
        submit = engine.submit
        plain, keyed = engine.lookup("plain"), engine.lookup("keyed")
        for n in range(4):
            plain.options(unique=f"gone-{n}").submit(n)
        engine.run_until_idle()
        engine.clock.advance("1h")
        for n in range(12):  # more than are kept by number
            submit(plain.options(tags={"tenant": f"t{n % 2}"}).call(n))
        for n in range(3):
            submit("fails", {"n": n})
            submit("unsure", {"n": n})
        submit("parent", {})
        submit("flaky", {"n": 1})
        submit("saver", {})
        submit("naps", {})
        for n in range(4):
            submit(keyed.options(delay=f"{90 - n}m").call("a", n))
            keyed.options(delay="20d", priority=n).submit("b", n)
        plain.options(unique="a while", unique_for="60d").submit(79)
        plain.options(unique="active", unique_for="active", delay="9d").submit(80)
        engine.run_until_idle()
        engine.clock.advance("3h")
        engine.run_until_idle()
        engine.stop()

    def _second_life(self) -> None:
        """What waits: near and far, in its lane, held by an operator, a breaker and a key."""
        engine = self._open()
        plain, keyed = engine.lookup("plain"), engine.lookup("keyed")
        engine.submit("flaky", {"n": 2})
        engine.submit("charge", {"n": 1})
        engine.run_until_idle()
        for n in range(2, 5):
            engine.submit("charge", {"n": n})
        engine.run_until_idle()
        plain.options(delay="1h").submit(77).cancel("changed his mind")
        plain.options(delay="1h", expires="1m").submit(78)
        engine.pause(task="keyed", reason="stock-taking")
        engine.limits.set("task:plain", concurrency=3)
        for n in range(9):
            keyed.options(priority=n % 2).submit("cdef"[n % 4], n)
            plain.options(delay=f"{n * n}h", expires="200d").submit(200 + n)
        for delay in ("70m", "19h", "30d", "3y"):
            plain.options(delay=delay, summary=f"in {delay}").submit(300)
        engine.clock.advance("62m")
        engine.run_until_idle()
        engine.stop()

    def _last_life(self) -> None:
        """What only the journal has; an attempt that runs, and a child that is on its way."""
        image = self.path.with_name(self.path.name + ".before")
        shutil.copytree(self.path, image)
        start = self.clock.now()
        for steps in range(STEPS_FIRST, STEPS_MAX):
            shutil.rmtree(self.path)
            shutil.copytree(image, self.path)
            self.clock = ManualClock(start)
            self._die_after(steps)
            if _is_under_way(self.path):
                shutil.rmtree(image)
                return
        raise AssertionError("no child was ever found on its way")

    def _die_after(self, steps: int) -> None:
        engine = self._open()
        hear = engine.lookup("hear")
        plain = engine.lookup("plain")
        for n in range(6):
            plain.options(delay="2d", tags={"tenant": "t9"}).submit(400 + n)
        plain.options(delay="2d").submit(410).cancel("in the tail")
        victims = [plain.options(delay="3d", on_cancel=hear).submit(500 + n) for n in range(4)]
        engine.submit("hold", {"n": 1})

        def last_act() -> None:
            engine.die_after(steps)
            for victim in victims:
                victim.cancel("the last act")
            raise CutShort

        self._last_act = last_act
        try:
            engine.run_until_idle()
        except CutShort:
            engine.stop()
        self._last_act = _nothing


def _nothing() -> None:
    return


def live_on(path: Path) -> dict[str, Any]:
    """Opens a town again and lets all happen that is still to come; what became of its tickets, in
    which order those with a key were started, and what those that ended give.

    Nothing is forgotten meanwhile, so that it can be told.
    """
    starts: list[str] = []
    options: dict[str, Any] = OPTIONS | {"keep_done": None, "keep_done_max": None}
    with TestEngine(path, clock=ManualClock(LEFT_AT), **options) as engine:
        declare(engine, starts, _nothing)
        ids = [info.id for info in walk(engine.find, limit=1000)]
        engine.run_until_idle(skip_time=True)
        engine.resume(task="keyed")
        engine.breakers.close("psp")
        engine.run_until_idle(skip_time=True)
        return {
            "starts": starts,
            "tickets": {one: end_of(engine, one) for one in sorted(ids)},
            "by_task": {task: dict(counts) for task, counts in engine.stats().by_task.items()},
        }


def end_of(engine: TestEngine, ticket_id: str) -> list[Any]:
    ticket = engine.ticket(ticket_id)
    info = ticket.info()
    try:
        told = ticket.result()
    except (TicketError, ResultGone) as error:
        told = type(error).__name__
    return [info.task, info.state, info.attempts, told]


def _onlookers(path: Path) -> list[Onlooker]:
    disk = RealDisk()
    manifest = read_manifest(disk, str(path))
    assert manifest is not None
    return [Onlooker(disk, str(path), manifest.salt, n) for n in range(manifest.shards)]


def _is_under_way(path: Path) -> bool:
    return bool(resident(path)["outbox"])


def resident(path: Path) -> dict[str, Any]:
    """What no call of the public interface tells: rows of uniques, what is under way to another
    shard, what the house keeps. By names that no number of shards changes."""
    uniques: dict[str, Any] = {}
    sent: list[tuple[int, int, Place, Submitted]] = []
    taken: dict[tuple[int, int], Place] = {}
    onlookers = _onlookers(path)
    count = len(onlookers)
    for shard in onlookers:
        with shard.sight() as (core, reader, snapshot):
            names = {bytes(key) for key, _ in snapshot.transaction.cursor(snapshot.tables.uniques)}
            names |= set(core.memory.uniques)
            rows = reader.load((), names).loaded.uniques | core.memory.uniques
            for name, row in rows.items():
                if isinstance(row, UniqueRow):
                    uniques[name.hex()] = [
                        row.serial, row.part, row.until_ms, row.mode, row.keep_ms,
                    ]  # fmt: skip
            outbox = core.outbox
            for place, draft in (_stored(snapshot) | _changed(outbox)).items():
                receiver = shard_of(draft.part, count)
                if place > outbox.handed.get(receiver, NO_PLACE):
                    sent.append((shard.number, receiver, place, draft))
            taken |= {(sender, shard.number): place for sender, place in outbox.taken.items()}
        shard.close()
    under_way = [
        f"{draft.task} of {draft.serial:x}"
        for sender, receiver, place, draft in sent
        if place > taken.get((sender, receiver), NO_PLACE)
    ]
    return {"uniques": uniques, "outbox": sorted(under_way), "house": _house(path)}


def _stored(snapshot: Snapshot) -> dict[Place, Submitted]:
    return {
        Place(*unpack_place(key)[1]): msgspec.msgpack.decode(row, type=Submitted)
        for key, row in snapshot.outbox(limit=1_000)
    }


def _changed(outbox: Outbox) -> dict[Place, Submitted]:
    """An onlooker does not know for whom they are, only that they are there."""
    return {place: draft for (_, place), draft in outbox.changed().items()}


def _house(path: Path) -> dict[str, Any]:
    disk = RealDisk()
    manifest = read_manifest(disk, str(path))
    assert manifest is not None
    house = Onlooker(disk, str(path), manifest.salt, HOUSE_NUMBER, place="house")
    with house.held(lambda snapshot: snapshot) as snapshot:
        state: HouseState = read_state(snapshot)
        for frame in house.frames(snapshot):
            for record in records_of(frame, house.journal):
                state.apply(record)
    house.close()
    return {
        "breakers": sorted(state.breakers),
        "pauses": {scope: pause.reason for scope, pause in sorted(state.pauses.items())},
        "limits": sorted(state.limits),
        "lease": state.lease_until,
    }


def look(path: Path) -> dict[str, Any]:
    """Everything that a reader tells, as values that JSON keeps. Shards are left out, and how
    large files are."""
    with Reader(RealDisk(), str(path), ManualClock(LEFT_AT)) as reader:
        tickets: dict[str, Any] = {}
        cursor: str | None = None
        while True:
            page = reader.find(limit=1000, cursor=cursor)
            for info in page:
                facts = {
                    name: _plain(getattr(info, name))
                    for name in type(info).__dataclass_fields__
                    if name not in ("id", "shard", "as_of")
                }
                facts["attempts_made"] = [
                    {name: _plain(getattr(one, name)) for name in type(one).__dataclass_fields__}
                    for one in reader.attempts(info.id)
                ]
                tickets[info.id] = facts
            cursor = page.next
            if cursor is None:
                break
        stats = reader.stats()
        return {
            "tickets": dict(sorted(tickets.items())),
            "by_task": {task: dict(counts) for task, counts in sorted(stats.by_task.items())},
            "done_total": stats.done_total,
            "dead": [info.id for info in reader.dead.find(limit=1000)],
            "groups": sorted(
                [group.key, group.task, group.error_type, group.sample, group.count]
                for group in reader.dead.groups(limit=100)
            ),
        }


def _plain(value: Any) -> Any:
    if isinstance(value, datetime):
        return value.isoformat()
    if value is None or isinstance(value, str | int | float | bool):
        return value
    if is_dataclass(value):
        return {field.name: _plain(getattr(value, field.name)) for field in fields(value)}
    return {str(key): _plain(one) for key, one in dict(value).items()}
