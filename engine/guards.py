"""What may hold a whole lane, or a key: pauses, limits and breakers; counted for the whole engine.

Used by the core thread alone, save for `trips`. Which limits and which breaker a ticket is subject
to is read from the code of today (`Plan`), and from what operators set on top of it. Nothing here
knows lanes or shards: it is asked whether a (task, target) may start another attempt, told when one
starts and how it ends (docs/semantics.md, Limits, keys, order; Breakers).
"""

from collections.abc import Iterable, Mapping, Sequence
from hashlib import blake2b
from typing import TYPE_CHECKING, Any, NamedTuple, Protocol

import msgspec

from parkade.shard.breaker import (
    CLOSED,
    FAILURE,
    NEUTRAL,
    SUCCESS,
    Circuit,
    CircuitRules,
    Trial,
    decode_circuit,
)
from parkade.shard.commands import Outcome
from parkade.shard.limit import Bucket, Meter, Quota
from parkade.shard.ticket import Ticket

if TYPE_CHECKING:
    from parkade.policies import Breaker, Limit
    from parkade.tasks import Task

__all__ = ["Guards", "Hold", "Override", "Pause", "Permit", "Plan", "Registry", "decode_override"]

PROBE_LEASE_MS_MIN = 60_000  # a probe that has not ended by then is not waited for any longer
PLANS_MAX = 4_096  # of tasks and targets met lately; what is dropped is made anew
IDLE_METERS_MIN = 256  # so many are kept before the idle ones among them are looked for
_SUCCESSES = ("done", "result_lost")  # the work was done
_NO_LIMITS: tuple[Quota, ...] = ()


class Registry(Protocol):
    """The tasks of the code; `version` changes with every registration."""

    version: int

    def task_of(self, name: str) -> "Task[..., Any] | None": ...
    def all_tasks(self) -> "list[Task[..., Any]]": ...


class Hold(NamedTuple):
    """Why something may not start: `kind` is handler, pause, limit or breaker (or, for people,
    place, key, suspect, clock), `name` of what. It may change at a time by one of the two clocks,
    or by an event that concerns (kind, name)."""

    kind: str
    name: str
    wall_ms: int | None = None
    mono_ms: int | None = None


class Pause(msgspec.Struct, array_like=True, frozen=True, forbid_unknown_fields=True):
    """`until_ms` None: until it is taken back."""

    until_ms: int | None = None
    reason: str = ""


class Override(msgspec.Struct, array_like=True, frozen=True, forbid_unknown_fields=True):
    """Numbers that an operator set for one scope, in place of the code's; in force as long as the
    code says what it said then (`code`)."""

    concurrency: int
    starts: int
    span_ms: int
    code: bytes

    @property
    def quotas(self) -> tuple[Quota, ...]:
        return (Quota(self.concurrency, self.starts, self.span_ms, self.starts),)


encode_override = msgspec.msgpack.Encoder().encode
decode_override = msgspec.msgpack.Decoder(Override).decode


class Plan(NamedTuple):
    """What the tickets of one (task, target) are subject to. `task` is the registered name."""

    task: str
    target: str | None
    scopes: tuple[str, ...]  # of the task, and of the target if there is one
    task_quotas: tuple[Quota, ...]
    target_quotas: tuple[Quota, ...]
    key_quotas: tuple[Quota, ...]
    breaker: str | None
    is_guarded: bool  # the code asks for a breaker; else only operators open one
    has_limits: bool
    rules: CircuitRules
    lease_ms: int


NO_TRIAL = Trial()


class Permit(msgspec.Struct, gc=False, eq=False):
    """What one attempt has in hand: its place, what its limits count, its breaker's trial."""

    shard: int
    serial: int
    kind: str
    plan: Plan
    key: str | None
    taken: tuple[Bucket, ...] = ()
    trial: Trial = NO_TRIAL
    is_suspect: bool = False
    is_plain: bool = False  # nothing but its place, and that its task has one more, is in hand


