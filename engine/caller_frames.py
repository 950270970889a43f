"""A plain submit that nothing waits for is written by its caller's own thread.

Handing it to the core thread and hearing of it costs two wake-ups and a pass: more than the disk
takes. What has neither name nor near due time depends on nothing that was decided before it, so its
record may be written first and become part of memory afterwards: in the core's next pass, before
anything else of its shard.

Each shard has a pen. Whoever has it writes one frame, with what those who wait for it have brought:
callers of several shards write beside each other, those of one shard together. The core thread's
passes come between: it says that it wants to begin, waits for those who are writing, and until its
pass is over nobody else begins. A shard whose records are not all on disk keeps callers away, so
LSNs are given in order.
"""

import threading
from collections import deque
from collections.abc import Callable
from typing import TYPE_CHECKING

from parkade import limits
from parkade.clock import Clock, stopwatch_us
from parkade.errors import SubmitReentered
from parkade.lone_frames import COMPANY_FRAMES, SlowPause
from parkade.patience import Patience
from parkade.store.errors import StoreError
from parkade.store.record import Submitted, encode_records

if TYPE_CHECKING:
    from parkade.shard_host import ShardHost

__all__ = ["CallerFrames", "Line", "Pen", "SubmitInterrupted", "Written"]

NEAR_MS = limits.WAIT_MS_MAX + 1_000
"""What is due sooner is the core's: it starts with the frame of its submit, or soon after."""

# Of a shard, until whoever comes next asks the core, which takes all of it in; at half of it the
# core is woken.
WRITTEN_MAX = 512
WRITTEN_BYTES_MAX = 524_288

FRAME_RECORDS_MAX = 64
PASS_WAIT_S = 0.005  # for the end of a pass, so many times, before the core is asked
PASS_WAITS_MAX = 2


class SubmitInterrupted(Exception):
    """What a shard's journal has, only its disk knows."""

    def __init__(self) -> None:
        super().__init__("a signal ended a submit while it wrote to the journal")


class Line:
    """A draft that its caller waits with, until whoever has the pen has written it."""

    __slots__ = ("draft", "error", "is_over")

    def __init__(self, draft: Submitted) -> None:
        self.draft = draft
        self.is_over = False
        self.error: StoreError | None = None

    def end(self, error: StoreError | None = None) -> None:
        """It is durable, or that is not known."""
        self.error = error
        self.is_over = True


class Pen:
    """Of one shard. `lines`: what waits to be written with it. `written`: how many records were."""

    __slots__ = ("lines", "lock", "written")

    def __init__(self) -> None:
        self.lock = threading.Lock()
        self.lines: dict[Line, None] = {}
        self.written = 0

    def take_lines(self) -> list[Line]:
        """For one frame: those that have waited longest."""
        taken = list(self.lines)[:FRAME_RECORDS_MAX]
        for line in taken:
            self.lines.pop(line, None)
        return taken

    def put_back(self, lines: list[Line]) -> None:
        self.lines.update(dict.fromkeys(lines))


