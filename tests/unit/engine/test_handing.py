"""Hand-overs that are waited for before anything starts."""

from types import SimpleNamespace
from typing import Any, cast

from parkade.handing import Handing
from parkade.shard.outbox import Place


class Shelf:
    """A shard in its second life with entries for shard 1, of which memory holds the first."""

    def __init__(self) -> None:
        self.receiver = SimpleNamespace(is_open=True)
        self.outbox = SimpleNamespace(windows={1: {Place(1, 9, 0): None}}, beyond={1})
        self.shard: Any = SimpleNamespace(
            core=SimpleNamespace(epoch=2, outbox=self.outbox),
            host=SimpleNamespace(shard=lambda number: self.receiver if number == 1 else None),
        )
        self.handing = Handing(cast("Any", self.shard))

    def is_behind(self, *, arrived: Place) -> bool:
        self.handing._arrived[1] = arrived
        return self.handing.is_behind


def test_what_memory_does_not_hold_yet_is_waited_for_too() -> None:
    shelf = Shelf()
    assert shelf.is_behind(arrived=Place(1, 8, 0))
    assert shelf.is_behind(arrived=Place(1, 9, 0)), "there may be more from before"
    shelf.outbox.windows[1][Place(1, 12, 0)] = None
    assert shelf.is_behind(arrived=Place(1, 9, 0))
    shelf.outbox.windows[1][Place(2, 3, 0)] = None
    assert not shelf.is_behind(arrived=Place(1, 12, 0)), "the next is of this life"


def test_a_receiver_that_comes_back_is_waited_for_again() -> None:
    shelf = Shelf()
    shelf.receiver.is_open = False
    assert not shelf.is_behind(arrived=Place(0, 0, 0)), "nobody can take it"
    shelf.receiver.is_open = True
    shelf.outbox.windows.clear()  # so that nothing is sent
    shelf.outbox.beyond.clear()
    shelf.handing.restart(1)
    shelf.outbox.beyond.add(1)
    assert shelf.handing.is_behind
