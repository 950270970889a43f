"""Whether a number that is read again and again stays where it is."""

from collections.abc import Sequence
from dataclasses import dataclass
from statistics import median
from typing import NamedTuple

__all__ = ["Bound", "Verdict", "judge"]

STEP_SHARE_MIN = 0.25  # of the whole growth, in each half of the time: else it was one step


class Bound(NamedTuple):
    """How much more is no growth: so much, and that share of what there was."""

    amount: float
    share: float = 0.0

    def of(self, first: float) -> float:
        return self.amount + self.share * abs(first)


@dataclass(frozen=True)
class Verdict:
    """The medians of the three thirds of the time, and what they may differ by."""

    thirds: tuple[float, float, float]
    bound: float

    @property
    def growth(self) -> float:
        return self.thirds[2] - self.thirds[0]

    @property
    def grows(self) -> bool:
        """More than it may, and all the time: what rises once and stays there does not leak."""
        first, middle, last = self.thirds
        least = STEP_SHARE_MIN * self.growth
        return self.growth > self.bound and middle - first >= least and last - middle >= least


def judge(values: Sequence[float], bound: Bound) -> Verdict:
    """Of readings at even times, the warm-up left out. Fewer than three tell nothing."""
    third = max(1, len(values) // 3)
    parts = values[:third], values[third:-third] or values[:third], values[-third:]
    first, middle, last = (float(median(part)) if part else 0.0 for part in parts)
    return Verdict((first, middle, last), bound.of(first))
