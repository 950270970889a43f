"""A key that is held while many wait for it: on disk, in order, and in nobody else's way."""

from pathlib import Path
from typing import Any

from kit.engines import PATIENCE_S, checkpoint, hold_handlers, make, runtime_of, when

MANY = 1_500


def core_of(engine: Any) -> Any:
    (shard,) = runtime_of(engine).shards
    return shard.core


def test_many_that_wait_for_one_key_are_on_disk_and_delay_no_other_key(tmp_path: Path) -> None:
    with hold_handlers() as gate, make(tmp_path / "data", shards=1) as engine:

        @engine.task
        def work(who: str, n: int) -> int:
            if who == "busy":
                gate.enter()
            return n

        engine.submit_many(work.options(key="busy").call("busy", n) for n in range(MANY))
        gate.wait()
        # Behind them all, in the same lane.
        other = work.options(key="idle").submit("idle", 7)
        assert other.result(PATIENCE_S) == 7
        for _ in range(6):
            checkpoint(engine)
            when(engine, lambda runtime: True)
        bounds = core_of(engine).placement.bounds
        assert core_of(engine).placement.lanes.waits.row_count >= MANY - 1_100
        assert len(core_of(engine).hot) <= 1 + bounds.waits_window + bounds.window_max
        assert engine.stats().ready in range(MANY - 1, MANY + 200)
        gate.open()


def test_they_run_in_order_and_one_at_a_time_after_a_stop(tmp_path: Path) -> None:
    with (
        hold_handlers() as gate,
        make(tmp_path / "data", shards=1, durability="process", threads=4) as engine,
    ):

        @engine.task(name="work")
        def held(n: int) -> None:
            gate.enter()

        engine.submit_many(held.options(key="busy").call(n) for n in range(400))
        gate.wait()
        checkpoint(engine)
        when(engine, lambda runtime: core_of(engine).placement.lanes.waits.queues)
        checkpoint(engine)
        assert core_of(engine).placement.lanes.waits.row_count > 300
        engine.stop(0, 0)
    ran: list[int] = []
    with make(tmp_path / "data", shards=1, durability="process") as engine:

        @engine.task(name="work")
        def work(n: int) -> None:
            ran.append(n)

        when(engine, lambda runtime: core_of(engine).counters == {("work", 2): 400})
    # The first was running at the stop, and waits until its thread has ended.
    assert [n for n in ran if n] == list(range(1, 400))
    assert len(ran) == 400
