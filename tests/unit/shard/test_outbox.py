"""The outbox of a core: what an end sends, what is handed, and what comes from others."""

from typing import Any

import pytest

from kit.rig import SMALL, Rig, codes
from parkade.shard import DEAD, DONE
from parkade.shard.births import Ending
from parkade.shard.commands import Cancel, Deliver, Drop, Expire, Forget, Hand, Resolve, Revive
from parkade.shard.outbox import Place
from parkade.shard.ticket import Ticket
from parkade.shard.unique import alias_name
from parkade.store.record import (
    Completed,
    Delivered,
    Options,
    Record,
    Submitted,
    UniqueClaim,
)

KEPT = UniqueClaim("u", 0, -1, 500)


class Rooted:
    """Every end of a ticket of `t` is told to a ticket of `heard`."""

    def __init__(self, rig: Rig) -> None:
        self._rig = rig
        self.endings: list[Ending] = []

    def routes(self, ticket: Ticket, state: int) -> bool:
        return ticket.task == "t"

    def drafts(self, ending: Ending) -> list[Submitted]:
        self.endings.append(ending)
        return [self._rig.draft(task="heard", part=ending.ticket.part)]


@pytest.fixture
def rig() -> Rig:
    return Rig(SMALL._replace(outbox_max=4), shard_count=2)


def bear(rig: Rig, *children: Submitted, kind: str = "done", **more: Any) -> Record:
    """An attempt ends, and these are its children; the record of its end."""
    serial = rig.submit(part=8)
    rig.run(serial)
    rig.settle(serial, kind, born=list(children), **more)
    return rig.last


def child(rig: Rig, part: int = 7, **more: Any) -> Submitted:
    return rig.draft(part=part, **more)


def places(rig: Rig, receiver: int) -> list[Place]:
    return [place for to, place in rig.outbox() if to == receiver]


def test_a_plain_child_of_this_shard_is_born_and_all_others_are_sent(rig: Rig) -> None:
    here, there = child(rig, 8), child(rig, 7)
    keyed, unique = child(rig, 8, key="k"), child(rig, 8, unique=KEPT)
    record = bear(rig, here, there, keyed, unique)
    assert isinstance(record, Completed)
    assert (record.born, record.sent) == ([here], [there, keyed, unique])
    assert rig.find(here.serial) is not None
    assert rig.find(keyed.serial) is None
    assert [draft for _, draft in sorted(rig.outbox().items())] == [keyed, unique, there]
    rig.checked()


@pytest.mark.parametrize("kind", ["done", "failed", "ambiguous", "snooze", "drop", "result_lost"])
def test_each_end_that_a_handler_states_bears(rig: Rig, kind: str) -> None:
    here, there = child(rig, 8), child(rig, 7)
    bear(rig, here, there, kind=kind)
    assert rig.find(here.serial) is not None
    assert list(rig.outbox().values()) == [there]


def test_what_was_sent_stays_through_checkpoints_and_crashes_until_it_is_handed(rig: Rig) -> None:
    bear(rig, *(child(rig) for _ in range(3)))
    rig.checkpoint()
    bear(rig, *(child(rig) for _ in range(3)))
    before = rig.state()
    rig.reopen()
    assert rig.state() == before
    sent = places(rig, 1)
    assert len(sent) == 6 and sent == sorted(sent)
    rig.do(Hand(1, sent[3]))
    assert places(rig, 1) == sent[4:]
    before = rig.state()
    rig.reopen()
    assert rig.state() == before
    rig.checkpoint()
    assert [place for _, place in rig.store.outbox] == sent[4:]
    rig.reopen()
    assert places(rig, 1) == sent[4:]


def test_what_is_handed_while_a_checkpoint_writes_it_is_gone_with_the_next(rig: Rig) -> None:
    bear(rig, *(child(rig) for _ in range(3)))
    sent = places(rig, 1)
    rig.cut()
    rig.do(Hand(1, sent[1]))
    bear(rig, child(rig))
    assert rig.building is not None
    rig.commit()
    rig.complete()
    assert places(rig, 1)[0] == sent[2] and len(places(rig, 1)) == 2
    rig.cut()
    rig.do(Hand(1, places(rig, 1)[0]))
    rig.fail_commit()
    left = places(rig, 1)
    assert len(left) == 1
    rig.checkpoint()
    assert [place for _, place in rig.store.outbox] == left
    rig.checked()


def test_a_window_holds_the_first_entries_and_goes_on_from_the_store(rig: Rig) -> None:
    bear(rig, *(child(rig) for _ in range(10)))
    outbox, sent = rig.core.outbox, places(rig, 1)
    assert list(outbox.windows[1]) == sent[:4] and 1 in outbox.beyond
    rig.checkpoint()
    bear(rig, *(child(rig) for _ in range(3)))
    sent = places(rig, 1)
    assert not outbox.wants_refill(1)
    for done in range(len(sent)):
        rig.do(Hand(1, sent[done]))
        while outbox.wants_refill(1):
            rig.refill(1, limit=2)
        window = list(outbox.windows.get(1, ()))
        assert window == sent[done + 1 :][: len(window)] and bool(window) == (done < len(sent) - 1)
        rig.checked()
    assert not outbox.windows and not outbox.beyond and not rig.outbox()


def test_an_entry_larger_than_the_window_goes_alone() -> None:
    rig = Rig(SMALL._replace(outbox_bytes_max=1_000), shard_count=2)
    bear(rig, *(child(rig, payload=b"x" * size) for size in (10, 5_000, 10)))
    outbox, sent = rig.core.outbox, places(rig, 1)
    for place in sent:
        assert next(iter(outbox.windows[1])) == place
        rig.do(Hand(1, place))
        rig.refill(1)
        rig.checked()
    assert not rig.outbox()


