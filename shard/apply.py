"""Records, applied: the only code that changes a ticket.

A record says what happened; whether it may happen was settled when it was decided. One that meets
its ticket in another state, under another fence, or gone, changes nothing (`NEXT`).
"""

from collections import Counter
from collections.abc import Callable, Collection, Mapping, Sequence
from typing import Any, Final, cast

from parkade.shard.births import Births
from parkade.shard.bounds import Bounds
from parkade.shard.commands import UniqueRow
from parkade.shard.grouping import group_of_dead
from parkade.shard.history import AttemptRow, outcome_of_buried
from parkade.shard.lanes import IN_HAND, SERIAL_BITS, Lanes
from parkade.shard.lined import SEATED_TOGETHER_MIN, line_up, seat_first
from parkade.shard.memory import Memory
from parkade.shard.outbox import Outbox, Place
from parkade.shard.placement import Placement
from parkade.shard.states import (
    DEAD,
    DONE,
    GONE,
    NEXT,
    NO_FENCE,
    PENDING,
    RUNNING,
    STATES,
)
from parkade.shard.ticket import Ticket, shard_of, ticket_of
from parkade.shard.unique import (
    ACTIVE,
    DURATION,
    HELD,
    alias_name,
    row_after_end,
    row_of,
    unique_name_of,
)
from parkade.store.record import (
    Bookmarked,
    Buried,
    Cancelled,
    CancelRequested,
    Completed,
    Delivered,
    Dropped,
    ErrorText,
    Expired,
    Forgotten,
    Handed,
    Late,
    Record,
    Released,
    Rescheduled,
    Resolved,
    Retried,
    Revived,
    Snoozed,
    Started,
    Submitted,
)

__all__ = ["Applying"]

_ATTEMPT_BYTES: Final = 300
ALIASES_MAX: Final = 1_000  # ids that answer as one ticket's, until its end: 9 bytes each

_OUTCOME_OF_CAUSE: Final = {
    "failed": "error",
    "timeout": "timeout",
    "lease": "lost",
    "lost": "lost",
}


