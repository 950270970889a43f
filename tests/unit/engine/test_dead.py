"""The dead letter office: found, brought back, dropped."""

import asyncio
from collections.abc import Callable
from operator import attrgetter
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from kit.engines import make, recount, walk
from parkade import (
    Ambiguous,
    BlockingInEventLoop,
    ConfigError,
    Engine,
    Fail,
    NotDead,
    PayloadError,
    Task,
    TicketFailed,
    UnknownTask,
    UnknownTicket,
)
from parkade.inbox import Inbox


def office(engine: Engine, is_good: list[bool]) -> "Task[Any, Any]":
    """A task that dies as its argument says, until it is good."""

    @engine.task(retry=None)
    def work(how: str) -> str:
        if is_good:
            return f"{how} after all"
        raise {"fail": Fail("no"), "ambiguous": Ambiguous("who knows"), "crash": OSError("x")}[how]

    return work


def die(task: "Task[Any, Any]", *hows: str) -> list[str]:
    tickets = [task.submit(how) for how in hows]
    for ticket in tickets:
        with pytest.raises(TicketFailed):
            ticket.result("20s")
    return [ticket.id for ticket in tickets]


def test_dead_letters_are_found_by_what_they_died_of(tmp_path: Path) -> None:
    with make(tmp_path / "data") as engine:
        work = office(engine, [])
        fail, ambiguous, crash = die(work, "fail", "ambiguous", "crash")

        def ids(**asked: Any) -> list[str]:
            return [info.id for info in walk(engine.dead.find, limit=1, **asked)]

        assert ids() == [crash, ambiguous, fail]
        assert ids(reason="failed") == [fail]
        assert ids(reason="ambiguous") == [ambiguous]
        assert ids(reason="exhausted") == [crash]
        assert ids(error_type="OSError") == [crash]
        assert ids(task="work", reason="crashed") == ids(task="other") == []
        assert (engine.dead.count(), engine.dead.count(task="work")) == (3, 3)
        assert engine.dead.count(task="other") == 0


def test_reviving_gives_the_same_ticket_a_fresh_budget(tmp_path: Path) -> None:
    with make(tmp_path / "data") as engine:
        is_good: list[bool] = []
        work = office(engine, is_good)
        (fail,) = die(work, "fail")
        is_good.append(True)
        result = engine.dead.revive(fail)
        assert (result.matched, result.changed, result.skipped) == (1, 1, {})
        assert work.ticket(fail).result("20s") == "fail after all"
        info = work.ticket(fail).info()
        assert (info.attempts, info.fence) == (1, 2), "the fence goes on"
        assert [a.outcome for a in work.ticket(fail).attempts()] == ["error", "done"]
        again = engine.dead.revive(fail, "unheard-of", engine.find().items[0].id)
        assert (again.matched, again.changed) == (3, 0)
        assert again.skipped["unknown"] >= 1
        assert again.skipped["not_dead"] >= 1


def test_what_may_have_happened_is_revived_only_on_purpose(tmp_path: Path) -> None:
    with make(tmp_path / "data") as engine:
        is_good: list[bool] = []
        work = office(engine, is_good)
        ids = die(work, "ambiguous", "fail", "ambiguous")
        is_good.append(True)
        assert work.ticket(ids[0]).why().text.endswith("who knows; it may have happened")
        assert work.ticket(ids[1]).why().text.endswith("no")
        plan = engine.dead.revive(task="work", dry_run=True)
        assert (plan.matched, plan.changed, plan.skipped) == (3, 1, {"ambiguous": 2})
        assert engine.dead.count() == 3, "a plan changes nothing"
        done = engine.dead.revive(task="work")
        assert (done.matched, done.changed, done.skipped) == (3, 1, {"ambiguous": 2})
        assert work.ticket(ids[1]).result("20s") == "fail after all"
        done = engine.dead.revive(*ids, accept_ambiguous=True)
        assert (done.changed, done.skipped) == (2, {"not_dead": 1})
        assert work.ticket(ids[0]).result("20s") == "ambiguous after all"
        assert work.ticket(ids[0]).info().maybe_applied, "it stays said"


def test_a_revival_may_wait_and_keep_what_was_spent(tmp_path: Path) -> None:
    with make(tmp_path / "data") as engine:
        work = office(engine, [])
        first, second = die(work, "fail", "fail")
        assert engine.dead.revive(first, delay="1h").changed == 1
        info = work.ticket(first).info()
        assert (info.state, info.attempts, info.dead_reason) == ("scheduled", 0, None)
        assert engine.dead.revive(second, keep_attempts=True).changed == 1
        with pytest.raises(TicketFailed) as caught:
            work.ticket(second).result("20s")
        assert caught.value.reason == "exhausted", "no attempt was left"


def test_dropping_is_for_ever_and_frees_the_name(tmp_path: Path) -> None:
    with make(tmp_path / "data", durability="process") as engine:
        work = office(engine, [])
        named = work.options(unique="a")
        ticket = named.submit("fail")
        with pytest.raises(TicketFailed):
            ticket.result("20s")
        others = die(work, "fail", "ambiguous")
        assert named.submit("fail").id == ticket.id, "the dead keep their name"
        assert engine.dead.drop(ticket.id, dry_run=True).changed == 1
        assert engine.dead.drop(ticket.id).changed == 1
        with pytest.raises(UnknownTicket):
            ticket.info()
        assert named.options(delay="1h").submit("fail").created
        assert engine.dead.drop(task="work").changed >= 2
        assert recount(engine) == engine.stats().by_task
    with make(tmp_path / "data", durability="process", run=False) as engine:
        for each in (ticket.id, *others):
            with pytest.raises(UnknownTicket):
                engine.ticket(each).info()
        assert recount(engine) == engine.stats().by_task