class Guards:
    """The pauses, meters and breakers of an engine. Times: `now_ms` is the wall clock's, `mono_ms`
    the monotonic one's. Rates begin empty at `mono_ms`."""

    def __init__(
        self,
        registry: Registry | None = None,
        mono_ms: int = 0,
        *,
        pauses: Mapping[str, Pause] | None = None,
        breakers: Mapping[str, bytes] | None = None,
        overrides: Mapping[str, bytes] | None = None,
    ) -> None:
        self._registry = registry
        self._since_ms = mono_ms
        self.pauses = dict(pauses or {})
        self.circuits = {name: decode_circuit(row) for name, row in (breakers or {}).items()}
        self.overrides = {scope: decode_override(row) for scope, row in (overrides or {}).items()}
        self.meters: dict[str, Meter] = {}  # by scope
        self.key_meters: dict[str, Meter] = {}
        self.on_trial: dict[str, int] = {}  # breaker -> attempts that will report to it
        self.abandoned: list[str] = []  # breakers let go that were not closed: their end is to tell
        self.rules: dict[str, CircuitRules] = {}  # of the breakers that plans have named
        self.declared: set[str] = set()  # those among them that the code asks for
        self._plans: dict[tuple[str, str | None], Plan] = {}
        self._by_target: dict[str, list[Task[..., Any]]] = {}
        self._version = -1
        self._meters_kept = IDLE_METERS_MIN

    # ---------------------------------------------------------------------------------- plans

    def is_outdated(self) -> bool:
        """Whether tasks have been registered since the last `renew`."""
        return self._registry is not None and self._registry.version != self._version

    def renew(self) -> None:
        """Read the code anew: plans that were handed out are those of before."""
        self._drop_plans()
        if self._registry is None:
            return
        self._version = self._registry.version
        by_target: dict[str, list[Task[..., Any]]] = {}
        for task in self._registry.all_tasks():
            target = task.definition.constant_target
            if target is not None:
                by_target.setdefault(target, []).append(task)
        self._by_target = by_target

    def plan_of(self, task_name: str, target: str | None) -> Plan:
        plan = self._plans.get((task_name, target))
        if plan is None:
            if len(self._plans) >= PLANS_MAX:
                self._drop_plans()
            plan = self._plans[task_name, target] = self._made(task_name, target)
        return plan

    def _drop_plans(self) -> None:
        """The numbers of breakers go with them, save of those that are there."""
        self._plans.clear()
        kept = [name for name in self.rules if name in self.circuits]
        self.rules = {name: self.rules[name] for name in kept}
        self.declared.intersection_update(kept)

    def _made(self, task_name: str, target: str | None) -> Plan:
        task = self._task(task_name)
        name = self.name_of(task_name)
        own: Sequence[Limit] = () if task is None else task.settings.limits
        scopes = (f"task:{name}",) if target is None else (f"task:{name}", f"target:{target}")
        task_quotas = self._quotas(scopes[0], _of(own, "task"))
        target_quotas = _NO_LIMITS
        if target is not None:
            others = [
                limit
                for other in self._by_target.get(target, ())
                for limit in other.settings.limits
            ]
            target_quotas = self._quotas(f"target:{target}", _of([*own, *others], "target"))
        spec = self._breaker_of(task, target)
        breaker = target if spec is None else spec.name or target or name
        rules = _rules_of(spec)
        if breaker is not None:
            self.rules[breaker] = rules
            if spec is not None:
                self.declared.add(breaker)
        timeout_ms = 0 if task is None else task.timeout_ms or 0
        lease_ms = max(PROBE_LEASE_MS_MIN, rules.open_for_ms, timeout_ms + 1_000)
        key_quotas = _of(own, "key")
        return Plan(
            name, target, scopes, task_quotas, target_quotas, key_quotas, breaker, spec is not None,
            bool(task_quotas or target_quotas), rules, lease_ms,
        )  # fmt: skip

    def name_of(self, task_name: str) -> str:
        """Of a former name the one of today."""
        task = self._task(task_name)
        return task_name if task is None else task.name

    def _task(self, name: str) -> "Task[..., Any] | None":
        return None if self._registry is None else self._registry.task_of(name)

    def _breaker_of(self, task: "Task[..., Any] | None", target: str | None) -> "Breaker | None":
        """The task's own, or that of another task which always has the same target."""
        if task is not None and task.settings.breaker is not None:
            return task.settings.breaker
        if target is not None:
            for other in self._by_target.get(target, ()):
                if other.settings.breaker is not None:
                    return other.settings.breaker
        return None

    def _quotas(self, scope: str, declared: tuple[Quota, ...]) -> tuple[Quota, ...]:
        override = self.overrides.get(scope)
        if override is None or not self.is_in_force(scope, override):
            return declared
        return override.quotas

    def max_elapsed_ms(self, ticket: Ticket) -> int | None:
        """How long after its first due an attempt may still be made, by the code of today."""
        task = self._task(ticket.task)
        return None if task is None else task.policy.max_elapsed_ms

    def is_in_force(self, scope: str, override: Override) -> bool:
        return override.code == self.code_of(scope)

    def code_of(self, scope: str) -> bytes:
        """What the code of today says about a scope, as a digest: the same code gives the same,
        whatever has run yet."""
        kind, _, name = scope.partition(":")
        said: set[Quota] = set()
        for task in () if self._registry is None else self._registry.all_tasks():
            if kind == "task" and task.name != name:
                continue
            target = task.definition.constant_target
            if kind == "target" and target is not None and target != name:
                continue
            said.update(_of(task.settings.limits, kind))
        return blake2b(repr(sorted(said)).encode(), digest_size=8).digest()

    def scopes(self) -> set[str]:
        """Those that have limits: of registered tasks, of targets met so far, and set ones."""
        found = {*self.overrides, *(scope for scope in self.meters)}
        for task in () if self._registry is None else self._registry.all_tasks():
            found.add(f"task:{task.name}")
            if task.definition.constant_target is not None:
                found.add(f"target:{task.definition.constant_target}")
        return found

    def quotas_of(self, scope: str) -> tuple[tuple[Quota, ...], bool]:
        """The limits of a scope, and whether they were set in place of the code's."""
        override = self.overrides.get(scope)
        if override is not None and self.is_in_force(scope, override):
            return override.quotas, True
        kind, _, name = scope.partition(":")
        said: dict[Quota, None] = {}
        for plan in self._plans.values():
            if kind == "target" and plan.target == name:
                said.update(dict.fromkeys(plan.target_quotas))
        if kind == "task":
            task = self._task(name)
            said.update(dict.fromkeys(_of(() if task is None else task.settings.limits, kind)))
        elif kind == "target":
            for task in self._by_target.get(name, ()):
                said.update(dict.fromkeys(_of(task.settings.limits, kind)))
        return tuple(said), False

    # ---------------------------------------------------------------------------------- holds

    def task_hold(self, plan: Plan, now_ms: int, mono_ms: int) -> Hold | None:
        """What holds all tickets of the task."""
        scope = plan.scopes[0]
        return self._pause(scope, now_ms) or self._limit(scope, plan.task_quotas, mono_ms)

    def target_hold(self, plan: Plan, now_ms: int, mono_ms: int) -> Hold | None:
        """What holds the tickets of the task that have this target."""
        hold = None
        if plan.target is not None:
            scope = plan.scopes[1]
            hold = self._pause(scope, now_ms) or self._limit(scope, plan.target_quotas, mono_ms)
        return hold or self.breaker_hold(plan, now_ms)

    def is_counted(self, plan: Plan) -> bool:
        """Whether a start may hold the next one of this plan."""
        circuit = None if plan.breaker is None else self.circuits.get(plan.breaker)
        return plan.has_limits or (circuit is not None and circuit.state != CLOSED)

    def is_plain(self, plan: Plan) -> bool:
        """Whether of a start, if it has no key, nothing is noted but that there is one more."""
        return plan.target is None and plan.breaker is None and not plan.has_limits

    def breaker_hold(self, plan: Plan, now_ms: int) -> Hold | None:
        name = plan.breaker
        circuit = None if name is None else self.circuits.get(name)
        if name is None or circuit is None or circuit.admits(plan.rules, now_ms):
            return None
        return Hold("breaker", name, wall_ms=circuit.next_ms())

    def all_holds(self, plan: Plan, key: str | None, now_ms: int, mono_ms: int) -> list[Hold]:
        """Each thing that holds a ticket now, for people."""
        found = [self._pause(f"task:{plan.task}", now_ms)]
        found.append(self._limit(f"task:{plan.task}", plan.task_quotas, mono_ms))
        if plan.target is not None:
            scope = f"target:{plan.target}"
            found += [self._pause(scope, now_ms), self._limit(scope, plan.target_quotas, mono_ms)]
        found.append(self.breaker_hold(plan, now_ms))
        if key is not None:
            wait_ms = self.key_wait_ms(plan, key, mono_ms)
            found.append(
                Hold("limit", f"key:{key}", mono_ms=mono_ms + wait_ms) if wait_ms else None
            )
        return [hold for hold in found if hold is not None]

    def set_pause(self, scope: str, pause: Pause, settled_ms: int) -> None:
        """Paused from now on; those that are over are let go."""
        for other, old in list(self.pauses.items()):
            if old.until_ms is not None and old.until_ms <= settled_ms:
                del self.pauses[other]
        self.pauses[scope] = pause

    def _pause(self, scope: str, now_ms: int) -> Hold | None:
        pause = self.pauses.get(scope)
        if pause is None or (pause.until_ms is not None and pause.until_ms <= now_ms):
            return None
        return Hold("pause", scope, wall_ms=pause.until_ms)

    def _limit(self, scope: str, quotas: tuple[Quota, ...], mono_ms: int) -> Hold | None:
        if not quotas:
            return None
        meter = self.meters.get(scope)
        if meter is None:
            meter = self._meter(self.meters, scope, mono_ms)
        wait_ms = meter.wait_ms(quotas, mono_ms)
        if wait_ms == 0:
            return None
        return Hold("limit", scope, mono_ms=None if wait_ms is None else mono_ms + wait_ms)

    # ----------------------------------------------------------------------------------- keys

    def key_quotas_of(self, plan: Plan, key: str) -> tuple[Quota, ...]:
        """What counts for one key: the task's limits, or what was set for this key."""
        if self.overrides:
            return self._quotas(f"key:{key}", plan.key_quotas)
        return plan.key_quotas

    def key_places(self, plan: Plan, key: str) -> int:
        """How many tickets of a key may run at once, as far as this task has a say: one, unless a
        limit says more."""
        counts = [quota.concurrency for quota in self.key_quotas_of(plan, key)]
        return min((count for count in counts if count), default=1)

    def key_wait_ms(self, plan: Plan, key: str, mono_ms: int) -> int:
        """How long until the key's rates let one start; 0: now."""
        rates = _rates(self.key_quotas_of(plan, key))
        if not rates:
            return 0
        return self._meter(self.key_meters, key, mono_ms).wait_ms(rates, mono_ms) or 0

    # ------------------------------------------------------------------------ starts and ends

    def begin(self, permit: Permit, now_ms: int, mono_ms: int) -> None:
        """An attempt starts, and nothing holds it."""
        plan = permit.plan
        if permit.key is None and plan.target is None and plan.breaker is None:
            meter = self.meters.get(plan.scopes[0])
            if meter is not None and not plan.has_limits:
                meter.running += 1
                return
        for scope, quotas in zip(plan.scopes, (plan.task_quotas, plan.target_quotas), strict=False):
            meter = self.meters.get(scope) or self._meter(self.meters, scope, mono_ms)
            if quotas:
                permit.taken = (*permit.taken, *meter.take(quotas, mono_ms))
            else:
                meter.running += 1
        if permit.key is not None and (plan.key_quotas or self.overrides):
            rates = _rates(self.key_quotas_of(plan, permit.key))
            if rates:
                meter = self._meter(self.key_meters, permit.key, mono_ms)
                permit.taken = (*permit.taken, *meter.take(rates, mono_ms))
                meter.end()  # who runs is counted by the shard
        name = plan.breaker
        if name is not None:
            self.on_trial[name] = self.on_trial.get(name, 0) + 1
            circuit = self.circuits.get(name)
            if circuit is not None:
                permit.trial = circuit.begin(now_ms, plan.lease_ms)

    def begin_plain(self, plan: Plan, count: int, mono_ms: int) -> None:
        """`begin` of so many that have no key, under a plan of which `is_plain` holds."""
        self._meter(self.meters, plan.scopes[0], mono_ms).running += count

    def end_plain(self, plan: Plan, count: int) -> tuple[str, str]:
        """`end` of so many of them."""
        return self._end(plan.scopes[0], count)

    def undo(self, permit: Permit) -> None:
        """The attempt never began: its rates have their tokens back. `end` comes as well."""
        for bucket in permit.taken:
            bucket.give_back()
        permit.taken = ()

    def end(self, permit: Permit, now_ms: int) -> list[tuple[str, str]]:
        """The attempt has ended, however. What it was counted by, as (kind, name)."""
        plan = permit.plan
        freed = [self._end(scope) for scope in plan.scopes]
        name = plan.breaker
        if name is not None:
            left = self.on_trial[name] - 1
            if left:
                self.on_trial[name] = left
            else:
                del self.on_trial[name]
            circuit = self.circuits.get(name)
            if circuit is not None:
                if permit.trial.probe:
                    # After an outcome this changes nothing; else the probe's turn is free again.
                    circuit.report(plan.rules, permit.trial, NEUTRAL, now_ms)
                    freed.append(("breaker", name))
                if not left and circuit.is_idle(plan.rules, now_ms):
                    del self.circuits[name]
        return freed

    def report(self, permit: Permit, outcome: Outcome, now_ms: int) -> bool:
        """How it ended; whether its breaker opened or closed by it. `end` comes afterwards."""
        plan = permit.plan
        name = plan.breaker
        if name is None:
            return False
        self._look_at_one(now_ms)
        verdict = FAILURE if outcome.strikes else NEUTRAL
        if outcome.kind in _SUCCESSES:
            verdict = SUCCESS
        circuit = self.circuits.get(name)
        if not plan.is_guarded and (circuit is None or circuit.state == CLOSED):
            return False
        if circuit is None:
            if verdict == NEUTRAL or (verdict == SUCCESS and plan.rules.rate is None):
                return False
            circuit = self.circuits[name] = Circuit()
        cause = "" if outcome.error is None else outcome.error.type
        return circuit.report(plan.rules, permit.trial, verdict, now_ms, cause)

    def trips(self, task: "Task[..., Any]", target: str | None, error: BaseException) -> bool:
        """Whether a breaker counts this error as a failure of the target. Any thread."""
        spec = self._breaker_of(task, target)
        return isinstance(error, Exception if spec is None else spec.trip_on)

    # --------------------------------------------------------------------------------- meters

    def _end(self, scope: str, count: int = 1) -> tuple[str, str]:
        meter = self.meters[scope]
        meter.end(count)
        if not meter.running and not meter.buckets:
            del self.meters[scope]
        return "limit", scope

    def _meter(self, meters: dict[str, Meter], name: str, mono_ms: int) -> Meter:
        meter = meters.get(name)
        if meter is None:
            if len(meters) >= self._meters_kept:
                self._drop_idle(mono_ms)
            meter = meters[name] = Meter(self._since_ms)
        return meter

    def _drop_idle(self, mono_ms: int) -> None:
        """Now and then, so that each one made pays for a look at a few."""
        for meters in (self.meters, self.key_meters):
            for name in [name for name, meter in meters.items() if meter.is_idle(mono_ms)]:
                del meters[name]
        most = max(len(self.meters), len(self.key_meters))
        self._meters_kept = max(IDLE_METERS_MIN, 2 * most)

    def _look_at_one(self, now_ms: int) -> None:
        """Drops a breaker that says no more than none would, or that nobody has tried for long:
        with each outcome one is looked at, in turn, so that none stays for long."""
        name = next(iter(self.circuits), None)
        if name is None:
            return
        circuit = self.circuits.pop(name)
        rules = self.rules.get(name, CircuitRules())
        if not self.on_trial.get(name):
            if circuit.is_idle(rules, now_ms):
                return
            if circuit.is_abandoned(rules, now_ms):
                self.abandoned.append(name)
                return
        self.circuits[name] = circuit

    def take_abandoned(self) -> list[str]:
        """The breakers that were let go since the last time: closed, as a new one is."""
        abandoned, self.abandoned = self.abandoned, []
        return abandoned


def _of(limits: "Iterable[Limit]", per: str) -> tuple[Quota, ...]:
    """The numbers of those limits that are counted per task, target or key; equal ones once."""
    found: dict[Quota, None] = {}
    for limit in limits:
        if limit.per == per:
            starts, span_ms = limit.rate or (0, 0)
            burst = (limit.burst or starts) if starts else 0
            found[Quota(limit.concurrency or 0, starts, span_ms, burst)] = None
    return tuple(found)


def _rates(quotas: Iterable[Quota]) -> tuple[Quota, ...]:
    return tuple(quota._replace(concurrency=0) for quota in quotas if quota.starts)


def _rules_of(spec: "Breaker | None") -> CircuitRules:
    if spec is None:
        return CircuitRules()
    return CircuitRules(
        spec.failures, spec.window_ms, spec.rate, spec.min_calls, spec.open_for_ms,
        spec.max_open_for_ms, spec.probes,
    )  # fmt: skip
