"""Short tickets at full load that are kept for a second: what the stores hold afterwards."""

from dataclasses import dataclass
from pathlib import Path
from typing import Any

from parkade import Engine
from parkade.store.environment import open_environment, open_tables

SHARDS = 4
CHUNK = 1_000
AHEAD = 2_000  # submitted and not done yet: the engine is never without work
WAIT_S = 120


@dataclass
class Held:
    """`pages`: those of all tables in all shards. `high_pages`: how many there were at most.
    `segments`: the most of any shard. `left_max`: the most ended tickets at any look."""

    pages: int
    high_pages: int
    segments: int
    left_max: int
    done_total: int


def run(directory: Path, *counts: int) -> Held:
    """Runs so many tickets, one load after the other; the last waits until the first are gone."""
    engine = Engine(directory, shards=SHARDS, durability="process", keep_done="1s", threads=4)

    @engine.task
    def short(n: int) -> int:
        return n

    left_max = done = 0
    with engine:
        desk = engine.desk("a test")
        for count in counts:
            for first in range(0, count, CHUNK):
                engine.submit_many(short.call(n) for n in range(first, first + CHUNK))
                done += CHUNK
                await_that(desk, lambda: waiting(desk) <= AHEAD)
                left_max = max(left_max, ended(desk))
            await_that(desk, lambda: not waiting(desk))
            await_that(desk, lambda: not ended(desk))
        segments = max(shard.journal.segments for shard in desk.runtime.shards)
        total = engine.stats().done_total
    pages = [pages_of(f"{directory}/shard-{n:03d}/store") for n in range(SHARDS)]
    return Held(
        sum(used for used, _ in pages), sum(high for _, high in pages), segments, left_max, total
    )


def await_that(desk: Any, condition: Any) -> None:
    assert desk.runtime.host.when(condition).wait(WAIT_S), "the engine is stuck"


def waiting(desk: Any) -> int:
    return count(desk, range(2))


def ended(desk: Any) -> int:
    return count(desk, range(2, 6))


def count(desk: Any, states: range) -> int:
    cores = [shard.core for shard in desk.runtime.host.open_shards()]
    return sum(n for core in cores for (_, state), n in core.counters.items() if state in states)


def pages_of(directory: str) -> tuple[int, int]:
    """(pages of all tables, pages up to the last that was ever used)."""
    environment = open_environment(directory, map_bytes=1 << 26)
    try:
        tables = open_tables(environment, directory, is_new=False)
        with environment.begin() as transaction:
            stats = [transaction.stat(table) for table in tables]
        used = sum(
            stat["branch_pages"] + stat["leaf_pages"] + stat["overflow_pages"] for stat in stats
        )
        return used, environment.info()["last_pgno"] + 1
    finally:
        environment.close()
