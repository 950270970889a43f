"""A plain submit that nothing waits for is written by its caller's own thread.

Handing it to the core thread and hearing of it costs two wake-ups and a pass: more than the disk
takes. What has neither name nor near due time depends on nothing that was decided before it, so its
record may be written first and become part of memory afterwards: in the core's next pass, before
anything else of its shard.

Each shard has a pen. Whoever has it writes one frame, with what all others of that shard have
brought: callers of several shards write beside each other, those of one shard together. Where there
are many, all that may go anywhere go to one shard for a while: large frames cost each of them less
of the interpreter. The core thread's passes come between: it says that it wants to begin, waits for
those who are writing, and until its pass is over nobody else begins. A shard whose records are not
all on disk keeps callers away, so LSNs are given in order.
"""

import threading
from collections import deque
from collections.abc import Callable
from typing import TYPE_CHECKING

from parkade import limits
from parkade.clock import Clock, stopwatch_ns
from parkade.core_locks import CoreLocks
from parkade.errors import SubmitReentered
from parkade.lone_frames import COMPANY_FRAMES, COMPANY_MS, SlowPause
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

FRAME_RECORDS_MAX, FRAME_BYTES_MAX = 64, WRITTEN_BYTES_MAX // 4
PASS_WAIT_S = 0.005  # for the end of a pass, so many times, before the core is asked
PASS_WAITS_MAX = 2

CROWD_RECORDS_MIN = 4  # of a frame: whoever comes next and has no key goes the same way
CROWD_RECORDS_MAX = 256  # to one shard, then to another


class SubmitInterrupted(Exception):
    """What a shard's journal has, only its disk knows."""

    def __init__(self) -> None:
        super().__init__("a submit was interrupted while it wrote to the journal")


class Line:
    """A draft that its caller waits with, until whoever has the pen has seen to it. `is_written`:
    None while it waits; False: the core thread is to be asked."""

    __slots__ = ("draft", "error", "is_written")

    def __init__(self, draft: Submitted) -> None:
        self.draft = draft
        self.is_written: bool | None = None
        self.error: Exception | None = None


class Pen:
    """Of one shard. `lines`: what waits to be written with it. `written`: how many records were.

    `gate`: held by the first of those who want the next frame, until he has written it; the others
    wait there, one wakes the next, and the pen is free meanwhile. While many write with it, `part`
    is which those take who may go anywhere, `crowd_left` how many more of them, and `size` that of
    the last frame, or of a larger one some frames ago.

    `frame`: the lines that a write has begun with and that do not know what came of it, which is
    `error` where they are not `is_durable`; without one a signal ended who wrote, and only the disk
    knows. A signal may end whoever has the pen between any two steps: the next one goes on from
    what is here.
    """

    __slots__ = (
        "crowd_left", "error", "frame", "gate", "is_durable", "lines", "lock", "part", "size",
        "written",
    )  # fmt: skip

    def __init__(self) -> None:
        self.lock = threading.Lock()
        self.gate: threading.Lock | None = None
        self.part = self.crowd_left = self.size = 0
        self.lines: dict[Line, None] = {}
        self.frame: list[Line] = []
        self.is_durable = False
        self.error: Exception | None = None
        self.written = 0

    def next_lines(self) -> list[Line]:
        """For one frame: those that have waited longest, be it one that is larger than its
        bound."""
        lines = list(self.lines)
        if len(lines) == 1:
            return lines
        del lines[FRAME_RECORDS_MAX:]
        total = 0
        for place, line in enumerate(lines):
            total += len(line.draft.payload)
            if total > FRAME_BYTES_MAX and place:
                return lines[:place]
        return lines

    def tell(self) -> None:
        """Those of the frame hear what came of it, once more where a signal ended that."""
        error = None if self.is_durable else self.error or SubmitInterrupted()
        for line in self.frame:
            self.lines.pop(line, None)
            line.error = error
            line.is_written = True
        self.frame = []

    def leave(self, lines: list[Line]) -> None:
        """To the core thread."""
        for line in lines:
            self.lines.pop(line, None)
            line.is_written = False


