"""Cancelling in bulk: what is matched, what becomes of it, and what a page that fails leaves."""

import asyncio
from pathlib import Path
from typing import Any

import pytest

from kit.engines import (
    Gate,
    checkpoint,
    hold_handlers,
    make,
    recount,
    rig,
    runtime_of,
    walk,
    when,
)
from kit.faulty import FaultyDisk
from parkade import (
    BlockingInEventLoop,
    ConfigError,
    Engine,
    StorageFull,
    TicketCancelled,
    cancelling,
    limits,
)
from parkade.shard.commands import CancelMany
from parkade.testing import ManualClock
from parkade.views import BulkResult


def states(engine: Engine, **asked: Any) -> dict[str, int]:
    counts: dict[str, int] = {}
    for info in walk(engine.find, limit=1000, **asked):
        counts[info.state] = counts.get(info.state, 0) + 1
    return counts


@pytest.mark.parametrize("is_parked", [False, True], ids=["hot", "parked"])
def test_what_has_not_ended_and_fits_is_cancelled_and_nothing_else(
    tmp_path: Path, is_parked: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(cancelling, "PAGE", 7)
    with make(tmp_path / "data", run=False, index_tags=("campaign",)) as engine:
        mail = engine.task(name="mail")(lambda n: n)
        bill = engine.task(name="bill")(lambda n: n)

        def submit(task: Any, count: int, **options: Any) -> list[Any]:
            calls = (task.options(delay="1h", **options).call(n) for n in range(count))
            return list(engine.submit_many(calls))

        may = submit(mail, 40, tags={"campaign": "may"})
        june = submit(mail, 5, tags={"campaign": "june"}, key="k")
        other = submit(bill, 6, key="k")
        may[3].cancel("by hand")
        if is_parked:
            checkpoint(engine)
        done = engine.cancel_many(tag=("campaign", "may"), reason="typo")
        assert done == BulkResult(39, 39, {})
        assert states(engine, tag=("campaign", "may")) == {"cancelled": 40}
        with pytest.raises(TicketCancelled, match="typo"):
            may[0].result()
        with pytest.raises(TicketCancelled, match="by hand"):
            may[3].result()
        assert engine.cancel_many(tag=("campaign", "may")) == BulkResult(0, 0, {})
        assert engine.cancel_many(task="bill", key="k") == BulkResult(6, 6, {})
        assert states(engine, key="k") == {"scheduled": 5, "cancelled": 6}
        assert engine.cancel_many(task="mail", dry_run=True) == BulkResult(5, 5, {})
        assert all(ticket.info().state == "scheduled" for ticket in june)
        assert engine.cancel_many(task="mail") == BulkResult(5, 5, {})
        assert all(ticket.info().state == "cancelled" for ticket in june + other)
        assert recount(engine) == engine.stats().by_task


def test_of_a_running_one_it_is_asked_and_it_counts_as_changed(tmp_path: Path) -> None:
    with make(tmp_path / "data") as engine, hold_handlers() as gate:

        @engine.task(name="hold")
        def hold(n: int) -> int:
            gate.enter()
            return n

        running = [hold.submit(n) for n in range(3)]
        gate.wait(3)
        waiting = [hold.options(delay="1h").submit(n) for n in range(2)]
        assert engine.cancel_many(task="hold", reason="enough") == BulkResult(5, 5, {})
        assert [ticket.info().state for ticket in waiting] == ["cancelled"] * 2
        assert all(ticket.info().cancel_requested for ticket in running)
        gate.open()
        assert [ticket.result("20s") for ticket in running] == [0, 1, 2]


def test_what_ends_between_the_page_and_the_command_is_skipped(tmp_path: Path) -> None:
    with make(tmp_path / "data", run=False) as engine:
        task = engine.task(name="note")(lambda n: n)
        tickets = engine.submit_many(task.options(delay="1h").call(n) for n in range(4))
        desk = engine.desk("test")
        flow = cancelling.cancelling(desk, "engine.cancel_many", task="note")
        pages = desk.ask(next(flow))
        tickets[0].cancel()
        tickets[1].cancel()
        answers = desk.ask(flow.send(pages))
        with pytest.raises(StopIteration) as ended:
            flow.send(answers)
        assert ended.value.value == BulkResult(4, 2, {"too_late": 2})


def test_more_than_a_command_may_write_is_dealt_in_several(tmp_path: Path) -> None:
    with make(tmp_path / "data", shards=1, run=False) as engine:
        task = engine.task(name="note")(lambda n: n)
        engine.submit_many(task.options(delay="1h").call(n) for n in range(300))
        desk = engine.desk("test")
        reason = "x" * 1_000
        flow = cancelling.cancelling(desk, "engine.cancel_many", task="note", reason=reason)
        request = flow.send(desk.ask(next(flow)))
        commands = [asked for _, asked in request.asks]
        assert sum(len(one.serials) for one in commands if isinstance(one, CancelMany)) == 300
        assert len(commands) == 3
        assert all(0 < size <= limits.COMMAND_BYTES_MAX for size in request.sizes)
        flow.close()
        assert engine.cancel_many(task="note", reason=reason).changed == 300


def test_on_a_full_disk_nothing_is_cancelled_and_it_says_so(tmp_path: Path) -> None:
    disk, clock = FaultyDisk(), ManualClock()
    engine = make(tmp_path / "data", durability="process", clock=clock, shards=1, run=False)
    with rig(engine, disk=disk):
        task = engine.task(name="note")(lambda text: text)
        sleeper = task.options(delay="1h")
        kept = sleeper.submit("x")
        disk.is_full = True
        with pytest.raises(StorageFull):
            for _ in range(40):
                sleeper.submit("x" * 100_000)
        with pytest.raises(StorageFull):
            engine.cancel_many(task="note")
        assert kept.info().state == "scheduled"
        assert kept.cancel() == "cancelled", "a single one has a reserve"
        disk.is_full = False
        clock.advance(1_000)
        when(engine, lambda runtime: not runtime.shards[0].room.is_full)
        left = engine.stats().scheduled
        assert engine.cancel_many(task="note") == BulkResult(left, left, {})


def test_it_waits_at_the_dirty_bound_like_a_submit(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(limits, "DIRTY_BYTES_MAX", 100_000)
    monkeypatch.setattr(limits, "CHECKPOINT_DIRTY_BYTES", 50_000)
    monkeypatch.setattr(cancelling, "PAGE", 50)
    with make(tmp_path / "data", run=False) as engine:
        task = engine.task(name="note")(lambda n: n)
        engine.submit_many(task.options(delay="1h").call(n) for n in range(3_000))
        runtime, most = runtime_of(engine), 0
        checkpoint(engine)
        desk = engine.desk("test")
        flow = cancelling.cancelling(desk, "engine.cancel_many", task="note")
        request = next(flow)
        while True:
            answers = desk.ask(request)
            held = runtime.host.call(lambda: runtime.host.changed_bytes)
            most = max(most, held)
            try:
                request = flow.send(answers)
            except StopIteration as ended:
                assert ended.value.changed == 3_000
                break
        # A command that is let in just below the bound goes beyond it by what it writes.
        assert most < 100_000 + 2 * 50 * 1_000


def test_nothing_given_and_what_cannot_be_are_refused(tmp_path: Path) -> None:
    with make(tmp_path / "data", run=False, index_tags=("a",)) as engine:
        cancel_many: Any = engine.cancel_many
        for asked in ({}, {"tag": ("b", "1")}, {"tag": "a"}, {"task": 3}, {"key": b"k"}):
            with pytest.raises(ConfigError):
                cancel_many(**asked)
        with pytest.raises(ConfigError, match="reason"):
            cancel_many(task="note", reason=3)


def test_coroutines_cancel_many_too(tmp_path: Path) -> None:
    engine = make(tmp_path / "data", run=False, index_tags=("a",))
    task = engine.task(name="note", tags={"a": "1"})(lambda n: n)

    async def main() -> None:
        async with engine:
            await engine.asubmit_many(task.options(delay="1h").call(n) for n in range(30))
            with pytest.raises(BlockingInEventLoop):
                engine.cancel_many(tag=("a", "1"))
            plan = await engine.acancel_many(tag=("a", "1"), dry_run=True)
            assert (plan.matched, plan.changed) == (30, 30)
            assert (await engine.acancel_many(tag=("a", "1"))).changed == 30
            assert (await engine.acancel_many(tag=("a", "1"))).changed == 0

    asyncio.run(main())


def test_a_ticket_whose_key_was_held_leaves_the_key_to_the_next(tmp_path: Path) -> None:
    gate = Gate()
    with make(tmp_path / "data") as engine:

        @engine.task(name="hold", key="k")
        def hold(n: int) -> int:
            gate.enter()
            return n

        note = engine.task(name="note", key="k")(lambda n: n)
        first = hold.submit(1)
        gate.wait()
        note.submit(2)
        last = hold.submit(3)
        assert engine.cancel_many(task="note").changed == 1
        gate.open()
        assert (first.result("20s"), last.result("20s")) == (1, 3)
