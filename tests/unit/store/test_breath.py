"""A long commit gives the interpreter away again and again, and a short one never."""

from pathlib import Path

import pytest

from kit.parking import Content, check_content, diff, open_parked, pending
from parkade.store import breath
from parkade.store.breath import BREATH_ROWS, in_breaths
from parkade.store.parked import Parked

NOW_MS = 5 << 26


@pytest.fixture
def breaths(monkeypatch: pytest.MonkeyPatch) -> list[None]:
    """One for each time that the interpreter was given away."""
    taken: list[None] = []
    monkeypatch.setattr(breath, "breathe", lambda: taken.append(None))
    return taken


def crowd(count: int, lsn: int) -> Content:
    """So many pending tickets."""
    cars = {serial: pending(NOW_MS + serial) for serial in range(1, count + 1)}
    return Content(lsn=lsn, now_ms=NOW_MS, settled_ms=NOW_MS, cars=cars)


@pytest.mark.parametrize("count", [0, 1, BREATH_ROWS, BREATH_ROWS + 1, 3 * BREATH_ROWS])
def test_a_breath_lies_between_two_parts_and_nothing_is_left_out(
    count: int, breaths: list[None]
) -> None:
    parts = [range(count)[part] for part in in_breaths(count)]
    assert [item for part in parts for item in part] == list(range(count))
    assert all(0 < len(part) <= BREATH_ROWS for part in parts)
    assert len(breaths) == max(0, len(parts) - 1)


def commit_all(parked: Parked, *contents: Content) -> None:
    before = Content()
    for content in contents:
        parked.commit(diff(before, content))
        before = content
    with parked.snapshot() as snapshot:
        check_content(snapshot, before)


def test_a_commit_of_many_tickets_breathes_as_they_come_and_as_they_go(
    tmp_path: Path, breaths: list[None]
) -> None:
    count = 4 * BREATH_ROWS
    parked = open_parked(tmp_path)
    commit_all(parked, crowd(count, 1))
    put = len(breaths)
    assert put >= 3 * 3, "heads, bodies, an index"
    parked.commit(diff(crowd(count, 1), crowd(0, 2)))
    assert len(breaths) - put >= 3 * 3, "the same again, and the agenda's entries"
    parked.close()


def test_a_commit_of_few_tickets_does_not_breathe(tmp_path: Path, breaths: list[None]) -> None:
    parked = open_parked(tmp_path)
    commit_all(parked, crowd(20, 1), crowd(3, 2))
    assert not breaths
    parked.close()
