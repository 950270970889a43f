"""What a shard does, told as plainly as it can be: a dict of tickets, and no memory, store or time.

No generations, no placement, no records: each method does at once what docs/semantics.md says, and
gives the code of the answer. The core is compared with it after every step.
"""

from collections.abc import Container
from dataclasses import dataclass

from parkade.shard.commands import LostItem, Outcome
from parkade.store.record import ProgressNote, Submitted

PENDING, RUNNING, DONE, DEAD, CANCELLED, EXPIRED = range(6)
KEPT, ACTIVE, DURATION = range(3)

Place = tuple[int, int, int]  # epoch, LSN, number
Name = tuple[str, str | None, str]


@dataclass
class Entry:
    """A ticket, as the model knows it."""

    draft: Submitted
    state: int
    due_ms: int
    first_due_ms: int
    body: bytes | None
    attempts: int = 0
    fence: int = 0
    snoozes: int = 0
    deaths: int = 0
    is_suspect: bool = False
    maybe_applied: bool = False
    is_ambiguous: bool = False
    on_crash: int = 0
    why: str | None = None
    finished_ms: int = 0
    cancel_reason: str | None = None
    bookmark: bytes | None = None
    progress: ProgressNote | None = None

    @property
    def has_bookmark(self) -> bool:
        return self.bookmark is not None

    @property
    def name(self) -> Name | None:
        claim = self.draft.unique
        return None if claim is None else (self.draft.task, self.draft.key, claim.name)

    @property
    def expiry_ms(self) -> int | None:
        options = self.draft.options
        if options is None or options.expires_ms is None or self.fence:
            return None
        return self.first_due_ms + options.expires_ms


