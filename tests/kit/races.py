"""Races of two events over one ticket, in a shard whose every step a test takes.

A race brings a ticket to where both events may happen, and each event is a list of steps: what is
asked, and what the host does until it is told. A test puts the two lists together in some order and
asks afterwards who came first. `check` holds for either winner: one fate, and answers that fit it.
"""

import random
from collections import Counter
from collections.abc import Callable, Iterator
from itertools import combinations
from typing import ClassVar

from kit.model import CANCELLED, DEAD, DONE, EXPIRED, PENDING, RUNNING
from kit.stepped import Stepped
from parkade.guards import Pause
from parkade.shard.commands import (
    CONFLICT_REPLACE,
    CONFLICT_RETURN,
    Cancel,
    Command,
    Drop,
    Forget,
    Outcome,
    Reschedule,
    Revive,
    Settle,
    Submit,
)
from parkade.store.record import ErrorText, Options, UniqueClaim

__all__ = ["LEFT", "RACES", "RIGHT", "Race", "Tally", "orders", "shuffled"]

Step = str | Callable[[], None]
ENDED = (DONE, CANCELLED, EXPIRED)
LEFT, RIGHT = "left", "right"
SOON_MS = 50
KEPT, ACTIVE = 0, 1
DECIDED_AND_TOLD = ("turn", "admit", "io", "hear io")


class Race:
    """Two events over one ticket. A subclass says how it is set up, the steps, and who won."""

    name: ClassVar[str]
    sides: ClassVar[tuple[str, str]]
    option: ClassVar[Options | None] = None

    def __init__(self, shard: Stepped) -> None:
        self.shard = shard
        self.serial = self.second = 0

    def prepare(self) -> None:
        """To where both events may happen; no time passes."""
        raise NotImplementedError

    def left(self) -> list[Step]:
        raise NotImplementedError

    def right(self) -> list[Step]:
        raise NotImplementedError

    def winner(self) -> str:
        """LEFT or RIGHT, after all has come to rest."""
        raise NotImplementedError

    def check(self, winner: str) -> None:
        """What follows from who won, before any more time passes."""
        raise NotImplementedError

    def lift(self) -> None:
        """Takes away what would keep tickets from their end."""
        return

    def end(self, winner: str) -> int | None:
        """How the ticket ends when what runs ends well; None: it is gone."""
        return DONE

    # ------------------------------------------------------------------ what races share

    def take(self, step: Step) -> None:
        if callable(step):
            step()
        else:
            self.shard.step(step)

    def submit(self, delay_ms: int = 0, unique: UniqueClaim | None = None) -> int:
        draft = self.shard.draft(self.shard.now_ms + delay_ms, unique=unique, options=self.option)
        self.shard.submit(draft)
        return draft.serial

    def submit_and_start(self, unique: UniqueClaim | None = None) -> None:
        self.serial = self.submit(unique=unique)
        self.shard.run()
        assert self.is_alive

    def bury(self) -> None:
        self.submit_and_start()
        self.settle("failed")
        self.shard.run()
        assert self.state == DEAD

    @property
    def is_alive(self) -> bool:
        return self.serial in self.shard.handlers.alive

    @property
    def state(self) -> int | None:
        """None: it is gone."""
        entry = self.shard.witness.model.tickets.get(self.serial)
        return None if entry is None else entry.state

    def settle(self, kind: str) -> None:
        error = None if kind in ("done", "snooze") else ErrorText("E", "it failed")
        job = self.shard.handlers.alive[self.serial]
        self.shard.settle(job, kind, error=error, wait_ms=300, max_attempts=3)

    def due(self) -> list[Step]:
        """The ticket becomes due, and starts if it may."""
        return [lambda: self._pass_time(), "admit", "io", "hear io", "admit"]

    def _pass_time(self) -> None:
        self.shard.pass_ms(SOON_MS)
        self.shard.step("turn")

    def answer(self, kind: type[Command]) -> str:
        """What a command about this ticket was answered."""
        found = [
            answers[0].code
            for asked, answers in self.shard.answers
            if isinstance(asked, kind) and self._is_about_this(asked)
        ]
        assert len(found) == 1, (self.name, kind, found)
        return str(found[0])

    def _is_about_this(self, asked: Command) -> bool:
        if isinstance(asked, Settle):
            return asked.outcomes[0].serial == self.serial
        if isinstance(asked, Submit):
            return asked.drafts[0].serial == self.second
        serials = getattr(asked, "serials", None) or [getattr(asked, "serial", 0)]
        return self.serial in serials

    def check_one_fate(self) -> None:
        """Every attempt ended once, what ended stays ended, and nobody runs it any more."""
        heads = [shadow.head for _, shadow in self.shard.witness.versions[self.serial] if shadow]
        states = [head[3] for head in heads]
        ends = [at for at, state in enumerate(states) if state in ENDED]
        if ends:
            assert set(states[ends[0] :]) == {states[ends[0]]}, (self.name, states)
        shadow = self.shard.witness.tickets.get(self.serial)
        if shadow is not None:
            fences = [row.fence for row in shadow.attempts]
            assert len(fences) == len(set(fences)), (self.name, shadow.attempts)
        assert not self.is_alive or self.state == RUNNING, (self.name, self.state)


