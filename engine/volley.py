"""Frames that are on their way together are heard of together.

A pass gives each shard's thread a frame, and the disk takes them at once. Were the core thread
woken by each, it would start a few tickets of one shard, then a few of the next, and so never many
in one frame: the shards fall out of step, and every ticket pays for a pass. So the last to be
durable rings, unless one takes much longer than the others.
"""

__all__ = ["LINGER_S", "OUTCOME_WAIT_S", "OutcomeWait", "Volley"]

LINGER_S = 0.001
"""How long a frame that is durable waits to be heard of, at most, for the others."""

OUTCOME_WAIT_S = 0.0005
"""How long small frames wait, at most, for outcomes to go along with them."""

RECORDS_MAX = 64  # of a frame that waits: a larger one is worth its write
PASSES_WITHOUT = 32  # that hand their frames over at once, after outcomes were waited for in vain
_ALL = 1 << 62


class Volley:
    """`holds` is for any thread, the rest for the core's: it says how many it expects, and looks
    afterwards at how many have come."""

    __slots__ = ("count", "is_gathering")

    def __init__(self) -> None:
        self.count = 1
        self.is_gathering = False

    def gather(self) -> None:
        """A pass begins: it looks at its end at what has come."""
        self.is_gathering = True
        self.count = _ALL

    def expect(self, frames: int) -> bool:
        """The pass is over, and so many are on their way; whether they are waited for together."""
        self.count = max(1, frames)
        return frames > 1

    def end(self) -> None:
        """From now on everyone rings."""
        self.count = 1

    def holds(self, come: int) -> bool:
        """Whether who is the last of so many that have come leaves it to another to ring."""
        return come < self.count


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
