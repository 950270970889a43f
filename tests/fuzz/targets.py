"""All targets by name: what each does with bytes, and how many bytes it makes use of."""

from collections.abc import Callable
from typing import NamedTuple

from fuzz import journal, rows

__all__ = ["TARGETS", "Target"]


class Target(NamedTuple):
    """`run` raises for what must not be. `examples` are those of the default suite."""

    run: Callable[[bytes], None]
    bytes_max: int
    examples: int


TARGETS = {
    "journal": Target(journal.target, 64, 25),
    "rows": Target(rows.target, 64, 25),
}
