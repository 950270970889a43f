"""How long the last frames of a shard took to be on disk, for whoever looks: nothing is decided by
it. One thread at a time adds, any may read."""

from collections import deque

__all__ = ["KEPT_MAX", "Latencies"]

KEPT_MAX = 512  # of a shard, the latest


class Latencies:
    """The latest of them, in microseconds. `add`: one more frame is on disk."""

    __slots__ = ("_kept", "add")

    def __init__(self) -> None:
        self._kept: deque[int] = deque(maxlen=KEPT_MAX)
        self.add = self._kept.append

    def latest(self) -> list[int]:
        """In order; a copy, taken in one step."""
        return list(self._kept)
