"""What is allowed and large: the journal makes room for it, and no shard fails of it."""

import asyncio
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from kit.engines import make, recount, runtime_of, when
from parkade import Attempt, Cancelled, Drop, Engine, Fail, Snooze, TicketCancelled, TicketFailed


@pytest.fixture
def engine(tmp_path: Path) -> Iterator[Engine]:
    with make(tmp_path / "data", max_payload=4_000_000, shards=1) as engine:
        yield engine
        assert [(s.status, s.recoveries) for s in engine.stats().shards] == [("open", 0)]
        assert engine.stats().by_task == recount(engine)
    with make(tmp_path / "data", max_payload=4_000_000, shards=1, run=False) as engine:
        assert [shard.status for shard in engine.stats().shards] == ["open"]
        assert engine.stats().by_task == recount(engine)


def test_payloads_and_results_of_megabytes_come_back_whole(engine: Engine) -> None:
    @engine.task
    def echo(text: str) -> str:
        return text

    texts = ["x" * 3_900_000, "y", "z" * 1_000_000, "ü" * 500_000]
    tickets = [echo.submit(text) for text in texts]
    assert [ticket.result("20s") for ticket in tickets] == texts
    many = engine.submit_many(echo.call("a" * 1_500_000) for _ in range(6))
    assert {len(ticket.result("20s")) for ticket in many} == {1_500_000}


def test_options_count_as_much_as_payloads(engine: Engine) -> None:
    task = engine.task(name="note")(lambda n: n)
    heavy = task.options(
        delay="1h", tags={f"t{n}": "v" * 200 for n in range(32)}, summary="s" * 200, key="k" * 200,
        target="t" * 200,
    )  # fmt: skip
    calls = [heavy.options(unique=f"{n:0200}").call(n) for n in range(1_000)]
    tickets = engine.submit_many(calls)
    assert len({ticket.id for ticket in tickets}) == 1_000
    assert len(tickets[7].info().tags) == 32


def test_handlers_may_say_as_much_as_they_like(engine: Engine) -> None:
    @engine.task(retry=None)
    def say(attempt: Attempt, how: str) -> str:
        text = "ü" * 2_000_000
        raised: dict[str, BaseException] = {
            "drop": Drop(text),
            "cancelled": Cancelled(text),
            "fail": Fail(text, **{f"d{n}": text[:1_000] for n in range(100)}),
            "snooze": Snooze(0, text),
            "error": ValueError("\ud800" * 100_000, text),
        }
        if how == "snooze" and attempt.fence > 1:
            return "awake"
        raise raised[how]

    tickets = {how: say.submit(how) for how in ("drop", "cancelled", "fail", "snooze", "error")}
    assert tickets["snooze"].result("20s") == "awake"
    for how in ("drop", "cancelled"):
        with pytest.raises(TicketCancelled):
            tickets[how].result("20s")
    for how in ("fail", "error"):
        with pytest.raises(TicketFailed) as caught:
            tickets[how].result("20s")
        assert len(str(caught.value)) < 60_000


def test_a_frame_that_turns_out_larger_than_was_reckoned_finds_room(
    engine: Engine, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("parkade.submitting.draft_bytes", lambda draft: 1)
    task = engine.task(name="note")(lambda text: len(text))
    tickets: list[Any] = [task.submit("x" * 2_000_000) for _ in range(4)]
    assert {ticket.result("20s") for ticket in tickets} == {2_000_000}


def test_one_bulk_call_may_name_a_great_many(engine: Engine) -> None:
    @engine.task(retry=None)
    def dies(n: int) -> None:
        raise Fail("no")

    tickets = engine.submit_many(dies.call(n) for n in range(1_200))
    for ticket in tickets:
        with pytest.raises(TicketFailed):
            ticket.result("20s")
    ids = [ticket.id for ticket in tickets]
    done = engine.dead.drop(*ids, *ids, *["nowhere"] * 3_000)
    assert done.changed == 1_200
    assert done.skipped["unknown"] == 4_200


def test_a_great_many_lost_attempts_are_settled(tmp_path: Path) -> None:
    with make(tmp_path / "data", shards=1, async_limit=6_000) as engine:

        @engine.task
        async def stay(n: int) -> None:
            await asyncio.Event().wait()

        engine.submit_many(stay.call(n) for n in range(5_000))
        runtime = runtime_of(engine)
        shard = runtime.shards[0]
        running = shard.core.running
        assert runtime.host.when(
            lambda: len(running) == 5_000 and shard.durable_lsn == shard.core.lsn
        ).wait(20)
        runtime.abandon()
    with make(tmp_path / "data", shards=1, run=False) as engine:
        when(engine, lambda runtime: not runtime.shards[0].core.running)
        stats = engine.stats()
        assert [(s.status, s.recoveries) for s in stats.shards] == [("open", 0)]
        assert runtime_of(engine).lost_at_open == 5_000
        assert stats.by_task == {"stay": {"scheduled": 5_000}}
        assert engine.find(limit=1).items[0].maybe_applied
