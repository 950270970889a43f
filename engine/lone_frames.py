"""A lone small frame is written by the core thread itself.

Handing it to the shard's own thread and hearing of it costs two wake-ups and a pass: for a caller
who waits for one ticket, as much as a good disk takes. Where the disk takes longer and anybody else
wants something meanwhile, or it is slow, the shards' threads write, and the core thread goes on.
"""

from collections.abc import Iterable
from typing import TYPE_CHECKING

from parkade import limits

if TYPE_CHECKING:
    from parkade.shard_host import ShardHost

__all__ = ["LoneFrames", "SlowPause"]

COMPANY_FRAMES = 16  # handed over after something came in while one was written, for
COMPANY_MS = 2  # or half as long: a quicker disk costs whoever came less than a hand-over does
ALONE_MS = 10  # without a frame: whoever comes next is alone again
SLOW_MS = 10  # a disk that takes this long is not waited for again
SLOW_PAUSE_MS_MIN, SLOW_PAUSE_MS_MAX = 20, 320


class SlowPause:
    """How long a disk is left to the shards' threads after a write that was slow: a moment, since a
    good disk has one now and then, and twice as long after each further one in a row."""

    __slots__ = ("_next_ms", "until_ms")

    def __init__(self) -> None:
        self.until_ms = 0
        self._next_ms = SLOW_PAUSE_MS_MIN

    def note(self, began_ms: int, ended_ms: int) -> None:
        """A write took from when to when on the monotonic clock."""
        if ended_ms - began_ms < SLOW_MS:
            self._next_ms = SLOW_PAUSE_MS_MIN
            return
        self.until_ms = ended_ms + self._next_ms
        self._next_ms = min(2 * self._next_ms, SLOW_PAUSE_MS_MAX)


class LoneFrames:
    """Used by the core thread alone. `is_allowed`: by who steps the engine."""

    def __init__(self) -> None:
        self.is_allowed = False
        self.written = 0
        self._frames_to_hand = 0
        self._seen_ms = 0  # when there was a frame, of whatever shard
        self._pause = SlowPause()

    def is_quiet(self, mono_ms: int) -> bool:
        """Whether a lone frame would be written here, as far as what was before tells."""
        is_free = not self._frames_to_hand or mono_ms - self._seen_ms >= ALONE_MS
        return self.is_allowed and is_free and mono_ms >= self._pause.until_ms

    def pick(self, shards: "Iterable[ShardHost]", mono_ms: int) -> "ShardHost | None":
        """The shard whose frame is to be written here; None: all that there are, are handed over.
        Only where no other is under way, and its thread has nothing in hand."""
        if not self.is_allowed:
            return None
        found: ShardHost | None = None
        is_quiet, is_alone = self.is_quiet(mono_ms), True
        for shard in shards:
            if not shard.is_open:
                continue
            if shard.frame_in_flight:
                is_alone, self._seen_ms = False, mono_ms
            elif shard.records:
                is_alone = is_alone and found is None
                found = shard
        if found is None:
            return None
        self._seen_ms = mono_ms
        if not is_alone or not self._is_fit(found) or mono_ms < self._pause.until_ms:
            return None
        if is_quiet:
            self._frames_to_hand = 0
            return found
        self._frames_to_hand -= 1
        return None

    @staticmethod
    def _is_fit(shard: "ShardHost") -> bool:
        is_small = len(shard.records) <= limits.SMALL_FRAME_RECORDS
        return is_small and shard.io.is_idle and shard.room.is_there

    def note(self, *, began_ms: int, ended_ms: int, has_company: bool) -> None:
        """One was written here, from when to when on the monotonic clock. `has_company`: something
        came in meanwhile."""
        self.written += 1
        if has_company and ended_ms - began_ms >= COMPANY_MS:
            self._frames_to_hand = COMPANY_FRAMES
        self._pause.note(began_ms, ended_ms)
