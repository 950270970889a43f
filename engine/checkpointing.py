"""When a shard is checkpointed, and what follows: cut, build, send, complete, drop segments.

The cut is taken at a turn's end; the batch is built in slices between turns; it is sent once its
LSN is durable; the writer thread commits it; only the completion, here, changes what is hot
(docs/architecture.md, Store).
"""

from typing import TYPE_CHECKING, Any

from parkade import limits
from parkade.checkpoint import Checkpoint
from parkade.store.batch import Commit
from parkade.store.errors import NoRoom

if TYPE_CHECKING:
    from parkade.shard_host import ShardHost

__all__ = ["Checkpointing"]


class Checkpointing:
    def __init__(self, shard: "ShardHost") -> None:
        self._shard = shard
        self._current: Checkpoint | None = None
        self._first_dirty_ms: int | None = None
        self._retry_at_ms: int | None = None
        self._has_refine_due = False
        self._has_upkeep = False
        self.lacks_room = False
        self._last_ms = shard.host.mono_ms
        self.is_wanted = False
        # By whom the journal is held, from which LSN on, and until when on the monotonic clock.
        self._holds: dict[int, tuple[int, int]] = {}

    def hold_journal(self, holder: int, until_ms: int) -> None:
        """Drops no record that the store does not have now, until `release_journal`, or that time
        on the monotonic clock."""
        self._holds[holder] = self._shard.store.lsn, until_ms

    def is_held(self, holder: int) -> bool:
        """Whether nothing was dropped since, nor the shard recovered."""
        return holder in self._holds and self._holds[holder][1] > self._shard.host.mono_ms

    def release_journal(self, holder: int) -> None:
        self._holds.pop(holder, None)

    def _droppable(self, lsn: int) -> int:
        mono_ms = self._shard.host.mono_ms
        held = [held_lsn for held_lsn, until_ms in self._holds.values() if until_ms > mono_ms]
        return min([lsn, *held])

    @property
    def is_building(self) -> bool:
        return self._current is not None and self._current.is_building

    @property
    def awaits_frame(self) -> bool:
        """Whether it is not sent yet: it may have waited for a frame to be durable."""
        return self._current is not None and not self._current.is_sent

    @property
    def is_sent(self) -> bool:
        """The writer has it: its environment must not be closed."""
        current = self._current
        return current is not None and current.is_sent and current.commit is None

    @property
    def is_busy(self) -> bool:
        return self._current is not None

    @property
    def has_failed(self) -> bool:
        """The last one found no room, and waits for the next try."""
        return self._retry_at_ms is not None

    @property
    def has_left(self) -> bool:
        """Whether there are changes for which no checkpoint is under way or wanted, nor tried again
        later."""
        is_coming = self.is_busy or self.is_wanted or self.has_failed
        return not is_coming and not self._shard.core.dirty.is_empty

    def want(self) -> None:
        """One is begun as soon as it can be, also where the last one failed a moment ago."""
        self.is_wanted = True
        self._retry_at_ms = None

    def next_ms(self) -> int | None:
        """When, on the monotonic clock, the next checkpoint is due if nothing else happens."""
        if self._current is not None:
            return None
        if self._retry_at_ms is not None:
            return self._retry_at_ms
        if self._first_dirty_ms is not None:
            return self._first_dirty_ms + limits.CHECKPOINT_AGE_MS
        if self._has_upkeep or self._shard.retention.has_spent:
            return self._last_ms + limits.CHECKPOINT_AGE_MS
        return None

    def step(self) -> None:
        """Does what is next, if anything is."""
        if self._current is None and self._is_due():
            self._begin()
        current = self._current
        if current is None:
            return
        if current.is_building:
            current.build(limits.ENCODE_SLICE_TICKETS)
        if current.is_building:
            return
        if not current.is_sent:
            self._send_when_durable(current)
        elif current.commit is not None and not self._shard.holds_completion:
            self._complete(current, current.commit)

    def _send_when_durable(self, current: Checkpoint) -> None:
        shard = self._shard
        if shard.durable_lsn >= current.lsn:
            current.is_sent = True
            store, batch = shard.store, current.batch
            shard.writer.commit(lambda: store.commit(batch), self._committed)

    def _begin(self) -> None:
        shard, host = self._shard, self._shard.host
        self._first_dirty_ms = self._retry_at_ms = None
        self.is_wanted = self._has_refine_due = self._has_upkeep = False
        shard.read_ahead.needs_refine = False
        self._current = Checkpoint(
            shard.core,
            epoch=shard.journal.epoch,
            now_ms=host.now_ms,
            settled_ms=host.settled_ms,
            keeps_ms=host.keeping.tasks_keep(shard.store.memo.keeps_ms),
            spent=shard.retention.spent_by(shard.core.lsn),
        )

    def _is_due(self) -> bool:
        shard, mono_ms = self._shard, self._shard.host.mono_ms
        is_empty = shard.core.memory.dirty.is_empty
        if is_empty:  # also again: what came has gone before any checkpoint
            self._first_dirty_ms = None
        elif self._first_dirty_ms is None:
            self._first_dirty_ms = mono_ms
        if self._retry_at_ms is not None:
            return mono_ms >= self._retry_at_ms
        if self._has_refine_due or shard.read_ahead.needs_refine:
            return True
        if is_empty:
            is_old = mono_ms - self._last_ms >= limits.CHECKPOINT_AGE_MS
            return (self._has_upkeep or shard.retention.has_spent) and is_old
        assert self._first_dirty_ms is not None
        return (
            self.is_wanted
            or shard.placement.wants_checkpoint
            or self._has_most_of_too_many()
            or shard.journal.live_bytes >= limits.CHECKPOINT_JOURNAL_BYTES
            or shard.journal.segments > limits.CHECKPOINT_SEGMENTS_MAX
            or mono_ms - self._first_dirty_ms >= limits.CHECKPOINT_AGE_MS
        )

    def _has_most_of_too_many(self) -> bool:
        """Whether the shards hold more changes than they should, and none more than this one. So
        they are cut in turns: all at once, they would be in memory twice at once."""
        dirty, count = self._shard.core.memory.dirty, len(self._shard.host.shards)
        if (
            count * len(dirty.tickets) < limits.CHECKPOINT_TICKETS_MAX
            and count * dirty.size_bytes < limits.CHECKPOINT_DIRTY_BYTES
        ):
            return False  # where this is the greatest, all together are not too many
        others = [other.core.dirty for other in self._shard.host.open_shards()]
        counts = [len(other.tickets) for other in others]
        sizes = [other.size_bytes for other in others]
        return (
            sum(counts) >= limits.CHECKPOINT_TICKETS_MAX and len(dirty.tickets) == max(counts)
        ) or (sum(sizes) >= limits.CHECKPOINT_DIRTY_BYTES and dirty.size_bytes == max(sizes))

    def _committed(self, commit: Commit | None, error: Exception | None) -> None:
        shard, current = self._shard, self._current
        if current is None:
            return
        if shard.checkpointing is not self or not shard.is_open:
            current.commit = commit or Commit(0, 0, False, 0, False, False)
            if shard.status == "recovering":
                shard.recover()
            return
        if commit is None:
            self._failed(error)
            return
        current.commit = commit
        if not shard.holds_completion:
            self._complete(current, commit)

    def _complete(self, current: Checkpoint, commit: Commit) -> None:
        shard = self._shard
        self._current = None
        self.lacks_room = False
        self._last_ms = shard.host.mono_ms
        self._has_refine_due, self._has_upkeep = commit.has_refine_due, commit.has_upkeep
        shard.checkpoints += 1
        shard.retention.freed(current.batch.spent)
        try:
            store = shard.store
            rows = store.lane_rows, commit.number, store.wait_rows, commit.lane_tickets
            shard.core.complete(current.lsn, current.placed, *rows)
        except Exception as error:
            shard.poison(error)
            return
        for other in shard.host.open_shards():
            other.is_stirred = True  # there is room again for submits that waited, of any shard
        journal, lsn = shard.journal, self._droppable(current.lsn)
        shard.io.call(lambda: journal.drop_through(lsn), self._dropped)

    def _dropped(self, _: Any, error: Exception | None) -> None:
        if self._shard.checkpointing is self:
            self._shard.room.look_again()
        self._shard.failed_if(_, error)

    def _failed(self, error: Exception | None) -> None:
        """A full disk is waited for; anything else reopens the environment once, then refuses."""
        shard = self._shard
        self._current = None
        shard.core.merge_back()
        if isinstance(error, NoRoom):
            self.lacks_room = True
            self._retry_at_ms = shard.host.mono_ms + limits.CHECKPOINT_RETRY_MS
            shard.room.look_again()
            return
        shard.poison(error or RuntimeError("a commit gave nothing"))
