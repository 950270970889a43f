"""Whether to wait once more for what did not come the last time."""

__all__ = ["WITHOUT_MAX", "Patience"]

WITHOUT_MAX = 32


class Patience:
    """After a wait in vain the next two occasions are passed over, and twice as many after each
    further one in a row: a busy machine is not taken for one on which nothing ever comes."""

    __slots__ = ("_next", "_without")

    def __init__(self) -> None:
        self._without, self._next = 0, 2

    def takes(self) -> bool:
        """An occasion: whether to wait."""
        if self._without > 0:
            self._without -= 1
            return False
        return True

    def reward(self) -> None:
        """What was waited for came."""
        self._next = 2

    def disappoint(self) -> None:
        """It did not."""
        self._without = self._next
        self._next = min(2 * self._next, WITHOUT_MAX)
