"""What operators and breakers change is durable when it is told, and nothing is told before."""

import errno
import threading
from pathlib import Path
from typing import Any

import pytest

from kit.engines import make, rig, runtime_of, when
from kit.faulty import FaultyDisk
from parkade import Breaker, Engine, Limit, RetryPolicy, StorageError, StorageFull
from parkade.guards import Pause
from parkade.house import HouseState
from parkade.limits import HOUSE_JOURNAL_BYTES
from parkade.shard.breaker import Circuit
from parkade.store.parked import Parked
from parkade.store.record import BreakerSet, LimitSet, Paused, Resumed


def faulty(path: Path, disk: FaultyDisk) -> Engine:
    return rig(make(path / "data", durability="process", threads=4), disk=disk)


def test_the_house_keeps_what_is_not_as_the_code_has_it_and_nothing_else() -> None:
    state, circuit = HouseState(), Circuit()
    circuit.force_open(5, None, "by hand")
    state.apply(BreakerSet("psp", circuit.encode()))
    state.apply(Paused("task:mail", 70, "later"))
    state.apply(Paused("task:note", None, "for good"))
    state.apply(LimitSet("task:mail", b"numbers"))
    assert state.breakers == {"psp": circuit.encode()}
    assert state.pauses == {"task:mail": Pause(70, "later"), "task:note": Pause(None, "for good")}
    state.forget_pauses(69)
    assert len(state.pauses) == 2
    state.forget_pauses(70)
    assert list(state.pauses) == ["task:note"]
    state.apply(Resumed("task:note"))
    state.apply(Resumed("task:note"))
    state.apply(LimitSet("task:mail", None))
    circuit.close()
    state.apply(BreakerSet("psp", circuit.encode()))
    assert state == HouseState()


def test_a_write_that_fails_is_made_again_on_a_recovered_house(tmp_path: Path) -> None:
    disk = FaultyDisk()
    with faulty(tmp_path, disk) as engine:
        engine.task(name="mail")(lambda: None)
        disk.break_next("write", "house/journal")
        engine.pause(task="mail", reason="once")
        ticket = engine.submit("mail", {})
        assert ticket.why().blockers == ["pause task:mail"]
        runtime_of(engine).abandon()
    with make(tmp_path / "data", durability="process") as engine:
        engine.task(name="mail")(lambda: None)
        assert engine.ticket(ticket.id).why().blockers == ["pause task:mail"]


def test_a_change_that_cannot_be_written_is_not_made_and_the_next_one_is(tmp_path: Path) -> None:
    disk = FaultyDisk()
    with faulty(tmp_path, disk) as engine:
        engine.task(name="mail")(lambda: None)
        disk.break_next("write", "house/journal")
        disk.break_next("open", "house/journal")
        with pytest.raises(StorageError) as failed:
            engine.pause(task="mail")
        assert failed.value.code == "PK-109"
        assert engine.submit("mail", {}).result("20s") is None
        engine.pause(task="mail")
        assert engine.submit("mail", {}).why().blockers == ["pause task:mail"]


def test_a_full_disk_refuses_a_change_and_says_so(tmp_path: Path) -> None:
    disk = FaultyDisk()
    with faulty(tmp_path, disk) as engine:
        engine.task(name="mail")(lambda: None)
        disk.is_full = True
        try:
            for number in range(2_000):
                engine.limits.set("task:mail", concurrency=number + 1)
        except StorageFull as full:
            assert full.code == "PK-106"
        disk.is_full = False
        engine.limits.set("task:mail", concurrency=7)
        assert [each.concurrency for each in engine.limits.list()] == [7]


@pytest.mark.parametrize("code", [errno.ENOSPC, errno.EIO])
def test_a_checkpoint_of_the_house_that_fails_takes_nothing_back(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, code: int
) -> None:
    codes: list[int] = []

    def commit_hook(point: str) -> None:
        if codes and point == "before_commit":
            raise OSError(codes.pop(), "as the disk says")

    def open_store(directory: str, **given: Any) -> Parked:
        hook = commit_hook if "/house/" in directory else None
        return Parked.open(directory, commit_hook=hook, **given)

    monkeypatch.setattr("parkade.levers.HOUSE_JOURNAL_BYTES", 0)
    engine = make(tmp_path / "data", durability="process", run=False)
    with rig(engine, open_store=open_store):
        codes.append(code)
        engine.pause(target="psp", reason="once")
        assert not codes
        engine.pause(target="bank", reason="and again")
        house = runtime_of(engine).house
        assert house.store.lsn == house.lsn
        runtime_of(engine).abandon()
    with make(tmp_path / "data", durability="process", run=False) as engine:
        assert runtime_of(engine).house.state.pauses.keys() == {"target:psp", "target:bank"}


def test_a_trip_is_in_force_at_once_and_told_when_it_is_durable(tmp_path: Path) -> None:
    disk = FaultyDisk()
    with faulty(tmp_path, disk) as engine:
        allowed = threading.Event()
        breaker = Breaker("psp", failures=1, open_for="1m")

        @engine.task(target="psp", breaker=breaker, retry=RetryPolicy(9, backoff=["1h"]))
        def charge() -> None:
            raise ValueError("no")

        house = runtime_of(engine).house
        append = house.append

        def late(records: list[object]) -> None:
            assert allowed.wait(20)
            append(records)  # type: ignore[arg-type]

        house.append = late  # type: ignore[method-assign, assignment]
        charge.submit()
        when(engine, lambda runtime: bool(runtime.attempts.admission.guards.circuits))
        second = charge.submit()
        asked: list[str] = []
        thread = threading.Thread(target=lambda: asked.append(second.why().text))
        thread.start()
        assert second.info().attempts == 0, "held, though nobody was told yet"
        assert not asked
        allowed.set()
        thread.join(20)
        assert 'breaker "psp" is open' in asked[0]
        runtime_of(engine).abandon()
    with make(tmp_path / "data", durability="process") as engine:
        assert engine.breakers["psp"].state == "open"


def test_breakers_that_open_and_close_for_ever_fill_no_journal(tmp_path: Path) -> None:
    with make(tmp_path / "data", durability="process") as engine:
        for number in range(300):
            engine.breakers.force_open("psp", reason=f"for the {number}th time {'x' * 1_000}")
            engine.breakers.close("psp")
        house = runtime_of(engine).house
        assert house.store.lsn > 0
        assert house.journal.bytes_since(house.store.lsn) <= HOUSE_JOURNAL_BYTES + 70_000
        engine.limits.set("task:note", concurrency=3)
        runtime_of(engine).abandon()
    with make(tmp_path / "data", durability="process") as engine:
        engine.task(name="note", limits=[Limit(concurrency=9)])(lambda: None)
        assert engine.breakers["psp"].state == "closed"
        assert engine.breakers.list() == []


def test_a_stop_writes_what_a_breaker_did_at_its_very_end(tmp_path: Path) -> None:
    with make(tmp_path / "data", durability="process", threads=2) as engine:
        began, allowed = threading.Event(), threading.Event()

        @engine.task(target="psp", breaker=Breaker("psp", failures=1, open_for="5m"))
        def charge() -> None:
            began.set()
            assert allowed.wait(20)
            raise ValueError("no")

        charge.submit()
        assert began.wait(20)
        stopping = threading.Thread(target=engine.stop)
        stopping.start()
        allowed.set()
        stopping.join(20)
    with make(tmp_path / "data", durability="process") as engine:
        assert engine.breakers["psp"].state == "open"
