"""Time in a test engine: skipped, advanced, set back, and doubted as in production."""

from datetime import UTC, datetime, timedelta

import pytest

from parkade import RetryPolicy, Snooze, UnknownTicket
from parkade.testing import ManualClock, TestEngine


def test_a_run_without_skipping_leaves_the_clock_alone(parkade_engine: TestEngine) -> None:
    @parkade_engine.task
    def note() -> None: ...

    before = parkade_engine.clock.now()
    note.options(delay="1s").submit()
    assert parkade_engine.run_until_idle().attempts == 0
    assert parkade_engine.clock.now() == before
    parkade_engine.clock.advance("1s")
    assert parkade_engine.run_until_idle().done == 1


def test_skipping_ends_with_the_last_ticket_not_after_it(parkade_engine: TestEngine) -> None:
    @parkade_engine.task
    def note(n: int) -> None: ...

    start = parkade_engine.clock.now()
    for days in (365, 3, 40):
        note.options(delay=f"{days}d").submit(days)
    assert parkade_engine.run_until_idle(skip_time=True).done == 3
    assert parkade_engine.clock.now() - start == timedelta(days=365)
    assert parkade_engine.run_until_idle(skip_time=True).done == 0
    assert parkade_engine.clock.now() - start == timedelta(days=365)


def test_every_ticket_runs_at_its_own_time(parkade_engine: TestEngine) -> None:
    ran: dict[int, datetime] = {}

    @parkade_engine.task
    def note(n: int) -> None:
        ran[n] = parkade_engine.clock.now()

    start = parkade_engine.clock.now()
    delays_s = [n * n * 997 for n in range(60)]
    calls = [note.options(delay=delay).call(delay) for delay in reversed(delays_s)]
    parkade_engine.submit_many(calls)
    assert parkade_engine.run_until_idle(skip_time=True).done == 60
    assert ran == {delay: start + timedelta(seconds=delay) for delay in delays_s}


def test_tickets_that_sleep_on_disk_are_found_by_skipping(parkade_engine: TestEngine) -> None:
    @parkade_engine.task
    def note(n: int) -> None: ...

    start = parkade_engine.clock.now()
    for days in (900, 30, 31):
        note.options(delay=f"{days}d").submit(days)
    parkade_engine.clock.advance("10s")
    parkade_engine.run_until_idle()
    assert sum(shard.hot for shard in parkade_engine.stats().shards) == 0
    assert parkade_engine.run_until_idle(skip_time=True).done == 3
    assert parkade_engine.clock.now() - start == timedelta(days=900)


def test_a_cancelled_sleeper_moves_no_clock(parkade_engine: TestEngine) -> None:
    @parkade_engine.task
    def note() -> None: ...

    ticket = note.options(delay="30d").submit()
    parkade_engine.clock.advance("10s")
    parkade_engine.run_until_idle()
    before = parkade_engine.clock.now()
    assert ticket.cancel("never mind") == "cancelled"
    assert parkade_engine.run_until_idle(skip_time=True).attempts == 0
    assert parkade_engine.clock.now() == before


def test_what_has_run_in_time_does_not_wait_for_its_expiry(parkade_engine: TestEngine) -> None:
    @parkade_engine.task
    def note() -> None: ...

    before = parkade_engine.clock.now()
    note.options(expires="1d").submit()
    assert parkade_engine.run_until_idle(skip_time=True).done == 1
    assert parkade_engine.clock.now() == before


def test_a_held_ticket_expires_when_time_is_skipped(tmp_path: object) -> None:
    with TestEngine(f"{tmp_path}/data") as engine:

        @engine.task(name="old.mail")
        def mail() -> None: ...

        mail.options(expires="2d", delay="1d").submit()
    with TestEngine(f"{tmp_path}/data") as engine:
        start = engine.clock.now()
        assert engine.run_until_idle(skip_time=True).expired == 1
        assert engine.clock.now() - start == timedelta(days=3)


def test_snoozes_are_skipped_over(parkade_engine: TestEngine) -> None:
    tries = 0

    @parkade_engine.task
    def wait_for_it() -> int:
        nonlocal tries
        tries += 1
        if tries < 50:
            raise Snooze("6h", "not there yet")
        return tries

    ticket = wait_for_it.submit()
    drained = parkade_engine.run_until_idle(skip_time=True)
    assert (drained.done, drained.snoozed) == (1, 49)
    assert (ticket.result(), ticket.info().attempts) == (50, 1)


