"""What the dead letter office costs when there are very many: counted in rows and in questions."""

from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from kit.engines import make
from parkade import Engine
from parkade.clock import SystemClock
from parkade.desk import Desk
from parkade.index_keys import index_keys, task_prefix
from parkade.shard.grouping import group_of_dead
from parkade.shard.states import DEAD
from parkade.shard.ticket import Ticket, encode_ticket
from parkade.store.batch import Batch
from parkade.store.disk import RealDisk
from parkade.store.manifest import read_manifest
from parkade.store.parked import Parked
from parkade.store.record import ErrorText
from parkade.store.snapshot import Snapshot

MANY, GROUPS = 200_000, 20
SHARDS = 2


def bury_many(path: Path, count: int, groups: int) -> None:
    """A directory whose stores hold so many dead tickets, as a checkpoint would have left them."""
    with make(path, shards=SHARDS, durability="process", run=False):
        pass
    manifest = read_manifest(RealDisk(), str(path))
    assert manifest is not None
    first = SystemClock().now_ms() << 20
    group_by_nth: dict[int, bytes] = {}  # all its messages have one shape
    for shard in range(SHARDS):
        store = Parked.open(
            f"{path}/shard-{shard:03d}/store", salt=manifest.salt, shard=shard, is_new=False
        )
        counters = {("work", DEAD): count // SHARDS}
        batch = Batch(store.lsn, store.epoch, 0, store.settled_ms, counters)
        for serial in range(first + shard, first + count, SHARDS):
            died_ms = serial - first
            ticket = Ticket(serial, shard, "work", DEAD, 0, 0, 0, attempts=1, fence=1)
            ticket.finished_ms, ticket.why = died_ms, "failed"
            nth = died_ms // SHARDS % groups
            ticket.error = ErrorText(f"Error{nth}", f"row {died_ms} is bad")
            if nth not in group_by_nth:
                group_by_nth[nth] = group_of_dead(ticket)
            ticket.group = group_by_nth[nth]
            batch.heads[serial] = encode_ticket(ticket)
            batch.listed[task_prefix(ticket.task, DEAD)].append(serial)
            batch.index_puts += index_keys(serial.to_bytes(8, "big"), ticket, ticket.group)
        store.commit(batch)
        store.close()


def count_calls(
    patch: pytest.MonkeyPatch, calls: Counter[str], owner: type, name: str,
    amount: Callable[[Any], int] = lambda _: 1,
) -> None:  # fmt: skip
    """Counts what a method gives, whoever calls it."""
    method = getattr(owner, name)

    def counted(self: Any, *args: Any, **more: Any) -> Any:
        got = method(self, *args, **more)
        calls[name] += amount(got)
        return got

    patch.setattr(owner, name, counted)


def test_two_hundred_thousand_dead_in_twenty_groups_are_told_by_some_dozen_rows(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    bury_many(tmp_path / "data", MANY, GROUPS)
    with make(tmp_path / "data", shards=SHARDS, durability="process", run=False) as engine:
        seen: Counter[str] = Counter()
        count_calls(monkeypatch, seen, Snapshot, "head")
        count_calls(monkeypatch, seen, Snapshot, "prefixes", len)
        count_calls(monkeypatch, seen, Snapshot, "page", len)
        groups = engine.dead.groups()
        assert [group.count for group in groups] == [MANY // GROUPS] * GROUPS
        assert {group.error_type for group in groups} == {f"Error{n}" for n in range(GROUPS)}
        assert sum(group.first_at.timestamp() for group in groups) < 1, "the first of each"
        assert {group.last_at.timestamp() >= (MANY - 2 * SHARDS * GROUPS) / 1e3 for group in groups}
        assert seen["head"] == 2 * GROUPS * SHARDS, "two tickets of each group in each shard"
        assert seen["prefixes"] == GROUPS * SHARDS, "a group is counted once in each shard"
        assert seen["page"] <= 16 * seen["head"]
        assert engine.dead.count() == MANY
        assert len(engine.dead.find(group=groups[0].key, limit=7).items) == 7
        assert seen["head"] <= 2 * GROUPS * SHARDS + 7 * SHARDS, "a page reads its own tickets"


def asked(engine: Engine, call: Callable[[], Any]) -> int:
    """How many questions a call asks."""
    asks: Counter[str] = Counter()
    with pytest.MonkeyPatch.context() as patch:
        count_calls(patch, asks, Desk, "ask")
        call()
    return asks["ask"]


def test_a_plan_asks_by_the_page_and_never_by_the_ticket(tmp_path: Path) -> None:
    bury_many(tmp_path / "data", 4_000, 2)
    with make(tmp_path / "data", shards=SHARDS, durability="process", run=False) as engine:
        pages = 4_000 // 500
        assert asked(engine, lambda: engine.dead.revive(task="work", dry_run=True)) <= 2 * pages + 2
        plan = engine.dead.drop(task="work", dry_run=True)
        assert (plan.matched, plan.changed, plan.skipped) == (4_000, 4_000, {})
        ids = [info.id for info in engine.dead.find(limit=1_000)]
        assert asked(engine, lambda: engine.dead.revive(*ids, dry_run=True)) == 2
        assert asked(engine, lambda: engine.dead.drop(*ids)) == 2
        assert engine.dead.count() == 3_000
