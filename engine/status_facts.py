"""What `parkade status` shows, as plain values: of a running engine, or of files that nobody runs.

From both: owner, counts, storage, dead groups, and what the house keeps, which is pauses and the
breakers that are not closed. What holds which ticket, which places are in use and which
breakers are closed is known to a running engine alone, since limits and breakers are in the code.
"""

from collections import Counter
from collections.abc import Mapping, MutableMapping, Sequence
from functools import partial
from typing import TYPE_CHECKING, Any

import msgspec

from parkade.dead_groups import count_groups
from parkade.desk import Desk
from parkade.durations import datetime_of
from parkade.errors import ParkadeError
from parkade.facts import owner_facts, plain
from parkade.finding import find
from parkade.guards import Pause
from parkade.house import HOUSE_NUMBER, HouseState, read_state
from parkade.limits import FIND_LIMIT_MAX
from parkade.onlooker import Onlooker
from parkade.shard.breaker import CLOSED, STATE_NAMES, Circuit, decode_circuit
from parkade.shard.lanes import Lane, Lanes
from parkade.stats import read_next_due
from parkade.store.disk import Disk
from parkade.store.errors import StoreError
from parkade.store.manifest import Manifest
from parkade.store.snapshot import Snapshot
from parkade.views import Stats

if TYPE_CHECKING:
    from parkade.engine import Engine
    from parkade.reader import Reader
    from parkade.runtime import Runtime

__all__ = [
    "AMBIGUOUS_MAX", "DEAD_GROUPS_MAX", "count_held", "engine_status", "files_status", "lanes_of",
]  # fmt: skip

DEAD_GROUPS_MAX = 10_000  # counted; with as many, nobody looks at each
AMBIGUOUS_MAX = FIND_LIMIT_MAX  # counted
DEAD_LOOKED_AT_MAX = 10_000  # for the ambiguous ones among them
LANES_MAX = 100_000  # looked at for what holds them: some two seconds, a slice at a time
LANES_SLICE = 2_000  # some 30 ms
_CALL = "status"
_Placed = tuple[Lanes, Lane]
_STATES = ("ready", "scheduled", "running", "done", "dead", "cancelled", "expired")


def engine_status(engine: "Engine") -> dict[str, Any]:
    """As a running engine has it. Raises `EngineClosed`, and `TimeoutError` when it is stuck."""
    desk = engine.desk(_CALL)
    runtime = desk.runtime
    directory = runtime.directory
    now_ms = engine.clock.now_ms()
    stats = engine.stats()
    return {
        **_named(directory.path, directory.manifest, now_ms),
        "owner": owner_facts(directory.lock.owner),
        **_counted(stats),
        "dead_groups": _dead_groups(desk, stats),
        "ambiguous": _ambiguous(desk, stats),
        "runs_nothing": runtime.attempts.runs_nothing or None,
        "zombies": stats.zombies,
        **_next_due(runtime, now_ms),
        **_standing(runtime),
        **_room(directory.disk, directory.path),
        "is_full": runtime.host.call(lambda: _is_full(runtime)),
        "commit_us": _commit_us(runtime),
    }


def files_status(disk: Disk, reader: "Reader") -> dict[str, Any]:
    """As the files have it. Raises what the reader raises."""
    now_ms = reader.clock.now_ms()
    stats = reader.stats()
    return {
        **_named(reader.path, reader.manifest, now_ms),
        "owner": None,
        **_counted(stats),
        "dead_groups": _dead_groups(reader.desk(_CALL), stats),
        "ambiguous": _ambiguous(reader.desk(_CALL), stats),
        "runs_nothing": None,
        "zombies": 0,
        "next_due_at": None,
        "none_due_before": None,
        "held": None,
        "held_is_cut": False,
        "places": None,
        "closed_breakers": None,
        **_house_of_files(disk, reader, now_ms),
        **_room(disk, reader.path),
        "is_full": None,
        "commit_us": None,
    }


