"""What may happen in a simulated world, each drawn by its weight; swarms leave some of them out.

An action is its name and a number that decides all the rest of it, so a script of them replays, and
stays meaningful when others are taken out of it.
"""

import errno
from collections.abc import Callable
from contextlib import suppress
from random import Random
from typing import Any, Final, NamedTuple

import msgspec

from kit.disk import Call, Failure
from kit.inodes import How
from parkade import Ambiguous, Cancelled, Drop, Fail, RetryAfter, Snooze, Unsafe
from parkade.asking import TimeIsUp
from parkade.asks import AwaitEnd, Look, PageOf
from parkade.caller_frames import Line
from parkade.draft_sizes import DRAFT_BYTES
from parkade.errors import Backpressure, ParkadeError
from parkade.shard.commands import (
    Bookmark,
    Cancel,
    CancelMany,
    Command,
    Reschedule,
    Resolve,
    Revive,
    Submit,
)
from parkade.shard.commands import (
    Drop as DropDead,
)
from parkade.shard.ticket import parse_id, part_of_key, part_of_serial, part_of_unique
from parkade.store.record import Options, Submitted, UniqueClaim
from simulation.application import LIMIT_T
from simulation.world import KEYS, World

__all__ = ["ACTIONS", "NO_ANSWER", "Action", "draw", "make_draft", "submit_sleepers", "swarm"]


NO_ANSWER: Final = (ParkadeError, TimeoutError, TimeIsUp)


class Action(NamedTuple):
    """One thing that happens; `number` decides how."""

    name: str
    number: int


# ------------------------------------------------------------------ the application


def submit(world: World, random: Random) -> None:
    drafts: dict[int, list[Submitted]] = {}
    modes: dict[int, list[int]] = {}
    for _ in range(random.choice((1, 1, 1, 2, 5))):
        draft = make_draft(world, random)
        shard = draft.part % world.shards
        drafts.setdefault(shard, []).append(draft)
        modes.setdefault(shard, []).append(random.choice((0, 0, 1, 2)))
    for shard, listed in drafts.items():
        if len(listed) == 1 and _is_written_by_its_caller(world, shard, listed[0]):
            continue
        size = sum(len(draft.payload) + DRAFT_BYTES for draft in listed)
        world.ask(shard, Submit(listed, modes[shard]), size)


def _is_written_by_its_caller(world: World, shard: int, draft: Submitted) -> bool:
    return not _not_written_by_callers(world, shard, [draft])


def _not_written_by_callers(world: World, shard: int, drafts: list[Submitted]) -> list[Submitted]:
    """Their callers write them, the last of whom has the pen while the others wait for it; those
    that are the core's all the same."""
    assert world.runtime is not None
    pen = world.host(shard).pen
    lines = [Line(draft) for draft in drafts[:-1]]
    pen.lines.update(dict.fromkeys(lines))
    left = list[Submitted]()
    try:
        if world.runtime.host.caller_frames.write(world.host(shard), drafts[-1]):
            _is_known(world, drafts[-1])
        else:
            left.append(drafts[-1])
    except NO_ANSWER:
        world.counts["callers without an answer"] += 1
    for line in lines:
        pen.lines.pop(line, None)
        if not line.is_written:
            left.append(line.draft)
        elif line.error is None:
            _is_known(world, line.draft)
    return left


def _is_known(world: World, draft: Submitted) -> None:
    world.counts["written by callers"] += 1
    world.known[draft.serial] = draft.part


def submit_sleepers(world: World, random: Random) -> None:
    """One after another or several at once, by those who find the engine at rest, or with little to
    do."""
    if not world.has_caller_frames:
        return
    if random.random() < 0.7:
        world.rest()
    for _ in range(random.choice((1, 3, 6))):
        by_shard: dict[int, list[Submitted]] = {}
        for _ in range(random.choice((1, 1, 4))):
            draft = make_draft(world, random)
            far_ms = random.choice((700, 5_000, 90_000, 3_600_000))
            draft = msgspec.structs.replace(draft, due_ms=draft.at_ms + far_ms)
            by_shard.setdefault(draft.part % world.shards, []).append(draft)
        for shard, drafts in by_shard.items():
            left = [draft for draft in drafts if draft.unique is not None]  # they are the core's
            plain = [draft for draft in drafts if draft.unique is None]
            if plain:
                left += _not_written_by_callers(world, shard, plain)
            for draft in left:
                world.ask(shard, Submit([draft], [0]), len(draft.payload) + DRAFT_BYTES)


