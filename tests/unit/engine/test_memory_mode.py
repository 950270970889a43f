"""What is to survive nothing leaves nothing: a temporary directory, gone with the engine."""

import os
import tempfile
from pathlib import Path

import pytest

from kit.engines import runtime_of
from parkade import Engine, ShardMismatch
from parkade.testing import TestEngine


@pytest.fixture
def temporary(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Where temporary directories are made."""
    place = tmp_path / "tmp"
    place.mkdir()
    monkeypatch.setattr(tempfile, "tempdir", os.fspath(place))
    return place


def test_the_path_is_not_touched_and_the_directory_goes_with_the_engine(
    tmp_path: Path, temporary: Path
) -> None:
    engine = Engine(tmp_path / "missing" / "data", durability="memory", shards=1)
    task = engine.task(name="note")(lambda n: n)
    for turn in range(2):
        with engine:
            assert task.submit(turn).result("20s") == turn
            assert Path(runtime_of(engine).directory.path).parent == temporary
            assert len(list(engine.find())) == 1, "each open begins with nothing"
    assert list(temporary.iterdir()) == []
    assert not (tmp_path / "missing").exists()


def test_an_open_that_fails_leaves_no_temporary_directory(
    tmp_path: Path, temporary: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    engine = Engine(tmp_path / "data", durability="memory")

    def refuse(*_: object, **__: object) -> None:
        raise ShardMismatch("data", asked=2, found=4)

    for place in ("parkade.engine.own_directory", "parkade.engine.Desk"):
        with monkeypatch.context() as patched:
            patched.setattr(place, refuse)
            with pytest.raises(ShardMismatch):
                engine.start()
        assert list(temporary.iterdir()) == []
    with engine:
        assert engine.stats().ready == 0


def test_the_directory_of_a_test_engine_outlives_a_crash(tmp_path: Path) -> None:
    with TestEngine(tmp_path / "data") as engine:
        ticket = engine.task(name="note")(lambda n: n).submit(1)
        again = engine.crash()
        assert again.ticket(ticket.id).info().state == "ready"
    assert (tmp_path / "data" / "manifest.json").exists()
