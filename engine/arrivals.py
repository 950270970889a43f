"""Hand-overs that have come to a shard and are not decided yet, and those who ask about them.

The id of a child is known before its ticket exists. So whoever asks about one that is not here,
while others are on their way to this shard, waits until those have arrived, however many they are.
He waits once, and for no more than was on its way when he asked (docs/architecture.md, Outbox,
rule 6).
"""

from collections import deque
from collections.abc import Sequence
from typing import TYPE_CHECKING, Final, NamedTuple, TypeAlias, cast

from parkade.asks import Ask, AwaitEnd, Look
from parkade.reading import Read
from parkade.shard.commands import Cancel, Need, Refusal, Reschedule
from parkade.shard.outbox import Place

if TYPE_CHECKING:
    from parkade.handing import Left
    from parkade.shard_host import ShardHost

__all__ = ["Arrivals", "pass_over_damage"]

_ABOUT_ONE: Final = (Look, AwaitEnd, Cancel, Reschedule)
_Behind: TypeAlias = list[tuple["ShardHost", Place]]


class _Asker(NamedTuple):
    """Who waits, and for what: of each sender for what it had then."""

    ask: Ask
    serial: int
    behind: _Behind


class Arrivals:
    """Of one shard; used by the core thread alone."""

    def __init__(self, shard: "ShardHost") -> None:
        self.queue: deque[Ask] = deque()
        self._shard = shard
        self._askers: list[_Asker] = []

    @property
    def is_awaited(self) -> bool:
        """Whether somebody waits for what is on its way."""
        return bool(self._askers)

    def holds(self, ask: Ask, answer: object = None) -> bool:
        """Whether an ask that is answered like this may be about a ticket that is on its way; it is
        kept then, to be asked again."""
        asked = ask.asked
        if ask.has_waited or not isinstance(asked, _ABOUT_ONE) or not _is_unknown(answer):
            return False
        behind = [
            (sender, sender.handing.durable_place)
            for sender in self._shard.host.shards
            if sender.is_served
        ]
        behind = self._still_behind(asked.serial, behind, {})
        if not behind:
            return False
        ask.has_waited = True
        self._askers.append(_Asker(ask, asked.serial, behind))
        return True

    def take_answerable(self) -> list[Ask]:
        """Those for whom all has arrived that was on its way when they asked, or cannot arrive."""
        if not self._askers:
            return []
        looked: dict[int, Left] = {}
        waiting: list[_Asker] = []
        answerable: list[Ask] = []
        for asker in self._askers:
            behind = self._still_behind(asker.serial, asker.behind, looked)
            if behind:
                waiting.append(asker._replace(behind=behind))
            else:
                answerable.append(asker.ask)
        self._askers = waiting
        return answerable

    def _still_behind(self, serial: int, behind: _Behind, looked: "dict[int, Left]") -> _Behind:
        """Who may still bring the ticket; one that is being recovered may."""
        found: _Behind = []
        for sender, place in behind:
            if sender.is_open:
                if sender.number not in looked:
                    looked[sender.number] = sender.handing.left_for(self._shard.number)
                if looked[sender.number].may_have(serial, place):
                    found.append((sender, place))
            elif sender.is_served:
                found.append((sender, place))
        return found

    def drop(self) -> list[Ask]:
        """Lets all go: hand-overs, and who waits for them."""
        dropped = [*self.queue]
        for asker in self._askers:
            asker.ask.has_waited = False  # asked anew, it may have to wait again
            dropped.append(asker.ask)
        self.queue.clear()
        self._askers.clear()
        return dropped


def _is_unknown(answer: object) -> bool:
    if isinstance(answer, Sequence):
        answers = cast("Sequence[object]", answer)
        return any(isinstance(each, Refusal) and each.code == "unknown" for each in answers)
    return answer is None


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