class Written:
    """Of one shard: what callers have written, until it becomes part of memory."""

    __slots__ = ("_bytes", "_drafts", "_error", "_is_begun", "_is_free", "_shard")

    def __init__(self, shard: "ShardHost") -> None:
        self._shard = shard
        self._is_free = False  # until the next pass, but for its room
        self._drafts: list[Submitted] = []
        self._bytes = 0
        self._is_begun = False
        self._error: Exception | None = None

    def __len__(self) -> int:
        return len(self._drafts)

    # ----------------------------------------------------------- whoever has the pen

    @property
    def is_half_full(self) -> bool:
        """Whether the core is to take it in before whoever comes has to ask for that."""
        return 2 * len(self._drafts) >= WRITTEN_MAX or 2 * self._bytes >= WRITTEN_BYTES_MAX

    def takes(self, records: int, body_bytes: int) -> bool:
        """Whether the next records may be callers': all before them are on disk, nobody else is at
        the journal, and there is room for them where the journal stands."""
        return (
            len(self._drafts) + records <= WRITTEN_MAX
            and self._bytes + body_bytes <= WRITTEN_BYTES_MAX
            and self._shard.journal.has_place(body_bytes)
            and (self._is_free or self._look())
        )

    def _look(self) -> bool:
        """Looks at what only a pass changes, where the journal has a spare: until the next one all
        of it is known."""
        shard = self._shard
        journal = shard.journal
        is_free = (
            not shard.frame_in_flight
            and not shard.records
            and not self._is_begun
            and shard.io.is_idle
            and shard.room.is_there
            and shard.core.has_room
            and shard.host.has_changed_room()
            and journal.has_room()
        )
        self._is_free = is_free and journal.has_spare
        return is_free

    def write(self, drafts: list[Submitted], body: bytes) -> None:
        """They are durable when it returns. Raises `StoreError`, and what a signal raises."""
        shard = self._shard
        self._is_begun, is_free, self._is_free = True, self._is_free, False
        began_us = stopwatch_us()
        try:
            shard.journal.append(body, len(drafts))
        except StoreError as error:
            _raise_handlers(error)
            self._error = error
            raise
        shard.io.latencies.add(stopwatch_us() - began_us)
        self._drafts += drafts
        self._bytes += len(body)
        self._is_begun, self._is_free = False, is_free

    # ---------------------------------------------------------------- the core thread

    def take_in(self) -> None:
        """All of it becomes part of memory, and is told of."""
        self._is_free = False
        if self._shard.written is not self or not self._shard.is_open:
            return  # its memory was thrown away, and the journal is read anew
        if self._drafts:
            try:
                self._apply()
            except Exception as error:
                self._shard.poison(error)
        if self._is_begun and self._shard.is_open:
            self._shard.poison(self._error or SubmitInterrupted())

    def _apply(self) -> None:
        shard = self._shard
        drafts, self._drafts, self._bytes = self._drafts, [], 0
        shard.core.apply_submits(drafts)
        shard.notes.note_submits(drafts)
        shard.notes.send()
        shard.is_stirred = True
        shard.durable(shard.core.lsn)
        if any(draft.due_ms <= shard.host.now_ms for draft in drafts):
            shard.read_ahead.fire()  # whoever asks in this pass finds them ready


def _raise_handlers(error: StoreError) -> None:
    """What a signal handler has raised, if the journal took that for its disk's: a `TimeoutError`
    is an OSError as well, but one that no call of the system gave."""
    cause = error.__cause__
    if isinstance(cause, OSError) and cause.errno is None:
        raise cause


