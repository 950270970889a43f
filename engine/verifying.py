"""Whether a directory is what it should be: every file read, nothing written, whoever owns it.

Each shard is opened as an engine would open it, in memory: checksums, identities, the journal's
proofs, the replay. Then the store's tables are held against each other. Damaged pages can end the
process that walks them, so `verify_apart` does it in a child.
"""

from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any

import msgspec

from parkade.apart import ChildDied, lines_apart, serve_lines
from parkade.checkpoint import BODY_PAYLOAD, BODY_RESULT
from parkade.clock import SystemClock
from parkade.house import HOUSE_NUMBER, read_state
from parkade.index_keys import index_keys, task_prefix
from parkade.keeping import COUNTED
from parkade.onlooker import Onlooker
from parkade.opening import records_of, shard_directory
from parkade.reader import existing_manifest
from parkade.shard.check import check
from parkade.shard.commands import UniqueRow
from parkade.shard.history import HistoryDamage, decode_attempt
from parkade.shard.retry import expiry_of
from parkade.shard.states import DEAD, DONE, PENDING, RUNNING, STATES
from parkade.shard.ticket import HeadDamage, decode_ticket, format_id
from parkade.store.batch import BOOKMARK_FENCE
from parkade.store.disk import Disk, RealDisk
from parkade.store.environment import DATA_FILE, MEANINGLESS
from parkade.store.errors import ReadFailed, StoreError
from parkade.store.manifest import Manifest
from parkade.store.outbox import unpack_place
from parkade.store.record import Submitted
from parkade.store.snapshot import Snapshot
from parkade.store.verify import HeadFacts, Problem, verify
from parkade.store.writer import CLAIM_BYTES

__all__ = ["PROBLEMS_MAX", "Finding", "PartReport", "verify_apart", "verify_parts"]

PROBLEMS_MAX = 1_000  # of one part: a lost page can cost more than anybody reads


class Finding(msgspec.Struct, frozen=True, omit_defaults=True):
    """Something that is wrong: where it stands, as far as that can be told. `offset` is in bytes;
    `ticket` is an id, or `serial N` where its head does not tell the rest of it."""

    text: str
    file: str | None = None
    offset: int | None = None
    table: str | None = None
    ticket: str | None = None


@dataclass(slots=True)
class PartReport:
    """A shard, or the house. `tail_frames`: whole frames that an opening would cut off, since
    nobody was ever told of them."""

    name: str
    tickets: int = 0
    journal_records: int = 0
    tail_frames: int = 0
    problems: list[Finding] = field(default_factory=list[Finding])
    is_cut: bool = False
    is_unread: bool = False  # the system would not let it be read, which tells nothing of it

    @property
    def is_sound(self) -> bool:
        return not self.problems


def verify_apart(path: str, manifest: Manifest, *, deep: bool) -> Iterator[PartReport]:
    """`verify_parts` in a child process: a part that ends it is damaged, and the next ones are
    looked at by another child. Raises `ControlError` where only the owner may look."""
    at = 0
    while at <= manifest.shards:
        try:
            for said in lines_apart(__name__, {"path": path, "deep": deep, "first": at}):
                yield msgspec.convert(said, PartReport)
                at += 1
        except ChildDied as death:
            text = f"reading it ended the process that read it ({death.reason})"
            place = f"{_directory_of(path, at)}/store/{DATA_FILE}"
            yield PartReport(_name_of(at), problems=[Finding(text, file=place)])
            at += 1


def verify_parts(
    disk: Disk,
    path: str,
    manifest: Manifest,
    *,
    deep: bool,
    first: int = 0,
    is_still: bool = False,
) -> Iterator[PartReport]:
    """The house, then the shards, one report at a time. What is damaged is told, not raised.

    Without `deep` the rows of single tickets are not read. `first` parts are left out. `is_still`:
    the caller keeps owners out. Raises `ConfigError` where only the owner may look.
    """
    for at in range(first, manifest.shards + 1):
        if at == 0:
            house = Onlooker(
                disk, path, manifest.salt, HOUSE_NUMBER, place="house", is_still=is_still
            )
            yield _verify_house(house)
        else:
            shard = Onlooker(disk, path, manifest.salt, at - 1, is_still=is_still)
            yield _verify_shard(shard, int.from_bytes(manifest.salt, "big"), deep=deep)


def _name_of(at: int) -> str:
    return "house" if at == 0 else f"shard {at - 1:02d}"


def _directory_of(path: str, at: int) -> str:
    return f"{path}/house" if at == 0 else shard_directory(path, at - 1)


