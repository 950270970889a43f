"""What a checkpoint hands to the store, and what the store says of it. Plain values.

The store knows nothing of tickets. Whoever builds a batch encodes heads, rows and names; the store
adds checksums, finds out where a ticket was, and writes all of it in one transaction.
"""

import struct
from collections import defaultdict
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Final, NamedTuple

from parkade.store.meta import Memo

__all__ = ["BOOKMARK_FENCE", "Batch", "Claim", "Commit", "pack_ended"]

BOOKMARK_FENCE = 0

_ENDED = struct.Struct(">B8sQQ")


class Claim(NamedTuple):
    """A row of a unique name. The store drops it by itself once `until_ms` has passed on the
    settled clock; a negative `until_ms` has no end."""

    row: bytes
    until_ms: int


class Commit(NamedTuple):
    """A batch that is durable.

    `lane_tickets`: how many pending tickets there are now in each lane of which one came or went;
    None: this store does not count them. `number` grows with each commit, also where the LSN stands
    still; a snapshot tells which one it sees. `has_refine_due`: an agenda bucket whose time is near
    still waits to be split, so commit again soon, even with nothing in the batch. `has_upkeep`:
    there is garbage left to clear, in no hurry.
    """

    lsn: int
    number: int
    has_grown: bool
    written_bytes: int
    has_refine_due: bool
    has_upkeep: bool
    lane_tickets: dict[int, int] | None = None


pack_ended: Final[Callable[[int, bytes, int, int], bytes]] = _ENDED.pack
"""An entry of `Batch.ended`, of state, digest of the task (8 bytes), end in ms, and serial."""


@dataclass(slots=True)
class Batch:
    """The changes between the store's LSN and `lsn`. Filled by one thread, then handed over.

    Agenda entries, leaves and lane rows are packed by `entry.pack_entry`.
    """

    lsn: int
    epoch: int
    now_ms: int  # decides how fine agenda entries are written, and what is split ahead of time
    settled_ms: int  # ends unique rows
    counters: dict[tuple[str, int], int]  # tickets by (task, state), whole: not a change of them
    memo: Memo = field(default_factory=Memo)  # whole as well

    # By serial. None deletes; a deleted head takes body and history with it.
    heads: dict[int, bytes | None] = field(default_factory=dict[int, bytes | None])
    # a kind byte first
    bodies: dict[int, bytes | None] = field(default_factory=dict[int, bytes | None])
    # Of tickets that the store does not have, in order of their keys: heads and bodies, and no more
    fresh_keys: list[bytes] = field(default_factory=list[bytes])
    fresh_heads: list[bytes] = field(default_factory=list[bytes])
    fresh_bodies: list[bytes] = field(default_factory=list[bytes])  # without their kind
    fresh_kind: bytes = b""  # of all of these
    # By (serial, fence); None deletes. Fences begin at 1: the row under BOOKMARK_FENCE is what an
    # attempt saved.
    history: dict[tuple[int, int], bytes | None] = field(
        default_factory=dict[tuple[int, int], bytes | None]
    )

    # A pending ticket that takes a position is in `agenda`, `lane_rows` or (with its key)
    # `wait_rows`, one that gives its position up is in `leaves` or (with its key) `keyed_leaves`,
    # with the NEGATIVE flag; in both when it moves.
    agenda: list[bytes] = field(default_factory=list[bytes])
    lane_rows: list[bytes] = field(default_factory=list[bytes])
    # of tickets of `fresh_keys`, by `pack_lane_keys`: the rows of those that are where they were
    # first due
    fresh_lane_keys: list[bytes] = field(default_factory=list[bytes])
    wait_rows: list[tuple[str, bytes]] = field(default_factory=list[tuple[str, bytes]])
    leaves: list[bytes] = field(default_factory=list[bytes])
    keyed_leaves: list[tuple[str, bytes]] = field(default_factory=list[tuple[str, bytes]])
    # None: the lane has no tickets any more, and its number is given to no other
    lane_names: dict[int, bytes | None] = field(default_factory=dict[int, bytes | None])

    # by 16-byte name
    uniques: dict[bytes, Claim | None] = field(default_factory=dict[bytes, Claim | None])
    # By prefix, each serial once: those that are listed under it from now on, or no longer
    listed: defaultdict[bytes, list[int]] = field(default_factory=lambda: defaultdict(list))
    unlisted: defaultdict[bytes, list[int]] = field(default_factory=lambda: defaultdict(list))
    # prefix, then the 8 bytes of the serial
    index_puts: list[bytes] = field(default_factory=list[bytes])
    index_deletes: list[bytes] = field(default_factory=list[bytes])
    ended: list[bytes] = field(default_factory=list[bytes])  # of `pack_ended`, for retention
    # keys of its blobs that are of no more use
    spent: list[bytes] = field(default_factory=list[bytes])
    outbox: dict[bytes, bytes] = field(default_factory=dict[bytes, bytes])  # by `outbox.pack_place`
    # first key, last key
    outbox_spent: list[tuple[bytes, bytes]] = field(default_factory=list[tuple[bytes, bytes]])
    taken: bytes | None = None  # of meta: up to where the entries of other outboxes are here

    def estimate_bytes(self) -> int:
        """About how much the rows take in the store, for growing it ahead of the commit."""
        sealed = 0
        for rows in (self.heads, self.bodies):
            sealed += sum(map(len, filter(None, rows.values()))) + 24 * len(rows)
        for fresh in (self.fresh_heads, self.fresh_bodies):
            sealed += sum(map(len, fresh)) + 24 * len(fresh)
        sealed += sum(len(row or b"") for row in self.history.values()) + 32 * len(self.history)
        sealed += sum(len(claim.row) + 56 for claim in self.uniques.values() if claim is not None)
        sealed += sum(len(row) + len(key) + 16 for key, row in self.outbox.items())
        entries = len(self.agenda) + len(self.leaves) + len(self.lane_rows)
        entries += len(self.fresh_lane_keys)
        entries += len(self.keyed_leaves) + sum(1 + len(key) // 16 for key, _ in self.wait_rows)
        entries_of_tables = len(self.index_puts) + len(self.ended)
        listed = sum(map(len, (*self.listed.values(), *self.unlisted.values())))
        return sealed + 48 * entries + 24 * (entries_of_tables + listed)
