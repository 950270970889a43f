"""The tickets of a bulk submit: a sequence of handles that are made when they are looked at."""

from pathlib import Path

import pytest

from kit.engines import make


def test_a_handle_is_made_when_it_is_looked_at_and_then_the_same_each_time(tmp_path: Path) -> None:
    with make(tmp_path / "data") as engine:

        @engine.task
        def scale(n: int) -> int:
            return 2 * n

        @engine.task
        def once(n: int) -> int:
            return n

        calls = [scale.call(n) for n in range(5)] + [once.options(unique="x").call(7)]
        tickets = engine.submit_many(calls, chunk=3)
        assert len(tickets) == 6 and len(engine.submit_many([])) == 0
        assert tickets[1] is tickets[1] is tickets[-5] is tickets[1:3][0] is list(tickets)[1]
        assert tickets == list(tickets) and tickets != list(tickets)[1:]
        assert [ticket.task for ticket in tickets] == ["scale"] * 5 + ["once"]
        assert [ticket.result("20s") for ticket in tickets] == [0, 2, 4, 6, 8, 7]
        assert all(ticket.created for ticket in tickets)
        (again,) = engine.submit_many([once.options(unique="x").call(7)])
        assert again.id == tickets[5].id and not again.created
        with pytest.raises(IndexError):
            tickets[6]
