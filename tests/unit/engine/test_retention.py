"""Keeping and forgetting: by age, by number, by task; and what is left of a forgotten ticket."""

from collections.abc import Iterator
from contextlib import contextmanager
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest

from parkade import ConfigError, Fail, ResultGone, Snooze, UnknownTicket, limits
from parkade.keeping import share_of
from parkade.store.environment import open_environment, open_tables
from parkade.store.record import Forgotten
from parkade.testing import TestEngine

EMPTY = ("heads", "bodies", "history", "ended", "listings", "indexes", "uniques", "unique_ends")


def settle(engine: TestEngine, *, steps: int = 4) -> None:
    """Time for checkpoints and for looking at what may go."""
    for _ in range(steps):
        engine.clock.advance("6s")
        engine.run_until_idle()


def runtime_of(engine: TestEngine) -> Any:
    return engine.desk("a test").runtime


def entries(engine: TestEngine) -> dict[str, int]:
    """Rows by table, over all shards."""
    stats = [shard.store.stat().entries for shard in runtime_of(engine).shards]
    return {name: sum(stat[name] for stat in stats) for name in stats[0]}


def records(engine: TestEngine) -> Any:
    """How many of each type have become durable."""
    drive = engine._drive
    assert drive is not None
    return drive._records


@contextmanager
def noting(**options: Any) -> Iterator[tuple[TestEngine, Any]]:
    """An engine of one shard, and a task that gives what it is given."""
    with TestEngine(**{"shards": 1, "keep_done": "24h", **options}) as engine:

        @engine.task(name="note")
        def note(n: int) -> int:
            return n

        yield engine, note


def test_of_more_than_are_kept_by_number_the_first_that_ended_go() -> None:
    with noting(keep_done_max=10) as (engine, note):
        tickets = []
        for n in range(30):
            tickets.append(note.submit(n))
            engine.run_until_idle()
            engine.clock.advance("1s")
        settle(engine)
        assert [info.id for info in engine.submitted(note)] == [t.id for t in tickets[20:]]
        assert engine.stats().done_total == 30
        assert tickets[25].result() == 25
        with pytest.raises(UnknownTicket):
            tickets[3].result()


def test_the_shards_share_the_number_and_all_ends_but_death_count() -> None:
    with noting(shards=3, keep_done_max=12) as (engine, note):

        @engine.task(name="fail")
        def fail() -> None:
            raise Fail("on purpose")

        for n in range(40):
            note.submit(n)
        for n in range(20):
            note.options(delay="1d").submit(n).cancel()
        for n in range(20):
            note.options(expires="1s", key="k", target="closed").submit(n)
        engine.pause(target="closed")
        for _ in range(7):
            fail.submit()
        engine.run_until_idle()
        settle(engine, steps=8)
        counts = engine.stats().by_task
        assert sum(counts["note"].values()) == 12
        assert counts["fail"] == {"dead": 7}


@pytest.mark.parametrize(
    ("counts", "most", "shares"),
    [
        ([10, 10, 10, 10], 10, [3, 3, 2, 2]),
        ([0, 0, 0, 50], 10, [0, 0, 0, 10]),
        ([1, 20, 2, 30], 13, [1, 5, 2, 5]),
        ([4, 4], 8, [4, 4]),
        ([3, 0], 8, [3, 0]),
        ([5, 5], 1, [1, 0]),
        ([7], 0, [0]),
    ],
)
def test_what_one_shard_does_not_need_is_the_others(
    counts: list[int], most: int, shares: list[int]
) -> None:
    assert [share_of(place, counts, most) for place in range(len(counts))] == shares


def test_a_task_keeps_its_own_as_long_as_it_says_whatever_their_number() -> None:
    with noting(keep_done="1m", keep_done_max=3) as (engine, note):

        @engine.task(name="invoice", keep="30d")
        def invoice(n: int) -> int:
            return n

        @engine.task(name="ping", keep="0s")
        def ping() -> None: ...

        kept = [invoice.submit(n) for n in range(8)]
        for n in range(6):
            note.submit(n)
        ping.submit()
        engine.run_until_idle()
        settle(engine)
        assert engine.stats().by_task == {"note": {"done": 3}, "invoice": {"done": 8}}
        engine.clock.advance("29d")
        settle(engine)
        assert [ticket.result() for ticket in kept] == list(range(8))
        engine.clock.advance("2d")
        settle(engine)
        assert engine.stats().by_task == {}
        assert engine.stats().done_total == 15


