"""How many shards a directory had, where only its tickets tell: each is in shard `part % shards`.

A folder that is missing leaves no other trace, and with too small a number every ticket would be
looked for where it is not.
"""

from collections.abc import Iterator, Sequence

from parkade.salvaging import Salvaged
from parkade.shard.ticket import HeadDamage, decode_ticket
from parkade.store.disk import Disk
from parkade.store.errors import StoreError
from parkade.store.journal_salvage import salvage_journal
from parkade.store.manifest import SHARDS_MAX
from parkade.store.record import RecordDamage, Submitted, decode_records
from parkade.store.rows import unseal
from parkade.store.salvage import read_rows
from parkade.store.segment import read_frames

__all__ = ["parts_of_heads", "parts_of_journal", "shards_told"]

SURE_TICKETS = 20  # that so many agree on a number by chance is one case in a million


def shards_told(parts: Sequence[set[int]], least: int) -> int:
    """The number of shards, at least `least`, from the parts of the tickets in each of the first.

    With many tickets it is the greatest number that all agree on, since multiples of the right one
    do not pass; with few the least, which leaves each of them where it is found. `least` if none.
    """
    fitting = [
        shards
        for shards in range(least, SHARDS_MAX + 1)
        if all(part % shards == at for at, found in enumerate(parts) for part in found)
    ]
    if not fitting:
        return least
    return max(fitting) if sum(map(len, parts)) >= SURE_TICKETS else min(fitting)


def parts_of_heads(salvaged: Salvaged) -> set[int]:
    """Those of the tickets in a store."""
    parts: set[int] = set()
    for row in read_rows(salvaged.rows, "heads"):
        head = unseal(row.key, row.stored)
        try:
            if head is not None:
                parts.add(decode_ticket(head).part)
        except HeadDamage:
            continue
    return parts


def parts_of_journal(disk: Disk, journal: str, salt: bytes, number: int) -> set[int]:
    """Those of the tickets that a journal knows by their submits."""
    return set(_parts_of_frames(disk, journal, salt, number))


def _parts_of_frames(disk: Disk, journal: str, salt: bytes, number: int) -> Iterator[int]:
    found = salvage_journal(disk, journal, salt=salt, shard=number, store_lsn=0)
    for scan, head in found.sound + found.behind:
        try:
            (frame,) = read_frames(disk, scan, [head])
            records = decode_records(frame.body)
        except (StoreError, RecordDamage):
            continue
        for record in records:
            if isinstance(record, Submitted):
                yield record.part
