"""What operators turn: breakers, limits and pauses. Blocking calls, seldom made.

Each returns when its change is durable, and in force before that is told. On an event loop:
`await asyncio.to_thread(engine.pause, task="mail")`.
"""

import logging
from collections.abc import Callable, Sequence
from datetime import datetime
from typing import TYPE_CHECKING, Any, TypeVar

from parkade.asking import check_not_on_loop
from parkade.checks import check_count, check_text, refuse
from parkade.durations import Duration, at_ms, datetime_of, parse_duration_ms
from parkade.errors import ConfigError
from parkade.guards import Guards
from parkade.levers import Levers
from parkade.policies import checked_rate
from parkade.shard.breaker import CLOSED, STATE_NAMES, CircuitRules
from parkade.shard.limit import Quota
from parkade.store.errors import StoreError
from parkade.telling import tell
from parkade.translating import shard_error
from parkade.views import BreakerState, LimitState

if TYPE_CHECKING:
    from parkade.engine import Engine
    from parkade.runtime import Runtime

__all__ = ["Breakers", "Limits", "close_breaker", "pause", "resume"]

T = TypeVar("T")
KINDS = ("task", "target", "key")
_log = logging.getLogger("parkade.engine")


class Breakers:
    """`engine.breakers`: those that are declared by tasks met so far, and those that are not
    closed."""

    def __init__(self, engine: "Engine") -> None:
        self._engine = engine

    def __getitem__(self, name: str) -> BreakerState:
        """One breaker; a name that nothing is known of is a closed one."""
        levers, guards = _levers(self._engine, "engine.breakers")

        def look() -> BreakerState:
            return self._state(guards, name)

        return _told(self._engine, lambda: levers.ask(look, sees_breakers=True))

    def list(self) -> Sequence[BreakerState]:
        """All of them, by name."""
        levers, guards = _levers(self._engine, "engine.breakers.list")

        def look() -> list[BreakerState]:
            names = sorted({*guards.rules, *guards.circuits})
            declared = [
                name for name in names if name in guards.declared or name in guards.circuits
            ]
            return [self._state(guards, name) for name in declared]

        return _told(self._engine, lambda: levers.ask(look, sees_breakers=True))

    def force_open(self, name: str, *, for_: Duration | None = None, reason: str = "") -> None:
        """Starts nothing more against the target, for so long or until `close`; then probes go
        first. Raises `ConfigError`, `StorageError`."""
        call = "engine.breakers.force_open"
        check_text(call, "name", name)
        for_ms = None if for_ is None else parse_duration_ms(for_, what=f"{call}(for_)")
        if for_ms == 0:
            refuse(call, "for_", for_, "a duration above zero, or leave it out")
        levers = _changing(self._engine, call)
        _told(self._engine, lambda: levers.force_open(name, for_ms, _reason(call, reason)))

    def close(self, name: str) -> None:
        """Lets attempts through again, whatever opened it. Raises `StorageError`."""
        close_breaker(self._engine, name)

    def _state(self, guards: Guards, name: str) -> BreakerState:
        runtime = self._engine.desk("engine.breakers").runtime
        now_ms = runtime.host.now_ms
        circuit = guards.circuits.get(name)
        if circuit is None:
            return BreakerState(name, "closed", 0, None, None, 0)
        circuit.look(now_ms)
        next_ms = circuit.next_ms()
        is_closed = circuit.state == CLOSED
        return BreakerState(
            name=name,
            state=STATE_NAMES[circuit.state],
            failures=circuit.failures(guards.rules.get(name, CircuitRules()), now_ms),
            opened_at=None if is_closed else datetime_of(circuit.opened_ms),
            next_probe_at=None if next_ms is None else datetime_of(next_ms),
            held=0 if is_closed else _held_by(runtime, guards, name),
        )


