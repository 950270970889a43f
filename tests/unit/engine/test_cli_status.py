"""`parkade status` beyond its counts: holds, pauses, breakers, dead groups, of engine and files."""

import json
import shutil
from collections import Counter
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner, Result

from kit.engines import Gate, hold_handlers, make, rig, when
from kit.faulty import FaultyDisk
from parkade import Ambiguous, Breaker, Engine, Fail, Limit, StorageError, TicketFailed
from parkade.cli.app import cli
from parkade.facts import plain
from parkade.latencies import KEPT_MAX, Latencies
from parkade.runtime import Runtime
from parkade.status_facts import count_held, lanes_of


def run(path: Path) -> Result:
    return CliRunner().invoke(cli, ["-d", str(path), "status"], catch_exceptions=False)


def facts_of(path: Path) -> Any:
    return json.loads(CliRunner().invoke(cli, ["-d", str(path), "status", "--json"]).stdout)


def expect_held(engine: Engine, wanted: set[tuple[str, str, int]]) -> None:
    def is_so(runtime: Runtime) -> bool:
        held: Counter[tuple[str, str]] = Counter()
        count_held(runtime, lanes_of(runtime), held)
        return {(*by, count) for by, count in held.items()} == wanted

    when(engine, is_so)


def count(n: int) -> None: ...


def shop(path: Path, gate: Gate) -> Engine:
    engine = make(path, threads=4)

    @engine.task(target="psp", breaker=Breaker("psp"))
    def charge(n: int) -> None: ...

    @engine.task(target="bank", limits=[Limit(concurrency=1, per="target")])
    def wire(n: int) -> None:
        gate.enter()

    @engine.task
    def mail(n: int) -> None: ...

    engine.task(where="process")(count)

    @engine.task(retry=None)
    def fail(text: str) -> None:
        raise Fail(text)

    return engine


def submit_all(engine: Engine, name: str, count: int) -> None:
    engine.submit_many(engine.task_of(name).call(n) for n in range(count))  # type: ignore[union-attr]


def hold_all(engine: Engine, gate: Gate) -> None:
    engine.breakers.force_open("psp", for_="1h", reason="their maintenance")
    engine.pause(task="mail", reason="wrong template")
    for name, number in (("charge", 5), ("mail", 2), ("wire", 4), ("count", 1)):
        submit_all(engine, name, number)
    gate.wait()


def test_of_what_is_ready_it_says_how_much_is_held_and_by_what(tmp_path: Path) -> None:
    path = tmp_path / "data"
    with shop(path, gate := Gate()) as engine:
        hold_all(engine, gate)
        wanted = {
            ("breaker", "psp", 5), ("limit", "target:bank", 3), ("pause", "task:mail", 2),
            ("place", "process", 1),
        }  # fmt: skip
        expect_held(engine, wanted)
        text = run(path).stdout
        assert (
            "held 11 (breaker psp 5, limit target:bank 3, paused task:mail 2, no processes 1)"
            in text
        )
        assert "threads 1/4 · loop 0/1 000" in text
        gate.open()


def test_pauses_and_open_breakers_are_told_of_an_engine_and_of_its_files(tmp_path: Path) -> None:
    path = tmp_path / "data"
    with shop(path, gate := Gate()) as engine:
        hold_all(engine, gate)
        gate.open()
        live = facts_of(path)
        killed = tmp_path / "killed"
        shutil.copytree(path, killed, ignore=shutil.ignore_patterns("control.sock", "lock"))
    for place in (path, killed):
        cold, text = facts_of(place), run(place).stdout
        assert cold["pauses"] == live["pauses"] and cold["breakers"] == live["breakers"]
        assert cold["held"] is cold["places"] is cold["owner"] is None
        assert (
            "breaker    psp FORCED OPEN since" in text and "(their maintenance), probe in" in text
        )
        assert "paused     task mail (wrong template)" in text
    assert [pause["scope"] for pause in live["pauses"]] == ["task:mail"]
    assert [breaker["state"] for breaker in live["breakers"]] == ["forced_open"]


def is_looked_ahead(runtime: Runtime) -> bool:
    now_ms = runtime.host.now_ms
    return all(shard.placement.next_due()[1] > now_ms + 40_000 for shard in runtime.shards)


def test_it_tells_when_the_next_ticket_comes_due_and_else_how_far_it_has_looked(
    tmp_path: Path,
) -> None:
    path = tmp_path / "data"
    with shop(path, Gate()) as engine:
        when(engine, is_looked_ahead)
        mail = engine.task_of("mail")
        mail.options(delay="30d").submit(1)  # type: ignore[union-attr]
        far, text = facts_of(path), run(path).stdout
        assert far["next_due_at"] is None and far["none_due_before"] > far["as_of"]
        assert "none within" in text

        soon = mail.options(delay="30s").submit(2)  # type: ignore[union-attr]
        near, text = facts_of(path), run(path).stdout
        assert near["next_due_at"] == plain(soon.info().due_at)
        assert near["none_due_before"] is None and "next in 2" in text
        soon.cancel()
    cold = facts_of(path)
    assert cold["next_due_at"] is cold["none_due_before"] is None
    assert "scheduled  1\n" in run(path).stdout


