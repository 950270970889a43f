"""What a shard reads, keeps, hands over and saves at a turn's end, with nobody waiting for it."""

from typing import TYPE_CHECKING

from parkade import limits

if TYPE_CHECKING:
    from parkade.shard_host import ShardHost

__all__ = ["Upkeep"]

# In a row: a submit that starts at once, the outcome that comes at once, and who asks for it then.
PUT_OFF_TURNS_MAX = 3
PUT_OFF_RECORDS_MAX = 16  # a frame with more has had much to do before, and makes work for upkeep


class Upkeep:
    """Of one shard, for as long as its memory lives; used by the core thread alone.

    Somebody waits for a lone frame that is written at the end of the pass, or has an answer that
    leaves then, and would wait for this too: it is put off to the next turn, and to one more or
    two.
    """

    def __init__(self, shard: "ShardHost") -> None:
        self._shard = shard
        self.put_off = 0  # turns in a row: a turn is to follow then, whatever comes in

    def step(self, *, has_due: bool = False) -> bool:
        """At the end of a turn of an open shard, which may be open no more afterwards; False: it is
        put off. `has_due`: a ticket may have become due in this turn, and start in this pass."""
        shard = self._shard
        if self.put_off < PUT_OFF_TURNS_MAX and self._may_wait(has_due):
            self.put_off += 1
            shard.is_stirred = True
            shard.dues.pass_over()
            return False
        self.put_off = 0
        if shard.waiting:
            shard.load_waiting()
        self._hand_large_frame()  # somebody waits for it, and for nothing of the rest
        shard.read_ahead.ask()
        shard.retention.step()
        shard.checkpointing.step()
        shard.handing.step()
        self._hand_large_frame()
        self._cover_when_idle()
        return True

    def _hand_large_frame(self) -> None:
        """A smaller one takes along what this pass starts, and where tickets wait for the places of
        those that have ended, so does one of as many ends as there are places for functions."""
        shard, count = self._shard, len(self._shard.records)
        if count > limits.SMALL_FRAME_RECORDS and (
            count > limits.ENDS_FRAME_RECORDS or not shard.placement.lanes.total
        ):
            shard.hand_frame()

    def _may_wait(self, has_due: bool) -> bool:
        shard = self._shard
        if not shard.host.is_lone or shard.frame_in_flight:
            return False
        if shard.waiting or shard.placement.load_queue or shard.has_undecided:
            return False
        if not shard.records:
            return has_due or shard.host.wakeups.has_any
        return len(shard.records) <= PUT_OFF_RECORDS_MAX

    def _cover_when_idle(self) -> None:
        shard = self._shard
        since = shard.uncovered_since_ms
        if since is None or shard.frame_in_flight or not shard.is_open:
            return
        if shard.host.mono_ms - since >= limits.IDLE_COVER_MS:
            shard.uncovered_since_ms = None
            shard.io.call(shard.journal.write_covering_frame, shard.failed_if)
