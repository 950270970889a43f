"""Commands of callers, decided: what they come to as records, or why not. Changes nothing.

docs/semantics.md, Unique and Cancelling.
"""

from collections.abc import Sequence

from parkade.shard.claims import Claims
from parkade.shard.commands import (
    CONFLICT_ERROR,
    CONFLICT_RETURN,
    AllCreated,
    Answer,
    Bookmark,
    Cancel,
    CancelMany,
    Drop,
    Expire,
    Forget,
    Refusal,
    Reschedule,
    Resolve,
    Revive,
    Submit,
    Verdict,
)
from parkade.shard.memory import UNREAD
from parkade.shard.retry import due_after, expiry_of
from parkade.shard.states import DEAD, NO_FENCE, PENDING, RUNNING
from parkade.shard.ticket import Ticket
from parkade.shard.unique import is_taken, unique_name_of
from parkade.shard.view import View
from parkade.store.record import (
    Bookmarked,
    Cancelled,
    CancelRequested,
    Dropped,
    Expired,
    Forgotten,
    Record,
    Rescheduled,
    Resolved,
    Revived,
    Submitted,
)

__all__ = [
    "decide_bookmark",
    "decide_cancel",
    "decide_cancel_many",
    "decide_drop",
    "decide_expire",
    "decide_forget",
    "decide_reschedule",
    "decide_resolve",
    "decide_revive",
    "decide_submit",
]


def decide_submit(
    view: View, command: Submit, now_ms: int, settled_ms: int, has_room: bool
) -> Verdict:
    drafts = command.drafts
    if not has_room or any(draft.unique is not None for draft in drafts):
        return _Submitting(view, now_ms, settled_ms, has_room).decide(command)
    # The plain case, in bulk: a draft is its own record.
    records: list[Record] = list(drafts)
    return Verdict(records, AllCreated(drafts))


class _Submitting:
    """One Submit with uniques, draft by draft: the later ones see what the earlier ones did."""

    def __init__(self, view: View, now_ms: int, settled_ms: int, has_room: bool) -> None:
        self.view = view
        self.has_room = has_room
        self.claims = Claims(view, now_ms, settled_ms, may_replace=has_room)

    def decide(self, command: Submit) -> Verdict:
        modes = command.on_conflict or [CONFLICT_RETURN] * len(command.drafts)
        for draft, mode in zip(command.drafts, modes, strict=True):
            if draft.unique is None:
                self._create(draft)
            else:
                self._claim(draft, mode)
        return self.view.verdict()

    def _create(self, draft: Submitted) -> None:
        if not self.has_room:
            self.view.refuse("full", draft.serial)
            return
        self.view.accept(draft, Answer("created", draft.serial, draft.part))
        self.claims.note(draft)

    def _claim(self, draft: Submitted, mode: int) -> None:
        row = self.claims.holder(draft, mode)
        if row is UNREAD:
            # What the row says is not known; later drafts of this name wait for the same read.
            return
        if row is None:
            self._create(draft)
        elif mode == CONFLICT_ERROR:
            refusal = Refusal("duplicate", row.serial, row.part, row.until_ms)
            self.view.answers.append(refusal)
        else:
            self.view.answers.append(Answer("existing", row.serial, row.part))


def decide_cancel(view: View, command: Cancel, now_ms: int) -> Verdict:
    ticket = view.speaks_for(command.serial)
    if ticket is not UNREAD:
        serial = command.serial if ticket is None else ticket.serial
        _cancel(view, serial, ticket, command.reason, now_ms)
    return view.verdict()


def decide_cancel_many(view: View, command: CancelMany, now_ms: int, has_room: bool) -> Verdict:
    if not has_room:
        for serial in command.serials:
            view.refuse("full", serial)
        return view.verdict()
    for serial, ticket in _each(view, command.serials):
        _cancel(view, serial, ticket, command.reason, now_ms)
    return view.verdict()


def _cancel(view: View, serial: int, ticket: Ticket | None, reason: str, now_ms: int) -> None:
    if ticket is None:
        view.refuse("unknown", serial)
    elif ticket.state == PENDING:
        # Of a ticket that has run before, error and maybe_applied stay as they are.
        record = Cancelled(serial, NO_FENCE, now_ms, reason)
        view.accept(record, Answer("cancelled", serial, ticket.part))
    elif ticket.state == RUNNING:
        answer = Answer("requested", serial, ticket.part, ticket.fence)
        if ticket.cancel_reason is None:
            view.accept(CancelRequested(serial, ticket.fence, now_ms, reason), answer)
        else:
            view.answers.append(answer)
    else:
        view.refuse("too_late", serial)


def decide_bookmark(view: View, command: Bookmark, now_ms: int, has_room: bool) -> Verdict:
    """Only the attempt that runs may: what was given up must not overwrite what came after it."""
    serial, fence = command.serial, command.fence
    ticket = view.memory.hot.get(serial)  # a running ticket is in memory
    if ticket is None or ticket.state != RUNNING or ticket.fence != fence:
        view.refuse("refused", serial)
    elif not has_room:
        view.refuse("full", serial)
    else:
        record = Bookmarked(serial, fence, now_ms, command.value, command.progress)
        view.accept(record, Answer("saved", serial, ticket.part, fence))
    return view.verdict()


