"""Hand-overs that have come to a shard and are not decided yet, and those who ask about them.

The id of a child is known before its ticket exists. So whoever asks about one that is on its way is
answered when it is here, and not told that there is no such ticket.
"""

from collections import deque
from typing import Any

from parkade.asks import Ask
from parkade.reading import Read
from parkade.shard.commands import Deliver, Need

__all__ = ["Arrivals", "pass_over_damage"]


class Arrivals:
    """Of one shard; used by the core thread alone."""

    def __init__(self) -> None:
        self.queue: deque[Ask] = deque()
        self._askers: dict[int, list[Ask]] = {}

    def put(self, ask: Ask) -> None:
        """Takes a hand-over in."""
        self.queue.append(ask)
        for serial in _serials(ask):
            self._askers.setdefault(serial, [])

    def holds(self, ask: Ask) -> bool:
        """Whether an ask has to wait for a ticket that is on its way; it is kept then."""
        if not self._askers:
            return False
        waiting = self._askers.get(getattr(ask.asked, "serial", -1))
        if waiting is None:
            return False
        waiting.append(ask)
        return True

    def release(self, ask: Ask) -> list[Ask]:
        """A hand-over is decided, or will not be: who waited for what it brings."""
        waiting: list[Ask] = []
        if type(ask.asked) is Deliver:
            for serial in _serials(ask):
                waiting += self._askers.pop(serial, ())
        return waiting

    def drop(self) -> list[Ask]:
        """Lets all go: hand-overs, and who waits for them."""
        dropped = [*self.queue]
        for waiting in self._askers.values():
            dropped += waiting
        self.queue.clear()
        self._askers.clear()
        return dropped


def pass_over_damage(need: Need, got: Read) -> list[Exception]:
    """A name whose row is damaged is as good as free for a child: nobody could be told that it is
    refused, and all behind it would wait. What was wrong."""
    damages: list[Exception] = []
    for name in need.uniques:
        damage = got.damaged_names.pop(name, None)
        if damage is not None:
            damages.append(damage)
            got.loaded.uniques[name] = None
    got.damaged.difference_update(need.serials)
    return damages


def _serials(ask: Ask) -> list[int]:
    asked: Any = ask.asked
    return [draft.serial for _, draft in asked.entries]
