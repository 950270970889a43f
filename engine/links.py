"""Where an attempt reaches its engine: leases, progress, what it saves for the next one."""

from typing import TYPE_CHECKING, Protocol

from parkade.clock import Clock
from parkade.payload import check_size
from parkade.progress import PROGRESS_BYTES_MAX
from parkade.store.record import ProgressNote
from parkade.verdicts import Cancelled, cut_text

if TYPE_CHECKING:
    from parkade.job import Job
    from parkade.runs import Run

__all__ = ["LinkPort", "RunLink", "progress_note"]

NUMBERS_BYTES = 64  # of a note, beside its message


class LinkPort(Protocol):
    """The engine, for whoever runs attempts. Called from any thread that runs a handler, and from
    an event loop's."""

    def note(self, job: "Job", progress: ProgressNote) -> None:
        """Never waits."""
        ...

    def load_bookmark(self, job: "Job") -> bytes | None:
        """What was saved last for the ticket."""
        ...

    def save_bookmark(self, job: "Job", value: bytes) -> None:
        """Returns when it is durable. Raises `Cancelled` if the attempt is not the one that runs,
        `StorageFull`, and `StorageError`."""
        ...


class RunLink:
    """The link of an attempt whose handler runs in this process. `save_bytes_max`: of one value."""

    __slots__ = ("_clock", "_has_saved", "_last", "_port", "_run", "_save_bytes_max")

    def __init__(self, run: "Run", clock: Clock, port: LinkPort, save_bytes_max: int) -> None:
        self._run = run
        self._clock = clock
        self._port = port
        self._save_bytes_max = save_bytes_max
        self._has_saved = run.job.ticket.has_bookmark
        self._last: tuple[float, float | None] = (0.0, None)

    def heartbeat(self, note: str) -> None:
        if note:
            self.progress(*self._last, note)
        else:
            self._run.renew(self._clock.monotonic_ms())

    def progress(self, done: float, total: float | None, message: str) -> None:
        note = progress_note(done, total, message, self._clock.now_ms())
        self._run.renew(self._clock.monotonic_ms())
        self._last = note.done, note.total
        if not self._run.is_given_up:
            self._port.note(self._run.job, note)

    def load_checkpoint(self) -> bytes | None:
        return self._port.load_bookmark(self._run.job) if self._has_saved else None

    def save_checkpoint(self, value: bytes) -> None:
        run = self._run
        check_size(run.job.task.name, value, self._save_bytes_max, what="checkpoint")
        if run.is_given_up or run.is_lapsed(self._clock.monotonic_ms()):
            raise Cancelled("it was given up: another attempt may run")
        self._port.save_bookmark(run.job, value)
        self._has_saved = True
        run.renew(self._clock.monotonic_ms())


def progress_note(done: float, total: float | None, message: str, now_ms: int) -> ProgressNote:
    """Progress as it is kept: the message is cut where all of it would be more than 4 KiB. Raises
    what `float` raises for what is no number."""
    number = None if total is None else float(total)
    return ProgressNote(
        float(done), number, cut_text(message, PROGRESS_BYTES_MAX - NUMBERS_BYTES), now_ms
    )
