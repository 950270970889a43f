"""Pages of tickets: what they hold, and that a walk over them meets each ticket once."""

import asyncio
from collections import Counter
from concurrent.futures import ThreadPoolExecutor
from datetime import datetime, timedelta
from pathlib import Path
from typing import Any

import pytest

from kit.engines import checkpoint, make, recount, runtime_of, walk, when
from parkade import ConfigError, Engine, NaiveDatetime, finding, inquiring
from parkade.runtime import Runtime
from parkade.store.disk import RealDisk
from parkade.store.manifest import read_manifest
from parkade.testing import ManualClock
from parkade.verifying import verify_parts


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


@pytest.mark.parametrize("is_parked", [False, True], ids=["hot", "parked"])
def test_tickets_are_found_by_target_tag_due_and_creation(tmp_path: Path, is_parked: bool) -> None:
    clock = ManualClock()
    with make(tmp_path / "data", run=False, clock=clock, index_tags=("campaign",)) as engine:
        task = engine.task(name="note")(lambda n: n)
        start = clock.now()

        def submit(count: int, **options: Any) -> list[str]:
            calls = (task.options(**options).call(n) for n in range(count))
            return [ticket.id for ticket in engine.submit_many(calls)][::-1]

        may = submit(5, target="psp", tags={"campaign": "may", "team": "a"})
        clock.advance("1h")
        between = clock.now()
        june = submit(4, target="bank", tags={"campaign": "june"}, delay="1d")
        clock.advance("1h")
        plain = submit(3, target="psp", delay="2h")
        if is_parked:
            checkpoint(engine)

        def ids(**asked: Any) -> list[str]:
            return [info.id for info in walk(engine.find, limit=2, **asked)]

        assert ids(target="psp") == plain + may
        assert ids(target="psp", state="scheduled") == plain
        assert ids(tag=("campaign", "may")) == may
        assert ids(tag=("campaign", "june"), target="bank", task="note") == june
        assert ids(tag=("campaign", "june"), target="psp") == ids(tag=("campaign", "july")) == []
        assert ids(created_after=between) == plain
        assert ids(created_after=between - timedelta(milliseconds=1)) == plain + june
        assert ids(created_after=start - timedelta(days=9), tag=("campaign", "may")) == may
        assert ids(due_before=start + timedelta(milliseconds=1)) == may
        assert ids(due_before=start) == []
        assert ids(due_before=start + timedelta(hours=5), state="scheduled") == plain
        assert ids(due_before=start + timedelta(hours=5)) == plain + may


def test_which_tags_a_ticket_is_found_by_is_settled_at_its_submit(tmp_path: Path) -> None:
    def opened(*index_tags: str) -> tuple[Engine, Any]:
        engine = make(tmp_path / "data", run=False, index_tags=index_tags)
        return engine, engine.task(name="note", tags={"a": "1", "b": "2"})(lambda n: n)

    engine, task = opened("a")
    with engine:
        old = task.submit(1).id
        assert [info.id for info in engine.find(tag=("a", "1"))] == [old]
    engine, task = opened("b")
    with engine:
        new = task.submit(2).id
        assert [info.id for info in engine.find(tag=("b", "2"))] == [new]
        with pytest.raises(ConfigError, match=r"index_tags=\(\"a\",\)"):
            engine.find(tag=("a", "1"))
    engine, task = opened("a", "b")
    with engine:
        assert [info.id for info in engine.find(tag=("a", "1"))] == [old]
        assert [info.id for info in engine.find(tag=("b", "2"))] == [new]
        assert engine.ticket(old).cancel() == "cancelled"
        checkpoint(engine)
        found = engine.find(tag=("a", "1"), state="cancelled")
        assert [info.id for info in found] == [old]


def test_what_is_forgotten_leaves_no_row_in_any_index(tmp_path: Path) -> None:
    clock = ManualClock()
    path = tmp_path / "data"
    with make(path, run=False, clock=clock, index_tags=("a",), keep_done="1m") as engine:
        task = engine.task(name="note")(lambda n: n)
        tagged = task.options(delay="1h", tags={"a": "1"}, target="t", key="k")
        tickets = engine.submit_many(tagged.call(n) for n in range(20))
        checkpoint(engine)
        for ticket in tickets[:12]:
            ticket.cancel()
        checkpoint(engine)
        clock.advance("10m")
        when(engine, lambda runtime: sum(engine_counts(runtime).values()) == 8)
        checkpoint(engine)
        for asked in ({"tag": ("a", "1")}, {"target": "t"}, {"key": "k"}, {"task": "note"}):
            page = engine.find(**asked)
            assert (len(page.items), page.scanned) == (8, 8), asked
    manifest = read_manifest(RealDisk(), str(path))
    assert manifest is not None
    for report in verify_parts(RealDisk(), str(path), manifest, deep=True):
        assert report.is_sound, report.problems


