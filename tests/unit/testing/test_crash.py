"""crash(): what was acknowledged survives it, what ran is lost, and the clock goes on."""

import asyncio

import pytest

from parkade import EngineClosed, TicketFailed
from parkade.testing import Killed, ManualClock, TestEngine


def test_what_was_submitted_survives_a_crash(parkade_engine: TestEngine) -> None:
    @parkade_engine.task
    def greet(name: str) -> str:
        return f"hi {name}"

    tickets = [greet.options(delay=f"{n}h").submit(str(n)) for n in range(40)]
    reopened = parkade_engine.crash()
    assert [info.id for info in reopened.submitted(greet)] == [ticket.id for ticket in tickets]
    assert reopened.run_until_idle(skip_time=True).done == 40
    assert reopened.ticket(tickets[7].id).result() == "hi 7"
    assert greet.ticket(tickets[8].id).result() == "hi 8"


def test_what_has_ended_survives_a_crash_as_it_was(parkade_engine: TestEngine) -> None:
    @parkade_engine.task(retry=["1m"])
    def broken(n: int) -> None:
        raise ValueError(f"odd: {n}")

    ticket = broken.submit(3)
    parkade_engine.run_until_idle(skip_time=True)
    before = ticket.info(), ticket.attempts()
    again = parkade_engine.crash().ticket(ticket.id)
    assert (again.info(), again.attempts()) == before
    with pytest.raises(TicketFailed, match="odd: 3"):
        again.result()


def test_a_crash_covers_and_commits_nothing(parkade_engine: TestEngine) -> None:
    @parkade_engine.task
    def note(n: int) -> None: ...

    for n in range(6):
        note.submit(n)
    runtime = parkade_engine.desk("test").runtime
    assert all(shard.core.dirty.tickets for shard in runtime.shards)
    assert [shard.checkpoints for shard in runtime.shards] == [0, 0]
    parkade_engine.crash()
    shards = parkade_engine.desk("test").runtime.shards
    assert shards[0].core is not runtime.shards[0].core
    assert [shard.store.lsn for shard in shards] == [0, 0]
    assert sum(shard.core.lsn for shard in shards) == 6


def test_handles_from_before_a_crash_are_of_no_more_use(parkade_engine: TestEngine) -> None:
    @parkade_engine.task
    def note() -> None: ...

    ticket = note.submit()
    assert parkade_engine.crash() is parkade_engine
    with pytest.raises(EngineClosed):
        ticket.info()
    assert parkade_engine.ticket(ticket.id).info().state == "ready"


def test_the_clock_goes_on_and_is_believed_after_a_crash(parkade_engine: TestEngine) -> None:
    clock = parkade_engine.clock

    @parkade_engine.task
    def note() -> None: ...

    note.options(expires="1d").submit()
    clock.advance("30d")
    reopened = parkade_engine.crash()
    assert reopened.clock is clock
    assert reopened.run_until_idle().expired == 1


def test_a_handler_that_is_killed_loses_its_attempt(parkade_engine: TestEngine) -> None:
    effects: list[int] = []

    @parkade_engine.task(retry=["10m"])
    def charge(n: int) -> str:
        effects.append(n)
        if len(effects) == 1:
            raise Killed
        return "paid"

    charge.submit(1)
    with pytest.raises(Killed):
        parkade_engine.run_until_idle()
    with pytest.raises(EngineClosed):
        charge.submit(2)
    with pytest.raises(EngineClosed):
        parkade_engine.run_until_idle()
    reopened = parkade_engine.crash()
    (info,) = reopened.submitted(charge)
    assert (info.state, info.attempts, info.maybe_applied) == ("scheduled", 1, True)
    assert (info.due_at - reopened.clock.now()).total_seconds() == 600
    assert reopened.run_until_idle(skip_time=True).done == 1
    assert effects == [1, 1]
    attempts = reopened.ticket(info.id).attempts()
    assert [attempt.outcome for attempt in attempts] == ["lost", "done"]


def test_on_crash_ambiguous_is_left_to_a_person(parkade_engine: TestEngine) -> None:
    effects: list[int] = []

    @parkade_engine.task(on_crash="ambiguous")
    def charge(n: int) -> None:
        effects.append(n)
        parkade_engine.crash()
        raise AssertionError("the process had ended")

    ticket = charge.submit(1)
    with pytest.raises(Killed, match="crashed in a handler"):
        parkade_engine.run_until_idle()
    reopened = parkade_engine.crash()
    info = reopened.ticket(ticket.id).info()
    assert (info.state, info.dead_reason, info.ambiguous) == ("dead", "ambiguous", True)
    assert reopened.run_until_idle(skip_time=True).attempts == 0
    assert effects == [1]


def test_a_coroutine_can_be_killed_too(parkade_engine: TestEngine) -> None:
    @parkade_engine.task
    async def charge() -> None:
        await asyncio.sleep(0)
        raise Killed

    charge.submit()
    with pytest.raises(Killed):
        parkade_engine.run_until_idle()
    (info,) = parkade_engine.crash().submitted(charge)
    assert (info.state, info.attempts, info.maybe_applied) == ("scheduled", 1, True)


def test_a_ticket_that_kills_its_process_three_times_alone_is_buried(
    parkade_engine: TestEngine,
) -> None:
    @parkade_engine.task(retry=10)
    def poison() -> None:
        raise Killed

    @parkade_engine.task
    def innocent() -> None: ...

    ticket = poison.submit()
    for _ in range(4):
        innocent.submit()
        with pytest.raises(Killed):
            parkade_engine.run_until_idle(skip_time=True)
        parkade_engine.crash()
    assert parkade_engine.run_until_idle(skip_time=True).dead == 0
    info = parkade_engine.ticket(ticket.id).info()
    assert (info.state, info.dead_reason, info.attempts) == ("dead", "crashed", 4)
    assert [each.state for each in parkade_engine.submitted(innocent)] == ["done"] * 4


def test_what_a_killed_handler_submitted_is_there(parkade_engine: TestEngine) -> None:
    @parkade_engine.task
    def child() -> None: ...

    @parkade_engine.task
    def parent() -> None:
        child.submit()
        raise Killed

    parent.submit()
    with pytest.raises(Killed):
        parkade_engine.run_until_idle()
    assert [info.state for info in parkade_engine.crash().submitted(child)] == ["ready"]


def test_an_engine_may_crash_again_and_again(parkade_engine: TestEngine) -> None:
    @parkade_engine.task
    def note(n: int) -> int:
        return n

    for n in range(8):
        note.submit(n)
        parkade_engine.crash()
    assert len(parkade_engine.submitted(note)) == 8
    assert parkade_engine.run_until_idle().done == 8


def test_an_engine_whose_handler_was_killed_can_be_left(parkade_clock: ManualClock) -> None:
    with TestEngine(clock=parkade_clock) as engine:

        @engine.task
        def note() -> None:
            raise Killed

        note.submit()
        with pytest.raises(Killed):
            engine.run_until_idle()
    with pytest.raises(EngineClosed, match=r"engine\.crash"):
        engine.crash()


def test_with_durability_disk_a_crash_is_survived_as_well(tmp_path: object) -> None:
    with TestEngine(f"{tmp_path}/data", durability="disk", shards=1) as engine:

        @engine.task
        def note(n: int) -> int:
            return n

        ticket = note.submit(4)
        engine.crash()
        assert engine.run_until_idle().done == 1
        engine.crash()
        assert engine.ticket(ticket.id).result() == 4
