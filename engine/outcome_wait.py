"""Outcomes of attempts that begin together are heard of together, and small frames wait for them.

Handlers that take next to no time end while the frames of others are written, and so their places
would take turns: half of them in each frame, and twice the frames. And were the core thread woken
by the first of them, it would make a pass for a few, and another for the rest.
"""

from parkade.patience import Patience

__all__ = ["OUTCOME_WAIT_S", "OutcomeWait"]

OUTCOME_WAIT_S = 0.0005
"""How long outcomes wait for each other, and small frames for them, at most."""

RECORDS_MAX = 64  # of a frame that waits: a larger one is worth its write


class OutcomeWait:
    """Whether the outcomes of the attempts that begin in a pass are waited for, for a moment.

    `is_expecting`: they are; whoever delivers the last of them rings. `is_on`: so are small frames,
    where there are some. Where most of the outcomes do not come at once, the next passes wait for
    nothing (`Patience`). `holds` is for who delivers, one at a time; the rest for the core thread
    alone.
    """

    __slots__ = (
        "_begun", "_come", "_patience", "is_allowed", "is_expecting", "is_on",
    )  # fmt: skip

    def __init__(self) -> None:
        self.is_allowed = False
        self.is_on = self.is_expecting = False
        self._begun = self._come = 0
        self._patience = Patience()

    def begins(self, attempts: int, records: int) -> bool:
        """So many attempts begin, and so many records are in the largest frame that could go;
        whether that waits."""
        if not attempts or not self.is_allowed or records > RECORDS_MAX:
            return False
        if not self._patience.takes():
            return False
        self._begun, self._come = attempts, 0
        self.is_expecting = True
        self.is_on = records > 0
        return self.is_on

    def holds(self, outcomes: int) -> bool:
        """Whether who delivers so many leaves it to another to ring."""
        self._come += outcomes
        return self.is_short

    @property
    def is_short(self) -> bool:
        """Whether outcomes are waited for that have not come."""
        return self.is_expecting and self._come < self._begun

    def give_up(self) -> None:
        """The moment is over: from now on everyone rings."""
        self.is_expecting = False

    def end(self, outcomes: int) -> None:
        """The next pass begins, with so many outcomes."""
        if not self._begun:
            return
        if 2 * outcomes >= self._begun:
            self._patience.reward()
        elif not self.is_expecting:
            self._patience.disappoint()
        self._begun = 0
        self.is_on = self.is_expecting = False
