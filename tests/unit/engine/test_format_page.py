"""docs/format.md says what the code writes: records, rows, tables and files, field by field."""

import re
import types
import typing
from pathlib import Path
from typing import Any

import msgspec
import pytest

from parkade.guards import Override, Pause
from parkade.house import HouseState
from parkade.shard import breaker
from parkade.shard.commands import UniqueRow
from parkade.shard.history import AttemptRow
from parkade.shard.ticket import Ticket
from parkade.store import frame, manifest, meta, outbox, segment
from parkade.store.entry import ENTRY_BYTES, LEVEL_BITS
from parkade.store.environment import Tables
from parkade.store.frame import HEAD_BYTES
from parkade.store.lock import Owner
from parkade.store.manifest import Manifest
from parkade.store.meta import Memo
from parkade.store.record import (
    RECORD_TYPES,
    ErrorText,
    Options,
    ProgressNote,
    UniqueClaim,
)
from parkade.store.segment import HEADER_BYTES

PAGE = (Path(__file__).parents[3] / "docs" / "format.md").read_text(encoding="utf-8")
PARTS: dict[str, type[msgspec.Struct]] = {
    "UniqueClaim": UniqueClaim,
    "Options": Options,
    "ErrorText": ErrorText,
    "ProgressNote": ProgressNote,
}
ROWS: dict[str, type[msgspec.Struct]] = {
    "Ticket": Ticket,
    "AttemptRow": AttemptRow,
    "UniqueRow": UniqueRow,
    "HouseState": HouseState,
    "Pause": Pause,
    "Override": Override,
    "Breaker": vars(breaker)["_Row"],
    "Memo": Memo,
}
NAMES = {int: "int", str: "str", bytes: "bin", bool: "bool", float: "float"}
FIELD = re.compile(r"`(\w+)` ([^,;]+)")


def type_text(kind: Any) -> str:
    """A type as the page writes it: `int`, `str?` where nil may stand, `[int]`, `{str: int}`."""
    origin, inner = typing.get_origin(kind), typing.get_args(kind)
    if origin is list:
        return f"[{type_text(inner[0])}]"
    if origin is dict:
        return "{" + ": ".join(map(type_text, inner)) + "}"
    if origin in (typing.Union, types.UnionType):
        (kept,) = (one for one in inner if one is not types.NoneType)
        return f"{type_text(kept)}?"
    return NAMES.get(kind) or str(kind.__name__)


def fields_text(kind: type[msgspec.Struct]) -> str:
    """The cell of a struct's fields: those behind the semicolon may be missing in older rows."""
    known, later = list[str](), list[str]()
    hints = typing.get_type_hints(kind)
    for field in msgspec.structs.fields(kind):
        text = f"`{field.name}` {type_text(hints[field.name])}"
        (known if field.required else later).append(text)
    return "; ".join(", ".join(part) for part in (known, later) if part)


def section(title: str) -> str:
    """What stands under a heading, as far as the next one of its level or a higher one."""
    found = re.search(rf"^(#+) {re.escape(title)}\n(.*?)(?=^#{{1,}} |\Z)", PAGE, re.M | re.S)
    assert found is not None, f"docs/format.md has no section {title!r}"
    return found[2]


def table(title: str) -> list[list[str]]:
    """The cells of the rows of a section's first table."""
    lines = [line for line in section(title).splitlines() if line.startswith("|")]
    return [[cell.strip() for cell in line.strip("|").split(" | ")] for line in lines[2:]]


def test_every_record_is_there_with_its_tag_and_its_fields() -> None:
    wanted = [
        f"| {kind.__struct_config__.tag} | `{kind.__name__}` | {fields_text(kind)} |"
        for kind in sorted(RECORD_TYPES, key=lambda kind: int(kind.__struct_config__.tag or 0))
    ]
    lines = [line for line in section("Records").splitlines() if re.match(r"\| \d", line)]
    assert lines == wanted


@pytest.mark.parametrize("name", PARTS)
def test_every_part_of_a_record_is_there(name: str) -> None:
    assert f"| `{name}` | {fields_text(PARTS[name])} |" in section("Parts of records")


@pytest.mark.parametrize("name", ROWS)
def test_every_row_is_there(name: str) -> None:
    assert f"| `{name}` | {fields_text(ROWS[name])} |" in section("Rows that are arrays")


def test_what_a_decoder_does_not_know_it_refuses() -> None:
    """A field that an older version passes over is one that it takes away when it writes."""
    kinds = [*RECORD_TYPES, *PARTS.values(), *ROWS.values()]
    passed_over = [
        kind.__name__ for kind in kinds if not kind.__struct_config__.forbid_unknown_fields
    ]
    assert passed_over == []


def test_every_table_of_the_store_is_there() -> None:
    named = {name for row in table("The tables") for name in re.findall(r"`(\w+)`", row[0])}
    assert named == set(Tables._fields)


def test_every_row_of_meta_is_there() -> None:
    keys = {meta.IDENTITY, meta.STATE, meta.COUNTERS, meta.LANE_ROWS, meta.LANE_TICKETS}
    keys |= {meta.MEMO, meta.TAKEN}
    assert {row[0].strip("`").encode() for row in table("meta")} == keys


def test_every_field_of_the_manifest_and_the_lock_is_there() -> None:
    def named(title: str) -> set[str]:
        return {name for row in table(title) for name in re.findall(r"`(\w+)`", row[0])}

    assert named("manifest.json") == {*Manifest.__dataclass_fields__, "crc32"}
    assert named("lock") == set(Owner.__dataclass_fields__)


def sizes(title: str) -> list[tuple[int, int]]:
    """(offset, size) of each row of a layout whose cells are numbers."""
    cells = [row for row in table(title) if row[0].isdigit() and row[1].isdigit()]
    return [(int(row[0]), int(row[1])) for row in cells]


@pytest.mark.parametrize(
    ("title", "length"),
    [
        ("The header of a segment, 64 bytes", HEADER_BYTES),
        ("A frame, 40 bytes and its body", HEAD_BYTES),
        ("The agenda", ENTRY_BYTES),
    ],
)
def test_the_fields_of_a_layout_fill_it_without_a_gap(title: str, length: int) -> None:
    end = 0
    for offset, size in sizes(title):
        if end == length:
            break
        assert offset == end, title
        end += size
    assert end == length


def test_the_numbers_of_the_page_are_those_of_the_code() -> None:
    assert f"magic, `{segment.MAGIC.decode()}`" in PAGE
    assert f"magic `{meta.MAGIC.decode()}`" in PAGE
    assert f"magic, `{frame.MAGIC.decode()}`" in PAGE
    for bits in LEVEL_BITS:
        assert f"2^{bits} ms" in PAGE
    assert len(outbox.pack_place(1, (2, 3, 4))) == 4 + 4 + 8 + 4


def test_all_files_are_of_the_format_that_the_page_tells() -> None:
    assert manifest.FORMAT == segment.FORMAT == meta.FORMAT == 1
    assert "This page is of format 1." in PAGE
