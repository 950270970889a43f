"""Answers to what attempts in child processes ask of their engine.

Questions come from processes that run anybody's code: what is asked is checked like what a caller
submits.
"""

from collections.abc import Callable

from parkade.calls import Prepared
from parkade.durations import TIME_MS_MAX
from parkade.errors import NoAttempt, ParkadeError
from parkade.options import CONFLICTS, UNIQUE_MODES
from parkade.payload import check_size
from parkade.runs import Run, Runs
from parkade.verdicts import Cancelled
from parkade.wire import CANCELLED, Ask, BadMessage, Bear, Born, Refused, Reply

__all__ = ["Answering"]


class Answering:
    """`reply` brings an answer to the process of a run, from any thread. A payload, and what is
    saved, may have `bytes_max`."""

    def __init__(self, runs: Runs, bytes_max: int, reply: Callable[[Run, Reply], None]) -> None:
        self._runs = runs
        self._bytes_max = bytes_max
        self._reply = reply

    def take(self, run: Run, asked: Ask) -> None:
        """Never waits. Raises `BadMessage` for what no handler of ours asks."""
        self._answer(run, asked.number, lambda: self._bear(run, asked.question))

    def _answer(self, run: Run, number: int, find: Callable[[], Born]) -> None:
        answer: Born | Refused
        try:
            answer = find()
        except ParkadeError as error:
            answer = Refused(type(error).__name__, error.code, str(error))
        except Cancelled as error:
            answer = Refused(type(error).__name__, CANCELLED, error.reason)
        self._reply(run, Reply(number, answer))

    def _bear(self, run: Run, question: Bear) -> Born:
        prepared = question.prepared
        _check(prepared)
        check_size(prepared.task, prepared.payload, self._bytes_max)
        if run.family is None:
            if self._runs.family_of is None:
                raise NoAttempt
            run.family = self._runs.family_of(run.job)
        draft = run.family.add(prepared)
        return Born(draft.serial, draft.part)


def _check(prepared: Prepared) -> None:
    """What a call that was prepared by our own code cannot have."""
    is_sound = (
        0 <= prepared.at_ms <= prepared.due_ms <= TIME_MS_MAX
        and 0 <= prepared.unique_mode < len(UNIQUE_MODES)
        and 0 <= prepared.on_conflict < len(CONFLICTS)
    )
    if not is_sound:
        raise BadMessage("it asked for a ticket that cannot be")
