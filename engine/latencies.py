"""How long the last frames of a shard took to be on disk, for whoever looks: nothing is decided by
it. One thread at a time adds, any may read."""

__all__ = ["KEPT_MAX", "Latencies"]

KEPT_MAX = 512  # of a shard, the latest


class Latencies:
    """The latest of them, in microseconds."""

    __slots__ = ("_added", "_kept")

    def __init__(self) -> None:
        self._kept: list[int] = []
        self._added = 0

    def add(self, taken_us: int) -> None:
        """One more frame is on disk."""
        if len(self._kept) < KEPT_MAX:
            self._kept.append(taken_us)
        else:
            self._kept[self._added % KEPT_MAX] = taken_us
        self._added += 1

    def latest(self) -> list[int]:
        """In no order; a copy, taken in one step."""
        return self._kept[:]
