"""The rows of a long commit are made a few at a time: what makes them has the interpreter for
itself, and a thread that wants it would wait for all of them."""

from collections.abc import Callable
from pathlib import Path

import pytest

from kit.parking import Content, check_content, diff, open_parked, pending
from parkade.store import rows, writer
from parkade.store.bodies import PageFill
from parkade.store.rows import PART_ROWS, in_parts

NOW_MS = 5 << 26


@pytest.fixture
def made(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """How many rows were sealed or cut, each time."""
    counts: list[int] = []

    def counted(function: Callable[..., object], place: int) -> Callable[..., object]:
        def call(*args: object) -> object:
            keys = args[place]
            assert isinstance(keys, list)
            counts.append(len(keys))
            return function(*args)

        return call

    monkeypatch.setattr(writer, "seal_all", counted(rows.seal_all, 0))
    monkeypatch.setattr(PageFill, "cut", counted(PageFill.cut, 1))
    return counts


def crowd(count: int, lsn: int, body: bytes) -> Content:
    """So many pending tickets."""
    cars = {serial: pending(NOW_MS + serial, body=body) for serial in range(1, count + 1)}
    return Content(lsn=lsn, now_ms=NOW_MS, settled_ms=NOW_MS, cars=cars)


@pytest.mark.parametrize("count", [0, 1, PART_ROWS, PART_ROWS + 1, 3 * PART_ROWS])
def test_parts_are_small_and_nothing_is_left_out(count: int) -> None:
    parts = [range(count)[part] for part in in_parts(count)]
    assert [item for part in parts for item in part] == list(range(count))
    assert all(0 < len(part) <= PART_ROWS for part in parts)


@pytest.mark.parametrize("body", [b"Pa short one", b"P" + 1_000 * b"long "])
def test_a_long_commit_makes_its_rows_a_few_at_a_time(
    tmp_path: Path, made: list[int], body: bytes
) -> None:
    count = 4 * PART_ROWS
    parked = open_parked(tmp_path)
    content = crowd(count, 1, body)
    parked.commit(diff(Content(), content))
    assert sum(made) >= 2 * count, "heads and bodies"
    rows_of_a_body_max = 3
    assert max(made) <= rows_of_a_body_max * PART_ROWS
    with parked.snapshot() as snapshot:
        check_content(snapshot, content)
    parked.close()
