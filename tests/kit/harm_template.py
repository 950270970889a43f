"""A small directory with one of every kind of file, and what was acknowledged about its tickets."""

import json
import shutil
from pathlib import Path
from typing import Any
from unittest import mock

from kit.one_life import KEYS, small_limits
from kit.stepped import SIZING
from parkade import RetryPolicy, limits
from parkade.testing import TestEngine

__all__ = ["ACKED", "CLOSED", "KILLED", "OLDER", "SHARDS", "build_templates", "tickets_of"]

SHARDS = 2
KILLED, CLOSED, OLDER, ACKED = "killed", "closed", "older", "acked.json"
# Nothing of what comes last gets into a store by itself.
PATIENT: dict[str, Any] = {
    "CHECKPOINT_JOURNAL_BYTES": 1 << 20,
    "CHECKPOINT_DIRTY_BYTES": 1 << 20,
    "DIRTY_BYTES_MAX": 4 << 20,
    "CHECKPOINT_TICKETS_MAX": 10_000,
    "CHECKPOINT_AGE_MS": 10_000_000,
}


def build_templates(base: Path) -> None:
    """`killed`: its journals hold what its stores do not; `closed`: the same, stopped; `older`: as
    `killed` was before. `acked.json` tells the state of each ticket, by id."""
    with small_limits():
        engine = TestEngine(base / KILLED, durability="disk", shards=SHARDS)
        engine._options.sizing = SIZING
        engine.start()
        _work(engine)
        with mock.patch.multiple(limits, **PATIENT):
            shutil.copytree(base / KILLED, base / OLDER)
            _work_on(engine)
            acked = tickets_of(engine)
            engine._kill()
            shutil.copytree(base / KILLED, base / CLOSED)
        with TestEngine(base / CLOSED, durability="disk", clock=engine.clock) as closed:
            assert tickets_of(closed) == acked
    (base / ACKED).write_text(json.dumps(acked), encoding="utf-8")


def _declare(engine: TestEngine) -> Any:
    @engine.task
    def keep(text: str) -> int:
        return len(text)

    @engine.task(retry=RetryPolicy(1))
    def fail(text: str) -> int:
        raise ValueError("no")

    return keep, fail


def _work(engine: TestEngine) -> None:
    """Tickets that sleep, have ended and are dead: all in the stores, none in a journal."""
    keep, fail = _declare(engine)
    for n in range(12):
        keep.options(key=KEYS[n % 2], delay="30d").submit("x" * 50)
        keep.options(key=KEYS[n % 2], unique=f"u{n}").submit("y" * 50)
    for n in range(4):
        fail.options(key=KEYS[n % 2]).submit("z")
    engine.run_until_idle()
    for _ in range(4):
        engine.clock.advance("3s")
        engine.run_until_idle()
    engine.pause(task="other", reason="because")


def _work_on(engine: TestEngine) -> None:
    """What fills some segments of each journal, and is in no store."""
    keep, fail = (engine.lookup(name) for name in ("keep", "fail"))
    for n in range(24):
        keep.options(key=KEYS[n % 2], delay="30d").submit("x" * 700)
        engine.pause(task="other", reason="r" * 1_500)
        if n % 6 == 0:
            keep.options(key=KEYS[n // 6 % 2]).submit("y")
            fail.options(key=KEYS[n // 6 % 2]).submit("z")
            engine.run_until_idle()
    engine.clock.advance("2s")
    engine.run_until_idle()


def tickets_of(engine: Any) -> dict[str, str]:
    """The state of every ticket of an engine or a reader, by id."""
    found: dict[str, str] = {}
    cursor: str | None = None
    while True:
        page = engine.find(limit=500, cursor=cursor)
        found |= {info.id: info.state for info in page}
        cursor = page.next
        if cursor is None:
            return found
