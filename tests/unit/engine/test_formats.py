"""What a later version wrote is refused by name, wherever it is met, and left as it is."""

import os
from collections.abc import Callable
from pathlib import Path
from typing import Any
from zlib import crc32

import lmdb
import msgspec
import pytest

from kit.engines import make
from parkade import Engine, FormatTooNew
from parkade.house import HOUSE_NUMBER, HouseState
from parkade.store.disk import RealDisk
from parkade.store.journal import Journal, Sizing
from parkade.store.manifest import FORMAT, Manifest
from parkade.store.meta import IDENTITY
from parkade.store.parked import ParkedReader
from parkade.store.record import Leased, Options, Submitted
from parkade.store.rows import seal

LATER = FORMAT + 1
NEVER_A_TAG = 127


@pytest.fixture
def left(tmp_path: Path) -> Path:
    """A directory of two shards that was closed."""
    with make(tmp_path / "data", durability="process") as engine:
        engine.task(name="far")(lambda: None)
        far = engine.lookup("far")
        # By their keys, which are dealt to both shards; serials may all go to one.
        ids = [far.options(delay="1d", key=f"k{n}").submit().id for n in range(8)]
    (tmp_path / "ids").write_text(" ".join(ids))
    return tmp_path / "data"


def image(path: Path) -> dict[str, bytes]:
    """Every file but those of locks."""
    files = (file for file in path.rglob("*") if file.is_file())
    return {
        str(file.relative_to(path)): file.read_bytes()
        for file in files
        if file.name not in ("lock", "lock.mdb")
    }


def salt_of(path: Path) -> bytes:
    return Manifest.decode((path / "manifest.json").read_bytes(), "").salt


def age_segment(place: Path) -> None:
    """Its last segment's header names the next format."""
    segment = sorted((place / "journal").glob("*.segment"))[-1]
    content = bytearray(segment.read_bytes())
    content[8:10] = LATER.to_bytes(2, "little")
    content[60:64] = crc32(content[:60]).to_bytes(4, "little")
    segment.write_bytes(content)


def put(place: Path, table: str, key: bytes, change: Callable[[bytes], bytes]) -> None:
    """Changes one row of a store."""
    with lmdb.open(str(place / "store"), max_dbs=32, lib_version=0) as store:
        rows = store.open_db(table.encode(), create=False)
        with store.begin(write=True) as transaction:
            row = bytes(transaction.get(key, db=rows) or b"")[:-4]
            transaction.put(key, seal(key, change(row)), db=rows)


def age_store(place: Path) -> None:
    """Its identity names the next format, and has grown by a field."""
    put(place, "meta", IDENTITY, lambda row: row[:8] + LATER.to_bytes(4, "big") + row[12:] + b"x")


def append(path: Path, place: str, number: int, record: Any) -> None:
    """A record behind all others of a journal."""
    with_store = f"{path}/{place}/store"
    store = ParkedReader.open_readonly(with_store, salt=salt_of(path), shard=number, is_live=False)
    with store.snapshot() as snapshot:
        lsn, epoch = snapshot.lsn, snapshot.state().epoch
    store.close()
    journal = Journal.open(
        RealDisk(), f"{path}/{place}/journal", salt=salt_of(path), shard=number, store_lsn=lsn,
        store_epoch=epoch, mode="disk", sizing=Sizing(), is_new=False, entropy=os.urandom,
    )  # fmt: skip
    journal.append(msgspec.msgpack.encode([record]), 1)
    journal.close(clean=True)


def as_array(record: Any) -> list[Any]:
    array: list[Any] = msgspec.msgpack.decode(msgspec.msgpack.encode(record))
    return array


def open_engine(path: Path) -> Engine:
    return make(path, durability="process", shards=None)


def test_a_later_manifest_is_refused_before_anything_is_touched(left: Path) -> None:
    known = Manifest.decode((left / "manifest.json").read_bytes(), "")
    later = Manifest(LATER, known.salt, known.shards, known.hash, "9.9", known.created_at_ms)
    (left / "manifest.json").write_bytes(later.encode())
    before = {file: file.stat().st_mtime_ns for file in left.rglob("*")}
    with pytest.raises(FormatTooNew, match=f"parkade 9.9 .format {LATER}.") as refused:
        open_engine(left).start()
    assert refused.value.code == "PK-104"
    assert {file: file.stat().st_mtime_ns for file in left.rglob("*")} == before


@pytest.mark.parametrize("age", [age_segment, age_store])
def test_a_later_house_is_refused_and_left_as_it_is(
    left: Path, age: Callable[[Path], None]
) -> None:
    age(left / "house")
    before = image(left)
    with pytest.raises(FormatTooNew, match=f"format {LATER}"):
        open_engine(left).start()
    assert image(left) == before


def check_refused(engine: Engine, path: Path) -> None:
    """Shard 1 is, by name; shard 0 answers."""
    shards = engine.stats().shards
    assert [shard.status for shard in shards] == ["open", "refused"]
    assert f"format {LATER}" in (shards[1].reason or "")
    refused = 0
    for ticket_id in path.with_name("ids").read_text().split():
        try:
            assert engine.ticket(ticket_id).info().shard == 0
        except FormatTooNew:
            refused += 1
    assert 0 < refused < 8


@pytest.mark.parametrize("age", [age_segment, age_store])
def test_a_later_shard_is_refused_by_itself_and_left_as_it_is(
    left: Path, age: Callable[[Path], None]
) -> None:
    age(left / "shard-001")
    before = image(left / "shard-001")
    with open_engine(left) as engine:
        check_refused(engine, left)
    assert image(left / "shard-001") == before


DRAFT = Submitted(1 << 60, 1, "far", 1 << 41, 1, b"\x80")
RECORDS_LATER = {
    "an unknown tag": [NEVER_A_TAG, 1, 2],
    "a field behind the last": [*as_array(DRAFT), 7],
    "an option behind the last": [*as_array(DRAFT)[:-1], [*as_array(Options()), 7]],
}


@pytest.mark.parametrize("what", RECORDS_LATER)
def test_a_later_record_of_a_shard_is_no_damage(left: Path, what: str) -> None:
    append(left, "shard-001", 1, RECORDS_LATER[what])
    with open_engine(left) as engine:
        check_refused(engine, left)


@pytest.mark.parametrize("record", [[NEVER_A_TAG], [*as_array(Leased(1)), 2]])
def test_a_later_record_of_the_house_is_no_damage(left: Path, record: list[Any]) -> None:
    append(left, "house", HOUSE_NUMBER, record)
    for _ in range(2):  # the first one gives back all that it opened
        with pytest.raises(FormatTooNew):
            open_engine(left).start()


def test_a_later_row_of_the_house_is_no_damage(left: Path) -> None:
    def lengthen(row: bytes) -> bytes:
        array: list[Any] = msgspec.msgpack.decode(row) if row else as_array(HouseState())
        return msgspec.msgpack.encode([*array, *[None] * 20])

    put(left / "house", "heads", bytes(8), lengthen)
    with pytest.raises(FormatTooNew):
        open_engine(left).start()
