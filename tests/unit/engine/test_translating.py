"""What the store raises, as people see it: a code each, the place, and what to do."""

import errno

import pytest

from parkade.errors import (
    ConfigError,
    EngineClosed,
    EngineInUse,
    ForkedEngine,
    FormatTooNew,
    ParkadeError,
    StorageDamaged,
    StorageError,
    StorageFull,
)
from parkade.reading import DamagedTicket
from parkade.store import errors as store
from parkade.store.rows import RowDamaged
from parkade.translating import opening_error, shard_error


@pytest.mark.parametrize(
    ("error", "kind", "code", "words"),
    [
        (store.Damage("a/b.seg", 64, "a bad crc"), StorageDamaged, "PK-105", "a/b.seg byte 64"),
        (DamagedTicket(77), StorageDamaged, "PK-105", "serial 77"),
        (RowDamaged("p", "heads", b"k", 78), StorageDamaged, "PK-105", "serial 78"),
        (RowDamaged("p", "uniques", b"k", None), StorageDamaged, "PK-105", "p table uniques"),
        (store.NoRoom("p", 4096), StorageFull, "PK-106", "No space left for shard 03"),
        (store.ReadFailed("p", errno.EIO), StorageError, "PK-109", "could not read its files"),
        (store.WriteFailed("p", errno.EIO), StorageError, "PK-109", "could not write its files"),
        (store.FormatTooNew("p", 9, 1), FormatTooNew, "PK-104", "format 9"),
        (AssertionError(), StorageError, "PK-109", "AssertionError"),
        (ValueError("a fault"), StorageError, "PK-109", "could not go on (a fault)"),
    ],
    ids=lambda value: type(value).__name__,
)
def test_each_error_of_a_shard_has_its_code_and_place(
    error: BaseException, kind: type[ParkadeError], code: str, words: str
) -> None:
    translated = shard_error("data", 3, error, healthy=2)
    assert type(translated) is kind
    assert translated.code == code
    assert words in str(translated)


def test_what_is_translated_already_stays() -> None:
    closed = EngineClosed("engine.find")
    assert shard_error("data", 0, closed) is closed


def test_damage_says_whether_the_others_run() -> None:
    damage = store.Damage("p", 0, "it is missing")
    assert "keep running" in str(shard_error("data", 0, damage, healthy=3))
    assert "keep running" not in str(shard_error("data", 0, damage))
    assert str(shard_error("data", None, damage)).startswith("The house of data")


@pytest.mark.parametrize(
    ("error", "kind", "code"),
    [
        (store.LockedByOther("data", {"pid": 41, "host": "h"}), EngineInUse, "PK-101"),
        (store.LockedByOther("data", {}), EngineInUse, "PK-101"),
        (store.UsedAfterFork(1, 2), ForkedEngine, "PK-102"),
        (store.FormatTooNew("p", 9, 1, "9.9"), FormatTooNew, "PK-104"),
        (store.Damage("p", 0, "x"), StorageDamaged, "PK-105"),
        (store.NoRoom("p", 1), StorageFull, "PK-106"),
        (store.NotOurs("data", "thesis.tex"), ConfigError, "PK-111"),
        (store.WriteFailed("p", errno.EACCES), ConfigError, "PK-111"),
        (store.ReadFailed("p", errno.EACCES), ConfigError, "PK-111"),
    ],
    ids=lambda value: type(value).__name__,
)
def test_why_a_directory_cannot_be_opened_is_said(
    error: store.StoreError, kind: type[ParkadeError], code: str
) -> None:
    translated = opening_error("data", error, 1_000)
    assert type(translated) is kind
    assert translated.code == code
