"""Progress as attempts tell it, until a record carries it.

It is never worth a frame of its own. What was told last waits here, where whoever looks at the
ticket sees it, and goes along with the next records of its shard: at most every 250 ms, or before
the record that ends its attempt (docs/semantics.md, Progress and bookmarks).
"""

import threading
from collections.abc import Iterable, Sequence
from typing import Final

from parkade.asks import Seen
from parkade.shard.commands import Bookmark
from parkade.shard.states import RUNNING
from parkade.store.record import ProgressNote, Record

__all__ = ["PROGRESS_BYTES_MAX", "PROGRESS_MS_MIN", "ProgressBoard"]

PROGRESS_BYTES_MAX: Final = 4_096
PROGRESS_MS_MIN: Final = 250
LEAD_BYTES_MAX: Final = 32_768  # of notes that go along at once; half the margin of a frame
_NOTE_BYTES: Final = 64  # beside its message


class ProgressBoard:
    """By shard and serial; the latest wins. Written from any thread, taken by the core thread."""

    def __init__(self, shard_count: int) -> None:
        self.lock = threading.RLock()  # the core's too; a finalizer may tell of some in between
        # By shard, then by serial: what waits to go along.
        self.latest: list[dict[int, Bookmark]] = [{} for _ in range(shard_count)]
        self._taken_ms = [0] * shard_count

    def put(self, shard: int, serial: int, fence: int, progress: ProgressNote) -> None:
        """An attempt tells how far it is."""
        with self.lock:
            self.latest[shard][serial] = Bookmark(serial, fence, progress=progress)

    def of(self, serial: int, fence: int, shard: int) -> ProgressNote | None:
        """What the attempt told last, if no record has it yet."""
        told = self.latest[shard].get(serial)
        return None if told is None or told.fence != fence else told.progress

    def shown(self, shard: int, seen: Seen) -> Seen:
        """The answer to somebody who looks at a ticket, with the progress of this moment."""
        ticket = seen.ticket  # a copy, nobody else's
        if ticket.state == RUNNING and self.latest[shard]:
            ticket.progress = self.of(ticket.serial, ticket.fence, shard) or ticket.progress
        return seen

    def take(self, shard: int, records: Sequence[Record], mono_ms: int) -> list[Bookmark]:
        """What goes along with these records; first of the tickets that they are about."""
        latest = self.latest[shard]
        named = {getattr(record, "serial", None) for record in records}
        with self.lock:
            waiting = list(latest)
            serials: Iterable[int] = [serial for serial in waiting if serial in named]
            if mono_ms - self._taken_ms[shard] >= PROGRESS_MS_MIN:
                self._taken_ms[shard] = mono_ms
                serials = [*serials, *(serial for serial in waiting if serial not in named)]
            taken: list[Bookmark] = []
            left_bytes = LEAD_BYTES_MAX
            for serial in serials:
                note = latest[serial].progress
                left_bytes -= _NOTE_BYTES + (0 if note is None else 4 * len(note.message))
                if left_bytes < 0:
                    break
                taken.append(latest.pop(serial))
            return taken