class Applying:
    """The state of a shard, and `apply`."""

    def __init__(
        self,
        lsn: int,
        counters: Mapping[tuple[str, int], int],
        lane_names: Mapping[int, bytes],
        lane_rows: Mapping[int, int],
        bounds: Bounds,
        waits: Collection[tuple[str, int]],
        wait_rows: int,
        births: Births,
        taken: Mapping[int, tuple[int, int, int]],
        has_outbox: bool,
        done_forgotten: int,
        idle_lanes: Collection[int] | None,
    ) -> None:
        self.lsn = lsn
        self.epoch = 0  # of the record that is applied: its journal's, or its segment's
        self.births = births
        self.done_forgotten = done_forgotten
        self.memory = Memory(lsn, bounds.payload_cache_bytes_max)
        lanes = Lanes(self.memory, bounds, lane_names, lane_rows, waits, wait_rows, idle_lanes)
        self.placement = Placement(self.memory, bounds, lanes)
        stored = range(births.shard_count) if has_outbox else ()
        self.outbox = Outbox(self.memory, taken, stored, bounds.outbox_max, bounds.outbox_bytes_max)
        self.running: set[int] = set()
        self.by_task: dict[str, list[int]] = {}
        for (task, state), count in counters.items():
            self._counts(task)[state] = count
        self._appliers: dict[type[Record], Callable[[Any], None]] = {
            Submitted: self._submitted,
            Started: self._started,
            Completed: self._completed,
            Retried: self._retried,
            Snoozed: self._snoozed,
            Released: self._released,
            Buried: self._buried,
            Bookmarked: self._bookmarked,
            CancelRequested: self._cancel_requested,
            Cancelled: self._cancelled,
            Expired: self._expired,
            Rescheduled: self._rescheduled,
            Revived: self._revived,
            Resolved: self._resolved,
            Dropped: self._dropped,
            Late: self._late,
            Forgotten: self._forgotten,
            Delivered: self._delivered,
            Handed: self._handed,
        }

    def apply(self, record: Record) -> None:
        """Make it so. Never fails; a record without an effect counts as an LSN all the same."""
        self.lsn += 1
        applier = self._appliers.get(type(record))
        if applier is not None:
            applier(record)

    def apply_submits(self, records: Sequence[Submitted]) -> None:
        """`apply` for each of them. Those that are plain are left as they are until somebody looks
        at them, where they are due far from now, or wait outside of their lane's window: most are
        written by the next checkpoint, and nobody does."""
        placement = self.placement
        horizon_ms, ahead_ms = placement.horizon >> SERIAL_BITS, placement.bounds.plain_ahead_ms
        sleepers: list[Submitted] = []
        due: dict[str, list[Submitted]] = {}
        known: str | None = None
        of_task: list[Submitted] = []
        for record in records:
            if record.options is None and record.key is None and record.unique is None:
                due_ms = record.due_ms
                ahead = due_ms - record.at_ms
                if ahead <= 0:
                    if record.task != known:
                        known = record.task
                        of_task = due.setdefault(record.task, [])
                    of_task.append(record)
                    continue
                if ahead >= ahead_ms and due_ms > horizon_ms:
                    sleepers.append(record)
                    continue
            self.apply(record)
        if sleepers:
            self.memory.create_plain(sleepers)
            self.lsn += len(sleepers)
            for task, count in Counter([record.task for record in sleepers]).items():
                self._counts(task)[PENDING] += count
        for task, listed in due.items():
            self._submit_due(task, listed)

    def _submit_due(self, task: str, records: Sequence[Submitted]) -> None:
        """`apply` for plain submits of one task that are due: as many as its lane's window has room
        for take their seats there, and those outside of it are left as they are."""
        lanes = self.placement.lanes
        left = records
        if len(records) >= SEATED_TOGETHER_MIN and self.placement.seats_all(records):
            left = seat_first(lanes, task, records)
        at_once = line_up(lanes, task, left)
        for record in at_once:
            self.apply(record)
        together = len(records) - len(at_once)
        if together:
            self.lsn += together
            self._counts(task)[PENDING] += together

    def apply_completed(self, records: Sequence[Completed]) -> None:
        """`apply` for each of them. Of most there is nothing to do but to end a ticket that is
        dirty and nobody knows by another name."""
        memory, running, dirty = self.memory, self.running, self.memory.dirty
        tickets, bodies, payloads = dirty.tickets, dirty.bodies, memory.payloads
        for record in records:
            serial = record.serial
            ticket = tickets.get(serial)
            if (
                ticket is None
                or ticket.fence != 1
                or record.fence != 1
                or ticket.state != RUNNING
                or ticket.options is not None
                or ticket.key is not None
                or ticket.unique is not None
                or ticket.has_bookmark
                or record.born is not None
                or record.sent is not None
            ):
                self.apply(record)
                continue
            self.lsn += 1
            if serial in payloads:
                memory.drop_payload(serial)
            running.discard(serial)
            counts = self.by_task[ticket.task]
            counts[RUNNING] -= 1
            counts[DONE] += 1
            ticket.state = DONE
            ticket.finished_ms = record.at_ms
            # All else that `_completed` clears an earlier attempt would have left behind.
            ticket.cancel_reason = ticket.progress = None
            bodies[serial] = record.result
            dirty.size_bytes += len(record.result)

    # ------------------------------------------------------------------ into pending

    def _submitted(self, record: Submitted) -> None:
        task = record.task
        ticket = ticket_of(record)
        self.memory.create(ticket, record.payload)
        counts = self.by_task.get(task)
        if counts is None:
            counts = self._counts(task)
        counts[PENDING] += 1
        if record.unique is not None:
            name = unique_name_of(ticket)
            assert name is not None
            self.memory.use_name(name)
            self.memory.set_row(name, row_of(record))
        self.placement.enter(ticket)

    def _retried(self, record: Retried) -> None:
        ticket = self._turn(record, record.fence)
        if ticket is not None:
            outcome = _OUTCOME_OF_CAUSE[record.cause]
            self._end_attempt(ticket, record.at_ms, outcome, record.error)
            ticket.deaths += record.deaths
            self._know(ticket, record.maybe_applied, record.error)
            ticket.is_suspect = record.cause == "lost"
            self._wait(ticket, record.due_ms)

    def _snoozed(self, record: Snoozed) -> None:
        ticket = self._turn(record, record.fence)
        if ticket is not None:
            self._end_attempt(ticket, record.at_ms, "snoozed", None)
            ticket.attempts -= 1
            ticket.snoozes += 1
            self._know(ticket, False, None)
            ticket.is_suspect = False
            self._wait(ticket, record.due_ms)
            self._bear(record)

    def _released(self, record: Released) -> None:
        ticket = self._turn(record, record.fence)
        if ticket is not None:
            self._end_attempt(ticket, record.at_ms, "released", None)
            ticket.attempts -= 1
            self._know(ticket, record.begun, None)
            self._wait(ticket, record.due_ms)

    def _rescheduled(self, record: Rescheduled) -> None:
        ticket = self._turn(record, None)
        if ticket is not None:
            if not ticket.fence:
                ticket.first_due_ms = record.due_ms
            self._wait(ticket, record.due_ms)

    def _revived(self, record: Revived) -> None:
        ticket = self._turn(record, None)
        if ticket is None:
            return
        if not record.keep_attempts:
            ticket.attempts = 0
        ticket.deaths = 0
        ticket.is_ambiguous = False
        ticket.why = ticket.group = None
        ticket.finished_ms = 0
        ticket.first_due_ms = record.due_ms
        if record.payload is not None:
            self.memory.set_body(ticket.serial, record.payload)
            self._drop_bookmark(ticket)  # it was a place in other work
        claim, name = ticket.unique, unique_name_of(ticket)
        if claim is not None and name is not None and claim.mode != DURATION:
            row = UniqueRow(ticket.serial, ticket.part, HELD, claim.mode, claim.keep_ms)
            self.memory.set_row(name, row)
        self._wait(ticket, record.due_ms)

    # ------------------------------------------------------------------ attempts

    def _started(self, record: Started) -> None:
        memory, placement = self.memory, self.placement
        hot, seats, dirty = memory.hot, placement.lanes.seats, memory.dirty.tickets
        at_ms, on_crash, running = record.at_ms, record.on_crash, self.running
        for serial in record.serials:
            ticket = hot.get(serial)
            if ticket is None or ticket.state != PENDING:
                continue
            if serial not in dirty:
                ticket = memory.own(ticket)
            if ticket.key is None and seats.get(serial) == IN_HAND:
                running.add(serial)
                del seats[serial]
            else:
                # The key is taken before the lane is left, or the next one would be handed on.
                self._begin(ticket)
                placement.leave(ticket)
            if ticket.options is not None:
                placement.expiries.disarm(serial)
            counts = self.by_task[ticket.task]
            counts[PENDING] -= 1
            counts[RUNNING] += 1
            ticket.state = RUNNING
            ticket.attempts += 1
            ticket.fence += 1
            ticket.started_ms = at_ms
            ticket.on_crash = on_crash

    def _begin(self, ticket: Ticket) -> None:
        """The ticket runs, or ran when it was read."""
        self.running.add(ticket.serial)
        if ticket.key is not None:
            self.placement.lanes.keys.begin(ticket)

    def _end_attempt(
        self, ticket: Ticket, ended_ms: int, outcome: str, error: ErrorText | None
    ) -> None:
        """The attempt is over, before the head is changed otherwise."""
        serial, fence = ticket.serial, ticket.fence
        if outcome != "done" or fence != 1:
            row = AttemptRow(ticket.attempts, fence, ticket.started_ms, ended_ms, outcome, error)
            dirty = self.memory.dirty
            dirty.history[serial, fence] = row
            dirty.size_bytes += _ATTEMPT_BYTES
        self.running.discard(serial)
        key = ticket.key
        if key is not None:
            lanes = self.placement.lanes
            lanes.keys.end(ticket)
            lanes.hand_on(key)

    def _cancel_requested(self, record: CancelRequested) -> None:
        ticket = self._turn(record, record.fence)
        if ticket is not None:
            ticket.cancel_reason = record.reason

    def _bookmarked(self, record: Bookmarked) -> None:
        ticket = self._turn(record, record.fence)
        if ticket is not None:
            if record.value is not None:
                ticket.has_bookmark = True
                self.memory.set_bookmark(ticket.serial, record.value)
            if record.progress is not None:
                ticket.progress = record.progress

    # ------------------------------------------------------------------ ends

    def _completed(self, record: Completed) -> None:
        ticket = self._turn(record, record.fence)
        if ticket is not None:
            self._end_attempt(ticket, record.at_ms, "done", None)
            ticket.is_ambiguous = ticket.is_suspect = False
            ticket.error = ticket.why = ticket.cancel_reason = None
            self._end(ticket, record.at_ms)
            self.memory.set_body(ticket.serial, record.result)
            self._bear(record)

    def _buried(self, record: Buried) -> None:
        ticket = self._turn(record, record.fence)
        if ticket is not None:
            if record.fence != NO_FENCE:
                self._end_attempt(ticket, record.at_ms, outcome_of_buried(record), record.error)
                if record.why == "bad_payload":
                    ticket.attempts -= 1
                self._know(ticket, record.maybe_applied, record.error)
                ticket.is_suspect = False
            ticket.deaths += record.deaths
            ticket.why = record.why
            ticket.group = group_of_dead(ticket)
            self._end(ticket, record.at_ms)
            self.memory.drop_payload(ticket.serial)
            self._bear(record)

    def _cancelled(self, record: Cancelled) -> None:
        ticket = self._turn(record, record.fence)
        if ticket is not None:
            if record.fence != NO_FENCE:
                self._end_attempt(ticket, record.at_ms, "cancelled", record.error)
                self._know(ticket, record.maybe_applied, record.error)
                ticket.is_suspect = False
            ticket.why = record.reason
            if record.gives_up_unique:
                self._give_up_name(ticket)
            self._end(ticket, record.at_ms)
            self.memory.set_body(ticket.serial, None)
            self._bear(record)

    def _expired(self, record: Expired) -> None:
        ticket = self.memory.hot.get(record.serial)
        if ticket is not None and not ticket.fence:
            ticket = self._turn(record, None)
            if ticket is not None:
                self._end(ticket, record.at_ms)
                self.memory.set_body(ticket.serial, None)
                self._bear(record)

    def _resolved(self, record: Resolved) -> None:
        ticket = self._turn(record, None)
        if ticket is not None:
            ticket.is_ambiguous = False
            ticket.group = None
            ticket.why = record.note or None
            self._end(ticket, record.at_ms)
            self.memory.set_body(ticket.serial, record.result)
            self._bear(record)

    def _dropped(self, record: Dropped) -> None:
        self._forget(record.serial, DEAD, type(record))

    def _forgotten(self, record: Forgotten) -> None:
        for serial in record.serials:
            self._forget(serial, record.state, Forgotten)

    def _forget(self, serial: int, state: int, by: type[Record]) -> None:
        ticket = self.memory.hot.get(serial)
        if ticket is None or ticket.state != state or NEXT.get((state, by)) != GONE:
            return
        if state == DEAD:
            self._give_up_name(ticket)
            self._end_aliases(ticket, None)
        elif state == DONE:
            self.done_forgotten += 1
        self._counts(ticket.task)[state] -= 1
        self.memory.erase(ticket)

    def _late(self, record: Late) -> None:
        ticket = self._turn(record, None)
        if ticket is not None:
            ticket.maybe_applied = True

    # ------------------------------------------------------------------ shared

    def _turn(self, record: Any, fence: int | None) -> Ticket | None:
        """The record's ticket, in its next state and free to be changed; None when the record has
        no effect. `fence` is the attempt it is about; None when it is about none."""
        ticket = self.memory.hot.get(record.serial)
        if ticket is None:
            return None
        state = ticket.state
        kind = cast("type[Record]", type(record))
        to = NEXT.get((state, kind))
        if to is None:
            return None
        if fence is not None and fence != (ticket.fence if state == RUNNING else NO_FENCE):
            return None
        if state == PENDING and kind is not Late:
            self.placement.leave(ticket)
        ticket = self.memory.own(ticket)
        if to != state:
            counts = self.by_task[ticket.task]
            counts[state] -= 1
            counts[to] += 1
            ticket.state = to
        return ticket

    def _counts(self, task: str) -> list[int]:
        counts = self.by_task.get(task)
        if counts is None:
            counts = self.by_task[task] = [0] * len(STATES)
        return counts

    def _know(self, ticket: Ticket, maybe_applied: bool, error: ErrorText | None) -> None:
        """What the latest attempt tells of the world: whether it may have changed it, and why it
        failed."""
        ticket.is_ambiguous = maybe_applied
        ticket.maybe_applied = ticket.maybe_applied or maybe_applied
        ticket.cancel_reason = None
        if error is not None:
            ticket.error = error

    def _wait(self, ticket: Ticket, due_ms: int) -> None:
        ticket.due_ms = due_ms
        if due_ms < ticket.first_due_ms:
            # A lane is read in order of first dues: one that is ahead would hide what is due.
            ticket.first_due_ms = due_ms
        self.placement.enter(ticket)

    def _end(self, ticket: Ticket, ended_ms: int) -> None:
        """The ticket has its end, in the state it is in now."""
        ticket.finished_ms = ended_ms
        if ticket.state != DEAD:
            self._drop_bookmark(ticket)
        if ticket.state == DONE:
            ticket.progress = None
        if ticket.options is not None:
            self.placement.expiries.disarm(ticket.serial)
        name = unique_name_of(ticket) if ticket.unique is not None else None
        if name is None:
            return
        row = self.memory.uniques.get(name)
        if row is None or row.serial != ticket.serial:
            after = None  # the name is another's by now
        elif ticket.state != DEAD:
            after = row_after_end(row, ended_ms)
        else:
            after = row if row.mode != ACTIVE else None
        if row is not None and row.serial == ticket.serial and after != row:
            self.memory.set_row(name, after)
        if ticket.aliases is not None and (after is None or after.until_ms != HELD):
            self._end_aliases(ticket, after)
            ticket.aliases = None

    def _drop_bookmark(self, ticket: Ticket) -> None:
        if ticket.has_bookmark:
            ticket.has_bookmark = False
            self.memory.set_bookmark(ticket.serial, None)

    def _give_up_name(self, ticket: Ticket) -> None:
        """Free a ticket's dedupe key, if it is still its own."""
        name = unique_name_of(ticket)
        row = None if name is None else self.memory.uniques.get(name)
        if name is not None and row is not None and row.serial == ticket.serial:
            self.memory.set_row(name, None)

    # ------------------------------------------------------------------ births and hand-overs

    def _bear(self, record: Any) -> None:
        """What an end brings forth."""
        for child in record.born or ():
            self._submitted(child)
        for index, draft in enumerate(record.sent or ()):
            receiver = shard_of(draft.part, self.births.shard_count)
            self.outbox.add(receiver, Place(self.epoch, self.lsn, index), draft)

    def _handed(self, record: Handed) -> None:
        self.outbox.hand(record.receiver, Place(record.epoch, record.lsn, record.index))

    def _delivered(self, record: Delivered) -> None:
        self.outbox.take(record.sender, Place(record.epoch, record.lsn, record.index))
        if record.draft is not None:
            self._submitted(record.draft)
            return
        row = UniqueRow(record.holder, record.holder_part, record.until_ms)
        self.memory.set_row(alias_name(record.child), row)
        holder = self.memory.hot.get(record.holder)
        if record.until_ms == HELD and holder is not None:
            holder = self.memory.own(holder)
            known = holder.aliases or []
            # Never changed in place: another version of the ticket may have the same list.
            holder.aliases = [*known[1 - ALIASES_MAX :], record.child]
            for serial in known[: 1 - ALIASES_MAX]:
                self.memory.set_row(alias_name(serial), None)

    def _end_aliases(self, ticket: Ticket, row: UniqueRow | None) -> None:
        """Ids that answer as the ticket's do so for as long as its name is taken."""
        for serial in ticket.aliases or ():
            self.memory.set_row(alias_name(serial), row)
