"""The engine's numbers equal a recount of its tickets, at any time and after any life."""

from pathlib import Path

import pytest

from kit.clock import ManualClock
from kit.engines import hold_handlers, make, recount, when
from parkade import Fail, TicketFailed


def test_every_state_is_counted_by_task(tmp_path: Path) -> None:
    clock = ManualClock()
    with (
        hold_handlers() as gate,
        make(tmp_path / "data", clock=clock, threads=1, durability="process") as engine,
    ):
        a = engine.task(name="a")(lambda: None)

        @engine.task
        def dies() -> None:
            raise Fail("no")

        @engine.task
        def waits() -> None:
            gate.enter()

        a.submit().result("20s")
        with pytest.raises(TicketFailed):
            dies.submit().result("20s")
        running = waits.submit()
        gate.wait()
        for _ in range(3):
            a.submit()
        for _ in range(2):
            a.options(delay="1h").submit()
        expiring = a.options(expires="1s").submit()
        dies.options(delay="1h").submit().cancel()
        clock.advance(1_000)
        while expiring.info().state != "expired":
            when(engine, lambda runtime: True)
        stats = engine.stats()
        assert (stats.running, stats.ready, stats.scheduled) == (1, 3, 2)
        assert (stats.dead, stats.done_total) == (1, 1)
        assert stats.oldest_ready_age.total_seconds() == 1
        assert stats.by_task == recount(engine) == {
            "a": {"done": 1, "scheduled": 5, "expired": 1},
            "dies": {"dead": 1, "cancelled": 1},
            "waits": {"running": 1},
        }  # fmt: skip
        assert [shard.status for shard in stats.shards] == ["open", "open"]
        assert sum(shard.lsn for shard in stats.shards) > 10
        assert all(shard.reason is None and shard.journal_segments >= 1 for shard in stats.shards)
        gate.open()
        running.result("20s")
    with make(tmp_path / "data", clock=clock, run=False, durability="process") as engine:
        assert engine.stats().by_task == recount(engine)
        assert engine.stats().by_task["waits"] == {"done": 1}
        assert engine.stats().by_task["a"].get("scheduled", 0) + engine.stats().by_task["a"][
            "done"
        ] == 6  # fmt: skip


def test_an_empty_engine_counts_nothing(tmp_path: Path) -> None:
    with make(tmp_path / "data") as engine:
        stats = engine.stats()
        assert (stats.ready, stats.scheduled, stats.running, stats.dead) == (0, 0, 0, 0)
        assert stats.by_task == {}
        assert stats.oldest_ready_age.total_seconds() == 0
