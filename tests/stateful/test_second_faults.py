"""The smallest test of each fault of `simulation.sabotage_second` that no other test notices."""

from typing import Any

from kit.laws import HOUR_MS
from kit.stepped import stepped
from parkade.asks import Look
from parkade.checkpoint import Checkpoint
from parkade.noting import Notebook
from parkade.shard import Bounds, Shard
from parkade.shard.commands import Cancel
from parkade.shard.horizon import Swept, pack
from parkade.shard.outbox import Place
from parkade.shard.states import PENDING
from parkade.shard.ticket import Ticket
from parkade.store.meta import decode_taken
from parkade.store.record import Options, Submitted
from parkade.testing import TestEngine


def test_a_checkpoint_says_what_was_taken_when_it_was_cut() -> None:
    core = Shard(shard_count=2)
    core.outbox.take(1, Place(1, 1, 0))
    checkpoint = Checkpoint(core, epoch=1, now_ms=0, settled_ms=0, keeps_ms={}, spent=[])
    core.outbox.take(1, Place(1, 2, 0))
    checkpoint.build(10)
    assert decode_taken(checkpoint.batch.taken or b"") == {1: (1, 1, 0)}


def test_the_mark_of_an_expiry_goes_with_its_ticket() -> None:
    with stepped() as shard:
        draft = shard.draft(shard.now_ms + HOUR_MS, options=Options(expires_ms=5_000))
        shard.submit(draft)
        shard.checkpoint()
        assert len(shard.image().view.marks) == 1
        shard.ask(Cancel(draft.serial, "so"))
        shard.checkpoint()
        assert not shard.image().view.marks


def test_a_clean_ticket_past_a_lowered_horizon_leaves_memory() -> None:
    with stepped() as shard:
        shard.run()
        draft = shard.draft(shard.now_ms + shard.bounds.horizon_ms // 4)
        shard.submit(draft)
        shard.checkpoint()
        placement = shard.shard.placement
        assert placement.where(draft.serial) == "wheel" and draft.serial in shard.shard.core.hot
        placement._lower(pack((shard.now_ms, 0)))
        assert draft.serial in shard.shard.core.memory.lingering


def test_who_leaves_memory_behind_the_mark_of_its_expiry_still_expires() -> None:
    placement = Shard().placement
    placement.horizon = pack((200, 0))
    for serial, expiry_ms in ((5, 100), (6, 300)):
        placement.expiries.arm(serial, expiry_ms)
        placement._disarm_far(Ticket(serial, 0, "t", PENDING, 0, 0, 0, None, None, None))
    assert placement.expiries.armed == {5: 100}  # the other's mark is yet to be swept


def test_a_sweep_counts_for_nothing_when_the_horizon_came_down_meanwhile() -> None:
    placement = Shard(bounds=Bounds()).placement
    assert placement.want_sweep(0) is not None
    assert placement.swept(Swept(0, [], (1_000, 0)), 0)
    assert placement.want_sweep(1_000) is not None
    placement._lower(pack((10, 0)))
    assert not placement.swept(Swept(0, [], (2_000, 0)), 1_000)
    assert placement.horizon == pack((10, 0))


def test_what_the_other_shards_do_not_need_is_kept_by_one_that_has_more() -> None:
    with TestEngine(shards=2, keep_done_max=6) as engine:

        @engine.task(key="one")
        def note(n: int) -> int:
            return n

        tickets = [note.submit(n) for n in range(6)]
        for _ in range(4):
            engine.run_until_idle()
            engine.clock.advance("6s")
        engine.run_until_idle()
        assert [ticket.result() for ticket in tickets] == [*range(6)]


def test_a_look_waits_until_what_it_saw_is_durable() -> None:
    with stepped() as shard:
        draft = shard.draft(shard.now_ms + HOUR_MS)
        shard.submit(draft)
        shard.run()
        shard.ask(Cancel(draft.serial, "so"))
        shard.ask(Look(draft.serial, False))
        shard.step("pass")
        assert len(shard.answers) == 1
        shard.run()
        assert len(shard.answers) == 3


def test_an_attempt_hears_that_it_is_to_stop_once_that_is_durable() -> None:
    with stepped() as shard:
        draft = shard.draft()
        shard.submit(draft)
        shard.run()
        heard: list[Any] = []
        shard.shard.stop_attempt = lambda *request: heard.append(request)
        shard.ask(Cancel(draft.serial, "so"))
        shard.step("pass")
        assert not heard
        shard.run()
        assert heard == [(draft.serial, 1, "so")]


def test_no_event_tells_of_what_a_shard_could_not_write() -> None:
    notebook = Notebook()
    notebook.note([Submitted(1, 0, "t", 0, 0, b"", None, None, None)], {})
    notebook.send()
    notebook.drop()
    assert notebook.release()[0] == []
