"""A directory with a ticket of every kind, copies of it to be harmed, and the judge of those.

What the judge wants, whatever was done to a copy: no error but documented ones, no hang, the other
shard as it was. Of harm that a checksum can tell it wants more: each ticket is told as it was, or
with an error, or `verify` says what is wrong; and none runs on what another was given.
"""

import atexit
import functools
import logging
import os
import random
import shutil
import tempfile
from collections.abc import Callable, Generator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from kit.engines import rig, runtime_of, walk
from kit.every_state import LEFT_AT, OPTIONS, Town, declare, end_of, resident
from parkade import ParkadeError, StorageDamaged
from parkade.reader import Reader
from parkade.reading import DamagedTicket
from parkade.repairing import repair
from parkade.shard.lane import LaneLost
from parkade.shard.ticket import TicketId, parse_id, shard_of
from parkade.store.disk import RealDisk
from parkade.store.errors import StoreError
from parkade.store.manifest import read_manifest
from parkade.testing import ManualClock, StillBusy, TestEngine
from parkade.verifying import PartReport, verify_parts

__all__ = ["SHARDS", "Seen", "harmed_copy", "judge", "part_directory", "seen_whole"]

SHARDS = 2
MEMORY = "/dev/shm"
TICKETS_MAX = 400  # attempts of one run; those of a whole town are some 120
KEPT: dict[str, Any] = OPTIONS | {"keep_done": None, "keep_done_max": None, "durability": "memory"}


@dataclass(frozen=True, slots=True)
class Seen:
    """What a whole town tells: of each ticket what stands in it, save what no two openings give
    alike, and its end."""

    infos: Mapping[str, Mapping[str, Any]]
    ends: Mapping[str, Any]
    under_way: frozenset[str]  # born in one shard for another, which does not have them yet


def part_directory(path: Path, part: int) -> Path:
    """Of the shards 0 and 1, and of the house behind them."""
    return path / ("house" if part == SHARDS else f"shard-{part:03d}")


@functools.cache
def _scratch() -> Path:
    in_memory = MEMORY if os.access(MEMORY, os.W_OK) else None  # a disk that syncs takes most of it
    path = Path(tempfile.mkdtemp(prefix="parkade-fuzz-", dir=in_memory))
    atexit.register(shutil.rmtree, path, ignore_errors=True)
    return path


@functools.cache
def template() -> Path:
    """In disk mode, whose journals prove what was durable."""
    path = _scratch() / "template"
    Town(path, shards=SHARDS, durability="disk").settle()
    return path


@contextmanager
def harmed_copy(name: str = "copy") -> Generator[Path, None, None]:
    """A copy of the whole directory, to be harmed."""
    path = _scratch() / name
    shutil.rmtree(path, ignore_errors=True)
    shutil.copytree(template(), path)
    yield path
    shutil.rmtree(path, ignore_errors=True)
    shutil.rmtree(f"{path}.new", ignore_errors=True)


@functools.cache
def seen_whole() -> Seen:
    """From two openings: retries of what was lost have random waits."""
    looks: list[dict[str, dict[str, Any]]] = []
    ends: dict[str, Any] = {}
    for _ in range(2):
        with harmed_copy("whole") as path, _opened(path) as engine:
            ids = [info.id for info in walk(engine.find, limit=1000)]
            looks.append({each: _facts(engine, each) for each in ids})
            _run(engine)
            ends = {each: end_of(engine, each) for each in ids}
    infos = {
        each: {name: fact for name, fact in facts.items() if looks[1][each][name] == fact}
        for each, facts in looks[0].items()
    }
    sent = {one.rpartition(" ")[2] for one in resident(template())["outbox"]}
    under_way = frozenset(each for each in infos if f"{_known(each).serial:x}" in sent)
    return Seen(infos, ends, under_way)


@contextmanager
def _opened(path: Path) -> Generator[TestEngine, None, None]:
    engine = TestEngine(path, clock=ManualClock(LEFT_AT), **KEPT)
    rig(engine, entropy=random.Random(0).randbytes)
    declare(engine, [], lambda: None)
    with engine:
        yield engine


def _facts(engine: TestEngine, ticket_id: str) -> dict[str, Any]:
    facts = asdict(engine.ticket(ticket_id).info())
    del facts["as_of"]
    return facts


def _run(engine: TestEngine) -> None:
    with suppress(StillBusy):
        engine.run_until_idle(skip_time=True, max_tickets=TICKETS_MAX)
    engine.resume(task="keyed")
    engine.breakers.close("psp")
    with suppress(StillBusy):
        engine.run_until_idle(skip_time=True, max_tickets=TICKETS_MAX)


# --------------------------------------------------------------------------------------- the judge