def test_ended_tickets_are_kept_for_ever_unless_the_engine_is_told(
    parkade_clock: ManualClock,
) -> None:
    for keep_done, kept in ((None, 2), ("24h", 1)):
        with TestEngine(clock=parkade_clock, keep_done=keep_done) as engine:

            @engine.task
            def note() -> None: ...

            first = note.submit()
            note.options(delay="90d").submit()
            assert engine.run_until_idle(skip_time=True).done == 2
            engine.clock.advance("5m")
            engine.run_until_idle()
            assert len(engine.submitted(note)) == kept
            if kept == 1:
                with pytest.raises(UnknownTicket, match="keep_done"):
                    first.info()


def test_a_clock_set_back_postpones_what_is_due(parkade_engine: TestEngine) -> None:
    @parkade_engine.task
    def note(n: int) -> None: ...

    start = parkade_engine.clock.now()
    note.options(delay="1h").submit(1)
    note.options(delay="40s").submit(2)
    parkade_engine.clock.step_wall(timedelta(hours=-2))
    assert parkade_engine.run_until_idle().attempts == 0
    parkade_engine.clock.advance("2h")
    assert parkade_engine.run_until_idle().attempts == 0
    parkade_engine.clock.advance("40s")
    assert parkade_engine.run_until_idle().done == 1
    assert parkade_engine.run_until_idle(skip_time=True).done == 1
    assert parkade_engine.clock.now() == start + timedelta(hours=1)


def test_a_clock_set_back_keeps_the_order_of_submits(parkade_engine: TestEngine) -> None:
    @parkade_engine.task
    def note(n: int) -> None: ...

    ids: list[str] = []
    for n in range(6):
        ids.append(note.submit(n).id)
        parkade_engine.clock.step_wall(timedelta(minutes=-30))
    infos = parkade_engine.submitted(note)
    assert [info.id for info in infos] == ids
    assert parkade_engine.run_until_idle(skip_time=True).done == 6


def test_a_clock_set_far_ahead_expires_nothing_before_it_is_believed(
    parkade_engine: TestEngine,
) -> None:
    @parkade_engine.task
    def note() -> None: ...

    ticket = note.options(expires="1h").submit()
    parkade_engine.clock.step_wall(timedelta(hours=5))
    assert parkade_engine.run_until_idle() == parkade_engine.run_until_idle()
    assert ticket.info().state == "ready"
    parkade_engine.clock.advance("11m")
    assert parkade_engine.run_until_idle().expired == 1


def test_the_start_of_the_clock_is_the_tests_choice(tmp_path: object) -> None:
    clock = ManualClock(datetime(2026, 10, 24, 12, tzinfo=UTC))
    with TestEngine(f"{tmp_path}/data", clock=clock) as engine:

        @engine.task
        def note() -> None: ...

        info = note.options(delay="1d").submit().info()
        assert info.created_at == datetime(2026, 10, 24, 12, tzinfo=UTC)
        assert info.due_at == datetime(2026, 10, 25, 12, tzinfo=UTC)


@pytest.mark.parametrize("has_crashed", [False, True])
def test_what_is_submitted_after_the_clock_was_set_back_is_neither_late_nor_over(
    parkade_engine: TestEngine, has_crashed: bool
) -> None:
    """Its deadlines lie ahead of the wall clock, and behind what the settled clock had reached."""

    @parkade_engine.task(retry=RetryPolicy(5, backoff=["1h"], max_elapsed="1d"))
    def fail() -> None:
        raise ValueError("again")

    @parkade_engine.task
    def note() -> str:
        return "noted"

    note.submit()
    parkade_engine.run_until_idle()
    parkade_engine.clock.step_wall(timedelta(days=-30))
    if has_crashed:
        parkade_engine.crash()
    failing, expiring = fail.submit(), note.options(expires="1h").submit()
    parkade_engine.run_until_idle()
    assert (failing.info().state, failing.info().attempts) == ("scheduled", 1)
    assert expiring.result() == "noted"
    for kind in ("1h", "kept"):
        named = note.options(unique=kind, unique_for=kind)
        first = named.submit()
        parkade_engine.run_until_idle()
        again = named.submit()
        assert (again.id, again.created) == (first.id, False)
        assert first.result() == "noted"
