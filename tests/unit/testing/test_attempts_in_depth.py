"""Timeouts, leases, cancels, progress and checkpoints, through an engine whose clock is moved by
hand."""

import asyncio
import logging
from typing import Any

import msgspec
import pytest

from parkade import Attempt, Cancelled, PayloadError
from parkade.testing import Killed, TestEngine


class Cursor(msgspec.Struct):
    line: int = 0


def look(engine: TestEngine) -> None:
    """A pass of the core, in a handler."""
    engine.find(limit=1)


# ------------------------------------------------------------------------------- checkpoints


def test_the_next_attempt_goes_on_where_the_last_one_saved(parkade_engine: TestEngine) -> None:
    begun_at: list[int] = []

    @parkade_engine.task(retry=["1s", "1s"])
    def load(attempt: Attempt) -> int:
        cursor = attempt.checkpoint(Cursor, Cursor())
        begun_at.append(cursor.line)
        attempt.save_checkpoint(Cursor(cursor.line + 10))
        assert attempt.checkpoint(Cursor) == Cursor(cursor.line + 10)
        if attempt.number < 3:
            raise OSError("again")
        return cursor.line

    ticket = load.submit()
    assert parkade_engine.run_until_idle(skip_time=True).done == 1
    assert (begun_at, ticket.result()) == ([0, 10, 20], 20)


def test_a_checkpoint_survives_a_crash_in_the_middle_of_the_handler(
    parkade_engine: TestEngine,
) -> None:
    @parkade_engine.task
    def load(attempt: Attempt) -> int | None:
        cursor = attempt.checkpoint(Cursor)
        if cursor is None:
            attempt.save_checkpoint(Cursor(7))
            raise Killed
        return cursor.line

    ticket = load.submit()
    with pytest.raises(Killed):
        parkade_engine.run_until_idle()
    engine = parkade_engine.crash()
    assert engine.run_until_idle(skip_time=True).done == 1
    assert engine.ticket(ticket.id).result() == 7


def test_a_checkpoint_survives_being_parked_and_is_forgotten_at_the_end(
    parkade_engine: TestEngine,
) -> None:
    seen: list[Cursor | None] = []

    @parkade_engine.task(retry=["3d"])
    def load(attempt: Attempt) -> None:
        seen.append(attempt.checkpoint(Cursor))
        if attempt.number == 1:
            attempt.save_checkpoint(Cursor(5))
            raise OSError("in three days")

    def stored() -> list[bytes | None]:
        saved: list[bytes | None] = []
        parkade_engine.clock.advance("6s")  # a checkpoint is due
        look(parkade_engine)
        for shard in parkade_engine.desk("test").runtime.shards:
            with shard.store.snapshot() as snapshot:
                saved += [snapshot.bookmark(s) for s in snapshot.serials(before=1 << 64, limit=10)]
            assert not shard.core.hot
        return saved

    ticket = load.submit()
    parkade_engine.run_until_idle()
    assert stored() == [b"\x81\xa4line\x05"]
    parkade_engine.run_until_idle(skip_time=True)
    assert seen == [None, Cursor(5)]
    assert ticket.info().state == "done"
    assert stored() == [None]


def test_a_dead_ticket_that_is_revived_goes_on_and_one_with_other_arguments_begins_anew(
    parkade_engine: TestEngine,
) -> None:
    seen: list[Cursor | None] = []

    @parkade_engine.task(retry=1)
    def load(attempt: Attempt, file: str) -> None:
        seen.append(attempt.checkpoint(Cursor))
        attempt.save_checkpoint(Cursor(5))
        raise OSError("dead")

    ticket = load.submit("a.csv")
    for payload in (None, None, {"file": "b.csv"}):
        parkade_engine.run_until_idle()
        assert ticket.info().state == "dead"
        parkade_engine.dead.revive(ticket.id, payload=payload)
    parkade_engine.run_until_idle()
    assert seen == [None, Cursor(5), Cursor(5), None]


def test_a_checkpoint_that_does_not_fit_its_type_any_more_is_an_error_of_the_handler(
    parkade_engine: TestEngine,
) -> None:
    @parkade_engine.task(retry=["1s"])
    def load(attempt: Attempt) -> str:
        if attempt.number == 1:
            attempt.save_checkpoint({"line": "seven"})
            raise OSError("again")
        with pytest.raises(PayloadError, match="checkpoint line does not fit Cursor"):
            attempt.checkpoint(Cursor)
        return "began anew"

    ticket = load.submit()
    parkade_engine.run_until_idle(skip_time=True)
    assert ticket.result() == "began anew"


