"""The write-back cache: generations, bodies, payloads, what stays and what leaves."""

import pytest

from kit.rig import SMALL, Rig
from parkade.shard import CANCELLED, DEAD, PENDING, RUNNING, UNREAD, Shard
from parkade.shard.commands import Cancel, Drop, Forget, Reschedule
from parkade.shard.ticket import decode_ticket

NEAR, HOUR = 3_000, 3_600_000


def test_a_cut_copies_nothing() -> None:
    rig = Rig()
    serial = rig.submit(NEAR)
    dirty = rig.core.dirty
    cut = rig.core.cut()
    assert cut.flight is dirty is rig.core.flight
    assert cut.flight.tickets[serial] is rig.core.hot[serial]
    assert cut.lsn == rig.core.lsn == 1 and cut.counters == {("t", PENDING): 1}
    assert rig.core.dirty.is_empty


def test_there_is_one_flight_at_a_time() -> None:
    rig = Rig()
    rig.core.cut()
    with pytest.raises(AssertionError, match="one checkpoint"):
        rig.core.cut()
    rig.core.merge_back()
    with pytest.raises(AssertionError, match="no checkpoint"):
        rig.core.merge_back()
    with pytest.raises(AssertionError, match="no checkpoint"):
        rig.core.complete(0, {}, {}, 1)


def test_a_ticket_changed_twice_between_cuts_is_copied_once() -> None:
    rig = Rig()
    serial = rig.submit(NEAR)
    first = rig.core.hot[serial]
    rig.do(Reschedule(serial, rig.now_ms + 2 * HOUR))
    assert rig.core.hot[serial] is first
    rig.cut()
    rig.do(Reschedule(serial, rig.now_ms + 3 * HOUR))
    second = rig.core.hot[serial]
    assert second is not first and first.due_ms == rig.now_ms + 2 * HOUR
    rig.do(Reschedule(serial, rig.now_ms + 4 * HOUR))
    assert rig.core.hot[serial] is second


def test_stored_at_changes_at_the_completion_and_not_before() -> None:
    rig = Rig()
    serial = rig.submit(500)
    rig.settle_down()
    rig.checkpoint()
    before = rig.core.stored_at[serial]
    rig.do(Reschedule(serial, rig.now_ms + 600))
    rig.cut()
    rig.commit()
    assert rig.core.stored_at[serial] == before
    rig.complete()
    assert rig.core.stored_at[serial].due_ms == rig.now_ms + 600


def test_what_runs_or_is_near_stays_and_the_rest_leaves() -> None:
    rig = Rig(SMALL._replace(wheel_max=100))
    runs, near, far, dead = rig.submit(), rig.submit(300), rig.submit(HOUR), rig.submit(task="u")
    rig.settle_down()
    rig.pop_all()
    rig.start(runs, dead)
    rig.settle(dead, "failed")
    rig.checkpoint()
    assert set(rig.core.hot) == {runs, near}
    assert rig.core.hot[runs].state == RUNNING
    assert rig.head(far).state == PENDING and rig.head(dead).state == DEAD
    assert rig.core.is_clean(near) and rig.core.look(far) is UNREAD


def test_a_payload_is_at_hand_for_what_is_soon_to_start() -> None:
    rig = Rig(SMALL._replace(payload_cache_bytes_max=20))
    small, large = rig.submit(100, payload=b"x" * 15), rig.submit(100, payload=b"y" * 15)
    rig.settle_down()
    assert rig.core.payload(large) == b"y" * 15, "dirty"
    rig.cut()
    assert rig.core.payload(large) == b"y" * 15, "in flight"
    rig.commit()
    rig.complete()
    assert rig.core.payload(small) == b"x" * 15
    assert rig.core.payload(large) is None, "the cache is bounded"
    assert not rig.core.keep_payload(large, b"y" * 15, rig.store.commits - 1)
    assert rig.core.keep_payload(large, b"y" * 15, rig.store.commits)
    rig.do(Cancel(small))
    assert rig.core.keep_payload(large, b"y" * 15, rig.store.commits)
    assert rig.core.payload(large) == b"y" * 15
    rig.checked()


