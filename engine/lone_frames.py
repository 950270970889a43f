"""A lone small frame is written by the core thread itself.

Handing it to the shard's own thread and hearing of it costs two wake-ups and a pass: for a caller
who waits for one ticket, as much as the disk takes. Where anybody else wants something meanwhile,
or the disk is slow, the shards' threads write, and the core thread goes on.
"""

from collections.abc import Iterable
from typing import TYPE_CHECKING

from parkade import limits

if TYPE_CHECKING:
    from parkade.shard_host import ShardHost

__all__ = ["LoneFrames"]

COMPANY_FRAMES = 16  # handed over after something came in while one was written
SLOW_MS = 10  # a disk that takes this long is not waited for again
SLOW_PAUSE_MS = 200


class LoneFrames:
    """Used by the core thread alone. `is_allowed`: by who steps the engine."""

    def __init__(self) -> None:
        self.is_allowed = False
        self.written = 0
        self._frames_to_hand = 0
        self._pause_until_ms = 0

    def pick(self, shards: "Iterable[ShardHost]", mono_ms: int) -> "ShardHost | None":
        """The shard whose frame is to be written here; None: all that there are, are handed over.
        Only where no other is under way, and its thread has nothing in hand."""
        if not self.is_allowed:
            return None
        found: ShardHost | None = None
        for shard in shards:
            if shard.has_frame:
                if found is not None:
                    return None
                found = shard
            elif shard.is_open and shard.frame_in_flight:
                return None
        if found is None or not found.io.is_idle or not found.room.is_there:
            return None
        if len(found.records) > limits.SMALL_FRAME_RECORDS or mono_ms < self._pause_until_ms:
            return None
        if self._frames_to_hand:
            self._frames_to_hand -= 1
            return None
        return found

    def note(self, *, began_ms: int, ended_ms: int, has_company: bool) -> None:
        """One was written here, from when to when on the monotonic clock. `has_company`: something
        came in meanwhile."""
        self.written += 1
        if has_company:
            self._frames_to_hand = COMPANY_FRAMES
        if ended_ms - began_ms >= SLOW_MS:
            self._pause_until_ms = ended_ms + SLOW_PAUSE_MS
