"""Submits: their forms, their options, and what each leaves behind."""

import asyncio
import threading
from collections import Counter
from collections.abc import Sequence
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest

from kit.clock import START_MS, ManualClock
from kit.engines import hold_handlers, make, runtime_of, when
from parkade import (
    ConfigError,
    DuplicateTicket,
    Engine,
    PartialSubmit,
    PayloadError,
    StorageError,
    Ticket,
    UnknownTask,
)
from parkade.shard.ticket import parse_id, part_of_key
from parkade.store.journal import Journal


def at(ms: int) -> datetime:
    return datetime.fromtimestamp(ms / 1000, UTC)


@pytest.fixture
def clock() -> ManualClock:
    return ManualClock()


def test_every_form_of_a_submit_makes_the_same_ticket(tmp_path: Path) -> None:
    with make(tmp_path / "data") as engine:

        @engine.task
        def scale(n: int, by: int = 2) -> int:
            return n * by

        forms: list[Ticket[Any]] = [
            scale.submit(3, by=4),
            engine.submit(scale, 3, 4),
            engine.submit(scale.call(3, 4)),
            engine.submit("scale", {"n": 3, "by": 4}),
            scale.options(priority=3).submit(n=3, by=4),
        ]
        forms += engine.submit_many(scale.call(3, 4) for _ in range(2))
        assert [ticket.result("20s") for ticket in forms] == [12] * 7
        assert all(ticket.created and ticket.task == "scale" for ticket in forms)
        assert len({ticket.id for ticket in forms}) == 7
        assert [ticket.id for ticket in forms] == sorted(ticket.id for ticket in forms)


def test_coroutines_submit_the_same(tmp_path: Path) -> None:
    engine = make(tmp_path / "data")

    @engine.task
    def scale(n: int, by: int = 2) -> int:
        return n * by

    async def main() -> None:
        async with engine:
            forms: list[Ticket[Any]] = [
                await scale.asubmit(3, by=4),
                await engine.asubmit(scale, 3, 4),
                await engine.asubmit(scale.call(3, 4)),
                await engine.asubmit("scale", {"n": 3, "by": 4}),
            ]
            forms += await engine.asubmit_many(scale.call(3, 4) for _ in range(2))
            assert await asyncio.gather(*forms) == [12] * 6
            many = await asyncio.gather(*(scale.asubmit(n) for n in range(50)))
            assert await asyncio.gather(*many) == [2 * n for n in range(50)]

    asyncio.run(main())


def test_what_is_no_call_is_refused(tmp_path: Path) -> None:
    with make(tmp_path / "data") as engine:
        submit: Any = engine.submit
        refused: list[tuple[Any, ...]] = [(), (3,), ("name",), ("name", {}, {})]
        for args in refused:
            with pytest.raises((ConfigError, TypeError)):
                submit(*args)
        with pytest.raises(UnknownTask, match="Close: scale"):
            engine.task(name="scale")(lambda n: n)
            engine.submit("scal", {"n": 1})
        with pytest.raises(PayloadError):
            engine.submit("scale", {"m": 1})
        assert engine.stats().by_task == {}


def test_many_keep_their_order_over_all_chunks_and_shards(tmp_path: Path) -> None:
    with make(tmp_path / "data", shards=3, run=False) as engine:
        task = engine.task(name="note")(lambda n: n)
        tickets = engine.submit_many((task.call(n) for n in range(250)), chunk=40)
        assert len(tickets) == 250
        ids = [ticket.id for ticket in tickets]
        assert ids == sorted(ids)
        assert [info.id for info in engine.find(limit=1000)] == ids[::-1]
        assert engine.submit_many([]) == []
        with pytest.raises(ConfigError):
            engine.submit_many([], chunk=0)


def test_an_error_of_the_callers_own_iterator_keeps_what_was_accepted(tmp_path: Path) -> None:
    with make(tmp_path / "data", run=False) as engine:
        task = engine.task(name="note")(lambda n: n)

        def calls() -> Any:
            for n in range(25):
                yield task.call(n)
            raise ValueError("the file ends here")

        with pytest.raises(PartialSubmit) as caught:
            engine.submit_many(calls(), chunk=10)
        assert len(caught.value.accepted) == 20
        assert isinstance(caught.value.__cause__, ValueError)
        assert engine.stats().scheduled + engine.stats().ready == 20
        with pytest.raises(ValueError, match="the file ends here") as plain:
            engine.submit_many(calls(), chunk=100)
        assert plain.value.__cause__ is None


def shards_of(tickets: Sequence[Ticket[Any]], count: int) -> list[int]:
    """How many of them each shard has."""
    parts = Counter(found.part % count for one in tickets if (found := parse_id(one.id)))
    return [parts[shard] for shard in range(count)]