class Model:
    """All tickets by serial, and who has which dedupe key until when (None: until its end)."""

    def __init__(self) -> None:
        self.tickets: dict[int, Entry] = {}
        self.names: dict[Name, tuple[int, int | None]] = {}
        # What goes to whom, in order; up to where each sender's came; ids that answer as another's.
        self.outbox: dict[int, list[tuple[Place, Submitted]]] = {}
        self.taken: dict[int, Place] = {}
        self.aliases: dict[int, tuple[int, int | None]] = {}
        self.done_forgotten = 0

    def counters(self) -> dict[tuple[str, int], int]:
        counts: dict[tuple[str, int], int] = {}
        for entry in self.tickets.values():
            place = (entry.draft.task, entry.state)
            counts[place] = counts.get(place, 0) + 1
        return counts

    # ------------------------------------------------------------------ callers

    def submit(self, draft: Submitted, conflict: int, now_ms: int, settled_ms: int) -> str:
        entry = Entry(draft, PENDING, draft.due_ms, draft.due_ms, draft.payload)
        name, claim = entry.name, draft.unique
        if name is not None and claim is not None:
            serial, until_ms = self.names.get(name, (0, 0))
            if until_ms is None or until_ms > settled_ms:
                holder = self.tickets.get(serial)
                is_running = holder is not None and holder.state == RUNNING
                if conflict != 2 or is_running:
                    return "duplicate" if conflict == 1 else "existing"
                if holder is not None and holder.state == PENDING:
                    del self.names[name]
                    self._end(holder, CANCELLED, now_ms, "replaced")
            self.names[name] = (draft.serial, claim.until_ms if claim.mode == DURATION else None)
        self.tickets[draft.serial] = entry
        return "created"

    def let_go(self, draft: Submitted, taken: Container[tuple[int, int | None]]) -> None:
        """The name of the draft is free if it is taken in one of these ways."""
        name = Entry(draft, PENDING, 0, 0, None).name
        if name is not None and self.names.get(name) in taken:
            del self.names[name]

    def deliver(
        self, sender: int, place: Place, draft: Submitted, now_ms: int, settled_ms: int
    ) -> str | None:
        """None: it has come before."""
        if place <= self.taken.get(sender, (0, 0, 0)):
            return None
        self.taken[sender] = place
        replaces = draft.unique is not None and draft.unique.replaces
        code = self.submit(draft, 2 if replaces else 0, now_ms, settled_ms)
        if code == "existing":
            name = Entry(draft, PENDING, 0, 0, None).name
            assert name is not None
            self.aliases[draft.serial] = self.names[name]
        return code

    def hand(self, receiver: int, place: Place) -> str | None:
        """The entries up to there are done with; None: they were before."""
        left = [entry for entry in self.outbox.get(receiver, []) if entry[0] > place]
        is_new = left != self.outbox.get(receiver, [])
        self.outbox[receiver] = left
        return "handed" if is_new else None

    def cancel(self, serial: int, reason: str, now_ms: int) -> str:
        entry = self.tickets.get(serial)
        if entry is None:
            return "unknown"
        if entry.state == PENDING:
            self._end(entry, CANCELLED, now_ms, reason)
            return "cancelled"
        if entry.state == RUNNING:
            if entry.cancel_reason is None:
                entry.cancel_reason = reason
            return "requested"
        return "too_late"

    def reschedule(self, serial: int, due_ms: int) -> str:
        entry = self.tickets.get(serial)
        if entry is None:
            return "unknown"
        if entry.state != PENDING:
            return "not_pending"
        self._wait(entry, due_ms)
        if not entry.fence:
            entry.first_due_ms = due_ms
        return "rescheduled"

    def revive(
        self, serial: int, due_ms: int, accept: bool, keep: bool, settled_ms: int,
        payload: bytes | None = None,
    ) -> str:  # fmt: skip
        entry = self.tickets.get(serial)
        if entry is None:
            return "unknown"
        if entry.state != DEAD:
            return "not_dead"
        if entry.maybe_applied and not accept:
            return "ambiguous"
        name, claim = entry.name, entry.draft.unique
        if name is not None and claim is not None:
            holder, until_ms = self.names.get(name, (0, 0))
            if holder != serial and (until_ms is None or until_ms > settled_ms):
                return "duplicate"
            if claim.mode != DURATION:
                self.names[name] = (serial, None)
        if not keep:
            entry.attempts = 0
        entry.state, entry.due_ms, entry.first_due_ms = PENDING, due_ms, due_ms
        if payload is not None:
            entry.body, entry.bookmark = payload, None
        entry.deaths, entry.is_ambiguous, entry.why = 0, False, None
        return "revived"

    def drop(self, serial: int) -> str:
        entry = self.tickets.get(serial)
        if entry is None:
            return "unknown"
        if entry.state != DEAD:
            return "not_dead"
        self._delete(serial)
        return "dropped"

    def resolve(self, serial: int, result: bytes, now_ms: int) -> str:
        entry = self.tickets.get(serial)
        if entry is None:
            return "unknown"
        if entry.state != DEAD:
            return "not_dead"
        entry.is_ambiguous = False
        self._end(entry, DONE, now_ms, None)
        entry.body = result
        return "resolved"

    def forget(self, serial: int) -> None:
        """Of an ended ticket."""
        assert self.tickets[serial].state not in (PENDING, RUNNING)
        self._delete(serial)

    def expire(self, serial: int, now_ms: int, settled_ms: int) -> str:
        entry = self.tickets.get(serial)
        if entry is None:
            return "unknown"
        if entry.state != PENDING:
            return "not_pending"
        if entry.expiry_ms is None or entry.expiry_ms > settled_ms:
            return "not_due"
        self._end(entry, EXPIRED, now_ms, None)
        return "expired"

    # ------------------------------------------------------------------ attempts

    def start(self, serial: int, on_crash: int, now_ms: int, settled_ms: int) -> str:
        """Of a ticket that is pending and due, whose key is free."""
        entry = self.tickets[serial]
        options = entry.draft.options
        expiry_ms = entry.expiry_ms
        if expiry_ms is not None and expiry_ms <= settled_ms:
            self._end(entry, EXPIRED, now_ms, None)
            return "expired"
        if options is not None and options.max_elapsed_ms is not None:
            late_ms = entry.first_due_ms + options.max_elapsed_ms
            if late_ms <= settled_ms:
                self._end(entry, DEAD, now_ms, "late")
                return "late"
        if self._is_exhausted(entry, None):
            self._end(entry, DEAD, now_ms, "exhausted")
            return "exhausted"
        entry.state = RUNNING
        entry.attempts += 1
        entry.fence += 1
        entry.on_crash = on_crash
        return "started"

    def settle(self, outcome: Outcome, now_ms: int, settled_ms: int) -> str:
        entry = self.tickets.get(outcome.serial)
        if entry is None:
            return "refused"
        if entry.state != RUNNING or entry.fence != outcome.fence:
            was_given_up = outcome.fence < entry.fence or entry.state not in (RUNNING, DONE)
            if outcome.kind == "done" and was_given_up:
                entry.maybe_applied = True
            return "refused"
        kind, was_asked = outcome.kind, entry.cancel_reason
        unknown = kind in ("timeout", "lease", "ambiguous", "result_lost")
        unknown = unknown or (kind == "released" and outcome.has_begun)
        entry.is_ambiguous = unknown
        entry.maybe_applied = entry.maybe_applied or unknown
        if kind != "released":
            entry.is_suspect = False
        reason = outcome.reason or was_asked or ""
        entry.cancel_reason = None
        if kind == "done":
            self._end(entry, DONE, now_ms, None)
            entry.body = outcome.result
        elif was_asked is not None or kind in ("drop", "cancelled"):
            entry.is_suspect = False
            self._end(entry, CANCELLED, now_ms, reason)
        else:
            why = self._verdict(entry, outcome, settled_ms)
            if why is None:
                self._wait(entry, now_ms + outcome.wait_ms)
            else:
                entry.is_suspect = False
                self._end(entry, DEAD, now_ms, why)
        return "settled"

    def bookmark(
        self, serial: int, fence: int, value: bytes | None, progress: ProgressNote | None
    ) -> str:
        """Of an attempt; where there is room."""
        entry = self.tickets.get(serial)
        if entry is None or entry.state != RUNNING or entry.fence != fence:
            return "refused"
        entry.bookmark = entry.bookmark if value is None else value
        entry.progress = entry.progress if progress is None else progress
        return "saved"

    def _verdict(self, entry: Entry, outcome: Outcome, settled_ms: int) -> str | None:
        """Why the ticket dies of this outcome; None: it goes back to pending."""
        kind = outcome.kind
        if kind in ("failed", "unsafe", "ambiguous"):
            return kind
        if kind == "result_lost":
            return "failed"
        if kind == "bad_payload":
            entry.attempts -= 1
            return kind
        if kind == "snooze":
            if entry.snoozes >= outcome.max_snoozes:
                return "exhausted"
            entry.snoozes += 1
            entry.attempts -= 1
            return None
        if kind != "transient" and entry.is_ambiguous and entry.on_crash == 1:
            return "ambiguous"
        if kind == "released":
            entry.attempts -= 1
            return None
        if self._is_exhausted(entry, outcome.max_attempts):
            return "exhausted"
        elapsed_ms = outcome.max_elapsed_ms
        options = entry.draft.options
        if options is not None and options.max_elapsed_ms is not None:
            elapsed_ms = options.max_elapsed_ms
        if elapsed_ms is not None and entry.first_due_ms + elapsed_ms <= (
            settled_ms + outcome.wait_ms
        ):
            return "late"
        return None

    def lose(self, item: LostItem, now_ms: int, settled_ms: int) -> None:
        """The attempt of a running ticket was lost with its process."""
        entry = self.tickets[item.serial]
        entry.maybe_applied = entry.is_ambiguous = True
        if entry.cancel_reason is not None:
            reason, entry.cancel_reason, entry.is_suspect = entry.cancel_reason, None, False
            self._end(entry, CANCELLED, now_ms, reason)
            return
        entry.deaths += item.is_alone
        options = entry.draft.options
        why = None
        if entry.on_crash:
            why = "ambiguous"
        elif item.is_alone and entry.deaths >= 3:
            why = "crashed"
        elif self._is_exhausted(entry, item.max_attempts):
            why = "exhausted"
        elif options is not None and options.max_elapsed_ms is not None:
            late_ms = entry.first_due_ms + options.max_elapsed_ms
            why = "late" if late_ms <= settled_ms + item.wait_ms else None
        entry.is_suspect = why is None
        if why is None:
            self._wait(entry, now_ms + item.wait_ms)
        else:
            self._end(entry, DEAD, now_ms, why)

    # ------------------------------------------------------------------ shared

    def _wait(self, entry: Entry, due_ms: int) -> None:
        entry.state, entry.due_ms = PENDING, due_ms
        entry.first_due_ms = min(entry.first_due_ms, due_ms)

    def _is_exhausted(self, entry: Entry, policy: int | None) -> bool:
        options = entry.draft.options
        if options is not None and options.max_attempts is not None:
            policy = options.max_attempts
        return policy is not None and policy != -1 and entry.attempts >= policy

    def _end(self, entry: Entry, state: int, now_ms: int, why: str | None) -> None:
        entry.state, entry.why, entry.finished_ms = state, why, now_ms
        if state in (CANCELLED, EXPIRED):
            entry.body = None
        if state != DEAD:
            entry.bookmark = None
        if state == DONE:
            entry.progress = None
        serial, name, claim = entry.draft.serial, entry.name, entry.draft.unique
        if name is None or claim is None:
            return
        if self.names.get(name, (0, 0))[0] != serial:
            self._end_aliases(serial, 0)
        elif claim.mode == ACTIVE:
            del self.names[name]
            self._end_aliases(serial, 0)
        elif claim.mode == KEPT and state != DEAD:
            self.names[name] = (serial, now_ms + claim.keep_ms)
            self._end_aliases(serial, now_ms + claim.keep_ms)

    def _end_aliases(self, serial: int, until_ms: int) -> None:
        """Those that last for as long as a ticket has its name: its end is known now."""
        for child, (holder, until) in self.aliases.items():
            if holder == serial and until is None:
                self.aliases[child] = (holder, until_ms)

    def _delete(self, serial: int) -> None:
        entry = self.tickets.pop(serial)
        self.done_forgotten += entry.state == DONE
        name = entry.name
        if entry.state == DEAD:
            self._end_aliases(serial, 0)
        if name is not None and entry.state == DEAD and self.names.get(name, (0, 0))[0] == serial:
            del self.names[name]
