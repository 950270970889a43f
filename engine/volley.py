"""Frames that are on their way together are heard of together.

A pass gives each shard's thread a frame, and the disk takes them at once. Were the core thread
woken by each, it would start a few tickets of one shard, then a few of the next, and so never many
in one frame: the shards fall out of step, and every ticket pays for a pass. So the last to be
durable rings, unless one takes much longer than the others.
"""

__all__ = ["LINGER_S", "Volley"]

LINGER_S = 0.001
"""How long a frame that is durable waits to be heard of, at most, for the others."""

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
        self.count = frames or 1
        return frames > 1

    def end(self) -> None:
        """From now on everyone rings."""
        self.count = 1

    def holds(self, come: int) -> bool:
        """Whether who is the last of so many that have come leaves it to another to ring."""
        return come < self.count
