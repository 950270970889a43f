"""Input that a search found to be answered by the interpreter, not by us."""

import json
from pathlib import Path
from typing import Literal
from zlib import crc32

import pytest
from click.testing import CliRunner

from kit.disk import FakeDisk
from kit.engines import make
from parkade import PayloadError, UnknownTask, UnknownTicket
from parkade.cli.app import cli
from parkade.store.errors import Damage
from parkade.store.lock import DirectoryLock, Owner, read_owner
from parkade.store.manifest import Manifest

DEEP = "[" * 100_000


def sealed(**changed: object) -> bytes:
    fields = json.loads(Manifest(1, b"salty", 2, "crc32", "0.1", 1).encode())
    del fields["crc32"]
    fields |= changed
    crc = f"{crc32(json.dumps(fields, sort_keys=True).encode()):08x}"
    return json.dumps(fields | {"crc32": crc}).encode()


@pytest.mark.parametrize(
    "changed",
    [{"shards": "2"}, {"shards": {}}, {"shards": True}, {"created_at_ms": None}, {"is_moving": 1},
     {"created_by": 5}, {"format": 0}],
    ids=str,
)  # fmt: skip
def test_a_manifest_with_a_field_of_another_type_is_damaged(changed: dict[str, object]) -> None:
    with pytest.raises(Damage):
        Manifest.decode(sealed(**changed), "manifest.json")


def test_a_manifest_of_deep_json_is_damaged() -> None:
    with pytest.raises(Damage, match="not JSON"):
        Manifest.decode(DEEP.encode(), "manifest.json")


@pytest.mark.parametrize("body", [DEEP, '{"pid": 1e999}', '{"pid": ' + "9" * 5_000 + "}"])
def test_whatever_stands_in_a_lock_stops_nobody(body: str) -> None:
    disk = FakeDisk()
    disk.make_directories("/d")
    disk.replace_file("/d/lock", body.encode())
    assert read_owner(disk, "/d") is None
    DirectoryLock.try_acquire(disk, "/d", Owner(9, "host", 1, "me")).release()


def test_an_error_shows_the_front_of_a_name_that_is_none(tmp_path: Path) -> None:
    with make(tmp_path / "data", run=False) as engine:
        with pytest.raises(UnknownTask) as caught:
            engine.submit("x" * 100_000, {})
        assert len(str(caught.value)) < 1_000
        with pytest.raises(UnknownTicket) as missing:
            engine.ticket("x" * 100_000).info()
        assert len(str(missing.value)) < 1_000
        nothing: str = None  # type: ignore[assignment]
        with pytest.raises(UnknownTicket):
            engine.ticket(nothing).info()


def test_an_error_does_not_quote_all_of_an_argument(tmp_path: Path) -> None:
    def pick(kind: Literal["a", "b"]) -> None: ...

    with make(tmp_path / "data", run=False) as engine:
        engine.task(name="pick")(pick)
        with pytest.raises(PayloadError, match="invalid enum value") as caught:
            engine.submit("pick", {"kind": "x" * 100_000})
        assert len(str(caught.value)) < 1_000


def test_a_shell_may_hand_over_bytes_that_are_no_text(tmp_path: Path) -> None:
    with make(tmp_path / "data", run=False):
        pass
    done = CliRunner().invoke(
        cli, ["--dir", str(tmp_path / "data"), "cancel", "--json", "--yes", "\udc88"]
    )
    assert isinstance(done.exception, SystemExit), done.exception
    assert json.loads(done.output)


def test_json_that_is_too_deep_is_a_wrong_argument(tmp_path: Path) -> None:
    with make(tmp_path / "data", run=False):
        pass
    words = ["--dir", str(tmp_path / "data"), "dead", "resolve", "x", "--result", DEEP]
    done = CliRunner().invoke(cli, words)
    assert isinstance(done.exception, SystemExit), done.exception
    assert done.exit_code == 2
