"""A shard's pure core: `decide` turns a command into records, `apply` turns records into state.

Deciding may refuse and changes nothing. Applying changes, refuses nothing and never fails, reads no
clock and does no I/O: the live engine and recovery use the same function, and so arrive at the same
state. Where pending tickets wait is Placement's, which apply tells and which is not state.

What must be read of the store is asked for (`Verdict.need`, `names`) and handed in as `Loaded`.
docs/architecture.md, Turn, records, apply.
"""

from collections.abc import Callable, Collection, Mapping, Sequence
from typing import Any

from parkade.shard import decide, deliver, lined, settle
from parkade.shard.apply import Applying
from parkade.shard.births import Births
from parkade.shard.bounds import Bounds
from parkade.shard.commands import (
    AllSettled,
    AllStarted,
    Bookmark,
    Cancel,
    CancelMany,
    Command,
    Deliver,
    Drop,
    Expire,
    Forget,
    Hand,
    Loaded,
    Refusal,
    Reschedule,
    Resolve,
    Revive,
    Settle,
    SettleLost,
    Start,
    StartAlike,
    StartItem,
    Submit,
    UniqueRow,
    Verdict,
)
from parkade.shard.generation import Cut, Generation
from parkade.shard.history import AttemptRow
from parkade.shard.lanes import SPILLED, WAITING, LaneKey
from parkade.shard.memory import UNREAD, Unread
from parkade.shard.states import PENDING, RUNNING
from parkade.shard.ticket import Placed, StoredAt, Ticket
from parkade.shard.unique import HELD
from parkade.shard.view import View
from parkade.store.record import Delivered, Forgotten, Record, Started, Submitted

__all__ = ["ENTRY_AGENDA", "ENTRY_LANE", "ENTRY_WAITS", "Shard"]

ENTRY_AGENDA = 0
ENTRY_LANE = 1
ENTRY_WAITS = 2


