"""What a data directory says of itself, and how one comes to be.

A directory is ours once `manifest.json` is in it. It is written last: first, durably and under
another name, before any other file of ours; then, when house and shards are there, it gets its
name. A power cut in between leaves a directory that says it is half-made, in which nothing was
ever acknowledged, and which the next open finishes with the same salt.
"""

import json
from collections.abc import Callable
from dataclasses import asdict, dataclass
from typing import Any, cast
from zlib import crc32

from parkade.store.disk import Disk
from parkade.store.errors import Damage, FormatTooNew, NotOurs, ReadFailed, write_error
from parkade.store.segment import DIRECTORY_SALT_BYTES

FORMAT = 1
NAME = "manifest.json"
UNFINISHED = "manifest.json.making"
HASH = "crc32"
SHARDS_MAX = 256

_TYPES = {"shards": int, "created_by": str, "created_at_ms": int, "is_moving": bool}

# Names that say nothing about whose directory it is: our lock comes before the manifest, and a
# file system of its own brings the last.
_NEUTRAL = frozenset({"lock", f"{UNFINISHED}.new", "lost+found"})


@dataclass(frozen=True, slots=True)
class Manifest:
    """The identity of a directory. `salt` is 5 random bytes, `created_at_ms` wall-clock time.
    `is_moving`: shards of another number are about to take the place of the old ones."""

    format: int
    salt: bytes
    shards: int
    hash: str
    created_by: str
    created_at_ms: int
    is_moving: bool = False

    def encode(self) -> bytes:
        """The file: JSON with a crc32 of the other fields."""
        fields: dict[str, Any] = asdict(self) | {"salt": self.salt.hex()}
        if not self.is_moving:
            del fields["is_moving"]
        return json.dumps(fields | {"crc32": _crc(fields)}, indent=2).encode() + b"\n"

    @classmethod
    def decode(cls, content: bytes, path: str) -> "Manifest":
        """Raises Damage, and FormatTooNew for a later format whatever else it says."""
        try:
            parsed = json.loads(content)
        except (ValueError, RecursionError) as error:
            raise Damage(path, getattr(error, "pos", 0), f"it is not JSON ({error})") from error
        fields = cast(dict[str, Any], parsed) if isinstance(parsed, dict) else {}
        if type(fields.get("format")) is not int:
            raise Damage(path, 0, "it names no format")
        crc = fields.pop("crc32", None)
        if fields["format"] > FORMAT and crc == _crc(fields):
            by = fields.get("created_by")
            raise FormatTooNew(path, fields["format"], FORMAT, by if isinstance(by, str) else "")
        if crc != _crc(fields):
            raise Damage(path, 0, "its checksum does not match")
        try:
            fields["salt"] = bytes.fromhex(fields["salt"])
            manifest = cls(**fields)
        except (TypeError, ValueError, KeyError) as error:
            raise Damage(path, 0, f"a field is missing or unknown ({error})") from error
        if len(manifest.salt) != DIRECTORY_SALT_BYTES or manifest.hash != HASH:
            raise Damage(path, 0, "its salt or its hash is not one this format has")
        if any(type(getattr(manifest, name)) is not kind for name, kind in _TYPES.items()):
            raise Damage(path, 0, "a field of it is of another type than it must be")
        if manifest.format < 1:
            raise Damage(path, 0, f"it names a format that there never was: {manifest.format}")
        if not 1 <= manifest.shards <= SHARDS_MAX:
            raise Damage(path, 0, f"it names {manifest.shards} shards")
        return manifest


def read_manifest(disk: Disk, directory: str) -> Manifest | None:
    """The manifest of a directory of ours; None if it is new, empty or half-made.

    Writes nothing, so it may be asked before the lock is taken. Raises NotOurs for a directory
    that holds other files, Damage, FormatTooNew, ReadFailed.
    """
    content = _read(disk, f"{directory}/{NAME}")
    if content is not None:
        return Manifest.decode(content, f"{directory}/{NAME}")
    if _read_unfinished(disk, directory) is None:
        _check_empty(disk, directory)
    return None


def begin_directory(
    disk: Disk,
    directory: str,
    *,
    shards: int,
    created_by: str,
    created_at_ms: int,
    entropy: Callable[[int], bytes],
) -> Manifest:
    """Says durably that a directory is being made; call it before anything but the lock is there.

    If an earlier open began it and did not finish, that one's manifest is given, whatever the
    arguments say of shards. Raises as `read_manifest` does, WriteFailed, NoRoom.
    """
    if not 1 <= shards <= SHARDS_MAX:
        raise ValueError(f"a directory has 1 to {SHARDS_MAX} shards")
    begun = _read_unfinished(disk, directory)
    if begun is not None:
        return begun
    _check_empty(disk, directory)
    manifest = Manifest(
        FORMAT, entropy(DIRECTORY_SALT_BYTES), shards, HASH, created_by, created_at_ms
    )
    path = f"{directory}/{UNFINISHED}"
    try:
        disk.make_directories(directory)
        disk.replace_file(path, manifest.encode())
    except OSError as error:
        raise write_error(path, error) from error
    return manifest


def finish_directory(disk: Disk, directory: str) -> None:
    """Gives the manifest its name: from here on the directory is ours. Raises WriteFailed."""
    path = f"{directory}/{NAME}"
    try:
        disk.rename(f"{directory}/{UNFINISHED}", path)
        disk.fsync_directory(directory)
    except OSError as error:
        raise write_error(path, error) from error


def _read_unfinished(disk: Disk, directory: str) -> Manifest | None:
    content = _read(disk, f"{directory}/{UNFINISHED}")
    return None if content is None else Manifest.decode(content, f"{directory}/{UNFINISHED}")


def _check_empty(disk: Disk, directory: str) -> None:
    try:
        foreign = [name for name in disk.listdir(directory) if name not in _NEUTRAL]
    except FileNotFoundError:
        return
    except OSError as error:
        raise ReadFailed(directory, error.errno or 0) from error
    if foreign:
        raise NotOurs(directory, ", ".join(foreign[:3]) + (" …" if len(foreign) > 3 else ""))


def _read(disk: Disk, path: str) -> bytes | None:
    try:
        return disk.read_file(path)
    except FileNotFoundError:
        return None
    except OSError as error:
        raise ReadFailed(path, error.errno or 0) from error


def _crc(fields: dict[str, Any]) -> str:
    return f"{crc32(json.dumps(fields, sort_keys=True).encode()):08x}"
