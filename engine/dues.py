"""When a shard has something to do by itself, on either clock: what the core thread waits for.

Reckoned at the end of a turn and kept, so that a shard at rest costs a pass two comparisons.
"""

from typing import TYPE_CHECKING

from parkade import limits

if TYPE_CHECKING:
    from parkade.shard_host import ShardHost

__all__ = ["NEVER_MS", "Dues"]

NEVER_MS = 1 << 62


class Dues:
    """Of one shard."""

    __slots__ = ("mono_ms", "wall_ms")

    def __init__(self) -> None:
        self.wall_ms = self.mono_ms = 0

    def reckon(self, shard: "ShardHost") -> None:
        """For an open shard. Where anything is in hand, what it waits for need not be known: it
        looks again after the longest wait of the core thread."""
        if shard.has_more:
            self.wall_ms = self.mono_ms = 0
            return
        wake_ms = shard.placement.next_wake()
        self.wall_ms = NEVER_MS if wake_ms is None else wake_ms
        rest_ms = limits.REST_MS_MAX if shard.is_at_rest else limits.WAIT_MS_MAX
        due_ms, since_ms = shard.host.mono_ms + rest_ms, shard.uncovered_since_ms
        if since_ms is not None and since_ms + limits.IDLE_COVER_MS < due_ms:
            due_ms = since_ms + limits.IDLE_COVER_MS
        for next_ms in (
            shard.checkpointing.next_ms(), shard.retention.next_ms(), shard.handing.next_ms()
        ):  # fmt: skip
            if next_ms is not None and next_ms < due_ms:
                due_ms = next_ms
        self.mono_ms = due_ms

    def reckon_start(self, shard: "ShardHost") -> None:
        """Behind a start, which leaves a shard little to do: its turn follows in a moment, with
        what comes in by then; at once where something is to be read."""
        lanes = shard.placement.lanes
        if shard.waiting or lanes.hungry or lanes.waits.hungry:
            shard.is_stirred = True
        self.are_over_by(shard.host.mono_ms + limits.QUIET_MS)

    def pass_over(self) -> None:
        """What was due is in hand; a turn follows that reckons anew."""
        self.wall_ms = NEVER_MS

    def are_over_by(self, mono_ms: int) -> None:
        """There is something to be done then, on the monotonic clock."""
        if mono_ms < self.mono_ms:
            self.mono_ms = mono_ms

    def try_again_at(self, mono_ms: int) -> None:
        """Nothing is to be done before that time on the monotonic clock."""
        self.wall_ms, self.mono_ms = NEVER_MS, mono_ms
