"""Dedupe keys as one command meets them: who holds a name, and what a conflict comes to.

A command may bring many drafts; the later ones see what the earlier ones did.
"""

from parkade.shard.commands import CONFLICT_REPLACE, UniqueRow
from parkade.shard.memory import UNREAD, Unread
from parkade.shard.states import NO_FENCE, PENDING, RUNNING
from parkade.shard.unique import is_taken, row_of, unique_name
from parkade.shard.view import View
from parkade.store.record import Cancelled, Submitted

__all__ = ["Claims"]


class Claims:
    """The names that the drafts of one command ask for."""

    def __init__(self, view: View, now_ms: int, settled_ms: int, *, may_replace: bool) -> None:
        self._view = view
        self._now_ms = now_ms
        self._settled_ms = settled_ms
        self._may_replace = may_replace
        self._rows: dict[bytes, UniqueRow | None] = {}
        self._replaced: set[int] = set()
        self.made: set[int] = set()

    def holder(self, draft: Submitted, conflict: int) -> UniqueRow | Unread | None:
        """Who keeps its name from a draft that has one; None: it is free, or was given up for it;
        UNREAD, noted as a need: not known."""
        assert draft.unique is not None, draft
        name = unique_name(draft.task, draft.key, draft.unique.name)
        row: UniqueRow | Unread | None
        row = self._rows[name] if name in self._rows else self._view.row(name)
        if row is None or row is UNREAD:
            return row
        is_held = is_taken(row, self._settled_ms) and not self._frees(row, conflict)
        return row if is_held else None

    def note(self, draft: Submitted) -> None:
        """The draft becomes a ticket."""
        self.made.add(draft.serial)
        if draft.unique is not None:
            name = unique_name(draft.task, draft.key, draft.unique.name)
            self._rows[name] = row_of(draft)

    def _frees(self, row: UniqueRow, conflict: int) -> bool:
        """Whether the holder gives the name up, cancelling it if it is pending."""
        if conflict != CONFLICT_REPLACE or not self._may_replace:
            return False
        serial = row.serial
        if serial in self.made:
            self._cancel(serial)
            return True
        holder = self._view.ticket(serial)
        if holder is UNREAD:
            return False
        if holder is None or serial in self._replaced:
            return True
        if holder.state == RUNNING:
            return False
        if holder.state == PENDING:
            self._cancel(serial)
        return True

    def _cancel(self, serial: int) -> None:
        self.made.discard(serial)
        self._replaced.add(serial)
        record = Cancelled(serial, NO_FENCE, self._now_ms, "replaced", gives_up_unique=True)
        self._view.records.append(record)
