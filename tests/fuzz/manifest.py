"""What says whose a directory is, and who owns it: manifest.json and lock."""

import json
import math
from typing import Any
from zlib import crc32

from fuzz.mutations import DEEP_LEVELS, LONG_CHARS, mutate_bytes
from fuzz.tape import Tape
from kit.disk import FakeDisk
from parkade.facts import owner_facts
from parkade.store.errors import Damage, FormatTooNew
from parkade.store.lock import Child, DirectoryLock, Owner, read_owner
from parkade.store.manifest import Manifest
from parkade.translating import in_use

__all__ = ["target"]

WHOLE = Manifest(1, b"salty", 2, "crc32", "0.1", 1_800_000_000_000)
OWNER = Owner(7, "host", 1_800_000_000_000, "app", "boot", (Child(8, "then"),))
ODD: tuple[Any, ...] = (
    None, True, -1, 0, 1.5, math.inf, math.nan, 1 << 70, 10**4_000, "", "2", "\ud800", "zz" * 5,
    "x" * LONG_CHARS, [], [1], {}, {"pid": 1, "started": ""}, [{"pid": math.inf, "started": None}],
)  # fmt: skip


def target(data: bytes) -> None:
    """One of both, changed as bytes or as JSON; the manifest with a checksum that is right."""
    tape = Tape(data)
    if tape.flag():
        _read_manifest(tape)
    else:
        _read_lock(tape)


def _read_manifest(tape: Tape) -> None:
    is_forged = tape.flag()
    content = _forged(tape) if is_forged else _changed(tape, WHOLE.encode())
    try:
        manifest = Manifest.decode(content, "manifest.json")
    except (Damage, FormatTooNew):
        return
    assert is_forged or manifest == WHOLE, manifest
    assert 1 <= manifest.shards <= 256 and type(manifest.shards) is int, manifest
    assert Manifest.decode(manifest.encode(), "manifest.json") == manifest


def _forged(tape: Tape) -> bytes:
    fields = json.loads(WHOLE.encode())
    del fields["crc32"]
    for _ in range(1 + tape.below(2)):
        name = tape.pick((*fields, "is_moving", "more"))
        if tape.below(4):
            fields[name] = tape.pick(ODD)
        else:
            fields.pop(name, None)
    crc = f"{crc32(json.dumps(fields, sort_keys=True).encode()):08x}"
    return json.dumps(fields | {"crc32": crc}).encode()


def _changed(tape: Tape, content: bytes) -> bytes:
    match tape.below(8):
        case 0:
            opening = tape.pick((b"[", b'{"a":'))
            return content[: tape.below(len(content))] + opening * DEEP_LEVELS
        case 1:
            at = tape.below(len(content))
            return content[:at] + b"9" * 5_000 + content[at:]
        case _:
            for _ in range(1 + tape.below(3)):
                content = mutate_bytes(tape, content)
            return content


def _read_lock(tape: Tape) -> None:
    """Nobody is stopped by what stands in it."""
    facts = OWNER.facts()
    if tape.flag():
        name = tape.pick(list(facts))
        facts[name] = tape.pick(ODD)
    content = json.dumps(facts).encode()
    if tape.flag():
        content = _changed(tape, content)
    disk = FakeDisk()
    disk.make_directories("/d")
    disk.replace_file("/d/lock", content)
    owner = read_owner(disk, "/d")
    if owner is not None:
        owner_facts(owner)
        in_use("/d", owner.facts(), 0)
    lock = DirectoryLock.try_acquire(disk, "/d", Owner(9, "host", 1, "me"))
    assert read_owner(disk, "/d") == lock.owner
    lock.release()
