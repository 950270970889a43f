"""Every file of a directory, and every way in which one can be harmed by somebody else."""

import json
import os
import shutil
import struct
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import NamedTuple
from zlib import crc32

import lmdb

from kit.harm_rights import RIGHTS, UNREADABLE
from kit.harm_template import OLDER
from parkade.store.meta import IDENTITY
from parkade.store.rows import seal, unseal

__all__ = ["HARMS", "OLDER_COPY", "Case", "cases_of", "harm"]

PAGE_BYTES = 4096
OLDER_COPY = "an older copy"
SWAPPED = "swapped with another shard's"
SEGMENT_FIELDS = {
    "magic": 0, "format": 8, "mode": 10, "size": 11, "shard": 12, "directory salt": 16, "zero": 21,
    "epoch": 24, "salt": 32, "first lsn": 40, "synced": 48, "prior end": 56, "crc": 60,
    "frame magic": 64, "frame length": 68, "frame count": 72, "frame head crc": 76,
    "frame lsn": 80, "frame synced": 88, "frame zero": 96, "frame crc": 100, "body": 104,
}  # fmt: skip
# Of each of LMDB's two first pages: a page header of 16 bytes, then what mdb.c calls a meta.
META_FIELDS = {
    "page number": 0, "page flags": 10, "magic": 16, "version": 20, "address": 24, "map size": 32,
    "page size": 40, "free flags": 44, "free depth": 46, "free root": 80, "main flags": 92,
    "main depth": 94, "main entries": 120, "main root": 128, "last page": 136, "transaction": 144,
}  # fmt: skip


class Case(NamedTuple):
    """One harm to one file. `file` is relative to the directory, of the template `kind`."""

    kind: str
    file: str
    harm: str


def cases_of(base: Path, kind: str) -> Iterator[Case]:
    """All of them, in an order that is the same each time."""
    yield from (Case(kind, ".", name) for name in RIGHTS)
    for file in _files(base / kind):
        for name in HARMS:
            if _applies(base, kind, file, name):
                yield Case(kind, file, name)
        for field in _fields(real_path(base / kind, file)):
            yield Case(kind, file, f"bit of {field}")


def _files(root: Path) -> list[str]:
    """Each file and folder. Segments and spares by their place in the order of names, since the
    names themselves are random."""
    found: list[str] = []
    for folder, folders, files in os.walk(root):
        place = Path(folder).relative_to(root)
        found += [str(place / name) for name in folders]
        for suffix in ("segment", "spare"):
            count = sum(name.endswith(suffix) for name in files)
            found += [str(place / f"{suffix} {n - count}") for n in range(count)]
        found += [str(place / name) for name in files if not name.endswith((".segment", ".spare"))]
    return sorted(found)


def real_path(root: Path, file: str) -> Path:
    """Where a file is that is named by its place."""
    folder, _, name = file.rpartition("/")
    suffix, _, place = name.partition(" ")
    if not place:
        return root / file
    return sorted((root / folder).glob(f"*.{suffix}"))[int(place)]


def _applies(base: Path, kind: str, file: str, name: str) -> bool:
    path = real_path(base / kind, file)
    if name in ("a newer format", OLDER_COPY, SWAPPED):
        return _has(base, kind, file, name)
    if path.is_dir():
        return name in FOLDERS
    return name not in ("a file",) and (path.stat().st_size > 0 or name in ("missing", "a folder"))


def _has(base: Path, kind: str, file: str, name: str) -> bool:
    path = real_path(base / kind, file)
    if name == "a newer format":
        return path.name in ("manifest.json", "data.mdb") or path.suffix == ".segment"
    if name == SWAPPED:
        return file.startswith("shard-000")
    older = base / OLDER / path.relative_to(base / kind)
    return older.exists() and path.name != "manifest.json"


def _fields(path: Path) -> Iterator[str]:
    if path.name == "manifest.json":
        yield from json.loads(path.read_text(encoding="utf-8"))
    elif path.name == "data.mdb":
        yield from (f"{page} {name}" for page in ("old meta", "new meta") for name in META_FIELDS)
    elif path.suffix == ".segment":
        size = path.stat().st_size
        yield from (field for field, at in SEGMENT_FIELDS.items() if at < size)


# ------------------------------------------------------------------------------------ doing it


def harm(base: Path, case: Case, root: Path) -> Path:
    """Does it to a copy of the template at `root`; which path it was."""
    path = real_path(root, case.file)
    if case.harm in RIGHTS:
        return root
    if case.harm.startswith("bit of "):
        _flip(path, case.harm.removeprefix("bit of "))
    elif case.harm == OLDER_COPY:
        _replace(path, base / OLDER / path.relative_to(root))
    elif case.harm == SWAPPED:
        _swap(root, case.file)
    else:
        HARMS[case.harm](path)
    return path


