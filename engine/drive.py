"""What makes an open engine go: threads of its own, or whoever asks it something.

The core's passes, each journal's writes and reads, the commits: every part can be stepped. A drive
decides who takes the steps. This one has threads; the testing kit has one that takes them on the
caller's thread, so that a test is over when nothing more can happen (docs/testing.md).
"""

import threading
from collections.abc import Callable, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from typing import TYPE_CHECKING, Any

from parkade.clock import Clock
from parkade.executor import Executor
from parkade.io import Post, Reads, ShardIO
from parkade.links import LinkPort
from parkade.opening import OpenShard
from parkade.shard.commands import Outcome
from parkade.waiters import ThreadWaiter

if TYPE_CHECKING:
    from parkade.runtime import Runtime

__all__ = ["Drive", "open_in_turn"]

OPENING_THREADS_MAX = 8
READERS_MAX = 4  # with two, a crowd's rows keep both busy, and who is due alone waits for them


def open_in_turn(count: int, open_one: Callable[[int], OpenShard]) -> "list[Future[OpenShard]]":
    """`Drive.open_each` without threads: one after the other, here."""
    opening: list[Future[OpenShard]] = []
    for number in range(count):
        future: Future[OpenShard] = Future()
        opening.append(future)
        try:
            future.set_result(open_one(number))
        except Exception as error:
            future.set_exception(error)
    return opening


class Drive:
    """Threads: one for the core, one for each journal, two that commit, and those of handlers."""

    has_threads = True
    advice = ""  # for whoever waited in vain for a result

    def open_each(
        self, count: int, open_one: Callable[[int], OpenShard]
    ) -> "list[Future[OpenShard]]":
        """Opens shards 0 to `count`, all of them; what one raises is in its future."""
        with ThreadPoolExecutor(min(count, OPENING_THREADS_MAX), "parkade-open") as pool:
            return [pool.submit(open_one, number) for number in range(count)]

    def make_io(self, name: str, post: Post) -> ShardIO:
        return ShardIO(name, post)

    def give_readers(self, ios: Sequence[ShardIO]) -> list[Reads]:
        """Who reads for these, and stays out of the way of their frames: new ones, shared. Without
        threads each reads by itself."""
        count = min(READERS_MAX, len(ios)) if self.has_threads else 0
        readers = [Reads(f"parkade-reads-{n}") for n in range(count)]
        for n, io in enumerate(ios):
            io.reads = readers[n % count] if count else None
        return readers

    def make_executor(
        self,
        *,
        thread_count: int,
        deliver: Callable[[list[Outcome]], None],
        clock: Clock,
        entropy: Callable[[], int],
        result_bytes_max: int,
        port: LinkPort,
        **of_processes: Any,
    ) -> Executor:
        """What runs handlers; the arguments are those of `Executor`."""
        return Executor(
            thread_count=thread_count,
            deliver=deliver,
            clock=clock,
            entropy=entropy,
            result_bytes_max=result_bytes_max,
            port=port,
            **of_processes,
        )

    def start(self, runtime: "Runtime") -> None:
        """The shards are open and wired: lets everything go."""
        for worker in runtime.workers:
            worker.start()
        host = runtime.host
        host.lone_frames.is_allowed = host.caller_frames.is_allowed = True
        host.caller_frames.is_patient = True
        host.caller_frames.own_threads.update(worker.ident for worker in runtime.workers)
        host.start()

    def stir(self) -> None:
        """Something was put into the inbox: sees to it that somebody takes it."""

    def wait_for(self, waiter: ThreadWaiter, timeout_s: float | None) -> bool:
        """Whether the waiter has its answer before the time is over (None: for ever)."""
        return waiter.wait(timeout_s)

    def is_alone(self) -> bool:
        """Whether nobody else would bring what this thread waits for: all there is has come."""
        return False

    def wait(self, clock: Clock, event: threading.Event, timeout_ms: int) -> bool:
        """Whether the core sets the event before the time is over."""
        return clock.wait(event, timeout_ms)