def test_what_is_closed_or_taken_back_is_told_no_more(tmp_path: Path) -> None:
    path = tmp_path / "data"
    with shop(path, Gate()) as engine:
        engine.breakers.force_open("psp")
        engine.pause(target="bank")
        engine.breakers.close("psp")
        engine.resume(target="bank")
        assert (facts_of(path)["pauses"], facts_of(path)["breakers"]) == ([], [])
    assert (facts_of(path)["pauses"], facts_of(path)["breakers"]) == ([], [])


def test_a_ticket_whose_task_is_gone_is_held_by_that(tmp_path: Path) -> None:
    path = tmp_path / "data"
    first = make(path, run=False)

    @first.task
    def old() -> None: ...

    with first:
        old.submit()
        when(first, lambda runtime: any(s.placement.ready_count for s in runtime.shards))
        assert "held: this engine was opened with run=False" in run(path).stdout
    with make(path) as engine:
        expect_held(engine, {("handler", "old", 1)})
        assert "held 1 (no task old 1)" in run(path).stdout


def test_dead_groups_are_counted(tmp_path: Path) -> None:
    path = tmp_path / "data"
    with shop(path, Gate()) as engine:
        fail: Any = engine.task_of("fail")
        for text in ("no funds", "no such card", "no funds"):
            with pytest.raises(TicketFailed):
                fail.submit(text).result("20s")
        assert facts_of(path)["dead_groups"] == 2
        assert "2 groups: parkade dead groups" in run(path).stdout
    assert facts_of(path)["dead_groups"] == 2


def test_of_the_dead_those_that_may_have_happened_are_counted(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "data"
    with make(path) as engine:

        @engine.task
        def wire(n: int) -> None:
            raise Ambiguous("no answer") if n else Fail("no such account")

        for n in (0, 1, 2):
            with pytest.raises(TicketFailed):
                wire.submit(n).result("20s")
        assert facts_of(path)["ambiguous"] == 2
        assert "2 groups, 2 ambiguous: parkade dead groups" in run(path).stdout
        monkeypatch.setattr("parkade.status_facts.DEAD_LOOKED_AT_MAX", 2)
        assert facts_of(path)["ambiguous"] is None
        assert "2 groups: parkade dead groups" in run(path).stdout
    monkeypatch.undo()
    assert facts_of(path)["ambiguous"] == 2


def test_how_long_the_latest_frames_took_is_told_while_an_engine_runs(tmp_path: Path) -> None:
    path = tmp_path / "data"
    with make(path, shards=2, run=False) as engine:
        assert facts_of(path)["commit_us"] is None
        engine.task(name="count")(count).submit(1)
        assert "disk       commit p50 " in run(path).stdout
        ring = Latencies()
        for us in range(2 * KEPT_MAX):
            ring.add(us)
        assert sorted(ring.latest()) == list(range(KEPT_MAX, 2 * KEPT_MAX))
        for shard in engine.desk("test").runtime.shards:
            shard.io.latencies = ring
        assert facts_of(path)["commit_us"] == {"p50": 768, "p99": 1_018}
    assert facts_of(path)["commit_us"] is None


def test_a_house_that_cannot_be_read_is_told_with_all_the_rest(tmp_path: Path) -> None:
    path = tmp_path / "data"
    with shop(path, Gate()) as engine:
        engine.task_of("fail").options(delay="1d").submit("x")  # type: ignore[union-attr]
    shutil.rmtree(path / "house" / "journal")
    done = run(path)
    assert done.exit_code == 5
    assert "house      FAILS" in done.stdout and "fail" in done.stdout
    facts = facts_of(path)
    assert facts["pauses"] is facts["breakers"] is None and facts["states"]["scheduled"] == 1


def test_a_house_that_cannot_be_written_leaves_the_counts(tmp_path: Path) -> None:
    path, disk = tmp_path / "data", FaultyDisk()
    with rig(make(path, run=False), disk=disk) as engine:
        for _ in range(4):  # a call tries twice
            disk.break_next("write", "/house/")
        with pytest.raises(StorageError):
            engine.breakers.force_open("psp")
        facts = facts_of(path)
        assert facts["house_error"] and facts["breakers"] is None
        assert facts["owner"] is not None and facts["states"]["ready"] == 0
        told = [facts_of(path)["breakers"] for _ in range(4)]  # each meets one of them at least
        assert [breaker["name"] for breaker in told[-1]] == ["psp"]


def test_a_disk_that_is_full_is_told_as_long_as_it_is(tmp_path: Path) -> None:
    path, disk = tmp_path / "data", FaultyDisk()
    with rig(shop(path, Gate()), disk=disk) as engine:
        assert facts_of(path)["is_full"] is False
        with hold_handlers():
            disk.is_full = True
            big: Any = engine.task_of("fail")
            with pytest.raises(StorageError):
                for _ in range(500):
                    big.submit("x" * 500_000)
            assert "disk       FULL: submits are refused" in run(path).stdout
            disk.is_full = False
