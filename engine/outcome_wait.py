"""Small frames wait a moment for the outcomes of the attempts that begin in their pass.

Handlers that take next to no time end while the frames of others are written, and so their places
would take turns: half of them in each frame, and twice the frames.
"""

__all__ = ["OUTCOME_WAIT_S", "OutcomeWait"]

OUTCOME_WAIT_S = 0.0005
"""How long small frames wait, at most, for outcomes to go along with them."""

RECORDS_MAX = 64  # of a frame that waits: a larger one is worth its write
PASSES_WITHOUT = 32  # that hand their frames over at once, after outcomes were waited for in vain


class OutcomeWait:
    """Whether small frames wait a moment for the outcomes of the attempts that begin in their pass.

    Handlers that take next to no time end while the frames of others are written, and so their
    places would take turns: half of them in each frame, and twice the frames. Where the outcomes do
    not come at once, nothing is waited for again for some time. Used by the core thread alone.
    """

    __slots__ = ("_begun", "_passes_without", "is_allowed", "is_on")

    def __init__(self) -> None:
        self.is_allowed = False
        self.is_on = False
        self._begun = 0
        self._passes_without = 0

    def begins(self, attempts: int, records: int) -> bool:
        """So many attempts begin, and so many records are in the largest frame that could go."""
        if not attempts or not records or not self.is_allowed or records > RECORDS_MAX:
            return False
        if self._passes_without:
            self._passes_without -= 1
            return False
        self._begun = attempts
        self.is_on = True
        return True

    def end(self, outcomes: int) -> None:
        """The next pass begins, with so many outcomes."""
        if self.is_on:
            self.is_on = False
            if 2 * outcomes < self._begun:
                self._passes_without = PASSES_WITHOUT