def test_a_chunk_of_a_bulk_is_one_frame_of_one_shard_and_the_next_of_the_next(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    frames: list[int] = []
    append = Journal.append

    def counted(self: Journal, body: bytes, count: int) -> int:
        frames.append(count)
        return append(self, body, count)

    with make(tmp_path / "data", shards=4, run=False) as engine:
        task = engine.task(name="note")(lambda n: n).options(delay="30d")
        with monkeypatch.context() as patch:
            patch.setattr(Journal, "append", counted)
            tickets = engine.submit_many((task.call(n) for n in range(800)), chunk=100)
        assert frames == [100] * 8
        assert shards_of(tickets, 4) == [200] * 4
        assert sum(map(bool, shards_of(tickets, 256))) > 200  # and could be dealt to others
        assert [info.id for info in engine.find(limit=1000)] == [one.id for one in tickets][::-1]


def test_bulks_of_a_chunk_and_a_little_more_are_of_all_shards(tmp_path: Path) -> None:
    """In turns, the large chunks were all of one half of them."""
    with make(tmp_path / "data", shards=4, run=False) as engine:
        task = engine.task(name="note")(lambda n: n)
        bulks = [engine.submit_many(map(task.call, range(101)), chunk=100) for _ in range(8)]
        assert max(shards_of([one for bulk in bulks for one in bulk], 4)) < 300


def test_a_large_chunk_is_of_as_many_shards_as_it_fills(tmp_path: Path) -> None:
    with make(tmp_path / "data", shards=4, run=False) as engine:
        task = engine.task(name="note")(lambda body: None)
        many = engine.submit_many((task.call("x") for _ in range(5_000)), chunk=5_000)
        assert sorted(shards_of(many, 4)) == [0, 1_666, 1_667, 1_667]
        large = engine.submit_many(task.call("x" * 1_000) for _ in range(1_000))
        assert shards_of(large, 4) == [250] * 4


def test_keys_of_a_bulk_belong_where_they_always_do(tmp_path: Path) -> None:
    with make(tmp_path / "data", shards=4, run=False) as engine:
        task = engine.task(name="note")(lambda n: n)
        keyed = engine.submit_many(task.options(key=f"k{n}").call(n) for n in range(64))
        alone = [task.options(key=f"k{n}").submit(n) for n in range(64)]
        parts = [[parsed.part for t in ts if (parsed := parse_id(t.id))] for ts in (keyed, alone)]
        assert parts[0] == parts[1] == [part_of_key(f"k{n}") for n in range(64)]


def test_one_refused_draft_costs_the_others_nothing(tmp_path: Path) -> None:
    with make(tmp_path / "data", run=False) as engine:
        task = engine.task(name="note")(lambda n: n)
        holder = task.options(unique="x").submit(0)
        strict = task.options(unique="x", on_conflict="error")
        with pytest.raises(PartialSubmit) as caught:
            engine.submit_many([task.call(1), strict.call(2), task.call(3)])
        assert len(caught.value.accepted) == 2
        cause = caught.value.__cause__
        assert isinstance(cause, DuplicateTicket)
        assert cause.ticket.id == holder.id
        with pytest.raises(DuplicateTicket):
            engine.submit_many([strict.call(2)])


def test_a_delay_is_waited_for_to_the_millisecond(tmp_path: Path, clock: ManualClock) -> None:
    with make(tmp_path / "data", clock=clock) as engine:

        @engine.task
        def now() -> int:
            return clock.now_ms()

        soon = now.options(delay="250ms").submit()
        later = now.options(at=at(START_MS + 90_000)).submit()
        past = now.options(at=at(START_MS - 5_000)).submit()
        assert past.result("20s") == START_MS
        assert soon.info().state == "scheduled"
        assert soon.info().due_at == at(START_MS + 250)
        clock.advance(249)
        when(engine, lambda runtime: runtime.host.now_ms == START_MS + 249)
        assert soon.info().attempts == 0
        clock.advance(1)
        assert soon.result("20s") == START_MS + 250
        assert later.info().state == "scheduled"
        clock.advance(89_750)
        assert later.result("20s") == START_MS + 90_000


def test_years_ahead_is_a_due_like_any_other(tmp_path: Path, clock: ManualClock) -> None:
    with make(tmp_path / "data", clock=clock, durability="process") as engine:
        task = engine.task(name="note")(lambda n: n)
        ids = [task.options(delay=timedelta(days=365 * n)).submit(n).id for n in (1, 3, 100)]
        last = task.options(at=datetime(9999, 12, 31, tzinfo=UTC)).submit(4).id
    with make(tmp_path / "data", clock=clock, durability="process") as engine:
        engine.task(name="note")(lambda n: n)
        assert engine.stats().scheduled == 4
        clock.advance(365 * 86_400_000)
        assert engine.ticket(ids[0]).result("20s") == 1
        assert engine.ticket(ids[1]).info().state == "scheduled"
        clock.advance(99 * 365 * 86_400_000)
        assert [engine.ticket(each).result("20s") for each in ids[1:]] == [3, 100]
        assert engine.ticket(last).info().due_at.year == 9999


def test_a_unique_answers_with_the_first_ticket(tmp_path: Path, clock: ManualClock) -> None:
    with make(tmp_path / "data", clock=clock, keep_done="1h") as engine:
        task = engine.task(name="note")(lambda n: n)
        kept = task.options(unique="a")
        first = kept.submit(1)
        again = kept.submit(2)
        assert (again.id, again.created) == (first.id, False)
        assert first.result("20s") == again.result("20s") == 1
        assert kept.submit(3).id == first.id, "kept: also after its end"
        assert task.options(unique="a", key="k").submit(4).created, "the key is part of the name"
        other = engine.task(name="other")(lambda n: n)
        assert other.options(unique="a").submit(5).created, "and so is the task"
        clock.advance(3_600_001)
        when(engine, lambda runtime: runtime.host.now_ms == START_MS + 3_600_001)
        assert kept.submit(6).created


def test_an_active_unique_ends_with_its_ticket(tmp_path: Path) -> None:
    with hold_handlers() as gate, make(tmp_path / "data") as engine:

        @engine.task
        def wait() -> None:
            gate.enter()

        active = wait.options(unique="a", unique_for="active")
        first = active.submit()
        gate.wait()
        assert active.submit().id == first.id, "also while it runs"
        gate.open()
        first.result("20s")
        assert active.submit().created


def test_a_unique_for_a_time_counts_from_the_submit(tmp_path: Path, clock: ManualClock) -> None:
    with make(tmp_path / "data", clock=clock) as engine:
        task = engine.task(name="note")(lambda n: n)
        minute = task.options(unique="a", unique_for="1m")
        first = minute.submit(1)
        first.result("20s")
        clock.advance(59_999)
        assert minute.submit(2).id == first.id
        clock.advance(1)
        assert minute.submit(3).created


def test_a_conflict_may_be_an_error_or_replace_what_waits(tmp_path: Path) -> None:
    with hold_handlers() as gate, make(tmp_path / "data") as engine:

        @engine.task
        def wait(n: int) -> int:
            gate.enter()
            return n

        named = wait.options(unique="a", delay="1h")
        first = named.submit(1)
        with pytest.raises(DuplicateTicket) as caught:
            named.options(on_conflict="error").submit(2)
        assert (caught.value.code, caught.value.ticket.id) == ("PK-204", first.id)
        replaced = wait.options(unique="a", on_conflict="replace").submit(3)
        assert replaced.created
        assert first.info().state == "cancelled"
        gate.wait()
        running = named.options(on_conflict="replace").submit(4)
        assert (running.id, running.created) == (replaced.id, False), "one that runs stays"
        gate.open()
        assert replaced.result("20s") == 3
        assert named.options(on_conflict="replace").submit(5).created


def test_a_unique_is_known_after_it_has_left_memory(tmp_path: Path) -> None:
    with make(tmp_path / "data", durability="process", run=False) as engine:
        task = engine.task(name="note")(lambda n: n)
        first = task.options(unique="a", delay="3d").submit(1).id
    with make(tmp_path / "data", durability="process", run=False) as engine:
        task = engine.task(name="note")(lambda n: n)
        again = task.options(unique="a").submit(2)
        assert (again.id, again.created) == (first, False)
        many = engine.submit_many([task.options(unique=name).call(3) for name in "bab"])
        assert [ticket.created for ticket in many] == [True, False, False]
        assert many[0].id == many[2].id
        assert many[1].id == first


def test_a_key_lets_one_run_at_a_time_in_their_order(tmp_path: Path) -> None:
    with make(tmp_path / "data", shards=3) as engine:
        ran: dict[str, list[int]] = {"a": [], "b": []}
        inside: dict[str, int] = {"a": 0, "b": 0}
        worst = 0
        lock = threading.Lock()

        @engine.task(key="{account}")
        def book(account: str, n: int) -> None:
            nonlocal worst
            with lock:
                inside[account] += 1
                worst = max(worst, inside[account])
                ran[account].append(n)
            with lock:
                inside[account] -= 1

        @engine.task
        def other(account: str, n: int) -> None:
            book(account, n)

        tickets = engine.submit_many(
            book.call(account, n) if n % 2 else other.options(key=account).call(account, n)
            for n in range(30)
            for account in "ab"
        )
        for ticket in tickets:
            ticket.result("20s")
        assert ran == {"a": list(range(30)), "b": list(range(30))}
        assert worst == 1


def test_a_key_in_backoff_lets_others_of_the_key_run(tmp_path: Path, clock: ManualClock) -> None:
    with make(tmp_path / "data", clock=clock) as engine:

        @engine.task(retry=["1h"])
        def work(fails: bool) -> str:
            if fails:
                raise ValueError("not yet")
            return "done"

        first = work.options(key="k").submit(True)
        second = work.options(key="k").submit(False)
        assert second.result("20s") == "done"
        assert first.info().state == "scheduled"
        assert first.info().key == "k"


def test_greater_priority_goes_first_then_the_older(tmp_path: Path) -> None:
    with hold_handlers() as gate, make(tmp_path / "data", threads=1) as engine:
        order: list[str] = []

        @engine.task
        def note(name: str) -> None:
            if name == "first":
                gate.enter()
            order.append(name)

        note.submit("first")
        gate.wait()
        tickets = [
            note.options(priority=priority).submit(name)
            for name, priority in (("c", 0), ("a", 5), ("d", 0), ("b", 5), ("e", -3))
        ]
        gate.open()
        for ticket in tickets:
            ticket.result("20s")
        assert order == ["first", "a", "b", "c", "d", "e"]


def test_the_options_of_a_submit_are_seen_in_its_info(tmp_path: Path) -> None:
    with make(tmp_path / "data", run=False) as engine:
        task = engine.task(name="note", tags={"team": "billing"})(lambda n: n)
        info = (
            task.options(
                tags={"tenant": "7"}, summary="the seventh", target="bank", key="k", unique="u",
                priority=4, retry=3, expires="1h",
            )
            .submit(1)
            .info()
        )  # fmt: skip
        assert dict(info.tags) == {"team": "billing", "tenant": "7"} or info.tags["tenant"] == "7"
        assert (info.summary, info.target, info.key, info.unique) == (
            "the seventh", "bank", "k", "u",
        )  # fmt: skip
        assert (info.priority, info.max_attempts, info.task) == (4, 3, "note")
        assert (info.state, info.attempts, info.fence, info.snoozes) == ("ready", 0, 0, 0)
        assert info.started_at is info.finished_at is info.dead_reason is info.error is None
        assert info.shard in (0, 1)


def test_an_unstarted_ticket_expires_and_a_started_one_does_not(
    tmp_path: Path, clock: ManualClock
) -> None:
    from parkade import TicketExpired

    with hold_handlers() as gate, make(tmp_path / "data", clock=clock, threads=1) as engine:

        @engine.task(expires="1m")
        def wait() -> str:
            gate.enter()
            return "done"

        runs = wait.submit()
        gate.wait()
        held = wait.submit()
        later = wait.options(delay="1h").submit()
        clock.advance(59_999)
        assert held.info().state == "ready"
        clock.advance(1)
        with pytest.raises(TicketExpired) as caught:
            held.result("20s")
        assert caught.value.code == "PK-403"
        assert runs.info().state == "running"
        assert later.info().state == "scheduled", "it counts from when it was first due"
        gate.open()
        assert runs.result("20s") == "done"


def test_a_chunk_that_one_shard_fails_tells_what_the_others_took(tmp_path: Path) -> None:
    with make(tmp_path / "data", shards=3, run=False) as engine:
        task = engine.task(name="note")(lambda n: n)
        runtime = runtime_of(engine)
        runtime.host.call(lambda: runtime.shards[1].refuse(OSError("broken")))
        keys = [f"k{n}" for n in range(30)]
        with pytest.raises(PartialSubmit) as caught:
            engine.submit_many([task.options(key=key).call(1) for key in keys])
        assert isinstance(caught.value.__cause__, StorageError)
        accepted = caught.value.accepted
        assert 0 < len(accepted) < 30
        assert {ticket.info().shard for ticket in accepted} == {0, 2}
        plain = [task.submit(n) for n in range(12)]
        assert {ticket.info().shard for ticket in plain} <= {0, 2}, "they go to healthy shards"


def submit_in_threads(engine: Engine, task: Any, threads: int, each: int) -> list[str]:
    ids: list[str] = []
    lock = threading.Lock()

    def run(base: int) -> None:
        mine = [task.submit(base * each + n).id for n in range(each)]
        with lock:
            ids.extend(mine)

    workers = [threading.Thread(target=run, args=(n,)) for n in range(threads)]
    for worker in workers:
        worker.start()
    for worker in workers:
        worker.join()
    return ids


def test_many_threads_submit_at_once_and_no_id_comes_twice(tmp_path: Path) -> None:
    with make(tmp_path / "data") as engine:
        task = engine.task(name="note")(lambda n: n)
        ids = submit_in_threads(engine, task, threads=8, each=50)
        assert len(set(ids)) == 400
        results = sorted(engine.ticket(each).result("20s") for each in ids)
        assert results == list(range(400))