class _Cancelling(Race):
    """Somebody cancels on the left."""

    def left(self) -> list[Step]:
        return [lambda: self._cancel(), *DECIDED_AND_TOLD]

    def _cancel(self) -> None:
        self.shard.ask(Cancel(self.serial, "enough"))


class CancelAndStart(_Cancelling):
    name, sides = "cancel against start", ("cancel", "start")

    def prepare(self) -> None:
        self.serial = self.submit(SOON_MS)
        self.shard.run()

    def right(self) -> list[Step]:
        return self.due()

    def winner(self) -> str:
        return LEFT if self.answer(Cancel) == "cancelled" else RIGHT

    def check(self, winner: str) -> None:
        if winner == LEFT:
            assert self.state == CANCELLED
            assert not self.is_alive, "a cancelled ticket was started"
        else:
            assert self.answer(Cancel) == "requested"
            assert self.is_alive, "a started ticket does not run"

    def end(self, winner: str) -> int | None:
        return CANCELLED if winner == LEFT else DONE


class CancelAndStartFromTheStore(CancelAndStart):
    """The payload is read for the start: there is more time in between."""

    name = "cancel against start of a parked ticket"

    def prepare(self) -> None:
        self.serial = self.submit(2_000_000)
        self.shard.checkpoint()
        self.shard.ask(Reschedule(self.serial, self.shard.now_ms + SOON_MS))
        self.shard.run()
        self.shard.checkpoint()

    def left(self) -> list[Step]:
        return [lambda: self._cancel(), "pass", "io", "pass"]

    def right(self) -> list[Step]:
        return [lambda: self._pass_time(), "pass", "io", "pass", "io", "pass"]


class CancelAndCompletion(_Cancelling):
    name, sides = "cancel against completion", ("cancel", "completion")

    def prepare(self) -> None:
        self.submit_and_start()

    def right(self) -> list[Step]:
        return [lambda: self.settle("done"), *DECIDED_AND_TOLD]

    def winner(self) -> str:
        return LEFT if self.answer(Cancel) == "requested" else RIGHT

    def check(self, winner: str) -> None:
        assert self.answer(Cancel) == ("requested" if winner == LEFT else "too_late")
        assert self.state == DONE, "what the attempt reports is kept"


class CancelAndRetry(CancelAndCompletion):
    name, sides = "cancel against retry", ("cancel", "retry")

    def right(self) -> list[Step]:
        return [lambda: self.settle("transient"), *DECIDED_AND_TOLD]

    def check(self, winner: str) -> None:
        # Asked first, the failure ends it; asked afterwards, it waits for its retry and ends there.
        assert self.answer(Cancel) == ("requested" if winner == LEFT else "cancelled")
        assert self.state == CANCELLED
        shadow = self.shard.witness.tickets[self.serial]
        expected = "cancelled" if winner == LEFT else "error"
        assert [row.outcome for row in shadow.attempts] == [expected]

    def end(self, winner: str) -> int | None:
        return CANCELLED


