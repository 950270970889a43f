"""Whether a directory is what it should be: every file read, nothing written, whoever owns it.

Each shard is opened as an engine would open it, in memory: checksums, identities, the journal's
proofs, the replay. Then the store's tables are held against each other.
"""

from collections.abc import Iterator
from dataclasses import dataclass, field

import msgspec

from parkade.house import HOUSE_NUMBER, read_state
from parkade.index_keys import index_keys
from parkade.keeping import COUNTED
from parkade.onlooker import Onlooker
from parkade.shard import check
from parkade.shard.retry import expiry_of
from parkade.shard.states import PENDING, STATES
from parkade.shard.ticket import HeadDamage, decode_ticket, format_id
from parkade.store.disk import Disk
from parkade.store.errors import ReadFailed, StoreError
from parkade.store.manifest import Manifest
from parkade.store.record import RecordDamage, decode_records
from parkade.store.snapshot import Snapshot
from parkade.store.verify import HeadFacts, Problem, verify

__all__ = ["PROBLEMS_MAX", "PartReport", "verify_parts"]

PROBLEMS_MAX = 1_000  # of one part: a lost page can cost more than anybody reads


@dataclass(slots=True)
class PartReport:
    """A shard, or the house. `tail_frames`: whole frames that an opening would cut off, since
    nobody was ever told of them."""

    name: str
    tickets: int = 0
    journal_records: int = 0
    tail_frames: int = 0
    problems: list[str] = field(default_factory=list[str])
    is_cut: bool = False
    is_unread: bool = False  # the system would not let it be read, which tells nothing of it

    @property
    def is_sound(self) -> bool:
        return not self.problems


def verify_parts(disk: Disk, path: str, manifest: Manifest, *, deep: bool) -> Iterator[PartReport]:
    """The house, then the shards, one report at a time. What is damaged is told, not raised.

    Without `deep` the rows of single tickets are not read. Raises `ConfigError` where only the
    owner may look.
    """
    yield _verify_house(disk, path, manifest)
    for number in range(manifest.shards):
        yield _verify_shard(disk, path, manifest, number, deep=deep)


def _verify_house(disk: Disk, path: str, manifest: Manifest) -> PartReport:
    report = PartReport("house")
    house = Onlooker(disk, path, manifest.salt, HOUSE_NUMBER, place="house")

    def see(snapshot: Snapshot) -> None:
        for frame in house.frames(snapshot):
            report.journal_records += len(decode_records(frame.body))
        report.tail_frames = house.inspect(snapshot).tail_frames
        read_state(snapshot)
        _note(report, snapshot, verify(snapshot, _no_head, deep=False), 0)

    try:
        with house.held(see):
            pass
    except (StoreError, RecordDamage, msgspec.MsgspecError) as error:
        report.is_unread = isinstance(error, ReadFailed)
        report.problems.append(str(error))
    finally:
        house.close()
    return report


def _verify_shard(
    disk: Disk, path: str, manifest: Manifest, number: int, *, deep: bool
) -> PartReport:
    report = PartReport(f"shard {number:02d}")
    salt = int.from_bytes(manifest.salt, "big")
    shard = Onlooker(disk, path, manifest.salt, number)
    try:
        with shard.sight() as sight:
            report.tickets = sum(sight.core.counters.values())
            report.journal_records = sight.core.lsn - sight.snapshot.lsn
            report.tail_frames = shard.inspect(sight.snapshot).tail_frames
            _note(report, sight.snapshot, verify(sight.snapshot, _head_facts, deep=deep), salt)
            if deep:
                check(sight.core)
    except StoreError as error:
        report.is_unread = isinstance(error, ReadFailed)
        report.problems.append(str(error))
    except AssertionError as error:
        report.problems.append(f"the journal leads to a state that cannot be: {error}")
    finally:
        shard.close()
    return report


def _note(report: PartReport, snapshot: Snapshot, problems: Iterator[Problem], salt: int) -> None:
    for problem in problems:
        if len(report.problems) >= PROBLEMS_MAX:
            report.is_cut = True
            return
        who = "" if problem.serial is None else f"{_name(snapshot, problem.serial, salt)}: "
        report.problems.append(f"{who}{problem.text} (table {problem.table})")


def _name(snapshot: Snapshot, serial: int, salt: int) -> str:
    """The id, if the head can still tell it."""
    try:
        head = snapshot.head(serial)
        part = None if head is None else decode_ticket(head).part
    except (StoreError, HeadDamage):
        part = None
    return f"serial {serial}" if part is None else format_id(serial, part, salt)


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
        ended_ms=ticket.finished_ms if ticket.state in COUNTED else None,
        index_keys=tuple(index_keys(serial.to_bytes(8, "big"), ticket, ticket.state, ticket.group)),
    )
