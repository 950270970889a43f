"""The manifest: a directory is ours once it says so, and until then it is nobody's."""

import json

import pytest

from kit.disk import FakeDisk, PowerLost
from kit.journals import Entropy
from parkade.store.errors import Damage, FormatTooNew, NoRoom, NotOurs, ReadFailed, WriteFailed
from parkade.store.manifest import (
    FORMAT,
    NAME,
    SHARDS_MAX,
    UNFINISHED,
    Manifest,
    begin_directory,
    finish_directory,
    read_manifest,
)

ROOT = "/srv/app"


def begin(disk: FakeDisk, *, shards: int = 4, seed: int = 0) -> Manifest:
    return begin_directory(
        disk,
        ROOT,
        shards=shards,
        created_by="0.1.0",
        created_at_ms=1_790_000_000_000,
        entropy=Entropy(seed),
    )


def made() -> tuple[FakeDisk, Manifest]:
    disk = FakeDisk()
    manifest = begin(disk)
    finish_directory(disk, ROOT)
    return disk, manifest


def rewritten(disk: FakeDisk, **changes: object) -> None:
    """A manifest with other fields and no matching checksum."""
    fields = json.loads(disk.image()[f"{ROOT}/{NAME}"]) | changes
    disk.install(f"{ROOT}/{NAME}", json.dumps(fields).encode())


def test_a_new_directory_has_no_manifest_until_it_is_finished() -> None:
    disk = FakeDisk()
    assert read_manifest(disk, ROOT) is None
    manifest = begin(disk)
    assert read_manifest(disk, ROOT) is None
    finish_directory(disk, ROOT)
    assert read_manifest(disk.power_cut(), ROOT) == manifest
    assert (manifest.format, manifest.shards, manifest.hash) == (FORMAT, 4, "crc32")
    assert len(manifest.salt) == 5


def test_the_power_goes_at_any_call_of_the_making_and_the_next_making_ends_it() -> None:
    counting, _ = made()
    for number in range(1, counting.number + 1):
        for how in ("lost", "landed", "torn"):
            disk = FakeDisk()
            disk.cut_at(number)
            with pytest.raises(PowerLost):
                begin(disk)
                disk.install(f"{ROOT}/house/journal/x", b"")
                finish_directory(disk, ROOT)
            disk = disk.power_cut(how, number)
            if read_manifest(disk, ROOT) is None:
                begin(disk, seed=1)
                finish_directory(disk, ROOT)
            assert read_manifest(disk.power_cut(), ROOT) is not None


def test_a_half_made_directory_is_finished_with_the_salt_it_was_begun_with() -> None:
    disk = FakeDisk()
    first = begin(disk)
    disk.install(f"{ROOT}/shard-000/journal/x.segment", b"")
    disk = disk.power_cut()
    assert read_manifest(disk, ROOT) is None
    assert begin(disk, shards=8, seed=9) == first


def test_a_directory_that_lost_its_manifest_is_not_taken_for_a_new_one() -> None:
    disk, _ = made()
    disk.install(f"{ROOT}/shard-000/journal/x.segment", b"")
    disk.discard(f"{ROOT}/{NAME}")
    with pytest.raises(NotOurs, match="shard-000"):
        read_manifest(disk, ROOT)
    with pytest.raises(NotOurs):
        begin(disk)


def test_a_directory_of_somebody_else_is_refused_and_nothing_is_written_into_it() -> None:
    disk = FakeDisk()
    for name in ("a.txt", "b.txt", "c.txt", "d.txt"):
        disk.install(f"{ROOT}/{name}", b"")
    before = disk.digest()
    with pytest.raises(NotOurs, match=r"a\.txt, b\.txt, c\.txt … but no manifest"):
        read_manifest(disk, ROOT)
    with pytest.raises(NotOurs):
        begin(disk)
    assert disk.digest() == before


@pytest.mark.parametrize("name", ["lock", "lost+found", f"{UNFINISHED}.new"])
def test_a_directory_with_only_a_lock_or_a_leftover_is_still_new(name: str) -> None:
    disk = FakeDisk()
    disk.install(f"{ROOT}/{name}", b"")
    assert read_manifest(disk, ROOT) is None
    begin(disk)


def test_every_flipped_bit_and_every_cut_of_a_manifest_is_damage() -> None:
    disk, manifest = made()
    content = disk.image()[f"{ROOT}/{NAME}"]
    for bit in range(len(content) * 8):
        flipped = bytearray(content)
        flipped[bit // 8] ^= 1 << bit % 8
        try:
            # White space may change into other white space.
            assert Manifest.decode(bytes(flipped), "m") == manifest
        except Damage as damage:
            assert damage.path == "m"
    for end in range(len(content) - 1):
        with pytest.raises(Damage):
            Manifest.decode(content[:end], "m")


@pytest.mark.parametrize("content", [b"", b"\0" * 100, b"[]", b"{}", b'{"format": "1"}', b"\xff"])
def test_what_is_no_manifest_at_all_is_damage(content: bytes) -> None:
    disk, _ = made()
    disk.install(f"{ROOT}/{NAME}", content)
    with pytest.raises(Damage) as caught:
        read_manifest(disk, ROOT)
    assert caught.value.path == f"{ROOT}/{NAME}"


def test_a_later_format_is_refused_by_its_number_and_its_maker() -> None:
    disk, manifest = made()
    later = Manifest(
        3, manifest.salt, manifest.shards, "xxh3", "1.4", manifest.created_at_ms
    ).encode()
    disk.install(f"{ROOT}/{NAME}", later)
    with pytest.raises(FormatTooNew) as caught:
        read_manifest(disk, ROOT)
    assert (caught.value.found, caught.value.supported) == (3, FORMAT)
    assert caught.value.written_by == "1.4"


def test_a_format_that_no_checksum_vouches_for_is_damage_and_not_a_later_one() -> None:
    disk, _ = made()
    rewritten(disk, format=9)
    with pytest.raises(Damage, match="checksum"):
        read_manifest(disk, ROOT)


@pytest.mark.parametrize(
    "changed", [{"shards": 0}, {"shards": SHARDS_MAX + 1}, {"hash": "md5"}, {"salt": b"1234"}]
)
def test_fields_beyond_their_bounds_are_damage_though_the_checksum_matches(
    changed: dict[str, object],
) -> None:
    disk, manifest = made()
    fields = {
        "format": manifest.format,
        "salt": manifest.salt,
        "shards": manifest.shards,
        "hash": manifest.hash,
        "created_by": manifest.created_by,
        "created_at_ms": manifest.created_at_ms,
    } | changed
    disk.install(f"{ROOT}/{NAME}", Manifest(**fields).encode())  # type: ignore[arg-type]
    with pytest.raises(Damage):
        read_manifest(disk, ROOT)


@pytest.mark.parametrize("shards", [0, -1, SHARDS_MAX + 1])
def test_a_number_of_shards_beyond_its_bounds_is_refused(shards: int) -> None:
    with pytest.raises(ValueError, match="shards"):
        begin(FakeDisk(), shards=shards)


def test_a_failing_disk_is_told_from_a_full_one_and_from_damage() -> None:
    disk, _ = made()
    disk.fail(lambda call: call.name == "pread")
    with pytest.raises(ReadFailed):
        read_manifest(disk, ROOT)
    disk = FakeDisk()
    disk.fail(lambda call: call.name == "rename")
    with pytest.raises(WriteFailed):
        begin(disk)
    with pytest.raises(NoRoom):
        begin(FakeDisk(capacity_bytes=10))