class Shard(Applying):
    """One shard's tickets. Single-threaded; every method but `complete` and the walks that its
    name promises takes time that does not depend on how many tickets there are."""

    def __init__(
        self,
        *,
        lsn: int = 0,
        counters: Mapping[tuple[str, int], int] | None = None,
        lane_names: Mapping[int, bytes] | None = None,
        lane_rows: Mapping[int, int] | None = None,
        bounds: Bounds | None = None,
        number: int = 0,
        shard_count: int = 1,
        taken: Mapping[int, tuple[int, int, int]] | None = None,
        has_outbox: bool = False,
        done_forgotten: int = 0,
        waits: Collection[tuple[str, int]] = (),
        wait_rows: int = 0,
        idle_lanes: Collection[int] | None = None,
    ) -> None:
        """The state at the store's LSN, with nothing in memory.

        `lane_names` and `lane_rows` are by lane number: its encoded key, its rows in `lanes`.
        `waits` is each key and lane number with rows in `waits`, `wait_rows` how many those are.
        `taken` is by sender: the last (epoch, LSN, index) that came from there. `has_outbox`: the
        store has entries for other shards. `idle_lanes`: see `Lanes`. `done_forgotten` is how many
        tickets were done and are forgotten.
        """
        super().__init__(
            lsn,
            counters or {},
            lane_names or {},
            lane_rows or {},
            bounds or Bounds(),
            waits,
            wait_rows,
            Births(number, shard_count),
            taken or {},
            has_outbox,
            done_forgotten,
            idle_lanes,
        )
        self.has_room = True
        self.refused_outcomes = 0

    # ------------------------------------------------------------------ decide

    def decide(
        self, command: Command, now_ms: int, settled_ms: int, loaded: Loaded | None = None
    ) -> Verdict:
        """What the command comes to. Changes nothing but the count of refused outcomes.

        `loaded` is what an earlier verdict needed; a stale one is passed over, and the verdict
        needs it again. With a `need` there are neither records nor answers.
        """
        view = View(self.memory, loaded)
        verdict = _DECIDERS[type(command)](self, view, command, now_ms, settled_ms)
        records = verdict.records
        kind = type(verdict.answers)
        if not records or kind is AllStarted:
            return verdict
        if not (kind is AllSettled and self.births.is_unheard(view, records)):
            self.births.attach(view, records)
        return verdict

    def decide_settle(self, view: View, command: Settle, now_ms: int, settled_ms: int) -> Verdict:
        verdict = settle.decide_settle(view, command, settle.Times(now_ms, settled_ms))
        if type(verdict.answers) is not AllSettled:
            self.refused_outcomes += [type(answer) for answer in verdict.answers].count(Refusal)
        return verdict

    def decide_start(self, view: View, command: Start, now_ms: int, settled_ms: int) -> Verdict:
        times = settle.Times(now_ms, settled_ms)
        keys = self.placement.lanes.keys
        return settle.decide_start(view, command, times, keys, self.has_room)

    def decide_start_alike(
        self, view: View, command: StartAlike, now_ms: int, settled_ms: int
    ) -> Verdict:
        verdict = settle.decide_plain_starts(view, command, now_ms) if self.has_room else None
        if verdict is not None:
            return verdict
        max_attempts, on_crash = command.max_attempts, command.on_crash
        items = [StartItem(s, max_attempts, on_crash=on_crash) for s in command.serials]
        return self.decide_start(view, Start(items), now_ms, settled_ms)

    # ------------------------------------------------------------------ reading

    def adopt(self, loaded: Loaded) -> bool:
        """Take what was read into memory, before `apply`. False: it is stale, and must be read
        again. What memory knows, tombstones included, goes before what was read."""
        taken = self.memory.adopt(loaded)
        if taken is None:
            return False
        for ticket in taken:
            if ticket.state == PENDING:
                self.placement.came_in(ticket)
            elif ticket.state == RUNNING:
                self._begin(ticket)
        return True

    def names(self, record: Record) -> tuple[Sequence[int], Sequence[bytes]]:
        """The serials, and the unique names besides theirs, to be read before it is applied."""
        if isinstance(record, Submitted):
            return (), ()
        if isinstance(record, Started | Forgotten):
            return record.serials, ()
        if isinstance(record, Delivered):
            is_followed = record.draft is None and record.until_ms == HELD
            return ((record.holder,) if is_followed else ()), ()
        serial = getattr(record, "serial", None)
        return (() if serial is None else (serial,)), ()

    def look(self, serial: int) -> Ticket | Unread | None:
        """The ticket; None when it is gone; UNREAD when the store must be asked."""
        return self.memory.look(serial)

    def body(self, serial: int) -> bytes | Unread | None:
        """Payload, or result of a ticket that is done; None when there is none; or UNREAD."""
        return self.memory.body(serial)

    def bookmark(self, serial: int) -> bytes | Unread | None:
        """What an attempt of a ticket in memory saved; None when nothing is; or UNREAD."""
        ticket = self.memory.hot.get(serial)
        if ticket is None or not ticket.has_bookmark:
            return None
        return self.memory.bookmark(serial)

    def payload(self, serial: int) -> bytes | None:
        """The payload of a ticket to be started, if memory has it."""
        body = self.memory.body(serial)
        return None if body is UNREAD else body

    def payloads(self, serials: Sequence[int]) -> list[bytes | None]:
        """`payload` of each of them."""
        return self.memory.bodies(serials)

    def keep_payload(self, serial: int, payload: bytes, snapshot_commit: int) -> bool:
        """A payload was read. False: stale; read it again. It may or may not be kept."""
        if not self.memory.is_fresh(snapshot_commit):
            return False
        if serial in self.memory.hot and self.memory.body(serial) is UNREAD:
            self.memory.keep_payload(serial, payload)
        return True

    def unique_row(self, name: bytes) -> UniqueRow | Unread | None:
        """The row of a dedupe key; None when there is none; or UNREAD."""
        return self.memory.row(name)

    def attempt_rows(self, serial: int) -> list[AttemptRow]:
        """The ended attempts that the store may not have yet, by fence."""
        ticket = self.memory.hot.get(serial)
        if ticket is None:
            return []
        flight, dirty = self.memory.flight, self.memory.dirty
        tables = [dirty.history] if flight is None else [flight.history, dirty.history]
        fences = range(1, ticket.fence + 1)
        if ticket.fence > sum(map(len, tables)):
            fenced = {fence for table in tables for owner, fence in table if owner == serial}
        else:
            fenced = {fence for fence in fences if any((serial, fence) in t for t in tables)}
        return [
            next(table[serial, fence] for table in tables if (serial, fence) in table)
            for fence in sorted(fenced)
        ]

    # ------------------------------------------------------------------ checkpoints

    def cut(self) -> Cut:
        """Begin a checkpoint of the state as it is now. There must be no other."""
        for task in [task for task, counts in self.by_task.items() if not any(counts)]:
            del self.by_task[task]
        taken, forgotten = dict(self.outbox.taken), self.done_forgotten
        return Cut(self.lsn, self.counters, self.memory.cut(), taken, forgotten)

    def entry_kind(self, serial: int) -> int:
        """Where the entry of a pending ticket of the flight belongs: in the agenda, in its lane's
        rows, or in those that wait for its key. Asked while the checkpoint is built; `complete` is
        told what came of it."""
        seat = self.placement.lanes.seats.get(serial)
        if seat == SPILLED:
            return ENTRY_LANE
        return ENTRY_WAITS if seat == WAITING else ENTRY_AGENDA

    def is_new_to_agenda(self, serial: int) -> bool:
        """Whether the store has no version of a ticket, and its entry, if it is pending, belongs in
        the agenda."""
        if serial in self.memory.stored_at:
            return False
        return self.placement.lanes.seats.get(serial) not in (SPILLED, WAITING)

    def lane_number(self, lane: LaneKey) -> int:
        """The number of a lane; a new one is noted in the flight's `lane_names`."""
        return self.placement.lanes.number(lane)

    def stored_lane_number(self, lane: LaneKey) -> int:
        """The number of a lane of which the store has pending tickets. Any thread; 0 for one that a
        stale snapshot had."""
        return self.placement.lanes.numbers.get(lane, 0)

    def complete(
        self,
        cut_lsn: int,
        placed: Mapping[int, Placed | None],
        lane_rows: Mapping[int, int],
        commit: int,
        wait_rows: int = 0,
        lane_tickets: Mapping[int, int] | None = None,
    ) -> None:
        """The commit of the checkpoint is done.

        `placed` says how each ticket of the flight stands in the store now, `lane_rows` how many
        rows each lane has there, `wait_rows` how many wait for keys; `lane_tickets`: see
        `Lanes.rows_counted`. `commit` is its number: what snapshots say that they saw. Clean
        tickets that nobody needs leave memory.
        """
        lanes = self.placement.lanes
        flight = self.memory.flight
        assert flight is not None, "no checkpoint is under way"
        for serial, move in flight.moves.items():
            self.placement.move_completed(serial, move)
        if flight.lined:
            lined.completed(lanes, flight)
        if flight.unpacked:
            placed = {**placed, **self._placed_unpacked(flight)}
        self.memory.complete(cut_lsn, placed, self.placement.keeps, self.placement.may_go)
        self.memory.completed_commit = commit
        lanes.rows_counted(lane_rows, wait_rows, lane_tickets)
        self.placement.completed()

    def _placed_unpacked(self, flight: Generation) -> dict[int, StoredAt]:
        """How the store has those that were encoded as plain ones, and are in memory now."""
        numbers = self.placement.lanes.numbers
        return {
            serial: StoredAt(
                PENDING,
                ticket.due_ms,
                ticket.first_due_ms,
                numbers[ticket.lane],
                in_lane=flight.is_lined(ticket.task, serial),
            )
            for serial, ticket in flight.unpacked.items()
        }

    def merge_back(self) -> None:
        """The commit of the checkpoint failed: its changes are dirty again."""
        self.memory.merge_back()
        hot, lanes = self.memory.hot, self.placement.lanes
        moves = self.memory.dirty.moves
        for serial, move in list(moves.items()):
            # It has come in since, or is about to: it needs no row.
            outside = WAITING if move.to_waits else SPILLED
            is_in = lanes.seats.get(serial) != outside if serial in hot else serial in lanes.loading
            if is_in:
                del moves[serial]

    # ------------------------------------------------------------------ what is where

    @property
    def completed_lsn(self) -> int:
        """The LSN of the last checkpoint whose completion was processed."""
        return self.memory.completed_lsn

    @property
    def completed_commit(self) -> int:
        """The number of that commit; 0 before the first."""
        return self.memory.completed_commit

    @property
    def dirty(self) -> Generation:
        return self.memory.dirty

    @property
    def flight(self) -> Generation | None:
        return self.memory.flight

    @property
    def hot(self) -> dict[int, Ticket]:
        return self.memory.hot

    @property
    def stored_at(self) -> dict[int, StoredAt]:
        return self.memory.stored_at

    def is_clean(self, serial: int) -> bool:
        """Whether no generation has a version of the ticket."""
        return self.memory.is_clean(serial)

    @property
    def counters(self) -> dict[tuple[str, int], int]:
        """How many tickets each task has in each state; only what is not 0."""
        return {
            (task, state): count
            for task, counts in self.by_task.items()
            for state, count in enumerate(counts)
            if count
        }


