"""An engine in which nothing happens: what its passes do, and what they notice all the same."""

from collections.abc import Iterator
from datetime import timedelta
from typing import Any

import pytest

from parkade import limits
from parkade.retention import Retention
from parkade.shard.ticket import part_of_key
from parkade.shard_host import ShardHost
from parkade.testing import TestEngine

SHARDS = 3


@pytest.fixture
def engine() -> Iterator[TestEngine]:
    with TestEngine(shards=SHARDS, keep_done="24h", keep_done_max=6) as engine:
        engine.task(name="note")(lambda n: n)
        yield engine


@pytest.fixture
def turns(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """The shards that were given turns."""
    given: list[int] = []
    turn = ShardHost.turn

    def noted(self: ShardHost) -> None:
        given.append(self.number)
        turn(self)

    monkeypatch.setattr(ShardHost, "turn", noted)
    return given


def pass_time(engine: TestEngine, count: int) -> None:
    """So many of the longest waits of the core thread, and what they wake it for."""
    for _ in range(count):
        engine.clock.advance(f"{limits.WAIT_MS_MAX}ms")
        engine.run_until_idle()


def come_to_rest(engine: TestEngine) -> None:
    pass_time(engine, 5 + limits.CHECKPOINT_AGE_MS // limits.WAIT_MS_MAX)


def test_shards_with_nothing_in_hand_get_turns_seldom(engine: TestEngine, turns: list[int]) -> None:
    engine.submit_many([engine.lookup("note").options(delay="1h").call(n) for n in range(9)])
    come_to_rest(engine)
    turns.clear()
    pass_time(engine, limits.REST_MS_MAX // limits.WAIT_MS_MAX)
    assert len(turns) <= SHARDS * (2 + limits.REST_MS_MAX // limits.RETENTION_REST_PAUSE_MS)


@pytest.mark.parametrize("seconds", [-3_600, 3_600, -2, 2])
def test_a_clock_that_was_set_gives_every_shard_a_turn(
    engine: TestEngine, turns: list[int], seconds: int
) -> None:
    come_to_rest(engine)
    turns.clear()
    engine.clock.step_wall(timedelta(seconds=seconds))
    host: Any = engine.desk("a test").runtime.host
    host.step()
    assert sorted(turns) == list(range(SHARDS))
    turns.clear()
    host.step()
    assert turns == []


def test_where_nothing_was_written_nothing_is_counted(
    engine: TestEngine, monkeypatch: pytest.MonkeyPatch
) -> None:
    looks: list[int] = []
    excess = Retention._excess

    def noted(self: Retention) -> int:
        looks.append(self._shard.number)
        return excess(self)

    monkeypatch.setattr(Retention, "_excess", noted)
    come_to_rest(engine)
    looks.clear()
    waits = limits.RETENTION_REST_PAUSE_MS // limits.WAIT_MS_MAX
    pass_time(engine, waits)
    assert len(looks) <= SHARDS, "each looks once in so long"
    looks.clear()
    engine.lookup("note").submit(1)
    pass_time(engine, 2)
    assert looks


def test_a_shard_at_rest_gives_way_to_one_that_grows(engine: TestEngine) -> None:
    keys = [f"key {n}" for n in range(100)]
    quiet, busy = (next(k for k in keys if part_of_key(k) % SHARDS == n) for n in (0, 1))
    note = engine.lookup("note")
    old = [note.options(key=quiet).submit(n) for n in range(6)]
    come_to_rest(engine)
    assert len(engine.submitted(note)) == 6
    for n in range(3):
        note.options(key=busy).submit(n)
    come_to_rest(engine)
    left = {info.id for info in engine.submitted(note)}
    assert len(left) == 6 and [ticket.id in left for ticket in old] == [False] * 3 + [True] * 3
