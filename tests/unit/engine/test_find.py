"""Pages of tickets: what they hold, and that a walk over them meets each ticket once."""

import asyncio
from pathlib import Path
from typing import Any

import pytest

from kit.engines import checkpoint, make, recount, runtime_of, walk
from parkade import ConfigError


@pytest.mark.parametrize("is_parked", [False, True], ids=["hot", "parked"])
def test_tickets_are_found_by_state_task_and_key(tmp_path: Path, is_parked: bool) -> None:
    with make(tmp_path / "data") as engine:
        a = engine.task(name="a")(lambda n: n)
        b = engine.task(name="b", retry=None)(lambda n: 1 // n)
        done = [a.options(key="k" if n < 2 else None).submit(n).id for n in range(4)]
        dead = [b.options(key="k").submit(0).id for _ in range(3)]
        sleeping = [a.options(delay="1h").submit(n).id for n in range(5)]
        for each in done:
            engine.ticket(each).result("20s")
        for each in dead:
            with pytest.raises(Exception, match="division"):
                engine.ticket(each).result("20s")
        engine.ticket(sleeping[0]).cancel()
        if is_parked:
            checkpoint(engine)
            assert all(not shard.core.hot for shard in runtime_of(engine).shards)

        def ids(**asked: Any) -> list[str]:
            return [info.id for info in walk(engine.find, limit=2, **asked)]

        everything = sorted(done + dead + sleeping, reverse=True)
        assert ids() == everything
        assert ids(state="done") == done[::-1]
        assert ids(state="dead") == dead[::-1]
        assert ids(state="scheduled") == sleeping[:0:-1]
        assert ids(state="cancelled") == sleeping[:1]
        assert ids(state="running") == ids(state="expired") == ids(state="ready") == []
        assert ids(task="a") == sorted(done + sleeping, reverse=True)
        assert ids(task="a", state="done") == done[::-1]
        assert ids(task="b", state="done") == []
        assert ids(key="k") == sorted(done[:2] + dead, reverse=True)
        assert ids(key="k", task="b", state="dead") == dead[::-1]
        assert ids(key="other") == ids(task="c") == []
        assert recount(engine) == engine.stats().by_task


def test_a_walk_meets_all_that_stay_once_while_others_come_and_go(tmp_path: Path) -> None:
    with make(tmp_path / "data", shards=3, run=False) as engine:
        task = engine.task(name="note")(lambda n: n)
        later = task.options(delay="1h")
        stay = [t.id for t in engine.submit_many(later.call(n) for n in range(60))]
        go = [t.id for t in engine.submit_many(later.call(n) for n in range(60))]
        met: list[str] = []
        cursor: str | None = None
        step = 0
        while True:
            page = engine.find(state="scheduled", limit=7, cursor=cursor)
            met += [info.id for info in page]
            for _ in range(5):
                if go:
                    engine.ticket(go.pop(step % len(go))).cancel()
            later.submit(1)
            if step % 4 == 1:
                checkpoint(engine)
            step += 1
            cursor = page.next
            if cursor is None:
                break
        assert len(met) == len(set(met)), "none twice"
        assert set(stay) <= set(met), "none left out"
        assert met == sorted(met, reverse=True)
        assert step > 8


def test_pages_are_cut_at_their_limit_and_say_whether_there_is_more(tmp_path: Path) -> None:
    with make(tmp_path / "data", run=False) as engine:
        task = engine.task(name="note")(lambda n: n)
        engine.submit_many(task.call(n) for n in range(10))
        page = engine.find(limit=4)
        assert (len(page.items), page.complete, page.next is None) == (4, True, False)
        page = engine.find(limit=10)
        assert len(page.items) == 10
        assert page.next is None or not engine.find(cursor=page.next).items
        page = engine.find(limit=1000)
        assert (len(page.items), page.next) == (10, None)
        assert engine.find(limit=4, task="other").items == []


def test_what_cannot_be_asked_is_refused(tmp_path: Path) -> None:
    with make(tmp_path / "data", run=False) as engine:
        find: Any = engine.find
        for asked in (
            {"state": "sleeping"}, {"limit": 0}, {"limit": 1001}, {"limit": True},
            {"limit": "ten"}, {"cursor": "next please"}, {"cursor": 7}, {"state": 3},
        ):  # fmt: skip
            with pytest.raises(ConfigError) as caught:
                find(**asked)
            assert caught.value.code == "PK-107"
            assert next(iter(asked)) in str(caught.value)


def test_coroutines_find_like_threads_do(tmp_path: Path) -> None:
    engine = make(tmp_path / "data", run=False)
    task = engine.task(name="note")(lambda n: n)

    async def main() -> None:
        async with engine:
            tickets = await engine.asubmit_many(task.call(n) for n in range(5))
            page = await engine.afind(task="note", limit=3)
            assert [info.id for info in page] == [ticket.id for ticket in tickets[:1:-1]]

    asyncio.run(main())
