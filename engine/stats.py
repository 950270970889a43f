"""The engine's numbers, from counters that the shards keep: nothing is counted when asked."""

from collections.abc import Iterable, Mapping, Sequence
from datetime import timedelta
from typing import TYPE_CHECKING, NamedTuple

from parkade.shard.states import DEAD, DONE, PENDING, RUNNING
from parkade.showing import ENDED_NAMES
from parkade.views import ShardStats, State, Stats

if TYPE_CHECKING:
    from parkade.runtime import Runtime
    from parkade.shard_host import ShardHost

__all__ = ["ShardCounts", "read_next_due", "read_stats", "sum_up"]


class ShardCounts(NamedTuple):
    """One shard's tickets by (task, state); how many of the pending ones are due, and since when
    the first of them is, in ms since the epoch (None: none is); how many were done and are
    forgotten."""

    counters: Mapping[tuple[str, int], int]
    ready: int
    oldest_ready_ms: int | None
    done_forgotten: int = 0


def read_stats(runtime: "Runtime") -> Stats:
    """Asked of the core thread, between two passes. Raises `TimeoutError` when it is stuck."""
    stats: Stats = runtime.host.call(lambda: _stats(runtime))
    return stats


def read_next_due(runtime: "Runtime") -> tuple[int | None, int]:
    """(when the next ticket comes due, until when the shards know that): wall clock, ms. None: none
    does until then; what lies beyond is on disk, and nobody has looked at it. The time may be that
    of a ticket that was due then and has moved on. Raises `TimeoutError` when the core thread is
    stuck."""
    told: tuple[int | None, int] = runtime.host.call(lambda: _next_due(runtime))
    return told


def _next_due(runtime: "Runtime") -> tuple[int | None, int]:
    looks = [shard.placement.next_due() for shard in runtime.host.open_shards()]
    known_ms = min((until_ms for _, until_ms in looks), default=0)
    dues = [due_ms for due_ms, _ in looks if due_ms is not None and due_ms <= known_ms]
    return min(dues, default=None), known_ms


def _stats(runtime: "Runtime") -> Stats:
    counts = (
        ShardCounts(
            shard.core.counters,
            shard.placement.ready_count,
            shard.placement.oldest_ready_ms(),
            shard.core.done_forgotten,
        )
        for shard in runtime.host.open_shards()
    )
    shards = [_shard_stats(shard) for shard in runtime.shards]
    zombies = len(runtime.executor.zombies())
    return sum_up(counts, shards, runtime.host.now_ms, zombies=zombies)


def sum_up(
    counts: Iterable[ShardCounts], shards: Sequence[ShardStats], now_ms: int, *, zombies: int = 0
) -> Stats:
    """The sums over all shards that could be asked."""
    totals = dict.fromkeys((PENDING, *ENDED_NAMES), 0)
    by_task: dict[str, dict[State, int]] = {}
    ready = done_forgotten = 0
    oldest_ms = now_ms
    for counted in counts:
        for (task, state), count in counted.counters.items():
            totals[state] += count
            names = by_task.setdefault(task, {})
            name: State = ENDED_NAMES.get(state, "scheduled")
            names[name] = names.get(name, 0) + count
        ready += counted.ready
        done_forgotten += counted.done_forgotten
        if counted.oldest_ready_ms is not None:
            oldest_ms = min(oldest_ms, counted.oldest_ready_ms)
    ready = min(ready, totals[PENDING])  # a shard knows it only about
    return Stats(
        ready=ready,
        scheduled=max(0, totals[PENDING] - ready),
        running=totals[RUNNING],
        dead=totals[DEAD],
        done_total=totals[DONE] + done_forgotten,
        oldest_ready_age=timedelta(milliseconds=now_ms - oldest_ms),
        by_task=by_task,
        shards=shards,
        zombies=zombies,
    )


def _shard_stats(shard: "ShardHost") -> ShardStats:
    if not shard.is_open:
        return ShardStats(
            shard.number, shard.status, str(shard.error), 0, 0, 0, 0, 0, 0, shard.checkpoints,
            shard.recoveries, len(shard.quarantined), shard.refused_outcomes,
        )  # fmt: skip
    core = shard.core
    return ShardStats(
        shard=shard.number,
        status=shard.status,
        reason=None,
        lsn=core.lsn,
        hot=len(core.hot) + core.memory.plain_count,
        dirty=core.dirty.count,
        journal_bytes=shard.journal.live_bytes,
        journal_segments=shard.journal.segments,
        store_bytes=shard.store.used_bytes,
        checkpoints=shard.checkpoints,
        recoveries=shard.recoveries,
        quarantined=len(shard.quarantined),
        refused_outcomes=shard.refused_outcomes,
    )
