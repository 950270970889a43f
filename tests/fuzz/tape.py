"""Choices read off bytes: whoever makes the bytes, at random or by what they reach, makes the
choices. Bytes that have run out give zeros, so any front of a tape is a tape, and shorter is
simpler."""

from collections.abc import Sequence
from typing import TypeVar

__all__ = ["Tape"]

T = TypeVar("T")


class Tape:
    """Reads each byte once, from the front."""

    def __init__(self, content: bytes) -> None:
        self._content = content
        self._at = 0

    @property
    def is_spent(self) -> bool:
        return self._at >= len(self._content)

    def take(self, count: int) -> bytes:
        """The next bytes, filled up with zeros."""
        taken = self._content[self._at : self._at + count]
        self._at += count
        return taken.ljust(count, b"\0")

    def rest(self) -> bytes:
        """All that is left."""
        taken = self._content[self._at :]
        self._at = len(self._content)
        return taken

    def number(self, size_bytes: int = 1) -> int:
        return int.from_bytes(self.take(size_bytes), "big")

    def below(self, bound: int) -> int:
        """A number from 0 to below `bound`."""
        return self.number(1 if bound <= 256 else 2 if bound <= 65_536 else 4) % bound

    def pick(self, choices: Sequence[T]) -> T:
        return choices[self.below(len(choices))]

    def flag(self) -> bool:
        return bool(self.number() & 1)
