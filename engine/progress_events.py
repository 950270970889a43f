"""Progress as events: told as attempts tell it, and not when a record happens to carry it.

Progress is worth no frame of its own, so its event waits for none either. Whatever else is told of
an attempt comes after its Started is durable, and so does this.
"""

import threading
from collections.abc import Callable
from typing import TYPE_CHECKING

from parkade import events
from parkade.job import Job
from parkade.progress import PROGRESS_MS_MIN
from parkade.store.record import ProgressNote

if TYPE_CHECKING:
    from parkade.host import Host

__all__ = ["ProgressEvents"]

REMEMBERED_MAX = 4_096
TEXT_CHARS_MAX = 200


class ProgressEvents:
    """Called from any thread that runs attempts. At most one event in 250 ms for each ticket, save
    the one that says that all is done."""

    def __init__(self, host: "Host", monotonic_ms: Callable[[], int]) -> None:
        self._host = host
        self._monotonic_ms = monotonic_ms
        self._told_ms: dict[int, int] = {}
        self._lock = threading.RLock()  # a finalizer may tell of some too

    def tell(self, job: Job, progress: ProgressNote, shard: int) -> None:
        """Returns at once: the core thread publishes it in its next pass."""
        now_ms = self._monotonic_ms()
        is_whole = progress.total is not None and progress.done >= progress.total
        with self._lock:
            told_ms = self._told_ms.get(job.serial)
            if told_ms is not None and now_ms - told_ms < PROGRESS_MS_MIN and not is_whole:
                return
            if len(self._told_ms) >= REMEMBERED_MAX:
                self._told_ms = {
                    serial: ms
                    for serial, ms in list(self._told_ms.items())
                    if now_ms - ms < PROGRESS_MS_MIN
                }
            self._told_ms[job.serial] = now_ms
        self._host.post(self._publish, job, progress, shard)

    def _publish(self, job: Job, progress: ProgressNote, shard: int) -> None:
        detail = (progress.done, progress.total, progress.message[:TEXT_CHARS_MAX])
        note = (events.PROGRESS, progress.at_ms, job.serial, job.part, job.ticket.task, detail)
        # In the numbers of its shard it comes after all that has been noted there.
        self._host.feed.publish([note], self._host.shards[shard].notes.made)
