"""How an engine is, for whoever watches it: numbers that are kept, nothing that is counted."""

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from parkade.runtime import Runtime
    from parkade.shard_host import ShardHost

__all__ = ["closed_health", "read_health"]

ANSWER_S_MAX = 2.0


def read_health(runtime: "Runtime") -> Mapping[str, Any]:
    """See `Engine.health`. A core thread that does not answer in 2 s is down."""
    clock = runtime.clock
    asked_ms = clock.monotonic_ms()
    try:
        facts: dict[str, Any] = runtime.host.call(
            lambda: _health(runtime, clock.monotonic_ms() - asked_ms), ANSWER_S_MAX
        )
    except TimeoutError:
        return _down(clock.monotonic_ms() - asked_ms, "the core thread does not answer")
    if runtime.host.fatal is not None:
        return _down(facts["loop_lag_ms"], f"the core thread ended: {runtime.host.fatal}")
    return facts


def closed_health() -> Mapping[str, Any]:
    """Of an engine that is not open."""
    return _down(0, "the engine is not open")


def _down(lag_ms: int, reason: str) -> dict[str, Any]:
    return {
        "status": "down",
        "reason": reason,
        "ready": False,
        "storage_writable": False,
        "oldest_ready_age_ms": 0,
        "loop_lag_ms": lag_ms,
        "shards": [],
    }


def _health(runtime: "Runtime", lag_ms: int) -> dict[str, Any]:
    host = runtime.host
    shards = [_shard_health(shard) for shard in runtime.shards]
    oldest = [shard.placement.oldest_ready_ms() for shard in host.open_shards()]
    oldest_ms = min((ms for ms in oldest if ms is not None), default=host.now_ms)
    is_whole = all(shard["writable"] for shard in shards)
    return {
        "status": "ok" if is_whole else "degraded",
        "reason": None,
        "ready": any(shard["status"] == "open" for shard in shards),
        "storage_writable": is_whole,
        "oldest_ready_age_ms": max(0, host.now_ms - oldest_ms),
        "loop_lag_ms": max(0, lag_ms),
        "shards": shards,
    }


def _shard_health(shard: "ShardHost") -> dict[str, Any]:
    is_writable = shard.is_open and not shard.room.is_full and not shard.checkpointing.lacks_room
    return {
        "shard": shard.number,
        "status": shard.status,
        "reason": None if shard.error is None else str(shard.error),
        "writable": is_writable,
        "recoveries": shard.recoveries,
        "quarantined": len(shard.quarantined),
    }
