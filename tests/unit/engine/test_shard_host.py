"""The host of one shard, stepped by hand: what it waits for, and whom it lets go first."""

import threading
from pathlib import Path
from unittest import mock

import pytest

from kit.engines import make, runtime_of
from kit.stepped import LIMITS, PLACES, stepped
from parkade import limits
from parkade.asks import Look
from parkade.shard.commands import Cancel, Forget, Resolve
from parkade.shard.states import CANCELLED, DONE
from parkade.shard.ticket import Ticket
from parkade.store.record import Options, UniqueClaim
from parkade.upkeep import PUT_OFF_TURNS_MAX
from parkade.waiters import Wakeups

HOUR_MS = 3_600_000
CLAIM = UniqueClaim("once", 0)


def test_tickets_held_by_the_clock_take_no_place_from_others() -> None:
    with stepped() as shard:
        for _ in range(4):
            shard.submit(shard.draft(shard.now_ms + 100, options=Options(expires_ms=1_200)))
        shard.checkpoint()
        held = set(shard.witness.model.tickets)
        shard.pass_ms(2 * HOUR_MS, 1)  # the wall clock leaps, and is not believed
        shard.submit(shard.draft())
        shard.run()
        assert list(shard.handlers.alive) == [max(shard.witness.model.tickets)]
        assert held <= shard.witness.model.tickets.keys()

        shard.pass_ms(100 - 2 * HOUR_MS, 100)
        shard.run()
        assert len(shard.handlers.alive) == 3
        shard.finish()


def test_what_came_and_went_between_two_checkpoints_keeps_nobody_awake() -> None:
    with stepped() as shard:
        shard.submit(shard.draft(shard.now_ms + HOUR_MS))
        shard.run()
        (serial,) = shard.witness.model.tickets
        shard.ask(Cancel(serial))
        shard.ask(Forget("t", CANCELLED, [serial]))
        shard.run()
        shard.pass_ms(10_000)
        shard.run()
        assert shard.done["commit"] == 0
        assert shard.shard.wait_ms() > 0


def test_a_body_that_was_replaced_while_it_was_read_is_asked_for_again() -> None:
    with stepped() as shard:
        shard.submit(shard.draft())
        shard.run()
        (job,) = shard.handlers.alive.values()
        shard.settle(job, "failed")
        shard.checkpoint()
        shard.ask(Look(job.serial, wants_body=True))
        shard.ask(Resolve(job.serial, b"checked"))
        shard.want_checkpoint()
        # The look waits for the payload; the resolve, its frame and its checkpoint overtake it.
        for step in ("turn", "io", "hear io", "turn", "turn", "io", "hear io", "turn", "writer"):
            shard.step(step)
        assert shard.done["commit"] == 2
        shard.run()
        (seen,) = [answer for asked, answer in shard.answers if isinstance(asked, Look)]
        assert (seen.ticket.state, seen.body) == (DONE, b"checked")


def test_plain_submits_of_a_turn_are_one_frame_whatever_stands_between_them() -> None:
    with stepped() as shard:
        far_ms = shard.now_ms + HOUR_MS
        drafts = [shard.draft(far_ms), shard.draft(far_ms, unique=CLAIM), shard.draft()]
        for draft in drafts:
            shard.submit(draft)
        shard.run()
        assert [answered[0].code for asked, answered in shard.answers] == ["created"] * 3
        assert shard.shard.core.lsn >= 3
        shard.ask(Cancel(drafts[0].serial))
        shard.run()
        shard.checkpoint()
        shard.finish()


def test_plain_submits_that_were_gathered_when_their_shard_failed_are_decided_afterwards() -> None:
    with stepped() as shard:
        far_ms = shard.now_ms + HOUR_MS
        first, last = shard.draft(far_ms), shard.draft(far_ms)
        core = shard.shard.core

        def fail(record: object) -> None:
            raise RuntimeError("a bug")

        shard.submit(first)
        shard.submit(shard.draft(far_ms, unique=CLAIM))
        shard.submit(last)
        core.apply = fail  # type: ignore[method-assign]
        with pytest.raises(AssertionError, match="is recovered from its disk"):
            shard.run()
        shard.port.errors.clear()
        shard.run()
        assert shard.shard.is_open and shard.shard.recoveries == 1
        found = shard.shard.core.look(first.serial), shard.shard.core.look(last.serial)
        assert [ticket.serial for ticket in found if isinstance(ticket, Ticket)] == [
            first.serial,
            last.serial,
        ]
        shard.finish()


