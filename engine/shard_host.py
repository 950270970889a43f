"""One shard as the core thread serves it: its queues, its turn, what waits for its disk.

`turn` is the whole engine in small: decide -> apply -> hand the frame over; `_durable` is the only
way out for an answer. What the pure core asks for (loads, sweeps, lane rows) goes to who
reads and comes back here (docs/architecture.md, Turn, records, apply).
"""

from collections import deque
from collections.abc import Callable, Iterable
from typing import Any

from parkade import limits
from parkade.answering import Answering, stop_attempts
from parkade.arrivals import Arrivals, pass_over_damage
from parkade.asks import Ask, AwaitEnd, Inquiry, Watch, Watched
from parkade.caller_frames import Pen, SubmitInterrupted, Written
from parkade.checkpointing import Checkpointing
from parkade.dues import Dues
from parkade.errors import EngineClosed
from parkade.gathering import Gathering, apply_all, note_all
from parkade.handing import Handing
from parkade.host_port import HostPort
from parkade.io import ShardIO, Writer
from parkade.noting import Notebook
from parkade.opening import OpenShard
from parkade.progress import ProgressBoard
from parkade.read_ahead import ReadAhead
from parkade.reading import Read
from parkade.retention import Retention
from parkade.room import BOUNDED, Room
from parkade.shard.births import Kin, births_bytes
from parkade.shard.commands import (
    AllStarted,
    Deliver,
    Loaded,
    Need,
    Settle,
    Start,
    StartAlike,
    Submit,
    Verdict,
)  # fmt: skip
from parkade.shard.ticket import Ticket
from parkade.store.errors import NoRoom, is_out_of_handles
from parkade.store.journal import Journal
from parkade.store.record import Record
from parkade.upkeep import Upkeep

__all__ = ["ShardHost"]

OPEN, RECOVERING, REFUSED, CLOSED = "open", "recovering", "refused", "closed"
_STOP_NOBODY = (Submit, Start, StartAlike, Settle)


