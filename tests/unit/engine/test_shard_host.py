"""The host of one shard, stepped by hand: what it waits for, and whom it lets go first."""

from kit.stepped import stepped
from parkade.asks import Look
from parkade.shard.commands import Cancel, Forget, Resolve
from parkade.shard.states import CANCELLED, DONE
from parkade.store.record import Options

HOUR_MS = 3_600_000


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
