"""Groups of a shard while a checkpoint is on its way: what is counted from the store and what from
memory, in every order in which a read and a commit can cross."""

from collections.abc import Callable
from itertools import permutations

import pytest

from kit.stepped import Stepped, stepped
from parkade.asks import GroupEnds, GroupsOf, ShardGroups
from parkade.shard.commands import Drop, Resolve, Revive
from parkade.store.record import ErrorText

# The read of an inquiry, the commit of a checkpoint, and when the core thread hears of each.
EVENTS = ("io", "hear io", "writer", "hear writer")
ORDERS = [
    order
    for order in permutations(EVENTS)
    if order.index("io") < order.index("hear io")
    and order.index("writer") < order.index("hear writer")
]


def die(shard: Stepped, message: str, count: int = 1) -> list[int]:
    """Serials of tickets that died of this."""
    serials = []
    for _ in range(count):
        shard.submit(shard.draft())
        shard.run()
        (job,) = shard.handlers.alive.values()
        shard.settle(job, "failed", error=ErrorText("E", message))
        shard.run()
        serials.append(job.serial)
    return serials


def bury_more(shard: Stepped, parked: list[int]) -> None:
    die(shard, "a")
    die(shard, "b")


def bring_back(shard: Stepped, parked: list[int]) -> None:
    shard.ask(Revive(parked[:2], shard.now_ms + 9_000))


def bring_back_to_die_otherwise(shard: Stepped, parked: list[int]) -> None:
    shard.ask(Revive(parked[-1:], shard.now_ms))
    shard.run()
    (job,) = shard.handlers.alive.values()
    shard.settle(job, "failed", error=ErrorText("E", "b"))


def drop_and_resolve(shard: Stepped, parked: list[int]) -> None:
    shard.ask(Drop(parked[:1]))
    shard.ask(Resolve(parked[-1], b"checked"))


CHANGES = (bury_more, bring_back, bring_back_to_die_otherwise, drop_and_resolve)
AT_ONCE = (bring_back, drop_and_resolve)  # without letting the commit go on


@pytest.mark.parametrize("order", ORDERS, ids=" > ".join)
@pytest.mark.parametrize("later", [None, *AT_ONCE])
@pytest.mark.parametrize("change", CHANGES)
def test_groups_are_right_however_a_read_and_a_commit_cross(
    change: Callable[[Stepped, list[int]], None],
    later: Callable[[Stepped, list[int]], None] | None,
    order: tuple[str, ...],
) -> None:
    """The shard itself holds each answer against all tickets there are (`kit.watched`)."""
    with stepped() as shard:
        parked = die(shard, "a", 4)
        shard.checkpoint()
        change(shard, parked)
        shard.run()
        # The flight leaves for the writer, and what comes now is dirty over it.
        shard.want_checkpoint()
        shard.step("pass")
        shard.step("pass")
        assert shard.shard.core.flight is not None
        if later is not None:
            later(shard, parked[1:-1])
            shard.step("turn")
        groups = {head.group for head in shard.shard.core.hot.values() if head.group is not None}
        before = shard.shard.core.completed_commit
        shard.ask(GroupsOf(b"", 10))
        shard.ask(GroupEnds(sorted(groups)))
        shard.step("turn")
        for event in order:
            for _ in range(4 if event in ("io", "hear io") else 1):
                shard.step(event)
        shard.run()
        assert shard.shard.core.completed_commit > before
        answers = [answer for asked, answer in shard.answers if isinstance(asked, GroupsOf)]
        assert len(answers) == 1 and isinstance(answers[0], ShardGroups)
        shard.finish()
