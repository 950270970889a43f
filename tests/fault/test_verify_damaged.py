"""`verify` on stores whose pages are damaged: it always answers, and it changes nothing."""

import random
import shutil
import struct
from pathlib import Path

import pytest

from kit.engines import checkpoint, make
from kit.harm import first_key, harm_row, write_row
from parkade.store.disk import RealDisk
from parkade.store.manifest import Manifest, read_manifest
from parkade.verifying import verify_apart, verify_parts

PAGE_BYTES = 4096


@pytest.fixture(scope="module")
def template(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("template") / "data"
    with make(path, durability="process", run=False) as engine:
        task = engine.task(name="note")(lambda n: n)
        engine.submit_many([task.options(delay="1h").call(n) for n in range(400)], chunk=50)
        checkpoint(engine)
    return path


def manifest_of(path: Path) -> Manifest:
    manifest = read_manifest(RealDisk(), str(path))
    assert manifest is not None
    return manifest


@pytest.mark.parametrize("seed", range(4))
def test_pages_of_noise_are_damage_of_their_shard_and_no_end_of_the_tool(
    template: Path, tmp_path: Path, seed: int
) -> None:
    path = tmp_path / "data"
    shutil.copytree(template, path)
    dice = random.Random(seed)
    store = path / "shard-000/store/data.mdb"
    content = bytearray(store.read_bytes())
    for _ in range(12):
        page = dice.randrange(2, len(content) // PAGE_BYTES) * PAGE_BYTES
        start = page + dice.choice((0, 8, 16, 100))
        content[start : start + 64] = dice.randbytes(64)
    store.write_bytes(content)
    parts = list(verify_apart(str(path), manifest_of(path), deep=True))
    assert [part.name for part in parts] == ["house", "shard 00", "shard 01"]
    assert [part.is_sound for part in parts] == [True, False, True]
    assert all(problem.text for part in parts for problem in part.problems)
    assert store.read_bytes() == content


def test_a_finding_tells_file_table_and_ticket(template: Path, tmp_path: Path) -> None:
    path = tmp_path / "data"
    shutil.copytree(template, path)
    store = path / "shard-001/store/data.mdb"
    harm_row(path, 1, "heads", first_key(path, 1, "heads"))
    house, first, second = verify_apart(str(path), manifest_of(path), deep=True)
    assert house.is_sound and first.is_sound
    finding = next(problem for problem in second.problems if problem.table == "heads")
    assert finding.file == str(store)
    assert finding.ticket is not None and finding.ticket.startswith("serial ")


def test_a_row_that_is_sealed_and_says_nothing_is_found(template: Path, tmp_path: Path) -> None:
    path = tmp_path / "data"
    shutil.copytree(template, path)
    write_row(path, 0, "uniques", b"n" * 16, b"\0" * 8 + b"\xc1")
    write_row(path, 0, "outbox", b"place", b"\xc1")
    house, first, _ = verify_parts(RealDisk(), str(path), manifest_of(path), deep=True)
    assert house.is_sound
    found = {problem.table for problem in first.problems if "cannot be read" in problem.text}
    assert found == {"uniques", "outbox"}


@pytest.fixture(scope="module")
def worked(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A shard whose store has a list of free pages, and one long payload."""
    path = tmp_path_factory.mktemp("worked") / "data"
    with make(path, durability="process", run=False, shards=1) as engine:
        task = engine.task(name="note")(lambda n: n).options(delay="1h")
        for at in range(4):
            task.submit("x" * (1 + 9_000 * at))
            checkpoint(engine)
    return path


def free_list_of(content: bytearray) -> int:
    """Where in the file the newest list of free pages begins: at how many it has."""
    metas = [
        (struct.unpack_from("=Q", content, page + 16 + 128)[0], page) for page in (0, PAGE_BYTES)
    ]
    _, meta = max(metas)
    root = struct.unpack_from("=Q", content, meta + 16 + 24 + 40)[0] * PAGE_BYTES
    (node,) = struct.unpack_from("=H", content, root + 16)
    return int(root + node + 8 + 8)


def test_a_free_page_that_has_a_use_is_found_before_a_commit_writes_over_it(
    worked: Path, tmp_path: Path
) -> None:
    path = tmp_path / "data"
    shutil.copytree(worked, path)
    store = path / "shard-000/store/data.mdb"
    content = bytearray(store.read_bytes())
    assert all(part.is_sound for part in verify_apart(str(path), manifest_of(path), deep=True))
    at = free_list_of(content)
    (count,) = struct.unpack_from("=Q", content, at)
    free = struct.unpack_from(f"={count}Q", content, at + 8)
    used = next(page for page in range(2, len(content) // PAGE_BYTES) if page not in free)
    struct.pack_into("=Q", content, at + 8, used)
    store.write_bytes(content)
    _, shard = verify_apart(str(path), manifest_of(path), deep=True)
    assert [problem.file for problem in shard.problems] == [str(store)]
    assert "has a use" in shard.problems[0].text


def test_a_page_of_noise_is_found_or_no_commit_comes_by_it(worked: Path, tmp_path: Path) -> None:
    whole = (worked / "shard-000/store/data.mdb").read_bytes()
    found = 0
    for page in range(2, len(whole) // PAGE_BYTES):
        path = tmp_path / f"{page}"
        shutil.copytree(worked, path)
        content = bytearray(whole)
        content[page * PAGE_BYTES : page * PAGE_BYTES + 200] = b"\xa5" * 200
        (path / "shard-000/store/data.mdb").write_bytes(content)
        _, shard = verify_parts(RealDisk(), str(path), manifest_of(path), deep=True)
        found += not shard.is_sound
        if shard.is_sound:
            with make(path, durability="process", run=False, shards=None) as engine:
                engine.task(name="note")(lambda n: n).options(delay="1h").submit(1)
                checkpoint(engine)
                assert engine.stats().shards[0].recoveries == 0
    assert found