def _named(path: str, manifest: Manifest, now_ms: int) -> dict[str, Any]:
    return {
        "directory": path,
        "format": manifest.format,
        "shards": manifest.shards,
        "created_by": manifest.created_by,
        "created_at": plain(datetime_of(manifest.created_at_ms)),
        "as_of": plain(datetime_of(now_ms)),
    }


def _counted(stats: Stats) -> dict[str, Any]:
    states = dict.fromkeys(_STATES, 0)
    for counts in stats.by_task.values():
        for state, count in counts.items():
            states[state] += count
    # By task all pending tickets count as scheduled.
    states["ready"], states["scheduled"] = stats.ready, stats.scheduled
    return {
        "states": states,
        "oldest_ready_age_ms": plain(stats.oldest_ready_age),
        "tasks": plain(stats.by_task),
        "storage": [plain(shard) for shard in stats.shards],
    }


def _dead_groups(desk: Desk, stats: Stats) -> int | None:
    """None: a shard cannot tell its own, which `storage` says."""
    if not stats.dead:
        return 0
    try:
        return count_groups(desk, _CALL, DEAD_GROUPS_MAX)
    except ParkadeError:
        return None


def _ambiguous(desk: Desk, stats: Stats) -> int | None:
    """How many dead tickets may have happened, `AMBIGUOUS_MAX` where there are as many or more.
    None: too many are dead to look at each, or a shard cannot tell."""
    if not stats.dead:
        return 0
    if stats.dead > DEAD_LOOKED_AT_MAX:
        return None
    try:
        page = desk.ask(find(desk, call=_CALL, state="dead", why="ambiguous", limit=AMBIGUOUS_MAX))
    except ParkadeError:
        return None
    return len(page.items)


def _room(disk: Disk, path: str) -> dict[str, Any]:
    try:
        return {"free_bytes": disk.free_space(path)}
    except OSError:
        return {"free_bytes": None}


# ------------------------------------------------------------------------------ a running engine


def _next_due(runtime: "Runtime", now_ms: int) -> dict[str, Any]:
    """When the next ticket comes due, as far ahead as memory sees, which is about a minute; or
    until when none does. Both None: the shards have yet to look."""
    due_ms, known_ms = read_next_due(runtime)
    is_known = due_ms is None and known_ms > now_ms
    return {"next_due_at": _time(due_ms), "none_due_before": _time(known_ms if is_known else None)}


def _standing(runtime: "Runtime") -> dict[str, Any]:
    """What holds tickets. A breaker that has moved is not told before that is durable: where the
    house cannot be written, none of this is."""

    def look() -> dict[str, Any]:
        guards, now_ms = runtime.attempts.admission.guards, runtime.host.now_ms
        kept = _house(guards.pauses, guards.circuits, now_ms)
        open_names = {breaker["name"] for breaker in kept["breakers"]}
        closed = sorted({*guards.declared, *guards.circuits} - open_names)
        return {"places": _places(runtime), **kept, "closed_breakers": closed}

    held = _held(runtime)
    try:
        return held | runtime.levers.ask(look, sees_breakers=True)
    except StoreError as error:
        unknown = {"held": None, "held_is_cut": False, "places": None, "closed_breakers": None}
        return unknown | _unknown(error)


def _held(runtime: "Runtime") -> dict[str, Any]:
    """Some lanes at a time, so that no pass of the core thread waits for long."""
    call = runtime.host.call
    lanes: list[_Placed] = call(lambda: lanes_of(runtime))
    held: Counter[tuple[str, str]] = Counter()
    for at in range(0, min(len(lanes), LANES_MAX), LANES_SLICE):
        some = lanes[at : min(at + LANES_SLICE, LANES_MAX)]
        call(partial(count_held, runtime, some, held))
    by_count = sorted(held.items(), key=lambda item: (-item[1], item[0]))
    told = [{"kind": kind, "name": name, "count": count} for (kind, name), count in by_count]
    return {"held": told, "held_is_cut": len(lanes) > LANES_MAX}


