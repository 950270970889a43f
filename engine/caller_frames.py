"""A plain submit that nothing waits for is written by its caller's own thread.

Handing it to the core thread and hearing of it costs two wake-ups and a pass: more than the disk
takes. What has neither name nor near due time depends on nothing that was decided before it, so its
record may be written first and become part of memory afterwards: in the core's next pass, before
anything else of its shard.

Whoever has the pen may write: the core thread has it during its passes, a caller for one frame. A
shard whose records are not all on disk keeps callers away, so LSNs are given in order.
"""

import threading
from collections.abc import Callable
from typing import TYPE_CHECKING

from parkade import limits
from parkade.clock import Clock, stopwatch_us
from parkade.errors import SubmitReentered
from parkade.lone_frames import COMPANY_FRAMES, SlowPause
from parkade.store.errors import StoreError
from parkade.store.record import Submitted, encode_records

if TYPE_CHECKING:
    from parkade.shard_host import ShardHost

__all__ = ["CallerFrames", "SubmitInterrupted", "Written"]

NEAR_MS = limits.WAIT_MS_MAX + 1_000
"""What is due sooner is the core's: it starts with the frame of its submit, or soon after."""

# Of a shard, until whoever comes next asks the core, which takes all of it in.
WRITTEN_MAX = 256
WRITTEN_BYTES_MAX = 262_144


class SubmitInterrupted(Exception):
    """What a shard's journal has, only its disk knows."""

    def __init__(self) -> None:
        super().__init__("a signal ended a submit while it wrote to the journal")


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

    def takes(self, body_bytes: int) -> bool:
        """Whether the next record may be a caller's: all before it are on disk, nobody else is at
        the journal, and there is room for it where the journal stands."""
        return (
            len(self._drafts) < WRITTEN_MAX
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

    def write(self, draft: Submitted, body: bytes) -> None:
        """Durable when it returns. Raises what the application is to hear of a disk that failed."""
        shard = self._shard
        self._is_begun, is_free, self._is_free = True, self._is_free, False
        began_us = stopwatch_us()
        try:
            shard.journal.append(body, 1)
        except StoreError as error:
            _raise_handlers(error)
            self._error = error
            raise shard.host.failure(shard.number, error) from error
        shard.io.latencies.add(stopwatch_us() - began_us)
        self._drafts.append(draft)
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
    """`write` is for any thread, the rest for the core's. `is_allowed`: by who steps the engine.
    `is_called`: whether anybody waits for the core thread; `is_heard`: whether anybody hears of
    what happens; `wake` has it begin a pass."""

    def __init__(
        self,
        clock: Clock,
        wake: Callable[[], None],
        *,
        is_called: Callable[[], bool],
        is_heard: Callable[[], bool],
    ) -> None:
        self.is_allowed = False
        self.runs_tickets = True
        self.near_ms = NEAR_MS
        self.own_threads: set[int | None] = set()  # of the core, the journals and the commits
        self._begun: dict[Written, None] = {}  # what the core thread has not taken in, in order
        self.written = 0
        self._clock = clock
        self._is_called = is_called
        self._is_heard = is_heard
        self._wake = wake
        self._pen = threading.Lock()
        self._holder: int | None = None
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
        if self._pen.locked():
            return False
        body = encode_records([draft])
        thread = threading.get_ident()
        # A signal cannot leave a lock's own `with` and the lock held, nor come before the next.
        with self._pen:
            self._holder = thread
            try:
                if not self._is_free(shard, len(body)):
                    return False
                self._write(shard.written, draft, body)
            except BaseException:
                self._wake()
                raise
            finally:
                self._holder = None
        if self._is_heard():
            self._wake()
        return True

    def check(self, call: str) -> None:
        """Raises `SubmitReentered` where a thread would wait for itself: one that is in the midst
        of a write, for which the core thread waits, and those of the engine, on which a finalizer
        may be called like on any other."""
        thread = threading.get_ident()
        if self._holder == thread or thread in self.own_threads:
            raise SubmitReentered(call)

    def _is_free(self, shard: "ShardHost", body_bytes: int) -> bool:
        if self._frames_to_leave:
            self._frames_to_leave -= 1
            return False
        until_ms = self._pause.until_ms
        if until_ms and self._clock.monotonic_ms() < until_ms:
            return False
        if not self.is_allowed or not shard.is_open:
            return False
        written = shard.written
        self._begun[written] = None  # it keeps what it finds until it is taken in
        return written.takes(body_bytes)

    def _write(self, written: Written, draft: Submitted, body: bytes) -> None:
        began_ms = self._clock.monotonic_ms()
        written.write(draft, body)
        self._pause.note(began_ms, self._clock.monotonic_ms())
        self.written += 1
        if self._is_called():
            self._frames_to_leave = COMPANY_FRAMES

    # ---------------------------------------------------------------------- the core thread

    def take_pen(self) -> None:
        """A pass begins; a caller who writes now is waited for."""
        if self.is_allowed:
            self._pen.acquire()

    def take_in(self) -> None:
        """First thing in a pass: what callers have written becomes part of memory."""
        if self._begun:
            begun, self._begun = self._begun, {}
            for written in begun:
                written.take_in()

    def give_pen(self) -> None:
        """It is over."""
        if self.is_allowed:
            self._pen.release()

    def end(self) -> None:
        """There are no more passes, and nobody else writes from now on."""
        with self._pen:
            self.is_allowed = False
            self.own_threads.clear()
