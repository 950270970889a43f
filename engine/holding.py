"""The owner's side of a backup: journals that stand still for a moment, and one cut through all.

Whoever copies has snapshots of all stores first. The cut is then the last durable LSN of each
shard, read in one pass of the core thread. A hand-over is marked as arrived only once it is durable
where it arrived, so a cut that has the one has the other, and no child is lost between two copies.
What lies between a snapshot and the cut is in the journals, which drop nothing meanwhile
(docs/architecture.md, Backup).
"""

from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any

from parkade.errors import StorageError

if TYPE_CHECKING:
    from parkade.engine import Engine
    from parkade.runtime import Runtime

__all__ = ["HOLD_CALLS", "HOLD_MS"]

HOLD_MS = 60_000  # then the journals are let go, for whoever held them may be no more


def begin_backup(engine: "Engine", _: Mapping[str, Any]) -> dict[str, int]:
    """Holds the journals. Raises what a shard was refused with."""
    runtime = engine.desk("backup").runtime

    def hold() -> int:
        _check_open(runtime)
        holder = runtime.next_holder()
        for shard in runtime.shards:
            shard.checkpointing.hold_journal(holder, runtime.host.mono_ms + HOLD_MS)
        return holder

    return {"holder": runtime.host.call(hold)}


def cut_backup(engine: "Engine", args: Mapping[str, Any]) -> dict[str, list[int]]:
    """The last durable LSN of each shard. Raises `StorageError` where a journal is held no more."""
    runtime = engine.desk("backup").runtime
    holder = int(args["holder"])

    def cut() -> list[int]:
        _check_open(runtime)
        for shard in runtime.shards:
            if not shard.checkpointing.is_held(holder):
                raise StorageError(
                    shard=shard.number,
                    what="be copied",
                    reason="it was recovered, or the copying took too long: begin again",
                )
        return [shard.durable_lsn for shard in runtime.shards]

    return {"lsns": runtime.host.call(cut)}


def end_backup(engine: "Engine", args: Mapping[str, Any]) -> dict[str, Any]:
    """Lets the journals go."""
    runtime = engine.desk("backup").runtime
    holder = int(args["holder"])

    def release() -> None:
        for shard in runtime.shards:
            if shard.is_open:
                shard.checkpointing.release_journal(holder)

    runtime.host.call(release)
    return {}


def _check_open(runtime: "Runtime") -> None:
    for shard in runtime.shards:
        if not shard.is_open:
            error = shard.error or RuntimeError(f"shard {shard.number:02d} is being recovered")
            raise runtime.failure(shard.number, error)


HOLD_CALLS: Mapping[str, Callable[["Engine", Mapping[str, Any]], Any]] = {
    "backup_begin": begin_backup,
    "backup_cut": cut_backup,
    "backup_end": end_backup,
}
