"""What histories have found once, each as its shortest script."""

from unittest import mock

import pytest

from kit.failing import key_of
from kit.model import CANCELLED, PENDING
from parkade.handing import Handing
from parkade.shard.commands import CONFLICT_REPLACE, Submit
from parkade.shard.ticket import part_of_key
from parkade.shard.unique import DURATION
from parkade.store.record import Submitted, UniqueClaim
from simulation.world import World, simulated


def submit(world: World, key: str) -> None:
    assert world.runtime is not None
    now_ms = world.clock.wall_ms
    serial = world.runtime.serials.take(1, now_ms)
    draft = Submitted(serial, part_of_key(key), "u", now_ms, now_ms, b"\x80", key)
    world.ask(draft.part % world.shards, Submit([draft]), 200)


def test_a_core_comes_to_rest_while_what_was_on_its_way_does_not_arrive() -> None:
    """As with a receiver whose disk is full: until then nothing starts, and time helps nobody."""
    with simulated(0, shards=2, keep_ms=None, bounds=0) as world:
        assert world.open() and world.runtime is not None
        with mock.patch.object(Handing, "is_behind", True):
            world.runtime.host.hand_over()
            submit(world, key_of(0))
            world.rest()
            assert not world.work.alive
        world.rest()
        assert len(world.work.alive) == 1
        world.finish()


def test_a_life_without_a_checkpoint_has_a_time_that_is_believed_all_the_same() -> None:
    with simulated(0, shards=2, keep_ms=None, bounds=0) as world:
        assert world.open()
        begun_ms = world.clock.wall_ms
        world.kill()
        world.pass_ms(400 * 86_400_000, 1_000)
        assert world.open() and world.runtime is not None
        assert world.runtime.settled_clock.now <= begun_ms + 1_000
        world.finish()


def test_a_clock_that_held_while_no_shard_served_is_believed() -> None:
    """The core goes on reading it; it was called wrong once it was set after that."""
    with simulated(0, shards=1, keep_ms=None, bounds=0) as world:
        assert world.open()
        world.rest()
        world.kill()
        world.pass_ms(400_000_000, 1_000)
        assert world.open() and world.runtime is not None
        world.rest()
        [shard] = world.hosts()
        with mock.patch.object(shard, "is_open", False):
            world.pass_ms(700_000)
            world._pass()
        world.pass_ms(10_000_000, 0)
        world._pass()
        assert world.runtime.settled_clock.now >= world.clock.wall_ms - 10_000_000
        world.finish()


def test_what_is_larger_than_a_turn_is_decided_before_anything_else_happens() -> None:
    """The segment has no room for it, and a spare is looked for at once: it waited for the next
    pass, and nothing called for one."""
    with simulated(0, shards=2, keep_ms=None, bounds=0) as world:
        assert world.open() and world.runtime is not None
        now_ms, [shard, _] = world.clock.wall_ms, world.hosts()
        serial = world.runtime.serials.take(1, now_ms)
        draft = Submitted(serial, 0, "u", now_ms, now_ms, b"\x80", None)
        world.rest()
        world.ask(0, Submit([draft]), 2 * shard.journal._spares.room_bytes)
        world._pass()
        assert shard.room.spare_in_flight
        world.rest()
        assert not shard.asks
        world.finish()


@pytest.mark.parametrize("is_committed", [True, False])
def test_a_name_that_was_over_before_the_clock_was_set_back_is_free_or_replaced(
    is_committed: bool,
) -> None:
    """Whether its row was gone by then nobody can tell who goes by the times alone: the first
    ticket is then left alone, and cancelled if it still had the name."""
    with simulated(0, shards=1, keep_ms=None, bounds=0) as world:
        assert world.open()
        first = replace(world, due_in_ms=40_000_000)
        checkpoint(world)
        world.pass_ms(200_000)
        submit(world, key_of(0))
        world.rest()
        if is_committed:
            checkpoint(world)
        world.pass_ms(-200_000, 0)
        replace(world, due_in_ms=0)
        world.rest()
        world.check()
        state = world.witnesses[0].model.tickets[first].state
        assert state == (PENDING if is_committed else CANCELLED)
        world.finish()


def checkpoint(world: World) -> None:
    for host in world.hosts():
        host.checkpointing.is_wanted = host.is_stirred = True
    world.rest()


def replace(world: World, due_in_ms: int) -> int:
    """A ticket that takes the name for five seconds, whoever has it."""
    assert world.runtime is not None
    now_ms = world.clock.wall_ms
    serial = world.runtime.serials.take(1, now_ms)
    claim = UniqueClaim("n", DURATION, now_ms + 5_000, 0)
    draft = Submitted(serial, 0, "t", now_ms + due_in_ms, now_ms, b"\x80", None, claim)
    world.ask(0, Submit([draft], [CONFLICT_REPLACE]), 200)
    return serial
