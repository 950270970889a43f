"""A directory of each format that was ever written opens for ever, and loses nothing by it."""

import json
import shutil
from pathlib import Path
from typing import Any

import pytest

from kit.every_state import live_on, look, resident
from parkade import Engine, open_readonly
from parkade.reader import existing_manifest
from parkade.store.disk import RealDisk
from parkade.store.manifest import FORMAT
from parkade.verifying import verify_parts

HERE = Path(__file__).parent
GOLDEN = sorted(path.parent for path in HERE.glob("v*/seen.json"))
BYTES_MAX = 400_000


def told(path: Path) -> dict[str, Any]:
    read: dict[str, Any] = json.loads(path.read_text(encoding="utf-8"))
    return read


@pytest.fixture(params=GOLDEN, ids=lambda path: path.name)
def golden(request: pytest.FixtureRequest) -> Path:
    place: Path = request.param
    return place


@pytest.fixture
def copied(golden: Path, tmp_path: Path) -> Path:
    return Path(shutil.copytree(golden / "directory", tmp_path / "data"))


def problems(path: Path) -> list[str]:
    disk = RealDisk()
    manifest = existing_manifest(disk, str(path), 0)
    parts = verify_parts(disk, str(path), manifest, deep=True)
    return [f"{part.name}: {problem.text}" for part in parts for problem in part.problems]


def as_told(value: Any, wanted: dict[str, Any]) -> Any:
    """A value as JSON has it, without the fields that its kind did not have then."""
    known = json.loads(json.dumps(value))
    tickets: dict[str, dict[str, Any] | list[Any]] = wanted.get("tickets", {})
    for ticket_id, facts in tickets.items():
        if isinstance(facts, dict):
            kept = known["tickets"][ticket_id]
            known["tickets"][ticket_id] = {name: kept[name] for name in facts}
    return known


def test_there_is_one_for_each_format() -> None:
    assert [path.name for path in GOLDEN] == [f"v{number}" for number in range(1, FORMAT + 1)]
    for place in GOLDEN:
        size = sum(file.stat().st_size for file in (place / "directory").rglob("*"))
        assert size <= BYTES_MAX, place.name


def test_what_it_holds_is_seen_and_reading_writes_nothing(golden: Path, copied: Path) -> None:
    before = {file: file.read_bytes() for file in copied.rglob("*") if file.is_file()}
    seen = told(golden / "seen.json")
    assert as_told(resident(copied), {}) == seen.pop("resident")
    assert as_told(look(copied), seen) == seen
    assert problems(copied) == []
    after = {file: file.read_bytes() for file in copied.rglob("*") if file.is_file()}
    assert after == before


def test_it_lives_on_as_the_version_that_made_it_would_have(golden: Path, copied: Path) -> None:
    end = told(golden / "end.json")
    assert as_told(live_on(copied), end) == end
    assert problems(copied) == []


def test_an_engine_of_today_opens_it_and_counts_what_is_there(golden: Path, copied: Path) -> None:
    seen = told(golden / "seen.json")
    with Engine(copied, keep_done=None, run=False, lock_wait=0) as engine:
        stats = engine.stats()
        assert [shard.status for shard in stats.shards] == ["open"] * len(stats.shards)
        states = {state for ticket in seen["tickets"].values() for state in [ticket["state"]]}
        assert states == {"ready", "scheduled", "running", "done", "dead", "cancelled", "expired"}
        for ticket_id, facts in seen["tickets"].items():
            info = engine.ticket(ticket_id).info()
            assert (info.task, info.key, info.summary) == (
                facts["task"], facts["key"], facts["summary"],
            )  # fmt: skip
    assert problems(copied) == []
    with open_readonly(copied) as reader:
        assert reader.stats().running == 0