def test_what_a_task_keeps_is_kept_by_engines_that_do_not_know_it(tmp_path: Path) -> None:
    options: dict[str, Any] = {"shards": 1, "keep_done": "1h", "durability": "process"}
    with TestEngine(tmp_path, **options) as engine:

        @engine.task(name="invoice", keep="30d")
        def invoice(n: int) -> int:
            return n

        ticket = invoice.submit(1)
        engine.run_until_idle()
        settle(engine)
        clock = engine.clock
    for _ in range(2):
        with TestEngine(tmp_path, clock=clock, **options) as engine:
            clock.advance("2d")
            settle(engine)
            assert engine.ticket(ticket.id).result() == 1
    with TestEngine(tmp_path, clock=clock, **options) as engine:
        engine.task(name="invoice", keep="1d")(lambda n: n)
        settle(engine)
        with pytest.raises(UnknownTicket):
            engine.ticket(ticket.id).result()


def test_the_dead_stay_unless_the_engine_is_told_how_long() -> None:
    for keep_dead, is_kept in ((None, True), ("3d", False)):
        with noting(keep_dead=keep_dead) as (engine, _):

            @engine.task(name="fail", retry=None)
            def fail() -> None:
                raise Fail("on purpose")

            ticket = fail.options(unique="once").submit()
            engine.run_until_idle()
            engine.clock.advance("2d")
            settle(engine)
            assert ticket.info().state == "dead"
            engine.clock.advance("365d")
            settle(engine)
            assert engine.dead.count() == is_kept
            assert fail.options(unique="once").submit().created is not is_kept


def test_who_came_back_and_died_again_is_kept_from_that_death_on() -> None:
    with noting(keep_dead="3d") as (engine, _):

        @engine.task(name="fail", retry=None)
        def fail() -> None:
            raise Fail("on purpose")

        ticket = fail.submit()
        engine.run_until_idle()
        engine.clock.advance("2d")
        settle(engine)
        engine.dead.revive(ticket.id)
        engine.run_until_idle()
        engine.clock.advance("2d")
        settle(engine)
        assert ticket.info().state == "dead"
        engine.clock.advance("2d")
        settle(engine)
        assert engine.dead.count() == 0
        assert entries(engine)["heads"] == entries(engine)["ended"] == 0


def test_a_unique_outlives_its_ticket_that_was_forgotten_by_number() -> None:
    with noting(keep_done_max=1) as (engine, note):
        first = note.options(unique="a").submit(1)
        note.options(unique="b").submit(2)
        engine.run_until_idle()
        settle(engine)
        again = note.options(unique="a").submit(3)
        assert (again.id, again.created) == (first.id, False)
        with pytest.raises(ResultGone) as gone:
            again.result()
        assert gone.value.code == "PK-405"
        engine.clock.advance("25h")
        settle(engine)
        assert note.options(unique="a").submit(3).created


def test_a_unique_is_taken_as_long_as_its_task_keeps_what_has_ended() -> None:
    with noting() as (engine, _):
        invoice = engine.task(name="invoice", keep="30d")(lambda n: n)
        first = invoice.options(unique="a").submit(1)
        engine.run_until_idle()
        engine.clock.advance("29d")
        assert invoice.options(unique="a").submit(1).id == first.id
        engine.clock.advance("2d")
        settle(engine)
        assert invoice.options(unique="a").submit(1).created


def test_nothing_of_a_forgotten_ticket_is_left_in_any_table() -> None:
    with noting(keep_done="1m", keep_dead="1m") as (engine, note):

        @engine.task(name="retry", retry=["1s", "1s"])
        def retry(n: int) -> None:
            raise Snooze("1s") if n % 2 and retry_count(n) < 2 else Fail("on purpose")

        counts: dict[int, int] = {}

        def retry_count(n: int) -> int:
            counts[n] = counts.get(n, 0) + 1
            return counts[n]

        for n in range(600):
            note.options(key=f"k{n % 7}", unique=f"u{n}").submit(n)
        for n in range(20):
            retry.submit(n)
        engine.run_until_idle(skip_time=True)
        settle(engine)
        assert entries(engine)["heads"] == 620
        engine.clock.advance("3m")
        settle(engine)
        assert {name: entries(engine)[name] for name in EMPTY} == dict.fromkeys(EMPTY, 0)
        assert engine.stats().by_task == {}


