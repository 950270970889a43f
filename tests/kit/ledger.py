"""The law of a journal as a ledger: what was answered survives, nothing else half-survives.

A ledger notes every body that was offered and whether it was answered. What an open then finds
must be the answered ones in order, each at its LSN, with nothing between them but bodies that
were offered and not answered. What is once found stays; what is once not found never returns.
"""

from dataclasses import dataclass, field
from enum import Enum

from parkade.store.errors import NoRoom, StoreError
from parkade.store.frame import Frame
from parkade.store.journal import Journal


class Fate(Enum):
    """What is known of an offered body."""

    ANSWERED = "answered"
    OPEN = "open"
    GONE = "gone"


@dataclass
class Offer:
    """A body that was handed to `append`."""

    body: bytes
    fate: Fate
    lsn: int = 0


@dataclass
class Ledger:
    """`store_lsn` is what a store has, which survives everything."""

    store_lsn: int = 0
    offers: list[Offer] = field(default_factory=list)

    def append(self, journal: Journal, body: bytes) -> int:
        """Appends one record and notes what came of it; raises as the journal does."""
        offer = Offer(body, Fate.OPEN)
        self.offers.append(offer)
        try:
            offer.lsn = journal.append(body, 1)
        except NoRoom:
            offer.fate = Fate.GONE
            raise
        offer.fate = Fate.ANSWERED
        return offer.lsn

    def drop(self, journal: Journal, lsn: int) -> int:
        """Says that the store has everything up to `lsn`, and drops it from the journal."""
        self.store_lsn = max(self.store_lsn, min(lsn, journal.last_lsn))
        return journal.drop_through(self.store_lsn)

    def check(self, journal: Journal, frames: list[Frame]) -> None:
        """Holds a journal that was just opened, and its replay, against what is known."""
        found = {frame.first_lsn: frame.body for frame in frames}
        lsns = sorted(found)
        assert lsns == list(range(self.store_lsn + 1, self.store_lsn + 1 + len(lsns)))
        assert journal.next_lsn == max([self.store_lsn, *lsns]) + 1
        bodies = [found[lsn] for lsn in lsns]
        known = [offer for offer in self.offers if offer.fate is not Fate.GONE]
        live = [o for o in known if o.fate is Fate.OPEN or o.lsn > self.store_lsn]
        expected = [offer.body for offer in live if offer.fate is Fate.ANSWERED]
        offered = iter(offer.body for offer in live)
        assert all(body in offered for body in bodies), ("not what was offered", bodies)
        assert [b for b in bodies if b in expected] == expected, ("lost", expected, bodies)
        self._learn({body: lsn for lsn, body in found.items()}, live)

    def _learn(self, found: dict[bytes, int], live: list[Offer]) -> None:
        for offer in live:
            if offer.body in found:
                assert offer.fate is Fate.OPEN or offer.lsn == found[offer.body]
                offer.fate, offer.lsn = Fate.ANSWERED, found[offer.body]
            else:
                offer.fate = Fate.GONE


def close_quietly(journal: Journal | None) -> None:
    """Gives the files of a journal back, whatever the disk says."""
    if journal is None:
        return
    try:
        journal.close(clean=False)
    except StoreError:
        # The disk of this test may fail at any call.
        return