def make_draft(world: World, random: Random) -> Submitted:
    assert world.runtime is not None
    now_ms = world.clock.wall_ms
    serial = world.runtime.serials.take(1, now_ms)
    assert serial not in world.given or world.has_lost_told, ("given out twice", serial)
    world.given.add(serial)
    task = random.choice(("t", "t", "u"))
    key = random.choice((None, None, None, *KEYS))
    claim, part = None, part_of_serial(serial)
    if random.random() < 0.25:
        name = f"n{random.randrange(4)}"
        mode = random.choice((0, 1, 2))
        until_ms = now_ms + 5_000 if mode == 2 else -1
        claim, part = UniqueClaim(name, mode, until_ms, 3_000), part_of_unique(task, name)
    if key is not None:
        part = part_of_key(key)
    options = None
    if random.random() < 0.3:
        options = Options(
            target=random.choice((None, "a", "b")),
            priority=random.choice((0, 0, 1, -1)),
            expires_ms=random.choice((None, None, 100, 5_000)),
            max_attempts=random.choice((None, None, 1, 3)),
        )
    delay_ms = random.choice((0, 0, 1, 50, 700, 5_000, 90_000, 3_600_000, 40_000_000))
    payload = b"\x81\xa4size" + bytes([random.randrange(100)])
    return Submitted(serial, part, task, now_ms + delay_ms, now_ms, payload, key, claim, options)


def _someone(world: World, random: Random) -> tuple[int, int] | None:
    """The shard and the serial of a ticket that was acknowledged, rather a late one."""
    if not world.known:
        return None
    serials = list(world.known)
    place = max(random.randrange(len(serials)), random.randrange(len(serials)))
    serial = serials[place]
    return world.known[serial] % world.shards, serial


def _about(make: Callable[[int, Random, World], Any]) -> Callable[[World, Random], None]:
    def act(world: World, random: Random) -> None:
        found = _someone(world, random)
        if found is not None:
            shard, serial = found
            asked = make(serial, random, world)
            world.ask(shard, asked, 200 if isinstance(asked, Command) else 0)

    return act


def pause(world: World, random: Random) -> None:
    kind, name = random.choice((("task", "t"), ("task", "u"), ("target", "a")))
    scope = f"{kind}:{name}"
    is_pause = random.random() < 0.5
    change = world.engine.pause if is_pause else world.engine.resume
    world.unsure.add(scope)
    try:
        change(task=name) if kind == "task" else change(target=name)
    except NO_ANSWER:
        return
    world.unsure.discard(scope)
    (world.paused.add if is_pause else world.paused.discard)(scope)


def limit(world: World, random: Random) -> None:
    count = random.choice((None, 1, 2, 4))
    world.limits_unsure = True
    # What may have begun under the wider of the two ends with the next rest.
    widest = LIMIT_T if count is None else count
    world.limit_t = max(world.limit_t or 0, widest)
    try:
        world.engine.limits.set("task:t", concurrency=count)
    except NO_ANSWER:
        world.limit_t = 4
        return
    world.limits_unsure = False
    world.limit_now = widest


def breaker(world: World, random: Random) -> None:
    """An operator turns a breaker, or looks at all of them."""
    breakers = world.engine.breakers
    roll = random.random()
    try:
        if roll < 0.2:
            world.announced.turned("a")
            breakers.force_open("a", for_=random.choice((None, "3s")))
        elif roll < 0.6:
            for name in ("a", "b", "t"):
                world.announced.turned(name)
                breakers.close(name)
        else:
            world.announced.see(breakers.list())
    except NO_ANSWER:
        return


def call(world: World, random: Random) -> None:
    """Somebody submits as an application does, and waits for the answer."""
    made = _child(world, random)
    try:
        ticket = world.engine.submit(made)
    except Backpressure as error:
        world.counts["submits held back"] += 1
        assert error.ready >= error.max_ready == world.max_ready
        return
    except NO_ANSWER:
        return
    parsed = parse_id(ticket.id)
    if ticket.created and parsed is not None:
        world.known[parsed.serial] = parsed.part


def cancel_many(world: World, random: Random) -> None:
    found = _someone(world, random)
    if found is None:
        return
    shard = found[0]
    near = [serial for serial, part in world.known.items() if part % world.shards == shard]
    serials = random.sample(near, min(len(near), random.choice((1, 2, 5))))
    world.ask(shard, CancelMany(serials, "so many"), 200 * len(serials))


def cancel_one_that_runs(world: World, random: Random) -> None:
    alive = list(world.work.alive.values())
    if alive:
        job = random.choice(alive).job
        world.ask(job.part % world.shards, Cancel(job.serial, "stop it"), 200)


