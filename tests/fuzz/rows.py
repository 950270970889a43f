"""Rows of a store's tables: changed, moved, doubled, taken out; with the checksum that they had, or
one that is right again."""

from pathlib import Path

import lmdb

from fuzz.mutations import mutate_bytes, mutate_msgpack
from fuzz.tape import Tape
from fuzz.towns import SHARDS, harmed_copy, judge, part_directory
from parkade.store.environment import Tables
from parkade.store.rows import CRC_BYTES, seal

__all__ = ["target"]

TABLES = tuple(name for name in Tables._fields)
HARMS_MAX = 3


def target(data: bytes) -> None:
    """Harms some rows of one part, and judges what is left."""
    tape = Tape(data)
    part = tape.pick((0, 0, 1, 1, SHARDS))
    is_forged = tape.flag()
    runs, repairs = tape.below(4) == 1, tape.below(8) == 2
    with harmed_copy() as path:
        harm(tape, part_directory(path, part) / "store", is_forged=is_forged)
        judge(path, part, is_forged=is_forged, runs=runs, repairs=repairs)


def harm(tape: Tape, store: Path, *, is_forged: bool) -> None:
    """Changes one row, or some; of the same table, or of others."""
    with lmdb.open(str(store), max_dbs=32, lib_version=0, sync=False) as environment:
        for _ in range(1 + tape.below(HARMS_MAX)):
            name = tape.pick(TABLES)
            table = environment.open_db(name.encode(), create=False)
            with environment.begin(write=True) as transaction:
                _harm_one(tape, transaction, table, name, is_forged=is_forged)


def _harm_one(
    tape: Tape,
    transaction: "lmdb.Transaction[bytes]",
    table: "lmdb._Database",
    name: str,
    *,
    is_forged: bool,
) -> None:
    rows = [(bytes(key), bytes(value)) for key, value in transaction.cursor(table)]
    if not rows:
        return
    key, stored = tape.pick(rows)
    other_key, other = tape.pick(rows)
    value = stored if name == "indexes" else stored[:-CRC_BYTES]
    how = tape.below(8)
    transaction.delete(key, stored, db=table)
    new_key, new = key, value
    if how < 4:
        new = mutate_msgpack(tape, value) if is_forged else mutate_bytes(tape, value)
    elif how == 4:
        new_key = other_key
    elif how == 5:
        new_key = mutate_bytes(tape, key)
    elif how == 6:
        new = other if name == "indexes" else other[:-CRC_BYTES]
    else:
        return
    if name == "indexes":
        new = new[:8].ljust(8, b"\0")
    else:
        new = seal(new_key, new) if is_forged else new + stored[-CRC_BYTES:]
    if 0 < len(new_key) <= 511:
        transaction.put(new_key, new, db=table)
