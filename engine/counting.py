"""How many tickets of a shard are due, counted from its files by somebody who does not own it.

A running engine knows this from its lanes; here the agenda is read up to now.
"""

from collections.abc import Iterator

from parkade.onlooker import Sight
from parkade.shard import UNREAD
from parkade.shard.states import PENDING
from parkade.stats import ShardCounts
from parkade.store.entry import EXPIRY, NEGATIVE, POSITION_FIRST, SERIAL_MAX, unpack_entry
from parkade.store.sweep import AgendaReader

__all__ = ["READY_COUNT_MAX", "count_shard"]

READY_COUNT_MAX = 1_000_000  # a shard's: some seconds of reading; what is beyond is not told apart
_SWEEP_ENTRIES = 8_192


def count_shard(sight: Sight, now_ms: int) -> ShardCounts:
    """The shard's counters, and what of its pending tickets is due. Raises `Damage`."""
    core = sight.core
    ready, oldest_ms = 0, now_ms + 1
    in_agenda: set[int] = set()
    for serial, first_due_ms in _due_entries(sight, now_ms):
        if core.look(serial) is UNREAD:
            ready += 1
            oldest_ms = min(oldest_ms, first_due_ms)
        else:
            in_agenda.add(serial)
        if ready >= READY_COUNT_MAX:
            break
    lane_rows = sight.snapshot.lane_row_counts()
    ready += sum(lane_rows.values()) + sight.snapshot.wait_row_count()
    for lane_number, count in lane_rows.items():
        for row in sight.snapshot.lane_rows(lane_number, limit=min(count, 1)):
            oldest_ms = min(oldest_ms, row.first_due_ms)
    for key, lane_number in sight.snapshot.wait_queues():
        for row in sight.snapshot.wait_rows(key, lane_number, limit=1):
            oldest_ms = min(oldest_ms, row.first_due_ms)
    for serial, stored in core.stored_at.items():
        if stored.state == PENDING and stored.due_ms <= now_ms and serial not in in_agenda:
            ready -= 1  # its entry is a row of its lane or its key
    for ticket in core.hot.values():
        if ticket.state == PENDING and ticket.due_ms <= now_ms:
            ready += 1
            oldest_ms = min(oldest_ms, ticket.first_due_ms)
    oldest_ready_ms = oldest_ms if oldest_ms <= now_ms else None
    return ShardCounts(core.counters, max(0, ready), oldest_ready_ms, core.done_forgotten)


def _due_entries(sight: Sight, now_ms: int) -> Iterator[tuple[int, int]]:
    """(serial, first due) of every entry up to now."""
    snapshot, position, end = sight.snapshot, POSITION_FIRST, (now_ms, SERIAL_MAX)
    while position < end:
        swept = snapshot.sweep(position, now_ms, _SWEEP_ENTRIES)
        for _, serial, first_due_ms, _ in swept.entries:
            yield serial, first_due_ms
        position = swept.position
        if swept.needs_refine:
            break
    if position >= end:
        return
    # The rest lies in buckets that no commit has split yet: they can be walked, and not swept.
    agenda = AgendaReader(snapshot.transaction, snapshot.tables.agenda, snapshot.path)
    for entries in agenda.walk(_SWEEP_ENTRIES):
        for packed in entries:
            entry = unpack_entry(packed)
            if entry.due_ms > now_ms:
                return
            if (entry.due_ms, entry.serial) > position and not entry.flags & (NEGATIVE | EXPIRY):
                yield entry.serial, entry.first_due_ms