def _verify_house(house: Onlooker) -> PartReport:
    report = PartReport(_name_of(0))

    def see(snapshot: Snapshot) -> None:
        for frame in house.frames(snapshot):
            report.journal_records += len(records_of(frame, house.journal))
        report.tail_frames = house.inspect(snapshot).tail_frames
        read_state(snapshot)
        _note(report, snapshot, verify(snapshot, _no_head, deep=False), 0)
        house.walk_pages(snapshot)

    try:
        with house.held(see):
            pass
    except StoreError as error:
        _note_error(report, error)
    finally:
        house.close()
    return report


def _verify_shard(shard: Onlooker, salt: int, *, deep: bool) -> PartReport:
    report = PartReport(_name_of(shard.number + 1))
    try:
        with shard.sight() as sight:
            report.tickets = sum(sight.core.counters.values())
            report.journal_records = sight.core.lsn - sight.snapshot.lsn
            report.tail_frames = shard.inspect(sight.snapshot).tail_frames
            found = verify(sight.snapshot, _head_facts, deep=deep, judge=_is_readable)
            _note(report, sight.snapshot, found, salt)
            if deep:
                shard.walk_pages(sight.snapshot)
                check(sight.core)
    except StoreError as error:
        _note_error(report, error)
    except AssertionError as error:
        text = f"the journal leads to a state that cannot be: {error}"
        report.problems.append(Finding(text, file=shard.journal))
    finally:
        shard.close()
    return report


def _note_error(report: PartReport, error: Exception) -> None:
    report.is_unread = isinstance(error, ReadFailed)
    file, offset = getattr(error, "path", None), getattr(error, "offset", None)
    report.problems.append(Finding(str(error), file=file, offset=offset))


def _note(report: PartReport, snapshot: Snapshot, problems: Iterator[Problem], salt: int) -> None:
    for problem in problems:
        if len(report.problems) >= PROBLEMS_MAX:
            report.is_cut = True
            return
        who = None if problem.serial is None else _name(snapshot, problem.serial, salt)
        text = f"{'' if who is None else f'{who}: '}{problem.text} (table {problem.table})"
        report.problems.append(Finding(text, file=snapshot.path, table=problem.table, ticket=who))


def _name(snapshot: Snapshot, serial: int, salt: int) -> str:
    """The id, if the head can still tell it."""
    try:
        head = snapshot.head(serial)
        part = None if head is None else decode_ticket(head).part
    except (StoreError, HeadDamage):
        part = None
    return f"serial {serial}" if part is None else format_id(serial, part, salt)


_decode_unique = msgspec.msgpack.Decoder(UniqueRow).decode
_decode_draft = msgspec.msgpack.Decoder(Submitted).decode


_BODY_KINDS = {
    PENDING: BODY_PAYLOAD[0], RUNNING: BODY_PAYLOAD[0], DEAD: BODY_PAYLOAD[0], DONE: BODY_RESULT[0],
}  # fmt: skip


def _is_readable(table: str, key: bytes, row: bytes) -> bool:
    try:
        if table == "uniques":
            _decode_unique(row[CLAIM_BYTES:])
        elif table == "outbox":
            unpack_place(key)
            _decode_draft(row)
        elif table == "history" and int.from_bytes(key[8:], "big") != BOOKMARK_FENCE:
            decode_attempt(row)
    except (*MEANINGLESS, HistoryDamage):
        return False
    return True


def _no_head(serial: int, head: bytes) -> HeadFacts | None:
    return None


def _head_facts(serial: int, head: bytes) -> HeadFacts | None:
    try:
        ticket = decode_ticket(head)
    except HeadDamage:
        return None
    if ticket.serial != serial or ticket.state not in STATES:
        return None
    return HeadFacts(
        task=ticket.task,
        state=ticket.state,
        is_pending=ticket.state == PENDING,
        due_ms=ticket.due_ms,
        first_due_ms=ticket.first_due_ms,
        expiry_ms=expiry_of(ticket) if ticket.state == PENDING else None,
        key=ticket.key,
        ended_ms=ticket.finished_ms if ticket.state in COUNTED else None,
        listed_under=task_prefix(ticket.task, ticket.state),
        index_keys=tuple(index_keys(serial.to_bytes(8, "big"), ticket, ticket.group)),
        body_kind=_BODY_KINDS.get(ticket.state),
    )


def _say(asked: dict[str, Any]) -> Iterator[dict[str, Any]]:
    disk, path = RealDisk(), str(asked["path"])
    manifest = existing_manifest(disk, path, SystemClock().now_ms())
    for part in verify_parts(disk, path, manifest, deep=asked["deep"], first=asked["first"]):
        yield msgspec.to_builtins(part)


if __name__ == "__main__":
    serve_lines(_say)