class Limits:
    """`engine.limits`. A scope is `task:NAME`, `target:NAME` or `key:NAME`."""

    def __init__(self, engine: "Engine") -> None:
        self._engine = engine

    def set(
        self,
        scope: str,
        *,
        concurrency: int | None = None,
        rate: tuple[int, Duration] | None = None,
    ) -> None:
        """Puts these numbers in the place of all that the code says for the scope, now and after a
        restart, until the code says something else. With neither, the code's hold again.

        Raises `ConfigError`, `StorageError`.
        """
        call = "engine.limits.set"
        check_text(call, "scope", scope, bytes_max=300)
        kind, _, name = scope.partition(":")
        if kind not in KINDS or not name:
            refuse(call, "scope", scope, '"task:NAME", "target:NAME" or "key:NAME"')
        count = 0 if concurrency is None else check_count(call, "concurrency", concurrency)
        starts, span_ms = (0, 0) if rate is None else checked_rate(call, rate)
        levers = _changing(self._engine, call)
        if kind == "task":
            task = self._engine.task_of(name)
            scope = scope if task is None else f"task:{task.name}"
        _told(self._engine, lambda: levers.set_limit(scope, count, starts, span_ms))

    def list(self) -> Sequence[LimitState]:
        """Every limit of a registered task, of a target met so far, and every one that was set."""
        levers, guards = _levers(self._engine, "engine.limits.list")
        return _told(self._engine, lambda: levers.ask(lambda: self._states(guards)))

    def _states(self, guards: Guards) -> Sequence[LimitState]:
        found: Sequence[LimitState] = ()
        for scope in sorted(guards.scopes()):
            quotas, is_set = guards.quotas_of(scope)
            meter = guards.meters.get(scope)
            running = 0 if meter is None else meter.running
            found = (*found, *(_limit_state(scope, quota, running, is_set) for quota in quotas))
        return found


def close_breaker(engine: "Engine", name: str) -> bool:
    """See `Breakers.close`. Whether it was not closed already."""
    call = "engine.breakers.close"
    check_text(call, "name", name)
    levers = _changing(engine, call)
    return _told(engine, lambda: levers.close(name))


def pause(
    engine: "Engine", *, task: str | None, target: str | None, until: datetime | None, reason: str
) -> bool:
    """See `Engine.pause`. False: nobody knows a task of that name, which the log says."""
    call = "engine.pause"
    scope = _scope(engine, call, task, target)
    until_ms = None if until is None else at_ms(until, what=f"{call}(until)")
    levers = _changing(engine, call)
    _told(engine, lambda: levers.pause(scope, until_ms, _reason(call, reason)))
    is_known = task is None or engine.task_of(task) is not None or task in engine.stats().by_task
    if not is_known:
        tell(
            _log,
            logging.WARNING,
            'engine.pause(task="%s"): no task of this name is registered here, and no ticket has '
            "it. What comes under it is held",
            task,
        )
    return is_known


def resume(engine: "Engine", *, task: str | None, target: str | None) -> bool:
    """See `Engine.resume`. Whether it was paused."""
    call = "engine.resume"
    scope = _scope(engine, call, task, target)
    levers = _changing(engine, call)
    return _told(engine, lambda: levers.resume(scope))


def _scope(engine: "Engine", call: str, task: str | None, target: str | None) -> str:
    if (task is None) == (target is None):
        raise ConfigError(f"{call}(): give task= or target=, one of them")
    if target is not None:
        return f"target:{check_text(call, 'target', target)}"
    found = engine.task_of(check_text(call, "task", task))
    return f"task:{task if found is None else found.name}"


def _held_by(runtime: "Runtime", guards: Guards, breaker: str) -> int:
    """How many due tickets wait behind a breaker, about: those in memory and the rows of their
    lanes. Walks all lanes."""
    held = 0
    for shard in runtime.host.open_shards():
        lanes = shard.placement.lanes
        for lane in lanes.by_key.values():
            if guards.plan_of(lane.key[0], lane.key[1]).breaker == breaker:
                rows = 0 if lane.number is None else lanes.rows.get(lane.number, 0)
                held += len(lane) + len(lane.ranks) + rows
    return held


def _limit_state(scope: str, quota: Quota, running: int, is_set: bool) -> LimitState:
    rate = (quota.starts, quota.span_ms) if quota.starts else None
    burst = quota.burst if quota.starts else None
    return LimitState(scope, quota.concurrency or None, rate, burst, running, is_set)


def _levers(engine: "Engine", call: str) -> tuple[Levers, Guards]:
    runtime = engine.desk(call).runtime
    return runtime.levers, runtime.attempts.admission.guards


def _changing(engine: "Engine", call: str) -> Levers:
    check_not_on_loop(call, "asyncio.to_thread")
    return _levers(engine, call)[0]


def _told(engine: "Engine", ask: Callable[[], T]) -> T:
    try:
        return ask()
    except StoreError as error:
        raise shard_error(engine.path, None, error) from error


def _reason(call: str, reason: Any) -> str:
    if not isinstance(reason, str):
        refuse(call, "reason", reason, f"a text, not {type(reason).__name__}")
    return reason if reason.isascii() else reason.encode("utf-8", "backslashreplace").decode()
