"""A directory that is moved, and another one put into its place, while an engine has it open."""

import os
import shutil
from collections.abc import Callable
from pathlib import Path

import pytest

from kit.engines import checkpoint, make, rig, when
from kit.stepped import SIZING
from parkade import StorageError

SUBMITS_MAX = 400  # some segments of `SIZING`


def removed(path: Path) -> None:
    shutil.rmtree(path)


def moved(path: Path) -> None:
    path.rename(path.with_name("old"))


def exchanged_for_a_copy(path: Path) -> None:
    path.rename(path.with_name("old"))
    shutil.copytree(
        path.with_name("old"), path, ignore=shutil.ignore_patterns("*.sock", "*.spare*")
    )


def contents(path: Path) -> dict[str, bytes]:
    names = [name for name in path.rglob("*") if name.is_file()]
    return {os.fspath(name.relative_to(path)): name.read_bytes() for name in names}


def changed(before: dict[str, bytes], after: dict[str, bytes]) -> set[str]:
    """Spares hold nothing, and any journal takes them over."""
    names = {name for name in before | after if not name.endswith(".spare")}
    return {name for name in names if before.get(name) != after.get(name)}


@pytest.mark.parametrize("harm", [removed, moved, exchanged_for_a_copy])
def test_an_engine_whose_directory_was_taken_away_writes_to_no_other(
    tmp_path: Path, harm: Callable[[Path], None]
) -> None:
    path = tmp_path / "data"
    engine = rig(make(path, shards=1, durability="process", run=False), sizing=SIZING)
    later = engine.task(name="note")(lambda text: text).options(delay="1h")
    with engine:
        later.submit("x" * 2_000)
        checkpoint(engine)
        harm(path)
        before = contents(path)
        with pytest.raises(StorageError, match="moved, removed or exchanged"):
            for _ in range(SUBMITS_MAX):
                later.submit("x" * 2_000)
        when(engine, lambda runtime: runtime.shards[0].status == "refused")
    assert changed(before, contents(path)) == set()


def test_a_checkpoint_drops_no_segment_of_a_directory_that_took_the_place_of_its_own(
    tmp_path: Path,
) -> None:
    path = tmp_path / "data"
    engine = rig(make(path, shards=1, durability="process", run=False), sizing=SIZING)
    later = engine.task(name="note")(lambda text: text).options(delay="1h")
    with engine:
        for _ in range(20):
            later.submit("x" * 2_000)
        exchanged_for_a_copy(path)
        before = contents(path)
        checkpoint(engine)
        assert changed(before, contents(path)) == set()
