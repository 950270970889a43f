"""One shard as the core thread serves it: its queues, its turn, what waits for its disk.

`turn` is the whole engine in small: decide -> apply -> hand the frame over; `_durable` is the only
way out for an answer. What the pure core asks for (loads, sweeps, lane rows) goes to the shard's I/O
thread and comes back here (docs/architecture.md, Turn, records, apply).
"""

import copy
from collections import deque
from collections.abc import Callable, Sequence
from typing import Any, Protocol

from parkade import inquiring, limits, reading
from parkade.asks import Ask, AwaitEnd, Inquiry
from parkade.checkpoint import Checkpoint
from parkade.io import ShardIO, Writer
from parkade.shard import commands
from parkade.shard.commands import Loaded, Need, Submit, Verdict
from parkade.shard.core import Shard
from parkade.store.errors import NoRoom, StoreError
from parkade.store.journal import Journal
from parkade.store.parked import Parked
from parkade.store.record import Record
from parkade.waiters import Wakeups

__all__ = ["HostPort", "Opened", "ShardHost"]

OPEN, RECOVERING, REFUSED, CLOSED = "open", "recovering", "refused", "closed"


class Opened(Protocol):
    """A shard as recovery hands it over."""

    core: Shard
    journal: Journal
    store: Parked


class HostPort(Protocol):
    """What a shard needs of the engine around it."""

    wakeups: Wakeups

    def post(self, function: Callable[..., None], *arguments: Any) -> None: ...
    def settled_ms(self) -> int: ...
    def storage_error(self, shard: int, error: BaseException) -> Exception: ...
    def reopen(self, shard: int) -> Opened: ...
    def recovered(self, shard: "ShardHost") -> None: ...
    def refused(self, shard: "ShardHost") -> None: ...
    def report(self, what: str, error: BaseException) -> None: ...