_Decider = Callable[[Shard, View, Any, int, int], Verdict]

_DECIDERS: dict[type[Command], _Decider] = {
    Submit: lambda core, view, command, now_ms, settled_ms: decide.decide_submit(
        view, command, now_ms, settled_ms, core.has_room
    ),
    Bookmark: lambda core, view, command, now_ms, _: decide.decide_bookmark(
        view, command, now_ms, core.has_room
    ),
    Cancel: lambda core, view, command, now_ms, _: decide.decide_cancel(view, command, now_ms),
    CancelMany: lambda core, view, command, now_ms, _: decide.decide_cancel_many(
        view, command, now_ms, core.has_room
    ),
    Reschedule: lambda core, view, command, now_ms, _: decide.decide_reschedule(
        view, command, now_ms
    ),
    Revive: lambda core, view, command, now_ms, settled_ms: decide.decide_revive(
        view, command, now_ms, settled_ms
    ),
    Drop: lambda core, view, command, now_ms, _: decide.decide_drop(view, command, now_ms),
    Resolve: lambda core, view, command, now_ms, _: decide.decide_resolve(view, command, now_ms),
    Expire: lambda core, view, command, now_ms, settled_ms: decide.decide_expire(
        view, command, now_ms, settled_ms
    ),
    Forget: lambda core, view, command, now_ms, _: decide.decide_forget(view, command),
    Start: Shard.decide_start,
    StartAlike: Shard.decide_start_alike,
    Settle: Shard.decide_settle,
    SettleLost: lambda core, view, command, now_ms, settled_ms: settle.decide_settle_lost(
        view, command, settle.Times(now_ms, settled_ms)
    ),
    Deliver: lambda core, view, command, now_ms, settled_ms: deliver.decide_deliver(
        view, core.outbox, command, now_ms, settled_ms
    ),
    Hand: lambda core, view, command, now_ms, _: deliver.decide_hand(view, core.outbox, command),
}