def _remove(path: Path) -> None:
    if path.is_dir():
        shutil.rmtree(path)
    else:
        path.unlink()


def _replace(path: Path, other: Path) -> None:
    _remove(path)
    if other.is_dir():
        shutil.copytree(other, path)
    else:
        shutil.copy2(other, path)


def _swap(root: Path, file: str) -> None:
    first = real_path(root, file)
    second = real_path(root, file.replace("shard-000", "shard-001"))
    aside = root / "aside"
    if first.suffix in (".segment", ".spare"):
        first.rename(aside)
        second.rename(first.parent / second.name)
        aside.rename(second.parent / first.name)
        return
    first.rename(aside)
    second.rename(first)
    aside.rename(second)


def _empty(path: Path) -> None:
    if path.is_dir():
        shutil.rmtree(path)
        path.mkdir(0o700)
    else:
        path.write_bytes(b"")


def _cut(path: Path, keep: Callable[[int], int]) -> None:
    os.truncate(path, keep(path.stat().st_size))


def _blank(path: Path) -> None:
    path.write_bytes(bytes(path.stat().st_size))


def _folder(path: Path) -> None:
    _remove(path)
    path.mkdir(0o700)


def _file(path: Path) -> None:
    _remove(path)
    path.write_bytes(b"a file\n")


def _link(path: Path, to: str) -> None:
    _remove(path)
    path.symlink_to(to)


def _moved_behind_a_link(path: Path) -> None:
    aside = path.parent.parent / f"{path.name}.elsewhere"
    if path.parent.name not in ("journal", "store"):
        aside = path.with_name(f"{path.name}.elsewhere")
    path.rename(aside)
    path.symlink_to(aside)


def _fifo(path: Path) -> None:
    _remove(path)
    os.mkfifo(path)


def _newer(path: Path) -> None:
    if path.name == "manifest.json":
        fields = json.loads(path.read_text(encoding="utf-8"))
        del fields["crc32"]
        fields["format"] += 1
        crc = crc32(json.dumps(fields, sort_keys=True).encode())
        path.write_text(json.dumps(fields | {"crc32": f"{crc:08x}"}), encoding="utf-8")
    elif path.suffix == ".segment":
        content = bytearray(path.read_bytes())
        content[8] += 1
        content[60:64] = struct.pack("<I", crc32(content[:60]))
        path.write_bytes(content)
    else:
        with lmdb.open(str(path.parent), max_dbs=32, lib_version=0) as store:
            meta = store.open_db(b"meta", create=False)
            with store.begin(write=True) as transaction:
                row = unseal(IDENTITY, transaction.get(IDENTITY, b"", db=meta))
                assert row is not None
                newer = row[:11] + bytes([row[11] + 1]) + row[12:]
                transaction.put(IDENTITY, seal(IDENTITY, newer), db=meta)


def _flip(path: Path, field: str) -> None:
    content = bytearray(path.read_bytes())
    if path.name == "manifest.json":
        at = content.index(f'"{field}": '.encode()) + len(field) + 4
        at += content[at : at + 1] == b'"'
    elif path.name == "data.mdb":
        page, _, name = field.partition(" meta ")
        counts = [struct.unpack_from("<Q", content, n * PAGE_BYTES + 144)[0] for n in (0, 1)]
        newest = counts.index(max(counts))
        at = META_FIELDS[name] + PAGE_BYTES * (newest if page == "new" else 1 - newest)
    else:
        at = SEGMENT_FIELDS[field]
    content[at] ^= 1
    path.write_bytes(content)


HARMS: dict[str, Callable[[Path], None]] = {
    "missing": _remove,
    "empty": _empty,
    "half of it": lambda path: _cut(path, lambda size: size // 2),
    "one byte": lambda path: _cut(path, lambda _: 1),
    "one byte less": lambda path: _cut(path, lambda size: size - 1),
    "zeros": _blank,
    "a folder": _folder,
    "a file": _file,
    "a link to nowhere": lambda path: _link(path, "nowhere"),
    "a link to itself": lambda path: _link(path, path.name),
    "behind a link": _moved_behind_a_link,
    "a pipe": _fifo,
    UNREADABLE: lambda path: path.chmod(0),
    "a newer format": _newer,
    OLDER_COPY: _remove,
    SWAPPED: _remove,
}
FOLDERS = (
    "missing", "empty", "a file", "a link to nowhere", "a link to itself", "behind a link",
    "a pipe", UNREADABLE,
    OLDER_COPY, SWAPPED,
)  # fmt: skip