class TimeoutAndCompletion(Race):
    """Both report the same attempt; the executor may let only one through, the shard must."""

    name, sides = "timeout against completion", ("timeout", "completion")
    kind = "timeout"

    def prepare(self) -> None:
        self.submit_and_start()
        self.fence = self.shard.handlers.alive.pop(self.serial).fence
        self.heard: list[str] = []

    def left(self) -> list[Step]:
        return [lambda: self.report(self.kind), *DECIDED_AND_TOLD]

    def right(self) -> list[Step]:
        return [lambda: self.report("done"), *DECIDED_AND_TOLD]

    def report(self, kind: str) -> None:
        """To the core, which lets go of what the attempt has; a second time straight to the
        shard, as the outcome of a thread that could not be stopped."""
        outcome = Outcome(self.serial, self.fence, kind, wait_ms=300, max_attempts=3)
        self.heard.append(kind)
        if len(self.heard) == 1:
            self.shard.attempts.settle_all([outcome])
        else:
            self.shard.ask(Settle([outcome]))

    def winner(self) -> str:
        return RIGHT if self.heard[0] == "done" else LEFT

    def check(self, winner: str) -> None:
        assert self.answer(Settle) == "refused", "a second outcome of one attempt was taken"
        shadow = self.shard.witness.tickets[self.serial]
        entry = self.shard.witness.model.tickets[self.serial]
        if winner == RIGHT:
            assert self.state == DONE
            assert not entry.maybe_applied
            assert not shadow.attempts, "an attempt that went well at once has no row"
            return
        assert self.state == PENDING
        assert entry.maybe_applied
        assert [row.outcome for row in shadow.attempts] == [
            "timeout" if self.kind == "timeout" else "lost"
        ]


class LeaseLossAndCompletion(TimeoutAndCompletion):
    name, sides = "lease loss against completion", ("lease loss", "completion")
    kind = "lease"


class GivingUpAndEnd(Race):
    """A thread that cannot be stopped: its attempt is given up, and its handler ends."""

    name, sides = "giving up against the end of the thread", ("giving up", "end")

    def prepare(self) -> None:
        self.submit_and_start()
        self.fence = self.shard.handlers.alive.pop(self.serial).fence
        self.heard: list[str] = []

    def left(self) -> list[Step]:
        return [lambda: self.report("timeout", lives_on=True), *DECIDED_AND_TOLD]

    def right(self) -> list[Step]:
        return [lambda: self.report("done", lives_on=False), *DECIDED_AND_TOLD]

    def report(self, kind: str, *, lives_on: bool) -> None:
        self.heard.append(kind)
        self.shard.attempts.settle_all(
            [Outcome(self.serial, self.fence, kind, wait_ms=300, max_attempts=3, lives_on=lives_on)]
        )

    def winner(self) -> str:
        return LEFT if self.heard[0] == "timeout" else RIGHT

    def check(self, winner: str) -> None:
        assert not self.shard.attempts.is_outlived(self.serial), "its place is held for ever"
        entry = self.shard.witness.model.tickets[self.serial]
        assert self.state == (PENDING if winner == LEFT else DONE)
        assert entry.maybe_applied is (winner == LEFT)


class ReviveAndDrop(Race):
    name, sides = "revive against drop", ("revive", "drop")

    def prepare(self) -> None:
        self.bury()

    def left(self) -> list[Step]:
        return [lambda: self._revive(), *DECIDED_AND_TOLD]

    def _revive(self) -> None:
        self.shard.ask(Revive([self.serial], self.shard.now_ms + 300))

    def right(self) -> list[Step]:
        return [lambda: self._drop(), *DECIDED_AND_TOLD]

    def _drop(self) -> None:
        self.shard.ask(Drop([self.serial]))

    def winner(self) -> str:
        return LEFT if self.answer(Revive) == "revived" else RIGHT

    def check(self, winner: str) -> None:
        revived = ("revived", "not_dead")
        expected = revived if winner == LEFT else ("unknown", "dropped")
        assert (self.answer(Revive), self.answer(Drop)) == expected

    def end(self, winner: str) -> int | None:
        return DONE if winner == LEFT else None


class PauseAndDue(Race):
    """The pause is a matter of one moment: its record is written before it is in force."""

    name, sides = "pause against due", ("pause", "due")

    def prepare(self) -> None:
        self.serial = self.submit(SOON_MS)
        self.shard.run()

    def left(self) -> list[Step]:
        return [lambda: self._pause(), "admit"]

    def _pause(self) -> None:
        self.shard.attempts.admission.guards.pauses["task:t"] = Pause(None, "")

    def right(self) -> list[Step]:
        return self.due()

    def winner(self) -> str:
        return LEFT if self.state == PENDING else RIGHT

    def check(self, winner: str) -> None:
        assert self.is_alive is (winner == RIGHT), "what runs goes on, what waits is held"

    def lift(self) -> None:
        admission = self.shard.attempts.admission
        del admission.guards.pauses["task:t"]
        admission.wake("pause", "task:t")