def test_a_delivered_entry_is_taken_once_and_in_order(rig: Rig) -> None:
    first, second = child(rig, 8, key="k"), child(rig, 8)
    entries = [(Place(1, 5, 0), first), (Place(1, 5, 1), second)]
    assert codes(rig.do(Deliver(1, entries[:1])).answers) == ["created"]
    verdict = rig.do(Deliver(1, entries))
    assert [type(record) for record in verdict.records] == [Delivered]
    assert rig.do(Deliver(1, entries)).records == []
    rig.checkpoint()
    rig.reopen()
    assert rig.do(Deliver(1, entries)).records == []
    assert codes(rig.do(Deliver(1, [(Place(2, 1, 0), child(rig, 8))])).answers) == ["created"]
    assert rig.do(Deliver(0, entries)).records != [], "another sender counts for itself"


def deliver(rig: Rig, *drafts: Submitted) -> list[str]:
    rig.delivered += 1
    entries = [(Place(1, rig.delivered, n), draft) for n, draft in enumerate(drafts)]
    return codes(rig.do(Deliver(1, entries)).answers)


def answers_for(rig: Rig, draft: Submitted) -> tuple[int, int] | None:
    """(whose, until when) of an id."""
    row = rig.state()["uniques"].get(alias_name(draft.serial))
    return None if row is None else (row.serial, row.until_ms)


@pytest.mark.parametrize("is_stored", [False, True])
def test_a_child_whose_unique_is_taken_answers_as_its_holder_until_that_ends(
    rig: Rig, is_stored: bool
) -> None:
    holder = rig.submit(50_000, unique=KEPT)
    late, later = child(rig, unique=KEPT), child(rig, unique=KEPT)
    if is_stored:
        rig.settle_down()
        rig.checkpoint()
        assert holder not in rig.core.hot
    assert deliver(rig, late, later) == ["existing", "existing"]
    assert answers_for(rig, late) == answers_for(rig, later) == (holder, -1)
    before = rig.state()
    rig.reopen()
    assert rig.state() == before
    assert codes(rig.do(Cancel(late.serial)).answers) == ["cancelled"]
    assert rig.head(holder).state != DONE
    assert answers_for(rig, late) == (holder, rig.now_ms + 500)
    assert rig.head(holder).aliases is None
    third = child(rig, unique=KEPT)
    assert deliver(rig, third) == ["existing"]
    assert answers_for(rig, third) == answers_for(rig, late)
    rig.checked()


def test_the_ids_of_a_dead_holder_answer_until_somebody_acts(rig: Rig) -> None:
    holder = rig.submit(unique=KEPT)
    rig.run(holder)
    rig.settle(holder, "failed")
    one = child(rig, unique=KEPT)
    assert deliver(rig, one) == ["existing"]
    rig.do(Revive([holder], rig.now_ms))
    assert answers_for(rig, one) == (holder, -1)
    rig.run(holder)
    rig.settle(holder, "failed")
    assert rig.head(holder).state == DEAD
    rig.do(Drop([holder]))
    assert answers_for(rig, one) is None
    rig.checked()


def test_a_child_that_replaces_cancels_the_pending_holder(rig: Rig) -> None:
    holder = rig.submit(100, unique=KEPT)
    alias = child(rig, unique=KEPT)
    assert deliver(rig, alias) == ["existing"]
    replaces = UniqueClaim("u", 0, -1, 500, True)
    new, newest = child(rig, unique=replaces), child(rig, unique=replaces)
    assert deliver(rig, new, newest) == ["created", "created"]
    assert rig.head(holder).why == rig.head(new.serial).why == "replaced"
    assert rig.find(newest.serial) is not None
    assert answers_for(rig, alias) is None
    rig.checked()


def test_every_end_is_told_to_its_route_and_to_no_other(rig: Rig) -> None:
    kin = Rooted(rig)
    rig.core.births.kin = kin
    done, dead, dropped = (rig.submit(part=8) for _ in range(3))
    for serial, kind in ((done, "done"), (dead, "failed"), (dropped, "drop")):
        rig.run(serial)
        rig.settle(serial, kind, result=b"r")
    rig.do(Cancel(rig.submit(5_000, part=8)))
    expiring = rig.submit(part=8, options=Options(expires_ms=1))
    rig.pass_ms(10)
    rig.do(Expire([expiring]))
    rig.do(Resolve(dead, b"checked"))
    rig.do(Forget("t", DONE, [done]))
    states = [ending.state for ending in kin.endings]
    assert states == [2, 3, 4, 4, 5, 2]
    assert [ending.result for ending in kin.endings] == [b"r", None, None, None, None, b"checked"]
    assert kin.endings[1].why == "failed" and kin.endings[1].attempts == 1
    heard = [ticket for ticket in rig.tickets().values() if ticket.task == "heard"]
    assert len(heard) == 6
    rig.checked()


def test_a_route_of_another_shard_is_sent_and_nothing_is_decided_twice(rig: Rig) -> None:
    kin = Rooted(rig)
    rig.core.births.kin = kin
    serial = rig.submit()  # its part is not of this shard: so is its route's
    rig.run(serial)
    rig.settle(serial)
    rig.settle(serial, fence=1)
    assert len(kin.endings) == 1
    assert [draft.task for draft in rig.outbox().values()] == ["heard"]
