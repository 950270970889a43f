"""Segments of a journal: bytes changed, frames moved, doubled or taken out, those of another part
put in; and frames whose checksums are right and whose records are others."""

import struct
from pathlib import Path
from typing import Any, NamedTuple
from zlib import crc32

from fuzz.mutations import mutate_bytes, mutate_msgpack
from fuzz.tape import Tape
from fuzz.towns import SHARDS, harmed_copy, judge, part_directory, seen_whole, template
from parkade.shard.ticket import parse_id
from parkade.store.frame import HEAD_BYTES, encode_frame, salt_crc, scan_frames
from parkade.store.record import decode_records
from parkade.store.segment import HEADER_BYTES, SUFFIX, SegmentHeader, SegmentName

__all__ = ["target"]

FIELD_BYTES = {0: 8, 8: 2, 10: 1, 12: 4, 16: 5, 24: 8, 32: 8, 40: 8, 48: 8, 56: 4}


class Span(NamedTuple):
    """A frame of a file, and what its header says."""

    offset: int
    size: int
    body: bytes
    records: int
    first_lsn: int
    synced_lsn: int


def target(data: bytes) -> None:
    """Harms one segment of one part, and judges what is left."""
    tape = Tape(data)
    part = tape.pick((0, 0, 1, 1, SHARDS))
    is_forged = tape.flag()
    runs, repairs = tape.below(4) == 1, tape.below(8) == 2
    with harmed_copy() as path:
        segment = tape.pick(segments_of(part_directory(path, part)))
        content = segment.read_bytes()
        forge = tape.pick((_forge_records, _forge_records, _forge_frame, _forge_header))
        harm = forge if is_forged else tape.pick((_harm_bytes, _harm_bytes, _harm_frames))
        segment.write_bytes(harm(tape, content, segment))
        unproven = frozenset[str]() if is_forged else _unproven(path, part)
        judge(path, part, is_forged=is_forged, unproven=unproven, runs=runs, repairs=repairs)


def segments_of(part: Path) -> list[Path]:
    """In their order."""
    return sorted((part / "journal").glob(f"*{SUFFIX}"))


def spans_of(content: bytes, segment: Path) -> list[Span]:
    """The frames that stand in a segment."""
    name = SegmentName.parse(segment.name)
    assert name is not None
    return [
        Span(
            head.offset,
            head.size,
            content[head.offset + HEAD_BYTES : head.offset + HEAD_BYTES + head.length],
            head.count,
            head.first_lsn,
            head.synced_lsn,
        )
        for head in scan_frames(content, HEADER_BYTES, salt_crc(name.salt)).frames
    ]


def _unproven(path: Path, part: int) -> frozenset[str]:
    """Tickets named by frames that stood behind all that what is left says to have been durable:
    whole tails that are gone look like those that were never written."""
    if part == SHARDS:
        return frozenset()
    proof_lsn = max(_proof_of(segment) for segment in segments_of(part_directory(path, part)))
    named: set[int] = set()
    for segment in segments_of(part_directory(template(), part)):
        for span in spans_of(segment.read_bytes(), segment):
            if span.records and span.first_lsn + span.records - 1 > proof_lsn:
                for record in decode_records(span.body):
                    named |= _serials(record)
    known = {each: parse_id(each) for each in seen_whole().infos}
    return frozenset(each for each, at in known.items() if at is not None and at.serial in named)


def _proof_of(segment: Path) -> int:
    content = segment.read_bytes()
    header = SegmentHeader.decode(content, str(segment))
    proofs = [span.synced_lsn for span in spans_of(content, segment)]
    return max([*proofs, 0 if header is None else header.synced_lsn])


def _serials(record: Any) -> set[int]:
    """Every ticket that a record names, those that it brings forth as well."""
    named = {getattr(record, "serial", 0), *getattr(record, "serials", ())}
    drafts = [*(getattr(record, "born", None) or ()), *(getattr(record, "sent", None) or ())]
    if getattr(record, "draft", None) is not None:
        drafts.append(record.draft)
    return named | {draft.serial for draft in drafts}


# ------------------------------------------------------------------------ what checksums tell


