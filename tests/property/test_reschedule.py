"""A rescheduled ticket comes at its new time and at no other, wherever it was waiting.

Each placement is made on purpose and shown to be the one it is meant to be; then the ticket is
moved earlier, later or to now, with checkpoints and crashes in between.
"""

from collections.abc import Callable

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kit.rig import Rig, codes
from parkade.shard import PENDING
from parkade.shard.commands import Expire, Reschedule
from parkade.store.record import Options

HOUR = 3_600_000
EXPIRES = 5_000
Place = Callable[[Rig, Options | None], int]
delays = st.sampled_from((0, 1, 300, 999, 1_001, 2_600, 9_000, HOUR, 3 * HOUR))
steps = st.lists(st.sampled_from(("settle", "checkpoint", "reopen", "pass")), max_size=4)


def overlay(rig: Rig, options: Options | None) -> int:
    serial = rig.submit(4_000, options=options)
    assert rig.core.placement.where(serial) == "overlay"
    return serial


def wheel(rig: Rig, options: Options | None) -> int:
    rig.settle_down()
    serial = rig.submit(400, options=options)
    assert rig.core.placement.where(serial) == "wheel"
    return serial


def parked(rig: Rig, options: Options | None) -> int:
    serial = rig.submit(HOUR, options=options)
    rig.checkpoint()
    assert rig.core.placement.where(serial) == "parked"
    assert serial not in rig.core.hot
    return serial


def parked_and_near(rig: Rig, options: Options | None) -> int:
    """On disk, with a timer in the wheel."""
    serial = rig.submit(1_400, options=options)
    rig.checkpoint()
    rig.pass_ms(900)
    rig.settle_down()
    assert rig.core.placement.where(serial) == "wheel"
    assert serial not in rig.core.hot
    return serial


def in_flight(rig: Rig, options: Options | None) -> int:
    """The checkpoint that parks it is committed, and not heard of yet."""
    serial = rig.submit(HOUR, options=options)
    rig.cut()
    rig.commit()
    return serial


def in_the_window(rig: Rig, options: Options | None) -> int:
    serial = rig.submit(0, options=options)
    rig.settle_down()
    assert rig.core.placement.where(serial) == "window"
    return serial


def past_the_window(rig: Rig, options: Options | None) -> int:
    """Due, and in memory only until a checkpoint makes a row of it."""
    for _ in range(rig.bounds.window_max):
        rig.submit(0, options=options)
    serial = rig.submit(0, options=options)
    rig.settle_down()
    assert rig.core.placement.where(serial) == "spilled"
    return serial


def a_row_of_its_lane(rig: Rig, options: Options | None) -> int:
    serial = past_the_window(rig, options)
    rig.checkpoint()
    assert serial not in rig.core.hot
    assert serial in {row[2] for row in rig.store.rows}
    return serial


def in_hand(rig: Rig, options: Options | None) -> int:
    serial = in_the_window(rig, options)
    assert rig.pop_all() == [serial]
    return serial


def aside_for_its_key(rig: Rig, options: Options | None) -> int:
    first = rig.submit(0, key="k")
    rig.run(first)
    serial = rig.submit(0, key="k", options=options)
    rig.settle_down()
    assert rig.pop_all() == []
    assert rig.core.placement.where(serial) == "aside"
    rig.settle(first)
    return serial


def in_backoff(rig: Rig, options: Options | None) -> int:
    serial = rig.submit(0, options=options)
    rig.run(serial)
    rig.settle(serial, "transient", wait_ms=2_500)
    return serial


PLACES: list[Place] = [
    overlay, wheel, parked, parked_and_near, in_flight, in_the_window, past_the_window,
    a_row_of_its_lane, in_hand, aside_for_its_key, in_backoff,
]  # fmt: skip


@pytest.mark.parametrize("place", PLACES, ids=lambda place: place.__name__)
@given(delay=delays, has_expiry=st.booleans(), between=steps)
def test_it_comes_at_its_new_time_and_at_no_other(
    place: Place, delay: int, has_expiry: bool, between: list[str]
) -> None:
    rig = Rig()
    serial = place(rig, Options(expires_ms=EXPIRES) if has_expiry else None)
    due_ms = _reschedule(rig, serial, delay)
    for step in between:
        _between(rig, step, due_ms)
        rig.checked()
    if delay:
        _wait_until(rig, due_ms - 1)
        assert serial not in _drained(rig)
        _wait_until(rig, due_ms)
    assert _drained(rig).count(serial) == 1
    rig.checked()


@pytest.mark.parametrize(
    "place", [p for p in PLACES if p is not in_backoff], ids=lambda p: p.__name__
)
@given(delay=delays, between=steps)
def test_its_expiry_goes_along_while_it_never_started(
    place: Place, delay: int, between: list[str]
) -> None:
    rig = Rig()
    serial = place(rig, Options(expires_ms=EXPIRES))
    due_ms = _reschedule(rig, serial, delay)
    for step in between:
        _between(rig, step, due_ms)
    _wait_until(rig, due_ms + EXPIRES - 1)
    # An old timer may have reminded of it: that decides nothing, and must not be the last.
    _expired(rig)
    assert codes(rig.do(Expire([serial])).answers) == ["not_due"]
    _wait_until(rig, due_ms + EXPIRES)
    assert serial in _expired(rig)
    assert codes(rig.do(Expire([serial])).answers) == ["expired"]
    rig.checked()


def _reschedule(rig: Rig, serial: int, delay: int) -> int:
    """The new due, after the head was looked at."""
    before, due_ms = rig.head(serial), rig.now_ms + delay
    assert codes(rig.do(Reschedule(serial, due_ms)).answers) == ["rescheduled"]
    if rig.committed is not None:
        rig.complete()
    head = rig.head(serial)
    first_due_ms = due_ms if not head.fence else min(before.first_due_ms, due_ms)
    assert (head.state, head.due_ms, head.first_due_ms) == (PENDING, due_ms, first_due_ms)
    assert (head.attempts, head.fence) == (before.attempts, before.fence)
    rig.checked()
    return due_ms


def _expired(rig: Rig) -> list[int]:
    """Who has expired by now, as far as everything has come in."""
    expired: list[int] = []
    for _ in range(50):
        expired += rig.settle_down()
        if not rig.core.placement.wants_checkpoint:
            return expired
        rig.checkpoint()
    raise AssertionError("it goes on for ever")


def _between(rig: Rig, step: str, due_ms: int) -> None:
    match step:
        case "settle":
            rig.settle_down()
        case "checkpoint":
            rig.checkpoint()
        case "reopen":
            rig.reopen()
        case _:
            rig.pass_ms(max(min(200, due_ms - 1 - rig.now_ms), 0))


def _wait_until(rig: Rig, at_ms: int) -> None:
    rig.pass_ms(max(at_ms - rig.now_ms, 0))


def _drained(rig: Rig) -> list[int]:
    """All that may start now, past windows too."""
    taken: list[int] = []
    for _ in range(50):
        rig.settle_down()
        if rig.core.placement.wants_checkpoint:
            rig.checkpoint()
            continue
        more = rig.pop_all()
        if not more:
            return taken
        taken += more
        rig.start(*more)
    raise AssertionError("it goes on for ever")