def test_what_cannot_be_stored_or_is_too_large_is_refused_and_what_was_saved_stays() -> None:
    with TestEngine(max_payload=1_000) as engine:

        @engine.task
        def load(attempt: Attempt) -> Cursor | None:
            attempt.save_checkpoint(Cursor(1))
            for value in (object(), "x" * 1_000):
                with pytest.raises(PayloadError, match="checkpoint"):
                    attempt.save_checkpoint(value)
            return attempt.checkpoint(Cursor)

        ticket = load.submit()
        engine.run_until_idle().raise_errors()
        assert ticket.result() == Cursor(1)


def test_a_coroutine_saves_before_it_goes_on(parkade_engine: TestEngine) -> None:
    @parkade_engine.task
    async def load(attempt: Attempt) -> Cursor | None:
        attempt.save_checkpoint(Cursor(3))
        await asyncio.sleep(0)
        return attempt.checkpoint(Cursor)

    ticket = load.submit()
    parkade_engine.run_until_idle().raise_errors()
    assert ticket.result() == Cursor(3)


# ---------------------------------------------------------------------------------- progress


def test_progress_is_seen_while_it_runs_and_kept_until_it_is_done(
    parkade_engine: TestEngine,
) -> None:
    seen: list[tuple[float, float | None, str]] = []

    def look(ticket_id: str) -> None:
        progress = parkade_engine.ticket(ticket_id).info().progress
        assert progress is not None
        seen.append((progress.done, progress.total, progress.message))

    @parkade_engine.task(retry=["1h"])
    def load(attempt: Attempt) -> None:
        for _ in attempt.track(range(3), message="rows"):
            look(attempt.ticket_id)
        look(attempt.ticket_id)
        attempt.heartbeat("tidying up")
        look(attempt.ticket_id)
        if attempt.number == 1:
            raise OSError("again")

    ticket = load.submit()
    parkade_engine.run_until_idle()
    told = [(0, 3, "rows"), (1, 3, "rows"), (2, 3, "rows"), (3, 3, "rows"), (3, 3, "tidying up")]
    assert seen == told
    look(ticket.id)
    assert seen[-1] == (3, 3, "tidying up")
    parkade_engine.run_until_idle(skip_time=True)
    assert ticket.info().progress is None


def test_what_was_done_before_counts_as_done(parkade_engine: TestEngine) -> None:
    @parkade_engine.task
    def load(attempt: Attempt) -> float:
        for _ in attempt.track(range(60, 100), total=100):
            progress = parkade_engine.ticket(attempt.ticket_id).info().progress
            assert progress is not None
            return progress.done
        return -1

    ticket = load.submit()
    parkade_engine.run_until_idle().raise_errors()
    assert ticket.result() == 60


def test_progress_writes_no_frame_of_its_own_and_goes_along_with_the_next(
    parkade_engine: TestEngine,
) -> None:
    lsns: list[int] = []

    def lsn() -> int:
        runtime = parkade_engine.desk("test").runtime
        return sum(shard.core.lsn for shard in runtime.shards)

    @parkade_engine.task
    def load(attempt: Attempt) -> None:
        lsns.append(lsn())
        for done in range(1_000):
            attempt.progress(done, 1_000)
        look(parkade_engine)
        lsns.append(lsn())
        attempt.save_checkpoint(Cursor(1))
        lsns.append(lsn())
        for done in range(1_000):
            attempt.progress(done, 1_000)
            attempt.save_checkpoint(Cursor(done))
        lsns.append(lsn())
        raise Killed

    ticket = load.submit()
    with pytest.raises(Killed):
        parkade_engine.run_until_idle()
    first, quiet, saved, last = lsns
    assert (quiet - first, saved - quiet) == (0, 2)
    assert 1_000 <= last - saved <= 2_000
    progress = parkade_engine.crash().ticket(ticket.id).info().progress
    assert progress is not None
    assert progress.done == 999


def test_a_message_of_any_length_is_cut(parkade_engine: TestEngine) -> None:
    @parkade_engine.task(retry=1)
    def load(attempt: Attempt) -> None:
        attempt.progress(1, None, "x" * 1_000_000)
        raise OSError("dead")

    ticket = load.submit()
    parkade_engine.run_until_idle()
    progress = ticket.info().progress
    assert progress is not None
    assert progress.total is None
    assert 1_000 < len(progress.message.encode()) <= 4_096


