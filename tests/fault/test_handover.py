"""Children and routes between shards, with the process dying between any two of their steps."""

from functools import partial
from pathlib import Path

import lmdb
import pytest

from kit.cut_short import CutShort, MortalEngine
from kit.engines import make, recount
from kit.failing import key_of
from parkade import Attempt, Engine, Outcome
from parkade.testing import TestEngine


class Shop:
    """Sells: a handler submits orders with a key and a unique, and so does somebody outside."""

    def __init__(self, path: Path, *, checkpoints: bool, has_uniques: bool = True) -> None:
        self.receipts: list[str] = []
        self.engine = MortalEngine(path, shards=2)
        engine = self.engine

        @engine.task(key="{who}", summary="{who}{n}")
        def order(who: str, n: int) -> str:
            return f"{who}{n}"

        @engine.task(unique="{outcome.ticket_id}" if has_uniques else None)
        def receipt(outcome: Outcome[None]) -> None:
            self.receipts.append(outcome.ticket_id)
            order.options(unique="b3").submit("b", 3)

        @engine.task(on_done=receipt)
        def sell(attempt: Attempt) -> list[str]:
            once = order.options(unique="once") if has_uniques else order
            calls = [order.call(who, n) for n in range(3) for who in "ab" if (who, n) != ("a", 1)]
            ids = [attempt.submit(call).id for call in [*calls, once.call("a", 1)]]
            if has_uniques:
                once.submit("a", 1)
            if checkpoints:
                self.want_checkpoints()
            return ids

    def want_checkpoints(self) -> None:
        for shard in self.engine.desk("test").runtime.shards:
            shard.checkpointing.is_wanted = shard.is_stirred = True

    def check(self, engine: TestEngine) -> None:
        """Everything is there once, and of a key in its order."""
        sell, order, receipt = (engine.lookup(name) for name in ("sell", "order", "receipt"))
        (sold,) = engine.submitted(sell)
        assert sold.state == "done"
        orders = engine.submitted(order)
        names = sorted(info.summary or "" for info in orders)
        assert names == ["a0", "a1", "a2", "b0", "b1", "b2", "b3"]
        assert {info.state for info in orders} == {"done"}
        ids = engine.ticket(sold.id).result()
        results = [order.ticket(child).result() for child in ids]
        assert " ".join(results) == "a0 b0 b1 a2 b2 a1"
        (told,) = engine.submitted(receipt)
        assert told.state == "done"
        assert engine.stats().by_task == recount(engine)
        assert all(len(engine.ticket(info.id).attempts()) == info.fence for info in orders)
        runtime = engine.desk("test").runtime
        assert not any(shard.core.outbox.windows for shard in runtime.shards)
        for shard in runtime.shards:
            with shard.store.snapshot() as snapshot:
                handed = {r for r, _ in shard.core.outbox.changed()}
                assert not handed and (shard.core.dirty.handed or not snapshot.outbox(limit=9))

    def check_order(self) -> None:
        """What the handler submits by its outcome starts before what is submitted by who hears of
        that, if it has the same key; whatever becomes of their attempts."""
        engine = self.engine
        (sold,) = engine.submitted(engine.lookup("sell"))
        assert sold.id in self.receipts
        firsts = sorted(
            (engine.ticket(info.id).attempts()[0].started_at, info.summary or "")
            for info in engine.submitted(engine.lookup("order"))
        )
        # Number 1 of the first key was there before its outcome.
        started = [name for _, name in firsts if name != "a1"]
        assert [name for name in started if name[0] == "a"] == ["a0", "a2"]
        assert [name for name in started if name[0] == "b"] == ["b0", "b1", "b2", "b3"]


@pytest.mark.parametrize("checkpoints", [False, True], ids=["in the journal", "in the store"])
@pytest.mark.parametrize("lives", [2, 3])
def test_what_an_outcome_brings_forth_is_there_once_wherever_the_process_dies(
    tmp_path: Path, checkpoints: bool, lives: int
) -> None:
    steps, died = 0, True
    while died:
        shop = Shop(tmp_path / f"data{steps}", checkpoints=checkpoints, has_uniques=lives == 3)
        # Either frame may be written first: that of the sender, or that of who has it from there.
        shop.engine.is_reversed = lives == 2
        with shop.engine as engine:
            engine.lookup("sell").options(key=key_of(checkpoints)).submit()
            engine.die_after(steps)
            try:
                engine.run_until_idle(skip_time=True)
                died = False
                engine.die_after(None)
            except CutShort:
                if lives == 2:
                    engine.crash()
                else:
                    engine.crash_twice(steps * 5 % 13)
            engine.run_until_idle(skip_time=True)
            shop.check(engine)
            shop.check_order()
        steps += 1
    assert steps > 12


