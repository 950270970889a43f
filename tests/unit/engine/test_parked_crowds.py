"""A parked crowd that is due: it comes in no faster than it is parked again."""

from unittest import mock

from kit.stepped import LIMITS, Stepped, stepped
from parkade import limits
from parkade.checkpoint import PLAIN_FOR_ONE, Checkpoint
from parkade.io import ShardIO
from parkade.shard.memory import Memory
from parkade.shard.states import DONE

CROWD = 120
CHANGED_BYTES_MAX = LIMITS["READ_ON_BYTES_MAX"] + 4_000  # what runs and what a window had read


def parked_crowd(shard: Stepped) -> None:
    """All due, the most of them rows of their lane."""
    for _ in range(CROWD):
        shard.submit(shard.draft(shard.now_ms + 10_000))
        shard.run()
    shard.checkpoint()
    shard.pass_ms(10_000)
    shard.checkpoint()


def run_without_writer(shard: Stepped) -> int:
    """Ends attempts as they begin, while no checkpoint is committed, until nothing begins any more;
    how many there were."""
    ended = idle = 0
    while idle < 10:
        for name in ("pass", "io", "pass"):
            shard.step(name)
        jobs = list(shard.handlers.alive.values())
        for job in jobs:
            shard.settle(job)
        ended += len(jobs)
        idle = 0 if jobs else idle + 1
    return ended


def test_a_crowd_is_read_on_only_as_fast_as_it_is_parked_again() -> None:
    with stepped() as shard:
        parked_crowd(shard)
        ended = run_without_writer(shard)
        assert 0 < ended < CROWD // 2
        assert shard.port.changed_bytes < CHANGED_BYTES_MAX
        assert shard.shard.wait_ms() > 0, "it waits for the commit, and does not ask on and on"
        shard.finish()
        assert sum(t.state == DONE for t in shard.witness.model.tickets.values()) == CROWD


def test_while_the_sweep_is_behind_the_clock_no_crowd_is_read_on() -> None:
    with stepped() as shard:
        parked_crowd(shard)
        shard.kill()
        for _ in range(4):  # nothing is read meanwhile
            shard.shard.is_stirred = True
            shard.step("pass")
        assert not shard.shard.placement.lanes.reads_on
        shard.run()
        assert shard.shard.placement.lanes.reads_on
        shard.finish()


def test_who_is_due_alone_is_read_before_the_rows_of_crowds() -> None:
    heard: list[str] = []
    io = ShardIO("io", lambda done, got, error: done(got, error))

    def ask(name: str, *, is_first: bool = False) -> None:
        io.call(lambda: name, lambda got, _: heard.append(got), is_first=is_first)

    ask("rows")
    ask("rows of another")
    ask("who is due", is_first=True)
    while io.run_one():
        pass
    assert heard == ["who is due", "rows", "rows of another"]
    assert io.is_idle


def test_who_is_due_behind_a_crowd_at_an_open_starts_before_most_of_it() -> None:
    with stepped() as shard:
        crowd = [shard.draft(shard.now_ms + 10_000) for _ in range(CROWD)]
        behind = shard.draft(shard.now_ms + 10_001, task="u")
        for draft in (*crowd, behind):
            shard.submit(draft)
            shard.run()
        shard.checkpoint()
        shard.pass_ms(10_001)
        shard.kill()
        tickets = shard.witness.model.tickets
        for _ in range(4 * CROWD):
            for name in ("pass", "io", "pass"):
                shard.step(name)
            for job in list(shard.handlers.alive.values()):
                shard.settle(job)
            if tickets[behind.serial].state == DONE:
                break
        assert sum(tickets[draft.serial].state == DONE for draft in crowd) < CROWD // 10
        shard.finish()


def sweep_crowd(shard: Stepped) -> Memory:
    """Not due yet, most of them on their way to rows of their lane."""
    for _ in range(CROWD // 10):
        shard.submit(shard.draft(shard.now_ms + 10_000))
        shard.run()
    shard.checkpoint()
    shard.pass_ms(9_500)
    memory = shard.shard.core.memory
    for _ in range(CROWD):
        shard.shard.is_stirred = True
        for name in ("turn", "io", "hear io"):
            shard.step(name)
        if len(memory.dirty.moves) > PLAIN_FOR_ONE:
            break
    return memory


def test_moves_are_encoded_a_few_at_a_time_like_tickets() -> None:
    with stepped() as shard:
        memory = sweep_crowd(shard)
        moves = len(memory.dirty.moves)
        core, times = shard.shard.core, {"now_ms": shard.now_ms, "settled_ms": shard.now_ms}
        checkpoint = Checkpoint(core, epoch=1, **times, keeps_ms={}, spent=[])
        rows = checkpoint.batch.lane_rows
        while checkpoint.is_building:
            before = len(rows)
            checkpoint.build(1)
            assert len(rows) - before <= PLAIN_FOR_ONE
        assert len(rows) == moves > PLAIN_FOR_ONE
        core.merge_back()
        shard.finish()


def test_a_crowd_that_is_swept_keeps_no_submit_waiting() -> None:
    with stepped() as shard:
        memory = sweep_crowd(shard)
        assert shard.port.changed_bytes == memory.moved_bytes
        with mock.patch.object(limits, "DIRTY_BYTES_MAX", 1):
            shard.submit(shard.draft())
            shard.step("pass")
        assert not shard.shard.has_undecided
        shard.finish()


def test_a_crowd_that_is_read_leaves_room_for_submits() -> None:
    assert limits.READ_ON_BYTES_MAX < limits.DIRTY_BYTES_MAX
