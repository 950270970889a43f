"""Plain tickets: what was submitted stands for a sleeper, until somebody looks or it is stored."""

from kit.rig import SMALL, Rig
from parkade.shard import CANCELLED, PENDING, UNREAD
from parkade.shard.commands import AllCreated, Cancel, Reschedule, Submit
from parkade.store.record import Options, UniqueClaim

HOUR = 3_600_000


def plain_serials(rig: Rig) -> list[int]:
    return [ticket.serial for ticket in rig.core.memory.plain_tickets()]


def test_a_far_sleeper_becomes_a_ticket_when_somebody_looks() -> None:
    rig = Rig(SMALL)
    serial, other = rig.submit(HOUR), rig.submit(HOUR)
    assert plain_serials(rig) == [serial, other] and not rig.core.hot
    ticket = rig.head(serial)
    assert (ticket.state, ticket.due_ms, ticket.part) == (PENDING, rig.now_ms + HOUR, 7)
    assert rig.core.hot == {serial: ticket} and plain_serials(rig) == [other]
    assert rig.core.body(serial) == rig.core.body(other) == b"payload"
    assert rig.core.placement.where(serial) == "overlay"
    rig.checked()


def test_what_is_near_or_not_plain_is_a_ticket_at_once() -> None:
    rig = Rig(SMALL)
    options, claim = Options(priority=1), UniqueClaim("once", 0)
    drafts = [
        rig.draft(10),
        rig.draft(HOUR),
        rig.draft(HOUR, key="k"),
        rig.draft(HOUR, options=options),
        rig.draft(HOUR, unique=claim),
    ]
    for draft in drafts:
        rig.do(Submit([draft]))
    assert rig.core.hot.keys() == {drafts[place].serial for place in (0, 2, 3, 4)}
    assert plain_serials(rig) == [drafts[1].serial]
    assert rig.core.lsn == len(drafts)
    rig.checked()


def test_a_checkpoint_leaves_nothing_of_plain_tickets_in_memory() -> None:
    rig = Rig(SMALL)
    drafts = [rig.draft(HOUR + n, task="tu"[n % 2]) for n in range(6)]
    verdict = rig.do(Submit(drafts))
    assert type(verdict.answers) is AllCreated
    rig.cut()
    assert plain_serials(rig) == [draft.serial for draft in drafts]
    rig.commit()
    rig.complete()
    assert not plain_serials(rig) and not rig.core.hot and not rig.core.stored_at
    assert [rig.head(draft.serial).due_ms for draft in drafts] == [d.due_ms for d in drafts]
    rig.checked()


def test_one_that_changes_while_it_is_in_the_flight_is_changed_beside_it() -> None:
    rig = Rig(SMALL)
    serial, other, third = rig.submit(HOUR), rig.submit(HOUR), rig.submit(HOUR)
    rig.cut()
    rig.do(Cancel(serial))
    rig.do(Reschedule(other, rig.now_ms + 5))
    assert plain_serials(rig) == [third]
    rig.checked()
    rig.commit()
    assert rig.store.view().heads[serial].state == PENDING
    rig.complete()
    assert rig.head(serial).state == CANCELLED and rig.core.look(third) is UNREAD
    rig.checked()
    rig.checkpoint()
    assert rig.store.view().heads[serial].state == CANCELLED
    assert rig.store.view().heads[other].due_ms == rig.now_ms + 5
    rig.checked()


def test_a_commit_that_fails_gives_plain_tickets_back() -> None:
    rig = Rig(SMALL)
    serials = [rig.submit(HOUR) for _ in range(4)]
    rig.cut()
    rig.do(Cancel(serials[0]))
    assert rig.head(serials[1]).state == PENDING
    newer = rig.submit(2 * HOUR)
    rig.fail_commit()
    assert plain_serials(rig) == [serials[2], serials[3], newer]
    rig.checked()
    before = rig.state()
    rig.checkpoint()
    assert rig.state() == before
    rig.reopen()
    assert rig.state() == before


def test_plain_tickets_are_tickets_before_their_time() -> None:
    rig = Rig(SMALL)
    serials = [rig.submit(5_000 + 500 * n) for n in range(4)]
    rig.cut()
    later = rig.submit(HOUR)
    assert rig.core.placement.next_wake() is not None
    rig.now_ms += 6_000
    rig.settle_down()
    assert sorted(rig.pop_all()) == serials[:3]
    assert plain_serials(rig) == [later]
    rig.checked()


def test_replay_comes_to_the_same_and_makes_tickets_of_all() -> None:
    rig = Rig(SMALL)
    serials = [rig.submit(HOUR, payload=bytes([n])) for n in range(3)]
    rig.do(Cancel(serials[1]))
    before = rig.state()
    rig.reopen()
    assert rig.state() == before and rig.core.hot.keys() == set(serials)
