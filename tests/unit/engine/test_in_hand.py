"""A ticket in hand: chosen, with its place, and not started yet."""

from kit.laws import HOUR_MS, send_checkpoint, steps
from kit.stepped import Stepped, stepped
from parkade.shard.commands import Cancel, Reschedule
from parkade.store.record import Options


def take_in_hand(shard: Stepped, options: Options | None = None) -> int:
    """A ticket whose payload is being read: its place is taken."""
    shard.run()
    draft = shard.draft(shard.now_ms + HOUR_MS, payload=bytes(200), options=options)
    shard.submit(draft)
    shard.run()
    shard.checkpoint()
    shard.pass_ms(HOUR_MS)
    while not shard.attempts.running:
        steps(shard, "io, pass")
    assert not shard.witness.started
    return draft.serial


def test_a_ticket_that_is_rescheduled_in_hand_has_one_place() -> None:
    with stepped() as shard:
        serial = take_in_hand(shard)
        shard.ask(Reschedule(serial, shard.now_ms))
        for _ in range(3):
            shard.pass_ms(1)
            steps(shard, "turn, admit")
        shard.run()
        assert list(shard.handlers.alive) == [serial]
        assert shard.attempts.running == 1
        shard.settle(shard.handlers.alive[serial])
        shard.run()
        assert shard.attempts.running == 0


def test_a_ticket_that_ends_in_hand_is_not_taken_for_damaged() -> None:
    with stepped() as shard:
        serial = take_in_hand(shard)
        shard.ask(Cancel(serial))
        steps(shard, "turn, io, hear io")
        send_checkpoint(shard)
        steps(shard, "writer, io, hear io")  # its payload is read from behind the commit
        assert not shard.shard.quarantined
        shard.run()
        assert shard.attempts.running == 0
        assert shard.witness.model.tickets[serial].state == 4


def test_what_the_clock_held_and_is_due_later_by_now_has_its_shard_look_when() -> None:
    with stepped() as shard:
        serial = take_in_hand(shard, Options(expires_ms=HOUR_MS))
        shard.pass_ms(5 * HOUR_MS, 0)  # expired by the wall clock, which nobody believes
        shard.run()
        assert not shard.attempts.running and not shard.handlers.alive
        shard.pass_ms(-5 * HOUR_MS - 3_000, 0)
        steps(shard, "turn, admit")
        assert not shard.handlers.alive
        assert shard.shard.is_stirred
        shard.pass_ms(3_000)
        shard.run()
        assert list(shard.handlers.alive) == [serial]
