"""What an engine was constructed with, as its runtime needs it."""

import os
from collections.abc import Callable

from parkade.callbacks import Listener
from parkade.drive import Drive
from parkade.keeping import Keeping
from parkade.policies import RetryPolicy
from parkade.store.disk import Disk, RealDisk
from parkade.store.journal import Sizing
from parkade.store.parked import Parked
from parkade.tasks import Tasks

__all__ = ["RuntimeOptions"]


class RuntimeOptions:
    """Times are ms, sizes bytes.

    `disk`, `open_store`, `sizing`, `entropy`, `make_drive`: those of this machine unless a test has
    its own.
    """

    __slots__ = (
        "async_limit", "default_retry", "disk", "durability", "entropy", "has_attempts",
        "index_tags", "is_temporary", "keep_dead_ms", "keep_done_max", "keep_done_ms", "listeners",
        "make_drive", "max_payload", "max_ready", "open_store", "processes", "sizing", "threads",
        "when_full",
    )  # fmt: skip

    def __init__(
        self,
        *,
        durability: str,
        threads: int,
        async_limit: int,
        default_retry: RetryPolicy,
        max_payload: int,
        keep_done_ms: int | None,
        has_attempts: bool,
        processes: int = 0,
        keep_done_max: int | None = None,
        keep_dead_ms: int | None = None,
        max_ready: int | None = None,
        when_full: str = "error",
        index_tags: tuple[str, ...] | None = (),
        disk: Disk | None = None,
        open_store: Callable[..., Parked] = Parked.open,
        sizing: Sizing | None = None,
        entropy: Callable[[int], bytes] = os.urandom,
        make_drive: Callable[[], Drive] = Drive,
    ) -> None:
        self.durability = durability
        self.threads = threads
        self.async_limit = async_limit
        self.default_retry = default_retry
        self.max_payload = max_payload
        self.keep_done_ms = keep_done_ms
        self.keep_done_max = keep_done_max
        self.keep_dead_ms = keep_dead_ms
        self.has_attempts = has_attempts
        self.processes = processes
        self.max_ready = max_ready
        self.when_full = when_full
        self.index_tags = index_tags  # None: not known here, any may be asked for
        self.disk: Disk = disk or RealDisk()
        self.open_store = open_store
        self.sizing = sizing or Sizing()
        self.entropy = entropy
        self.make_drive = make_drive
        self.listeners: list[Listener] = []  # of `@engine.on`; grows while the engine is open too
        self.is_temporary = durability == "memory"

    def keeping(self, tasks: Tasks) -> Keeping:
        """How long ended tickets are kept, where these are the tasks."""
        return Keeping(self.keep_done_ms, self.keep_done_max, self.keep_dead_ms, tasks)