def test_what_an_async_iterator_gives_is_tracked(parkade_engine: TestEngine) -> None:
    async def rows() -> Any:
        for row in range(3):
            yield row

    @parkade_engine.task
    async def load(attempt: Attempt) -> list[float]:
        seen: list[float] = []
        async for _ in attempt.atrack(rows(), total=3):
            progress = (await parkade_engine.ticket(attempt.ticket_id).ainfo()).progress
            assert progress is not None
            seen.append(progress.done)
        return seen

    ticket = load.submit()
    parkade_engine.run_until_idle().raise_errors()
    assert ticket.result() == [0.0, 1.0, 2.0]


# ------------------------------------------------------------------------------------ leases


def test_a_silent_attempt_loses_its_lease_and_its_outcome_is_refused(
    parkade_engine: TestEngine, caplog: pytest.LogCaptureFixture
) -> None:
    saw: list[bool] = []

    @parkade_engine.task(lease="1m", retry=["2s"])
    def load(attempt: Attempt) -> str:
        if attempt.number == 1:
            parkade_engine.clock.advance("60s")
            look(parkade_engine)
            saw.append(attempt.cancelled)
        return f"attempt {attempt.number}"

    ticket = load.submit()
    with caplog.at_level(logging.WARNING, "parkade.attempt"):
        parkade_engine.run_until_idle(skip_time=True)
    assert ticket.result() == "attempt 2"
    assert saw == [True]
    assert [a.outcome for a in ticket.attempts()] == ["lost", "done"]
    assert ticket.info().maybe_applied
    [line] = [record.getMessage() for record in caplog.records]
    assert line == (
        f"load {ticket.id} attempt 1 lost its lease (no heartbeat for 1 min); its outcome will be "
        "refused, attempt 2 in 2 s"
    )


def test_an_outcome_after_the_lease_is_over_counts_for_nothing_though_nobody_looked(
    parkade_engine: TestEngine,
) -> None:
    """As after SIGSTOP: the handler's thread may wake before the core does."""

    @parkade_engine.task(lease="1m", retry=["2s"])
    def load(attempt: Attempt) -> int:
        if attempt.number == 1:
            parkade_engine.clock.advance("1h")
        return attempt.number

    ticket = load.submit()
    parkade_engine.run_until_idle(skip_time=True)
    assert ticket.result() == 2
    assert [a.outcome for a in ticket.attempts()] == ["lost", "done"]


@pytest.mark.parametrize("how", ["heartbeat", "progress", "save_checkpoint", "track"])
def test_every_sign_of_life_renews_the_lease(parkade_engine: TestEngine, how: str) -> None:
    @parkade_engine.task(lease="1m", retry=1)
    def load(attempt: Attempt) -> None:
        for n in attempt.track(range(5)) if how == "track" else range(5):
            parkade_engine.clock.advance("59s")
            look(parkade_engine)
            if how == "heartbeat":
                attempt.heartbeat()
            elif how == "progress":
                attempt.progress(n)
            elif how == "save_checkpoint":
                attempt.save_checkpoint(n)

    ticket = load.submit()
    parkade_engine.run_until_idle().raise_errors()
    assert ticket.info().state == "done"


def test_a_lease_that_is_over_is_not_renewed_and_nothing_is_saved(
    parkade_engine: TestEngine,
) -> None:
    told: list[str] = []

    @parkade_engine.task(lease="1m", retry=["2s"])
    def load(attempt: Attempt) -> Cursor | None:
        if attempt.number == 1:
            attempt.save_checkpoint(Cursor(1))
            parkade_engine.clock.advance("61s")
            attempt.heartbeat()
            try:
                attempt.save_checkpoint(Cursor(2))
            except Cancelled as cancelled:
                told.append(cancelled.reason)
        return attempt.checkpoint(Cursor)

    ticket = load.submit()
    parkade_engine.run_until_idle(skip_time=True)
    assert told == ["it was given up: another attempt may run"]
    assert ticket.result() == Cursor(1)


def test_without_a_lease_of_its_own_a_silent_attempt_runs_on(parkade_engine: TestEngine) -> None:
    @parkade_engine.task
    def load() -> str:
        parkade_engine.clock.advance("30d")
        look(parkade_engine)
        return "done"

    ticket = load.submit()
    parkade_engine.run_until_idle()
    assert ticket.result() == "done"


@pytest.mark.parametrize("setting", ["timeout", "lease"])
def test_who_must_not_be_repeated_waits_for_a_person_when_it_is_unknown(
    parkade_engine: TestEngine, setting: str
) -> None:
    options: dict[str, Any] = {setting: "1m"}

    @parkade_engine.task(on_crash="ambiguous", **options)
    def charge() -> None:
        parkade_engine.clock.advance("61s")
        look(parkade_engine)

    ticket = charge.submit()
    assert parkade_engine.run_until_idle(skip_time=True).attempts == 1
    info = ticket.info()
    assert (info.state, info.dead_reason, info.ambiguous) == ("dead", "ambiguous", True)
    assert info.maybe_applied
    [attempt] = ticket.attempts()
    assert attempt.outcome in ("ambiguous", "timeout", "lost")