def test_what_nobody_waits_for_is_put_off_behind_lone_frames_but_not_behind_each() -> None:
    with stepped() as shard:
        shard.port.is_lone = True
        shard.run()
        checkpointing = shard.shard.checkpointing
        checkpointing.want()
        was_busy: list[bool] = []
        for _ in range(PUT_OFF_TURNS_MAX + 1):
            shard.submit(shard.draft(shard.now_ms + HOUR_MS))
            shard.step("pass")
            shard.step("io")
            was_busy.append(checkpointing.is_busy)
            assert was_busy[-1] or shard.shard.is_stirred, "there is a turn to come"
            shard.step("hear io")
        assert was_busy == [False] * PUT_OFF_TURNS_MAX + [True]
        shard.run()
        shard.finish()


def test_what_was_put_off_is_done_when_nobody_comes() -> None:
    with stepped() as shard:
        shard.port.is_lone = True
        shard.run()
        shard.shard.checkpointing.want()
        shard.submit(shard.draft(shard.now_ms + HOUR_MS))
        shard.run()
        assert shard.done["commit"] == 1
        shard.finish()


def test_who_is_answered_without_a_frame_is_not_kept_waiting_by_upkeep() -> None:
    with stepped() as shard:
        shard.port.is_lone = True
        shard.submit(shard.draft(shard.now_ms + HOUR_MS))
        shard.run()
        shard.want_checkpoint()
        shard.port.wakeups.add_thread(threading.Lock())
        shard.step("pass")
        assert not shard.shard.checkpointing.is_busy and shard.shard.wait_ms() == 0
        shard.port.wakeups = Wakeups()
        shard.step("pass")
        assert shard.shard.checkpointing.is_busy
        shard.run()
        shard.finish()


def test_a_ticket_that_is_due_is_not_kept_waiting_by_upkeep() -> None:
    with stepped() as shard:
        shard.port.is_lone = True
        shard.submit(shard.draft(shard.now_ms + 100))
        shard.run()
        shard.shard.checkpointing.want()
        shard.pass_ms(100)
        shard.step("pass")
        assert shard.shard.frame_in_flight and not shard.shard.checkpointing.is_busy
        assert shard.shard.wait_ms() == 0, "its turn for the rest follows"
        shard.run()
        assert len(shard.handlers.alive) == 1 and shard.done["commit"] == 1
        shard.finish()


@pytest.mark.parametrize(("more", "frames"), [(0, 1), (1, 2)])
def test_ends_take_along_what_starts_in_their_places(more: int, frames: int) -> None:
    with stepped() as shard:
        shard.submit(*(shard.draft() for _ in range(2 * PLACES)))
        shard.run()
        assert len(shard.handlers.alive) == PLACES
        for job in list(shard.handlers.alive.values()):
            shard.settle(job)
        with mock.patch.object(limits, "ENDS_FRAME_RECORDS", PLACES - more):
            shard.step("pass")
        written = 0
        while not shard.handlers.alive:
            written += shard.step("io")
            shard.step("pass")
        assert len(shard.handlers.alive) == LIMITS["STARTS_UNDER_WAY_MAX"] and written == frames
        shard.finish()


def test_a_start_and_an_end_ask_for_no_turn_of_their_own() -> None:
    with stepped() as shard:
        shard.run()  # there is room in its journal
        shard.submit(shard.draft())
        for step in ("turn", "turn", "admit"):
            shard.step(step)
        assert not shard.shard.is_stirred and shard.shard.wait_ms() == limits.QUIET_MS
        shard.run()
        (job,) = shard.handlers.alive.values()
        shard.settle(job)
        for step in ("turn", "io", "hear io"):
            shard.step(step)
        assert shard.shard.durable_lsn == shard.shard.core.lsn == 3
        assert not shard.shard.is_stirred
        shard.run()
        shard.finish()


def test_a_start_that_leaves_a_lane_low_is_followed_by_a_turn_at_once() -> None:
    with stepped() as shard:
        for _ in range(8):
            shard.submit(shard.draft())
        shard.run()
        lanes = shard.shard.placement.lanes
        assert not lanes.hungry and len(shard.handlers.alive) > 1
        while shard.handlers.alive:
            for job in list(shard.handlers.alive.values()):
                shard.settle(job)
            shard.run()
        assert len(shard.witness.model.tickets) == 8
        assert {entry.state for entry in shard.witness.model.tickets.values()} == {DONE}
        shard.finish()


def test_the_stores_of_an_engine_put_rows_in_turns(tmp_path: Path) -> None:
    with make(tmp_path, shards=4) as engine, make(tmp_path / "other", shards=1) as other:
        turns = {id(shard.store.turn) for shard in runtime_of(engine).shards}
        assert len(turns) == 1
        assert id(runtime_of(other).shards[0].store.turn) not in turns
