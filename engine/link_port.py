"""What running attempts tell their engine, and keep in it: progress, and what they save.

Asked from handlers' threads and from event loops: a load or a save waits there until its answer is
durable. The core thread waits for neither, so this cannot come to a standstill; a loop that waits
for a disk runs nothing else meanwhile.
"""

from typing import Any

from parkade.asking import Asker, Request
from parkade.asks import BookmarkOf
from parkade.errors import StorageFull
from parkade.job import Job
from parkade.progress import ProgressBoard
from parkade.progress_events import ProgressEvents
from parkade.shard.commands import Bookmark, Refusal
from parkade.store.record import ProgressNote
from parkade.verdicts import Cancelled

__all__ = ["EnginePort"]

BOOKMARK_BYTES = 100  # what a record of it writes beside the value


class EnginePort:
    """The port of an engine's attempts (`parkade.links.LinkPort`). `asker` is set before the first
    of them runs."""

    asker: Asker

    def __init__(self, board: ProgressBoard, told: ProgressEvents, shard_count: int) -> None:
        self._board = board
        self._events = told
        self._shard_count = shard_count

    def note(self, job: Job, progress: ProgressNote) -> None:
        shard = self._shard_of(job)
        self._board.put(shard, job.serial, job.fence, progress)
        self._events.tell(job, progress, shard)

    def load_bookmark(self, job: Job) -> bytes | None:
        asks = [(self._shard_of(job), BookmarkOf(job.serial))]
        saved: bytes | None = self.asker.ask_here(Request("Attempt.checkpoint", "", asks, _only))
        return saved

    def save_bookmark(self, job: Job, value: bytes) -> None:
        shard = self._shard_of(job)
        command = Bookmark(job.serial, job.fence, value)
        sizes = [len(value) + BOOKMARK_BYTES]
        asked = Request("Attempt.save_checkpoint", "", [(shard, command)], _only, sizes=sizes)
        [answer] = self.asker.ask_here(asked)
        if isinstance(answer, Refusal):
            if answer.code == "full":
                raise StorageFull(shard=shard)
            raise Cancelled("it was given up: another attempt may run")

    def _shard_of(self, job: Job) -> int:
        return job.part % self._shard_count


def _only(answers: list[Any]) -> Any:
    return answers[0]
