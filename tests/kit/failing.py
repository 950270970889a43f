"""Shards that fail: tickets of a chosen shard, how the shards stand, and waiting for a recovery."""

from typing import TYPE_CHECKING, Any

import pytest

from kit.engines import when
from kit.faulty import FaultyDisk
from parkade import Engine, StorageError
from parkade.shard.ticket import part_of_key

if TYPE_CHECKING:
    from parkade import Task

__all__ = ["fail_append", "key_of", "keyed", "recovered", "statuses"]


def key_of(shard: int, shards: int = 2) -> str:
    """A key whose tickets are in this shard."""
    return next(f"k{n}" for n in range(100) if part_of_key(f"k{n}") % shards == shard)


def keyed(task: "Task[..., Any]", shard: int) -> "Task[..., Any]":
    return task.options(key=key_of(shard))


def statuses(engine: Engine) -> list[str]:
    return [shard.status for shard in engine.stats().shards]


def recovered(engine: Engine, count: int = 1, shard: int = 0) -> None:
    when(
        engine,
        lambda runtime: runtime.shards[shard].recoveries == count and runtime.shards[shard].is_open,
    )


def fail_append(engine: Engine, disk: FaultyDisk, task: "Task[..., Any]") -> StorageError:
    disk.break_next("write", "shard-000/journal")
    with pytest.raises(StorageError) as caught:
        keyed(task, 0).submit(0)
    return caught.value