class CallerFrames:
    """`write` is for any thread, the rest for the core's. `is_allowed`: by who steps the engine;
    `is_patient`: passes end while a caller waits. `is_called`: whether anybody waits for the core
    thread, beside so many who could not write; `is_heard`: whether anybody hears of what happens;
    `wake` has it begin a pass."""

    def __init__(
        self,
        clock: Clock,
        wake: Callable[[], None],
        *,
        is_called: Callable[[int], bool],
        is_heard: Callable[[], bool],
    ) -> None:
        self.is_allowed = False
        self.is_patient = False
        self.runs_tickets = True
        self.near_ms = NEAR_MS
        self.own_threads: set[int | None] = set()  # of the core, the journals and the commits
        self._begun: dict[Written, None] = {}  # what the core thread has not taken in, in order
        self._clock = clock
        self._is_called = is_called
        self._is_heard = is_heard
        self._wake = wake
        self._writing: dict[int, Pen] = {}  # by thread: whoever has a pen, or is about to let go
        self._is_core_in = False  # its pass is under way, or waits for those who are writing
        self._waiting: deque[threading.Lock] = deque()  # until the end of a pass
        self._patience = Patience()
        self._sent_on = 0  # to the core, since it last took in what was written
        self._frames_to_leave = 0
        self._pause = SlowPause()

    # --------------------------------------------------------------------------- any thread

    def write(self, shard: "ShardHost", draft: Submitted) -> bool:
        """Whether it is durable; else the core thread is to be asked. Raises what the application
        is to hear of a disk that failed, and `SubmitReentered`."""
        self.check(f"{draft.task}.submit")  # whoever writes it, its thread would wait
        if not self.is_allowed or draft.unique is not None:
            return False
        if draft.due_ms - draft.at_ms < self.near_ms and self.runs_tickets:
            return False
        if self._is_left_to_core():
            self._sent_on += 1
            return False
        line = Line(draft)
        is_written = self._write_between_passes(shard, line)
        if is_written is None and self.is_patient and self._patience.takes():
            for _ in range(PASS_WAITS_MAX):
                self._await_pass(shard)
                is_written = self._write_between_passes(shard, line)
                if is_written is not None:
                    break
            (self._patience.reward if is_written else self._patience.disappoint)()
        if not is_written:
            self._sent_on += 1
            return False
        if self._is_heard() or shard.written.is_half_full:
            self._wake()
        return True

    def check(self, call: str) -> None:
        """Raises `SubmitReentered` where a thread would wait for itself: one that is in the midst
        of a write, for which the core thread waits, and those of the engine, on which a finalizer
        may be called like on any other."""
        thread = threading.get_ident()
        if thread in self._writing or thread in self.own_threads:
            raise SubmitReentered(call)

    def _is_left_to_core(self) -> bool:
        if self._frames_to_leave > 0:
            self._frames_to_leave -= 1
            return True
        until_ms = self._pause.until_ms
        return until_ms > 0 and self._clock.monotonic_ms() < until_ms

    def _write_between_passes(self, shard: "ShardHost", line: Line) -> bool | None:
        """Whether it is written, by this thread or by one that had the pen before; None: not before
        a pass is over."""
        if self._is_under_way(shard):
            return None
        pen, thread = shard.pen, threading.get_ident()
        is_written: bool | None = True
        pen.lines[line] = None
        try:
            # A signal cannot leave a lock's own `with` and the lock held, nor come before the next.
            with pen.lock:
                self._writing[thread] = pen
                try:
                    while is_written and not line.is_over:
                        is_written = self._write_lines(shard, line)
                finally:
                    pen.lines.pop(line, None)  # whoever has the pen next must not write it
                    del self._writing[thread]
        except BaseException:
            pen.lines.pop(line, None)
            self._wake()
            raise
        if line.error is not None:
            raise shard.host.failure(shard.number, line.error) from line.error
        return is_written

    def _write_lines(self, shard: "ShardHost", own: Line) -> bool | None:
        """Writes those that wait, in one frame."""
        if self._is_under_way(shard):  # in this order: it looks afterwards at who writes
            return None
        pen = shard.pen
        if own not in pen.lines:  # a signal ended whoever had taken it
            raise shard.host.failure(shard.number, SubmitInterrupted())
        lines = pen.take_lines()
        drafts = [line.draft for line in lines]
        body = encode_records(drafts)
        if not self._is_free(shard, len(drafts), len(body)):
            pen.put_back(lines)
            return False
        try:
            self._write(shard.written, drafts, body)
        except StoreError as error:
            self._wake()
            for line in lines:
                line.end(error)
            return True
        for line in lines:
            line.end()
        pen.written += len(lines)
        return True

    def _is_under_way(self, shard: "ShardHost") -> bool:
        """Whether the core thread has a pass, or this shard records that it has not heard of."""
        return self._is_core_in or (shard.is_open and shard.frame_in_flight)

    def _await_pass(self, shard: "ShardHost") -> None:
        """Blocks until the end of a pass, for a moment at most."""
        gate = threading.Lock()
        gate.acquire()
        self._waiting.append(gate)  # in this order: the end of a pass finds it, or is seen
        if self._is_under_way(shard):
            gate.acquire(timeout=PASS_WAIT_S)

    def _is_free(self, shard: "ShardHost", records: int, body_bytes: int) -> bool:
        if not self.is_allowed or not shard.is_open:
            return False
        written = shard.written
        self._begun[written] = None  # it keeps what it finds until it is taken in
        return written.takes(records, body_bytes)

    def _write(self, written: Written, drafts: list[Submitted], body: bytes) -> None:
        began_ms = self._clock.monotonic_ms()
        written.write(drafts, body)
        self._pause.note(began_ms, self._clock.monotonic_ms())
        if self._is_called(self._sent_on):
            self._frames_to_leave = COMPANY_FRAMES

    # ---------------------------------------------------------------------- the core thread

    def shut_door(self) -> None:
        """A pass begins; callers who write now are waited for."""
        if not self.is_allowed:
            return
        self._is_core_in = True  # in this order: who begins to write looks at it afterwards
        for pen in tuple(self._writing.values()):
            with pen.lock:
                pass

    def take_in(self) -> None:
        """First thing in a pass: what callers have written becomes part of memory."""
        self._sent_on = 0
        if self._begun:
            begun, self._begun = self._begun, {}
            for written in begun:
                written.take_in()

    def open_door(self) -> None:
        """It is over."""
        self._is_core_in = False
        waiting = self._waiting
        while waiting:
            waiting.popleft().release()

    def end(self) -> None:
        """There are no more passes, and nobody else writes from now on."""
        self.shut_door()
        self.is_allowed = False
        self.own_threads.clear()
        self.open_door()
