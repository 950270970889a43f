"""What plain histories do not have, or only by chance: whole stories, told step by step. They come
where a lean asks for them.
"""

import errno
from collections.abc import Callable
from contextlib import suppress
from random import Random
from typing import Any, Final

import msgspec

from kit.model import DEAD
from parkade.draft_sizes import DRAFT_BYTES
from parkade.io import Writer
from parkade.shard.commands import CONFLICT_REPLACE, Submit
from parkade.shard.commands import Drop as DropDead
from parkade.shard.ticket import part_of_key
from simulation.actions import NO_ANSWER, make_draft, submit_sleepers
from simulation.world import KEYS, World

__all__ = ["LEANED"]


def replace_and_drop(world: World, random: Random) -> None:
    """The name of a dead ticket goes to a new one, and then the dead one is dropped."""
    holders = [
        entry.draft
        for witness in world.witnesses
        for entry in witness.model.tickets.values()
        if entry.state == DEAD and entry.draft.unique is not None
    ]
    if not holders:
        return
    holder = random.choice(holders)
    shard, draft = holder.part % world.shards, make_draft(world, random)
    draft = msgspec.structs.replace(
        draft, part=holder.part, task=holder.task, key=holder.key, unique=holder.unique
    )
    world.ask(shard, Submit([draft], [CONFLICT_REPLACE]), len(draft.payload) + DRAFT_BYTES)
    for _ in range(20):
        world.random_step()
    world.ask(shard, DropDead([holder.serial]), 200)


def send_and_kill(world: World, random: Random) -> None:
    """An attempt ends that has sent children to other shards, and the process is killed before one
    has arrived. Tickets of their keys, submitted meanwhile, are due soon after them."""
    children = []
    for name in KEYS:
        children.append(world.engine.task_of("u").options(key=name).call(size=1))  # type: ignore[union-attr]
        draft = make_draft(world, random)
        draft = msgspec.structs.replace(
            draft, part=part_of_key(name), task="u", key=name, unique=None, options=None,
            due_ms=world.clock.wall_ms + 2,
        )  # fmt: skip
        world.ask(draft.part % world.shards, Submit([draft], [0]), DRAFT_BYTES + 10)
    for _ in range(2):
        world.step(None)
        for worker in range(len(world.workers())):
            world.step(worker)
    alive = list(world.work.alive)
    if alive:
        world.work.end(random.choice(alive), 1, None, children)
    world.step(None)
    for worker in range(len(world.workers())):
        world.step(worker)
    world.kill()
    world.pass_ms(10)


def send_and_fail(world: World, random: Random) -> None:
    """An attempt ends that sends children to other shards. They arrive while a checkpoint that has
    them waits for its commit, which finds no room; then there is some."""
    alive = list(world.work.alive)
    if not alive:
        return
    named: Any = world.engine.task_of("u")
    children = [named.options(key=key).call(size=1) for key in KEYS]
    world.work.end(random.choice(alive), 1, None, children)
    wanted_after = random.randrange(1, 4)
    for turn in range(16):
        world.step(None)
        for number, worker in enumerate(world.workers()):
            if not isinstance(worker, Writer):
                world.step(number)
        if turn == wanted_after:
            for host in world.hosts():
                if host.is_open:
                    host.checkpointing.is_wanted = host.is_stirred = True
    world.shelf.free_bytes = 0
    world.shelf.fail_commit = lambda _: ("before", errno.ENOSPC)
    for number in range(len(world.workers())):
        world.step(number)
    world.step(None)
    world.heal()


def tear_and_kill(world: World, random: Random) -> None:
    """The power goes while frames are under way, so that what stays of the last ones has holes; and
    the process is killed soon after it has begun again."""
    for _ in range(random.randrange(3, 9)):
        submit_sleepers(world, random)
    world.crash("torn")
    if world.open():
        submit_sleepers(world, random)
        world.kill()


def trip_and_kill(world: World, random: Random) -> None:
    """All that runs fails; somebody looks at the breakers, and the process is killed."""
    for key in list(world.work.alive):
        world.work.end(key, 1, ValueError("down"))
    world.step(None)
    with suppress(*NO_ANSWER):
        world.announced.see(world.engine.breakers.list())
    world.kill()


# What plain histories do not have: only where a lean asks for it, so many times as often.
LEANED: Final[dict[str, tuple[int, Callable[[World, Random], None]]]] = {
    "replace and drop": (1, replace_and_drop),
    "send and kill": (1, send_and_kill),
    "send and fail": (1, send_and_fail),
    "tear and kill": (1, tear_and_kill),
    "trip and kill": (1, trip_and_kill),
}
