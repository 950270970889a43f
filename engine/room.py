"""Room in a shard's journal: it must be there before anything is decided.

A turn is decided only when the segment and a spare take the largest one. Spares are made off the
turn, and only that may meet a full disk (docs/architecture.md, Journal, rule 4).
"""

from typing import TYPE_CHECKING, Any

from parkade import limits
from parkade.asks import Ask
from parkade.shard.commands import Bookmark, CancelMany, Deliver, Submit
from parkade.store.errors import NoRoom, is_out_of_handles

if TYPE_CHECKING:
    from parkade.shard_host import ShardHost

__all__ = ["BOUNDED", "Room"]

BOUNDED = (Submit, CancelMany, Bookmark)
"""What may come in any number: it waits at the dirty bound, and a full disk refuses it."""


class Room:
    """Used by the core thread alone. `is_there`: for the largest turn; `is_full`: the disk is, so
    that no spare can be made, or no checkpoint and memory holds as much as it may; `takes_starts`:
    the one and not the other; `takes_new`: memory has room for what is submitted."""

    def __init__(self, shard: "ShardHost") -> None:
        self._shard = shard
        self.is_there = self.is_full = self.takes_starts = self.takes_new = False
        self.spare_in_flight = False
        self._lacks_spare = self._has_asked = False
        self._wanted_bytes = self._asked_bytes = 0
        self._retry_ms = shard.host.mono_ms

    def look(self) -> None:
        """At the beginning of a turn."""
        shard = self._shard
        journal, self.takes_new = shard.journal, shard.host.has_changed_room()
        wanted_bytes = limits.TURN_BYTES_MAX + limits.FRAME_MARGIN_BYTES
        if self._wanted_bytes > wanted_bytes:
            wanted_bytes = self._wanted_bytes
        # A spare takes the largest frame that the journal was ever asked about.
        has_spare = wanted_bytes <= self._asked_bytes and journal.has_spare
        if not has_spare:
            self._asked_bytes = wanted_bytes
            self.is_there = journal.has_room(wanted_bytes)
            has_spare = journal.has_spare
        else:
            self.is_there = True
        if has_spare:
            self._lacks_spare = self._has_asked = False
        elif not self.is_there or journal.is_begun:
            # Not behind the first frames: whoever submits next would wait for the disk beside it.
            self._prepare_spare()
        lacks_spare = self._lacks_spare and not self.is_there
        self.is_full = lacks_spare or (not self.takes_new and self._is_stuck())
        self.takes_starts = self.is_there and not self.is_full
        shard.core.has_room = not self.is_full

    def _is_stuck(self) -> bool:
        """At the dirty bound: whether submits that wait would wait for space on the disk."""
        shards = self._shard.host.open_shards()
        return any(shard.checkpointing.lacks_room for shard in shards)

    def takes(self, ask: Ask) -> bool:
        """Whether the frame that is being gathered has room for what the ask may write.

        Without a spare, what ends things may use what is left; a submit is then refused.
        """
        shard = self._shard
        journal, gathered = shard.journal, shard.records_bytes
        if gathered and gathered + ask.size > limits.TURN_BYTES_MAX:
            return False
        need_bytes = gathered + ask.size + limits.FRAME_MARGIN_BYTES
        if self.is_there and ask.size <= limits.TURN_BYTES_MAX:
            return True
        if journal.has_room(need_bytes):
            self._wanted_bytes = 0
            return True
        kind = type(ask.asked)
        if kind not in (*BOUNDED, Deliver) and journal.fits(need_bytes):
            return True
        if need_bytes != self._wanted_bytes:
            self._wanted_bytes = need_bytes
            self._prepare_spare()
        return kind in BOUNDED and self.is_full

    def _prepare_spare(self) -> None:
        """Off the turn: only this may meet a full disk."""
        shard = self._shard
        if self.spare_in_flight or not shard.is_open or shard.host.mono_ms < self._retry_ms:
            return
        self.spare_in_flight = True
        shard.io.call(shard.journal.prepare_spare, self._spare_prepared)

    def _spare_prepared(self, _: Any, error: Exception | None) -> None:
        self.spare_in_flight = False
        if isinstance(error, NoRoom) or is_out_of_handles(error):
            self._retry_ms = self._shard.host.mono_ms + limits.CHECKPOINT_RETRY_MS
            self._lacks_spare = isinstance(error, NoRoom) and not self._is_a_checkpoint_due()
        elif error is not None and self._shard.room is self:
            self._shard.poison(error)

    def _is_a_checkpoint_due(self) -> bool:
        """Whether one may give segments back, which become spares. It is asked for once."""
        shard, checkpointing = self._shard, self._shard.checkpointing
        if self._lacks_spare or checkpointing.lacks_room or shard.journal.segments == 1:
            return False
        if not self._has_asked:
            self._has_asked = True
            checkpointing.want()
            return not shard.core.dirty.is_empty or checkpointing.is_busy
        return checkpointing.is_busy or checkpointing.is_wanted

    def look_again(self) -> None:
        """A checkpoint has given segments back, or could not be made: what that means for a spare
        is found out at once."""
        self._retry_ms = self._shard.host.mono_ms