def find(world: World, random: Random) -> None:
    """Somebody turns all pages of a listing while everything goes on."""
    task = random.choice((None, "t", "u"))
    before = world.serials_of(task)
    listed: list[int] = []
    cursor = None
    try:
        while True:
            page = world.engine.find(task=task, limit=random.choice((1, 3, 8)), cursor=cursor)
            parsed = [parse_id(info.id) for info in page.items]
            listed += [known.serial for known in parsed if known is not None]
            cursor = page.next
            if cursor is None:
                break
    except NO_ANSWER:
        return
    assert listed == sorted(set(listed), reverse=True), ("in order, and once", listed)
    missing = (before & world.serials_of(task)) - set(listed)
    if all(host.recoveries == 0 for host in world.hosts()):
        assert not missing, ("not listed", missing, listed)
    world.counts["listings"] += 1


# ------------------------------------------------------------------ handlers


def finish(world: World, random: Random) -> None:
    alive = list(world.work.alive)
    if not alive:
        return
    error: BaseException | None = None
    roll = random.random()
    if roll < 0.35:
        error = random.choice(
            (
                ValueError("no"), RetryAfter("1s", "later"), Snooze("2s", "not yet"), Fail("never"),
                Unsafe("half"), Ambiguous("who knows"), Drop("unwanted"), KeyboardInterrupt(),
                ValueError("x" * 3_000),
            )
        )  # fmt: skip
    children = [_child(world, random) for _ in range(random.choice((0, 0, 0, 1, 1, 3)))]
    world.work.end(random.choice(alive), random.choice((1, 7)), error, children)


def tell(world: World, random: Random) -> None:
    """A handler says that it is alive, how far it is, or saves where it is; or what one said that
    has ended comes in late."""
    if world.past and random.random() < 0.2:
        job = random.choice(world.past)
        late = Bookmark(job.serial, job.fence, b"%d" % random.randrange(1_000))
        world.ask(job.part % world.shards, late, 200)
        return
    alive = list(world.work.alive.values())
    if not alive:
        return
    run = random.choice(alive)
    attempt = world.work.attempt_of(run)
    if run.lease_until_ms is not None and random.random() < 0.1:
        # It was silent until its lease was over, and nobody has looked since.
        world.pass_ms(max(0, run.lease_until_ms - world.clock.mono_ms))
    roll = random.random()
    if roll < 0.5:
        attempt.heartbeat()
        world.work.leases.renewed(run, world.clock.mono_ms)
    elif roll < 0.8:
        attempt.progress(random.randrange(9), 9, "on it")
        world.work.leases.renewed(run, world.clock.mono_ms)
    else:
        with suppress(*NO_ANSWER, Cancelled):
            attempt.save_checkpoint(random.randrange(1_000))
            world.work.leases.renewed(run, world.clock.mono_ms)


def _child(world: World, random: Random) -> Any:
    task: Any = world.engine.task_of(random.choice(("t", "u", "t")))
    options = random.choice(
        (
            {}, {"key": random.choice(KEYS)}, {"unique": f"n{random.randrange(3)}"},
            {"unique": "n0", "on_conflict": "replace"}, {"unique": "n1", "key": "k0"},
            {"delay": "2s", "target": "a"}, {"unique": "n2", "unique_for": "active"},
        )
    )  # fmt: skip
    return task.options(**options).call(size=random.randrange(100))


# ------------------------------------------------------------------ time


def tick(world: World, random: Random) -> None:
    world.pass_ms(random.choice((1, 5, 40, 300, 1_000, 2_500)))


def sleep(world: World, random: Random) -> None:
    world.pass_ms(random.choice((10_000, 100_000, 3_700_000, 90_000_000)))


def set_clock(world: World, random: Random) -> None:
    """Somebody sets the wall clock; or the machine was suspended."""
    step_ms = random.choice((-100, -5_000, -3_600_000, 2_000, 3_500_000, 10_000_000, 200_000_000))
    if step_ms < 0:
        world.counts["steps back"] += 1
    world.pass_ms(step_ms, 0)


def settle_clock(world: World, random: Random) -> None:
    """So much time that any clock is believed in the end."""
    for _ in range(random.choice((3, 8))):
        world.pass_ms(100_000)
        world.random_step()
        world.step(None)


# ------------------------------------------------------------------ the machine


def rot(world: World, random: Random) -> None:
    """The process ends; while it is away a bit flips."""
    world.rot.want()
    world.kill()


def while_away(world: World, random: Random) -> None:
    """The process ends, and begins under another clock."""
    world.kill()
    world.counts["clocks set while away"] += 1
    step_ms = random.choice((-7_200_000, -200_000_000, 7_200_000, 80_000_000, 400_000_000, 1 << 36))
    world.pass_ms(step_ms, random.choice((0, 1_000)))


def run(world: World, random: Random) -> None:
    for _ in range(random.randrange(1, 12)):
        world.random_step()


def rest(world: World, random: Random) -> None:
    world.rest()


