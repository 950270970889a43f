"""What an attempt in a child process asks of its engine, and how it is answered.

The handler's thread sends a question and waits for the reply that has its number. What the engine
refuses comes back as the code and the text of an error, and is raised here as that error again.
"""

import itertools
import threading
from collections.abc import Callable
from typing import Any, NoReturn, cast

from parkade import errors
from parkade.calls import Prepared
from parkade.errors import EngineClosed, NoAttempt, ParkadeError
from parkade.family import Family
from parkade.job import Job
from parkade.runs import Run
from parkade.shard.ticket import format_id, parse_id
from parkade.store.record import ProgressNote, Submitted
from parkade.ticket import Ticket
from parkade.verdicts import Cancelled
from parkade.wire import (
    CANCELLED,
    Ask,
    Bear,
    Born,
    Load,
    Loaded,
    Note,
    Question,
    Refused,
    Reply,
    Save,
    ToOwner,
)

__all__ = ["OwnerLine", "RemoteFamily", "RemoteRun"]

NOTE_S_MIN = 0.05  # between two notes of one attempt: of those between, the last counts


class OwnerLine:
    """Any thread of the child may ask; `hear` is for the one that reads."""

    def __init__(self, send: Callable[[ToOwner], None]) -> None:
        self._send = send
        self._numbers = itertools.count(1)
        self._lock = threading.Lock()
        self._waiting: dict[int, tuple[threading.Event, list[Reply]]] = {}
        self._noting = threading.Lock()
        self._note: Note | None = None  # to be sent
        self._has_note = threading.Event()
        self._is_telling = False

    def ask(self, job: Job, question: Question) -> Any:
        """Waits for the answer. Raises what the engine refused with."""
        self.flush()  # what was noted before is known before
        number = next(self._numbers)
        answered, replies = threading.Event(), list[Reply]()
        with self._lock:
            self._waiting[number] = answered, replies
        self._send(Ask(job.serial, job.fence, number, question))
        answered.wait()
        answer = replies[0].answer
        if isinstance(answer, Refused):
            _raise(answer)
        return answer

    def hear(self, reply: Reply) -> None:
        """The owner has answered."""
        with self._lock:
            waiting = self._waiting.pop(reply.number, None)
        if waiting is not None:
            answered, replies = waiting
            replies.append(reply)
            answered.set()

    # ------------------------------------------------------------- the engine, for running attempts

    def note(self, job: Job, progress: ProgressNote | None) -> None:
        """The handler is alive, and how far it is; never waits for the owner."""
        with self._noting:
            last = self._note
            if progress is None and last is not None and last.serial == job.serial:
                progress = last.progress
            self._note = Note(job.serial, job.fence, progress)
            if not self._is_telling:
                self._is_telling = True
                threading.Thread(target=self._tell, name="parkade-notes", daemon=True).start()
        self._has_note.set()

    def load_bookmark(self, job: Job) -> bytes | None:
        """What was saved last for the ticket. Waits; raises what the owner refused with."""
        loaded: Loaded = self.ask(job, Load())
        return loaded.value

    def save_bookmark(self, job: Job, value: bytes) -> None:
        """Returns when it is durable. Raises what the owner refused with."""
        self.ask(job, Save(value))

    def flush(self) -> None:
        """What was noted is sent."""
        with self._noting:
            note, self._note = self._note, None
            if note is not None:
                self._send(note)

    def _tell(self) -> None:
        pause = threading.Event()
        while self._has_note.wait():
            self._has_note.clear()
            self.flush()
            pause.wait(NOTE_S_MIN)


class RemoteRun(Run, kw_only=True, eq=False):
    """A run in a child: its lease is kept by the owner, who hears that the handler is alive."""

    line: OwnerLine

    def renew(self, now_ms: int) -> None:
        if self.job.task.lease_ms is not None:
            self.line.note(self.job, None)


def _raise(refused: Refused) -> NoReturn:
    if refused.code == CANCELLED:
        raise Cancelled(refused.text)
    kinds: dict[str, type[ParkadeError]] = {
        kind.__name__: kind
        for kind in vars(errors).values()
        if isinstance(kind, type) and issubclass(kind, ParkadeError)
    }
    kind = kinds.get(refused.kind, ParkadeError)
    error = kind.__new__(kind, refused.text)
    error.args = (refused.text,)
    error.code = refused.code
    raise error


class RemoteFamily(Family):
    """The children of an attempt in this process; its owner gives them their ids, and makes them
    with the outcome."""

    def __init__(
        self, line: OwnerLine, job: Job, *, now_ms: Callable[[], int], payload_bytes_max: int
    ) -> None:
        self._line = line
        self._job = job
        super().__init__(
            cast(Any, None),  # whoever places them is in the owner
            job.part,
            now_ms=now_ms,
            payload_bytes_max=payload_bytes_max,
            handle=self._handle_of,
        )

    def add(self, prepared: Prepared) -> Submitted:
        with self._lock:
            if self._is_over:
                raise NoAttempt
        born: Born = self._line.ask(self._job, Bear(prepared))
        draft = prepared.draft(born.serial, born.part)
        with self._lock:
            self._drafts.append(draft)
        return draft

    def _handle_of(self, draft: Submitted, bound: Any) -> Ticket[Any]:
        known = parse_id(self._job.ticket_id)
        salt = 0 if known is None else known.salt
        ticket_id = format_id(draft.serial, draft.part, salt)
        desk = cast(Any, _NoDesk())
        return Ticket(desk, ticket_id, draft.task, created=True, bound=bound)


class _NoDesk:
    """The engine is open in another process: a handle has an id, and nobody here to ask."""

    def __getattr__(self, name: str) -> NoReturn:
        raise EngineClosed("engine.ticket")
