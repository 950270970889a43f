"""Limits in a whole engine: who waits, until when, and what operators change."""

import asyncio
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

import pytest

from kit.engines import hold_handlers, make, rig, runtime_of, when
from kit.faulty import FaultyDisk
from parkade import Breaker, ConfigError, Limit, LimitState, RetryPolicy, Snooze
from parkade.testing import TestEngine


@pytest.fixture
def engine() -> Iterator[TestEngine]:
    with TestEngine(async_limit=50) as engine:
        yield engine


def test_a_rate_begins_empty_and_lets_one_start_when_its_token_has_come(
    engine: TestEngine,
) -> None:
    started: list[int] = []
    opened_ms = engine.clock.now_ms()

    @engine.task(limits=[Limit(rate=(4, "1s"), burst=1)])
    def call() -> None:
        started.append(engine.clock.now_ms() - opened_ms)

    engine.submit_many(call.call() for _ in range(5))
    assert engine.run_until_idle().done == 0
    assert engine.run_until_idle(skip_time=True).done == 5
    assert started == [250, 500, 750, 1_000, 1_250]
    # What was not used is kept, up to the burst.
    engine.clock.advance("1m")
    engine.submit_many(call.call() for _ in range(2))
    assert engine.run_until_idle().done == 1


def test_a_burst_starts_together_and_no_more(engine: TestEngine) -> None:
    @engine.task(limits=[Limit(rate=(10, "10s"), burst=3)])
    def call() -> None: ...

    engine.clock.advance("1h")
    engine.submit_many(call.call() for _ in range(9))
    assert engine.run_until_idle().done == 3
    engine.clock.advance("2s")
    assert engine.run_until_idle().done == 2


def test_of_several_limits_the_most_restrictive_counts(engine: TestEngine) -> None:
    @engine.task(limits=[Limit(rate=(100, "1s")), Limit(rate=(5, "1m")), Limit(concurrency=50)])
    def call() -> None: ...

    engine.clock.advance("1h")
    engine.submit_many(call.call() for _ in range(9))
    assert engine.run_until_idle().done == 5
    engine.clock.advance("12s")
    assert engine.run_until_idle().done == 1


def test_a_rate_counts_over_all_shards_and_a_restart_begins_it_empty(tmp_path: Path) -> None:
    engine = TestEngine(tmp_path / "data", shards=4)

    @engine.task(limits=[Limit(rate=(6, "1m"))])
    def call() -> None: ...

    with engine:
        engine.clock.advance("1h")
        engine.submit_many(call.call() for _ in range(10))
        assert engine.run_until_idle().done == 6
        engine.crash()
        engine.clock.advance("9s")
        assert engine.run_until_idle().done == 0
        engine.clock.advance("1s")
        assert engine.run_until_idle().done == 1


def test_a_limited_task_holds_back_no_other(engine: TestEngine) -> None:
    ran: list[str] = []

    @engine.task(limits=[Limit(rate=(1, "1h"))])
    def limited() -> None:
        ran.append("limited")

    @engine.task
    def free() -> None:
        ran.append("free")

    engine.submit_many(limited.options(priority=5).call() for _ in range(2_000))
    free.submit()
    engine.run_until_idle()
    assert ran == ["free"]


def test_a_limit_of_a_target_counts_all_tasks_that_always_call_it(engine: TestEngine) -> None:
    ran: list[str] = []

    @engine.task(target="psp", limits=[Limit(rate=(2, "1m"), per="target")])
    def charge() -> None:
        ran.append("charge")

    @engine.task(target="psp")
    def refund() -> None:
        ran.append("refund")

    engine.clock.advance("1h")
    for _ in range(3):
        charge.submit()
        refund.submit()
        charge.options(target="other").submit()
    assert engine.run_until_idle().done == 4  # two of each target
    assert ran == ["charge", "refund", "charge", "charge"]


def test_a_limit_of_a_target_is_one_for_each_target(engine: TestEngine) -> None:
    hosts: list[str] = []

    @engine.task(target="host-{host}", limits=[Limit(rate=(1, "1m"), per="target")])
    def fetch(host: str) -> None:
        hosts.append(host)

    engine.clock.advance("1h")
    for _ in range(3):
        for host in ("a", "b", "c"):
            fetch.submit(host)
    engine.run_until_idle()
    assert hosts == ["a", "b", "c"]