# ----------------------------------------------------------------------------------- cancels


def test_a_cancel_reaches_a_handler_that_looks(parkade_engine: TestEngine) -> None:
    @parkade_engine.task
    def load(attempt: Attempt) -> None:
        assert parkade_engine.ticket(attempt.ticket_id).cancel("enough") == "requested"
        assert (attempt.cancelled, attempt.cancel_reason) == (True, "enough")
        attempt.raise_if_cancelled()

    ticket = load.submit()
    parkade_engine.run_until_idle(skip_time=True)
    info = ticket.info()
    assert (info.state, info.maybe_applied) == ("cancelled", False)
    assert [a.outcome for a in ticket.attempts()] == ["cancelled"]


def test_a_cancel_that_comes_too_late_for_its_handler_leaves_it_done(
    parkade_engine: TestEngine,
) -> None:
    @parkade_engine.task
    def load(attempt: Attempt) -> str:
        parkade_engine.ticket(attempt.ticket_id).cancel()
        parkade_engine.clock.advance("4s")
        look(parkade_engine)
        return "finished all the same"

    ticket = load.submit()
    parkade_engine.run_until_idle()
    assert ticket.result() == "finished all the same"


def test_silence_after_a_cancel_ends_the_ticket_and_leaves_it_unknown(
    parkade_engine: TestEngine,
) -> None:
    states: list[str] = []

    @parkade_engine.task
    def load(attempt: Attempt) -> str:
        mine = parkade_engine.ticket(attempt.ticket_id)
        mine.cancel("enough")
        parkade_engine.clock.advance("5s")
        look(parkade_engine)
        states.append(mine.info().state)
        return "too late"

    ticket = load.submit()
    parkade_engine.run_until_idle(skip_time=True)
    info = ticket.info()
    assert states == ["cancelled"]
    assert (info.state, info.maybe_applied, info.ambiguous) == ("cancelled", True, True)
    [attempt] = ticket.attempts()
    assert (attempt.outcome, attempt.error) == (
        "cancelled",
        "did not end within 5 s of being asked to stop",
    )


def test_a_failure_after_a_cancel_is_cancelled_and_keeps_its_error(
    parkade_engine: TestEngine,
) -> None:
    @parkade_engine.task(retry=5)
    def load(attempt: Attempt) -> None:
        parkade_engine.ticket(attempt.ticket_id).cancel()
        raise OSError("broken")

    ticket = load.submit()
    assert parkade_engine.run_until_idle(skip_time=True).attempts == 1
    assert (ticket.info().state, ticket.info().error) == ("cancelled", "OSError: broken")


def test_a_coroutine_is_cancelled_where_it_waits(parkade_engine: TestEngine) -> None:
    @parkade_engine.task
    async def load(attempt: Attempt) -> None:
        assert await parkade_engine.ticket(attempt.ticket_id).acancel("enough") == "requested"
        await asyncio.Event().wait()

    ticket = load.submit()
    parkade_engine.run_until_idle()
    assert ticket.info().state == "cancelled"


# ----------------------------------------------------------------------------------- history


def test_the_history_says_how_every_attempt_ended_and_where_it_failed(
    parkade_engine: TestEngine,
) -> None:
    @parkade_engine.task(timeout="10s", lease="5s", retry=["1s"] * 5)
    def load(attempt: Attempt) -> None:
        match attempt.number:
            case 1:
                raise OSError("down")
            case 2:
                attempt.heartbeat()
                parkade_engine.clock.advance("5s")
            case 3:
                for _ in range(3):
                    parkade_engine.clock.advance("4s")
                    attempt.heartbeat()
            case _:
                parkade_engine.ticket(attempt.ticket_id).cancel()
                attempt.raise_if_cancelled()

    ticket = load.submit()
    parkade_engine.run_until_idle(skip_time=True)
    attempts = ticket.attempts()
    assert [a.outcome for a in attempts] == ["error", "lost", "timeout", "cancelled"]
    assert [a.number for a in attempts] == [a.fence for a in attempts] == [1, 2, 3, 4]
    assert 'raise OSError("down")' in (attempts[0].traceback or "")
    assert [a.error_type for a in attempts] == ["OSError", "AttemptLost", "TimeoutError", None]