def lanes_of(runtime: "Runtime") -> list[_Placed]:
    """Every lane. On the core thread."""
    return [
        (shard.placement.lanes, lane)
        for shard in runtime.host.open_shards()
        for lane in shard.placement.lanes.by_key.values()
    ]


def count_held(
    runtime: "Runtime", some: Sequence[_Placed], held: MutableMapping[tuple[str, str], int]
) -> None:
    """Adds their due tickets, about, to the first thing that holds them. On the core thread."""
    host, admission = runtime.host, runtime.attempts.admission
    guards, kinds = admission.guards, runtime.kinds()
    times = host.now_ms, host.mono_ms
    for lanes, lane in some:
        task, target = lane.key[0], lane.key[1]
        rows = 0 if lane.number is None else lanes.rows.get(lane.number, 0)
        count = len(lane) + len(lane.ranks) + rows
        if not count:
            continue
        kind = kinds.get(task)
        by: tuple[str, str] | None = None
        if kind is None:
            by = "handler", task
        elif kind not in admission.places:
            by = "place", kind
        else:
            plan = guards.plan_of(task, target)
            hold = guards.task_hold(plan, *times) or guards.target_hold(plan, *times)
            by = None if hold is None else (hold.kind, hold.name)
        if by is not None:
            held[by] = held.get(by, 0) + count


def _places(runtime: "Runtime") -> dict[str, dict[str, int]]:
    admission = runtime.attempts.admission
    return {kind: {"used": admission.used[kind], "of": of} for kind, of in admission.places.items()}


def _commit_us(runtime: "Runtime") -> dict[str, int] | None:
    """How long the latest frames of all shards took to be on disk; None: none was written yet."""
    taken = sorted(us for shard in runtime.shards for us in shard.io.latencies.latest())
    if not taken:
        return None
    return {"p50": taken[len(taken) // 2], "p99": taken[len(taken) * 99 // 100]}


def _is_full(runtime: "Runtime") -> bool:
    return any(
        shard.room.is_full or shard.checkpointing.lacks_room for shard in runtime.host.open_shards()
    )


# ------------------------------------------------------------------------------------- the house


def _house(
    pauses: Mapping[str, Pause], circuits: Mapping[str, Circuit], now_ms: int
) -> dict[str, Any]:
    return {
        "pauses": [
            {"scope": scope, "until": _time(pause.until_ms), "reason": pause.reason}
            for scope, pause in sorted(pauses.items())
            if pause.until_ms is None or pause.until_ms > now_ms
        ],
        "breakers": [
            _breaker(name, circuit, now_ms)
            for name, circuit in sorted(circuits.items())
            if circuit.state != CLOSED
        ],
        "house_error": None,
    }


def _breaker(name: str, circuit: Circuit, now_ms: int) -> dict[str, Any]:
    circuit.look(now_ms)
    return {
        "name": name,
        "state": STATE_NAMES[circuit.state],
        "cause": circuit.cause,
        "opened_at": _time(circuit.opened_ms),
        "next_probe_at": _time(circuit.next_ms()),
    }


def _time(ms: int | None) -> Any:
    return None if ms is None else plain(datetime_of(ms))


def _house_of_files(disk: Disk, reader: "Reader", now_ms: int) -> dict[str, Any]:
    house = Onlooker(disk, reader.path, reader.manifest.salt, HOUSE_NUMBER, place="house")

    def see(snapshot: Snapshot) -> HouseState:
        state = read_state(snapshot)
        state.replay(house.frames(snapshot), house.journal, snapshot.lsn)
        return state

    try:
        with house.held(see) as state:
            circuits = {name: decode_circuit(row) for name, row in state.breakers.items()}
            return _house(state.pauses, circuits, now_ms)
    except (StoreError, msgspec.MsgspecError) as error:
        return _unknown(error)
    finally:
        house.close()


def _unknown(error: Exception) -> dict[str, Any]:
    return {"pauses": None, "breakers": None, "house_error": str(error)}