def test_a_load_brings_the_payload_along() -> None:
    rig = Rig()
    serial = rig.submit(HOUR)
    rig.checkpoint()
    rig.pass_ms(HOUR)
    rig.run(serial)
    assert rig.core.payload(serial) == b"payload"


def test_a_body_is_found_wherever_it_is() -> None:
    rig = Rig()
    serial = rig.submit()
    assert rig.core.body(serial) == b"payload"
    rig.run(serial)
    rig.settle(serial, result=b"42")
    assert rig.core.body(serial) == b"42"
    rig.cut()
    assert rig.core.body(serial) == b"42"
    rig.commit()
    rig.complete()
    assert rig.core.body(serial) is UNREAD and rig.core.payload(serial) is None
    failed = rig.submit()
    rig.run(failed)
    rig.settle(failed, "failed")
    rig.checkpoint()
    rig.do(Drop([failed]))
    assert rig.core.body(failed) is None
    rig.cut()
    assert rig.core.body(failed) is None


def test_a_failed_commit_leaves_what_was_deleted_deleted() -> None:
    rig = Rig()
    serial = rig.submit()
    rig.run(serial)
    rig.settle(serial, "failed")
    rig.cut()
    rig.do(Drop([serial]))
    rig.fail_commit()
    rig.checked()
    assert rig.find(serial) is None
    rig.checkpoint()
    assert not rig.store.heads and not rig.store.bodies and not rig.store.history
    rig.checked()


def test_failed_commits_one_after_another_lose_nothing() -> None:
    rig = Rig()
    serials = []
    for nth in range(4):
        serials.append(rig.submit(HOUR + nth))
        if nth:
            rig.do(Reschedule(serials[nth - 1], rig.now_ms + 2 * HOUR))
        rig.cut()
        rig.fail_commit()
        rig.checked()
    rig.checkpoint()
    dues = [decode_ticket(rig.store.heads[serial]).due_ms for serial in serials]
    assert dues == [rig.now_ms + 2 * HOUR] * 3 + [rig.now_ms + HOUR + 3]


def test_replay_reads_what_a_frame_names_and_changes_nothing_twice() -> None:
    rig = Rig()
    serials = [rig.submit(HOUR) for _ in range(3)]
    rig.checkpoint()
    rig.do(Cancel(serials[0]))
    live = rig.state()
    rig.reopen()
    assert set(rig.core.hot) == {serials[0]}, "nothing else was read"
    assert rig.state() == live


def test_a_ticket_that_was_read_for_nothing_leaves_again() -> None:
    rig = Rig()
    serial = rig.submit(HOUR)
    rig.checkpoint()
    rig.core.adopt(rig.store.load([serial]))
    assert rig.core.placement.where(serial) == "overlay"
    rig.checked()
    rig.checkpoint()
    assert not rig.core.hot
    rig.checked()


def test_a_need_names_again_what_was_read_and_does_not_suffice() -> None:
    """A read replaces the one before: two of which each lacks the other's ticket would alternate
    for ever."""
    rig = Rig()
    first, second = rig.submit(HOUR), rig.submit(HOUR)
    rig.checkpoint()
    rig.core.adopt(rig.store.load([first]))
    command = Forget("t", CANCELLED, [first, second])
    need = rig.core.decide(command, rig.now_ms, rig.settled_ms).need
    assert need is not None and need.serials == [second]
    rig.checkpoint()
    loaded = rig.store.load(need.serials)
    need = rig.core.decide(command, rig.now_ms, rig.settled_ms, loaded).need
    assert need is not None and need.serials == [first, second]


def test_size_grows_with_what_is_dirty() -> None:
    core = Shard()
    rig = Rig()
    core.apply(rig.draft(payload=b"x" * 1_000))
    one = core.dirty.size_bytes
    assert one > 1_000
    core.apply(rig.draft(payload=b"x" * 1_000))
    assert core.dirty.size_bytes == 2 * one
    core.cut()
    assert core.dirty.size_bytes == 0
    core.merge_back()
    assert core.dirty.size_bytes == 2 * one
