"""The threads that touch the disk for a shard: one writes frames, one reads, one commits.

No frame waits for a read: a slice that takes 2 ms of the processor takes fifty where many threads
want the interpreter, which LMDB gives away with every row. Whatever was done comes back to the core
thread as a call (`Post`). All kinds of worker can be stepped by hand (`run_one`), which is how the
simulation orders them; there the one that writes frames reads as well, frames first.
"""

import queue
import threading
from collections import deque
from collections.abc import Callable, Sequence
from typing import Any, Protocol, TypeVar

from parkade.clock import stopwatch_ns
from parkade.latencies import Latencies
from parkade.store.errors import NoRoom
from parkade.store.record import Record, encode_records

__all__ = ["FrameJournal", "Post", "Reads", "ShardIO", "Writer"]

T = TypeVar("T")
Post = Callable[..., None]  # post(function, *arguments): to be called on the core thread


class FrameJournal(Protocol):
    """What the frame writer needs of a journal."""

    def append(self, body: bytes, count: int) -> int: ...
    def prepare_spare(self, body_bytes: int) -> None: ...


class _Worker:
    """Takes one piece of work after another; a token in the queue stands for each piece."""

    def __init__(self, name: str) -> None:
        self.name = name
        self._tokens: queue.SimpleQueue[bool] = queue.SimpleQueue()
        self._thread: threading.Thread | None = None

    def start(self) -> None:
        self._thread = threading.Thread(target=self._run, name=self.name, daemon=True)
        self._thread.start()

    @property
    def ident(self) -> int | None:
        """Of its thread; None: it has none."""
        return None if self._thread is None else self._thread.ident

    def _run(self) -> None:
        while self._tokens.get():
            self.run_one()

    def run_one(self) -> bool:
        raise NotImplementedError

    def _nudge(self) -> None:
        self._tokens.put(True)

    def close(self) -> None:
        """Ends the thread after what is queued; returns when it has ended."""
        self._tokens.put(False)
        thread, self._thread = self._thread, None
        if thread is not None and thread is not threading.current_thread():
            thread.join()


class _Call:
    """A read, or maintenance: `done` gets the value or the error, on the core thread."""

    __slots__ = ("done", "work")

    def __init__(
        self, work: Callable[[], Any], done: Callable[[Any, Exception | None], None]
    ) -> None:
        self.work = work
        self.done = done

    def run(self, post: Post) -> None:
        try:
            value = self.work()
        except Exception as error:
            post(self.done, None, error)
        else:
            post(self.done, value, None)


class Reads(_Worker):
    """Reads of several shards, in order, but for those that go first."""

    def __init__(self, name: str) -> None:
        super().__init__(name)
        self._reads: deque[Callable[[], None]] = deque()

    def put(self, read: Callable[[], None], *, is_first: bool = False) -> None:
        """`read` says by itself whom it tells."""
        (self._reads.appendleft if is_first else self._reads.append)(read)
        self._nudge()

    def run_one(self) -> bool:
        if not self._reads:
            return False
        self._reads.popleft()()
        return True


class ShardIO(_Worker):
    """Frames first, then calls in order, but for those that go first. Not a lock in sight: the core
    thread hands over, the worker takes; `deque` and `SimpleQueue` are all they share. `reads`: who
    reads; None: this one."""

    def __init__(self, name: str, post: Post) -> None:
        super().__init__(name)
        self._post = post
        self.reads: Reads | None = None
        self.latencies = Latencies()
        self._frames: deque[tuple[FrameJournal, Sequence[Record], Any, Any]] = deque()
        self._calls: deque[_Call] = deque()
        self._handed = 0  # pieces of work: counted by the core thread alone
        self._ended = 0  # by the worker alone

    @property
    def is_idle(self) -> bool:
        """Whether nothing is queued nor under way. The core thread's question."""
        return self._handed == self._ended

    def append(
        self,
        journal: FrameJournal,
        records: Sequence[Record],
        on_durable: Callable[[int], None],
        on_failed: Callable[[Exception], None],
    ) -> None:
        """Writes one frame; `on_durable(last LSN)` or `on_failed(error)` on the core thread."""
        self._frames.append((journal, records, on_durable, on_failed))
        self._handed += 1
        self._nudge()

    def write(self, journal: FrameJournal, records: Sequence[Record]) -> int:
        """Writes one frame on the thread that calls, this one's own or the core's while it is idle;
        its last LSN. Raises what the journal raises."""
        body = encode_records(records)
        began_ns = stopwatch_ns()
        try:
            last_lsn = journal.append(body, len(records))
        except NoRoom:
            # Larger than was reckoned, and nothing of it is written: there may be room yet.
            journal.prepare_spare(len(body))
            last_lsn = journal.append(body, len(records))
        self.latencies.add((stopwatch_ns() - began_ns) // 1_000)
        return last_lsn

    def call(
        self,
        work: Callable[[], T],
        done: Callable[[T, Exception | None], None],
        *,
        is_first: bool = False,
    ) -> None:
        """Does `work`; `done` gets the value or the error on the core thread. `is_first`: before
        all other calls that wait."""
        put = self._calls.appendleft if is_first else self._calls.append
        put(_Call(work, done))
        self._handed += 1
        self._nudge()

    def read(
        self,
        work: Callable[[], T],
        done: Callable[[T, Exception | None], None],
        *,
        is_first: bool = False,
    ) -> None:
        """`call` of what only reads the store."""
        if self.reads is None:
            self.call(work, done, is_first=is_first)
        else:
            call = _Call(work, done)
            self.reads.put(lambda: call.run(self._post), is_first=is_first)

    def call_behind_reads(
        self, work: Callable[[], T], done: Callable[[T, Exception | None], None]
    ) -> None:
        """`call`, once all reads are over that were asked for before."""
        if self.reads is None:
            self.call(work, done)
            return
        self._handed += 1

        def follow() -> None:
            self._calls.append(_Call(work, done))
            self._nudge()

        self.reads.put(follow)

    def run_one(self) -> bool:
        """One piece of work; False when there was none."""
        has_worked = self._run_one()
        self._ended += has_worked
        return has_worked

    def _run_one(self) -> bool:
        if self._frames:
            self._append(*self._frames.popleft())
        elif self._calls:
            self._calls.popleft().run(self._post)
        else:
            return False
        return True

    def _append(
        self,
        journal: FrameJournal,
        records: Sequence[Record],
        on_durable: Callable[[int], None],
        on_failed: Callable[[Exception], None],
    ) -> None:
        try:
            last_lsn = self.write(journal, records)
        except Exception as error:
            self._post(on_failed, error)
        else:
            self._post(on_durable, last_lsn)


class Writer(_Worker):
    """Commits checkpoints, one at a time, of any shard."""

    def __init__(self, name: str, post: Post) -> None:
        super().__init__(name)
        self._post = post
        self._commits: deque[_Call] = deque()

    def commit(self, work: Callable[[], T], done: Callable[[T, Exception | None], None]) -> None:
        self._commits.append(_Call(work, done))
        self._nudge()

    def run_one(self) -> bool:
        if not self._commits:
            return False
        self._commits.popleft().run(self._post)
        return True
