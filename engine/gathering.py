"""Submits that come one by one, decided together: what many callers want at once is one command.

A plain submit is never refused, needs nothing of the store, and depends on nothing that was decided
before it. So those of a turn are gathered, and take what one command takes.
"""

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from parkade.asks import Ask
from parkade.noting import Notebook
from parkade.shard import Shard
from parkade.shard.commands import AllCreated, AllSettled, Submit, Verdict
from parkade.store.record import Record, Submitted

if TYPE_CHECKING:
    from parkade.shard_host import ShardHost

__all__ = ["Gathering", "apply_all", "note_all"]


def apply_all(core: Shard, records: Sequence[Record], verdict: Verdict) -> None:
    """Applies these: what was decided, behind what goes along with it."""
    apply, kind = core.apply, type(verdict.answers)
    if kind is not AllCreated and kind is not AllSettled:
        for record in records:
            apply(record)
        return
    made: list[Any] = verdict.records
    for record in records[: len(records) - len(made)]:
        apply(record)
    if kind is AllCreated:
        core.apply_submits(made)
    else:
        core.apply_completed(made)


def note_all(notes: Notebook, records: Sequence[Record], verdict: Verdict, core: Shard) -> None:
    """Notes what has just been applied."""
    if type(verdict.answers) is not AllCreated:
        notes.note(records, core.memory.hot)
        return
    made: list[Any] = verdict.records
    lead = len(records) - len(made)
    if lead:
        notes.note(records[:lead], core.hot)
    notes.note_submits(made)


class Gathering:
    """Of one shard; used by the core thread alone, empty between two turns."""

    def __init__(self, shard: "ShardHost") -> None:
        self._shard = shard
        self.asks: list[Ask] = []
        self._drafts: list[Submitted] = []
        self._bytes = 0

    def takes(self, ask: Ask) -> bool:
        """Whether a submit is plain: it is decided with the others then. Its bytes are gathered
        from now on."""
        asked = ask.asked
        assert type(asked) is Submit
        drafts = asked.drafts
        if not self._shard.core.has_room:
            return False
        for draft in drafts:
            if draft.unique is not None:
                return False
        self.asks.append(ask)
        self._drafts += drafts
        self._bytes += ask.size
        self._shard.records_bytes += ask.size
        return True

    def give_back(self) -> None:
        """The shard failed before these were decided: they wait for what comes of it."""
        asks, self.asks, self._drafts, self._bytes = self.asks, [], [], 0
        for ask in asks:
            self._shard.put(ask)

    def decide(self) -> None:
        """All that was taken, in its order."""
        shard, asks, drafts, size = self._shard, self.asks, self._drafts, self._bytes
        self.asks, self._drafts, self._bytes = [], [], 0
        shard.records_bytes -= size
        records: list[Record] = list(drafts)
        shard.apply(Verdict(records, AllCreated(drafts)), None, size)
        if not shard.is_open:
            for ask in asks:
                shard.fail_one(ask, shard.refusal())
            return
        for ask in asks:
            shard.host.decided(ask)
            asked = ask.asked
            assert type(asked) is Submit
            shard.hold(ask, AllCreated(asked.drafts))
