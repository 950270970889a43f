"""A directory is checked, locked and made; a stranger's is left alone."""

import os
from pathlib import Path

import pytest

from kit.clock import ManualClock
from parkade import ConfigError, EngineInUse, FormatTooNew, ShardMismatch, StorageDamaged
from parkade.directory import Directory, own_directory
from parkade.store.disk import RealDisk
from parkade.store.lock import read_owner
from parkade.store.manifest import Manifest


def own(path: Path, shards: int | None = None, clock: ManualClock | None = None) -> Directory:
    return own_directory(
        RealDisk(), str(path), shards=shards, clock=clock or ManualClock(), lock_wait_ms=0,
        entropy=os.urandom,
    )  # fmt: skip


def test_a_new_directory_is_ours_once_it_is_finished(tmp_path: Path) -> None:
    path = tmp_path / "data"
    directory = own(path, shards=3)
    assert directory.is_new
    assert directory.manifest.shards == 3
    assert not (path / "manifest.json").exists()
    directory.release()
    again = own(path, shards=3)
    assert again.is_new, "it was never finished"
    assert again.manifest.salt == directory.manifest.salt
    again.finish()
    again.release()
    known = own(path)
    assert not known.is_new
    assert known.manifest == directory.manifest
    known.release()


def test_without_a_number_a_new_directory_has_four_shards(tmp_path: Path) -> None:
    directory = own(tmp_path / "data")
    assert directory.manifest.shards == 4
    directory.release()


def test_another_number_of_shards_is_refused_and_the_lock_given_back(tmp_path: Path) -> None:
    path = tmp_path / "data"
    directory = own(path, shards=2)
    directory.finish()
    directory.release()
    with pytest.raises(ShardMismatch) as caught:
        own(path, shards=4)
    assert (caught.value.asked, caught.value.found) == (4, 2)
    own(path, shards=2).release()


def test_an_owned_directory_names_its_owner(tmp_path: Path) -> None:
    path = tmp_path / "data"
    directory = own(path)
    with pytest.raises(EngineInUse) as caught:
        own(path)
    assert caught.value.pid == os.getpid()
    assert caught.value.is_here and "by another Engine" in str(caught.value)
    directory.release()
    owner = read_owner(RealDisk(), str(path))
    assert owner is not None and owner.pid == os.getpid(), "the last one stays readable"
    own(path).release()


def test_a_later_format_and_damage_are_told_apart(tmp_path: Path) -> None:
    path = tmp_path / "data"
    directory = own(path)
    directory.finish()
    directory.release()
    good = directory.manifest
    later = Manifest(good.format + 1, good.salt, 4, good.hash, "9.9", good.created_at_ms)
    (path / "manifest.json").write_bytes(later.encode())
    with pytest.raises(FormatTooNew, match=r"9\.9"):
        own(path)
    (path / "manifest.json").write_bytes(good.encode()[:-20])
    with pytest.raises(StorageDamaged):
        own(path)
    (path / "manifest.json").write_bytes(good.encode())
    own(path).release()


def test_what_stands_in_the_way_is_named(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("mine")
    (tmp_path / "full").mkdir()
    (tmp_path / "full" / "notes.txt").write_text("mine")
    (tmp_path / "loop").symlink_to(tmp_path / "loop")
    for name, word in (("file", "is a file"), ("full", "notes.txt"), ("loop", "cannot be")):
        with pytest.raises(ConfigError, match=word) as caught:
            own(tmp_path / name)
        assert caught.value.code == "PK-111"
    with pytest.raises(ConfigError, match="does not exist"):
        own(tmp_path / "missing" / "data")