def test_a_long_backlog_is_worked_off_in_slices_between_other_work(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setattr(limits, "FORGET_MAX", 20)
    monkeypatch.setattr(limits, "FORGOTTEN_UNCOMMITTED_MAX", 100)
    options: dict[str, Any] = {"shards": 1, "durability": "process"}
    with TestEngine(tmp_path, **options) as engine:
        engine.task(name="note")(lambda n: n)
        engine.submit_many(engine.lookup("note").call(n) for n in range(2_000))
        engine.run_until_idle()
        clock = engine.clock
    with TestEngine(tmp_path, clock=clock, keep_done="1s", **options) as engine:
        note = engine.task(name="note")(lambda n: n)
        [shard] = runtime_of(engine).shards
        waiting: list[int] = []
        drop_committed = shard.retention._drop_committed

        def watch() -> None:
            drop_committed()
            waiting.append(sum(part.tickets for part in shard.retention._forgotten))

        monkeypatch.setattr(shard.retention, "_drop_committed", watch)
        settle(engine)
        assert engine.stats().by_task == {}
        assert records(engine)[Forgotten] == 100
        assert 100 <= max(waiting) < 120
        assert note.submit(1).info().state == "ready"


def test_each_kind_that_has_too_old_ones_gets_a_slice_in_turn(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(limits, "FORGET_MAX", 10)
    with noting(keep_done="1h", keep_dead="1h") as (engine, note):

        @engine.task(name="fail", retry=None)
        def fail(n: int) -> None:
            raise Fail("on purpose")

        engine.submit_many([note.call(n) for n in range(50)])
        engine.submit_many([fail.call(n) for n in range(50)])
        engine.run_until_idle()
        engine.submit_many([note.options(delay="1d").call(n) for n in range(50)])
        engine.cancel_many(task="note")
        settle(engine)
        [shard] = runtime_of(engine).shards
        forget = shard.retention._forget
        kinds: list[tuple[str, int]] = []

        def watch(kind: tuple[str, int], *what: Any) -> None:
            kinds.append(kind)
            forget(kind, *what)

        monkeypatch.setattr(shard.retention, "_forget", watch)
        engine.clock.advance("2h")
        settle(engine, steps=12)
        assert len(kinds) == 15
        assert [len(set(kinds[at : at + 3])) for at in range(0, 15, 3)] == [3] * 5


def test_a_ticket_whose_row_is_damaged_keeps_no_other_from_being_forgotten(
    tmp_path: Path,
) -> None:
    options: dict[str, Any] = {"shards": 1, "keep_done": "1h", "durability": "process"}
    with TestEngine(tmp_path, **options) as engine:
        engine.task(name="note")(lambda n: n)
        tickets = engine.submit_many(engine.lookup("note").call(n) for n in range(30))
        engine.run_until_idle()
        settle(engine)
        clock = engine.clock
        known = [engine.desk("a test").parse(ticket.id).serial for ticket in tickets]
    flip_head(f"{tmp_path}/shard-000/store", known[7])
    with TestEngine(tmp_path, clock=clock, **options) as engine:
        clock.advance("2h")
        settle(engine)
        assert entries(engine)["heads"] == 1
        assert engine.stats().by_task == {"note": {"done": 1}}


def flip_head(directory: str, serial: int) -> None:
    environment = open_environment(directory, map_bytes=1 << 26)
    tables = open_tables(environment, directory, is_new=False)
    key = serial.to_bytes(8, "big")
    with environment.begin(write=True) as transaction:
        row = transaction.get(key, db=tables.heads)
        assert row is not None
        transaction.put(key, bytes([row[0] ^ 1]) + row[1:], db=tables.heads)
    environment.close()


def test_what_a_crash_left_of_blobs_that_are_spent_goes_after_the_next_open() -> None:
    with noting(keep_done="1m") as (engine, note):
        for n in range(300):
            note.submit(n)
        engine.run_until_idle()
        settle(engine, steps=2)
        engine.clock.advance("2m")
        before = records(engine)[Forgotten]
        engine.run_until_idle()
        assert records(engine)[Forgotten] > before
        reopened = engine.crash()
        settle(reopened)
        assert entries(reopened)["heads"] == entries(reopened)["ended"] == 0
        assert reopened.stats().done_total == 300


def test_a_wall_clock_that_jumps_forgets_nothing() -> None:
    with noting(keep_done="1h", keep_done_max=None) as (engine, note):
        ticket = note.submit(1)
        engine.run_until_idle()
        settle(engine)
        engine.clock.step_wall(timedelta(days=365))
        settle(engine)
        assert ticket.result() == 1


def test_how_many_and_how_long_is_checked(tmp_path: Path) -> None:
    wrong: tuple[dict[str, Any], ...] = (
        {"keep_done_max": 0},
        {"keep_done_max": 1.5},
        {"keep_dead": "soon"},
        {"keep_done": -1},
    )
    for options in wrong:
        with pytest.raises((ConfigError, ValueError, TypeError)):
            TestEngine(tmp_path / "data", **options)