def decide_reschedule(view: View, command: Reschedule, now_ms: int) -> Verdict:
    ticket = view.speaks_for(command.serial)
    if ticket is UNREAD:
        return view.verdict()
    serial = command.serial if ticket is None else ticket.serial
    if ticket is None:
        view.refuse("unknown", serial)
    elif ticket.state != PENDING:
        view.refuse("not_pending", serial)
    else:
        record = Rescheduled(serial, now_ms, due_after(command.due_ms, 0))
        view.accept(record, Answer("rescheduled", serial, ticket.part))
    return view.verdict()


def decide_revive(view: View, command: Revive, now_ms: int, settled_ms: int) -> Verdict:
    serials = command.serials
    dues_ms = command.dues_ms or [command.due_ms] * len(serials)
    # The first place of a serial that is named twice counts.
    due_of = dict(zip(reversed(serials), reversed(dues_ms), strict=True))
    taken: set[bytes] = set()
    for serial, ticket in _each(view, serials):
        if ticket is None:
            view.refuse("unknown", serial)
        elif ticket.state != DEAD:
            view.refuse("not_dead", serial)
        elif ticket.maybe_applied and not command.accept_ambiguous:
            view.refuse("ambiguous", serial)
        elif not _takes_name_again(view, ticket, settled_ms, taken):
            continue
        else:
            due_ms = due_after(due_of[serial], 0)
            record = Revived(serial, now_ms, due_ms, command.keep_attempts, command.payload)
            view.accept(record, Answer("revived", serial, ticket.part))
    return view.verdict()


def _takes_name_again(view: View, ticket: Ticket, settled_ms: int, taken: set[bytes]) -> bool:
    """Whether no other ticket holds the dedupe key of a dead one; refuses it if one does."""
    name = unique_name_of(ticket)
    if name is None:
        return True
    row = view.row(name)
    if row is UNREAD:
        return False
    if row is not None and row.serial != ticket.serial and is_taken(row, settled_ms):
        view.answers.append(Refusal("duplicate", row.serial, row.part, row.until_ms))
        return False
    if name in taken:
        view.refuse("duplicate", ticket.serial)
        return False
    taken.add(name)
    return True


def decide_drop(view: View, command: Drop, now_ms: int) -> Verdict:
    for serial, ticket in _each(view, command.serials):
        if ticket is None:
            view.refuse("unknown", serial)
        elif ticket.state != DEAD:
            view.refuse("not_dead", serial)
        else:
            view.accept(Dropped(serial, now_ms), Answer("dropped", serial, ticket.part))
    return view.verdict()


def decide_resolve(view: View, command: Resolve, now_ms: int) -> Verdict:
    serial = command.serial
    ticket = view.ticket(serial)
    if ticket is UNREAD:
        return view.verdict()
    if ticket is None:
        view.refuse("unknown", serial)
    elif ticket.state != DEAD:
        view.refuse("not_dead", serial)
    else:
        record = Resolved(serial, now_ms, command.result, command.note)
        view.accept(record, Answer("resolved", serial, ticket.part))
    return view.verdict()


def decide_expire(view: View, command: Expire, now_ms: int, settled_ms: int) -> Verdict:
    for serial, ticket in _each(view, command.serials):
        if ticket is None:
            view.refuse("unknown", serial)
            continue
        expiry_ms = expiry_of(ticket)
        if ticket.state != PENDING:
            view.refuse("not_pending", serial)
        elif expiry_ms is None or expiry_ms > settled_ms:
            view.refuse("not_due", serial)
        else:
            view.accept(Expired(serial, now_ms), Answer("expired", serial, ticket.part))
    return view.verdict()


def decide_forget(view: View, command: Forget) -> Verdict:
    """One record for all that are there and have ended in that state, long enough ago."""
    serials: list[int] = []
    for serial, ticket in _each(view, command.serials):
        if ticket is None:
            view.refuse("unknown", serial)
        elif ticket.state in (PENDING, RUNNING):
            view.refuse("not_ended", serial)
        elif (ticket.task, ticket.state) != (command.task, command.state):
            view.refuse("other", serial)
        elif command.before_ms is not None and ticket.finished_ms >= command.before_ms:
            view.refuse("kept", serial)
        else:
            serials.append(serial)
            view.answers.append(Answer("forgotten", serial, ticket.part))
    if serials:
        view.records.append(Forgotten(command.task, command.state, serials))
    return view.verdict()


def _each(view: View, serials: Sequence[int]) -> list[tuple[int, Ticket | None]]:
    """The tickets of a command that names many; one named twice is there once and then gone."""
    found: list[tuple[int, Ticket | None]] = []
    seen: set[int] = set()
    for serial in serials:
        ticket = view.ticket(serial)
        if ticket is not UNREAD:
            found.append((serial, None if serial in seen else ticket))
            seen.add(serial)
    return found
