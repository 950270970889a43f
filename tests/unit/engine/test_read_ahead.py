"""What is due comes into the lanes a slice at a time, so that a crowd keeps nobody waiting."""

from pathlib import Path

import pytest

from parkade import limits
from parkade.read_ahead import ReadAhead
from parkade.shard.lanes import Lanes
from parkade.shard.ticket import Ticket
from parkade.testing import TestEngine


def test_a_crowd_that_is_due_at_once_comes_into_its_lanes_slice_by_slice(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    entered: list[int] = []
    slices: list[int] = []
    fire, enter = ReadAhead.fire, Lanes.enter

    def counted_fire(self: ReadAhead) -> None:
        entered.append(0)
        fire(self)
        slices.append(entered.pop())

    def counted_enter(self: Lanes, ticket: Ticket) -> None:
        if entered:
            entered[-1] += 1
        enter(self, ticket)

    monkeypatch.setattr(ReadAhead, "fire", counted_fire)
    monkeypatch.setattr(Lanes, "enter", counted_enter)
    count = 2 * limits.FIRE_MAX + 10
    with TestEngine(tmp_path / "garage", shards=1) as engine:

        @engine.task
        def noop() -> None: ...

        engine.submit_many([noop.options(delay="10s").call()] * count)
        engine.clock.advance("10s")
        engine.run_until_idle(max_tickets=2 * count)
    assert max(slices) == limits.FIRE_MAX
    assert sum(slices) == count