def judge(
    path: Path,
    part: int,
    *,
    is_forged: bool,
    unproven: frozenset[str] = frozenset(),
    runs: bool = True,
    repairs: bool = False,
) -> None:
    """Raises AssertionError, or the error that nobody documents. `part` is the one that was harmed.
    `is_forged`: its checksums are right. `unproven`: tickets that may be told otherwise than they
    were, as nothing proves that they were durable."""
    reports = _verify(path)
    is_told = reports is None or not all(report.is_sound for report in reports)
    _read(path)
    if repairs:
        _documented(lambda: repair(str(path), f"{path}.new"))
    with _strict_log(is_forged):
        try:
            with _opened(path) as engine:
                _look(engine, part, is_forged=is_forged, is_told=is_told, unproven=unproven)
                if runs:
                    _live(engine, part, is_forged=is_forged, is_told=is_told, unproven=unproven)
        except ParkadeError as error:
            assert error.code.startswith("PK-"), error
            assert part == SHARDS, f"harm to one shard keeps all from opening: {error}"
            assert is_told or is_forged, f"verify finds nothing, and it does not open: {error}"


def _documented(call: Callable[[], Any]) -> Any:
    try:
        return call()
    except ParkadeError as error:
        assert error.code.startswith("PK-"), error
        return error


def _verify(path: Path) -> list[PartReport] | None:
    disk = RealDisk()
    try:
        manifest = read_manifest(disk, str(path))
    except StoreError:
        return None
    assert manifest is not None
    return list(verify_parts(disk, str(path), manifest, deep=True))


def _read(path: Path) -> None:
    """As those do who only look."""

    def look() -> None:
        with Reader(RealDisk(), str(path), ManualClock(LEFT_AT)) as reader:
            for each in list(seen_whole().infos)[::8]:  # each reads its shard anew
                _documented(functools.partial(reader.info, each))
            for ask in (reader.find, reader.stats, reader.dead.find, reader.dead.groups):
                _documented(ask)

    _documented(look)


def _look(
    engine: TestEngine,
    part: int,
    *,
    is_forged: bool,
    is_told: bool,
    unproven: frozenset[str],
) -> None:
    runtime = runtime_of(engine)
    for shard in runtime.shards:
        assert shard.is_open or shard.number == part, shard.error
        assert shard.is_open or is_told or is_forged, "verify finds nothing, and it is refused"
    for each, before in seen_whole().infos.items():
        told = _documented(lambda each=each: _facts(engine, each))  # type: ignore[misc]
        _documented(engine.ticket(each).attempts)
        if isinstance(told, ParkadeError):
            is_as_before = False
        else:
            assert told["id"] == each
            is_as_before = {name: told[name] for name in before} == dict(before)
        if each in seen_whole().under_way:
            continue  # it comes when its cause does
        if _shard_of(each) != part:
            assert is_as_before or part == SHARDS or is_forged, (each, told, before)
        elif not is_forged and each not in unproven and not isinstance(told, StorageDamaged):
            assert is_as_before or is_told, (each, told, before)
    for ask in (engine.find, engine.stats, engine.dead.find, engine.dead.groups, engine.health):
        _documented(ask)


def _live(
    engine: TestEngine,
    part: int,
    *,
    is_forged: bool,
    is_told: bool,
    unproven: frozenset[str],
) -> None:
    """All that is still to come, and what became of each."""
    _documented(lambda: _run(engine))
    for each, end in seen_whole().ends.items():
        told = _documented(lambda each=each: end_of(engine, each))  # type: ignore[misc]
        is_open = is_forged or each in unproven or each in seen_whole().under_way
        if isinstance(told, ParkadeError) or is_open or told == end:
            continue
        assert is_told or part == SHARDS, (each, told, end)
        is_done = told[1] == end[1] == "done"
        # What was submitted again by an attempt that ran again may have other ids.
        is_another = told[3] not in (end[3], "ResultGone") and told[0] != "parent"
        assert not is_done or not is_another, (each, told, end)


def _shard_of(ticket_id: str) -> int:
    return shard_of(_known(ticket_id).part, SHARDS)


def _known(ticket_id: str) -> TicketId:
    known = parse_id(ticket_id)
    assert known is not None
    return known


class _Strict(logging.Handler):
    """Keeps the exceptions that the engine's own threads met and that are no error of a store."""

    def __init__(self) -> None:
        super().__init__(logging.WARNING)
        self.met: list[BaseException] = []

    def emit(self, record: logging.LogRecord) -> None:
        error = record.exc_info[1] if record.exc_info else None
        is_foreseen = isinstance(error, StoreError | DamagedTicket | LaneLost | ParkadeError)
        if error is not None and not is_foreseen and record.name != "parkade.handler":
            self.met.append(error)


@contextmanager
def _strict_log(is_forged: bool) -> Generator[None, None, None]:
    """Nothing unforeseen is met where a checksum tells of the harm."""
    strict, log = _Strict(), logging.getLogger("parkade")
    was = log.propagate
    log.addHandler(strict)
    log.propagate = False
    try:
        yield
    finally:
        log.removeHandler(strict)
        log.propagate = was
    if not is_forged and strict.met:
        raise strict.met[0]