class Written:
    """Of one shard: what callers have written, until it becomes part of memory."""

    __slots__ = (
        "_bytes", "_drafts", "_error", "_is_begun", "_is_free", "_shard", "is_half_full",
    )  # fmt: skip

    def __init__(self, shard: "ShardHost") -> None:
        self._shard = shard
        self.is_half_full = False  # the core is to take it in before anybody has to ask for that
        self._is_free = False  # until the next pass, but for its room
        self._drafts: list[Submitted] = []
        self._bytes = 0
        self._is_begun = False
        self._error: Exception | None = None

    def __len__(self) -> int:
        return len(self._drafts)

    # ----------------------------------------------------------- whoever has the pen

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

    def write(self, lines: list[Line], drafts: list[Submitted], body: bytes) -> None:
        """The drafts of the lines: they are durable when it returns. Raises `StoreError`, and what
        a signal raises."""
        shard, pen, count, size = self._shard, self._shard.pen, len(drafts), len(body)
        began_ns = stopwatch_ns()
        is_free = self._is_free
        # No signal comes in between the values of one assignment.
        pen.is_durable, pen.error, self._is_free, self._is_begun, pen.frame = (
            False, None, False, True, lines,
        )  # fmt: skip
        try:
            shard.journal.append(body, count)
        except StoreError as error:
            _raise_handlers(error)
            self._error = pen.error = error
            raise
        self._drafts += drafts
        self._bytes += size
        self.is_half_full = (
            2 * len(self._drafts) >= WRITTEN_MAX or 2 * self._bytes >= WRITTEN_BYTES_MAX
        )
        pen.written += count
        self._is_begun, self._is_free, pen.is_durable = False, is_free, True
        shard.io.latencies.add((stopwatch_ns() - began_ns) // 1_000)

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
        drafts, self._drafts, self._bytes, self.is_half_full = self._drafts, [], 0, False
        shard.core.apply_submits(drafts)
        shard.notes.note_submits(drafts)
        shard.notes.send()
        shard.is_stirred = True
        shard.durable(shard.core.lsn)
        if min([draft.due_ms for draft in drafts]) <= shard.host.now_ms:
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
        self.core_locks = CoreLocks()
        self._begun: dict[Written, None] = {}  # what the core thread has not taken in, in order
        self._clock = clock
        self._is_called = is_called
        self._is_heard = is_heard
        self._wake = wake
        self._writing: dict[int, Pen] = {}  # by thread: whoever has a pen, or is about to let go
        self._is_core_in = False  # its pass is under way, or waits for those who are writing
        self._waiting: deque[threading.Lock] = deque()  # until the end of a pass
        self._crowd: Pen | None = None  # where many write together
        self._patience = Patience()
        self._sent_on = 0  # to the core, since it last took in what was written
        self._frames_to_leave = 0
        self._pause = SlowPause()

    # --------------------------------------------------------------------------- any thread

    def write(self, shard: "ShardHost", draft: Submitted) -> bool:
        """Whether it is durable; else the core thread is to be asked. Raises what the application
        is to hear of a disk that failed, and `SubmitReentered`."""
        thread = threading.get_ident()
        if thread in self._writing or thread in self.own_threads:
            raise SubmitReentered(f"{draft.task}.submit")
        if not self.is_allowed or draft.unique is not None:
            return False
        if draft.due_ms - draft.at_ms < self.near_ms and self.runs_tickets:
            return False
        if (self._frames_to_leave or self._pause.until_ms) and self._is_left_to_core():
            self._sent_on += 1
            return False
        line = Line(draft)
        is_written = self._write_between_passes(shard, line, thread)
        if is_written is None and self.is_patient and self._patience.takes():
            for _ in range(PASS_WAITS_MAX):
                self._await_pass(shard)
                is_written = self._write_between_passes(shard, line, thread)
                if is_written is not None:
                    break
            (self._patience.reward if is_written else self._patience.disappoint)()
        if not is_written:
            self._sent_on += 1
            return False
        if self._is_heard() or shard.written.is_half_full:
            self._wake()
        return True

    @property
    def crowd_part(self) -> int | None:
        """The part for whatever may go anywhere, so that many write one frame; None: its own."""
        crowd = self._crowd
        return None if crowd is None else crowd.part

    def check(self, call: str) -> None:
        """Raises `SubmitReentered` where a thread would wait for itself: one that is in the midst
        of a write, for which the core thread waits, or has a lock that the core thread wants, and
        those of the engine, on which a finalizer may be called like on any other."""
        thread = threading.get_ident()
        if thread in self._writing or thread in self.own_threads or self.core_locks.has_any():
            raise SubmitReentered(call)

    def _is_left_to_core(self) -> bool:
        if self._frames_to_leave > 0:
            self._frames_to_leave -= 1
            return True
        until_ms = self._pause.until_ms
        return until_ms > 0 and self._clock.monotonic_ms() < until_ms

    def _write_between_passes(self, shard: "ShardHost", line: Line, thread: int) -> bool | None:
        """Whether it is written, by this thread or by one that had the pen before; None: not before
        a pass is over."""
        if self._is_core_in:
            return None
        pen = shard.pen
        pen.lines[line] = None  # in this order: who opens the gate takes the lines afterwards
        try:
            gate = pen.gate or threading.Lock()
            # A signal cannot leave a lock's own `with` and the lock held, nor come before the next
            # (on 3.14 it can: docs/guide.md, Deploying).
            with gate:
                self._writing[thread] = pen
                try:
                    if line.is_written is None:
                        self._write_first(shard, line, gate)
                finally:
                    del self._writing[thread]  # first of all: a signal may end what is here
        except BaseException:
            pen.lines.pop(line, None)
            self._wake()
            raise
        if line.error is not None:
            raise shard.host.failure(shard.number, line.error) from line.error
        return line.is_written

    def _write_first(self, shard: "ShardHost", own: Line, gate: threading.Lock) -> None:
        """Of those at this gate; whoever comes once the pen is here waits at another."""
        pen = shard.pen
        pen.gate = pen.gate or gate
        with pen.lock:
            if pen.gate is gate:
                pen.gate = None
            self._write_until_seen_to(shard, own)

    def _write_until_seen_to(self, shard: "ShardHost", own: Line) -> None:
        pen = shard.pen
        try:
            if pen.frame:  # a signal ended whoever had it
                pen.tell()
            # In this order: it looks at whether a pass begins after it has said that it writes.
            while own.is_written is None and not self._is_under_way(shard):
                self._write_frame(shard)
        finally:
            if own.is_written is None:
                pen.lines.pop(own, None)  # whoever has the pen next must not write it

    def _write_frame(self, shard: "ShardHost") -> None:
        """Of what waits; what does not fit is the core thread's, all of it."""
        pen = shard.pen
        lines = pen.next_lines()
        drafts = [line.draft for line in lines]
        body = encode_records(drafts)
        if not self.is_allowed or not shard.is_open:
            pen.leave(lines)
            return
        written = shard.written
        self._begun[written] = None  # it keeps what it finds until it is taken in
        if not written.takes(len(drafts), len(body)):
            pen.leave(lines)
            return
        if self._crowd is not None or len(lines) >= CROWD_RECORDS_MIN:
            self._look_for_crowd(pen, lines)
        began_ms = self._clock.monotonic_ms()
        try:
            written.write(lines, drafts, body)
        except StoreError:
            self._wake()
        pen.tell()
        ended_ms = self._clock.monotonic_ms()
        self._pause.note(began_ms, ended_ms)
        if ended_ms - began_ms >= COMPANY_MS and self._is_called(self._sent_on):
            self._frames_to_leave = COMPANY_FRAMES

    def _look_for_crowd(self, pen: Pen, lines: list[Line]) -> None:
        """Whether those who come next go the way of these."""
        count = len(lines)
        if self._crowd is pen:
            pen.crowd_left -= count
            pen.size = max(count, pen.size - 1)
            if pen.size < CROWD_RECORDS_MIN or pen.crowd_left <= 0:
                self._crowd = None
        elif self._crowd is None and count >= CROWD_RECORDS_MIN:
            pen.part, pen.crowd_left, pen.size = lines[0].draft.part, CROWD_RECORDS_MAX, count
            self._crowd = pen

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

    # ---------------------------------------------------------------------- the core thread

    def shut_door(self) -> None:
        """A pass begins; callers who write now are waited for."""
        if not self.is_allowed:
            return
        self._is_core_in = True  # in this order: who begins to write looks at it afterwards
        if not self._writing:
            return
        for pen in list(self._writing.values()):  # a tuple might collect garbage meanwhile
            with pen.lock:
                pass

    def take_in(self) -> None:
        """First thing in a pass: what callers have written becomes part of memory."""
        self._sent_on = 0
        self._crowd = None  # it may be over, and what is the core's is to be spread
        if self._begun:
            begun, self._begun = self._begun, {}
            for written in begun:
                written.take_in()

    def open_door(self) -> None:
        """It is over."""
        self._is_core_in = False
        waiting = self._waiting
        if waiting:
            for _ in range(len(waiting)):  # who comes back meanwhile waits for the next one
                waiting.popleft().release()

    def end(self) -> None:
        """There are no more passes, and nobody else writes from now on."""
        self.shut_door()
        self.is_allowed = False
        self.own_threads.clear()
        self.open_door()