def test_a_concurrency_is_never_exceeded_and_always_used(engine: TestEngine) -> None:
    inside = most = 0

    @engine.task(limits=[Limit(concurrency=3)])
    async def call() -> None:
        nonlocal inside, most
        inside += 1
        most = max(most, inside)
        await asyncio.sleep(0)
        inside -= 1

    engine.submit_many(call.call() for _ in range(20))
    assert engine.run_until_idle().done == 20
    assert (most, inside) == (3, 0)


def test_a_key_may_run_more_than_one_where_its_limit_says_so(engine: TestEngine) -> None:
    most: Counter[str] = Counter()
    inside: Counter[str] = Counter()

    async def work(name: str) -> None:
        inside[name] += 1
        most[name] = max(most[name], inside[name])
        await asyncio.sleep(0)
        inside[name] -= 1

    @engine.task(limits=[Limit(concurrency=2, per="key")])
    async def wide() -> None:
        await work("wide")

    @engine.task
    async def narrow() -> None:
        await work("narrow")

    for _ in range(6):
        wide.options(key="w").submit()
        narrow.options(key="n").submit()
    assert engine.run_until_idle().done == 12
    assert most == {"wide": 2, "narrow": 1}


def test_a_rate_of_a_key_holds_that_key_alone(engine: TestEngine) -> None:
    ran: list[str] = []

    @engine.task(key="{who}", limits=[Limit(rate=(1, "10s"), per="key")])
    def call(who: str) -> None:
        ran.append(who)

    engine.clock.advance("1h")
    for who in ("a", "a", "a", "b", "a", "c"):
        call.submit(who)
    engine.run_until_idle()
    assert ran == ["a", "b", "c"]
    engine.clock.advance("10s")
    engine.run_until_idle()
    assert ran == ["a", "b", "c", "a"]
    assert engine.run_until_idle(skip_time=True).done == 2


def test_waiting_for_a_limit_spends_no_attempt_but_time_goes_on(engine: TestEngine) -> None:
    @engine.task(limits=[Limit(rate=(1, "1h"))], retry=RetryPolicy(2, max_elapsed="30m"))
    def call() -> None: ...

    late = call.submit()
    expiring = call.options(expires="10m").submit()
    engine.clock.advance("11m")
    engine.run_until_idle()
    assert (expiring.info().state, late.info().state) == ("expired", "ready")
    engine.clock.advance("1h")
    engine.run_until_idle()
    assert (late.info().state, late.info().dead_reason) == ("dead", "late")
    assert late.info().attempts == 0


def test_what_ends_in_any_way_gives_its_permits_back(engine: TestEngine) -> None:
    @engine.task(limits=[Limit(concurrency=1)], retry=1)
    def end(how: str) -> object:
        if how == "raise":
            raise RuntimeError(how)
        if how == "snooze":
            raise Snooze("1h")
        return object() if how == "unstorable" else None

    for how in ("raise", "snooze", "unstorable", "return"):
        end.submit(how)
    broken = end.submit("gone")
    broken.cancel()
    drained = engine.run_until_idle()
    assert (drained.done, drained.dead, drained.snoozed) == (1, 2, 1)
    [state] = [each for each in engine.limits.list() if each.scope == "task:end"]
    assert (state.running, state.concurrency) == (0, 1)


def test_a_limit_is_changed_live_and_the_change_outlives_a_crash(tmp_path: Path) -> None:
    engine = TestEngine(tmp_path / "data")

    @engine.task(limits=[Limit(rate=(1, "1h"))])
    def call() -> None: ...

    with engine:
        engine.submit_many(call.call() for _ in range(6))
        assert engine.run_until_idle().done == 0
        engine.limits.set("task:call", rate=(60, "1m"))
        engine.clock.advance("2s")
        assert engine.run_until_idle().done == 2
        [state] = engine.limits.list()
        assert state == LimitState("task:call", None, (60, 60_000), 60, 0, True)
        engine.crash()
        engine.clock.advance("1s")
        assert engine.run_until_idle().done == 1
        engine.limits.set("task:call")
        engine.clock.advance("10s")
        assert engine.run_until_idle().done == 0
        [state] = engine.limits.list()
        assert (state.rate, state.is_overridden) == ((1, 3_600_000), False)