def checkpoint(world: World, random: Random) -> None:
    host = world.host(random.randrange(world.shards))
    if host.is_open:
        host.checkpointing.is_wanted = host.is_stirred = True


def power_cut(world: World, random: Random) -> None:
    hows: tuple[How, ...] = ("lost", "torn", "landed")
    world.crash(random.choice(hows))


def power_cut_later(world: World, random: Random) -> None:
    world.disk.cut_at(world.disk.number + random.randrange(1, 40))


def kill(world: World, random: Random) -> None:
    world.kill()


def stop(world: World, random: Random) -> None:
    world.counts["stops"] += 1
    world.engine.stop(drain=0.1, cancel=0.1)
    world.kill()


FLUSHES: Final = ("pwrite_durable", "fdatasync", "fsync_directory")


def disk_fails(world: World, random: Random) -> None:
    name = random.choice(world.failing)
    how: Failure = random.choice(("before", "after", "short"))

    def is_it(call: Call) -> bool:
        if call.name != name:
            return False
        world.counts["failed flushes" if name in FLUSHES else "failed calls"] += 1
        return True

    world.disk.fail(is_it, errno.EIO, how, random.choice(world.failing_times))


def disk_fills(world: World, random: Random) -> None:
    world.counts["full disks"] += 1
    world.disk.capacity_bytes = world.disk.used_bytes() + random.choice((0, 5_000))
    world.shelf.free_bytes = 0
    world.shelf.fail_commit = lambda _: ("before", errno.ENOSPC)


def heal(world: World, random: Random) -> None:
    world.heal()


def commit_fails(world: World, random: Random) -> None:
    how = random.choice(("before", "after"))
    left = [random.choice((1, 1, 2))]

    def fail(path: str) -> Any:
        if "house" in path or not left[0]:
            return None
        left[0] -= 1
        return how, errno.EIO

    world.shelf.fail_commit = fail


ACTIONS: Final[dict[str, tuple[int, Callable[[World, Random], None]]]] = {
    "submit": (30, submit),
    "submit sleepers": (8, submit_sleepers),
    "cancel": (5, _about(lambda serial, random, _: Cancel(serial, "so"))),
    "reschedule": (
        4,
        _about(
            lambda serial, random, world: Reschedule(
                serial, world.clock.wall_ms + random.choice((0, 200, 5_000, 9_000_000))
            )
        ),
    ),
    "revive": (
        5,
        _about(
            lambda serial, random, world: Revive(
                [serial],
                world.clock.wall_ms + random.choice((0, 900)),
                keep_attempts=random.random() < 0.3,
                accept_ambiguous=random.random() < 0.7,
            )
        ),
    ),
    "drop": (1, _about(lambda serial, random, _: DropDead([serial]))),
    "resolve": (1, _about(lambda serial, random, _: Resolve(serial, b"\x01"))),
    "look": (4, _about(lambda serial, random, _: Look(serial, random.random() < 0.5))),
    "await": (3, _about(lambda serial, random, _: AwaitEnd(serial))),
    "page": (
        2,
        lambda world, random: world.ask(
            random.randrange(world.shards), PageOf((), 1 << 64, random.choice((1, 5)))
        ),
    ),
    "pause": (2, pause),
    "limit": (1, limit),
    "breaker": (2, breaker),
    "call": (4, call),
    "cancel many": (2, cancel_many),
    "cancel one that runs": (2, cancel_one_that_runs),
    "find": (1, find),
    "finish": (30, finish),
    "tell": (6, tell),
    "tick": (25, tick),
    "sleep": (1, sleep),
    "set clock": (1, set_clock),
    "settle clock": (1, settle_clock),
    "while away": (1, while_away),
    "rot": (1, rot),
    "run": (70, run),
    "rest": (3, rest),
    "checkpoint": (4, checkpoint),
    "power cut": (2, power_cut),
    "power cut later": (2, power_cut_later),
    "kill": (1, kill),
    "stop": (1, stop),
    "disk fails": (2, disk_fails),
    "disk fills": (1, disk_fills),
    "heal": (3, heal),
    "commit fails": (1, commit_fails),
}
ALWAYS: Final = frozenset(("submit", "finish", "tick", "run", "heal"))


def swarm(random: Random) -> dict[str, int]:
    """Weights for one run: some actions are left out, some come much more often."""
    return {
        name: weight * random.choice((1, 1, 1, 4))
        for name, (weight, _) in ACTIONS.items()
        if name in ALWAYS or random.random() < 0.7
    }


def draw(random: Random, weights: dict[str, int], count: int) -> list[Action]:
    names = random.choices(list(weights), list(weights.values()), k=count)
    return [Action(name, random.getrandbits(32)) for name in names]
