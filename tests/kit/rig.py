"""A core with a fake store and a journal, and a host that does one thing at a time.

Reads travel: `begin_*` takes a snapshot when a test likes, `end_reads` hands it in later. So a test
can put anything between the two. After each step `checked` asserts every invariant there is.
"""

from collections.abc import Callable, Sequence
from typing import Any

from kit.store import Batch, Building, FakeStore
from parkade.shard import (
    DEAD,
    PENDING,
    RUNNING,
    UNREAD,
    Bounds,
    Lane,
    Refilled,
    Shard,
    attempts_of,
)
from parkade.shard.check import check
from parkade.shard.commands import (
    AllCreated,
    AllSettled,
    Answer,
    Command,
    LostItem,
    Outcome,
    Refusal,
    Settle,
    SettleLost,
    Start,
    StartAlike,
    StartItem,
    Submit,
    Verdict,
)
from parkade.shard.lanes import SERIAL_BITS
from parkade.shard.outbox import NO_PLACE, Place
from parkade.shard.ticket import Ticket
from parkade.store.record import (
    Completed,
    Options,
    Record,
    Submitted,
    UniqueClaim,
    decode_records,
    encode_records,
)

NOW_MS = 1_700_000_000_000
SMALL = Bounds(
    horizon_ms=1_000,
    wheel_max=12,
    window_max=4,
    windows_max=10,
    lanes_max=4,
    sweep_limit=5,
    moves_max=8,
    aside_max=2,
    waits_window=1,
    queues_max=3,
    waiting_max=4,
    refill_max=3,
    scout_ahead_ms=300,
    scout_max=2,
    scouted_max=3,
    payload_cache_bytes_max=64,
    plain_ahead_ms=4_000,
)


