"""Answers to what attempts in child processes ask of their engine.

Questions come from processes that run anybody's code: what is asked is checked like what a caller
submits.
"""

import threading
from collections.abc import Callable
from functools import partial
from typing import NoReturn

from parkade.calls import Prepared
from parkade.clock import Clock
from parkade.durations import TIME_MS_MAX
from parkade.errors import NoAttempt, ParkadeError, StorageError
from parkade.options import CONFLICTS, UNIQUE_MODES
from parkade.payload import check_size
from parkade.progress import PROGRESS_BYTES_MAX
from parkade.runs import Run, Runs
from parkade.verdicts import Cancelled
from parkade.wire import (
    CANCELLED,
    Answer,
    Ask,
    BadMessage,
    Bear,
    Born,
    Load,
    Loaded,
    Note,
    Refused,
    Reply,
    Save,
    Saved,
)

__all__ = ["Answering"]


class Answering:
    """`reply` brings an answer to the process of a run, from any thread. A payload, and what is
    saved, may have `bytes_max`."""

    def __init__(
        self, runs: Runs, clock: Clock, bytes_max: int, reply: Callable[[Run, Reply], None]
    ) -> None:
        self._runs = runs
        self._clock = clock
        self._bytes_max = bytes_max
        self._reply = reply

    def note(self, run: Run, note: Note) -> None:
        """The handler is alive. Raises `BadMessage`."""
        run.renew(self._clock.monotonic_ms())
        progress = note.progress
        if progress is None:
            return
        if len(progress.message.encode()) > PROGRESS_BYTES_MAX:
            raise BadMessage("its progress is larger than it may be")
        if not run.is_given_up:
            self._runs.port.note(run.job, progress)

    def take(self, run: Run, asked: Ask) -> None:
        """Never waits: for the disk another thread does. Raises `BadMessage` for what no handler of
        ours asks."""
        number = asked.number
        match asked.question:
            case Bear(prepared):
                _check(prepared)
                self._answer(run, number, lambda: self._bear(run, prepared))
            case Load():
                self._answer_later(run, number, lambda: self._load(run))
            case Save(value):
                self._answer_later(run, number, lambda: self._save(run, value))

    def _answer_later(self, run: Run, number: int, find: Callable[[], Answer]) -> None:
        try:
            threading.Thread(
                target=self._answer, args=(run, number, find), name="parkade-answer", daemon=True
            ).start()
        except RuntimeError as error:  # the system gives no thread
            self._answer(run, number, partial(_refuse, run, error))

    def _answer(self, run: Run, number: int, find: Callable[[], Answer]) -> None:
        answer: Answer
        try:
            answer = find()
        except ParkadeError as error:
            answer = Refused(type(error).__name__, error.code, str(error))
        except Cancelled as error:
            answer = Refused(type(error).__name__, CANCELLED, error.reason)
        self._reply(run, Reply(number, answer))

    def _load(self, run: Run) -> Loaded:
        return Loaded(self._runs.port.load_bookmark(run.job))

    def _save(self, run: Run, value: bytes) -> Saved:
        check_size(run.job.task.name, value, self._bytes_max, what="checkpoint")
        if run.is_given_up or run.is_lapsed(self._clock.monotonic_ms()):
            raise Cancelled("it was given up: another attempt may run")
        self._runs.port.save_bookmark(run.job, value)
        run.renew(self._clock.monotonic_ms())
        return Saved()

    def _bear(self, run: Run, prepared: Prepared) -> Born:
        check_size(prepared.task, prepared.payload, self._bytes_max)
        if run.family is None:
            if self._runs.family_of is None:
                raise NoAttempt
            run.family = self._runs.family_of(run.job)
        draft = run.family.add(prepared)
        return Born(draft.serial, draft.part)


def _refuse(run: Run, error: Exception) -> NoReturn:
    shard = None
    raise StorageError(
        shard=shard, what=f"keep a checkpoint of {run.job.ticket_id}", reason=str(error)
    )


def _check(prepared: Prepared) -> None:
    """What a call that was prepared by our own code cannot have."""
    is_sound = (
        0 <= prepared.at_ms <= prepared.due_ms <= TIME_MS_MAX
        and 0 <= prepared.unique_mode < len(UNIQUE_MODES)
        and 0 <= prepared.on_conflict < len(CONFLICTS)
    )
    if not is_sound:
        raise BadMessage("it asked for a ticket that cannot be")