class ShardHost:
    """Used by the core thread alone."""

    def __init__(self, number: int, host: HostPort, io: ShardIO, writer: Writer) -> None:
        self.number = number
        self.host = host
        self.io = io
        self.writer = writer
        self.is_open = self.is_refused = False
        self.status = CLOSED
        self.error: BaseException | None = None
        self.asks: deque[Ask] = deque()
        self.submits: deque[Ask] = deque()
        self.arrivals = Arrivals(self)
        self.awaiting: dict[int, list[Ask]] = {}
        self._answering = Answering(self)
        self.quarantined: set[int] = set()
        # Answers why a ticket is not running: what holds it is known outside of its shard.
        self.explain: Callable[[ShardHost, Ask, Ticket], None] | None = None
        self.kin: Kin | None = None  # who hears of the ends of its tickets
        # Hears that a running attempt is to stop, by serial, fence and reason.
        self.stop_attempt: Callable[[int, int, str], None] | None = None
        self.progress: ProgressBoard | None = None
        self.recoveries = self.checkpoints = self.callbacks_failed = self.refused_outcomes = 0
        self.notes = Notebook()
        self.pen = Pen()
        self._failed_at_ms: int | None = None
        self.recover_at_ms: int | None = None
        self.is_stirred = True
        self.dues = Dues()

    # ------------------------------------------------------------------------------ opening

    def install(self, opened: OpenShard) -> None:
        """Begins to serve what was opened or recovered."""
        self.core, self.journal = opened.core, opened.journal
        self.placement = self.core.placement
        # What was submitted as due may start in the very pass, unless it is counted.
        self.placement.seats_at_once = not self.host.counts_ready
        self.core.births.kin = self.kin
        self.store, self.reader = opened.store, opened.reader
        self.durable_lsn = self.core.lsn
        self.outputs: deque[tuple[int, Ask, Any]] = deque()
        self.records: list[Record] = []
        self.records_bytes = 0
        self.frame_in_flight = False
        self.room = Room(self)
        self.written = Written(self)
        self._is_waiting = False
        self.uncovered_since_ms: int | None = None
        self.waiting: list[tuple[Ask, Need]] = []
        self.loading: list[tuple[Ask, Need]] | None = None
        self.dropped_reads = 0
        self.read_ahead = ReadAhead(self)
        self.gathering = Gathering(self)
        self.checkpointing = Checkpointing(self)
        self.retention = Retention(self)
        self.handing = Handing(self)
        self.upkeep = Upkeep(self)
        self.status, self.error = OPEN, None
        self.is_stirred = True

    @property
    def opened(self) -> OpenShard:
        """The files and the memory that are served now, or were last."""
        return OpenShard(self.core, self.journal, self.store, self.reader)

    def close(self) -> bool:
        """At the end: closes its files; whether it was served until now. Raises `StoreError`, with
        the files closed all the same."""
        was_open = self.is_open
        if was_open:
            self.status = CLOSED
        if hasattr(self, "core"):
            self.opened.close(is_clean=was_open)
        return was_open

    @property
    def status(self) -> str:
        return self._status

    @status.setter
    def status(self, status: str) -> None:
        self._status = status
        self.is_open = status == OPEN  # asked of every shard in every pass
        self.is_refused = status == REFUSED  # and for every submit

    @property
    def is_served(self) -> bool:
        """Whether it is open, or will be again by itself."""
        return self.status == OPEN or (self.status == RECOVERING and hasattr(self, "core"))

    # --------------------------------------------------------------------------------- turn

    def put(self, ask: Ask) -> None:
        """Takes an ask to be decided in its turn; a refused shard answers with its reason."""
        if type(ask.asked) is AwaitEnd and self.is_open and self._answering.keeps(ask, ask.asked):
            return
        self.is_stirred = True
        if not self.is_open and self.status in (REFUSED, CLOSED):
            self.fail_one(ask, self.refusal())
        elif type(ask.asked) in BOUNDED:
            self.submits.append(ask)
        elif type(ask.asked) is Deliver:
            self.arrivals.queue.append(ask)
        else:
            self.asks.append(ask)

    def turn(self) -> None:
        """One bounded piece of work, where anything has come in since the last, or is due."""
        self.is_stirred = False
        if not self.is_open:
            if self.recover_at_ms is not None and self.host.mono_ms >= self.recover_at_ms:
                self.recover()
            return
        has_due = self.dues.wall_ms <= self.host.now_ms
        self.room.look()
        self.read_ahead.fire()
        self._decide_some()
        if self.is_open and self.upkeep.step(has_due=has_due) and self.is_open:
            self.dues.reckon(self)

    @property
    def has_more(self) -> bool:
        """Whether another turn has work without anything new coming in."""
        if not self.is_open:
            return False
        has_asks = not self._is_waiting and self.has_undecided
        return has_asks or self.checkpointing.is_building

    def wait_ms(self) -> int:
        """How long nothing is to be done, if nothing comes in; not above 0: there is more now."""
        if self.is_stirred:
            self.dues.reckon(self)
        if self.upkeep.put_off:
            return 0
        host, dues = self.host, self.dues
        return min(dues.wall_ms - host.now_ms, dues.mono_ms - host.mono_ms)

    @property
    def has_undecided(self) -> bool:
        """Whether anything waits for its turn."""
        return bool(self.asks or self.submits or self.arrivals.queue)

    @property
    def is_settled(self) -> bool:
        """Nothing undecided, nothing on its way to the journal."""
        if self.status == RECOVERING:
            return False
        return self.status != OPEN or not (
            self.has_undecided or self.waiting or self.loading or self.records
            or self.frame_in_flight or self.outputs or self.handing.is_busy
        )  # fmt: skip

    @property
    def is_quiet(self) -> bool:
        """Nothing undecided, nothing on its way to the disk, nothing dirty."""
        if self.status != OPEN:
            return self.is_settled
        is_stored = not self.checkpointing.is_busy and self.core.dirty.is_empty
        return is_stored and self.is_settled

    @property
    def is_at_rest(self) -> bool:
        """Whether all that it may have to do by itself is due at a time that is known."""
        return self.is_quiet and self.room.takes_starts and not self.arrivals.is_awaited

    def _decide_some(self) -> None:
        """Asks in their order, submits in theirs; what has no room waits undecided."""
        self._is_waiting = False
        takes_new = self.room.takes_new
        tells_new = takes_new or self.room.is_full  # which a full disk refuses
        if self.arrivals.is_awaited:
            self.asks.extend(self.arrivals.take_answerable())
        for queue, is_taken in (
            (self.asks, True), (self.arrivals.queue, takes_new), (self.submits, tells_new),
        ):  # fmt: skip
            for _ in range(min(len(queue), limits.COMMANDS_PER_TURN_MAX) if queue else 0):
                if not is_taken or not self.room.takes(queue[0]):
                    self._is_waiting = True
                    if queue is self.asks:
                        self._answering.inquire_first(queue)
                    break
                ask = queue.popleft()
                if type(ask.asked) is Submit and self.gathering.takes(ask):
                    continue
                self.decide(ask)
                if not self.is_open:
                    self.gathering.give_back()
                    return
        if self.gathering.asks:
            self.gathering.decide()

    def decide_now(self, ask: Ask, loaded: Loaded | None = None) -> None:
        """`decide` outside of the shard's turn, which then follows."""
        self.is_stirred = True
        self.decide(ask, loaded)

    def decide(self, ask: Ask, loaded: Loaded | None = None) -> None:
        """Answers, or sets aside, one ask; an error in deciding fails it alone."""
        asked, host = ask.asked, self.host
        try:
            if isinstance(asked, Inquiry):
                self._answering.inquire(ask, asked, loaded)
                return
            verdict = self.core.decide(asked, host.now_ms, host.settled_ms, loaded)
        except Exception as error:
            host.report(f"deciding {type(asked).__name__}", error)
            self.fail_one(ask, error)
            return
        if verdict.need is not None:
            self.waiting.append((ask, verdict.need))
            return
        if not verdict.records and self.arrivals.holds(ask, verdict.answers):
            return
        births = 0 if type(verdict.answers) is AllStarted else births_bytes(verdict.records)
        if births > ask.births_bytes:
            # Known only now: it is decided anew where there is room for it.
            ask.size += births - ask.births_bytes
            ask.births_bytes = births
            if not self.room.takes(ask):
                self.asks.appendleft(ask)
                return
        if ask.door_bytes or ask.due_count:
            host.decided(ask)
        self.apply(verdict, loaded, ask.size)
        if self.is_open:
            if self.stop_attempt is not None and type(asked) not in _STOP_NOBODY:
                stop_attempts(self, self.stop_attempt, asked, verdict)
            self.hold(ask, verdict.answers)
        else:
            self.fail_one(ask, self.refusal())

    def apply(self, verdict: Verdict, loaded: Loaded | None, size: int) -> None:
        """Applies what was decided; an error here poisons the shard: its memory may be wrong."""
        records = verdict.records
        if not records:
            return
        try:
            if loaded is not None:
                self.core.adopt(loaded)
            if self.progress is not None and self.progress.latest[self.number]:
                records = self._with_progress(self.progress, records)
            apply_all(self.core, records, verdict)
        except Exception as error:
            self.poison(error)
            return
        note_all(self.notes, records, verdict, self.core)
        self.records += records
        self.records_bytes += size + 64 * len(records)
        if self.awaiting:
            self._answering.tell_awaiting(records)

    def _with_progress(self, board: ProgressBoard, records: list[Record]) -> list[Record]:
        """The records, after those of the progress that goes along with them."""
        host, lead = self.host, list[Record]()
        for note in board.take(self.number, records, host.mono_ms):
            if note.progress is not None:
                self.records_bytes += 4 * len(note.progress.message)
            lead += self.core.decide(note, host.now_ms, host.settled_ms).records
        return lead + records

    def hold(self, ask: Ask, value: Any) -> None:
        """Keeps an answer until all that it may depend on is durable."""
        if type(ask.asked) is Watch:
            value = Watched(value, self.notes.made)
        if self.core.lsn <= self.durable_lsn:
            self._release(ask, value)
        else:
            self.outputs.append((self.core.lsn, ask, value))

    def _release(self, ask: Ask, value: Any) -> None:
        if ask.stirs:
            self.is_stirred = True  # what the engine itself has asked for is to go on
        try:
            ask.answer(value, self.host.wakeups)
        except Exception as error:
            self.callbacks_failed += 1
            self.host.report("handing out an answer", error)

    # ---------------------------------------------------------------------------- the journal

    @property
    def has_frame(self) -> bool:
        """Whether there is one to be written: the one before is durable."""
        return self.is_open and bool(self.records) and not self.frame_in_flight

    def hand_frame(self, *, is_here: bool = False) -> None:
        """One frame is in flight at a time; the next carries what has come since. `is_here`: it is
        written, and what came of it is done, by the time this returns."""
        if not self.has_frame:
            return
        records, self.records, self.records_bytes = self.records, [], 0
        self.notes.send()
        self.frame_in_flight = True
        journal = self.journal
        if is_here:
            self._write_here(journal, records)
            return

        def failed(error: Exception) -> None:
            if journal is self.journal:
                self.poison(error)

        self.io.append(journal, records, self.durable, failed)

    def _write_here(self, journal: Journal, records: list[Record]) -> None:
        try:
            try:
                lsn = self.io.write(journal, records)
            except Exception as error:
                self.is_stirred = True
                self.poison(error)
            else:
                self.durable(lsn)
        except Exception as error:
            self.call_failed(error)

    def durable(self, lsn: int) -> None:
        """All up to there is. No turn follows, unless something has waited for this."""
        if not self.is_open:
            return
        self.frame_in_flight = False
        self.durable_lsn = lsn
        self.uncovered_since_ms = self.host.mono_ms
        self.dues.are_over_by(self.uncovered_since_ms + limits.IDLE_COVER_MS)
        if self.asks or self.submits or self.arrivals.queue or self.checkpointing.awaits_frame:
            self.is_stirred = True
        told = self.notes.release()
        # Before anybody is told: who hears of an end finds what it brought forth on its way.
        outbox = self.core.outbox
        if outbox.windows or outbox.beyond:
            self.handing.step()
        self.host.feed.publish(*told)
        outputs = self.outputs
        while outputs and outputs[0][0] <= lsn:
            _, ask, value = outputs.popleft()
            self._release(ask, value)

    def failed_if(self, _: Any, error: Exception | None) -> None:
        """The end of maintenance whose value nobody needs."""
        if error is not None and not isinstance(error, NoRoom):
            self.poison(error)

    # ------------------------------------------------------------------- poison and recovery

    def poison(self, error: BaseException) -> None:
        """Throws the shard's memory away; what was not decided yet is kept for afterwards."""
        if self.status != OPEN:
            return
        self.status, self.error = RECOVERING, error
        self.host.report(f"shard {self.number:02d} failed and is recovered from its disk", error)
        is_passing = is_out_of_handles(error)
        if not is_passing and not isinstance(error, SubmitInterrupted):
            last, self._failed_at_ms = self._failed_at_ms, self.host.mono_ms
            if last is not None and self.host.mono_ms - last < limits.POISON_WINDOW_MS:
                self.refuse(error)
                return
        self.notes.drop()
        outputs = [ask for _, ask, _ in self.outputs]
        self.outputs.clear()
        deliveries = self._drop_deliveries()
        # What only asked is asked again; what was to change something may have done so.
        again = [ask for ask in outputs if isinstance(ask.asked, Inquiry)]
        held = [ask for ask in outputs if not isinstance(ask.asked, Inquiry)]
        self.asks.extendleft(reversed(again + self._set_aside_asks()))
        starts = self._drop_starts()
        self.host.shard_failed(self)
        self._fail(held + deliveries + starts, error)
        if self.checkpointing.is_sent:
            return
        if is_passing:
            self._recover_later()
        else:
            self.recover()

    def _recover_later(self) -> None:
        self.recover_at_ms = self.host.mono_ms + limits.RECOVERY_RETRY_MS
        self.dues.try_again_at(self.recover_at_ms)

    def recover(self) -> None:
        """From disk, on the I/O thread: after what that and who reads had under way."""
        self.recover_at_ms = None
        self.io.call_behind_reads(lambda: self.host.reopen(self), self._recovered)

    def _recovered(self, opened: OpenShard | None, error: Exception | None) -> None:
        if opened is None and is_out_of_handles(error) and self.status == RECOVERING:
            self._recover_later()
            return
        if opened is None:
            self.refuse(error or RuntimeError("recovery gave nothing"))
            return
        if self.status != RECOVERING:  # refused meanwhile: nobody will use what was opened
            opened.close()
            return
        self.recoveries += 1
        self.install(opened)
        self.host.shard_recovered(self)

    def call_failed(self, error: Exception) -> None:
        """What came back from its threads could not be taken in: its memory may be half changed."""
        if self.status == RECOVERING:
            self.refuse(error)
        else:
            self.poison(error)

    def refuse(self, error: BaseException) -> None:
        """Serves no more: whoever asks is answered with the reason; the other shards go on."""
        self.host.report(f"shard {self.number:02d} is closed", error)
        was_served = self.is_served
        self.status, self.error = REFUSED, error
        asks, held = self._undecided(), list[Ask]()
        if was_served:
            asks += self._set_aside_asks()
            held = [ask for _, ask, _ in self.outputs]
            self.outputs.clear()
        self.host.shard_failed(self)
        self._fail(asks + held, error)

    def refuse_rest(self) -> None:
        """At the end of a stop: whoever still waits gets an answer."""
        asks = self._undecided()
        if hasattr(self, "core"):
            asks += self._set_aside_asks()
            asks += [ask for _, ask, _ in self.outputs]
        for ask in asks:
            self.fail_one(ask, EngineClosed("engine.stop"))

    def _undecided(self) -> list[Ask]:
        """What waits for its turn, taken out."""
        asks = [*self.asks, *self.submits, *self.arrivals.drop()]
        self.asks.clear()
        self.submits.clear()
        return asks

    def _drop_starts(self) -> list[Ask]:
        """Starts that are not decided, taken out: their attempts have lost their places."""
        starts = [ask for ask in self.asks if type(ask.asked) in (Start, StartAlike)]
        for ask in starts:
            self.asks.remove(ask)
        return starts

    def _drop_deliveries(self) -> list[Ask]:
        """Hand-overs that are not decided, taken out: their senders begin again."""
        dropped = self.arrivals.drop()
        aside = [*(self.loading or []), *self.waiting]
        dropped += [ask for ask, _ in aside if type(ask.asked) is Deliver]
        self.loading = None
        self.waiting = [item for item in aside if type(item[0].asked) is not Deliver]
        self.asks.extend(ask for ask in dropped if type(ask.asked) is not Deliver)
        return [ask for ask in dropped if type(ask.asked) is Deliver]

    def _set_aside_asks(self) -> list[Ask]:
        """What waits for the store or for an end, taken out."""
        asks = [ask for ask, _ in self.loading or []] + [ask for ask, _ in self.waiting]
        asks += [ask for listed in self.awaiting.values() for ask in listed]
        self.loading, self.waiting, self.awaiting = None, [], {}
        return asks

    def _fail(self, asks: Iterable[Ask], error: BaseException) -> None:
        failure = self.host.failure(self.number, error)
        for ask in asks:
            self.fail_one(ask, failure)

    def fail_one(self, ask: Ask, failure: BaseException) -> None:
        """Undecided no more. Nobody else is kept from an answer by what this one's asker does."""
        self.host.decided(ask)
        try:
            ask.fail(failure, self.host.wakeups)
        except Exception as error:
            self.callbacks_failed += 1
            self.host.report("handing out an error", error)

    def refusal(self) -> Exception:
        return self.host.failure(self.number, self.error or RuntimeError("the shard is closed"))

    # ------------------------------------------------------------------ what must be read first

    def read(
        self, work: Callable[[], Any], done: Callable[[Any], None], *, is_first: bool = False
    ) -> None:
        """Has something read, `is_first` before all else; what a shard of before was asked is
        dropped, an error refuses."""
        core = self.core

        def finished(got: Any, error: Exception | None) -> None:
            if self.status != OPEN or core is not self.core:
                return
            if error is not None:
                self.refuse(error)
                return
            try:
                done(got)
            except Exception as failure:
                self.poison(failure)

        self.io.read(work, finished, is_first=is_first)

    def load_waiting(self) -> None:
        """Has read what undecided commands must see first."""
        if self.loading is not None or not self.waiting:
            return
        batch = self.loading = self.waiting[: limits.LOAD_CHUNK]
        self.waiting = self.waiting[limits.LOAD_CHUNK :]
        serials = {serial for _, need in batch for serial in need.serials}
        uniques = {name for _, need in batch for name in need.uniques}
        reader = self.reader
        self.read(lambda: reader.load(serials, uniques), self._loaded)

    def _loaded(self, got: Read) -> None:
        batch, self.loading = self.loading or [], None
        self.quarantined |= got.damaged
        if self.is_stale(got.snapshot_commit):
            self.waiting = batch + self.waiting
            return
        for ask, need in batch:
            if type(ask.asked) is Deliver:
                for error in pass_over_damage(need, got):
                    self.host.report("a unique that a child asks for", error)
            damage = got.damage_to(need)
            if damage is not None:
                self.fail_one(ask, self.host.failure(self.number, damage))
            elif self.status == OPEN:
                self.decide_now(ask, got.loaded)
            else:
                self.put(ask)

    def quarantine(self, serial: int) -> None:
        """A row of it is damaged: it is never started, and keeps nobody of its key waiting."""
        self.quarantined.add(serial)
        ticket = self.core.hot.get(serial)
        if ticket is not None:
            self.placement.leave(ticket)

    def is_stale(self, snapshot_commit: int) -> bool:
        """Whether a completion has been processed since what was read."""
        if snapshot_commit < self.core.completed_commit:
            self.dropped_reads += 1
            return True
        self.dropped_reads = 0
        return False

    @property
    def holds_completion(self) -> bool:
        """A read was dropped twice: the next completion waits until it is in."""
        return self.dropped_reads >= limits.REREADS_BEFORE_HOLD or self.placement.hold_completion