class UniqueAndCompletion(Race):
    """A name that is free when its holder has ended."""

    name, sides = "unique submit against completion", ("submit", "completion")
    mode = ACTIVE
    conflict = CONFLICT_RETURN

    def prepare(self) -> None:
        self.claim = self._claim()
        self.submit_and_start(self.claim)

    def _claim(self) -> UniqueClaim:
        return UniqueClaim(f"name {self.shard.last_serial}", self.mode, keep_ms=500)

    def left(self) -> list[Step]:
        return [lambda: self._submit(), *DECIDED_AND_TOLD]

    def _submit(self) -> None:
        draft = self.shard.draft(self.shard.now_ms + 300, unique=self.claim, options=self.option)
        self.second = draft.serial
        self.shard.submit(draft, modes=[self.conflict])

    def right(self) -> list[Step]:
        return [lambda: self.settle("done"), *DECIDED_AND_TOLD]

    def winner(self) -> str:
        return LEFT if self.answer(Submit) == "existing" else RIGHT

    def check(self, winner: str) -> None:
        assert self.state == DONE
        is_there = self.second in self.shard.witness.model.tickets
        assert is_there is (winner == RIGHT), "a name stands for one ticket at a time"


class ReplaceAndStart(UniqueAndCompletion):
    """A submit that replaces a ticket which is about to start."""

    name, sides = "replacing submit against start", ("replace", "start")
    mode = KEPT
    conflict = CONFLICT_REPLACE

    def prepare(self) -> None:
        self.claim = self._claim()
        self.serial = self.submit(SOON_MS, self.claim)
        self.shard.run()

    def right(self) -> list[Step]:
        return self.due()

    def winner(self) -> str:
        return LEFT if self.answer(Submit) == "created" else RIGHT

    def check(self, winner: str) -> None:
        if winner == LEFT:
            assert self.state == CANCELLED
        assert self.is_alive is (winner == RIGHT)

    def end(self, winner: str) -> int | None:
        return CANCELLED if winner == LEFT else DONE


class RescheduleAndStart(Race):
    name, sides = "reschedule against start", ("reschedule", "start")

    def prepare(self) -> None:
        self.serial = self.submit(SOON_MS)
        self.shard.run()

    def left(self) -> list[Step]:
        return [lambda: self._reschedule(), *DECIDED_AND_TOLD]

    def _reschedule(self) -> None:
        self.shard.ask(Reschedule(self.serial, self.shard.now_ms + 700))

    def right(self) -> list[Step]:
        return self.due()

    def winner(self) -> str:
        return LEFT if self.answer(Reschedule) == "rescheduled" else RIGHT

    def check(self, winner: str) -> None:
        assert self.is_alive is (winner == RIGHT)


class ForgetAndRevive(ReviveAndDrop):
    """Retention against a person."""

    name, sides = "revive against retention", ("revive", "forget")

    def right(self) -> list[Step]:
        return [lambda: self._forget(), *DECIDED_AND_TOLD]

    def _forget(self) -> None:
        self.shard.ask(Forget("t", DEAD, [self.serial]))

    def check(self, winner: str) -> None:
        revived = ("revived", "not_ended")
        expected = revived if winner == LEFT else ("unknown", "forgotten")
        assert (self.answer(Revive), self.answer(Forget)) == expected


RACES: tuple[type[Race], ...] = (
    CancelAndStart,
    CancelAndStartFromTheStore,
    CancelAndCompletion,
    CancelAndRetry,
    TimeoutAndCompletion,
    LeaseLossAndCompletion,
    GivingUpAndEnd,
    ReviveAndDrop,
    PauseAndDue,
    UniqueAndCompletion,
    ReplaceAndStart,
    RescheduleAndStart,
    ForgetAndRevive,
)


def orders(left: int, right: int) -> Iterator[list[str]]:
    """Every way to put so many steps of the one side and of the other into one row."""
    for places in combinations(range(left + right), left):
        yield [LEFT if at in places else RIGHT for at in range(left + right)]


def shuffled(left: int, right: int, dice: random.Random) -> list[str]:
    """One of them."""
    order = [LEFT] * left + [RIGHT] * right
    dice.shuffle(order)
    return order


class Tally:
    """How often each side of each race won."""

    def __init__(self) -> None:
        self.wins: dict[str, Counter[str]] = {}
        self._sides: dict[str, tuple[str, str]] = {}

    def add(self, kind: str, name: str, sides: tuple[str, str], winner: str) -> None:
        title = f"{name} ({kind})"
        self._sides[title] = sides
        self.wins.setdefault(title, Counter())[winner] += 1

    def lines(self) -> list[str]:
        """For people."""
        return [
            f"{title}: {left} {wins[LEFT]}, {right} {wins[RIGHT]}"
            for title, wins in self.wins.items()
            for left, right in [self._sides[title]]
        ]