def _harm_bytes(tape: Tape, content: bytes, segment: Path) -> bytes:
    """Near what was written: the rest of a segment is zeros."""
    end = max((span.offset + span.size for span in spans_of(content, segment)), default=64)
    part = content[: end + 64]
    for _ in range(1 + tape.below(3)):
        part = mutate_bytes(tape, part)
    return part + content[end + 64 :]


def _harm_frames(tape: Tape, content: bytes, segment: Path) -> bytes:
    """Frames as they are, in other places; or those of another segment."""
    spans = spans_of(content, segment)
    if not spans:
        return mutate_bytes(tape, content)
    others = segments_of(part_directory(template(), tape.below(SHARDS + 1)))
    other = tape.pick(others).read_bytes()
    one, two = tape.pick(spans), tape.pick(spans)
    frame = content[one.offset : one.offset + one.size]
    end = spans[-1].offset + spans[-1].size
    match tape.below(6):
        case 0:
            return content[: one.offset] + bytes(one.size) + content[one.offset + one.size :]
        case 1:
            return content[: one.offset] + content[one.offset + one.size :]
        case 2:
            return content[:end] + frame + content[end + one.size :]
        case 3:
            return content[: two.offset] + frame + content[two.offset + one.size :]
        case 4:
            return content[: one.offset] + other[one.offset :]
        case _:
            return other


# -------------------------------------------------------------------- what checksums do not tell


def _forge_records(tape: Tape, content: bytes, segment: Path) -> bytes:
    """The records of a frame are others, and so are the frames' places behind it."""
    spans = spans_of(content, segment)
    if not spans:
        return content
    at = tape.below(len(spans))
    body = spans[at].body
    for _ in range(1 + tape.below(2)):
        body = mutate_msgpack(tape, body)
    try:
        count = len(decode_records(body))
    except Exception:
        count = spans[at].records
    changed = spans[at]._replace(body=body, records=count if tape.below(4) else spans[at].records)
    return _written(content, segment, [*spans[:at], changed, *spans[at + 1 :]])


def _forge_frame(tape: Tape, content: bytes, segment: Path) -> bytes:
    """A frame says another LSN, count or proof; or is there twice, or elsewhere."""
    spans = spans_of(content, segment)
    if not spans:
        return content
    at, there = tape.below(len(spans)), tape.below(len(spans))
    number = tape.pick((0, 1, 2, 1 << 31, 1 << 32, (1 << 64) - 1, tape.number(8)))
    near = tape.pick((-1, 1, 2))
    span = spans[at]
    match tape.below(6):
        case 0:
            spans[at] = span._replace(first_lsn=max(0, span.first_lsn + near))
        case 1:
            spans[at] = span._replace(first_lsn=number)
        case 2:
            spans[at] = span._replace(synced_lsn=number)
        case 3:
            spans[at] = span._replace(records=number & 0xFFFF_FFFF)
        case 4:
            spans.insert(there, span)
        case _:
            spans[at], spans[there] = spans[there], spans[at]
    return _written(content, segment, spans)


def _forge_header(tape: Tape, content: bytes, segment: Path) -> bytes:
    """A field of the header is another."""
    header = bytearray(content[:HEADER_BYTES])
    at = tape.pick(list(FIELD_BYTES))
    size = FIELD_BYTES[at]
    header[at : at + size] = tape.pick((tape.take(size), b"\0" * size, b"\xff" * size))
    return _sealed(bytes(header)) + content[HEADER_BYTES:]


def _sealed(header: bytes) -> bytes:
    return header[:-4] + struct.pack("<I", crc32(header[:-4]))


def _written(content: bytes, segment: Path, spans: list[Span]) -> bytes:
    """Frames one behind the other, with checksums that are right."""
    name = SegmentName.parse(segment.name)
    assert name is not None
    made = bytearray(content[:HEADER_BYTES])
    for span in spans:
        made += b"".join(
            encode_frame(
                span.body,
                count=span.records,
                first_lsn=span.first_lsn,
                synced_lsn=span.synced_lsn,
                offset=len(made),
                salted=salt_crc(name.salt),
            )
        )
    return bytes(made) + bytes(max(0, len(content) - len(made)))
