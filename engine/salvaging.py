"""The child of a repair: reads one table of a damaged store at a time, and says how far it came."""

import errno
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple

import lmdb

from parkade.apart import ChildDied, lines_apart, serve_lines
from parkade.store.disk import Disk
from parkade.store.errors import StoreError, write_error
from parkade.store.salvage import (
    BACKWARD,
    FORWARD,
    TABLES,
    is_store_there,
    read_rows,
    salvage_step,
)

__all__ = ["Salvaged", "salvage_stores"]

ROW_FRONT_BYTES = 9  # of a row in the file, before its key


@dataclass(slots=True)
class Salvaged:
    """A file of rows, and of which tables some may be missing."""

    rows: str
    broken: list[str] = field(default_factory=list[str])
    notes: list[str] = field(default_factory=list[str])


class _Step(NamedTuple):
    store: int
    table: str
    way: str


def salvage_stores(disk: Disk, places: Sequence[tuple[str, str]]) -> list[Salvaged]:
    """Reads what can be read of stores: (directory, new file for its rows) each.

    Raises `NoRoom`, `WriteFailed` where a file for rows cannot be written."""
    results = [Salvaged(target) for _, target in places]
    steps: list[_Step] = []
    for number, (directory, _) in enumerate(places):
        if is_store_there(directory):
            steps += [_Step(number, table, FORWARD) for table in TABLES]
        else:
            results[number].broken = list(TABLES)
            results[number].notes.append(f"{directory}: there is no store")
    while steps:
        asked = [(*places[step.store], step.table, step.way) for step in steps]
        again: list[_Step] = []
        done = 0
        try:
            for said in lines_apart(__name__, {"steps": asked}):
                step = steps[done]
                done += 1
                if said["errno"]:
                    target = results[step.store].rows
                    raise write_error(target, OSError(said["errno"], said["why"]))
                if not said["is_whole"]:
                    again += _broken(results[step.store], step, said["why"])
        except ChildDied as death:
            step = steps[done]
            done += 1
            why = f"reading it ended the process ({death.reason})"
            again += _broken(results[step.store], step, why)
            _cut(disk, results[step.store].rows)
        steps = steps[done:] + again
    return results


def _broken(got: Salvaged, step: _Step, why: str) -> list[_Step]:
    """A table that ended too early is walked from its back as well."""
    _note(got, step.table, why)
    return [step._replace(way=BACKWARD)] if step.way == FORWARD else []


def _note(got: Salvaged, table: str, why: str) -> None:
    if table not in got.broken:
        got.broken.append(table)
        got.notes.append(f"table {table}: {why}")


def _cut(disk: Disk, target: str) -> None:
    """A row that was half-written when the child died is taken away."""
    if not disk.exists(target):
        return
    whole = sum(ROW_FRONT_BYTES + len(row.key) + len(row.stored) for row in read_rows(target))
    handle = disk.open(target)
    try:
        disk.ftruncate(handle, whole)
    finally:
        disk.close(handle)


def _say(asked: dict[str, Any]) -> Iterator[dict[str, Any]]:
    for directory, target, table, way in asked["steps"]:
        last = b""
        if way == BACKWARD:
            for row in read_rows(target, table):
                last = row.key
        why, code = "it cannot be walked to its end", 0
        try:
            is_whole = salvage_step(directory, table, way, target, last)
        except (lmdb.Error, StoreError) as error:
            is_whole, why = False, str(error)
        except OSError as error:
            is_whole, why, code = False, str(error), error.errno or errno.EIO
        yield {"is_whole": is_whole, "why": why, "errno": code}


if __name__ == "__main__":
    serve_lines(_say)