class Rig:
    """The whole of a shard, in one thread and no file."""

    last: Record

    def __init__(self, bounds: Bounds = SMALL, *, shard_count: int = 1) -> None:
        self.shard_count = shard_count
        self.bounds = bounds
        self.now_ms = NOW_MS
        self.settled_ms = NOW_MS
        self.store = FakeStore()
        self.core = self._open()
        self.journal: list[bytes] = []  # one frame a record, after the store's LSN
        self.last_serial = NOW_MS << 20
        self.building: Building | None = None
        self.committed: Batch | None = None
        self.reads: list[Callable[[], bool]] = []
        self.fired_early: list[int] = []
        self.delivered = 0  # batches of other shards

    def _open(self) -> Shard:
        store = self.store
        return Shard(
            lsn=store.lsn,
            counters=store.counters,
            lane_names=store.lane_names,
            lane_rows=store.lane_rows(),
            bounds=self.bounds,
            shard_count=self.shard_count,
            taken=store.taken,
            has_outbox=bool(store.outbox),
            waits=store.wait_queues(),
            wait_rows=len(store.waits),
            idle_lanes=[number for number, count in store.lane_tickets().items() if not count],
        )

    # ------------------------------------------------------------------ commands

    def do(self, command: Command) -> Verdict:
        """Decide, reading what is needed, and apply."""
        verdict = self.core.decide(command, self.now_ms, self.settled_ms)
        for _ in range(3):
            if verdict.need is None:
                break
            loaded = self.store.load(verdict.need.serials, verdict.need.uniques)
            more = self.core.decide(command, self.now_ms, self.settled_ms, loaded)
            if more.need is not None:
                serials = [*verdict.need.serials, *more.need.serials]
                loaded = self.store.load(serials, [*verdict.need.uniques, *more.need.uniques])
                more = self.core.decide(command, self.now_ms, self.settled_ms, loaded)
            verdict = more
            if verdict.need is None:
                assert self.core.adopt(loaded)
        assert verdict.need is None, verdict
        if type(verdict.answers) is AllCreated:
            self.apply_submits([one for one in verdict.records if type(one) is Submitted])
        elif type(verdict.answers) is AllSettled and verdict.records:
            self.apply_completed([one for one in verdict.records if type(one) is Completed])
        else:
            for record in verdict.records:
                self.apply(record)
        return verdict

    def apply_submits(self, records: list[Submitted]) -> None:
        """As a shard's host does: together."""
        self.last = records[-1]
        self.journal += [encode_records([record]) for record in records]
        self.core.apply_submits(records)

    def apply_completed(self, records: list[Completed]) -> None:
        self.last = records[-1]
        self.journal += [encode_records([record]) for record in records]
        self.core.apply_completed(records)

    def apply(self, record: Record) -> None:
        self.last = record
        self.journal.append(encode_records([record]))
        self.core.apply(record)

    def draft(
        self,
        delay_ms: int = 0,
        task: str = "t",
        key: str | None = None,
        unique: UniqueClaim | None = None,
        options: Options | None = None,
        payload: bytes = b"payload",
        part: int = 7,
    ) -> Submitted:
        self.last_serial += 1
        due_ms = self.now_ms + delay_ms
        return Submitted(
            self.last_serial, part, task, due_ms, self.now_ms, payload, key, unique, options
        )

    def submit(self, delay_ms: int = 0, **more: Any) -> int:
        """Submit one ticket without a conflict; its serial."""
        draft = self.draft(delay_ms, **more)
        answer = self.do(Submit([draft])).answers[0]
        assert isinstance(answer, Answer) and answer.code == "created", answer
        return draft.serial

    def start(self, *serials: int, **more: Any) -> Sequence[Answer | Refusal]:
        """Start tickets that are in hand, and give back those that may not."""
        verdict = self.do(
            Start([StartItem(serial, **more) for serial in serials])
            if more
            else StartAlike(list(serials))
        )
        for serial in serials:
            ticket = self.core.hot.get(serial)
            if ticket is not None and ticket.state == PENDING:
                self.core.placement.give_back(serial, self.now_ms)
        return verdict.answers

    def settle(self, serial: int, kind: str = "done", **more: Any) -> Answer | Refusal:
        """End the attempt that runs."""
        fence = more.pop("fence", None)
        if fence is None:
            fence = self.head(serial).fence
        return self.do(Settle([Outcome(serial, fence, kind, **more)])).answers[0]

    def run(self, serial: int) -> None:
        """Take a due ticket out of its lane and start it."""
        self.settle_down()
        assert serial in self.pop_all(), "it is not in its lane"
        for other in [s for s, seat in self.core.placement.lanes.seats.items() if seat == 2]:
            if other != serial:
                self.core.placement.give_back(other, self.now_ms)
        assert self.start(serial)[0].code == "started"

    # ------------------------------------------------------------------ time and reads

    def pass_ms(self, step_ms: int) -> None:
        """The clock goes on, or back."""
        self.now_ms += step_ms
        self.settled_ms = max(self.settled_ms, self.now_ms)

    def advance(self, limit: int = 4096) -> list[int]:
        return self.core.placement.advance(self.now_ms, self.settled_ms, limit)

    def begin_sweep(self) -> bool:
        ask = self.core.placement.want_sweep(self.now_ms)
        if ask is None:
            return False
        result = self.store.sweep(ask)
        self.reads.append(lambda: self.core.placement.swept(result, self.now_ms))
        return True

    def begin_scout(self) -> bool:
        ask = self.core.placement.want_scout(self.now_ms)
        if ask is None:
            return False
        result = self.store.scout(ask)
        self.reads.append(lambda: self.core.placement.scouted(result, self.now_ms))
        return True

    def begin_loads(self, limit: int = 3) -> bool:
        asked = self.core.placement.want_loads(limit)
        if not asked:
            return False
        loaded = self.store.load(asked)
        self.reads.append(lambda: self.core.placement.loaded(asked, loaded, self.now_ms))
        return True

    def begin_refills(self) -> bool:
        asks = self.core.placement.want_refills(self.now_ms)
        for ask in asks:
            self._read_refill(self.store.refill(ask))
        return bool(asks)

    def _read_refill(self, result: Refilled) -> None:
        self.reads.append(lambda: self.core.placement.refilled(result, self.now_ms))

    def end_reads(self) -> list[bool]:
        """Hand in what was read; which of them could be used."""
        reads, self.reads = self.reads, []
        return [read() for read in reads]

    def settle_down(self) -> list[int]:
        """Let all that can come in come in, with fresh reads; the serials that expired."""
        expired: list[int] = []
        for _ in range(1000):
            self.end_reads()
            expired += self.advance()
            begun = [
                self.begin_sweep(), self.begin_scout(), self.begin_loads(), self.begin_refills(),
            ]  # fmt: skip
            wake_ms = self.core.placement.next_wake()
            if not any(begun) and (wake_ms is None or wake_ms > self.now_ms):
                return list(dict.fromkeys(expired))
        raise AssertionError(("it does not come to rest", wake_ms, begun, self.now_ms))

    # ------------------------------------------------------------------ admission

    def lanes(self) -> list[Lane]:
        return list(self.core.placement.heads())

    def pop(self, lane: Lane) -> int | None:
        serial = self.core.placement.pop(lane, self.now_ms)
        if serial is not None and self.core.hot[serial].due_ms > self.now_ms:
            self.fired_early.append(serial)
        return serial

    def pop_all(self) -> list[int]:
        """Everything that may start, in the order that admission would take it."""
        taken = []
        while True:
            for lane in self.lanes():
                serial = self.pop(lane)
                if serial is not None:
                    taken.append(serial)
                    break
            else:
                return taken

    # ------------------------------------------------------------------ checkpoints

    def cut(self) -> None:
        self.building = Building(self.core, self.core.cut())

    def commit(self) -> None:
        """The writer commits what was cut."""
        assert self.building is not None
        self.committed, self.building = self.building.finish(), None
        before = self.store.lsn
        self.store.commit(self.committed)
        del self.journal[: self.store.lsn - before]

    def fail_commit(self) -> None:
        assert self.building is not None
        self.building.finish()
        self.building = None
        self.core.merge_back()

    def complete(self) -> None:
        """The core hears of the commit."""
        assert self.committed is not None
        batch, self.committed = self.committed, None
        store = self.store
        counts = store.lane_rows(), store.commits, len(store.waits), store.lane_tickets()
        self.core.complete(batch.lsn, batch.placed, *counts)

    def checkpoint(self) -> None:
        """All of it at once."""
        self.cut()
        self.commit()
        self.complete()

    # ------------------------------------------------------------------ crashes

    def reopen(self) -> None:
        """Throw memory away and recover it from the store and the journal."""
        self.building = self.committed = None
        self.reads.clear()
        self.core = core = self._open()
        for frame in self.journal:
            for record in decode_records(frame):
                serials, names = core.names(record)
                unread = [serial for serial in serials if core.look(serial) is UNREAD]
                assert core.adopt(self.store.load(unread, list(names)))
                core.apply(record)

    def adopt_running(self) -> list[int]:
        """What an open does next: take in every ticket that the store has as running."""
        store = self.store.view().heads
        serials = [serial for serial, ticket in store.items() if ticket.state == RUNNING]
        assert self.core.adopt(self.store.load(serials))
        return sorted(self.core.running)

    def settle_lost(self, wait_ms: int = 100, **more: Any) -> Sequence[Answer | Refusal]:
        """Settle every attempt that ran, as after a crash."""
        running = self.adopt_running()
        suspects = [s for s in running if self.core.hot[s].is_suspect]
        items = [
            LostItem(s, self.core.hot[s].fence, wait_ms, is_alone=suspects == [s], **more)
            for s in running
        ]
        return self.do(SettleLost(items)).answers

    # ------------------------------------------------------------------ looking

    def find(self, serial: int) -> Ticket | None:
        """The ticket, memory first."""
        ticket = self.core.look(serial)
        return self.store.ticket(serial) if ticket is UNREAD else ticket

    def head(self, serial: int) -> Ticket:
        ticket = self.find(serial)
        assert ticket is not None, serial
        return ticket

    def body(self, serial: int) -> bytes | None:
        body = self.core.body(serial)
        return self.store.bodies.get(serial) if body is UNREAD else body

    def outcomes(self, serial: int) -> list[str]:
        """How each attempt ended, by fence."""
        rows = [*self.store.attempts(serial), *self.core.attempt_rows(serial)]
        return [row.outcome for row in attempts_of(self.head(serial), rows)]

    def tickets(self) -> dict[int, Ticket]:
        """Every ticket there is."""
        plain = {ticket.serial: ticket for ticket in self.core.memory.plain_tickets()}
        serials = {*self.store.heads, *self.core.hot, *plain}
        found = {serial: plain.get(serial) or self.find(serial) for serial in serials}
        return {serial: ticket for serial, ticket in sorted(found.items()) if ticket is not None}

    def state(self) -> dict[str, Any]:
        """All that is durable, over memory and store: what a replay must come to."""
        core, store = self.core, self.store
        tickets = self.tickets()
        rows = {name: core.memory.row(name) for name in {*store.uniques, *core.memory.uniques}}
        uniques = {n: store.uniques.get(n) if row is UNREAD else row for n, row in rows.items()}
        history = {
            serial: sorted(
                {
                    row.fence: row for row in [*store.attempts(serial), *core.attempt_rows(serial)]
                }.values(),
                key=lambda row: row.fence,
            )
            for serial in tickets
        }
        return {
            "lsn": core.lsn,
            "tickets": {serial: fields(ticket) for serial, ticket in tickets.items()},
            "bodies": {serial: self.body(serial) for serial in tickets},
            "uniques": {name: row for name, row in uniques.items() if row is not None},
            "history": history,
            "counters": core.counters,
            "taken": core.outbox.taken,
            "outbox": self.outbox(),
            "running": sorted(s for s, t in tickets.items() if t.state == RUNNING),
        }

    def outbox(self) -> dict[tuple[int, Place], Submitted]:
        """What is on its way to others, memory over store."""
        outbox, stored = self.core.outbox, self.store.outbox
        left = {at: e for at, e in stored.items() if at[1] > outbox.handed.get(at[0], NO_PLACE)}
        return dict(sorted((left | outbox.changed()).items()))

    def refill(self, receiver: int, limit: int = 100) -> None:
        """Read what the window has no more of."""
        after = self.core.outbox.last(receiver)
        rows = self.store.entries(receiver, after, limit)
        self.core.outbox.refill(receiver, rows, is_end=len(rows) < limit)

    def checked(self) -> None:
        """Every invariant."""
        check(self.core, self.store.view())
        assert not self.fired_early, self.fired_early

    def check_nothing_due_is_forgotten(self) -> None:
        """After `settle_down`: what is due is in its lane, in memory or past a full window."""
        lanes = self.core.placement.lanes
        rows = {serial: number for number, _, serial in self.store.rows}
        waiting = {serial for *_, serial in self.store.waits}
        for serial, ticket in self.tickets().items():
            if ticket.state != PENDING or ticket.due_ms > self.now_ms:
                continue
            lane = lanes.by_key.get(ticket.lane)
            rank = ticket.first_due_ms << SERIAL_BITS | serial
            is_outside = lane is not None and rank > lane.edge and serial in {*lane.ranks, *rows}
            queue = lanes.waits.queues.get((str(ticket.key), ticket.lane))
            is_outside |= serial in waiting and queue is not None and rank > queue.edge
            position = ticket.due_ms << SERIAL_BITS | serial
            placement = self.core.placement
            is_unswept = placement.wants_checkpoint and position > placement.horizon
            assert serial in lanes.seats or is_outside or is_unswept, (
                "due and not in its lane",
                ticket,
            )


def fields(ticket: Ticket) -> tuple[Any, ...]:
    return tuple(getattr(ticket, name) for name in ticket.__struct_fields__)


def codes(answers: Sequence[Answer | Refusal]) -> list[str]:
    return [answer.code for answer in answers]


__all__ = ["DEAD", "NOW_MS", "SMALL", "Rig", "codes", "fields"]