def engine_counts(runtime: Runtime) -> dict[tuple[str, int], int]:
    counts: Counter[tuple[str, int]] = Counter()
    for shard in runtime.shards:
        counts.update(shard.core.counters)
    return counts


def test_the_shortest_of_the_indexes_is_walked(tmp_path: Path) -> None:
    with make(tmp_path / "data", run=False, index_tags=("a",)) as engine:
        task = engine.task(name="note")(lambda n: n)
        engine.submit_many(
            task.options(delay="1h", target="all", tags={"a": str(n % 50)}).call(n)
            for n in range(500)
        )
        checkpoint(engine)
        page = engine.find(task="note", state="scheduled", target="all", tag=("a", "7"))
        assert (len(page.items), page.scanned, page.next) == (10, 10, None)
        assert engine.find(task="other", target="all").scanned == 0


def test_a_listing_of_a_few_is_walked_before_an_index_of_many(tmp_path: Path) -> None:
    with make(tmp_path / "data", run=False) as engine:
        many = engine.task(name="many")(lambda n: n).options(delay="1h", target="all")
        few = engine.task(name="few")(lambda n: n).options(delay="1h", target="all")
        engine.submit_many(many.call(n) for n in range(100))
        few.submit(0)
        checkpoint(engine)
        for page, count in (
            (engine.find(target="all", task="few"), 1),
            (engine.find(target="all", task="few", state="scheduled"), 1),
            (engine.find(target="all", state="done"), 0),
        ):
            assert page.scanned == len(page.items) == count


def test_a_state_of_all_tasks_is_their_listings_merged(tmp_path: Path) -> None:
    with make(tmp_path / "data", shards=1, run=False) as engine:
        tasks = [engine.task(name=f"task{n}")(lambda n: n) for n in range(7)]
        sleeping = [tasks[n % 5].options(delay="1h").submit(n).id for n in range(40)]
        for each in sleeping[::4]:
            engine.ticket(each).cancel()
        checkpoint(engine)
        cancelled = [info.id for info in walk(engine.find, state="cancelled", limit=3)]
        assert cancelled == sleeping[::4][::-1]
        left = [each for n, each in enumerate(sleeping) if n % 4]
        assert [info.id for info in walk(engine.find, state="scheduled", limit=3)] == left[::-1]
        assert engine.find(state="scheduled", limit=100).scanned == len(left)


def test_a_page_that_meets_too_few_ends_early_and_goes_on(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(inquiring, "FIND_SCAN_MAX", 40)
    monkeypatch.setattr(inquiring, "FIND_SLICE", 7)
    with make(tmp_path / "data", shards=1, run=False) as engine:
        task = engine.task(name="note")(lambda n: n)
        wanted = [task.options(delay="1h").submit(0).id]
        engine.submit_many(task.options(delay="9h").call(n) for n in range(200))
        checkpoint(engine)
        at = engine.ticket(wanted[0]).info().due_at + timedelta(milliseconds=1)
        page = engine.find(state="scheduled", due_before=at)
        assert (page.items, page.complete) == ([], False)
        assert 40 <= page.scanned < 50
        found = walk(engine.find, state="scheduled", due_before=at)
        assert [info.id for info in found] == wanted


def test_slices_of_a_page_meet_each_ticket_once_while_they_change(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(inquiring, "FIND_SLICE", 3)
    with make(tmp_path / "data", shards=1, run=False) as engine:
        task = engine.task(name="note")(lambda n: n)
        tickets = engine.submit_many(task.options(delay="1h").call(n) for n in range(90))
        checkpoint(engine)
        request = finding.find(engine.desk("test"), call="engine.find", task="note")
        with ThreadPoolExecutor(1) as pool:
            asked = pool.submit(engine.desk("test").ask, request)
            for ticket in tickets[::9]:
                ticket.reschedule(delay="3h")
                checkpoint(engine)
            page: Any = asked.result()
        assert [info.id for info in page] == [ticket.id for ticket in tickets[::-1]]


@pytest.mark.parametrize(
    "bad", ["campaign", [""], [3], ["a", "a"], [str(n) for n in range(33)], 7], ids=str
)
def test_index_tags_are_names_each_once(bad: Any) -> None:
    with pytest.raises(ConfigError, match="index_tags"):
        Engine("data", index_tags=bad)


@pytest.mark.parametrize("bad", ["campaign", ("campaign",), ("a", 3), {"campaign": "may"}, 7])
def test_a_tag_to_be_found_is_a_name_and_a_value(tmp_path: Path, bad: Any) -> None:
    engine = make(tmp_path / "data", run=False, index_tags=("campaign",))
    with engine, pytest.raises(ConfigError, match="tag"):
        engine.find(tag=bad)


def test_a_time_without_a_zone_is_refused(tmp_path: Path) -> None:
    naive = datetime(2027, 1, 1)
    with make(tmp_path / "data", run=False) as engine:
        with pytest.raises(NaiveDatetime):
            engine.find(due_before=naive)
        with pytest.raises(NaiveDatetime):
            engine.find(created_after=naive)