def test_a_task_with_many_dead_is_revived_page_by_page(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("parkade.dead_bulk.BULK_PAGE", 7)
    with make(tmp_path / "data") as engine:
        work = office(engine, [])
        die(work, *["fail"] * 40)
        done = engine.dead.revive(task="work", delay="1h")
        assert (done.matched, done.changed) == (40, 40)
        stats = engine.stats()
        assert (stats.dead, stats.scheduled) == (0, 40)


def test_ids_or_a_group_or_a_task_and_never_two(tmp_path: Path) -> None:
    key = "0" * 16
    mixed: list[tuple[tuple[str, ...], dict[str, Any]]] = [
        ((), {}),
        (("x",), {"task": "work"}),
        (("x",), {"group": key}),
        ((), {"task": "work", "group": key}),
    ]
    with make(tmp_path / "data", run=False) as engine:
        for call in (engine.dead.revive, engine.dead.drop):
            for ids, given in mixed:
                with pytest.raises(ConfigError, match="give ids, or group=, or task=: one of them"):
                    call(*ids, **given)
            with pytest.raises(ConfigError, match=r"use the \.key of a group"):
                call(group="g1")


def test_coroutines_revive_like_threads_do(tmp_path: Path) -> None:
    engine = make(tmp_path / "data")
    is_good: list[bool] = []
    work = office(engine, is_good)

    async def main() -> None:
        async with engine:
            ticket = await work.asubmit("fail")
            with pytest.raises(TicketFailed):
                await ticket
            is_good.append(True)
            assert (await engine.dead.arevive(ticket.id)).changed == 1
            assert await ticket == "fail after all"

    asyncio.run(main())


def test_a_person_resolves_what_may_have_happened(tmp_path: Path) -> None:
    with make(tmp_path / "data", durability="process") as engine:
        work = office(engine, [])
        (ticket_id,) = die(work, "ambiguous")
        engine.dead.resolve(ticket_id, "paid by hand", note="asked the bank")
        assert work.ticket(ticket_id).result("20s") == "paid by hand"
        info = work.ticket(ticket_id).info()
        assert (info.state, info.dead_reason, info.maybe_applied) == ("done", None, True)
        assert "asked the bank" in work.ticket(ticket_id).why().text
        with pytest.raises(NotDead, match=r"is done, not dead.*PK-407") as caught:
            engine.dead.resolve(ticket_id, "again")
        assert (caught.value.ticket_id, caught.value.state) == (ticket_id, "done")
        assert engine.dead.count() == 0
        assert recount(engine) == engine.stats().by_task
    with make(tmp_path / "data", durability="process", run=False) as engine:
        assert engine.ticket(ticket_id).result("20s") == "paid by hand"


def test_a_resolution_has_to_be_a_result_of_the_task(tmp_path: Path) -> None:
    with make(tmp_path / "data", durability="process", max_payload=100) as engine:
        (ticket_id,) = die(office(engine, []), "ambiguous")
        for result in (7, object(), "long" * 100):
            with pytest.raises(PayloadError, match="work"):
                engine.dead.resolve(ticket_id, result)
        with pytest.raises(UnknownTicket):
            engine.dead.resolve("unheard-of")
        assert engine.dead.count() == 1
    with (
        make(tmp_path / "data", durability="process") as engine,
        pytest.raises(UnknownTask, match='"work"'),
    ):
        engine.dead.resolve(ticket_id, "who knows")


def test_what_a_resolution_writes_is_reckoned_before_it_is_decided(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """On a full disk it then waits; unreckoned it would cost the shard its memory."""
    sizes: list[int] = []
    enter = Inbox.enter

    def entered(self: Inbox, size: int) -> None:
        sizes.append(size)
        enter(self, size)

    with make(tmp_path / "data", durability="process") as engine:
        (ticket_id,) = die(office(engine, []), "ambiguous")
        monkeypatch.setattr(Inbox, "enter", entered)
        engine.dead.resolve(ticket_id, "x" * 100_000)
    assert len(sizes) == 1 and sizes[0] > 100_000


def test_coroutines_find_resolve_and_drop_like_threads_do(tmp_path: Path) -> None:
    engine = make(tmp_path / "data")
    work = office(engine, [])

    async def main() -> None:
        async with engine:
            one, other = await work.asubmit("ambiguous"), await work.asubmit("fail")
            for ticket in (one, other):
                with pytest.raises(TicketFailed):
                    await ticket
            assert [info.id for info in await engine.dead.afind(reason="failed")] == [other.id]
            await engine.dead.aresolve(one.id, "so it was")
            assert await one == "so it was"
            assert (await engine.dead.adrop(other.id)).changed == 1
            assert not (await engine.dead.afind()).items

    asyncio.run(main())


def test_a_blocking_call_on_a_loop_names_the_call_to_await(tmp_path: Path) -> None:
    engine = make(tmp_path / "data", run=False)
    calls: list[tuple[Callable[[], object], str]] = [
        (lambda: engine.dead.find(), "engine.dead.afind"),
        (lambda: engine.dead.revive("x"), "engine.dead.arevive"),
        (lambda: engine.dead.resolve("x"), "engine.dead.aresolve"),
        (lambda: engine.dead.drop("x"), "engine.dead.adrop"),
        (lambda: engine.dead.groups(), "engine.dead.agroups"),
        (lambda: engine.find(), "engine.afind"),
        (lambda: engine.stop(), "engine.astop"),
    ]

    async def main() -> None:
        async with engine:
            for call, instead in calls:
                with pytest.raises(BlockingInEventLoop) as caught:
                    call()
                assert caught.value.instead == instead
                owner, _, name = instead.rpartition(".")
                assert hasattr(attrgetter(owner)(SimpleNamespace(engine=engine)), name)

    asyncio.run(main())