class ShardHost:
    """Used by the core thread alone, but for `core`'s flight, which the writer may read."""

    def __init__(self, number: int, host: HostPort, io: ShardIO, writer: Writer) -> None:
        self.number = number
        self.host = host
        self.io = io
        self.writer = writer
        self.status = CLOSED
        self.error: BaseException | None = None
        self.asks: deque[Ask] = deque()
        self.submits: deque[Ask] = deque()
        self.awaiting: dict[int, list[Ask]] = {}
        self.quarantined: set[int] = set()
        self.checkpoints = self.recoveries = self.callbacks_failed = 0
        self.is_closing = False
        self._last_failure_ms: int | None = None
        self._reset()

    def _reset(self) -> None:
        """Forgets all that hangs on the core and the journal of before."""
        self.outputs: deque[tuple[int, Ask, Any]] = deque()
        self.records: list[Record] = []
        self.records_bytes = 0
        self.frame_in_flight = False
        self.waiting: list[tuple[Ask, Need]] = []
        self.loading: list[tuple[Ask, Need]] | None = None
        self.due_loads: deque[int] = deque()
        self.due_loading: list[int] | None = None
        self.sweeping = self.refilling = False
        self.checkpoint: Checkpoint | None = None
        self.checkpoint_wanted = False
        self.refine_left = False
        self.first_dirty_ms: int | None = None
        self.last_frame_ms: int | None = None
        self.retry_checkpoint_ms: int | None = None
        self.rereads = 0

    # ------------------------------------------------------------------------------ opening

    def install(self, opened: Opened, now_ms: int) -> None:
        """Begins to serve what was opened or recovered."""
        self._reset()
        self.core, self.journal, self.store = opened.core, opened.journal, opened.store
        self.durable_lsn = self.core.lsn
        self.status, self.error = OPEN, None
        self.core.reanchor(now_ms)

    def refuse(self, error: BaseException) -> None:
        """Serves no more: what is asked is answered with the reason."""
        self.status, self.error = REFUSED, error
        self._fail_everything(error)
        self.host.refused(self)

    # --------------------------------------------------------------------------------- turn

    def put(self, ask: Ask) -> None:
        if self.status in (REFUSED, CLOSED):
            ask.fail(self._refusal(), self.host.wakeups)
        elif type(ask.asked) is Submit:
            self.submits.append(ask)
        else:
            self.asks.append(ask)

    def turn(self, now_ms: int, mono_ms: int) -> bool:
        """One bounded piece of work; True when there is more to do at once."""
        if self.status != OPEN:
            return False
        self.core.has_room = self.journal.has_room(limits.TURN_BYTES_MAX)
        self._fire(now_ms)
        self._decide_some(now_ms)
        self._read_ahead(now_ms)
        self._checkpoint_step(now_ms, mono_ms)
        self.hand_frame(mono_ms)
        return self._has_more()

    def _has_more(self) -> bool:
        if self.status != OPEN:
            return False
        checkpoint_builds = self.checkpoint is not None and self.checkpoint.is_building
        return bool(self.asks) or (bool(self.submits) and self.takes_submits) or checkpoint_builds

    @property
    def takes_submits(self) -> bool:
        return self.core.memory_bytes < limits.DIRTY_BYTES_MAX

    def next_wake_ms(self) -> int | None:
        """The wall time at which this shard has something to do by itself."""
        return self.core.next_wake() if self.status == OPEN else None

    def _decide_some(self, now_ms: int) -> None:
        for _ in range(min(len(self.asks), limits.COMMANDS_PER_TURN_MAX)):
            self.decide(self.asks.popleft(), now_ms)
            if self.status != OPEN:
                return
        while (
            self.submits
            and self.records_bytes < limits.TURN_BYTES_MAX
            and self.takes_submits
            and self.status == OPEN
        ):
            self.decide(self.submits.popleft(), now_ms)

    def decide(self, ask: Ask, now_ms: int, loaded: Loaded | None = None) -> None:
        """Answers, or sets aside, one ask; an error in deciding fails it alone."""
        asked = ask.asked
        try:
            if isinstance(asked, Inquiry):
                self._inquire(ask, asked, loaded)
                return
            verdict = self.core.decide(asked, now_ms, self.host.settled_ms(), loaded)
        except Exception as error:
            self.host.report(f"deciding {type(asked).__name__}", error)
            ask.fail(error, self.host.wakeups)
            return
        if verdict.need is not None:
            self._set_aside(ask, verdict.need, loaded)
            return
        self.apply(verdict, loaded, ask.size)
        if self.status == OPEN:
            self.hold(ask, verdict.answers)

    def apply(self, verdict: Verdict, loaded: Loaded | None, size: int) -> None:
        """Applies what was decided; an error here poisons the shard: memory may be wrong."""
        records = verdict.records
        if not records:
            return
        try:
            if loaded is not None:
                self.core.adopt(loaded)
            for record in records:
                self.core.apply(record)
        except Exception as error:
            self.host.report(f"applying to shard {self.number:02d}", error)
            self.poison(error)
            return
        self.records += records
        self.records_bytes += size + 64 * len(records)
        if self.awaiting:
            self._answer_awaiting(records)

    def hold(self, ask: Ask, value: Any) -> None:
        """Keeps an answer until all that it may depend on is durable."""
        if self.core.lsn <= self.durable_lsn:
            self._release(ask, value)
        else:
            self.outputs.append((self.core.lsn, ask, value))

    def _release(self, ask: Ask, value: Any) -> None:
        try:
            ask.answer(value, self.host.wakeups)
        except Exception as error:
            self.callbacks_failed += 1
            self.host.report("handing out an answer", error)

    # --------------------------------------------------------------------------- the journal

    def hand_frame(self, mono_ms: int) -> None:
        """One frame is in flight at a time; the next carries what has come since."""
        if self.status != OPEN or self.frame_in_flight or not self.records:
            return
        records, self.records, self.records_bytes = self.records, [], 0
        self.frame_in_flight = True
        self.last_frame_ms = mono_ms
        self.io.append(self.journal, records, self._durable, self._append_failed)

    def _durable(self, lsn: int) -> None:
        self.frame_in_flight = False
        self.durable_lsn = lsn
        outputs = self.outputs
        while outputs and outputs[0][0] <= lsn:
            _, ask, value = outputs.popleft()
            self._release(ask, value)
        if not self.journal.has_spare:
            self._prepare_spare()

    def _prepare_spare(self) -> None:
        self.io.call(self.journal.prepare_spare, self._spare_prepared)

    def _spare_prepared(self, _: None, error: Exception | None) -> None:
        if error is not None and not isinstance(error, NoRoom):
            self.poison(error)

    def _append_failed(self, error: Exception) -> None:
        self.frame_in_flight = False
        self.poison(error)

    # --------------------------------------------------------------------- poison and recovery

    def poison(self, error: BaseException) -> None:
        """Throws the shard's memory away; what was not decided yet is kept for afterwards."""
        if self.status != OPEN:
            return
        self.host.report(f"shard {self.number:02d} failed and is recovered from disk", error)
        self.status, self.error = RECOVERING, error
        failure = self.host.storage_error(self.number, error)
        for _, ask, _ in self.outputs:
            ask.fail(failure, self.host.wakeups)
        self.outputs.clear()
        undecided = [ask for ask, _ in self.waiting]
        if self.loading:
            undecided += [ask for ask, _ in self.loading]
        for asks in self.awaiting.values():
            undecided += asks
        self.awaiting = {}
        self.asks.extendleft(reversed(undecided))
        self.waiting, self.loading = [], None
        if self.checkpoint is None or not self.checkpoint.is_sent:
            self._recover()

    def _recover(self) -> None:
        self.checkpoint = None
        self.io.call(lambda: self.host.reopen(self.number), self._recovered)

    def may_recover(self, mono_ms: int) -> bool:
        """By itself once; a second failure within a minute needs the operator."""
        last, self._last_failure_ms = self._last_failure_ms, mono_ms
        return last is None or mono_ms - last >= limits.POISON_WINDOW_MS

    def _recovered(self, opened: Opened | None, error: Exception | None) -> None:
        if opened is None:
            self.refuse(error or RuntimeError("recovery gave nothing"))
            return
        self.recoveries += 1
        self.opened = opened
        self.host.recovered(self)

    def _refusal(self) -> Exception:
        return self.host.storage_error(self.number, self.error or RuntimeError("closed"))

    def _fail_everything(self, error: BaseException) -> None:
        failure = self.host.storage_error(self.number, error)
        asks = [ask for _, ask, _ in self.outputs]
        asks += [*self.asks, *self.submits, *(ask for ask, _ in self.waiting)]
        asks += [ask for ask, _ in self.loading or []]
        asks += [ask for listed in self.awaiting.values() for ask in listed]
        self.asks.clear()
        self.submits.clear()
        self.awaiting = {}
        self._reset()
        for ask in asks:
            ask.fail(failure, self.host.wakeups)

    # -------------------------------------------------------------------- what must be loaded

    def _set_aside(self, ask: Ask, need: Need, loaded: Loaded | None) -> None:
        if loaded is not None and self.quarantined.intersection(need.serials):
            ask.fail(self._damaged_ticket(need), self.host.wakeups)
            return
        self.waiting.append((ask, need))

    def _damaged_ticket(self, need: Need) -> Exception:
        serial = next(iter(self.quarantined.intersection(need.serials)))
        return self.host.storage_error(self.number, reading.row_damage(serial))

    def _load_waiting(self) -> None:
        if self.loading is not None or not self.waiting:
            return
        batch, self.waiting = self.waiting, []
        serials = list({serial for _, need in batch for serial in need.serials})
        uniques = list({name for _, need in batch for name in need.uniques})
        self.loading = batch
        store = self.store
        self.io.call(lambda: reading.load(store, serials, uniques), self._loaded)

    def _loaded(self, got: "reading.Read | None", error: Exception | None) -> None:
        batch, self.loading = self.loading, None
        if batch is None or self.status != OPEN:
            return
        if got is None:
            self._read_failed(error)
            return
        self.quarantined |= got.damaged
        if self._is_stale(got.loaded.snapshot_lsn):
            self.waiting = batch + self.waiting
            return
        now_ms = self.host_now_ms
        for ask, need in batch:
            if got.damaged.intersection(need.serials):
                ask.fail(self._damaged_ticket(need), self.host.wakeups)
            else:
                self.decide(ask, now_ms, got.loaded)
            if self.status != OPEN:
                return

    host_now_ms = 0  # what the host read at the beginning of this pass

    def _is_stale(self, snapshot_lsn: int) -> bool:
        if snapshot_lsn < self.core.completed_lsn:
            self.rereads += 1
            return True
        self.rereads = 0
        return False

    def _read_failed(self, error: Exception | None) -> None:
        self.refuse(error or RuntimeError("a read gave nothing"))

    # ----------------------------------------------------------------- placement: read ahead

    def _fire(self, now_ms: int) -> None:
        self.due_loads.extend(self.core.advance(now_ms))

    def _read_ahead(self, now_ms: int) -> None:
        self._load_waiting()
        store = self.store
        if self.due_loading is None and self.due_loads:
            count = min(len(self.due_loads), limits.LOAD_CHUNK)
            serials = [self.due_loads.popleft() for _ in range(count)]
            self.due_loading = serials
            self.io.call(lambda: reading.load(store, serials, [], bodies=True), self._due_loaded)
        if not self.sweeping:
            ask = self.core.want_sweep(now_ms)
            if ask is not None:
                self.sweeping = True
                self.io.call(lambda: reading.sweep(store, ask), self._swept)
        if not self.refilling:
            refill = self.core.want_refill()
            if refill is not None:
                self.refilling = True
                self.io.call(lambda: reading.refill(store, refill), self._refilled)

    def _due_loaded(self, got: "reading.Read | None", error: Exception | None) -> None:
        serials, self.due_loading = self.due_loading, None
        if self.status != OPEN or serials is None:
            return
        if got is None:
            self._read_failed(error)
            return
        self.quarantined |= got.damaged
        if self._is_stale(got.loaded.snapshot_lsn) or not self.core.loaded_due(got.loaded):
            self.due_loads.extendleft(reversed(serials))

    def _swept(self, got: "reading.Swept | None", error: Exception | None) -> None:
        self.sweeping = False
        if self.status != OPEN:
            return
        if got is None:
            self._read_failed(error)
            return
        self.refine_left = self.refine_left or got.needs_refine
        self.core.swept(got.result, self.host_now_ms)

    def _refilled(self, got: Any, error: Exception | None) -> None:
        self.refilling = False
        if self.status != OPEN:
            return
        if got is None:
            self._read_failed(error)
            return
        self.core.refilled(got)

    # ---------------------------------------------------------------------------- checkpoints

    def _checkpoint_step(self, now_ms: int, mono_ms: int) -> None:
        checkpoint = self.checkpoint
        if checkpoint is None:
            if self._checkpoint_is_due(mono_ms):
                settled = self.host.settled_ms()
                self.checkpoint = Checkpoint(self.core, self.journal.epoch, settled, now_ms)
                self.checkpoint_wanted = self.refine_left = False
                self.first_dirty_ms = None
        elif checkpoint.is_building:
            checkpoint.build(limits.ENCODE_SLICE_TICKETS)
        elif not checkpoint.is_sent and self.durable_lsn >= checkpoint.lsn:
            checkpoint.is_sent = True
            store, batch = self.store, checkpoint.batch
            self.writer.commit(lambda: store.commit(batch), self._committed)
        elif checkpoint.commit is not None and self.rereads < limits.REREADS_BEFORE_HOLD:
            self._complete(checkpoint)

    def _checkpoint_is_due(self, mono_ms: int) -> bool:
        if self.retry_checkpoint_ms is not None:
            if mono_ms < self.retry_checkpoint_ms:
                return False
            self.retry_checkpoint_ms = None
            return True
        core = self.core
        if not core.is_dirty:
            return self.refine_left
        if self.first_dirty_ms is None:
            self.first_dirty_ms = mono_ms
        return (
            self.checkpoint_wanted
            or self.refine_left
            or core.dirty.size_bytes >= limits.CHECKPOINT_DIRTY_BYTES
            or len(core.dirty.tickets) >= limits.CHECKPOINT_TICKETS_MAX
            or self.journal.live_bytes >= limits.CHECKPOINT_JOURNAL_BYTES
            or mono_ms - self.first_dirty_ms >= limits.CHECKPOINT_AGE_MS
        )

    def _committed(self, commit: Any, error: Exception | None) -> None:
        checkpoint = self.checkpoint
        if self.status == RECOVERING:
            self._recover()
            return
        if checkpoint is None or self.status != OPEN:
            return
        if error is not None:
            self._commit_failed(error)
            return
        checkpoint.commit = commit
        self.refine_left = self.refine_left or commit.refine_left
        if self.rereads < limits.REREADS_BEFORE_HOLD:
            self._complete(checkpoint)

    def _complete(self, checkpoint: Checkpoint) -> None:
        self.checkpoint = None
        self.checkpoints += 1
        self.core.complete(checkpoint.lsn, checkpoint.placed)
        journal, lsn = self.journal, checkpoint.lsn
        self.io.call(lambda: journal.drop_through(lsn), self._dropped)

    def _dropped(self, _: int | None, error: Exception | None) -> None:
        if error is not None and self.status == OPEN:
            self.poison(error)

    def _commit_failed(self, error: Exception) -> None:
        self.checkpoint = None
        self.core.merge_back()
        if isinstance(error, NoRoom):
            self.retry_checkpoint_ms = self.host_mono_ms + limits.CHECKPOINT_RETRY_MS
            return
        self.poison(error)

    host_mono_ms = 0

    # ------------------------------------------------------------------------------ inquiries

    def _inquire(self, ask: Ask, asked: Inquiry, loaded: Loaded | None) -> None:
        found = inquiring.answer(self.core, asked, loaded)
        if isinstance(found, Need):
            self._set_aside(ask, found, loaded)
        elif isinstance(found, inquiring.NotEnded):
            self.awaiting.setdefault(found.serial, []).append(ask)
        elif isinstance(found, inquiring.FromStore):
            store = self.store
            work = found.work
            self.io.call(
                lambda: work(store), lambda got, error: self._store_answered(ask, got, error)
            )
        else:
            self.hold(ask, found)

    def _store_answered(self, ask: Ask, got: Any, error: Exception | None) -> None:
        if self.status != OPEN:
            self.put(ask)
        elif error is not None:
            ask.fail(self.host.storage_error(self.number, error), self.host.wakeups)
        elif got.snapshot_lsn < self.core.completed_lsn:
            self.asks.append(ask)
        else:
            self.hold(ask, inquiring.merge(self.core, ask.asked, got))

    def _answer_awaiting(self, records: Sequence[Record]) -> None:
        for record in records:
            serial = getattr(record, "serial", None)
            if serial in self.awaiting:
                asks = self.awaiting.pop(serial)
                for ask in asks:
                    self._inquire(ask, AwaitEnd(serial), None)


def copied(ticket: Any) -> Any:
    """A ticket that may leave the core thread."""
    return copy.copy(ticket)


_ = (StoreError, commands)
