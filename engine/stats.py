"""The engine's numbers, from counters that the shards keep: nothing is counted when asked."""

from datetime import timedelta
from typing import TYPE_CHECKING

from parkade.shard.states import DEAD, DONE, PENDING, RUNNING
from parkade.showing import ENDED_NAMES
from parkade.views import ShardStats, State, Stats

if TYPE_CHECKING:
    from parkade.runtime import Runtime
    from parkade.shard_host import ShardHost

__all__ = ["read_stats"]


def read_stats(runtime: "Runtime") -> Stats:
    """Asked of the core thread, between two passes. Raises `TimeoutError` when it is stuck."""
    stats: Stats = runtime.host.call(lambda: _stats(runtime))
    return stats


def _stats(runtime: "Runtime") -> Stats:
    totals = dict.fromkeys((PENDING, *ENDED_NAMES), 0)
    by_task: dict[str, dict[State, int]] = {}
    ready = 0
    oldest_ms: int | None = None
    for shard in runtime.host.open_shards():
        for (task, state), count in shard.core.counters.items():
            totals[state] += count
            names = by_task.setdefault(task, {})
            name: State = ENDED_NAMES.get(state, "scheduled")
            names[name] = names.get(name, 0) + count
        ready += shard.placement.ready_count
        oldest = shard.placement.oldest_ready_ms()
        if oldest is not None:
            oldest_ms = oldest if oldest_ms is None else min(oldest, oldest_ms)
    age_ms = 0 if oldest_ms is None else max(0, runtime.host.now_ms - oldest_ms)
    return Stats(
        ready=ready,
        scheduled=max(0, totals[PENDING] - ready),
        running=totals[RUNNING],
        dead=totals[DEAD],
        done_total=totals[DONE],
        oldest_ready_age=timedelta(milliseconds=age_ms),
        by_task=by_task,
        shards=[_shard_stats(shard) for shard in runtime.shards],
    )


def _shard_stats(shard: "ShardHost") -> ShardStats:
    if not shard.is_open:
        return ShardStats(
            shard.number, shard.status, str(shard.error), 0, 0, 0, 0, 0, 0, shard.checkpoints,
            shard.recoveries, len(shard.quarantined),
        )  # fmt: skip
    core = shard.core
    return ShardStats(
        shard=shard.number,
        status=shard.status,
        reason=None,
        lsn=core.lsn,
        hot=len(core.hot),
        dirty=len(core.dirty.tickets),
        journal_bytes=shard.journal.live_bytes,
        journal_segments=shard.journal.segments,
        store_bytes=shard.store.used_bytes,
        checkpoints=shard.checkpoints,
        recoveries=shard.recoveries,
        quarantined=len(shard.quarantined),
    )