def test_what_was_set_holds_until_the_code_says_something_else(tmp_path: Path) -> None:
    def opened(concurrency: int) -> TestEngine:
        engine = TestEngine(tmp_path / "data")
        engine.task(name="call", limits=[Limit(concurrency=concurrency)])(lambda: None)
        return engine

    with opened(5) as engine:
        engine.limits.set("task:call", concurrency=2)
    with opened(5) as engine:
        [state] = engine.limits.list()
        assert (state.concurrency, state.is_overridden) == (2, True)
    with opened(6) as engine:
        [state] = engine.limits.list()
        assert (state.concurrency, state.is_overridden) == (6, False)


def test_a_limit_can_be_set_where_the_code_has_none(engine: TestEngine) -> None:
    @engine.task(target="psp", key="{who}")
    def call(who: str) -> None: ...

    engine.limits.set("target:psp", rate=(2, "1s"))
    engine.clock.advance("1m")
    engine.submit_many(call.call(f"w{n}") for n in range(5))
    assert engine.run_until_idle().done == 2
    engine.limits.set("target:psp")
    engine.limits.set("key:w9", rate=(1, "1h"))
    call.submit("w9")
    assert engine.run_until_idle().done == 3


@pytest.mark.parametrize("scope", ["psp", "target:", "host:x", ""])
def test_a_scope_that_is_none_is_refused(engine: TestEngine, scope: str) -> None:
    with pytest.raises(ConfigError) as refused:
        engine.limits.set(scope, concurrency=1)
    assert refused.value.code == "PK-107"


def test_a_task_registered_while_the_engine_runs_is_held_by_its_limits(
    engine: TestEngine,
) -> None:
    engine.task(name="first")(lambda: None)
    engine.submit("first", {})
    assert engine.run_until_idle().done == 1
    engine.task(name="late", aliases=["older"], limits=[Limit(rate=(1, "1m"))])(lambda: None)
    engine.clock.advance("1h")
    for name in ("late", "older", "late"):
        engine.submit(name, {})
    assert engine.run_until_idle().done == 1


def test_a_start_that_comes_to_nothing_costs_its_rate_no_token(engine: TestEngine) -> None:
    @engine.task(limits=[Limit(rate=(1, "1h"))], retry=1)
    def call(fails: bool) -> None:
        if fails:
            raise RuntimeError("no")

    spent = call.submit(True)
    engine.clock.advance("1h")
    assert engine.run_until_idle().dead == 1
    engine.clock.advance("1h")
    engine.dead.revive(spent.id, keep_attempts=True)
    other = call.submit(False)
    assert engine.run_until_idle().attempts == 1  # no budget is left of the first
    assert (spent.info().state, other.info().state) == ("dead", "done")


def test_threads_of_a_limited_task_are_never_more_than_its_limit(tmp_path: Path) -> None:
    with hold_handlers() as gate, make(tmp_path / "data", threads=16) as threaded:

        @threaded.task(limits=[Limit(concurrency=3)])
        def work() -> None:
            gate.enter()

        tickets = threaded.submit_many(work.call() for _ in range(12))
        gate.wait(3)
        other = threaded.task(name="other")(lambda: "done")
        assert other.submit().result("20s") == "done"
        assert (gate.inside, gate.inside_max) == (3, 3)
        gate.open()
        for ticket in tickets:
            ticket.result("20s")
        assert gate.inside_max == 3


def test_a_shard_that_fails_under_its_attempts_costs_no_permit(tmp_path: Path) -> None:
    disk = FaultyDisk()
    with rig(make(tmp_path / "data", durability="process", threads=4), disk=disk) as threaded:
        breaker = Breaker("psp", failures=99)
        limits = [Limit(concurrency=2), Limit(concurrency=1, per="target")]

        @threaded.task(target="t-{n}", limits=limits, breaker=breaker, retry=RetryPolicy(9))
        def work(n: int) -> int:
            return n

        tickets = threaded.submit_many(work.call(n % 3) for n in range(60))
        for shard in (0, 1):
            disk.break_next("write", f"shard-00{shard}/journal", skip=4)
        for ticket in tickets:
            ticket.result("20s")
        when(threaded, lambda runtime: runtime.attempts.running == 0)
        guards = runtime_of(threaded).attempts.admission.guards
        assert {name: meter.running for name, meter in guards.meters.items()} == {}
        assert guards.on_trial == {}
        assert sum(shard.recoveries for shard in threaded.stats().shards) > 0
