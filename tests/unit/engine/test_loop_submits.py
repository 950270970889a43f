"""Submits of coroutines that are made in one turn of their loop."""

import asyncio
from collections import Counter
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import pytest

from kit.engines import make, rig, runtime_of
from kit.failing import key_of, keyed, recovered
from kit.faulty import FaultyDisk
from parkade import Engine, EngineClosed, PayloadError, StorageError, Task, limits
from parkade.asks import Ask
from parkade.shard.commands import Submit
from parkade.shard.ticket import parse_id


def noted(engine: Engine) -> "Task[[str], str]":
    def note(text: str) -> str:
        return text

    return engine.task(name="note")(note)


def commands(engine: Engine, monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """How many drafts each command has that comes in."""
    inbox, counts = runtime_of(engine).host.inbox, list[int]()
    put = inbox.put

    def counted(asks: Iterable[tuple[int, Ask]]) -> None:
        listed = list(asks)
        counts.extend(len(ask.asked.drafts) for _, ask in listed if isinstance(ask.asked, Submit))
        put(listed)

    monkeypatch.setattr(inbox, "put", counted)
    return counts


def test_what_many_tasks_submit_in_a_turn_is_one_command(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def main() -> None:
        async with make(tmp_path / "data", run=False) as engine:
            task, counts = noted(engine), commands(engine, monkeypatch)
            tickets = await asyncio.gather(*(task.asubmit(str(n)) for n in range(100)))
            assert counts == [100]
            assert len({ticket.id for ticket in tickets}) == 100
            assert all(ticket.created and ticket.task == "note" for ticket in tickets)
            assert engine.stats().ready == 100

    asyncio.run(main())


def test_of_a_large_turn_no_more_go_together_than_is_good_for_one_shard(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def main() -> None:
        async with make(tmp_path / "data", run=False) as engine:
            task, counts = noted(engine), commands(engine, monkeypatch)
            tickets = await asyncio.gather(*(task.asubmit(str(n)) for n in range(1_000)))
            assert sum(counts) == 1_000 and len(counts) <= 2  # one a shard
            shards = Counter(parsed.part % 2 for one in tickets if (parsed := parse_id(one.id)))
            assert sorted(shards.values()) == [488, 512]

    asyncio.run(main())


def test_what_is_more_than_a_frame_takes_goes_to_several(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def main() -> None:
        async with make(tmp_path / "data", run=False) as engine:
            task, counts = noted(engine), commands(engine, monkeypatch)
            text = "x" * (limits.SUBMIT_BYTES_MAX // 5)
            tickets = await asyncio.gather(*(task.asubmit(text) for _ in range(16)))
            assert sum(counts) == 16 and max(counts) == 4
            assert {parsed.part % 2 for t in tickets if (parsed := parse_id(t.id))} == {0, 1}

    asyncio.run(main())


def test_turns_after_each_other_go_to_all_shards(tmp_path: Path) -> None:
    async def main() -> None:
        async with make(tmp_path / "data", run=False) as engine:
            task, shards = noted(engine), Counter[int]()
            for _ in range(40):
                made = await asyncio.gather(*(task.asubmit("a") for _ in range(4)))
                of_turn = {parsed.part % 2 for t in made if (parsed := parse_id(t.id))}
                assert len(of_turn) == 1
                shards.update(of_turn)
            assert len(shards) == 2

    asyncio.run(main())


def test_one_that_cannot_be_a_ticket_fails_alone(tmp_path: Path) -> None:
    async def main() -> None:
        async with make(tmp_path / "data", run=False, max_payload=1_000) as engine:
            task = noted(engine)
            texts = ["a", "x" * 2_000, "b"]
            outcomes: list[Any] = await asyncio.gather(
                *(task.asubmit(text) for text in texts), return_exceptions=True
            )
            assert [type(outcome).__name__ for outcome in outcomes] == [
                "Ticket", "PayloadError", "Ticket",
            ]  # fmt: skip
            with pytest.raises(PayloadError):
                await task.asubmit("x" * 2_000)

    asyncio.run(main())


def test_who_gives_up_waiting_keeps_nobody_from_an_answer(tmp_path: Path) -> None:
    async def main() -> None:
        async with make(tmp_path / "data", run=False) as engine:
            task = noted(engine)
            one, other = (asyncio.create_task(task.asubmit(text)) for text in "ab")
            await asyncio.sleep(0)
            one.cancel()
            assert (await other).created
            with pytest.raises(asyncio.CancelledError):
                await one
            assert engine.stats().ready == 2

    asyncio.run(main())


def test_one_with_a_name_goes_behind_those_before_it(tmp_path: Path) -> None:
    async def main() -> None:
        async with make(tmp_path / "data", run=False) as engine:
            task = noted(engine).options(key="one")
            named = task.options(unique="it")
            made = await asyncio.gather(
                task.asubmit("a"), named.asubmit("b"), task.asubmit("c"), named.asubmit("d")
            )
            serials = [parsed.serial for ticket in made if (parsed := parse_id(ticket.id))]
            assert serials[0] < serials[1] < serials[2] and serials[3] == serials[1]

    asyncio.run(main())


def test_at_a_full_door_they_go_in_one_after_another(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(limits, "DOOR_BYTES_MAX", 2_000)

    async def main() -> None:
        async with make(tmp_path / "data", run=False) as engine:
            task = noted(engine)
            rounds = [asyncio.gather(*(task.asubmit("x" * 500) for _ in range(20)))]
            await asyncio.sleep(0)
            rounds += [asyncio.gather(*(task.asubmit("y" * 500) for _ in range(20)))]
            made = [ticket for tickets in await asyncio.gather(*rounds) for ticket in tickets]
            assert len({ticket.id for ticket in made}) == 40
            assert engine.stats().ready == 40

    asyncio.run(main())


def test_a_shard_that_fails_costs_its_own_alone(tmp_path: Path) -> None:
    disk = FaultyDisk()

    async def main() -> None:
        async with rig(
            make(tmp_path / "data", run=False, durability="process"), disk=disk
        ) as engine:
            task = noted(engine)
            disk.break_next("write", "shard-000/journal")
            outcomes: list[Any] = await asyncio.gather(
                *(keyed(task, n % 2).asubmit(str(n)) for n in range(10)), return_exceptions=True
            )
            assert [isinstance(outcome, StorageError) for outcome in outcomes] == [True, False] * 5
            recovered(engine)
            assert (await keyed(task, 0).asubmit("again")).created
            assert key_of(0) != key_of(1)

    asyncio.run(main())


def test_an_engine_that_has_stopped_says_so(tmp_path: Path) -> None:
    async def main() -> None:
        engine = make(tmp_path / "data", run=False)
        async with engine:
            task = noted(engine)
            assert (await task.asubmit("a")).created
        with pytest.raises(EngineClosed):
            await task.asubmit("b")

    asyncio.run(main())


class Struck(Exception):
    """What a signal handler raises, amid whatever its thread does."""


@pytest.mark.parametrize("is_in", [False, True])
def test_what_a_signal_handler_raises_in_a_turn_is_told_to_all_of_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, is_in: bool
) -> None:
    async def main() -> None:
        async with make(tmp_path / "data", run=False) as engine:
            task, inbox = noted(engine), runtime_of(engine).host.inbox
            put = inbox.put

            def struck(asks: Iterable[tuple[int, Ask]]) -> None:
                monkeypatch.undo()
                if is_in:
                    put(asks)
                raise Struck

            monkeypatch.setattr(inbox, "put", struck)
            told: list[Any] = await asyncio.gather(
                *(task.asubmit(text) for text in "abc"), return_exceptions=True
            )
            assert [type(one) for one in told] == [Struck] * 3
            assert (await task.asubmit("d")).created
            assert engine.stats().ready == 1 + 3 * is_in

    asyncio.run(main())


def test_a_signal_handler_that_raises_amid_answers_keeps_nobody_from_his(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def main() -> None:
        async with make(tmp_path / "data", run=False) as engine:
            task, submitting = noted(engine), engine._submitting
            assert submitting is not None
            submits, strikes = submitting._loop_submits, [None]
            created = submits._created

            def struck(*args: Any) -> Any:
                made = created(*args)
                if strikes and args[0].payload == task.call("b").payload:
                    strikes.pop()
                    raise Struck
                return made

            monkeypatch.setattr(submits, "_created", struck)
            tickets = await asyncio.gather(*(task.asubmit(text) for text in "abc"))
            assert all(ticket.created for ticket in tickets) and not strikes

    asyncio.run(main())
