"""Scanning: everything is shown to a function, and the page says how far it came."""

import asyncio
from pathlib import Path
from typing import Any

import pytest

from kit.engines import checkpoint, make
from parkade import BlockingInEventLoop, ConfigError, Engine, TicketInfo, scanning
from parkade.testing import ManualClock


@pytest.fixture
def clock() -> ManualClock:
    return ManualClock()


@pytest.fixture
def engine(tmp_path: Path, clock: ManualClock, monkeypatch: pytest.MonkeyPatch) -> Any:
    monkeypatch.setattr(scanning, "SLICE", 10)
    with make(tmp_path / "data", run=False, clock=clock) as engine:
        yield engine


def submit(engine: Engine, count: int) -> list[str]:
    task = engine.task(name="note", summary="number {n}")(number)
    calls = (task.options(delay="1h").call(n) for n in range(count))
    return [ticket.id for ticket in engine.submit_many(calls)]


def number(n: int) -> int:
    return n


def is_even(info: TicketInfo) -> bool:
    return int((info.summary or "").split()[-1]) % 2 == 0


def test_all_that_is_wanted_is_found_newest_first(engine: Engine) -> None:
    ids = submit(engine, 35)
    checkpoint(engine)
    page = engine.scan(is_even)
    assert [info.id for info in page] == ids[::2][::-1]
    assert (page.next, page.scanned, page.complete) == (None, 35, True)
    assert engine.scan(lambda info: False).items == []


def test_a_scan_ends_at_its_limit_and_says_where(engine: Engine) -> None:
    ids = submit(engine, 35)
    page = engine.scan(is_even, limit=6)
    assert [info.id for info in page] == ids[::2][::-1][:6]
    assert page.complete and page.scanned == 11
    rest = engine.find(cursor=page.next, limit=1000)
    assert [info.id for info in page] + [info.id for info in rest if is_even(info)] == (
        ids[::2][::-1]
    )
    everything = engine.scan(lambda info: True, limit=35)
    assert (len(everything.items), everything.next) == (35, None)


def test_a_scan_that_runs_out_of_budget_is_not_complete(engine: Engine, clock: ManualClock) -> None:
    ids = submit(engine, 35)

    def slow(info: TicketInfo) -> bool:
        clock.advance("100ms")
        return is_even(info)

    page = engine.scan(slow, budget="1200ms")
    assert (page.scanned, page.complete) == (12, False)
    assert [info.id for info in page] == ids[::2][::-1][:6]
    rest = engine.find(cursor=page.next, limit=1000)
    assert [info.id for info in rest] == ids[:23][::-1]
    assert engine.scan(slow, budget=0).scanned == 1, "it always comes a step further"


def test_what_the_function_raises_is_the_callers_and_the_engine_goes_on(engine: Engine) -> None:
    submit(engine, 3)

    def broken(info: TicketInfo) -> bool:
        raise ZeroDivisionError(info.id)

    with pytest.raises(ZeroDivisionError):
        engine.scan(broken)
    assert len(engine.scan(is_even).items) == 2


@pytest.mark.parametrize(
    ("name", "value"), [("where", 3), ("limit", 0), ("limit", 1001), ("budget", "soon")]
)
def test_what_cannot_be_asked_of_a_scan_is_refused(engine: Engine, name: str, value: Any) -> None:
    scan: Any = engine.scan
    given: dict[str, Any] = {"where": is_even} | {name: value}
    with pytest.raises(ConfigError, match=name):
        scan(given.pop("where"), **given)


def test_a_scan_does_not_block_an_event_loop(engine: Engine) -> None:
    submit(engine, 5)

    async def main() -> None:
        with pytest.raises(BlockingInEventLoop, match="to_thread"):
            engine.scan(is_even)
        page = await asyncio.to_thread(engine.scan, is_even)
        assert len(page.items) == 3

    asyncio.run(main())
