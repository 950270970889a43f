"""A crowd on its way to its handlers, and whoever is behind it."""

import gc

from kit.attempts import AttemptRig
from kit.laws import steps
from kit.stepped import LIMITS, Stepped, stepped
from parkade.looped import BURST_MAX
from parkade.shard.generation import LaneMove
from parkade.shard.states import DONE
from parkade.shard.ticket import StoredAt

MOST = LIMITS["STARTS_UNDER_WAY_MAX"]


def crowd_in_its_lane(shard: Stepped) -> list[int]:
    """More than may be under way, with places for all of them; the serials."""
    shard.run()
    drafts = [shard.draft() for _ in range(MOST + 1)]
    shard.submit(*drafts)
    while not shard.attempts.under_way:
        steps(shard, "turn, admit")
    return [draft.serial for draft in drafts]


def test_a_crowd_has_no_more_starts_under_way_than_the_bound() -> None:
    with stepped() as shard:
        serials = crowd_in_its_lane(shard)
        for _ in range(3):
            steps(shard, "turn, admit")
        assert shard.attempts.under_way == shard.attempts.running == MOST
        shard.run()
        assert list(shard.handlers.alive) == serials, "the bound is not one of places"
        assert shard.attempts.under_way == 0


def test_nobody_looks_for_more_starts_before_one_of_those_under_way_is_durable() -> None:
    with stepped() as shard:
        crowd_in_its_lane(shard)
        times = shard.now_ms, shard.mono_ms
        assert shard.attempts.admission.wait_ms(*times) == 0, "somebody may start"
        assert shard.attempts.wait_ms(*times) is None
        shard.run()
        assert shard.attempts.under_way == 0


def test_one_task_alone_has_nobody_behind_it_and_no_bound() -> None:
    with stepped() as shard:
        for _ in range(LIMITS["STARTS_ALONE_MIN"]):
            shard.submit(shard.draft())
            shard.run()
            for job in list(shard.handlers.alive.values()):
                shard.settle(job)
        crowd_in_its_lane(shard)
        steps(shard, "turn, admit")
        assert shard.attempts.under_way == MOST + 1
        shard.run()
        assert shard.attempts.under_way == 0


def test_starts_of_a_shard_that_fails_are_under_way_no_more() -> None:
    with stepped() as shard:
        crowd_in_its_lane(shard)
        shard.shard.poison(RuntimeError("for this test"))
        shard.port.errors.clear()
        assert shard.attempts.under_way == 0
        shard.finish()
        tickets = shard.witness.model.tickets.values()
        assert [ticket.state for ticket in tickets] == [DONE] * (MOST + 1)


def test_what_is_kept_of_each_parked_ticket_costs_a_collection_of_garbage_nothing() -> None:
    kept = [StoredAt(0, 1, 2, 3, group=b"g"), LaneMove(1, 2, 3, "key")]
    assert not any(gc.is_tracked(each) for each in kept)


def test_who_begins_with_a_crowd_of_another_task_begins_before_it() -> None:
    rig = AttemptRig()

    @rig.tasks.task
    async def crowd(n: int) -> None:
        begun.append(n)

    @rig.tasks.task
    async def alone(n: int) -> None:
        begun.append(n)

    begun: list[int] = []
    many = BURST_MAX + 1
    jobs = [rig.job(crowd, n) for n in range(many)]
    jobs[many // 2 : many // 2] = [rig.job(alone, many), rig.job(alone, many + 1)]
    rig.executor.start(jobs)
    rig.await_count(len(jobs))
    rig.executor.close()
    assert begun == [many, many + 1, *range(many)]