def test_a_shard_that_is_recovered_amid_hand_overs_takes_each_of_them_once(tmp_path: Path) -> None:
    """Either side, at each step: its memory is thrown away, the process goes on."""
    for number in (0, 1):
        steps, recoveries = 0, 1
        while recoveries:
            shop = Shop(tmp_path / f"data{number}-{steps}", checkpoints=steps % 4 == 0)
            with shop.engine as engine:
                engine.lookup("sell").submit()
                host = engine.desk("test").runtime.host
                engine.drive.at_step = steps, partial(host.shards[number].poison, OSError("gone"))
                engine.run_until_idle(skip_time=True)
                recoveries = host.shards[number].recoveries
                shop.check(engine)
                shop.check_order()
            steps += 2
        assert steps > 20


def test_entries_for_a_shard_that_is_closed_wait_for_it_and_cost_a_window_of_memory(
    tmp_path: Path,
) -> None:
    with TestEngine(tmp_path / "data", shards=2) as engine:

        @engine.task(key="{n}")
        def order(n: int) -> int:
            return n

        @engine.task
        def sell(attempt: Attempt, first: int) -> None:
            for n in range(first, first + 500):
                attempt.submit(order.call(n))

        runtime = engine.desk("test").runtime
        sells = [sell.options(key=key_of(0)).submit(n * 500) for n in range(3)]
        engine.desk("test").runtime.shards[1].refuse(OSError("closed"))
        engine.run_until_idle()
        assert [ticket.info().state for ticket in sells] == ["done"] * 3
        outbox = runtime.shards[0].core.outbox
        assert len(outbox.windows[1]) == 512 and 1 in outbox.beyond and 0 not in outbox.windows
        shard = runtime.shards[0]
        shard.checkpointing.is_wanted = shard.is_stirred = True
        engine.run_until_idle()
        assert not outbox.changed()  # what is beyond the window lies in the store alone
        assert all(shard.is_quiet for shard in runtime.shards)
        done = engine.stats().by_task["order"]["done"]
        assert 0 < done < 1500
    again = TestEngine(tmp_path / "data")
    again.task(name="order", key="{n}")(order.handler.fn)
    with again:
        again.run_until_idle()
        infos = again.submitted(again.lookup("order"))
        assert sorted(int(info.key or -1) for info in infos) == list(range(1500))
        assert {info.state for info in infos} == {"done"}


def test_what_waited_for_a_shard_is_there_before_anything_of_its_key_starts(tmp_path: Path) -> None:
    started: list[int] = []
    with MortalEngine(tmp_path / "data", shards=2) as engine:

        @engine.task(key=key_of(1), unique="{n}")
        def order(n: int) -> None:
            started.append(n)

        @engine.task(key=key_of(0))
        def sell(attempt: Attempt) -> None:
            for n in range(3):
                attempt.submit(order.call(n))

        order.options(delay="1m").submit(9)
        engine.desk("test").runtime.shards[1].refuse(OSError("closed"))
        sell.submit()
        engine.run_until_idle()
        engine.clock.advance("1h")
        engine.starts_at_once = True
        engine.crash()
        engine.run_until_idle()
    assert started == [0, 1, 2, 9]


def test_a_damaged_unique_keeps_no_child_from_being_made_and_nothing_behind_it(
    tmp_path: Path,
) -> None:
    path = tmp_path / "data"

    def shop() -> Engine:
        engine = make(path, durability="process")

        @engine.task(key=key_of(1), unique="{n}")
        def order(n: int) -> int:
            return n

        @engine.task(key=key_of(0))
        def sell(attempt: Attempt) -> list[str]:
            return [attempt.submit(order.call(n)).id for n in range(3)]

        return engine

    with shop() as engine:
        first = engine.lookup("order").submit(1)
        first.result("20s")
    harm_every_row(path / "shard-001/store", b"uniques")
    with shop() as engine:
        ids = engine.lookup("sell").submit().result("20s")
        assert [engine.ticket(child).result("20s") for child in ids] == [0, 1, 2]
        assert first.id not in ids


def harm_every_row(path: Path, table: bytes) -> None:
    with lmdb.open(str(path), max_dbs=32, lib_version=0) as store:
        rows = store.open_db(table)
        with store.begin(write=True) as transaction:
            stored = [(bytes(key), bytes(row)) for key, row in transaction.cursor(rows)]
            assert stored
            for key, row in stored:
                transaction.put(key, bytes([row[0] ^ 1]) + row[1:], db=rows)
